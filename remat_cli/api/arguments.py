"""Checks the small arguments of the functions for users: a wrong type is an error that names the argument."""

from __future__ import annotations

from numbers import Integral, Real
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from remat_cli.errors import wrong_type
from remat_cli.units import as_float

if TYPE_CHECKING:
    from remat_cli.planning.options import SolveOptions


def as_path(given: str | PathLike[str], argument: str = "path") -> str:
    """A path as text.

    Raises:
        UsageError: If it is of another type.
    """
    path = fspath(given) if isinstance(given, PathLike) else given
    if not isinstance(path, str) or "\0" in path:
        raise wrong_type(argument, given, "a path")
    return path


def as_text(given: Any, argument: str) -> str:
    """A text.

    Raises:
        UsageError: If it is of another type.
    """
    if not isinstance(given, str):
        raise wrong_type(argument, given, "text")
    return given


def as_number(given: Any, argument: str, expected: str, hint: str = "") -> float:
    """A number.

    Raises:
        UsageError: If it is of another type; ``expected`` says what the number means.
    """
    if isinstance(given, bool) or not isinstance(given, Real):
        raise wrong_type(argument, given, expected, hint=hint)
    return as_float(given)


def as_whole(given: Any, argument: str, least: int = 1, most: int = 2**31 - 1) -> int:
    """A whole number from ``least`` to ``most``.

    Raises:
        UsageError: If it is anything else.
    """
    if isinstance(given, bool) or not isinstance(given, Integral) or not least <= int(given) <= most:
        raise wrong_type(argument, given, f"a whole number from {least} to {most:,}")
    return int(given)


def options_of(given: Any, default: SolveOptions | None = None) -> SolveOptions:
    """How to solve; ``default``, or the usual way, for None.

    Raises:
        UsageError: If it is of another type.
    """
    from remat_cli.planning.options import SolveOptions

    if given is None:
        return default or SolveOptions()
    if not isinstance(given, SolveOptions):
        hint = 'write remat.SolveOptions(strategy="optimal")'
        raise wrong_type("options", given, "SolveOptions", hint=hint)
    return given
