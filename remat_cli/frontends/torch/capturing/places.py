"""Names the place in the user's code at which an error occurred."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

_OWN = Path(__file__).parents[3]
"""The folder of remat."""
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(\w+)_at_\d+$")
"""PyTorch's name for the rest of a function behind a graph break."""
Frame = tuple[str, int, str]
"""File, line and function."""


def frames_of(error: BaseException) -> list[Frame]:
    """The frames of an error's traceback, from the outermost to the innermost."""
    return [(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]


def place_in(frames: Sequence[Frame]) -> str:
    """``train.py:12 in build``: the innermost of ``frames`` that is neither PyTorch's nor remat's; empty if none is.

    If that is in an installed package, the innermost frame of the user's own files follows:
    ``timm/layers/drop.py:219 in calculate_rates, called from train.py:12 in build``.
    """
    theirs = [frame for frame in frames if not _is_ours(frame[0])]
    if not theirs:
        return ""
    own = [frame for frame in theirs if _installed(frame[0]) is None]
    last = theirs[-1]
    if not own or own[-1] is last:
        return _words(last)
    return f"{_words(last)}, called from {_words(own[-1])}"


def _is_ours(file: str) -> bool:
    """Whether a file belongs to PyTorch, to remat or to Python itself."""
    import torch

    if file.startswith("<"):  # frozen modules, and code that a library generated
        return True
    inside = [Path(torch.__file__).parent, _OWN]
    if _installed(file) is None:
        inside.append(Path(sysconfig.get_path("stdlib")))
    return any(Path(file).is_relative_to(folder) for folder in inside)


def _installed(file: str) -> Path | None:
    """The path of a file within the folder of installed packages; None if it is not there."""
    path = Path(file)
    names = [k for k, part in enumerate(path.parts) if part in {"site-packages", "dist-packages"}]
    return Path(*path.parts[names[-1] + 1 :]) if names else None


def _words(frame: Frame) -> str:
    file, line, function = frame
    name = _installed(file) or Path(file).name
    function = _RESUMED.sub(r"\1", function)
    where = f" in {function}" if function and not function.startswith("<") else ""
    return f"{name}:{line}{where}"
