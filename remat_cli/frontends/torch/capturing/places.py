"""Names the place in the user's code at which an error of PyTorch occurred."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from remat_cli.frontends import source
from remat_cli.frontends.source import Frame

_PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def places_told(text: str) -> list[Frame]:
    """The frames of a traceback in ``text``, from the outermost to the innermost."""
    return [(file, int(line), name) for file, line, name in _PLACE.findall(text)]


def place_in(frames: Sequence[Frame]) -> str:
    """``train.py:12 in build``: the innermost of ``frames`` that is neither PyTorch's nor remat's; empty if none is."""
    return source.place_in(frames, "torch")


def line_in(node: Any) -> str:
    """The line of the user's code that an FX node comes from, also in the backward pass; empty if it is not known."""
    return "" if node is None else _line_told(node.meta.get("stack_trace") or "")


@cache
def _line_told(trace: str) -> str:
    return place_in(places_told(trace))
