"""The modules of a network, as the names of nodes tell them, and what recomputing a whole module takes.

Frontends name nodes ``blocks.0.attention/mm`` and ``grad/blocks.0.attention/mm``: the module, a slash, the operation.
Tools that recompute whole modules (``torch.utils.checkpoint`` without reentrance, ``keras.RematScope``) do this in each
call of a chosen module: the values inside are dropped after the forward pass; when the backward pass first needs one,
the operations of the module run again in their order, up to the last one whose result the module's own gradients read.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.graph.phases import Training

_BACKWARD = "grad/"
_SEPARATORS = re.compile(r"[./]")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a module in the forward pass.

    Attributes:
        nodes: Its operations, in order.
        again: Those that run again, in order; the first of ``nodes``.
        saved: The values inside that the module's own gradients read.
        trigger: The first node of the backward pass that reads one of them.
    """

    nodes: tuple[int, ...]
    again: tuple[int, ...]
    saved: frozenset[int]
    trigger: int


@dataclass(frozen=True, slots=True)
class Module:
    """A module that can be recomputed as a whole.

    Attributes:
        name: ``blocks.0.attention``.
        calls: Its calls with values that recomputation frees.
        cost: Cost of recomputing it, all calls together.
    """

    name: str
    calls: tuple[Call, ...]
    cost: float


def module_of(name: str) -> str:
    """The module in the name of a node: ``a.b`` of ``a.b/mm`` and of ``grad/a.b/mm``; empty for none."""
    return name.removeprefix(_BACKWARD).rpartition("/")[0]


def lies_in(path: str, module: str) -> bool:
    """Whether ``path`` is ``module`` or a module in it."""
    return path == module or (path.startswith(module) and path[len(module)] in "./")


def modules_of(training: Training, *, whole: bool = False) -> list[Module]:
    """All modules whose recomputation frees something, in the order in which their names appear.

    Where the graph's metadata lists the modules that are called, only those are taken: the names of nodes do not tell a
    module from a list of modules. Of modules with the same operations, such as a wrapper and what it wraps, there is
    only the outermost. The network as a whole is none of them: its backward pass begins with all of its values.

    If ``whole``, all operations of a module run again, and as soon as its gradients begin, as with Keras.
    """
    graph = training.graph
    paths = [module_of(node.id) for node in graph.nodes]
    inside: dict[str, list[int]] = {}
    for k in range(training.sweep):
        ends = [match.start() for match in _SEPARATORS.finditer(paths[k])]
        for end in [*ends, len(paths[k])] if paths[k] else ():
            inside.setdefault(paths[k][:end], []).append(k)
    called = graph.metadata.get("modules") if isinstance(graph.metadata, dict) else None
    if isinstance(called, list):
        inside = {name: nodes for name, nodes in inside.items() if name in called}
    modules: list[Module] = []
    seen: set[tuple[int, ...]] = set()
    for name, nodes in inside.items():
        calls = [call for run in _runs(nodes) if (call := _call(training, paths, name, run)) is not None]
        if whole:
            calls = _whole(training, paths, name, calls)
        again = [node for call in calls for node in call.again]
        everything = len(nodes) >= len(training.forward)
        if calls and not everything and tuple(nodes) not in seen and all(graph.nodes[k].recompute for k in again):
            modules.append(Module(name, tuple(calls), math.fsum(graph.nodes[k].cost for k in again)))
        seen.add(tuple(nodes))
    return modules


def _runs(nodes: Sequence[int]) -> list[tuple[int, ...]]:
    """``nodes`` divided where the forward pass has other nodes between them: one run for each call."""
    runs: list[list[int]] = []
    for node in nodes:
        if runs and node == runs[-1][-1] + 1:
            runs[-1].append(node)
        else:
            runs.append([node])
    return [tuple(run) for run in runs]


def _call(training: Training, paths: Sequence[str], name: str, run: tuple[int, ...]) -> Call | None:
    """The call ``run`` of the module ``name``; None if its gradients read nothing that it makes."""
    graph = training.graph
    saved: set[int] = set()
    trigger = len(graph.nodes)
    for value in (value for node in run for value in graph.values_of(node)):
        own = [k for k in graph.readers[value] if k >= training.sweep and lies_in(paths[k], name)]
        if own:
            saved.add(value)
            trigger = min(trigger, *own)
    if not saved:
        return None
    last = max(graph.producer[value] for value in saved)
    return Call(run, tuple(node for node in run if node <= last), frozenset(saved), trigger)


def _whole(training: Training, paths: Sequence[str], name: str, calls: Sequence[Call]) -> list[Call]:
    """``calls`` of the module ``name`` if all of their operations run again; a single one when its gradients begin."""
    if len(calls) != 1:
        return [Call(call.nodes, call.nodes, call.saved, call.trigger) for call in calls]
    [call] = calls
    first = next(k for k in range(training.sweep, call.trigger + 1) if lies_in(paths[k], name))
    return [Call(call.nodes, call.nodes, call.saved, first)]
