"""What this room changes in numba, and all that it uses of numba's internals: the cache on disk, and linking.

Cache: one file holds one compiled function for one signature and one kind of processor, behind a digest of its
content, so that damage is noticed. It is written beside its place and then moved there, so that processes that start
at once do not see half of it. It is read from folders that cannot be written, too.

Linking: numba optimises every function and makes machine code for it, also for those that are then linked into
another one and optimised there again. Functions that are only parts of others are left as they are: that takes a
third of the time that compiling all took (9.2 s instead of 14 s for what ``remat solve`` needs, measured under load).
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
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import llvmlite
import numba
from llvmlite.binding import Linkage
from numba.core import compiler, config
from numba.core.caching import _Cache, _CacheLocator
from numba.core.codegen import CodeLibrary, JITCodeLibrary
from numba.core.environment import lookup_environment
from numba.core.serialize import dumps
from numba.misc.appdirs import AppDirs

_DIGEST = 32
"""Bytes of SHA-256."""
_ENVIRONMENT = "_ZN08NumbaEnv"
"""How names of what compiled functions need of Python begin."""


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

    def place(self, signature: Any, target: Any) -> Path | None:
        """The folder where the function is for ``signature``, undamaged; None if it is in none."""
        target.refresh()
        name = self._file(signature, target)
        return next((folder for folder in folders() if _content(folder / name) is not None), None)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function, or None."""
        folder = self.place(sig, target_context)
        content = None if folder is None else _content(folder / self._file(sig, target_context))
        return None if content is None else compiler.CompileResult._rebuild(target_context, *pickle.loads(content))

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


def _content(path: Path) -> bytes | None:
    """What the file holds; None if there is none, it is damaged, or it was compiled from something else."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    content = data[_DIGEST:]
    return content if _digest(content) == data[:_DIGEST] else None


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


class _Linked(JITCodeLibrary):  # type: ignore[misc]  # numba has no types
    """An entry with the parts that it calls, directly or not."""

    def finalize(self) -> None:
        """Make machine code, and give the parts the environments that they would have had by themselves."""
        self._linking_libraries[:] = _closure(self._linking_libraries)
        super().finalize()
        for variable in self._final_module.global_variables:
            environment = lookup_environment(variable.name) if variable.name.startswith(_ENVIRONMENT) else None
            if environment is not None:
                self._codegen.set_env(variable.name, environment)

    def _optimize_final_module(self) -> None:
        """Optimise, knowing that nobody else calls the parts."""
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.linkonce_odr:
                function.linkage = Linkage.internal
        super()._optimize_final_module()


class _Unlinked(JITCodeLibrary):  # type: ignore[misc]  # numba has no types
    """A part: only there to be linked into something else, neither optimised nor made machine code of."""

    @property
    def codegen(self) -> Any:
        """What numba sets the environment with, for which it is too early."""
        return _NoEnvironments()

    def get_pointer_to_function(self, name: str) -> int:
        """No address."""
        return 0

    def add_llvm_module(self, ll_module: Any) -> None:
        """Take it as it is."""
        self._final_module.link_in(ll_module)

    def finalize(self) -> None:
        """Have nothing else added."""
        self._raise_if_finalized()
        self._finalize_dynamic_globals()
        self._finalized = True


def _closure(libraries: Iterable[CodeLibrary]) -> list[CodeLibrary]:
    """The libraries, and those that have to be linked to parts among them, each once."""
    found: dict[CodeLibrary, None] = {}
    todo = list(libraries)
    while todo:
        library = todo.pop()
        if library not in found:
            found[library] = None
            todo.extend(library._linking_libraries if isinstance(library, _Unlinked) else ())
    return list(found)


class _NoEnvironments:
    def set_env(self, name: str, environment: Any) -> None:
        """Leave it to the entry."""


class Whole(compiler.Compiler):  # type: ignore[misc]  # numba has no types
    """Compiles entries."""

    library: type[JITCodeLibrary] = _Linked

    def define_pipelines(self) -> Any:
        """Numba's own, which fill a library of ours."""
        state = self.state
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()  # numba does so for a library that it makes
        return super().define_pipelines()


class Part(Whole):
    """Compiles parts."""

    library = _Unlinked
