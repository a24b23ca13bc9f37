"""Checks plans: the replay, the budget and the claim in one report, for one plan or for the files of many."""

import glob
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from remat_cli.errors import InputError, Problem
from remat_cli.files import STDIN_NAME
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.document import Document
from remat_cli.graph.io import graph_sha256
from remat_cli.graph.model import Graph
from remat_cli.graph.splitting import parts_words
from remat_cli.plan.host import Host
from remat_cli.plan.model import Claim, ClaimStatus, Compute, Plan
from remat_cli.plan.queues import Queue
from remat_cli.plan.replay import Finding, Replay, Severity, replay
from remat_cli.short_repr import ShortRepr
from remat_cli.tolerances import SAME_COST, SAME_GAP
from remat_cli.units import format_bytes, format_cost, format_percent

OVER_BUDGET = "over-budget"
OVER_HOST_MEMORY = "over-host-memory"
_OVER = (OVER_BUDGET, OVER_HOST_MEMORY)
PLAN_SUFFIXES = (".plan.json", ".plan.yaml", ".plan.yml")
_NO_MATCH = Problem("no file matches this pattern", hint="patterns start in the current folder: plans/*.json")
_NO_PLAN = Problem("no plan in this folder", hint=f"the names of plans end in {', '.join(PLAN_SUFFIXES)}")


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A node computed more than once: ``times`` in all, ``extra_cost`` above computing it once."""

    node: str
    times: int
    extra_cost: float


@dataclass(frozen=True, slots=True)
class Resident:
    """A value that is in memory at the peak; ``size_bytes`` of it."""

    value: str
    size_bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShortRepr):
    """The replayed facts of a plan, and the claims of the strategy that made it.

    Attributes:
        graph: The graph.
        strategy: Text form of the strategy that made the plan.
        solver: Solver and version, or None.
        claim: The claim of the strategy. Its lower bound was not computed here.
        budget_bytes: The budget it is checked against, fixed memory included; None for no budget.
        budget_text: The budget as asked (``80%``); may be empty.
        made_for_bytes: The budget for which the plan was made and its claim holds; None for no budget.
        replay: The result of the replay.
        findings: All findings, those of the replay first.
        no_remat_peak_bytes: P0 of the graph.
        recomputed: Nodes computed more than once, the costliest first.
        peak_values: All residents at the peak, the largest first.
        peak_node: Id of the node that runs, or whose outputs are being allocated or were freed, at the peak.
        order: How the order of the nodes was found; None for the order of the document.
        host: The host for which the plan was made; None for none.
    """

    graph: Graph
    strategy: str
    solver: str | None
    claim: Claim
    budget_bytes: int | None
    budget_text: str
    made_for_bytes: int | None
    replay: Replay
    findings: tuple[Finding, ...]
    no_remat_peak_bytes: int
    recomputed: tuple[Recomputed, ...]
    peak_values: tuple[Resident, ...]
    peak_node: str | None
    order: str | None = None
    host: Host | None = None

    @property
    def valid(self) -> bool:
        """Whether the plan may be run: no finding except the budget's is an error."""
        return all(f.severity is not Severity.ERROR or f.code in _OVER for f in self.findings)

    @property
    def within_budget(self) -> bool:
        """Whether the peak is at most the budget, and host memory within its limit (true without them)."""
        most = None if self.host is None else self.host.memory_bytes
        fits = most is None or self.replay.host_peak_bytes <= most
        return fits and (self.budget_bytes is None or self.replay.peak_bytes <= self.budget_bytes)

    @property
    def ok(self) -> bool:
        """Valid and within budget."""
        return self.valid and self.within_budget

    @property
    def overhead(self) -> float:
        """Cost / C0 - 1, or time / C0 - 1 if queues overlap; 0 for a graph that costs nothing."""
        base = self.graph.no_remat_cost
        return self.replay.time / base - 1 if base > 0 else 0.0

    @property
    def queues(self) -> tuple[Queue, ...]:
        """The queues in which something may run at the same time; none if only computations take time."""
        if self.replay.timing is None:
            return ()
        copies = () if self.host is None else (Queue.OUT, Queue.IN)
        return (Queue.COMPUTE, *((Queue.COMMUNICATION,) if self.graph.overlaps else ()), *copies)

    @property
    def gap(self) -> float:
        """(replayed cost or time - claimed lower bound) / replayed cost or time."""
        cost = self.replay.time
        return max(0.0, (cost - self.claim.lower_bound) / cost) if cost > 0 else 0.0

    def _facts(self) -> dict[str, str]:
        fits = "invalid" if not self.valid else "fits" if self.within_budget else "over budget"
        return {
            "graph": self.graph.name,
            "nodes": f"{len(self.graph.nodes):,}",
            "result": fits,
            "budget": "none" if self.budget_bytes is None else format_bytes(self.budget_bytes),
            "peak": format_bytes(self.replay.peak_bytes),
            "cost": f"{format_cost(self.replay.time, self.graph.cost_unit)} (+{format_percent(self.overhead)})",
            "proof": self.claim.proof,
        }


def check(plan: Plan, *, budget_bytes: int | None = None, budget_text: str = "") -> Report:
    """Replay ``plan`` and compare it with a budget and with its own claim.

    ``budget_bytes`` replaces the plan's own budget, and ``budget_text`` is how the user wrote it.
    """
    budget = plan.budget_bytes if budget_bytes is None else budget_bytes
    result = replay(plan.graph, plan.statements, any_order=bool(plan.provenance.get("reorder", False)), host=plan.host)
    findings = list(result.findings)
    if budget is not None and result.peak_bytes > budget:
        at, over = result.peak_statement, result.peak_bytes - budget
        message = (
            f"statement {at}: peak memory {format_bytes(result.peak_bytes)} is {format_bytes(over)} over the budget of "
            f"{format_bytes(budget)} ({result.peak_bytes} bytes, budget {budget})"
        )
        findings.append(Finding(OVER_BUDGET, message, at))
    if plan.host is not None and plan.host.memory_bytes is not None and result.host_peak_bytes > plan.host.memory_bytes:
        over = result.host_peak_bytes - plan.host.memory_bytes
        message = (
            f"host memory {format_bytes(result.host_peak_bytes)} is {format_bytes(over)} over its limit of "
            f"{format_bytes(plan.host.memory_bytes)} ({result.host_peak_bytes} bytes, limit {plan.host.memory_bytes})"
        )
        findings.append(Finding(OVER_HOST_MEMORY, message))
    findings += _claim_findings(plan.claim, result.time)
    if plan.claim.peak is not None and plan.claim.peak.lower_bound_bytes > result.peak_bytes:
        least = plan.claim.peak.lower_bound_bytes
        message = (
            f"the plan claims that no peak is below {format_bytes(least)}; the replay gives "
            f"{format_bytes(result.peak_bytes)} ({least} bytes claimed, {result.peak_bytes} replayed)"
        )
        findings.append(Finding("claimed-peak", message))
    graph = plan.graph
    recomputed = [
        Recomputed(node.id, times, (times - 1) * node.cost)
        for node, times in zip(graph.nodes, result.times, strict=True)
        if times > 1
    ]
    return Report(
        graph=graph,
        strategy=plan.strategy,
        solver=f"{plan.solver} {plan.solver_version or ''}".strip() if plan.solver else None,
        claim=plan.claim,
        budget_bytes=budget,
        budget_text=budget_text or (str(plan.provenance.get("budget") or "") if budget_bytes is None else ""),
        made_for_bytes=plan.budget_bytes,
        replay=result,
        findings=tuple(findings),
        no_remat_peak_bytes=no_remat_peak(graph.whole),
        recomputed=tuple(sorted(recomputed, key=lambda r: (-r.extra_cost, -r.times, r.node))),
        peak_values=tuple(Resident(graph.value_name(v), size) for v, size in result.residents),
        peak_node=_node_at(plan, result.peak_statement),
        order=_order_of(plan),
        host=plan.host,
    )


def graphs_differ(first: Graph, second: Graph) -> str | None:
    """The first difference between two graphs, in words; None if they are the same."""
    if graph_sha256(first) == graph_sha256(second):
        return None
    split = first.origin is not None or second.origin is not None
    if split and graph_sha256(first.whole) == graph_sha256(second.whole):
        return f"they are the same one, with {parts_words(first)} and with {parts_words(second)}"
    for mine, theirs in zip(first.nodes, second.nodes, strict=False):
        if mine != theirs:
            return f"they first differ at node {mine.id}" + (f" / {theirs.id}" if theirs.id != mine.id else "")
    if len(first.nodes) == len(second.nodes):
        return "their nodes are the same; name, outputs, fixed memory, cost unit or metadata differ"
    return f"they have {len(first.nodes)} and {len(second.nodes)} nodes"


def other_graph(planned: Graph, wanted: Graph) -> tuple[Finding, ...]:
    """A finding if ``planned``, the graph of a plan, is not the graph ``wanted``: the first node that differs."""
    place = graphs_differ(planned.whole, wanted)
    return () if place is None else (Finding("other-graph", f"the plan is for a different graph: {place}"),)


def _claim_findings(claim: Claim, cost: float) -> list[Finding]:
    """The findings where the claim and the replay disagree."""
    findings = []
    slack = SAME_COST * max(1.0, abs(cost))
    if abs(claim.cost - cost) > slack:
        findings.append(Finding("claimed-cost", f"the plan claims cost {claim.cost!r}; the replay counts {cost!r}"))
    if claim.lower_bound > cost + slack:
        findings.append(
            Finding("claimed-bound", f"the plan claims the lower bound {claim.lower_bound!r} above its cost {cost!r}")
        )
    elif claim.status is ClaimStatus.OPTIMAL and claim.gap > 0.01:
        findings.append(
            Finding(
                "claimed-optimal",
                f"the plan claims to be optimal, but its own bound leaves a gap of {claim.gap:.2%}",
                severity=Severity.WARNING,
            )
        )
    if claim.stated_gap is not None and abs(claim.stated_gap - claim.gap) > SAME_GAP:
        findings.append(
            Finding(
                "claimed-gap",
                f"the plan claims the gap {claim.stated_gap:.6g}; its cost and lower bound make it {claim.gap:.6g}",
            )
        )
    return findings


def _order_of(plan: Plan) -> str | None:
    """How the order of the nodes was found, according to the plan; None for the order of the document."""
    if not plan.provenance.get("reorder", False):
        return None
    order = str(plan.provenance.get("order", "")) or "not said"
    return None if order == "document" else order


def _node_at(plan: Plan, at: int | None) -> str | None:
    """The node that is prepared or run at statement ``at``: that of the next compute."""
    if at is None:
        return None
    following = (s for s in plan.statements[at:] if isinstance(s, Compute))
    first = next(following, None)
    return None if first is None else plan.graph.nodes[first.node].id


@dataclass(frozen=True, slots=True)
class Checked:
    """The result for one file.

    Attributes:
        path: The file as named, or as found by a pattern; ``-`` for standard input.
        report: The report on its plan; None if it cannot be read.
        problems: Why it cannot be read; empty if it can.
        document: The file's text, for places in it; None if it cannot be read.
    """

    path: str
    report: Report | None = None
    problems: tuple[Problem, ...] = ()
    document: Document | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The file's name for people."""
        return STDIN_NAME if self.path == "-" else self.path

    @property
    def ok(self) -> bool:
        """Whether the file has a plan that is valid and within its budget."""
        return self.report is not None and self.report.ok

    def place_of(self, statement: int) -> tuple[int, int] | None:
        """Line and column, from 1, of the statement with an index; None where nobody knows."""
        return None if self.document is None else self.document.locate(f"/statements/{statement}")

    def line_of(self, statement: int) -> int | None:
        """Line, from 1, of the statement with an index; None where nobody knows."""
        place = self.place_of(statement)
        return None if place is None else place[0]


def is_pattern(name: str) -> bool:
    """Whether ``name`` is a pattern (``plans/*.json``, ``**/*.plan.json``) and not the name of an existing file."""
    return name != "-" and glob.has_magic(name) and not Path(name).exists()


def matches(name: str) -> list[str]:
    """The files of ``name``, sorted: itself; the matches of a pattern; all plans in a folder. Possibly none.

    Plans in a folder are the files at any depth whose names end as ``remat solve`` ends them. In a pattern ``**``
    stands for any folders; folders themselves and hidden files do not match.
    """
    if is_pattern(name):
        patterns = [name]
    elif name != "-" and Path(name).is_dir():
        patterns = [str(Path(glob.escape(name), "**", f"*{suffix}")) for suffix in PLAN_SUFFIXES]
    else:
        return [name]
    # Path.glob refuses patterns that start at the root
    paths = {path for pattern in patterns for path in glob.glob(pattern, recursive=True)}  # noqa: PTH207 - see above
    return sorted(path for path in paths if not Path(path).is_dir())


def check_files(
    names: Sequence[str], load: Callable[[str], tuple[Plan, Document]], judge: Callable[[Plan], Report]
) -> list[Checked]:
    """Check every file of ``names``, each once, in the order of the names; one that cannot be read stops no other.

    Returns:
        One entry for each file, and one for each pattern or folder without any.
    """
    done: dict[str, Checked] = {}
    for name in names:
        paths = matches(name)
        if not paths:
            problem = _NO_MATCH if is_pattern(name) else _NO_PLAN
            done.setdefault(name, Checked(name, problems=(problem,)))
        for path in paths:
            if path not in done:
                done[path] = _check_file(path, load, judge)
    return list(done.values())


def _check_file(path: str, load: Callable[[str], tuple[Plan, Document]], judge: Callable[[Plan], Report]) -> Checked:
    try:
        plan, document = load(path)
    except InputError as error:
        return Checked(path, problems=error.problems)
    except RecursionError:
        return Checked(path, problems=(Problem("the input is nested too deeply"),))
    return Checked(path, judge(plan), document=document)
