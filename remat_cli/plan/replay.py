"""The checker: an independent replay of a plan, statement by statement, with a finding for every fault.

It knows only the graph and the statements. It shares no code with the derivation of plans or with any solver, and it
checks everything: register counts, sizes and order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from remat_cli.graph.model import Graph
from remat_cli.plan.host import Host
from remat_cli.plan.model import COPIES, Allocate, Compute, Deallocate, Offload, Prefetch, Release, Statement
from remat_cli.plan.queues import Timing, timing


class Severity(StrEnum):
    """The severity of a finding. One error makes a plan invalid."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a plan.

    Attributes:
        code: Short stable name, for machines: ``missing-input``.
        message: One sentence without a final stop, the statement included.
        statement: Index of the statement, from 0; None for the plan as a whole.
        severity: Error or warning.
    """

    code: str
    message: str
    statement: int | None = None
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay.

    Attributes:
        findings: In the order of the statements.
        peak_bytes: Largest memory in use, fixed memory included.
        peak_statement: The first statement with that much; None for an empty plan.
        residents: ``(value, bytes)`` of the registers live at that statement, the largest first.
        workspace_bytes: Workspace of the node computed at that statement.
        cost: Sum of the costs of all computes.
        times: int[n], how often each node is computed.
        profile: Memory in use at each statement, workspace included; bytes.
        timing: When everything runs; None for a plan without a host of a graph without collectives.
        host_peak_bytes: Most host memory in use.
        host_profile: Host memory in use at each statement, in bytes; empty for a plan without copies.
    """

    findings: tuple[Finding, ...]
    peak_bytes: int
    peak_statement: int | None
    residents: tuple[tuple[int, int], ...] = field(repr=False)
    workspace_bytes: int
    cost: float
    times: tuple[int, ...] = field(repr=False)
    profile: tuple[int, ...] = field(repr=False)
    timing: Timing | None = None
    host_peak_bytes: int = 0
    host_profile: tuple[int, ...] = field(default=(), repr=False)

    @property
    def time(self) -> float:
        """How long the plan takes, stalls included; its cost, if only computations take time."""
        return self.cost if self.timing is None else self.timing.time

    @property
    def valid(self) -> bool:
        """Whether no finding is an error."""
        return all(f.severity is not Severity.ERROR for f in self.findings)


@dataclass(slots=True)
class _Register:
    value: int
    size: int
    allocated: int
    filled: bool = False


@dataclass(slots=True)
class _Slot:
    value: int
    size: int
    taken: int


@dataclass(slots=True)
class _Checker:
    """State of one replay. ``freed_register`` and ``freed_value`` have the last free of each, for the findings."""

    graph: Graph
    any_order: bool
    live: dict[str, _Register] = field(default_factory=dict)
    holder: dict[int, str] = field(default_factory=dict)
    freed_register: dict[str, int] = field(default_factory=dict)
    freed_value: dict[int, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    slots: dict[str, _Slot] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)
    memory: int = 0
    host_memory: int = 0
    highest_first: int = -1

    def complain(self, code: str, at: int | None, message: str) -> None:
        """Record an error at statement ``at``."""
        place = f"statement {at}: " if at is not None else ""
        self.findings.append(Finding(code, place + message, at))

    def allocate(self, at: int, statement: Allocate) -> None:
        """Allocate a register. A register name is used once, and a value has one live register."""
        name, value = statement.register, statement.value
        if name in self.live or name in self.freed_register:
            self.complain("register-reused", at, f"register {name} is allocated again; register names are used once")
            return
        size = self.graph.size[value] if statement.size_bytes is None else statement.size_bytes
        if size != self.graph.size[value]:
            label, wanted = self.graph.value_name(value), self.graph.size[value]
            self.complain("wrong-size", at, f"allocate {label} takes {size} bytes; the graph says {wanted}")
        if value in self.holder:
            self.complain(
                "value-live-twice",
                at,
                f"allocate {self.graph.value_name(value)} while register {self.holder[value]} still holds it "
                f"(allocated at {self.live[self.holder[value]].allocated})",
            )
        # Count the graph's size, not the stated one: a plan cannot lower its peak by understating sizes.
        self.live[name] = _Register(value, self.graph.size[value], at)
        self.holder[value] = name
        self.memory += self.graph.size[value]

    def compute(self, at: int, statement: Compute) -> int:
        """Run a node; returns its workspace in bytes."""
        node = self.graph.nodes[statement.node]
        for value in node.inputs:
            self.read(at, node.id, value)
        if not node.recompute and self.times[statement.node]:
            self.complain("recomputed", at, f"compute {node.id} again, but it has recompute: false")
        if not self.times[statement.node]:
            free = self.graph.moves_freely(statement.node)
            if statement.node < self.highest_first and not self.any_order and not free:
                later = self.graph.nodes[self.highest_first].id
                self.complain("out-of-order", at, f"compute {node.id} for the first time after {later}")
            if not free:
                self.highest_first = max(self.highest_first, statement.node)
        self.times[statement.node] += 1
        self.costs.append(node.cost)
        values = self.graph.values_of(statement.node)
        if len(statement.registers) != len(values):
            self.complain(
                "register-count",
                at,
                f"compute {node.id} names {len(statement.registers)} registers; the node has {len(values)} outputs",
            )
        # The counts may differ, which is a finding of its own; check the pairs that exist.
        for value, name in zip(values, statement.registers, strict=False):
            self.fill(at, f"compute {node.id}", value, name)
        return node.workspace

    def read(self, at: int, node_id: str, value: int) -> None:
        """Check that ``value`` is resident and has been computed."""
        name = self.holder.get(value)
        if name is not None and self.live[name].filled:
            return
        if name is not None:
            why = f"allocated at {self.live[name].allocated} but not computed since"
        elif value in self.freed_value:
            why = f"freed at {self.freed_value[value]}"
        else:
            why = "never computed before"
        self.complain("missing-input", at, f"compute {node_id} reads {self.graph.value_name(value)}, {why}")

    def fill(self, at: int, writer: str, value: int, name: str) -> None:
        """Write ``value`` into register ``name``; ``writer`` is the statement in words."""
        register = self.live.get(name)
        if register is not None and register.value == value and not register.filled:
            register.filled = True
            return
        label = self.graph.value_name(value)
        if register is None:
            why = f"freed at {self.freed_register[name]}" if name in self.freed_register else "never allocated"
            self.complain("missing-register", at, f"{writer} writes {label} into {name}, {why}")
        elif register.value != value:
            held = self.graph.value_name(register.value)
            self.complain("wrong-register", at, f"{writer} writes {label} into {name}, allocated for {held}")
        else:
            self.complain("overwritten", at, f"{writer} writes {label} into {name}, which already holds it")

    def deallocate(self, at: int, statement: Deallocate) -> None:
        """Free a register."""
        name = statement.register
        register = self.live.pop(name, None)
        if register is None:
            why = f"already freed at {self.freed_register[name]}" if name in self.freed_register else "never allocated"
            self.complain("double-free", at, f"deallocate {name}, {why}")
            return
        if not register.filled:
            label = self.graph.value_name(register.value)
            self.complain("freed-unused", at, f"deallocate {name} ({label}), which was never computed")
        self.freed_register[name] = at
        self.memory -= register.size
        # Another register holds the value if it was allocated twice; that one stays readable.
        if self.holder.get(register.value) == name:
            del self.holder[register.value]
            self.freed_value[register.value] = at

    def offload(self, at: int, statement: Offload) -> None:
        """Copy a register to a new slot of host memory."""
        name, slot = statement.register, statement.slot
        register = self.live.get(name)
        if slot in self.slots or slot in self.released:
            self.complain("slot-reused", at, f"offload {name} into {slot}, which was used before; slots are used once")
            return
        if register is None:
            why = f"freed at {self.freed_register[name]}" if name in self.freed_register else "never allocated"
            self.complain("missing-register", at, f"offload {name}, {why}")
            return
        label = self.graph.value_name(register.value)
        if not register.filled:
            self.complain(
                "offload-empty", at, f"offload {name} ({label}), which was not computed since {register.allocated}"
            )
        if not self.graph.may_offload(register.value):
            self.complain("offload-forbidden", at, f"offload {name}: the graph says offload: false of {label}")
        self.slots[slot] = _Slot(register.value, register.size, at)
        self.host_memory += register.size

    def prefetch(self, at: int, statement: Prefetch) -> None:
        """Copy a slot back into a register that waits for it."""
        slot = self.slots.get(statement.slot)
        if slot is None:
            freed = self.released.get(statement.slot)
            why = f"released at {freed}" if freed is not None else "never filled"
            self.complain("missing-slot", at, f"prefetch {statement.slot}, {why}")
            return
        self.fill(at, f"prefetch {statement.slot}", slot.value, statement.register)

    def release(self, at: int, statement: Release) -> None:
        """Free a slot of host memory."""
        slot = self.slots.pop(statement.slot, None)
        if slot is None:
            freed = self.released.get(statement.slot)
            why = f"already released at {freed}" if freed is not None else "never filled"
            self.complain("double-release", at, f"release {statement.slot}, {why}")
            return
        self.released[statement.slot] = at
        self.host_memory -= slot.size

    def finish(self) -> None:
        """Check the end: every node was computed, and exactly the graph outputs are in memory."""
        for name, slot in self.slots.items():
            label = self.graph.value_name(slot.value)
            self.complain("slot-left-over", None, f"{label} in slot {name} (copied at {slot.taken}) is never released")
        for node, times in zip(self.graph.nodes, self.times, strict=True):
            if times == 0:
                self.complain("never-computed", None, f"{node.id} is never computed")
        outputs = set(self.graph.outputs)
        for name, register in self.live.items():
            if register.value not in outputs:
                label = self.graph.value_name(register.value)
                self.complain(
                    "left-over", None, f"{label} in {name} (allocated at {register.allocated}) is never freed"
                )
        for value in self.graph.outputs:
            name = self.holder.get(value, "")
            if not name or not self.live[name].filled:
                freed = f", freed at {self.freed_value[value]}" if value in self.freed_value else ""
                self.complain(
                    "missing-output", None, f"output {self.graph.value_name(value)} is not in memory at the end{freed}"
                )


def replay(
    graph: Graph, statements: Sequence[Statement], *, any_order: bool = False, host: Host | None = None
) -> Replay:
    """Replay ``statements`` in time linear in their number and their reads.

    If ``any_order``, first computations may leave the document order; collectives that read nothing always may (see
    ``Graph.moves_freely``). Without a host, copies are faults.

    Returns:
        The result. A faulty statement is a finding, and the replay continues.

    Raises:
        UsageError: If there is a host or a collective, and costs are not times.
    """
    checker = _Checker(graph, any_order, times=[0] * len(graph.nodes))
    profile, host_profile = [], []
    if host is None and (copies := [at for at, s in enumerate(statements) if isinstance(s, COPIES)]):
        checker.complain("no-host", copies[0], "copies to a host, and the plan was made for none")
    for at, statement in enumerate(statements):
        workspace = 0
        match statement:
            case Allocate():
                checker.allocate(at, statement)
            case Compute():
                workspace = checker.compute(at, statement)
            case Deallocate():
                checker.deallocate(at, statement)
            case Offload():
                checker.offload(at, statement)
            case Prefetch():
                checker.prefetch(at, statement)
            case Release():
                checker.release(at, statement)
        host_profile.append(checker.host_memory)
        profile.append(graph.fixed_memory + checker.memory + workspace)
    checker.finish()
    # max returns the first of equal maxima, which is the first statement at the peak.
    peak_at = max(range(len(profile)), key=profile.__getitem__) if profile else None
    return Replay(
        findings=tuple(checker.findings),
        peak_bytes=graph.fixed_memory if peak_at is None else max(graph.fixed_memory, profile[peak_at]),
        peak_statement=peak_at,
        residents=_residents(graph, statements, peak_at),
        workspace_bytes=_workspace(graph, statements, peak_at),
        cost=math.fsum(checker.costs),
        times=tuple(checker.times),
        profile=tuple(profile),
        timing=timing(graph, statements, host) if host is not None or graph.overlaps else None,
        host_peak_bytes=max(host_profile, default=0),
        host_profile=tuple(host_profile) if any(host_profile) else (),
    )


def _residents(graph: Graph, statements: Sequence[Statement], at: int | None) -> tuple[tuple[int, int], ...]:
    """``(value, bytes)`` of every register live at statement ``at``, the largest first."""
    if at is None:
        return ()
    live: dict[str, int] = {}
    for statement in statements[: at + 1]:
        if isinstance(statement, Allocate):
            live.setdefault(statement.register, statement.value)
        elif isinstance(statement, Deallocate):
            live.pop(statement.register, None)
    return tuple(sorted(((v, graph.size[v]) for v in live.values()), key=lambda pair: (-pair[1], pair[0])))


def _workspace(graph: Graph, statements: Sequence[Statement], at: int | None) -> int:
    if at is None:
        return 0
    statement = statements[at]
    return graph.nodes[statement.node].workspace if isinstance(statement, Compute) else 0
