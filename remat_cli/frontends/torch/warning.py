"""Warnings that point to the user's line, however deep in PyTorch remat is called."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from remat_cli.frontends.torch.telling import clear_live

_OWN = str(Path(__file__).parents[2])


def warn(message: str) -> None:
    """Warn with ``message``, as of the innermost line that is neither remat's nor PyTorch's."""
    import torch

    libraries = (_OWN, str(Path(torch.__file__).parent))
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(libraries):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]  # None ends it
    clear_live()
    warnings.warn(message, stacklevel=level)
