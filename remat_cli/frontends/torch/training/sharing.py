"""The budget of a module that graph breaks divide: what other parts hold counts for each part.

The forward passes of the parts run one after another, then the backward passes in the reverse order. So while part 2
runs forward and backward, part 1 stands between its two halves, and holds what its backward pass needs. In the graph of
part 1 this is the node of the tangents: all later parts run there. Their memory is its workspace. What the parts before
hold, and the gradients that later parts have made, are fixed memory.

Code between the parts that PyTorch runs as it is keeps memory from its forward to its backward pass, too. Parts behind
it run while that is there.

The parts are planned from the last to the first. The last one has to leave room for what the others must hold at that
time, of which only the size without recomputation is known; a share of it is assumed, and the share is tried out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.errors import Infeasible, LimitReached
from remat_cli.frontends.aten.program import TANGENTS
from remat_cli.frontends.torch.capturing.calls import Calls
from remat_cli.frontends.torch.capturing.capture import Captured
from remat_cli.frontends.torch.tensors import leaves, storage, storage_bytes
from remat_cli.frontends.torch.training.outside import Outside, outside_of
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import derive
from remat_cli.plan.model import Allocate, Compute, Deallocate, Plan, Statement
from remat_cli.plan.replay import replay

_STEPS = (0.0, 0.25, -0.25, 0.5, -0.5, 0.75, -0.75, -1.0)
"""How far to go from the share with which the last part needs no plan: up to everything, or down to the least that the
earlier parts can hold, which is what parts in the middle may need. Untuned."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the graphs of a module.

    Attributes:
        graph: Its graph on its own; its fixed memory is that of the module and of all that it is given.
        given_bytes: The part of its fixed memory that earlier parts hold as their results, or code before it keeps.
        own_bytes: The part of its fixed memory that neither all parts share nor an earlier part holds.
        calls: How often a step calls it.
        before: Code without a plan between the part before and this one.
        after: Code without a plan behind the last part; for the others, that is ``before`` of the next one.
    """

    graph: Graph
    given_bytes: int = 0
    own_bytes: int = 0
    calls: int = 1
    before: Outside = field(default_factory=Outside)
    after: Outside = field(default_factory=Outside)


@dataclass(frozen=True, slots=True)
class Held:
    """What other parts hold while one part runs.

    Attributes:
        beside_bytes: All the time: what earlier parts hold, and the gradients of later ones.
        between_bytes: Between its forward and its backward pass, in addition: what later parts need.
    """

    beside_bytes: int = 0
    between_bytes: int = 0

    def scaled(self, factor: float) -> Held:
        """The same for another size of the batch."""
        return Held(round(self.beside_bytes * factor), round(self.between_bytes * factor))

    def leaving(self, graph: Graph, budget_bytes: int, crossing_bytes: int) -> Held:
        """The same, but so much that no plan of ``graph`` within the budget holds more between its two passes.

        The plans of other parts count on it.
        """
        tangents = sum(graph.size[v] for v in graph.values_of(_tangents(graph)))
        room = budget_bytes - graph.fixed_memory - self.beside_bytes - tangents - crossing_bytes
        return Held(self.beside_bytes, max(self.between_bytes, room))

    def added(self, graph: Graph) -> Graph:
        """``graph`` with this memory counted."""
        at = _tangents(graph)
        nodes = list(graph.nodes)
        nodes[at] = replace(nodes[at], workspace=nodes[at].workspace + self.between_bytes)
        return replace(graph, nodes=tuple(nodes), fixed_memory=graph.fixed_memory + self.beside_bytes)


def parts_of(graphs: Sequence[Graph], captured: Sequence[Captured], calls: Calls, loss_bytes: int = 0) -> list[Part]:
    """The parts of a module from their graphs.

    Args:
        graphs: The graph of each part, its fixed memory that of the module and of what the part is given.
        captured: What each graph was made from.
        calls: How the module called them.
        loss_bytes: Most bytes that the loop takes between the two passes of the module, see :class:`Asked`.
    """
    model = captured[0].model
    shared = _sizes([*model.module.parameters(), *model.module.buffers()])
    batch = _sizes([tensor for _, tensor in leaves([model.inputs, model.keywords])])
    common = {**batch, **shared}
    *before, after = outside_of(calls, len(graphs), common)
    after.moment_bytes = max(after.moment_bytes, loss_bytes)
    if len(graphs) == 1 and not before[0].kept and not after.kept:
        return [Part(graphs[0], calls=_times(calls, 0), after=after)]
    held: set[int] = set()
    parts = []
    for number, (graph, one) in enumerate(zip(graphs, captured, strict=True)):
        given = _sizes(_given(calls, number) or one.tensors)
        held |= before[number].kept.keys()
        rest = {key: size for key, size in given.items() if key not in common}
        earlier = sum(size for key, size in rest.items() if key in held)
        held |= _sizes([t for at, made in calls.made if at == number for t in made]).keys()
        missing = sum(size for key, size in common.items() if key not in given and key not in shared)
        graph = replace(graph, fixed_memory=graph.fixed_memory + missing)
        own = sum(rest.values()) - earlier
        parts.append(Part(graph, earlier, own, _times(calls, number), before[number]))
    parts[-1] = replace(parts[-1], after=after)
    return parts


def _times(calls: Calls, number: int) -> int:
    return max(1, sum(at == number for at, _ in calls.made))


def _given(calls: Calls, number: int) -> list[Any]:
    """The inputs of the first call of a part."""
    for (at, _), given in zip(calls.made, calls.given, strict=True):
        if at == number:
            return list(given)
    return []


def _sizes(tensors: Sequence[Any]) -> dict[int, int]:
    """Bytes of each storage."""
    import torch

    return {storage(t): storage_bytes(t) for t in tensors if isinstance(t, torch.Tensor)}


def without_plan(parts: Sequence[Part]) -> list[Graph]:
    """The graph of each part, if no part recomputes anything: the peak of the first is that of the whole step."""
    kept = [derive(part.graph, range(len(part.graph.nodes))) for part in parts]
    return [held.added(part.graph) for part, held in zip(parts, _held(parts, kept), strict=True)]


def planned(
    parts: Sequence[Part], budget_bytes: int | None, plan: Callable[[Graph], Plan]
) -> tuple[list[Plan], list[Held]]:
    """A plan for each part, so that the whole step stays within the budget, and what others hold beside it.

    Args:
        parts: In the order of their forward passes.
        budget_bytes: For the whole step; None if only ``plan`` knows.
        plan: Makes a plan within the budget.

    Raises:
        Infeasible, LimitReached: If no plans were found.
        RematError: From ``plan``.
    """
    kept = [derive(part.graph, range(len(part.graph.nodes))) for part in parts]
    if len(parts) == 1 and parts[0].calls == 1:  # what is beside it does not depend on its plan
        alone = _held(parts, kept)
        return [plan(alone[0].added(parts[0].graph))], alone
    crossing = [_Range.of(part, one) for part, one in zip(parts, kept, strict=True)]
    if budget_bytes is None:
        return _inside_out(parts, crossing, plan, 1.0), _held(parts, kept)
    last = parts[-1].graph
    need = replay(last, kept[-1]).peak_bytes - last.fixed_memory - parts[-1].given_bytes + kept_outside(parts)
    low, high = (
        sum(part.calls * one.at(end) for part, one in zip(parts[:-1], crossing, strict=False)) for end in (0, 1)
    )
    least = (budget_bytes - last.fixed_memory - need - low) / max(1, high - low)
    least = min(1.0, max(0.0, least))
    refused: Infeasible | LimitReached | None = None
    for share in dict.fromkeys(least + step * (least if step < 0 else 1 - least) for step in _STEPS):
        try:
            plans = _inside_out(parts, crossing, plan, share)
        except (Infeasible, LimitReached) as error:
            refused = refused or error
            continue
        held = _held(parts, [one.statements for one in plans])
        pairs = zip(parts, held, plans, strict=True)
        if all(replay(h.added(p.graph), one.statements).peak_bytes <= budget_bytes for p, h, one in pairs):
            return plans, held
    raise (Infeasible if refused is None else type(refused))(
        f"no plans were found with which the {len(parts)} parts of the module fit together"
        + (f": {refused.message}" if refused else ""),
        hint=(refused.hint if refused else "") or "take a larger budget",
    )


@dataclass(frozen=True, slots=True)
class _Range:
    """What a part holds between its two passes: at least, if all that can be is computed again, and without a plan."""

    least: int
    most: int

    @classmethod
    def of(cls, part: Part, kept: Sequence[Statement]) -> _Range:
        """Of a part whose statements without recomputation are ``kept``."""
        graph, at = part.graph, _tangents(part.graph)
        again = [k for k in range(at) if graph.nodes[k].recompute]
        dropped = derive(graph, [*range(at + 1), *again, *range(at + 1, len(graph.nodes))])
        most = crossing_bytes(graph, kept)
        return cls(min(most, crossing_bytes(graph, dropped)), most)

    def at(self, share: float) -> int:
        """The bytes at a share of the way from the least to the most."""
        return round(self.least + share * (self.most - self.least))


def _inside_out(
    parts: Sequence[Part], crossing: Sequence[_Range], plan: Callable[[Graph], Plan], share: float
) -> list[Plan]:
    """Plans from the last part to the first, if the parts before go ``share`` of the way to what they hold at most."""
    plans: list[Plan] = []
    later, gradients = _behind(parts[-1].after, 0, 0)
    for number in reversed(range(len(parts))):
        part = parts[number]
        before = sum(one.calls * at.at(share) for one, at in zip(parts[:number], crossing, strict=False))
        before += (part.calls - 1) * crossing[number].at(share) + _kept(parts[: number + 1])
        held = Held(_beside(part, before, gradients), _between(part, later, gradients))
        made = plan(held.added(part.graph))
        plans.insert(0, made)
        later, gradients = _behind(part.before, *_needs(part, made.statements, later, gradients))
    return plans


def _held(parts: Sequence[Part], statements: Sequence[Sequence[Statement]]) -> list[Held]:
    """What others hold beside each part, by their plans."""
    found: list[Held] = []
    later, gradients = _behind(parts[-1].after, 0, 0)
    for number in reversed(range(len(parts))):
        part = parts[number]
        again = (part.calls - 1) * crossing_bytes(part.graph, statements[number])
        before = _outer(parts[: number + 1], statements) + again + _kept(parts[: number + 1])
        found.insert(0, Held(_beside(part, before, gradients), _between(part, later, gradients)))
        later, gradients = _behind(part.before, *_needs(part, statements[number], later, gradients))
    return found


def kept_outside(parts: Sequence[Part]) -> int:
    """Bytes that code without a plan keeps for its backward pass."""
    return _kept(parts) + parts[-1].after.kept_bytes


def crossing_bytes(graph: Graph, statements: Sequence[Statement]) -> int:
    """Bytes of values that are there between the two passes, tangents left out."""
    at = next(k for k, one in enumerate(statements) if isinstance(one, Compute) and one.node == _tangents(graph))
    live: dict[str, int] = {}
    for k, one in enumerate(statements):
        if isinstance(one, Deallocate):
            del live[one.register]
        elif k > at:
            break
        elif isinstance(one, Allocate):
            live[one.register] = graph.size[one.value]
    tangents = statements[at]
    assert isinstance(tangents, Compute)
    return sum(size for register, size in live.items() if register not in tangents.registers)


def _kept(parts: Sequence[Part]) -> int:
    """The same for code before the last of ``parts``."""
    return sum(part.before.kept_bytes for part in parts)


def _behind(code: Outside, later: int, gradients: int) -> tuple[int, int]:
    """What code without a plan and all behind it need, and the gradients that they leave; from those of what follows.

    Its backward pass runs when that of what follows is over.
    """
    gradients += code.left_bytes
    return max(later, gradients + code.moment_bytes) + code.kept_bytes, gradients


def _outer(parts: Sequence[Part], statements: Sequence[Sequence[Statement]]) -> int:
    """Bytes that all parts but the last hold between their two passes."""
    pairs = zip(parts[:-1], statements, strict=False)
    return sum(part.calls * crossing_bytes(part.graph, one) for part, one in pairs)


def _beside(part: Part, before: int, gradients: int) -> int:
    """What is there all the time; the part's own inputs that earlier parts hold are counted once."""
    return max(0, before - part.given_bytes) + gradients


def _between(part: Part, later: int, gradients: int) -> int:
    """What later parts need between the two passes, without what is counted already: gradients and tangents."""
    graph = part.graph
    return max(0, later - gradients - sum(graph.size[v] for v in graph.values_of(_tangents(graph))))


def _needs(part: Part, statements: Sequence[Statement], later: int, gradients: int) -> tuple[int, int]:
    """What this part and the later ones need beside what all share, and the gradients that they leave."""
    graph = Held(gradients, _between(part, later, gradients)).added(part.graph)
    own = (part.calls - 1) * crossing_bytes(part.graph, statements)
    shared = part.graph.fixed_memory - part.own_bytes
    made = sum(graph.size[v] for v in graph.outputs if graph.producer[v] > _tangents(graph))
    return replay(graph, statements).peak_bytes - shared + own, gradients + made


def _tangents(graph: Graph) -> int:
    """The node that makes the tangents."""
    return next(k for k, node in enumerate(graph.nodes) if node.payload["call"] == TANGENTS)
