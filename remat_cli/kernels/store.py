"""The cache of machine code on disk, in the place of numba's own, which a damaged or missing file ends.

One file holds one compiled function for one signature and one kind of processor, behind a digest of its content. It
is written beside its place and then moved there, so that processes that start at once do not see half of it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import compiler, config
from numba.core.caching import _Cache, _CacheLocator
from numba.core.serialize import dumps
from numba.misc.appdirs import AppDirs

_DIGEST = 32
"""Bytes of SHA-256."""


def folders() -> list[Path]:
    """Where machine code may lie, as numba has it: NUMBA_CACHE_DIR alone, or beside the source, then at the user's."""
    source = Path(__file__)
    apart = _CacheLocator.get_suitable_cache_subpath(str(source))
    if config.CACHE_DIR:
        return [Path(config.CACHE_DIR) / apart]
    return [source.parent / "__pycache__", Path(AppDirs("numba", appauthor=False).user_cache_dir) / apart]


class Store(_Cache):  # type: ignore[misc]  # numba has no types
    """What numba asks for the machine code of one function, and gives it to.

    Nothing here fails: what cannot be read is compiled, and what cannot be written is compiled again next time.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """The cache of ``function``, which is a function of a module."""
        self._name = f"{Path(inspect.getfile(function)).stem}.{function.__name__}"
        self._at_hand: dict[str, Any] = {}

    @property
    def cache_path(self) -> str:
        """The first folder that is looked into."""
        return str(folders()[0])

    def enable(self) -> None:
        """It always is."""

    def disable(self) -> None:
        """It never is."""

    def flush(self) -> None:
        """Forget nothing: files that do not fit are written over."""

    def holds(self, signature: Any, target: Any) -> bool:
        """Whether the function is there for ``signature``; it is read for the load that comes next."""
        target.refresh()
        name = self._file(signature, target)
        content = next(filter(None, (_content(folder / name) for folder in folders())), None)
        if content is not None:
            self._at_hand[name] = content
        return content is not None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function, or None."""
        if not self.holds(sig, target_context):
            return None
        content = self._at_hand.pop(self._file(sig, target_context))
        return compiler.CompileResult._rebuild(target_context, *content)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the compiled function into the first folder that takes it, if any does."""
        if data.library.has_dynamic_globals:  # addresses of this process
            return
        content = dumps(data._reduce())
        name = self._file(sig, data.target_context)
        for folder in folders():
            with contextlib.suppress(OSError):
                _write(folder / name, _digest(content) + content)
                return

    def _file(self, signature: Any, target: Any) -> str:
        key = repr((signature, target.codegen().magic_tuple()))
        return f"{self._name}-{sys.implementation.cache_tag}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.nbc"


@functools.cache
def _stamp() -> bytes:
    """What machine code depends on: the sources of this room, which are compiled into one another, and the compiler."""
    parts = [numba.__version__, llvmlite.__version__, sys.version]
    sources = [item for item in resources.files("remat_cli.kernels").iterdir() if item.name.endswith(".py")]
    parts += [hashlib.sha256(item.read_bytes()).hexdigest() for item in sorted(sources, key=lambda item: item.name)]
    return " ".join(parts).encode()


def _content(path: Path) -> Any:
    """What the file holds; None if there is none, it is damaged, or it was compiled from something else."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    content = data[_DIGEST:]
    return pickle.loads(content) if _digest(content) == data[:_DIGEST] else None


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(_stamp() + content).digest()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # Another user may run what was compiled here, for example while an image was made.
        Path(draft).chmod(0o644)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
