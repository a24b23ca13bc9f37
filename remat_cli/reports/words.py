"""Words and numbers of reports: the verdict, costs and sizes, percentages, and the claim that no plan is cheaper."""

from collections.abc import Sequence

from remat_cli.control import Ending, Outcome
from remat_cli.graph.metadata import tensor_words
from remat_cli.graph.model import Graph
from remat_cli.plan.check import Report
from remat_cli.plan.model import ClaimStatus, Copies, Scope
from remat_cli.plan.queues import Queue
from remat_cli.tolerances import SAME_COST
from remat_cli.units import TIME_UNITS, format_bytes, format_cost, format_percent, time_scale

AMONG = {
    Scope.ANY_ORDER: "all schedules, in any order",
    Scope.DOCUMENT_ORDER: "all schedules in document order",
    Scope.FRONTIER: "frontier-advancing schedules",
    Scope.CHAIN_PERSISTENT: "memory-persistent schedules of the chain",
    Scope.RESTRICTED: "the schedules that the strategy searched",
}
_NONE = {
    Scope.ANY_ORDER: "no schedule in any order",
    Scope.DOCUMENT_ORDER: "no schedule in document order",
    Scope.FRONTIER: "no frontier-advancing schedule",
    Scope.CHAIN_PERSISTENT: "no memory-persistent schedule of the chain",
    Scope.RESTRICTED: "no schedule that the strategy searched",
}
_COPIES = {Copies.ANY: "with any copies", Copies.NONE: "without copies"}
_STOPPED = {Outcome.TIME_LIMIT: "stopped at the time limit", Outcome.INTERRUPTED: "interrupted"}
_TINY = 1e-6
"""Gaps below this are shown as "less than", because their digits say nothing."""
cost_words = format_cost


def count(number: int, noun: str, nouns: str = "") -> str:
    """``1 node``, ``12 nodes``, ``20,000 nodes``; ``nouns`` is a plural that is not regular."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def ending_words(ending: Ending, best: str = "this is the best plan") -> str:
    """How a search ended, as a sentence; empty if it came to its end."""
    if ending.outcome in _STOPPED:
        return f"{_STOPPED[ending.outcome]}; {best} found until then"
    return "" if ending.outcome is Outcome.FINISHED else str(ending)


def graph_words(graph: Graph) -> str:
    """``12 nodes, 14 values``."""
    return f"{count(len(graph.nodes), 'node')}, {count(len(graph.size), 'value')}"


def tensor_size(graph: Graph, value: int) -> str:
    """The bytes of a value, with its type and shape if the graph says them: ``4.194 MB, float32 [1024, 1024]``."""
    said = tensor_words(graph, value)
    return format_bytes(graph.size[value]) + (f", {said}" if said else "")


def exact_bytes(number: int) -> str:
    """``12.66 GB (12,664,123,392 bytes)``; below 1 kB just ``512 B``."""
    return format_bytes(number) if abs(number) < 1000 else f"{format_bytes(number)} ({number:,} bytes)"


def share_words(part: float, whole: float) -> str:
    """``part`` of ``whole`` as a percentage; empty if the whole is zero."""
    return format_percent(part / whole) if whole else ""


def percent_over(share: float) -> str:
    """A cost over another, as a share of the latter, in percent; what may be rounding is none."""
    return format_percent(share if share > SAME_COST else 0.0)


def percent_change(share: float | None) -> str:
    """A change with its sign; ``=`` for none, empty if it is not known."""
    if share is None:
        return ""
    if abs(share) < SAME_COST:
        return "="
    return f"{'+' if share > 0 else ''}{format_percent(share)}"


def percent_gap(gap: float) -> str:
    """A gap in percent, ``<0.0001%`` for one whose digits say nothing."""
    if gap <= SAME_COST:
        return "0%"
    return format_percent(gap) if gap >= _TINY else f"<{format_percent(_TINY)}"


def size_column(sizes: Sequence[int]) -> list[str]:
    """``sizes`` in bytes for one column, all in the unit of the largest, so that they are easy to compare."""
    largest = max(sizes, default=0)
    if largest < 1000:
        return [f"{size} B" for size in sizes]
    power = next(k for k in range(1, 6) if k == 5 or largest < 999.95 * 1000**k)
    return [_scaled(size, largest, 1000**power, ("kB", "MB", "GB", "TB", "PB")[power - 1]) for size in sizes]


def cost_column(costs: Sequence[float], unit: str, *, sign: str = "+") -> list[str]:
    """``costs`` for one column, the largest first, all in its power of 1000 and after ``sign``.

    A sum of many may follow at the end and be larger; the unit is still that of the first.
    """
    largest = costs[0] if costs else 0.0
    if unit in TIME_UNITS and 0 < largest < 1e21:
        name, factor = time_scale(largest, unit)
        return [sign + _scaled(cost, largest, factor, name) for cost in costs]
    if largest < 1e5 or largest >= 1e21:
        return [sign + cost_words(cost, unit) for cost in costs]
    power = next(k for k in range(1, 7) if k == 6 or largest < 999.95 * 1000.0**k)
    unit = "units" if unit == "unit" else unit
    return [f"{sign}{_scaled(cost, largest, 1000.0**power, 'kMGTPE'[power - 1])} {unit}" for cost in costs]


def _scaled(amount: float, largest: float, factor: float, unit: str) -> str:
    """``amount`` in ``unit``, with as many decimals as give ``largest`` four digits; ``<0.001`` instead of a zero."""
    top = largest / factor
    decimals = 3 if top < 9.9995 else 2 if top < 99.995 else 1 if top < 999.95 else 0
    if 0 < amount / factor < 0.5 * 10**-decimals:
        return f"<{10**-decimals:.{decimals}f} {unit}"
    return f"{amount / factor:.{decimals}f} {unit}"


def share_column(parts: Sequence[float], whole: float) -> list[str]:
    """Shares of ``whole`` in percent with one decimal; empty if the whole is zero."""
    if not whole:
        return ["" for _ in parts]
    return ["<0.1%" if 0 < part / whole < 0.0005 else f"{100 * part / whole:.1f}%" for part in parts]


def verdict(report: Report) -> str:
    """The answer, in a few words: ``fits``, ``OVER BUDGET by 1.2 GB``, ``INVALID PLAN``, ``valid``."""
    over = ""
    if not report.within_budget and report.budget_bytes is not None:
        over = f"OVER BUDGET by {format_bytes(report.replay.peak_bytes - report.budget_bytes)}"
    if not report.valid:
        return "INVALID PLAN" + (f" and {over}" if over else "")
    if not over and not report.within_budget and report.host is not None and report.host.memory_bytes is not None:
        return f"OVER HOST MEMORY by {format_bytes(report.replay.host_peak_bytes - report.host.memory_bytes)}"
    return over or ("valid plan" if report.budget_bytes is None else "fits")


def peak_words(report: Report) -> str:
    """The peak beside the budget: ``peak 12.31 GB of 12.66 GB``."""
    peak = f"peak {format_bytes(report.replay.peak_bytes)}"
    if report.budget_bytes is None:
        return f"{peak}, no budget given"
    return f"{peak}{' of' if report.within_budget else ', budget'} {format_bytes(report.budget_bytes)}"


def overhead_words(report: Report) -> str:
    """The cost of recomputation, or if queues overlap the time of the plan, relative to no-remat."""
    if report.queues:
        return f"{format_percent(report.overhead)} over no-remat"
    if not report.recomputed:
        return "nothing is recomputed"
    if all(r.extra_cost == 0 for r in report.recomputed):
        return "recomputation costs nothing"
    return f"{format_percent(report.overhead)} over no-remat"


def stall_words(report: Report) -> str:
    """What a plan takes beside its computations: ``stalls 1.2 ms for inputs, 0.3 ms to free memory``."""
    times, unit = report.replay.timing, report.graph.cost_unit
    computing = 0.0 if times is None else times.busy(Queue.COMPUTE)
    if times is None or times.time <= computing:
        return "no stalls"
    queue_of = {span.statement: span.queue for span in times.spans}
    waiting = dict.fromkeys(Queue, 0.0)
    for stall in times.stalls:
        waiting[queue_of[stall.copy]] += stall.duration
    others = "collectives" if report.host is None else "collectives and copies" if report.graph.overlaps else "copies"
    parts = [
        (waiting[Queue.COMMUNICATION], "for collectives"),
        (waiting[Queue.IN], "for values from the host"),
        (waiting[Queue.OUT], "for memory that values leave"),
        (times.time - computing - times.stalled, f"for {others} after the last computation"),
    ]
    waits = [f"{cost_words(amount, unit)} {why}" for amount, why in parts if amount > SAME_COST * times.time]
    return "stalls " + ", ".join(waits) if waits else "no stalls"


def queue_words(report: Report) -> str:
    """How busy the queues are: ``compute 96.0%, to host 41.2%, from host 40.8%``."""
    times = report.replay.timing
    return "" if times is None else ", ".join(f"{q.value} {format_percent(times.share(q))}" for q in report.queues)


def critical_words(report: Report) -> str:
    """What the time consists of, along the chain of waits: ``compute 90.0%, from host 10.0%``."""
    times = report.replay.timing
    if times is None or not times.time:
        return ""
    return ", ".join(
        f"{queue.value} {format_percent(times.on_path(queue) / times.time)}" for queue in Queue if times.on_path(queue)
    )


def maker(report: Report) -> str:
    """The strategy and the solver that made the plan: ``checkmate-ilp with highs 1.15.1``."""
    return report.strategy + (f" with {report.solver}" if report.solver else "")


def certainty(report: Report) -> str:
    """How certain it is that no cheaper plan fits: exactly the claim for its scope, and no more.

    A plan that recomputes nothing is certainly optimal, because every plan computes every node once. Anything else
    is a claim of the strategy.
    """
    claim, unit = report.claim, report.graph.cost_unit
    base, cost, offers = report.graph.least_cost, report.replay.time, report.graph.whole.splits
    if report.valid and cost <= base * (1 + SAME_COST) and report.graph.overlaps and not offers:
        return "certainly optimal: it takes no longer than one of the queues needs for computing every node once"
    if report.valid and cost <= base * (1 + SAME_COST) and not offers:
        return "certainly optimal: every plan computes every node at least once, and this one does no more"
    among, none = f"{AMONG[claim.scope]} ({claim.scope.value})", f"{_NONE[claim.scope]} ({claim.scope.value})"
    if report.host is not None:
        copies = _COPIES[claim.copies]
        among, none = f"{among} {copies}", f"{none} {copies}"
    if offers:
        splits = "with any split that the graph offers" if claim.any_split else "with the same regions in parts"
        among, none = f"{among} {splits}", f"{none} {splits}"
    bound = cost_words(claim.lower_bound, unit)
    gap = percent_gap(report.gap).replace("<", "less than ")
    beyond = _beyond(claim.scope)
    if claim.lower_bound > cost * (1 + SAME_COST):
        return f"contradictory: the claimed lower bound {bound} is above the cost"
    if claim.status is ClaimStatus.OPTIMAL:
        open_gap = f" up to a gap of {gap} (lower bound {bound})" if report.gap > SAME_COST else ""
        return f"proven optimal among {among}{open_gap}{beyond}"
    if report.gap <= SAME_COST:
        return f"as cheap as the lower bound: {none} is cheaper{beyond}"
    if claim.lower_bound <= base * (1 + SAME_COST) and not offers:
        least = cost_words(base, unit)
        what = "time of the busier queue" if report.graph.overlaps else "cost"
        return f"no proof: the only known bound is the {what} without recomputation, {least}"
    if claim.scope is Scope.RESTRICTED:
        return f"no proof: the lower bound {bound} (gap {gap}) holds only among {among}"
    most = format_percent(max(report.gap, _TINY))
    return f"{none} is more than {most} cheaper (lower bound {bound}){beyond}"


def least_peak_words(report: Report) -> str:
    """How certain it is that no plan has a smaller peak, for a plan made by ``--minimize peak``."""
    claim, peak = report.claim.peak, report.replay.peak_bytes
    if claim is None:
        return ""
    none, beyond = f"{_NONE[claim.scope]} ({claim.scope.value})", _beyond(claim.scope).replace("cheaper", "lower")
    if claim.lower_bound_bytes >= peak:
        return f"proven: {none} has a smaller peak{beyond}"
    most = format_bytes(peak - claim.lower_bound_bytes)
    least = exact_bytes(claim.lower_bound_bytes)
    return f"the least peak found; {none} has a peak below {least}, which is {most} less{beyond}"


def _beyond(scope: Scope) -> str:
    """The part of the answer that the claim leaves open."""
    if scope in (Scope.ANY_ORDER, Scope.DOCUMENT_ORDER):
        return ""
    return "; others may be cheaper"
