"""Tracebacks that show users their own lines: remat's errors say in words what is wrong.

``REMAT_DEBUG=1`` keeps whole tracebacks.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import ParamSpec, TypeVar

from remat_cli.errors import RematError

P = ParamSpec("P")
R = TypeVar("R")

_NOT_OF_USERS = {"remat_cli", "torch", "jax", "jaxlib", "tensorflow", "keras", "tf_keras", *sys.stdlib_module_names}
_NOT_OF_USERS -= {"__main__"}
"""Packages whose frames say nothing about the code of users."""


def door(function: Callable[P, R]) -> Callable[P, R]:
    """``function`` for users: errors of remat leave it without the frames in which they came to be."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except RematError as raised:
            error = shortened(raised)
        raise error

    return guarded


def shortened(error: RematError) -> RematError:
    """``error`` with the lines of users alone, and with an exception of theirs as its cause, if one is."""
    if os.environ.get("REMAT_DEBUG"):
        return error
    causes = [one for one in _causes(error) if not isinstance(one, RematError) and _of_users(one.__traceback__)]
    for one, cause in zip([error, *causes], [*causes, None], strict=True):
        one.__cause__ = cause  # and with this its context is not shown
        one.__traceback__ = _of_users(one.__traceback__)
    return error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What led to ``error``: to remat's errors what they name as their cause, to others what a traceback would show."""
    seen = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        hidden = following.__suppress_context__ or isinstance(following, RematError)
        following = following.__cause__ or (None if hidden else following.__context__)
        if following is not None:
            yield following


def _of_users(trace: TracebackType | None) -> TracebackType | None:
    """The entries of a traceback that are in code of users."""
    entries = []
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _NOT_OF_USERS:
            entries.append(trace)
        trace = trace.tb_next
    shown: TracebackType | None = None
    for one in reversed(entries):
        shown = TracebackType(shown, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return shown
