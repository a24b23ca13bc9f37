"""States which named values to save between the passes: the schedule of a choice, and a MILP of the cheapest one.

All values but the saved ones are dropped after the forward pass; the backward pass makes each of them once more, right
before it first needs it, and keeps it to its last use. The model has a variable for each group of names and for each
node that may be recomputed. Where a choice exceeds the budget it gets a row, with variables that say what has been
recomputed by then and what is still needed. A row counts no more memory than a schedule takes, so the model is a
relaxation, and a choice that is optimal for it and within the budget is optimal. A choice that exceeds the budget at a
step that has its row is refused by a row of its own.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from remat_cli.graph.tools import KEPT, REPEATED, Tagged
from remat_cli.mip import Builder, LinearModel, linear

_INFINITY = float("inf")

Expression = tuple[float, dict[int, float]]
"""A constant and the coefficients of columns."""


class Step(NamedTuple):
    """A step of a schedule; steps compare by their order in time.

    Attributes:
        before: The node that runs next in its turn, or now.
        again: The node that is recomputed before it; the number of nodes if ``before`` runs now.
    """

    before: int
    again: int


@dataclass(slots=True)
class SavedChoice:
    """The choice among the names of a graph.

    Attributes:
        tagged: The graph and the names.
        rows: The steps with a row in the model.
        refused: Choices that exceed the budget although no row says so.
    """

    tagged: Tagged
    rows: set[Step] = field(default_factory=set)
    refused: list[frozenset[int]] = field(default_factory=list)
    _first: dict[int, int] = field(init=False)
    _last: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Find the nodes that may be recomputed, and the nodes before which that may first and last be."""
        self._first, self._last = {}, {}
        training = self.tagged.training
        graph = training.graph
        for node in reversed(training.forward):
            if not self.tagged.free(node):
                continue
            readers = [reader for value in graph.values_of(node) for reader in graph.readers[value]]
            turns = [
                (r, r) if r >= training.sweep else (self._first[r], self._last[r]) for r in readers if self._asks(r)
            ]
            if turns:
                self._first[node] = min(first for first, _ in turns)
                self._last[node] = max(last for _, last in turns)

    def _asks(self, node: int) -> bool:
        """Whether a node may run in the backward pass."""
        return node >= self.tagged.training.sweep or node in self._first

    def schedule(self, chosen: Collection[int]) -> tuple[list[int], list[Step]]:
        """The computes if the groups ``chosen`` are saved, and the step of each."""
        training = self.tagged.training
        graph, count = training.graph, len(training.graph.nodes)
        saved = [node for node in range(training.sweep) if self.tagged.saves(node, frozenset(chosen))]
        there = {value for node in saved for value in graph.values_of(node)}
        steps = [Step(node, count) for node in range(training.sweep)]
        for turn in range(training.sweep, count):
            todo, missing = [turn], set[int]()
            while todo:
                for value in graph.nodes[todo.pop()].inputs:
                    maker = graph.producer[value]
                    if value not in there and maker not in missing:
                        missing.add(maker)
                        todo.append(maker)
            steps += [Step(turn, again) for again in sorted(missing)]
            steps.append(Step(turn, count))
            there.update(value for node in (*missing, turn) for value in graph.values_of(node))
        return [step.before if step.again == count else step.again for step in steps], steps

    def model(self, budget_bytes: int) -> LinearModel:
        """The relaxation with the rows so far; its first columns are the groups, 1 where saved."""
        return _Writer(self, budget_bytes).model()


@dataclass(slots=True)
class _Writer:
    """Writes a model.

    Attributes:
        choice: The choice.
        budget: Bytes.
        build: The columns and rows so far.
        again: The column of each node that may be recomputed: whether it is.
        by: For a turn and a node, whether it has been recomputed by then.
    """

    choice: SavedChoice
    budget: int
    build: Builder = field(default_factory=Builder)
    again: dict[int, int] = field(default_factory=dict)
    by: dict[tuple[int, int], int] = field(default_factory=dict)

    def model(self) -> LinearModel:
        """See :meth:`SavedChoice.model`."""
        choice, build = self.choice, self.build
        nodes = choice.tagged.training.graph.nodes
        names = build.binaries([0.0] * len(choice.tagged.groups))
        candidates = sorted(choice._first)
        self.again = dict(zip(candidates, build.amounts(nodes[k].cost for k in candidates), strict=True))
        for node in candidates:
            self.demands(node, self.again[node], len(nodes))
        for refused in choice.refused:
            terms = [(-1.0 if name in refused else 1.0, name) for name in names]
            build.rows.append(linear(1.0 - len(refused), terms, _INFINITY))
        for step in sorted(choice.rows):
            self.row(step)
        return replace(build.build(), offset=choice.tagged.training.graph.total_cost)

    def demands(self, node: int, column: int, turn: int) -> None:
        """Rows for ``column``: at least 1 if something that runs up to ``turn`` asks for ``node``, unsaved."""
        missing = self.missing(node)
        for reader in self.readers(node):
            if reader >= self.choice.tagged.training.sweep:
                asking: Expression = (1.0 if reader <= turn else 0.0, {})
            else:
                asking = self.recomputed(reader, turn)
            if asking != (0.0, {}):
                self.at_least(column, [asking, missing, (-1.0, {})])

    def readers(self, node: int) -> list[int]:
        """The nodes that may read what a node makes in the backward pass."""
        graph = self.choice.tagged.training.graph
        readers = {reader for value in graph.values_of(node) for reader in graph.readers[value]}
        return [reader for reader in sorted(readers) if self.choice._asks(reader)]

    def missing(self, node: int) -> Expression:
        """Whether what a node makes is not saved."""
        group = self.choice.tagged.group[node]
        if group in {KEPT, REPEATED}:
            return (0.0 if group == KEPT else 1.0, {})
        return 1.0, {group: -1.0}

    def recomputed(self, node: int, turn: int) -> Expression:
        """Whether a node has been recomputed when the node ``turn`` runs."""
        choice = self.choice
        if node not in self.again or turn < choice._first[node]:
            return 0.0, {}
        if turn >= choice._last[node]:
            return 0.0, {self.again[node]: 1.0}
        if (node, turn) not in self.by:
            [column] = self.build.amounts([0.0])
            self.by[node, turn] = column
            self.demands(node, column, turn)
            self.at_least(self.again[node], [(0.0, {column: 1.0})])
            self.only_if_asked(node, column, turn)
        return 0.0, {self.by[node, turn]: 1.0}

    def only_if_asked(self, node: int, column: int, turn: int) -> None:
        """Rows for ``column``: at most 1, and 0 if nothing that runs up to ``turn`` asks for ``node``, unsaved."""
        sweep = self.choice.tagged.training.sweep
        asking = [self.recomputed(reader, turn) for reader in self.readers(node) if reader < sweep]
        if any(sweep <= reader <= turn for reader in self.readers(node)):
            asking.append((1.0, {}))
        self.at_most(column, asking)
        self.at_most(column, [self.missing(node)])

    def at_least(self, column: int, terms: list[Expression]) -> None:
        """``column >= the sum of terms``."""
        constant, coefficients = _sum(terms)
        row = [(1.0, column), *((-weight, c) for c, weight in coefficients.items())]
        self.build.rows.append(linear(constant, row, _INFINITY))

    def at_most(self, column: int, terms: list[Expression]) -> None:
        """``column <= the sum of terms``."""
        constant, coefficients = _sum(terms)
        row = [(1.0, column), *((-weight, c) for c, weight in coefficients.items())]
        self.build.rows.append(linear(-_INFINITY, row, constant))

    def row(self, step: Step) -> None:
        """The row that keeps a step within the budget; for a recomputation, if it is made."""
        graph = self.choice.tagged.training.graph
        turn = step.again == len(graph.nodes)
        node = graph.nodes[step.before if turn else step.again]
        constant = graph.fixed_memory + node.workspace + sum(node.outputs)
        terms: dict[int, float] = {}
        for value, size in enumerate(graph.size):
            if graph.producer[value] == (step.before if turn else step.again):
                continue
            fixed, live = self.live(value, step)
            constant += int(fixed) * size
            for column, weight in live.items():
                terms[column] = terms.get(column, 0.0) + weight * size
        free = float(self.budget - constant)
        if not turn:  # the row counts if the node is recomputed now: by this turn, and not by the one before
            most = sum(weight for weight in terms.values() if weight > 0)
            over = max(0.0, most - free)
            by, before = self.recomputed(step.again, step.before), self.recomputed(step.again, step.before - 1)
            for column, weight in _sum([by, _negative(before)])[1].items():
                terms[column] = terms.get(column, 0.0) + weight * over
            free += over
        unit = float(max(graph.size, default=1) or 1)
        row = [(weight / unit, column) for column, weight in sorted(terms.items()) if weight]
        self.build.rows.append(linear(-_INFINITY, row, free / unit))

    def live(self, value: int, step: Step) -> Expression:
        """Whether a value is in memory at a step, at least."""
        training = self.choice.tagged.training
        graph = training.graph
        maker, at_end = graph.producer[value], value in graph.outputs
        if maker >= step.before:
            return 0.0, {}
        to_come = any(reader >= step.before for reader in graph.readers[value])
        if maker >= training.sweep:
            return float(at_end or to_come), {}
        if step.before < training.sweep and any(step.before <= r < training.sweep for r in graph.readers[value]):
            return 1.0, {}
        there = self.there(maker, step)
        if at_end or any(reader >= max(step.before, training.sweep) for reader in graph.readers[value]):
            return there
        later = [self.later(reader, step) for reader in graph.readers[value] if reader in self.again]
        return self.any_of([_sum([need, there, (-1.0, {})]) for need in later if need != (0.0, {})])

    def there(self, maker: int, step: Step) -> Expression:
        """Whether what a node makes has been made by a step and not dropped."""
        saved = _sum([(1.0, {}), _negative(self.missing(maker))])
        if maker not in self.again:
            return saved
        recomputed = self.recomputed(maker, step.before if maker <= step.again else step.before - 1)
        return _sum([saved, recomputed])  # it is recomputed only if it is not saved

    def later(self, node: int, step: Step) -> Expression:
        """Whether a node is recomputed at a step or after it."""
        done = self.recomputed(node, step.before if node < step.again else step.before - 1)
        return _sum([(0.0, {self.again[node]: 1.0}), _negative(done)])

    def any_of(self, reasons: list[Expression]) -> Expression:
        """A column that is at least each of ``reasons``."""
        if not reasons:
            return 0.0, {}
        [column] = self.build.amounts([0.0])
        for reason in reasons:
            self.at_least(column, [reason])
        return 0.0, {column: 1.0}


def _sum(terms: list[Expression]) -> Expression:
    """The sum of some expressions."""
    coefficients: dict[int, float] = {}
    for _, own in terms:
        for column, weight in own.items():
            coefficients[column] = coefficients.get(column, 0.0) + weight
    return sum(constant for constant, _ in terms), {c: weight for c, weight in coefficients.items() if weight}


def _negative(term: Expression) -> Expression:
    return -term[0], {column: -weight for column, weight in term[1].items()}
