"""Keeps the state of the user's random generators while remat calls the user's code."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def undisturbed(device: str = "cpu") -> Iterator[None]:
    """Give the code inside the same random numbers every time, and restore all generators afterwards.

    Args:
        device: ``cuda`` if the code may draw numbers there.
    """
    import torch

    numpy = sys.modules.get("numpy")
    python, numbers = random.getstate(), None if numpy is None else numpy.random.get_state()
    devices = list(range(torch.cuda.device_count())) if device == "cuda" or torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.random.default_generator.manual_seed(0)
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(0)
        random.seed(0)
        if numpy is not None:
            numpy.random.seed(0)
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(numbers)
