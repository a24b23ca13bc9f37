"""States which modules to recompute as a whole: the schedule of a choice, and a MILP of the cheapest within a budget.

The model has a variable for each module; of modules that lie in one another, at most one is chosen. Memory at a step is
linear in these variables, but for values that several needs keep alive: such a value has a variable that is at least as
large as each need. Rows for steps are added where a choice exceeds the budget. No row counts more memory than a
schedule takes, so the model is a relaxation, and a choice that is optimal for it and within the budget is optimal. A
choice that exceeds the budget at a step that has its row is refused by a row of its own.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from remat_cli.graph.modules import Call, Module
from remat_cli.graph.phases import Training
from remat_cli.mip import Builder, LinearModel, linear

_INFINITY = float("inf")

_Keeping = frozenset[tuple[int, frozenset[int]]]
"""What keeps an instance: for each need the module whose recomputation it is, or -1, and the modules that serve it."""


class Step(NamedTuple):
    """A step of a schedule; steps compare by their order in time.

    Attributes:
        before: The node that runs next in its turn, or now.
        turn: 1 if that node runs now, 0 if a module is recomputed before it.
        again: The node that is recomputed; 0 for none.
        module: The module that is recomputed; -1 for none.
    """

    before: int
    turn: int
    again: int = 0
    module: int = -1

    @property
    def node(self) -> int:
        """The node that runs."""
        return self.before if self.turn else self.again


class _Need(NamedTuple):
    """A read of the first instance of a value.

    Attributes:
        at: The step.
        of: The module whose recomputation reads it; -1 if the step runs in any case.
        served: Modules whose recomputation has made a later instance by then, if they are chosen.
    """

    at: Step
    of: int
    served: frozenset[int]


class _Copy(NamedTuple):
    """The instance of a value that the recomputation of a module makes, there from ``made`` to ``last``."""

    module: int
    made: Step
    last: Step


@dataclass(slots=True)
class ModuleChoice:
    """The choice among the modules of a graph.

    Attributes:
        training: The graph.
        modules: The modules.
        rows: The steps with a row in the model.
        refused: Choices that exceed the budget although no row says so.
    """

    training: Training
    modules: Sequence[Module]
    rows: set[Step] = field(default_factory=set)
    refused: list[frozenset[int]] = field(default_factory=list)
    _needs: list[tuple[_Need, ...]] = field(init=False)
    _copies: list[list[_Copy]] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.training.graph
        calls = [(m, call) for m, module in enumerate(self.modules) for call in module.calls]
        recomputed: list[list[tuple[int, Call]]] = [[] for _ in graph.nodes]
        for m, call in calls:
            for node in call.again:
                recomputed[node].append((m, call))
        self._copies = [[] for _ in graph.size]
        self._needs = []
        for value, maker in enumerate(graph.producer):
            made = recomputed[maker]
            self._copies[value] = [self._copy(value, m, call) for m, call in made]
            needs = [_Need(Step(r, 1), -1, _served(made, Step(r, 1))) for r in graph.readers[value]]
            for reader in graph.readers[value]:
                for m, call in recomputed[reader]:
                    if maker not in call.again:
                        at = Step(call.trigger, 0, reader, m)
                        needs.append(_Need(at, m, _served(made, at)))
            self._needs.append(tuple(needs))

    def _copy(self, value: int, m: int, call: Call) -> _Copy:
        graph = self.training.graph
        start = Step(call.trigger, 0, graph.producer[value], m)
        again = set(call.again)
        reads = [Step(call.trigger, 0, r, m) for r in graph.readers[value] if r in again]
        reads += [Step(r, 1) for r in graph.readers[value] if r >= call.trigger]
        return _Copy(m, start, max([start, *reads]))

    def schedule(self, chosen: Collection[int]) -> tuple[list[int], list[Step]]:
        """The computes of a choice, and the step of each."""
        before: dict[int, list[tuple[int, Call]]] = {}
        for m in chosen:
            for call in self.modules[m].calls:
                before.setdefault(call.trigger, []).append((m, call))
        steps: list[Step] = []
        for node in range(len(self.training.graph.nodes)):
            for m, call in sorted(before.get(node, ()), key=lambda item: item[1].nodes):
                steps += [Step(node, 0, again, m) for again in call.again]
            steps.append(Step(node, 1))
        return [step.node for step in steps], steps

    def model(self, budget_bytes: int) -> LinearModel:
        """The relaxation with the rows so far; its first columns are the modules, 1 where chosen."""
        build = Builder()
        build.binaries(module.cost for module in self.modules)
        for chain in self._chains():
            build.rows.append(linear(0.0, [(1.0, m) for m in chain], 1.0))
        for choice in self.refused:
            terms = [(-1.0 if m in choice else 1.0, m) for m in range(len(self.modules))]
            build.rows.append(linear(1.0 - len(choice), terms, _INFINITY))
        kept: dict[tuple[int, _Keeping], int] = {}
        for step in sorted(self.rows):
            self._add_row(build, kept, step, budget_bytes)
        return build.build()

    def _chains(self) -> list[tuple[int, ...]]:
        """The modules that hold each operation: those of one operation lie in one another."""
        holding: dict[int, list[int]] = {}
        for m, module in enumerate(self.modules):
            for node in {node for call in module.calls for node in call.nodes}:
                holding.setdefault(node, []).append(m)
        return sorted({tuple(chain) for chain in holding.values() if len(chain) > 1})

    def _add_row(self, build: Builder, kept: dict[tuple[int, _Keeping], int], step: Step, budget_bytes: int) -> None:
        """The row that keeps a step within the budget."""
        graph = self.training.graph
        workspace = graph.nodes[step.node].workspace
        constant = graph.fixed_memory + (workspace if step.turn else 0)
        terms: dict[int, float] = {} if step.turn else {step.module: float(workspace)}
        for value, size in enumerate(graph.size):
            for copy in self._copies[value]:
                other = not step.turn and copy.module != step.module and copy.made.before == step.before
                if not other and copy.made <= step <= copy.last:
                    terms[copy.module] = terms.get(copy.module, 0.0) + size
            if Step(graph.producer[value], 1) <= step:
                constant += self._add_first(build, kept, terms, value, step)
        unit = float(max(graph.size, default=1) or 1)
        row = [(weight / unit, column) for column, weight in sorted(terms.items())]
        build.rows.append(linear(-_INFINITY, row, (budget_bytes - constant) / unit))

    def _add_first(
        self, build: Builder, kept: dict[tuple[int, _Keeping], int], terms: dict[int, float], value: int, step: Step
    ) -> int:
        """Add the first instance of a value to the terms of the row of a step; returns its constant."""
        size = self.training.graph.size[value]
        needs = self._there(value, step)
        if needs is None:
            return size
        if not needs:
            return 0
        of, served = next(iter(needs))
        if len(needs) == 1 and (of < 0 or not served):
            for m in served if of < 0 else (of,):
                terms[m] = terms.get(m, 0.0) + (-size if of < 0 else size)
            return size if of < 0 else 0
        if (value, needs) not in kept:
            [column] = build.amounts([0.0])
            kept[value, needs] = column
            for of, served in needs:
                more = [(1.0, m) for m in served] + ([(-1.0, of)] if of >= 0 else [])
                build.rows.append(linear(1.0 if of < 0 else 0.0, [(1.0, column), *more], _INFINITY))
        terms[kept[value, needs]] = float(size)
        return 0

    def _there(self, value: int, step: Step) -> _Keeping | None:
        """What keeps the first instance of a value at a step: the needs, with or without a module; None for always."""
        graph = self.training.graph
        served = frozenset(copy.module for copy in self._copies[value])
        if step == Step(graph.producer[value], 1):
            return None
        needs = {(need.of, need.served) for need in self._needs[value] if need.at >= step}
        if value in graph.outputs:
            needs.add((-1, served))
        return None if (-1, frozenset()) in needs else frozenset(needs)


def _served(made: Sequence[tuple[int, Call]], at: Step) -> frozenset[int]:
    """The modules that have recomputed something, if they are chosen, before the step ``at``."""
    return frozenset(m for m, call in made if call.trigger < at.before or (call.trigger == at.before and at.turn))
