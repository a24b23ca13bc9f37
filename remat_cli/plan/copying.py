"""Schedules with copies: when values go to the host and come back, and the statements that say so."""

from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.graph.model import Graph
from remat_cli.plan.model import Allocate, Compute, Deallocate, Offload, Prefetch, Release, Statement


@dataclass(frozen=True, slots=True)
class CopyOut:
    """The first instance of a value is copied to the host; the copy serves every later :class:`CopyBack`.

    Attributes:
        value: The value, by index.
        after: Position of the compute after which the copy is issued; the value is there then.
        freed: Position of the compute before which the first instance is freed, after its last read.
    """

    value: int
    after: int
    freed: int


@dataclass(frozen=True, slots=True)
class CopyBack:
    """A value comes back from the host.

    Attributes:
        value: The value, by index.
        before: Position of the compute before which the copy is issued; the number of computes for the end.
    """

    value: int
    before: int


@dataclass(frozen=True, slots=True)
class Copying:
    """The copies of a schedule, each kind in the order in which they are issued."""

    out: tuple[CopyOut, ...]
    back: tuple[CopyBack, ...]


def derive_copying(graph: Graph, computes: Sequence[int], copying: Copying) -> tuple[Statement, ...]:
    """Statements of the schedule ``computes`` with the copies ``copying``.

    An instance of a value is freed right after the last compute that reads it before the value is made or brought back
    anew, except for the first instance of what is copied.

    Raises:
        ValueError: If a node is computed, or a value copied, when what it reads is not there.
    """
    writer = _Writer(graph, tuple(computes), copying)
    writer.look_back()
    writer.write()
    return tuple(writer.statements)


def copying_of(statements: Sequence[Statement]) -> Copying | None:
    """The copies of ``statements``, so that :func:`derive_copying` makes the like again; None if there are none.

    Each value counts with its first copy to the host. A plan that copies in another way than schedules can is not
    refused here: what is derived from the copies then differs from it.
    """
    position, value_of, slot_of = 0, dict[str, int](), dict[str, int]()
    after: dict[int, int] = {}
    sent: dict[str, int] = {}
    out: list[CopyOut] = []
    back: list[CopyBack] = []
    for statement in statements:
        match statement:
            case Allocate(register, value):
                value_of[register] = value
            case Compute():
                position += 1
            case Offload(register, slot):
                slot_of[slot] = value = value_of[register]
                if value not in after:
                    after[value], sent[register] = position - 1, value
            case Deallocate(register) if register in sent:
                value = sent.pop(register)
                out.append(CopyOut(value, after[value], position))
            case Prefetch(slot):
                back.append(CopyBack(slot_of[slot], position))
    out.sort(key=lambda copy: (copy.after, list(after).index(copy.value)))
    return Copying(tuple(out), tuple(back)) if back else None


class _Writer:
    """Statements under construction."""

    def __init__(self, graph: Graph, computes: tuple[int, ...], copying: Copying) -> None:
        self.graph = graph
        self.computes = computes
        self.end = len(computes)
        self.back: dict[int, list[int]] = {}
        for copy in copying.back:
            self.back.setdefault(copy.before, []).append(copy.value)
        self.out: dict[int, list[int]] = {}
        for sent in copying.out:
            self.out.setdefault(sent.after, []).append(sent.value)
        self.freed = {sent.value: sent.freed for sent in copying.out}
        self.dying: list[list[int]] = [[] for _ in computes]
        self.released: dict[int, list[int]] = {}
        self.statements: list[Statement] = []
        self.register: dict[int, str] = {}
        self.made = 0

    def look_back(self) -> None:
        """Find what dies after each compute, and when each copy has been read for the last time."""
        graph = self.graph
        needed = set(graph.outputs)
        first_read = dict.fromkeys(graph.outputs, self.end)
        for k in range(self.end, -1, -1):
            if k < self.end:
                node = graph.nodes[self.computes[k]]
                outputs = graph.values_of(self.computes[k])
                self.dying[k] = sorted(v for v in {*outputs, *node.inputs} if v not in needed)
                needed.difference_update(outputs)
                needed.update(node.inputs)
                first_read.update(dict.fromkeys(node.inputs, k))
            for v in self.back.get(k, ()):
                if v not in needed:
                    raise ValueError(f"{graph.value_name(v)} comes back before compute {k}, and is not read")
                needed.discard(v)
                if v in self.freed and v not in self.released:
                    self.released[v] = [first_read[v]]
        if needed:
            raise ValueError(f"{graph.value_name(min(needed))} is read before it is computed")

    def write(self) -> None:
        """Write everything, from the beginning to the end."""
        releases: dict[int, list[int]] = {}
        for v, (k,) in self.released.items():
            releases.setdefault(k, []).append(v)
        leaving: dict[int, list[int]] = {}
        for v, k in self.freed.items():
            leaving.setdefault(k, []).append(v)
        postponed = set(self.freed)
        for k in range(self.end + 1):
            for v in leaving.get(k, ()):
                self.deallocate(v)
            for v in self.back.get(k, ()):
                self.statements.append(Prefetch(f"#{v}", self.allocate(v)))
            if k < self.end:
                node = self.computes[k]
                names = tuple(self.allocate(v) for v in self.graph.values_of(node))
                self.statements.append(Compute(node, names))
                for v in self.dying[k]:
                    if v in postponed:
                        postponed.discard(v)
                    else:
                        self.deallocate(v)
            self.statements.extend(Release(f"#{v}") for v in sorted(releases.get(k, ())))
            self.statements.extend(Offload(self.there(v), f"#{v}") for v in self.out.get(k, ()))

    def allocate(self, v: int) -> str:
        """A register for a new instance of a value."""
        self.register[v] = name = f"%{self.made}"
        self.made += 1
        self.statements.append(Allocate(name, v))
        return name

    def deallocate(self, v: int) -> None:
        """Free the instance of a value."""
        self.statements.append(Deallocate(self.there(v)))
        del self.register[v]

    def there(self, v: int) -> str:
        """The register of a value."""
        if v not in self.register:
            raise ValueError(f"{self.graph.value_name(v)} is copied or freed when it is not there")
        return self.register[v]
