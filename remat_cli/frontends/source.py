"""Loads the user's function that ``train.py:build`` names, and names places in the user's code."""

import importlib
import importlib.util
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from remat_cli.errors import CaptureFailed, RematError, UsageError
from remat_cli.printable import printable

_OWN = Path(__file__).parents[1]
"""The folder of remat."""
_STANDARD = re.compile(r"[/\\]python3\.\d+[/\\](?!(?:site|dist)-packages)")
"""The folder of the standard library, of a machine whose Python is not this one."""
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(\w+)_at_\d+$")
"""PyTorch's name for the rest of a function behind a graph break."""
Frame = tuple[str, int, str]
"""File, line and function."""


def load_function(text: str, scheme: str) -> Any:
    """The function that ``FILE.py:NAME`` or ``package.module:NAME`` names.

    Args:
        text: The name.
        scheme: What such names begin with on the command line, such as ``torch``; also the package of the framework.

    Raises:
        UsageError: If there is no such file, module or function, or loading it fails.
    """
    hint = f"write it like {scheme}:train.py:build"
    place, separator, name = text.rpartition(":")
    if not separator or not place or not name:
        raise UsageError(f'"{text}" does not name a function', hint=hint)
    module = _load_file(Path(place), scheme) if place.endswith(".py") else _load_module(place, scheme)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"there is no function {name} in {place}", hint=hint)
    return function


def _load_file(path: Path, scheme: str) -> Any:
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(f"_remat_source_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: this is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look there
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # as Python does for a script: it may import its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code may do anything
        raise _not_loaded(str(path), "loaded", error, scheme) from error
    finally:
        sys.path.remove(folder)
    return module


def _load_module(name: str, scheme: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # the user's code may do anything
        hint = f"a file is given with its suffix, as in {scheme}:train.py:build"
        raise _not_loaded(name, "imported", error, scheme, hint=hint) from error


def _not_loaded(what: str, done: str, error: Exception, scheme: str, *, hint: str = "") -> UsageError:
    """The error for a file or module that fails while it is imported, with the place in the user's code."""
    place = place_in(frames_of(error), scheme)
    at = f" at {place}" if place else ""  # a syntax error names its line itself, and a missing module has none
    return UsageError(f"{what}: cannot be {done}: {type(error).__name__}{at}: {error}", hint=hint)


def called(build: Callable[[], Any], name: str, package: str) -> Any:
    """What the user's function ``build`` returns.

    Args:
        build: The function.
        name: Its name, for messages.
        package: The package of the framework.

    Raises:
        CaptureFailed: If it fails, with the place in the user's code.
    """
    try:
        return build()
    except RematError:
        raise
    except Exception as error:  # the user's code may do anything
        place = place_in(frames_of(error), package)
        at = f" at {place}" if place else ""
        raise CaptureFailed(f"{name}() failed{at}: {type(error).__name__}: {one_line(error)}") from error


def one_line(error: BaseException, most: int = 300) -> str:
    """The text of an error in one line of so many characters; the name of its type if it has none."""
    text = printable(" ".join(str(getattr(error, "message", error)).split())) or type(error).__name__
    return text if len(text) <= most else f"{text[:most]} ..."


def frames_of(error: BaseException) -> list[Frame]:
    """The frames of an error's traceback, from the outermost to the innermost."""
    return [(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]


def place_in(frames: Sequence[Frame], package: str) -> str:
    """``train.py:12 in build``: the innermost of ``frames`` that is neither the framework's nor remat's; empty if none.

    If that is in an installed package, the innermost frame of the user's own files follows:
    ``timm/layers/drop.py:219 in calculate_rates, called from train.py:12 in build``.

    Args:
        frames: From the outermost to the innermost.
        package: The package of the framework, such as ``torch``.
    """
    theirs = [frame for frame in frames if not _is_ours(frame[0], package)]
    if not theirs:
        return ""
    own = [frame for frame in theirs if _installed(frame[0]) is None]
    last = theirs[-1]
    if not own or own[-1] is last:
        return _words(last)
    return f"{_words(last)}, called from {_words(own[-1])}"


def _is_ours(file: str, package: str) -> bool:
    """Whether a file belongs to the framework, to remat or to Python itself, of this machine or of another one."""
    if file.startswith("<") or _STANDARD.search(file):  # frozen modules, and code that a library generated
        return True
    installed = _installed(file)
    if installed is not None and installed.parts[0] in {package, _OWN.name}:
        return True
    spec = importlib.util.find_spec(package)
    inside = [_OWN] if spec is None or spec.origin is None else [Path(spec.origin).parent, _OWN]
    if installed is None:
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
