"""What a step of sharded units takes on one rank: of each unit its plan, its gathered parameters, and its collectives.

A unit is a module whose parameters are gathered as a whole before it runs, and freed behind it, as ``fully_shard`` of
PyTorch does. The forward passes of the units run one after another, then the backward passes in the reverse order. A
unit that is not resharded keeps its gathered parameters from its forward to its backward pass. So to reshard is a
choice like that between plans, and adds to the same sum: what all earlier units hold.

The allocator of a rank sees, in this order:

- forward: the buffer of the gather; the gathered parameters, which are copied out of it; the pass. The buffer of one
  unit is freed behind the copies of the next.
- backward: a gather, unless it has been issued ahead; the copies, and the buffer is freed; the gather of the unit
  before, ahead; the pass. Then the gathered parameters are freed, and the buffer of the last reduction. The gradients
  are copied into the buffer of this reduction, and freed; the result of the reduction stays.

Bytes are without what is there all the time.

A gather ahead runs on the link during the backward pass of the unit behind, after the reduction of the unit behind that
one; older reductions are taken to have ended. The step waits for what is left of the gather when this pass has ended.
So resharding costs time only where passes are short. Gathers of forward passes, and reductions, take the same time
whatever is chosen, and are no part of a cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from remat_cli.graph.model import Graph
from remat_cli.plan.model import Allocate, Compute, Deallocate, Statement
from remat_cli.plan.replay import replay

Storage = int
"""Memory that several units may hold: it counts once."""


@dataclass(frozen=True, slots=True)
class UnitBytes:
    """What the collectives of a unit take on a rank, in bytes.

    Attributes:
        gathered: Its parameters, gathered, with padding.
        gathering: The buffer of a gather.
        converted: Its own part in the type that is gathered, while a gather is issued; 0 if it is that already.
        gather_staging: What the backend takes while it gathers.
        reducing: The buffer of a reduction: its gradients, with padding, in the type that is reduced.
        reduced: The result of a reduction, in that type.
        kept: The same as it is kept, in the type of the parameters.
        converting: The same while it is made from the former; 0 if it is the former.
        reduce_staging: What the backend takes while it reduces.
    """

    gathered: int = 0
    gathering: int = 0
    converted: int = 0
    gather_staging: int = 0
    reducing: int = 0
    reduced: int = 0
    kept: int = 0
    converting: int = 0
    reduce_staging: int = 0

    @property
    def issuing(self) -> int:
        """The most that a gather takes beside its buffer while it is issued."""
        return self.converted + self.gather_staging


@dataclass(frozen=True, slots=True)
class UnitGraph:
    """The graph of a unit, which units that are alike share.

    Attributes:
        graph: The graph.
        cut: The node that stands for the gradients that arrive, where the backward pass begins.
        reads: For each node the inputs that it reads, by position.
        parameter_gradients: Bytes of the gradients of its parameters.
        other_gradients: Bytes of the gradients of its inputs.
    """

    graph: Graph
    cut: int
    reads: tuple[frozenset[int], ...]
    parameter_gradients: int
    other_gradients: int


@dataclass(frozen=True, slots=True)
class UnitRun:
    """What a plan of a unit takes.

    Attributes:
        computes: Its nodes, in the order in which they run.
        cost: The cost of both passes.
        backward_cost: That of its backward pass, with what it computes again.
        forward: The most that its forward pass takes.
        backward: The most that its backward pass takes, with what it holds.
        arrived: What is there when its backward pass begins: what it holds, and the gradients that arrive.
        values: The values that it holds between its passes, and their bytes.
        inputs: The inputs that its backward pass reads, by position.
    """

    computes: tuple[int, ...]
    cost: float
    backward_cost: float
    forward: int
    backward: int
    arrived: int
    values: Mapping[int, int]
    inputs: frozenset[int]

    @classmethod
    def of(cls, unit: UnitGraph, statements: Sequence[Statement]) -> UnitRun:
        """That of a valid plan."""
        graph = unit.graph
        result = replay(graph, statements)
        profile = [taken - graph.fixed_memory for taken in result.profile]
        at = next(k for k, one in enumerate(statements) if isinstance(one, Compute) and one.node == unit.cut)
        gradients = statements[at]
        assert isinstance(gradients, Compute)
        first, behind = at - len(gradients.registers), at + 1
        while behind < len(statements) and isinstance(statements[behind], Deallocate):
            behind += 1  # results that end with the forward pass
        held: dict[str, int] = {}
        for one in statements[:behind]:
            if isinstance(one, Allocate):
                held[one.register] = one.value
            elif isinstance(one, Deallocate):
                del held[one.register]
        arrived = sum(graph.size[value] for value in held.values())
        values = {value: graph.size[value] for name, value in held.items() if name not in gradients.registers}
        later = [one.node for one in statements[behind:] if isinstance(one, Compute)]
        return cls(
            computes=tuple(one.node for one in statements if isinstance(one, Compute)),
            cost=result.cost,
            backward_cost=math.fsum(graph.nodes[node].cost for node in later),
            forward=max(profile[:first], default=0),
            backward=max([arrived, *profile[behind:]]),
            arrived=arrived,
            values=values,
            inputs=frozenset[int]().union(*(unit.reads[node] for node in later)),
        )


@dataclass(frozen=True, slots=True)
class UnitCall:
    """The call of a unit in a step.

    Attributes:
        name: The unit.
        kind: The number of its graph.
        memory: What its collectives take.
        inputs: Memory that it is given by other units or by code between them, and bytes.
        positions: For each input of its graph that memory, or None.
        results: The memory of its results, by value.
        beside: Bytes of gradients of others that are there throughout its backward pass.
        reshards: Whether it is set to free its parameters between its passes, before anything is planned.
        deferred: Whether its gradients are reduced only when the backward pass of all units has ended, since no input
            of it takes a gradient.
        gather_cost: The time of a gather, in the unit of the costs of graphs; 0 if nothing is known of the link.
        reduce_cost: That of its reduction.
    """

    name: str
    kind: int
    memory: UnitBytes
    inputs: Mapping[Storage, int] = field(default_factory=dict)
    positions: tuple[Storage | None, ...] = ()
    results: Mapping[int, Storage] = field(default_factory=dict)
    beside: int = 0
    reshards: bool = True
    deferred: bool = False
    gather_cost: float = 0.0
    reduce_cost: float = 0.0

    def shared(self, run: UnitRun) -> dict[Storage, int]:
        """What it holds by a plan that others may hold, too."""
        found = {self.results[value]: size for value, size in run.values.items() if value in self.results}
        read = {self.positions[k] for k in run.inputs if k < len(self.positions)}
        return found | {key: size for key, size in self.inputs.items() if key in read}

    def needed(self, unit: UnitGraph) -> set[Storage]:
        """The memory of inputs that its backward pass reads by any plan: in operations on the gradients that arrive."""
        graph, behind = unit.graph, {unit.cut}
        for number, node in enumerate(graph.nodes):
            if any(graph.producer[value] in behind for value in node.inputs):
                behind.add(number)
        read = {k for number in behind for k in unit.reads[number]}
        return {key for k, key in enumerate(self.positions) if k in read and key is not None}

    def private(self, run: UnitRun) -> int:
        """Bytes that only it can hold by a plan."""
        return sum(size for value, size in run.values.items() if value not in self.results)


@dataclass(frozen=True, slots=True)
class Between:
    """Code before a unit, or behind the last one, that runs without a plan.

    Attributes:
        kept: Memory that it keeps for its backward pass, and bytes.
        backward: The most that its backward pass takes, with what it keeps and gradients that wait for others, beside
            memory that is counted already.
    """

    kept: Mapping[Storage, int] = field(default_factory=dict)
    backward: Callable[[Collection[Storage]], int] = lambda _: 0


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan of a unit, and whether its parameters are freed between its passes."""

    run: UnitRun
    reshard: bool


@dataclass(frozen=True, slots=True)
class Held:
    """What is held between the passes of the first units, the parameters of the root included.

    Attributes:
        bytes: All of it.
        shared: The part of it that others may hold, too.
    """

    bytes: int
    shared: Mapping[Storage, int] = field(default_factory=dict)

    def adding(self, shared: Mapping[Storage, int], others: int = 0) -> Held:
        """The same with more."""
        return Held(self.bytes + others + self.missing(shared), {**self.shared, **shared})

    def missing(self, shared: Mapping[Storage, int]) -> int:
        """Bytes of what is not in it."""
        return sum(size for key, size in shared.items() if key not in self.shared)


@dataclass(frozen=True, slots=True)
class ShardedStep:
    """The units of a step in the order of their forward passes.

    Attributes:
        graphs: The graphs of the units.
        calls: The units.
        between: The code before each unit, and behind the last one.
        root: Parameters of the module around the units, which are gathered throughout the step.
        root_gradients: Bytes of their gradients.
        fixed_bytes: What is there all the time.
        results: Memory of what the module returns, and bytes. It is there while the loss runs.
        staying: What of it units make, and the loop holds to the end of the step.
        loss_forward: The most that the forward pass of the loss takes.
        loss_backward: The most that its backward pass takes.
    """

    graphs: tuple[UnitGraph, ...]
    calls: tuple[UnitCall, ...]
    between: tuple[Between, ...]
    root: UnitBytes
    root_gradients: int
    fixed_bytes: int
    results: Mapping[Storage, int] = field(default_factory=dict)
    staying: Mapping[Storage, int] = field(default_factory=dict)
    loss_forward: int = 0
    loss_backward: int = 0

    def peak_bytes(self, choices: Sequence[Choice]) -> int:
        """The most that a step takes with these choices, with what is there all the time."""
        return self.fixed_bytes + max(need for _, need in self.needs(choices))

    def needs(self, choices: Sequence[Choice]) -> Iterator[tuple[str, int]]:
        """What a step takes at all moments that may need most, with their names; without what is always there."""
        held, reshards_before = Held(self.root.gathered), False
        yield "root: gather", self.root.gathering + max(self.root.issuing, self.root.gathered)
        for at, choice in enumerate(choices):
            yield from self.unit_needs(at, held, choice, reshards_before=reshards_before)
            held, reshards_before = self.behind(at, held, choice), choice.reshard
        yield from self.end_needs(held, resharded=reshards_before)

    def cost(self, choices: Sequence[Choice]) -> float:
        """What the passes of the units cost, and the time in which they wait for parameters that are gathered again."""
        before = [False, *(choice.reshard for choice in choices)]
        waits = [self.wait(at, one, reshards_before=before[at]) for at, one in enumerate(choices)]
        return math.fsum([*(choice.run.cost for choice in choices), *waits, self.last_wait(resharded=before[-1])])

    def wait(self, at: int, choice: Choice, *, reshards_before: bool) -> float:
        """The time from the end of a unit's backward pass until the parameters of the unit before it are gathered."""
        if not reshards_before:
            return 0.0
        reducing = self.calls[at + 1].reduce_cost if at + 1 < len(self.calls) else 0.0
        return max(0.0, self.calls[at - 1].gather_cost - max(0.0, choice.run.backward_cost - reducing))

    def last_wait(self, *, resharded: bool) -> float:
        """The same for the last unit; the code behind the units is in no plan, and counts as no time."""
        return self.calls[-1].gather_cost if resharded else 0.0

    def behind(self, at: int, held: Held, choice: Choice) -> Held:
        """What is held behind a unit, if so much is held before it and the code before it."""
        call = self.calls[at]
        others = call.private(choice.run) + (0 if choice.reshard else call.memory.gathered)
        return held.adding(self.between[at].kept).adding(call.shared(choice.run), others)

    def unit_needs(self, at: int, held: Held, choice: Choice, *, reshards_before: bool) -> Iterator[tuple[str, int]]:
        """What both passes of a unit need at most, and those of the code before it.

        Args:
            at: The number of the unit.
            held: What the units before it hold, and code before these.
            choice: Its plan.
            reshards_before: Whether the unit before it is resharded.
        """
        call, run = self.calls[at], choice.run
        own, before = call.memory, self.calls[at - 1].memory if at else self.root
        with_code = held.adding(self.between[at].kept)
        entering = with_code.bytes + with_code.missing(call.inputs) + before.gathering
        yield f"{call.name}: gather", entering + own.gathering + own.issuing
        yield f"{call.name}: copy out", entering + own.gathering + own.gathered
        yield f"{call.name}: forward", entering - before.gathering + own.gathering + own.gathered + run.forward
        ahead = before.gathering if at and reshards_before else 0
        reduced = sum(one.memory.kept for one in self.calls[at + 1 :])
        reducing = self.calls[at + 1].memory.reducing if at + 1 < len(self.calls) else 0
        read = {key: size for key, size in call.shared(run).items() if key in call.inputs}
        others = with_code.bytes + with_code.missing(read) + call.beside + reduced + reducing
        others += with_code.adding(call.shared(run)).missing(self.staying)
        if choice.reshard:
            if at + 1 == len(self.calls) and not self.root.gathered:  # nothing gathers it ahead
                yield f"{call.name}: gather again", others + run.arrived + own.gathering + own.issuing
            yield f"{call.name}: copy out again", others + run.arrived + own.gathering + own.gathered
        if ahead:
            yield f"before {call.name}: gather ahead", others + run.arrived + own.gathered + ahead + before.issuing
        yield f"{call.name}: backward", others + run.backward + own.gathered + ahead
        yield from self._reductions(at, held, ahead, reduced, reducing)

    def least_beside(self, at: int) -> int:
        """Bytes beside each pass of a unit whatever is chosen, its own parameters and what units hold left out.

        In the backward pass the parameters of the unit before it are held, or gathered ahead.
        """
        later, own = self.calls[at + 1 :], self.calls[at]
        reductions = sum(one.memory.kept for one in later) + (later[0].memory.reducing if later else 0)
        before = self.calls[at - 1].memory if at else UnitBytes()
        return min(own.memory.gathering, own.beside + reductions + min(before.gathering, before.gathered))

    def least_end(self, needed: Mapping[Storage, int]) -> int:
        """Bytes that the loss needs whatever is chosen, with the inputs ``needed``, beside private memory of units."""
        results = sum({**self.results, **needed}.values())
        return results + max(self.loss_forward, self.loss_backward)

    def _reductions(self, at: int, held: Held, ahead: int, reduced: int, reducing: int) -> Iterator[tuple[str, int]]:
        """What is needed behind the backward pass of a unit, up to that of the unit before it.

        Args:
            at: The number of the unit.
            held: What the units before it hold, and code before these.
            ahead: The buffer of the gather of the unit before it.
            reduced: The results of all reductions behind it.
            reducing: The buffer of the last of them.
        """
        call = self.calls[at]
        own, graph, code = call.memory, self.graphs[call.kind], self.between[at]
        with_code = held.adding(code.kept)
        beside = with_code.bytes + call.beside + graph.other_gradients + ahead + reduced
        beside += with_code.missing(self.staying)
        if call.deferred:
            left = reducing + own.gathered + graph.parameter_gradients
        else:
            yield f"{call.name}: reduce", beside + graph.parameter_gradients + own.reducing
            yield f"{call.name}: reduced", beside + own.reducing + own.reduced + max(own.reduce_staging, own.converting)
            left = own.reducing + own.kept
        left += held.bytes + held.adding(code.kept).missing(self.staying)
        yield f"before {call.name}: backward", left + ahead + reduced + code.backward(held.shared)
        if at == 0:
            yield from self._last_reductions(reduced + left - held.bytes, reducing if call.deferred else own.reducing)

    def _last_reductions(self, there: int, reducing: int) -> Iterator[tuple[str, int]]:
        """What the reductions need that wait for the end of the backward pass.

        Args:
            there: What is there then, but for the parameters of the root and their gradients.
            reducing: The buffer of the last reduction, which is a part of it.
        """
        waiting = [("root", self.root, self.root_gradients, 0)] if self.root.gathered else []
        there += self.root_gradients
        first = self.calls[0]
        if first.deferred:
            gradients = self.graphs[first.kind].parameter_gradients
            waiting.append((first.name, first.memory, gradients, first.memory.gathered))
        for name, own, gradients, gathered in waiting:
            there += own.reducing - reducing - gathered
            yield f"{name}: reduce", there
            there += own.kept - gradients
            yield f"{name}: reduced", there - own.kept + own.reduced + max(own.reduce_staging, own.converting)
            reducing = own.reducing

    def end_needs(self, held: Held, *, resharded: bool) -> Iterator[tuple[str, int]]:
        """What the code behind the last unit needs, and the loss; ``resharded`` if the last unit is."""
        last, code = self.calls[-1].memory, self.between[-1]
        with_code = held.adding(code.kept)
        with_results = with_code.bytes + with_code.missing(self.results)
        yield "end of the forward pass", with_results + last.gathering
        yield "loss: forward", with_results + self.loss_forward
        yield "loss: backward", with_results + self.loss_backward
        ahead = last.gathering if resharded and self.root.gathered else 0
        staying = with_code.missing(self.staying) + ahead
        if ahead:
            yield "root: gather ahead", with_code.bytes + staying + last.issuing
        yield "behind the units: backward", held.bytes + staying + code.backward(held.shared)
