"""Compiling the inner loops with numba: the decorators, the cache on disk, and compiling in the background.

A function that Python calls is an :func:`entry`; its annotations are its only signature, so that it can be compiled
before the first call. A function that only compiled functions call is :func:`inner`. Entries form groups, which are
compiled together.

Machine code is cached where numba would cache it. Folders that cannot be written are read too; without any folder the
code stays in memory. A damaged file counts as missing.
"""

from __future__ import annotations

import functools
import gc
import importlib
import threading
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np

from remat_cli.control import Control
from remat_cli.graph.arrays import READONLY
from remat_cli.mip import Bools, Floats, Ints

Group = Literal[
    "flow",
    "pricing",
    "annealing",
    "ordering",
    "states",
    "segments",
    "copying",
    "overlapping",
    "repeated",
    "reaching",
]
"""A group: the entries of one module of this package, which are compiled together."""


Square = Annotated[Ints, 2]
Cube = Annotated[Floats, 3]
"""Arrays of two and three dimensions, which their plain annotations do not tell apart."""


class Record:
    """A mutable NumPy record for kernels; its fields have annotations ``int`` or ``float``."""

    @classmethod
    def dtype(cls) -> np.dtype[Any]:
        """The type of such records."""
        kinds = {int: np.int64, float: np.float64}
        return np.dtype((np.record, [(name, kinds[hint]) for name, hint in typing.get_type_hints(cls).items()]))


GROUPS: tuple[Group, ...] = typing.get_args(Group)
_MODULES: dict[Group, str] = {
    "flow": "remat_cli.kernels.flow",
    "pricing": "remat_cli.kernels.pricing",
    "annealing": "remat_cli.kernels.moves",
    "ordering": "remat_cli.kernels.ordering",
    "states": "remat_cli.kernels.states",
    "segments": "remat_cli.kernels.segments",
    "copying": "remat_cli.kernels.copying",
    "overlapping": "remat_cli.kernels.overlapping",
    "repeated": "remat_cli.kernels.repeated",
    "reaching": "remat_cli.kernels.reaching",
}
_POLL_S = 0.05
_OPTIONS = {"_nrt": False}
"""Kernels allocate no arrays, so numba need not count references. With reference counts, a state of many arrays made
them five times as slow (190,000 instead of 1,000,000 moves of annealing a second on graphs/resnet50.json)."""

_F = TypeVar("_F", bound=Callable[..., Any])

_entries: dict[str, list[Any]] = {}
"""The entries of each module, as numba's dispatchers."""
_guard = threading.Lock()
"""Guards the four tables below."""
_queue: list[Group] = []
_finished: dict[Group, threading.Event] = {group: threading.Event() for group in GROUPS}
_errors: dict[Group, BaseException] = {}
_worker: list[threading.Thread] = []
_turn = threading.Lock()
"""Held while a function is loaded or compiled here."""
_current: list[Group] = []
"""The group that is being compiled now, if any."""


def entry(function: _F) -> _F:
    """Compile a function that Python calls, with its group or at its first call. Its annotations are its signature."""
    from numba import njit

    from remat_cli.kernels.backend import Store, Whole

    dispatcher = njit(nogil=True, no_cfunc_wrapper=True, pipeline_class=Whole, **_OPTIONS)(function)
    dispatcher._cache = Store(function)
    _entries.setdefault(function.__module__, []).append(dispatcher)
    return typing.cast(_F, dispatcher)


def inner(function: _F) -> _F:
    """Compile a function that only compiled functions call, as a part of them; Python cannot call it."""
    from numba import njit

    from remat_cli.kernels.backend import Part

    return typing.cast(
        _F, njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False, pipeline_class=Part)(function)
    )


def ready(group: Group) -> bool:
    """Whether ``group`` can be called now: it is compiled, or was loaded from the cache by this call.

    Loading takes tens of milliseconds, and importing numba, if nothing did so before, 0.3 s.

    Raises:
        Exception: The error of an earlier attempt to compile it.
    """
    if group in _errors:
        raise _errors[group]
    while not _finished[group].is_set():
        if _turn.acquire(timeout=_POLL_S):
            try:
                return _load(group)
            finally:
                _turn.release()
        if _current:
            return _finished[group].is_set()
    return True


def warm(groups: Iterable[Group]) -> None:
    """Load or compile groups, in this order, in a background thread; returns at once."""
    with _guard:
        wanted = [group for group in groups if group not in _queue and not _finished[group].is_set()]
        _queue.extend(group for group in dict.fromkeys(wanted) if group not in _errors)
        if _queue and not _worker:
            _worker.append(threading.Thread(target=_work, name="remat-compiling", daemon=True))
            _worker[0].start()


def finished(group: Group) -> bool:
    """Whether the thread in the background is done with ``group``; unlike :func:`ready` it loads nothing."""
    return _finished[group].is_set()


def wait(group: Group, control: Control) -> bool:
    """Wait until ``group`` is ready, and start compiling it if necessary; False if ``control`` stops first.

    Raises:
        Exception: The error of compiling it.
    """
    while not ready(group):
        if control.stopping():
            return False
        warm((group,))
        _finished[group].wait(_POLL_S)
    return True


def compiling() -> str | None:
    """The group that is being compiled now, if any."""
    return next(iter(_current), None)


def kept(group: Group) -> set[Path] | None:
    """The folders that hold the machine code of a group; None if some of it is not cached."""
    found: set[Path] = set()
    for dispatcher in _entries_of(group):
        place = dispatcher._cache.place(_signature(dispatcher), dispatcher.targetctx)
        if place is None:
            return None
        found.add(place)
    return found


def _work() -> None:
    """Load the groups that are cached, which is quick, then compile the others in the order of the queue."""
    loaded: set[Group] = set()
    while True:
        with _guard:
            group = next((queued for queued in _queue if queued not in loaded), None) or next(iter(_queue), None)
            if group is None:
                _worker.clear()
                return
        try:
            if group not in loaded:
                loaded.add(group)
                with _turn:
                    done = _load(group)
            else:
                done = _compile_one(group)
        except BaseException as error:  # raised by the next call that needs the group
            _errors[group] = error
            done = True
        if done:
            with _guard:
                _queue.remove(group)


def _load(group: Group) -> bool:
    """Load the entries of ``group`` if all are cached; whether they are ready. The caller must hold ``_turn``."""
    found = _entries_of(group)
    missing = [dispatcher for dispatcher in found if _signature(dispatcher) not in dispatcher.overloads]
    if any(dispatcher._cache.place(_signature(dispatcher), dispatcher.targetctx) is None for dispatcher in missing):
        return False
    for dispatcher in missing:
        dispatcher.compile(_signature(dispatcher))
    _finished[group].set()
    return True


def _compile_one(group: Group) -> bool:
    """Compile one entry of ``group``; whether it was the last one."""
    with _turn:
        _current.append(group)
        try:
            missing = [
                dispatcher for dispatcher in _entries_of(group) if _signature(dispatcher) not in dispatcher.overloads
            ]
            if missing:
                with _rare_collections():
                    missing[0].compile(_signature(missing[0]))
        finally:
            _current.clear()
    if len(missing) > 1:
        return False
    _finished[group].set()
    return True


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage less often, in the whole process: compiling makes many objects that live to its end.

    In three runs on two cores, compiling what ``solve`` needs took 7.7 to 8.2 s of CPU instead of 9.1 to 10.2 s.
    """
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _entries_of(group: Group) -> list[Any]:
    importlib.import_module(_MODULES[group])
    return _entries[_MODULES[group]]


def _signature(dispatcher: Any) -> tuple[Any, ...]:
    """The numba types of an entry's arguments."""
    hints = typing.get_type_hints(dispatcher.py_func, include_extras=True)
    return tuple(_numba_type(hint) for name, hint in hints.items() if name != "return")


@functools.cache
def _numba_type(hint: Any) -> Any:
    """The numba type for the annotation ``hint``.

    Raises:
        TypeError: If kernels do not accept this type.
    """
    from numba import from_dtype, types

    plain = {
        int: types.int64,
        float: types.float64,
        bool: types.boolean,
        Ints: types.int64[::1],
        Floats: types.float64[::1],
        Bools: types.boolean[::1],
    }
    if hint in plain:
        return plain[hint]
    if typing.get_origin(hint) is typing.Annotated:
        array, (mark,) = _numba_type(hint.__origin__), hint.__metadata__
        return types.Array(array.dtype, 1 if mark == READONLY else mark, "C", readonly=mark == READONLY)
    if isinstance(hint, type) and issubclass(hint, Record):
        return from_dtype(hint.dtype())
    if isinstance(hint, type) and issubclass(hint, tuple):
        fields = typing.get_type_hints(hint, include_extras=True)
        return types.BaseTuple.from_types(tuple(_numba_type(field) for field in fields.values()), hint)
    raise TypeError(f"kernels take no {hint!r}")
