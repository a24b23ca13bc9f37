"""Ids of nodes that say where in the model an operation comes from: ``layer1.0.conv1/convolution``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from remat_cli.frontends.torch.private import schema
from remat_cli.graph.model import Phase

_ROOT = re.compile(r"^L\[['\"][^'\"]*['\"]\]\.?")
_ENTRY = re.compile(r"\.?(?:_modules)?\[['\"]?([^'\"\]]*)['\"]?\]")
_ODD = re.compile(r"[^\w.\-]+")


@dataclass(slots=True)
class Names:
    """Gives out ids, each once."""

    taken: dict[str, int] = field(default_factory=dict)

    def of(self, node: Any, phase: Phase) -> str:
        """An id for the operation of an FX node: the module it belongs to (or is the backward of), and its name."""
        path = module_path(node)
        parts = ["grad"] if phase is Phase.BACKWARD else []
        parts += [path] if path else []
        return self.unique("/".join([*parts, schema(node.target).name.rpartition("::")[2]]))

    def unique(self, wanted: str) -> str:
        """``wanted``, with a number if it is taken."""
        count = self.taken.get(wanted, 0)
        self.taken[wanted] = count + 1
        return self.unique(f"{wanted}.{count}") if count else wanted


def module_path(node: Any) -> str:
    """``layer1.0.conv1``: the innermost module to which a node belongs; empty where that is not known."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    for path, _ in reversed(stack.values()):
        return clean_path(str(path))
    return ""


def clean_path(path: str) -> str:
    """``L['self'].layer1[0].conv1`` as ``layer1.0.conv1``."""
    dotted = _ENTRY.sub(r".\1", _ROOT.sub("", path))
    return _ODD.sub("_", dotted).strip("._")
