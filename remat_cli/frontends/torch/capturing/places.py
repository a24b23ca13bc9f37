"""Names the place in the user's code at which an error of PyTorch occurred."""

from __future__ import annotations

import re
from collections.abc import Sequence

from remat_cli.frontends import source
from remat_cli.frontends.source import Frame

_PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def places_told(text: str) -> list[Frame]:
    """The frames of a traceback in ``text``, from the outermost to the innermost."""
    return [(file, int(line), name) for file, line, name in _PLACE.findall(text)]


def place_in(frames: Sequence[Frame]) -> str:
    """``train.py:12 in build``: the innermost of ``frames`` that is neither PyTorch's nor remat's; empty if none is."""
    return source.place_in(frames, "torch")
