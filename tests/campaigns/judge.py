"""An independent judge of plan documents, by the memory model in docs/mathematics.md. Shares no code with remat."""

import math
from dataclasses import dataclass
from typing import Any

from campaigns.truth import Instance


class Wrong(Exception):
    """The plan is not what it says; the message says why."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a valid plan costs and takes."""

    cost: float
    peak: int
    computes: tuple[int, ...]

    @property
    def in_document_order(self) -> bool:
        """Whether first computations come in document order."""
        return list(dict.fromkeys(self.computes)) == sorted(set(self.computes))


def judged(plan: dict[str, Any], graph: dict[str, Any] | None = None) -> Verdict:
    """Replay a plan document.

    Args:
        plan: The document.
        graph: The graph document that it has to be for; None for the one in the plan.

    Raises:
        Wrong: If the plan is invalid, over its budget, for another graph, or costs something else than it claims.
    """
    replay = _Replay(Instance.of(plan["graph"]))
    if graph is not None and Instance.of(graph) != replay.instance:
        raise Wrong("the plan is for another graph")
    for number, statement in enumerate(plan["statements"]):
        try:
            replay.step(statement)
        except Wrong as wrong:
            raise Wrong(f"statement {number}: {wrong}") from None
    verdict = replay.end()
    if plan["budget"] is not None and verdict.peak > plan["budget"]:
        raise Wrong(f"peak {verdict.peak} is over the budget {plan['budget']}")
    if not math.isclose(verdict.cost, plan["claim"]["cost"], rel_tol=1e-9):
        raise Wrong(f"the plan costs {verdict.cost!r} and claims {plan['claim']['cost']!r}")
    return verdict


class _Replay:
    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.numbers = {node.id: i for i, node in enumerate(instance.nodes)}
        self.computes: list[int] = []
        self.live: dict[str, int] = {}
        self.filled: set[str] = set()
        self.used: set[str] = set()
        self.peak = instance.fixed
        self.memory = instance.fixed

    def step(self, statement: dict[str, Any]) -> None:
        if "allocate" in statement:
            self._allocate(statement["allocate"], self.instance.names[statement["value"]], statement["bytes"])
        elif "compute" in statement:
            self._compute(self.numbers[statement["compute"]], statement["registers"])
        else:
            self._free(statement["deallocate"])

    def _allocate(self, register: str, value: int, size: int) -> None:
        if register in self.used:
            raise Wrong(f"the name {register} is used twice")
        if value in self.live.values():
            raise Wrong(f"value {value} is in memory twice")
        if size != self.instance.sizes[value]:
            raise Wrong(f"value {value} has {self.instance.sizes[value]} bytes, not {size}")
        self.used.add(register)
        self.live[register] = value
        self.memory += size
        self.peak = max(self.peak, self.memory)

    def _compute(self, i: int, registers: list[str]) -> None:
        node = self.instance.nodes[i]
        if [self.live.get(register) for register in registers] != list(node.makes) or self.filled & set(registers):
            raise Wrong(f"{node.id} does not fill registers of its own")
        readable = {self.live[register] for register in self.filled}
        if missing := set(node.inputs) - readable:
            raise Wrong(f"{node.id} reads {sorted(missing)}, which are not there")
        self.filled.update(registers)
        self.computes.append(i)
        self.peak = max(self.peak, self.memory + node.workspace)

    def _free(self, register: str) -> None:
        if register not in self.live:
            raise Wrong(f"{register} is freed and not there")
        self.memory -= self.instance.sizes[self.live.pop(register)]
        self.filled.discard(register)

    def end(self) -> Verdict:
        nodes = self.instance.nodes
        if set(self.computes) != set(range(len(nodes))):
            raise Wrong("some node is never computed")
        if twice := [node.id for i, node in enumerate(nodes) if not node.recompute and self.computes.count(i) > 1]:
            raise Wrong(f"{twice} may be computed only once")
        if sorted(self.live.values()) != sorted(set(self.instance.outputs)) or set(self.live) != self.filled:
            raise Wrong("in the end not exactly the outputs are in memory")
        return Verdict(math.fsum(nodes[i].cost for i in self.computes), self.peak, tuple(self.computes))
