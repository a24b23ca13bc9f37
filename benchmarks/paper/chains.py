"""Rotor's comparison: Rotor against sequential and revolve on chains of ResNets, DenseNets and Inception v3.

Beaumont et al., Optimal checkpointing for heterogeneous chains, INRIA RR-9302, 2019. The graphs are those of the zoo
with `backward=operator`, cut into chains of blocks at the nodes that every path passes, with times on a V100 by its
data sheet; the paper measured on such a GPU. `sequential` is PyTorch's method of equal segments, with ten numbers of
segments from 2 to twice the root of the number of blocks, as in the paper. Its best is the fastest that fits in the
paper's 15.75 GiB, and Rotor gets the memory that it takes. Memory is that of values, parameters, their gradients and
inputs. Absolute throughputs are far above the paper's, since no operation reaches the data sheet's rates; the gains can
be compared. The last table has three graphs with costs in FLOPs, 256 images and Checkmate's rule for the backward pass,
and all strategies at several budgets. `revolve-bytes` is the paper's `revolve`: it knows costs and sizes, and keeps
only the outputs of blocks. `revolve` knows neither, and `revolve-hetero` knows costs and counts values. `auto` is not
limited to chains of blocks, and shows the price of that limit. If it has no plan, time was too short for the larger
graph. Nothing here was run on a GPU: so nothing stands beside the paper's errors of predicted throughput and memory.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Picture, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.measure import call
from benchmarks.paper.cells import (
    CELLS,
    LEAST_NOTE,
    SHOWN_CELLS,
    cells_of,
    curves,
    geometric_ratio,
    with_distances,
)
from benchmarks.paper.published import Ours, published

_LIMIT_S = 6.0
_PERCENTS = (90.0, 75.0, 60.0, 50.0, 40.0, 30.0)
_NETWORKS = ("resnet50", "resnet101", "densenet121")
_BEST, _ANY = "rotor", "auto"
_STRATEGIES = ("sequential", "chen-recursive", "revolve", "revolve-hetero", "revolve-bytes", _BEST)
_V100 = "roofline:v100"
_GIB = 2**30
_MEMORY = int(15.75 * _GIB)
"""Of the paper's GPU."""
_NUMBERS = 10
"""Numbers of segments to try."""
_SET_LIMIT_S = 120.0
_FIGURE_3 = "resnet101"
_DEPTHS = (
    *(f"resnet{depth}" for depth in (18, 34, 50, 101, 152, 200)),
    *(f"densenet{depth}" for depth in (121, 161, 169, 201)),
    "inception-v3",
)
_DEEPEST = "resnet1001"
_SPECS = {_DEEPEST: "resnet-deep{wide=4,"}
"""How the zoo begins the specification of a network, where that is not its name."""
_BATCHES = {224: (16, 64), 500: (4, 16), 1000: (1, 4)}
"""Image sizes of the paper, and batches: powers of two, as in the paper, which does not print all of its own."""
_FIGURE_3_BATCHES = (1, 2, 4, 8)
_CURVES = (
    *((_FIGURE_3, 1000, batch) for batch in _FIGURE_3_BATCHES),
    *((_DEEPEST, 224, batch) for batch in _FIGURE_3_BATCHES),
    *(("densenet201", 500, 16), ("inception-v3", 1000, 4)),
)
"""Figures 3 and 4, and two more."""
_QUICK_CURVES = (("resnet18", 64, 1),)
_LIMITS = 10
"""Memory limits, equally far apart from none to the memory of keep-all; on ResNet-1001 to that of the paper's GPU,
since few of the others are below it."""
_REVOLVE = "revolve-bytes"

TABLES = (
    Table(
        "sets",
        "Sections 5.3 and 5.4, figures 3 to 13: Rotor with the memory of the best number of segments",
        (
            Column("network", "network"),
            *columns("count", size="image", batch="batch", blocks="blocks"),
            *columns("number", kept_gib="keep-all, GiB", kept_rate="keep-all, images/s"),
            *columns("count", fewest="fewest segments that fit", segments="best segments"),
            *columns("number", gib="GiB", rate="sequential, images/s", rotor_rate="Rotor, images/s"),
            *columns("number", gain="Rotor's gain, %", mean_gain="mean gain over all numbers of segments, %"),
            *columns("number", wall_s="Rotor, s"),
            Column("ending", "ended"),
        ),
        "The gain over all numbers of segments is that of the paper's figure 3, and measured for that network alone. "
        "The ResNet-1001 is four times as wide as that of He et al.: with that width it takes the memory and the "
        "segments that the paper states.",
        named_by=("network", "size", "batch"),
    ),
    Table(
        "curve",
        "Figures 3 to 13: throughput against memory",
        (
            Column("network", "network"),
            *columns("count", size="image", batch="batch"),
            Column("strategy", "strategy"),
            *columns("number", setting="limit in GiB, or segments", gib="GiB", rate="images/s"),
        ),
        "Ten limits, equally far apart up to the memory of keep-all, and ten numbers of segments, as in the paper. On "
        "ResNet-1001 the limits go up to the 15.75 GiB of the paper's GPU, since few of the others are below. Where "
        "a line is empty, no plan of that strategy fits.",
        named_by=("network", "size", "batch", "strategy", "setting"),
    ),
    Table(
        "persistence",
        "Figure 2: a chain on which no memory-persistent schedule is optimal",
        (
            Column("n", "n", "count"),
            *columns("number", rotor="Rotor", persistent="3n + 1", auto="auto, proven optimal", free="2n + 2"),
        ),
        "Costs of the figure; the sizes are our own, since those of the figure stand only in the picture.",
        named_by=("n",),
    ),
    Table(
        "cells",
        "Overhead against budget",
        CELLS,
        f"{_LIMIT_S:g} s a cell, one thread. {LEAST_NOTE}",
        named_by=("graph", "strategy", "percent"),
    ),
)
_TABLE = {table.key: table for table in TABLES}
SHOWN = (
    Table(
        "gains",
        "Sections 5.3 and 5.4: Rotor with the memory of the best number of segments",
        (
            Column("network", "network"),
            *columns("count", runs="image and batch sizes", fitting="with a number of segments that fits"),
            *columns("number", least="Rotor's least gain, %", mean="mean, %", most="largest, %"),
        ),
        "The gain is that of throughput over the best number of segments that fits in the paper's 15.75 GiB.",
    ),
    Table(
        "ratios",
        "Cost over Rotor's, geometric mean over budgets",
        (
            *columns("text", graph="graph", strategy="strategy"),
            Column("ratio", "ratio", "number"),
            *columns("count", budgets="budgets with a plan", alone="budgets that only Rotor has"),
        ),
    ),
    *TABLES[:-1],
    replace(TABLES[-1], columns=SHOWN_CELLS),
)
PICTURES = (
    Picture("figure3", "Images a second against memory on ResNet-101 at four batches, with what the paper states."),
    Picture("figure4", "Images a second against memory on ResNet-1001 at four batches, up to the memory of the GPU."),
    Picture("figure5", "Images a second against memory on DenseNet-201 and Inception v3."),
    Picture("curves", "Overhead against budget on ResNet and DenseNet chains for every strategy."),
)


def run(session: Session) -> list[Row]:
    cells = [
        Cell(f"{table} {network} {size} {batch}", partial(measure, network, size, batch))
        for table, measure, sets in (
            ("sets", _set_row, () if session.quick else _sets()),
            ("curve", _curve_rows, _QUICK_CURVES if session.quick else _CURVES),
        )
        for network, size, batch in sets
    ]
    for n in (5,) if session.quick else (5, 10, 20):
        cells.append(Cell(f"persistence {n}", partial(persistence, n)))
    percents = (75.0, 60.0) if session.quick else _PERCENTS
    for spec in ("linear{n=10}",) if session.quick else _NETWORKS:
        strategies = _STRATEGIES if session.quick else (*_STRATEGIES, _ANY)
        cells += cells_of("cells", spec, percents, strategies, _LIMIT_S)
    return rows_of(session, cells)


def _set_row(network: str, size: int, batch: int) -> Row:
    case = {"network": network, "size": size, "batch": batch}
    called = call("benchmarks.paper.chains:measured", limit_s=20 * _SET_LIMIT_S, **case)
    return _TABLE["sets"].row(case, called.values or {"ending": called.problem})


def _curve_rows(network: str, size: int, batch: int) -> list[Row]:
    case = {"network": network, "size": size, "batch": batch}
    called = call("benchmarks.paper.chains:curve", limit_s=20 * _SET_LIMIT_S, **case)
    return [_TABLE["curve"].row(case, point) for point in called.values or [{"strategy": called.problem}]]


def _sets() -> Iterator[tuple[str, int, int]]:
    for network in _DEPTHS:
        for size, batches in _BATCHES.items():
            figure_3 = network == _FIGURE_3 and size == 1000
            yield from ((network, size, batch) for batch in (_FIGURE_3_BATCHES if figure_3 else batches))
    yield from ((_DEEPEST, 224, batch) for batch in _FIGURE_3_BATCHES)


def measured(network: str, size: int, batch: int) -> dict[str, Any]:
    """The best number of segments of one network, and Rotor with its memory."""
    from remat_cli.graph.analysis import no_remat_peak

    graph = _graph(network, size, batch)
    chain, plans = _sequential(graph)
    fitting = [plan for plan in plans if plan[1] <= _MEMORY]
    cost, room, segments = min(fitting, default=(math.inf, _MEMORY, None))
    started_s = time.monotonic()
    rotor = _planned(graph, room, _BEST)[0]
    wall_s = time.monotonic() - started_s
    each = fitting if network == _FIGURE_3 and size == 1000 else []
    gains = [
        100 * (most / cheap - 1) for most, used, _ in each if (cheap := _planned(graph, used, _BEST)[0]) is not None
    ]
    rate = 1e6 * batch
    return {
        "blocks": chain.length,
        "kept_gib": round(no_remat_peak(graph) / _GIB, 2),
        "kept_rate": round(rate / graph.total_cost, 2),
        "fewest": min((plan[2] for plan in fitting), default=None),
        "segments": segments,
        "gib": round(room / _GIB, 2),
        "rate": None if segments is None else round(rate / cost, 2),
        "rotor_rate": None if rotor is None else round(rate / rotor, 2),
        "gain": None if segments is None or rotor is None else round(100 * (cost / rotor - 1), 2),
        "mean_gain": round(math.fsum(gains) / len(gains), 2) if gains else None,
        "wall_s": round(wall_s, 2),
        "ending": "finished" if segments else "no number of segments fits",
    }


def _graph(network: str, size: int, batch: int) -> Any:
    from remat_cli.api import build_graph

    begin = _SPECS.get(network, f"{network}{{")
    return build_graph(f"{begin}resolution={size},batch={batch},backward=operator}}", cost=_V100)


def _sequential(graph: Any) -> tuple[Any, list[tuple[float, int, int]]]:
    """The chain of a graph, and cost, peak and number of segments of the plans of the strategy."""
    from remat_cli.control import Control
    from remat_cli.plan.liveness import priced
    from remat_cli.solvers.highs import Highs
    from remat_cli.strategies.base import Context, Found, Task
    from remat_cli.strategies.chains.checkpointed import Sequential
    from remat_cli.strategies.chains.extract import Chain

    chain = Chain.of(graph, "sequential")
    plans = []
    for segments in _segments(chain.length):
        context = Context(Control.within(_SET_LIMIT_S), Highs(), threads=1)
        answer = Sequential(segments).solve(Task(graph, None), context)
        assert isinstance(answer, Found)  # without a budget, every number of segments has a plan
        told = priced(graph, answer.schedule.computes)
        plans.append((told.cost, told.peak_bytes, segments))
    return chain, plans


def curve(network: str, size: int, batch: int) -> list[Row]:
    """Memory and throughput of one network: keep-all, all numbers of segments, revolve and Rotor at all limits."""
    from remat_cli.graph.analysis import no_remat_peak

    graph = _graph(network, size, batch)
    whole = no_remat_peak(graph)

    def point(strategy: str, setting: float | None, cost: float | None, peak_bytes: int | None) -> Row:
        gib = None if peak_bytes is None else round(peak_bytes / _GIB, 2)
        rate = None if cost is None else round(1e6 * batch / cost, 2)
        return {"strategy": strategy, "setting": setting, "gib": gib, "rate": rate}

    rows = [point("keep-all", None, graph.total_cost, whole)]
    rows += [point("sequential", segments, cost, used) for cost, used, segments in _sequential(graph)[1]]
    most = min(whole, _MEMORY) if network == _DEEPEST else whole
    for strategy in (_REVOLVE, _BEST):
        for k in range(1, _LIMITS + 1):
            cost, used = _planned(graph, most * k // _LIMITS, strategy)
            rows.append(point(strategy, round(most * k / _LIMITS / _GIB, 2), cost, used))
    return rows


def _segments(length: int) -> list[int]:
    """Ten numbers from 2 to twice the root of the length."""
    most = max(2, round(2 * math.sqrt(length)))
    return sorted({round(2 + (most - 2) * k / (_NUMBERS - 1)) for k in range(_NUMBERS)})


def _planned(graph: Any, budget_bytes: int, strategy: str) -> tuple[float | None, int | None]:
    """Cost and peak of a strategy's plan within a budget; None if it has none."""
    from remat_cli.api import SolveOptions, solve
    from remat_cli.errors import RematError

    options = SolveOptions(strategy=strategy, time_limit_s=_SET_LIMIT_S, threads=1)
    try:
        solved = solve(graph, budget_bytes, options)
    except RematError:
        return None, None
    return solved.plan.claim.cost, solved.report.replay.peak_bytes


def persistence(n: int) -> Row:
    """The row of costs on the chain of figure 2."""
    from remat_cli.api import SolveOptions, solve

    graph, budget = _figure_2(n)
    costs = {name: solve(graph, budget, SolveOptions(strategy=name, time_limit_s=20.0)).plan.claim for name in _PAIR}
    row = {"n": n, "rotor": costs["rotor"].cost, "persistent": 3.0 * n + 1, "free": 2.0 * n + 2}
    proven = costs["auto"].cost if costs["auto"].status == "optimal" else None
    return _TABLE["persistence"].row(row, {"auto": proven})


_PAIR = ("rotor", "auto")


def _figure_2(n: int) -> tuple[Any, int]:
    """A chain of n + 2 stages with the costs of figure 2, and its budget.

    Sizes of states are 1, 2 and then 3; gradients have none; the loss needs 4 besides. So the second state, which is
    cheap to keep, does not fit beside the first before the loss.
    """
    from remat_cli.graph.model import Graph, Node, Phase

    length = n + 2
    costs, sizes = (n - 1.0, 2.0, *(0.0,) * n), (0, 1, 2, *(3,) * (length - 2))
    nodes = [Node("x", 0.0, (), (0,), recompute=False, phase=Phase.FORWARD)]
    for k in range(length):
        nodes.append(Node(f"f{k}", costs[k], (k,), (sizes[k + 1],), phase=Phase.FORWARD))
    nodes.append(Node("loss", 0.0, (length,), (0,), workspace=4, phase=Phase.LOSS))
    for k in reversed(range(length)):
        gradient = len(nodes) - 1
        nodes.append(Node(f"b{k}", 0.0, (k, k + 1, gradient), (0,), phase=Phase.BACKWARD))
    return Graph("figure 2", tuple(nodes), (len(nodes) - 1,)), 8


def completed(rows: list[Row]) -> list[Row]:
    """The ratios, then the rows, cells with their distance to the optimum."""
    cells = with_distances([row for row in rows if row["table"] == "cells"], _ANY)
    others = [row for row in rows if row["table"] != "cells"]
    return [*_gains(others), *_ratios(cells), *others, *cells]


def ours(rows: Sequence[Mapping[str, Any]]) -> Ours:
    """What stands beside the published figures: what follows from the sets and curves."""
    from remat_cli.strategies.chains.rotor import Rotor

    sets = [row for row in rows if row["table"] == "sets"]
    fastest = max(
        (
            row["rate"]
            for row in rows
            if row["table"] == "curve" and (row["network"], row["batch"], row["strategy"]) == (_FIGURE_3, 8, _BEST)
            if row["rate"] is not None and row["gib"] * _GIB <= _MEMORY
        ),
        default=None,
    )
    gains = [row["gain"] for row in sets if row["gain"] is not None]
    figure_3 = {row["batch"]: row for row in sets if row["network"] == _FIGURE_3 and row["size"] == 1000}
    eight = figure_3.get(8, {})
    means = [row["mean_gain"] for row in figure_3.values() if row["mean_gain"] is not None]
    deepest = {row["batch"]: row for row in sets if row["network"] == _DEEPEST}
    name, slower = "resnet101, 1000x1000", "no operation reaches the rates of the data sheet"
    other = "times of a data sheet; other sets of batches"
    told: list[tuple[str, str, float | None, str]] = [
        ("all", "throughput over sequential's, mean (%)", _mean(gains), other),
        (name, "throughput over sequential's, mean (%)", _mean(means), "a finer chain, with up to 17 segments for 11"),
        (f"{name}, batch 1", "peak of keep-all (GiB)", figure_3.get(1, {}).get("kept_gib"), "no kernel's workspace"),
        (f"{name}, batch 8", "peak of sequential, 2 segments (GiB)", eight.get("gib"), "no kernel's workspace"),
        (f"{name}, batch 8", "throughput of sequential, 2 segments (images/s)", eight.get("rate"), slower),
        (f"{name}, batch 8", "largest throughput of Rotor (images/s)", fastest, slower),
        *(
            (f"{_DEEPEST}, batch {batch}", "fewest segments of sequential", deepest.get(batch, {}).get("fewest"), "")
            for batch in (1, 2, 4)
        ),
        (f"{_DEEPEST}, batch 8", "peak of keep-all, predicted (GiB)", deepest.get(8, {}).get("kept_gib"), ""),
        (
            *(f"{_DEEPEST}, batch 8", "throughput of keep-all, predicted (images/s)"),
            *(deepest.get(8, {}).get("kept_rate"), slower),
        ),
        (_DEEPEST, "largest throughput of sequential (images/s)", _largest(deepest, "rate"), slower),
        (_DEEPEST, "throughput, printed as that of PyTorch (images/s)", _largest(deepest, "rotor_rate"), slower),
        (_DEEPEST, "length of the chain", deepest.get(8, {}).get("blocks"), "other ends of the network"),
        ("all", "slots", float(Rotor().slots), ""),
        ("most networks", "time of the programme, below (s)", _median(sets), "a shared core, and Python around it"),
        (
            *(_DEEPEST, "time of the programme, below (s)"),
            *(_largest(deepest, "wall_s"), "a shared core, and Python around it"),
        ),
    ]
    return {(subject, quantity): (value, why) for subject, quantity, value, why in told}


def _largest(sets: Mapping[int, Mapping[str, Any]], key: str) -> float | None:
    return max((row[key] for row in sets.values() if row[key] is not None), default=None)


def _median(sets: Sequence[Mapping[str, Any]]) -> float | None:
    """The median of Rotor's times, without those of the deepest network."""
    times = [row["wall_s"] for row in sets if row["network"] != _DEEPEST and row["wall_s"] is not None]
    return round(statistics.median(times), 2) if times else None


def _mean(numbers: Sequence[float]) -> float | None:
    return round(math.fsum(numbers) / len(numbers), 2) if numbers else None


def _gains(rows: Sequence[Row]) -> list[Row]:
    """The gains of Rotor, summed up for each network."""
    sets = [row for row in rows if row["table"] == "sets"]
    made: list[Row] = []
    for network in dict.fromkeys(row["network"] for row in sets):
        mine = [row["gain"] for row in sets if row["network"] == network]
        known = [gain for gain in mine if gain is not None]
        ends = {"least": min(known, default=None), "mean": _mean(known), "most": max(known, default=None)}
        made.append({"table": "gains", "network": network, "runs": len(mine), "fitting": len(known), **ends})
    return made


def _ratios(cells: list[Row]) -> list[Row]:
    rows: list[Row] = []
    for spec in dict.fromkeys(row["graph"] for row in cells):
        mine = [row for row in cells if row["graph"] == spec]
        served = {row["percent"] for row in mine if row["strategy"] == _BEST and row["overhead"] is not None}
        for strategy in dict.fromkeys(row["strategy"] for row in mine):
            if strategy != _BEST:
                ratio, budgets = geometric_ratio(mine, strategy, _BEST)
                values = {"ratio": ratio, "budgets": budgets, "alone": len(served) - budgets}
                rows.append({"table": "ratios", "graph": spec, "strategy": strategy, **values})
    return rows


def draw(rows: list[Row], folder: Path) -> None:
    """The picture."""
    from benchmarks.paper.plots import Panel, draw_curves

    cells = [row for row in rows if row["table"] == "cells"]
    panels = curves(cells, "cells", dict.fromkeys(row["graph"] for row in cells))
    draw_curves(panels, "budget, % of no-remat peak", "overhead, %", folder / "chains-curves.svg", falling=True)
    for key, wanted in _DRAWN.items():
        panels = []
        for network, size, batch in dict.fromkeys((r["network"], r["size"], r["batch"]) for r in rows if "rate" in r):
            mine = [
                row
                for row in rows
                if row["table"] == "curve" and (row["network"], row["size"], row["batch"]) == (network, size, batch)
                if row["rate"] is not None and (network != _DEEPEST or row["gib"] * _GIB <= _MEMORY)
            ]
            if mine and wanted(network, size):
                lines: dict[str, list[tuple[float, float]]] = {name: [] for name in _LINES}
                for row in mine:
                    lines[row["strategy"]].append((row["gib"], row["rate"]))
                within = max(x for points in lines.values() for x, _ in points) * _GIB > _MEMORY
                panel = Panel(
                    f"{network}, {size}x{size}, batch {batch}",
                    lines,
                    published=_told_at(network, size, batch),
                    marks={"memory of the paper's GPU": _MEMORY / _GIB} if within or network == _DEEPEST else {},
                    dots=("keep-all", "sequential"),
                )
                panels.append(panel)
        if panels:
            draw_curves(panels, "memory, GiB", "images/s", folder / f"chains-{key}.svg", columns=2)


_LINES = ("keep-all", "sequential", _REVOLVE, _BEST)
_DRAWN: Mapping[str, Callable[[str, int], bool]] = {
    "figure3": lambda network, size: (network, size) == (_FIGURE_3, 1000),
    "figure4": lambda network, size: network == _DEEPEST,
    "figure5": lambda network, size: network not in {_FIGURE_3, _DEEPEST} or size not in {1000, 224},
}
"""The curves of each picture of throughput."""


def _told_at(network: str, size: int, batch: int) -> dict[str, list[tuple[float, float]]]:
    """The published point of sequential with two segments on ResNet-101."""
    name = f"{network}, {size}x{size}, batch {batch}"
    used = published("chains", name, "peak of sequential, 2 segments (GiB)")
    rate = published("chains", name, "throughput of sequential, 2 segments (images/s)")
    most = published("chains", name, "largest throughput of Rotor (images/s)")
    if used is None or rate is None or most is None:
        return {}
    limit = _MEMORY / _GIB
    return {
        "published: sequential, 2 segments": [(used, rate)],
        "published: Rotor's largest": [(0.0, most), (limit, most)],
    }
