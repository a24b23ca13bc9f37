"""Kumar et al., figures 2 to 4 and table 2: peak and length against depth, and the recursion limit.

Kumar et al., Efficient Rematerialization for Deep Networks, NeurIPS 2019, on the zoo's own graphs: ResNets, linear
(feed-forward) networks and Transformers of several depths. NoRemat computes everything once. GreedyRemat recomputes one
operation at a time, as XLA's pass does by default (`xla-greedy{block=1}`), at the smallest budget that it reaches,
found by bisection; `XLA, blocks` is the same pass with runs of up to 16 operations, which is stronger than the paper's.
TWRemat is the full recursion over a tree decomposition, TWRemat(k) ends at parts with fewer than k bags. Nothing is
kept afterwards to use the rest of a budget. Length is the number of computes over that of NoRemat. Peaks are sums of
the bytes of live values, with no plan of their offsets in memory; the paper has an optimal static allocation. The
results agree with the theorem: TWRemat's peak grows with the logarithm of the depth, NoRemat's grows linearly. They do
not agree with the lengths of the paper's figure 3: TWRemat's length grows faster than the graph on ResNets here,
because gradients here read more values than in TensorFlow's graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Picture, Row, Session, Table
from benchmarks.measure import call

_NO, _GREEDY, _BLOCKS, _TREE = "NoRemat", "GreedyRemat", "XLA, blocks", "TWRemat"
_WAYS = (_NO, _GREEDY, _BLOCKS, _TREE)
_FAMILIES: dict[str, tuple[tuple[int, str], ...]] = {
    "ResNet": ((50, "resnet50{batch=1}"), (101, "resnet101{batch=1}"), (152, "resnet152{batch=1}")),
    "FFN": tuple((n, f"linear{{n={n}}}") for n in (25, 50, 100, 200, 400)),
    "Transformer": tuple((n, f"gpt2{{depth={n},batch=1}}") for n in (3, 6, 12, 24)),
}
_QUICK = {"FFN": ((10, "linear{n=10}"), (20, "linear{n=20}"))}
_LIMIT_S = 40.0
_GREEDY_S = 20.0
"""Seconds for all budgets that Greedy tries."""
_LONGEST = 200
"""Schedules with more computes than so many times the number of nodes are abandoned."""
_HALVINGS = 12

TABLES = (
    Table(
        "depth",
        "Figures 2 to 4 and table 2: peak and length against depth",
        (
            Column("family", "family"),
            Column("depth", "depth", "count"),
            Column("nodes", "nodes", "count"),
            Column("way", "algorithm"),
            Column("peak_bytes", "peak", "bytes"),
            Column("share", "of NoRemat's, %", "number"),
            Column("length", "length, times", "number"),
            Column("cost", "cost, times", "number"),
            Column("wall_s", "time, s", "number"),
            Column("ending", "ended"),
        ),
        "Peaks are those of values, without fixed memory. Sizes of the FFN are 1 byte. Greedy has "
        f"{_GREEDY_S:g} s in all; where it took them it was stopped, and could have come lower.",
        named_by=("family", "depth", "way"),
    ),
    Table(
        "bags",
        "Figure 4: TWRemat(k), the recursion limit",
        (
            Column("graph", "graph"),
            Column("k", "k", "count"),
            Column("share", "peak, % of NoRemat's", "number"),
            Column("length", "length, times", "number"),
        ),
        "Every k from 1 to n makes one of these schedules: that of the next smaller k of the table.",
        named_by=("graph", "k"),
    ),
    Table(
        "graphs",
        "Table 1: computation graphs",
        (
            Column("graph", "graph"),
            Column("nodes", "n", "count"),
            Column("edges", "m", "count"),
            Column("width", "width", "count"),
        ),
        "Width: of the min-fill tree decomposition. TensorFlow's graphs, which the paper counts, have a node for each "
        "gradient of a parameter, each update, reshape and constant; ours have one for each operation on large values.",
        named_by=("graph",),
    ),
)
PICTURES = (
    Picture("peak", "Peak over NoRemat's against depth, for three families."),
    Picture("length", "Length of the schedule against depth, for three families."),
    Picture("bags", "Length against peak of TWRemat(k) for all k, one curve for each graph."),
)


def run(session: Session) -> list[Row]:
    rows: list[Row] = []
    for family, members in (_QUICK if session.quick else _FAMILIES).items():
        for depth, spec in members:
            for way in _WAYS:
                if not session.wants(f"{spec} {way}"):
                    continue
                session.say(f"{spec}, {way}")
                called = call("benchmarks.paper.treewidth:measured", limit_s=_LIMIT_S, spec=spec, way=way)
                empty = dict.fromkeys(("nodes", "peak_bytes", "share", "length", "cost", "wall_s"))
                values = called.values or {"row": {**empty, "ending": called.problem}, "bags": [], "graph": None}
                rows.append({"table": "depth", "family": family, "depth": depth, "way": way, **values["row"]})
                rows += [{"table": "bags", "graph": spec, **point} for point in values["bags"]]
                if values["graph"] is not None:
                    rows.append({"table": "graphs", "graph": spec, **values["graph"]})
                session.keep(rows)
    return rows


def measured(spec: str, way: str) -> dict[str, Any]:
    """One algorithm on one graph: its row, and of TWRemat one for every k that makes a schedule of its own."""
    import time

    from remat_cli.api import build_graph
    from remat_cli.plan.derive import peak
    from remat_cli.plan.liveness import cost_of

    graph = build_graph(spec)
    base = peak(graph, tuple(range(len(graph.nodes)))) - graph.fixed_memory

    def facts(computes: Sequence[int]) -> dict[str, Any]:
        height = peak(graph, computes) - graph.fixed_memory
        cost = cost_of(graph, computes)
        return {
            "peak_bytes": height,
            "share": round(100 * height / base, 3),
            "length": round(len(computes) / len(graph.nodes), 3),
            "cost": round(cost / graph.total_cost, 3),
        }

    started_s = time.monotonic()
    found: list[tuple[int, Sequence[int]]] = []
    ending, facts_of_graph = "finished", None
    if way == _NO:
        found = [(0, range(len(graph.nodes)))]
    elif way in {_GREEDY, _BLOCKS}:
        found = [(0, _squeezed(graph, 1 if way == _GREEDY else None))]
        if time.monotonic() - started_s > _GREEDY_S:
            ending = f"stopped after {_GREEDY_S:g} s"
    else:
        facts_of_graph, found = _recursive(graph)
    wall_s = round(time.monotonic() - started_s, 2)
    told = [facts(computes) for _, computes in found]
    best = min(told, key=lambda row: (row["peak_bytes"], row["length"]))
    curve = [{"k": k, "share": row["share"], "length": row["length"]} for (k, _), row in zip(found, told, strict=True)]
    row = {"nodes": len(graph.nodes), **best, "wall_s": wall_s, "ending": ending}
    return {"row": row, "bags": curve if way == _TREE else [], "graph": facts_of_graph}


def _squeezed(graph: Any, block: int | None) -> Sequence[int]:
    """The schedule with the least peak that XLA's pass makes, found by bisection over budgets.

    Args:
        graph: The graph.
        block: Operations to recompute together: 1, as in the paper, or None for up to 16.
    """
    from remat_cli.control import Control
    from remat_cli.graph.analysis import no_remat_peak, peak_bound
    from remat_cli.plan.derive import peak
    from remat_cli.solvers.highs import Highs
    from remat_cli.strategies.base import Context, Found, Task
    from remat_cli.strategies.published.xla_greedy import XlaGreedy

    context = Context(Control.within(_GREEDY_S), Highs(), threads=1)
    low, high = peak_bound(graph).bytes, no_remat_peak(graph)
    best: Sequence[int] = range(len(graph.nodes))
    for _ in range(_HALVINGS):
        if low >= high or context.control.stopping():
            break
        middle = (low + high) // 2
        answer = XlaGreedy(block=block).solve(Task(graph, middle), context)
        schedule = answer.schedule if isinstance(answer, Found) else answer.best
        if schedule is not None and peak(graph, schedule.computes) < high:
            best, high = schedule.computes, peak(graph, schedule.computes)
        low = low if isinstance(answer, Found) else middle + 1
    return best


def _recursive(graph: Any) -> tuple[dict[str, int], list[tuple[int, Sequence[int]]]]:
    """The counts of table 1, and the schedule of TWRemat(k) for every k that makes one of its own."""
    from remat_cli.plan.derive import prune
    from remat_cli.strategies.published.eviction import in_document_order
    from remat_cli.strategies.published.separators import recursive_schedule, skeleton, tree_separators

    root, width = tree_separators(graph)
    counts, todo = set(), [root]
    while todo:
        part = todo.pop()
        counts.add(part.bags)
        todo.extend(part.below)
    schedules: list[tuple[int, Sequence[int]]] = []
    for k in (1, *(count + 1 for count in sorted(counts))):
        computes = recursive_schedule(graph, root, root.depth, _LONGEST * len(graph.nodes), k)
        if computes is None:
            continue
        schedule = prune(graph, in_document_order(graph, computes))
        if not schedules or schedule != schedules[-1][1]:
            schedules.append((k, schedule))
    edges = sum(map(len, skeleton(graph))) // 2
    return {"nodes": len(graph.nodes), "edges": edges, "width": width}, schedules


def draw(rows: list[Row], folder: Path) -> None:
    """The pictures."""
    from benchmarks.paper.plots import Panel, draw_curves

    depth = [row for row in rows if row["table"] == "depth"]
    for key, label in (("peak", "peak of values, bytes"), ("length", "length / that of NoRemat")):
        panels = []
        for family in dict.fromkeys(row["family"] for row in depth):
            lines: dict[str, list[tuple[float, float]]] = {way: [] for way in _WAYS}
            for row in depth:
                value = row["peak_bytes" if key == "peak" else "length"]
                if row["family"] == family and value is not None:
                    lines[row["way"]].append((row["depth"], value))
            panels.append(Panel(family, lines))
        draw_curves(panels, "depth", label, folder / f"treewidth-{key}.svg", logarithmic="xy")
    lines = {}
    for row in rows:
        if row["table"] == "bags":
            lines.setdefault(row["graph"], []).append((row["share"], row["length"]))
    panel = Panel("TWRemat(k)", lines)
    draw_curves([panel], "peak, % of NoRemat's", "length / that of NoRemat", folder / "treewidth-bags.svg")
