"""Reading of sizes, costs and references from documents; collects all problems before it raises."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from remat_cli.errors import SHOWN_PROBLEMS, InputError, Problem, UsageError
from remat_cli.graph.document import Document
from remat_cli.graph.quoting import quote
from remat_cli.registry import suggestion
from remat_cli.units import parse_size

MAX_BYTES = 2**63 - 1
"""Upper limit of sizes and of the sum of all sizes, so that no peak overflows a signed 64-bit integer."""

MAX_COST = 1e300
"""Upper limit of the sum of all costs, so that the cost of no plan overflows."""

_EXACT = 2**53
_COMPARISONS = 50_000


class Fields:
    """A reader of the fields of one document. It collects problems instead of raising, so that all can be shown.

    Attributes:
        document: The document.
        problems: The problems so far.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self._sizes: dict[str, int] = {}
        self._counts: Mapping[str, int] | None = None
        self._comparisons_left = _COMPARISONS

    def report(self, pointer: str, message: str, hint: str = "") -> None:
        """Record a problem at the place that ``pointer`` names."""
        self.problems.append(self.document.problem(pointer, message, hint))

    def size(self, value: Any, pointer: str) -> int:
        """Bytes of a size that the schema accepts (an integer, a float without a fraction, or text); 0 if invalid."""
        if isinstance(value, str):
            cached = self._sizes.get(value)
            if cached is not None:
                return cached
            try:
                size = parse_size(value)
            except UsageError as error:
                self.report(pointer, error.message, error.hint)
                return 0
            if size <= MAX_BYTES:
                self._sizes[value] = size
        else:
            size = int(value)
        if size > MAX_BYTES:
            self.report(pointer, f"{quote(value)} is more than 2^63 - 1 bytes", "use a size that a machine can have")
            return 0
        return size

    def closest(self, name: str, known: Collection[str], otherwise: str) -> str:
        """A hint with the known name closest to ``name``, or ``otherwise``.

        The comparison is slow, so only the first wrong names of a document get suggestions.
        """
        if self._comparisons_left <= 0:
            return otherwise
        self._comparisons_left -= len(known)
        return suggestion(name, list(known)) or otherwise

    def report_value(self, pointer: str, name: str, count_by_id: Callable[[], Mapping[str, int]]) -> None:
        """Record that there is no value ``name``; ``count_by_id`` gives the number of outputs of every node."""
        if self._counts is None:
            self._counts = count_by_id()
        counts = self._counts
        node_id, colon, index = name.rpartition(":")
        if not (colon and index.isascii() and index.isdigit()):
            node_id = name
        count = counts.get(node_id)
        if count is None:
            hint = self.closest(node_id, counts, "write the id of a node, or id:k for its output k")
            self.report(pointer, f"there is no node {quote(node_id)}", hint)
        elif count == 0:
            message = f"{quote(name)} does not exist: {quote(node_id)} has no outputs"
            self.report(pointer, message, "give it outputs, or leave this out")
        else:
            several = count > 1
            message = f"{quote(name)} does not exist: {quote(node_id)} has {count} output{'s' if several else ''}"
            last = f" to {quote(f'{node_id}:{count - 1}')}" if several else ""
            self.report(pointer, message, f"write {quote(f'{node_id}:0')}{last}")

    def finish(self) -> None:
        """Raise the recorded problems, if there are any.

        Raises:
            InputError: With all problems.
        """
        if self.problems:
            raise InputError(self.document.source, self.problems)


def plain_number(number: float) -> int | float:
    """``number`` as documents write it: an integer if a float is exact there, so 1.2e9 is 1200000000."""
    return int(number) if abs(number) < _EXACT and number == int(number) else float(number)


def report_later_inputs(
    fields: Fields, ids: Sequence[str], reads: Sequence[tuple[int, int]], later: Sequence[tuple[int, int, str]]
) -> None:
    """Report inputs that a later node makes: a cycle, named node by node, or only the wrong order."""
    readers: list[list[int]] = [[] for _ in ids]
    for maker, reader in reads:
        readers[maker].append(reader)
    for maker, reader, pointer in later:
        # Each search may visit the whole graph, and only so many problems are shown.
        path = shortest_path(readers, reader, maker) if len(fields.problems) < SHOWN_PROBLEMS else None
        if path is not None:
            cycle = " -> ".join(quote(ids[i])[1:-1] for i in [*path, reader])
            fields.report(
                pointer, f"reads {quote(ids[maker])} in a cycle: {cycle}", "a graph has no cycles: cut one edge"
            )
        else:
            fields.report(
                pointer,
                f"reads {quote(ids[maker])}, which comes later in the document",
                f"nodes must be in execution order: put {quote(ids[maker])} before {quote(ids[reader])}",
            )


def shortest_path(successors: Sequence[Sequence[int]], start: int, goal: int) -> list[int] | None:
    """Nodes of a shortest path from ``start`` to ``goal``, both included; None if there is none."""
    before = {start: start}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        if node == goal:
            path = [node]
            while path[-1] != start:
                path.append(before[path[-1]])
            return path[::-1]
        for successor in successors[node]:
            if successor not in before:
                before[successor] = node
                queue.append(successor)
    return None
