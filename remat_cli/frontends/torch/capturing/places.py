"""Names the place in the user's code at which an error of PyTorch occurred."""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.frontends import source
from remat_cli.frontends.source import Frame


def place_in(frames: Sequence[Frame]) -> str:
    """``train.py:12 in build``: the innermost of ``frames`` that is neither PyTorch's nor remat's; empty if none is."""
    return source.place_in(frames, "torch")
