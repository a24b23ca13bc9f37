"""Which layer of Keras an operation belongs to: marks in the names of operations while a step is captured.

Keras puts names of layers into names of operations, but changes them where they come up twice. So while a step is
captured, each call of a layer opens a scope of its own, ``remat.layer.NAME.``, from which the name can be read whatever
TensorFlow appends to it. Operations of gradients take over the scopes of what they are gradients of. The scope is
``remat.whole.NAME.`` if ``call`` takes arguments by name, such as ``training``: in a graph, TensorFlow cannot compute
such a call again.
"""

import contextlib
import inspect
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

Path = tuple[str, ...]
"""The names of a layer and of those around it, the outermost first."""

_MARK = re.compile(r"remat\.(layer|whole)\.([\w.-]*?)\.(?:_\d+)?/")
_FIT = re.compile(r"[\w.-]+")


@contextlib.contextmanager
def marked_layers() -> Iterator[None]:
    """Within this context, calls of layers leave their names in the names of operations."""
    import keras
    import tensorflow as tf

    kind = keras.layers.Layer
    own = kind.__call__

    def call(layer: Any, *arguments: Any, **keywords: Any) -> Any:
        if not _FIT.fullmatch(layer.name):
            return own(layer, *arguments, **keywords)
        takes = set(keywords) - {"training"} or "training" in inspect.signature(layer.call).parameters
        with tf.name_scope(f"remat.{'whole' if takes else 'layer'}.{layer.name}."):
            return own(layer, *arguments, **keywords)

    kind.__call__ = call
    try:
        yield
    finally:
        kind.__call__ = own


def layer_path(name: str) -> Path:
    """The layers that the operation ``name`` belongs to."""
    return tuple(layer for _, layer in _MARK.findall(name))


def called_by_name(name: str) -> list[str]:
    """Those of the layers around the operation ``name`` that take arguments by name."""
    return [layer for kind, layer in _MARK.findall(name) if kind == "whole"]


def plain_name(name: str) -> str:
    """``name`` without marks."""
    return _MARK.sub("", name)


def without_root(paths: Sequence[Path]) -> list[Path]:
    """``paths`` without the model, if all layers lie in one."""
    roots = {path[0] for path in paths if path}
    if len(roots) != 1 or not any(len(path) > 1 for path in paths):
        return list(paths)
    return [path[1:] for path in paths]


def shared_path(paths: Sequence[Path]) -> Path:
    """The layers around all of ``paths``."""
    shared: list[str] = []
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return tuple(shared)


def repeatable(paths: Iterable[Path], impure: Iterable[Path], by_name: Collection[str]) -> list[str]:
    """The layers that may run twice, and that their names alone tell, as ``block.dense``; sorted.

    Args:
        paths: The layers of all operations of the forward pass.
        impure: The layers of those that write variables or draw random numbers, which a second run would do again.
        by_name: Names of layers that take arguments by name.
    """
    called = {path[:end] for path in paths for end in range(1, len(path) + 1)}
    twice = {path[:end] for path in impure for end in range(1, len(path) + 1)}
    names = Counter(path[-1] for path in called)
    able = (path for path in called - twice if names[path[-1]] == 1 and path[-1] not in by_name)
    unambiguous = (path for path in able if not any("." in name for name in path))
    return sorted(map(".".join, unambiguous))
