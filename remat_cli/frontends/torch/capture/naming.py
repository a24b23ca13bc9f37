"""Names the module and the line of the user's code that an operation, or an error of PyTorch, comes from."""

import re
from collections.abc import Iterable, Sequence
from functools import cache

from remat_cli.frontends import source
from remat_cli.frontends.source import Frame
from remat_cli.frontends.torch.types import FxNode, Module

_ROOT = re.compile(r"^L\[['\"][^'\"]*['\"]\]\.?")
_STORED = re.compile(r"\.__dict__\[['\"]_modules['\"]\]")
"""How PyTorch writes a submodule that a wrapper finds by ``__getattr__``, as the modules of peft do."""
_ENTRY = re.compile(r"\.?(?:_modules)?\[['\"]?([^'\"\]]*)['\"]?\]")
_ODD = re.compile(r"[^\w.\-]+")
_PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def module_path(node: FxNode) -> str:
    """``layer1.0.conv1``: the innermost module to which a node belongs; empty if unknown."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    for path, _ in reversed(stack.values()):
        return clean_path(str(path))
    return ""


def called_modules(nodes: Iterable[FxNode]) -> list[str]:
    """All modules that are called around ``nodes``, sorted; a list of modules is none of them."""
    stacks = (node.meta.get("nn_module_stack") or {} for node in nodes)
    return sorted({clean_path(str(path)) for stack in stacks for path, _ in stack.values()} - {""})


def clean_path(path: str) -> str:
    """``L['self'].layer1[0].conv1`` as ``layer1.0.conv1``."""
    dotted = _ENTRY.sub(r".\1", _ROOT.sub("", _STORED.sub("", path)))
    return _ODD.sub("_", dotted).strip("._")


def checkpointed_layers(module: Module) -> list[str]:
    """The layers that Transformers can recompute, in the order in which it counts them; empty for other models."""
    return [
        clean_path(name)
        for name, part in module.named_modules()
        if any(kind.__name__ == "GradientCheckpointingLayer" for kind in type(part).__mro__)
    ]


def call_tag(node: FxNode) -> str | None:
    """``addmm.3``: the fourth call of the operator since tracing began, as the name of an FX node tells.

    A policy of torch.utils.checkpoint sees the same calls in the same order. It sees them before functionalization, so
    the names of operators are those without the marks of in-place and functional forms. None if the name tells nothing.
    """
    packet = str(node.target).split(".")[1] if "." in str(node.target) else str(node.target)
    match = re.fullmatch(re.escape(packet) + r"(?:_(\d+))?", node.name)
    return None if match is None else f"{packet.removesuffix('_functional')}.{match[1] or 0}"


def places_told(text: str) -> list[Frame]:
    """The frames of a traceback in ``text``, from the outermost to the innermost."""
    return [(file, int(line), name) for file, line, name in _PLACE.findall(text)]


def place_in(frames: Sequence[Frame]) -> str:
    """``train.py:12 in build``: the innermost of ``frames`` that is neither PyTorch's nor remat's; empty if none is."""
    return source.place_in(frames, "torch")


def line_in(node: FxNode) -> str:
    """The line of the user's code that an FX node comes from, also in the backward pass; empty if it is not known."""
    return "" if node is None else _line_told(node.meta.get("stack_trace") or "")


@cache
def _line_told(trace: str) -> str:
    return place_in(places_told(trace))
