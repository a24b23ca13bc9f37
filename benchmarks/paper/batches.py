"""Checkmate, figure 6: the largest batch on 16 GB with at most one forward pass more.

Jain et al., Checkmate, MLSys 2020. Six networks; the bound on the cost is one extra forward pass (eq. 10 and 11). The
paper prints the batches of U-Net and MobileNet and their gains; all else of the figure is its bars. Costs are FLOPs, as
in the paper. The U-Net is the one on VGG16 of the experiments published with the paper; it, VGG19 and FCN-8s have a
ReLU inside convolutions, as Keras counts layers. The memory of a V100 is assumed to be 16 GB, including parameters and
their gradients; only eight images of a batch count. Compare the gains and not the batches. `auto` starts from the
results of quick heuristics, and stops at the limit with what it has proven. A second table has costs of their own for
every batch: times on a V100 by its data sheet, where a launch and the weights take as long for one image as for many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Picture, Row, Session, Table
from benchmarks.measure import call
from benchmarks.paper.published import CHECKMATE, published

_MEMORY = 16 * 10**9
_LIMIT_S = 40.0
_TIMED_S = 5.0
_KEPT, _BEST = "keep-all", "auto"
_STRATEGIES = (_KEPT, "ap-sqrt", "ap-greedy", "linearized-greedy", _BEST)
_NETWORKS = {
    "unet": "vgg-unet{%sfused=true}",
    "fcn8": "fcn8{%sfused=true}",
    "segnet": "segnet{%s}",
    "vgg19": "vgg19{%sfused=true}",
    "resnet50": "resnet50{%s}",
    "mobilenet-v1": "mobilenet-v1{%s}",
}
"""The networks, with a place for the batch."""
_BATCH = 8
"""The graphs are made for this batch; parameters, their gradients and so many images are fixed memory."""
_BASELINES = ("over the best baseline (times)", "over the best baseline, greedy (times)")

TABLES = (
    Table(
        "batches",
        "",
        (
            Column("graph", "graph"),
            Column("strategy", "strategy"),
            Column("batch", "batch, ours", "count"),
            Column("impossible", "proven impossible from", "count"),
            Column("wall_s", "time, s", "number"),
            Column("ending", "ended"),
        ),
        f"{_LIMIT_S:g} s each. The gain over the best baseline is over the largest other batch. The paper gives one "
        "figure for it to U-Net in the caption of figure 6, and to MobileNet in the text. No plan of any kind has a "
        "batch that is proven impossible; the share says how much of the largest batch that may be possible was found.",
        named_by=("graph", "strategy"),
    ),
    Table(
        "timed",
        "The same with times on a V100 that belong to the batch (section 4.10)",
        (
            Column("graph", "graph"),
            Column("strategy", "strategy"),
            Column("batch", "batch", "count"),
            Column("impossible", "proven impossible", "count"),
            Column("overhead", "overhead there, %", "number"),
            Column("allowed", "allowed: one forward pass, %", "number"),
            Column("wall_s", "time, s", "number"),
            Column("ending", "ended"),
        ),
        f"By bisection over batches, each with a graph and costs of its own and {_TIMED_S:g} s. It looks only between "
        "the batch of keep-all and that of the working sets.",
        named_by=("graph", "strategy"),
    ),
)
SHOWN = (
    replace(
        TABLES[0],
        columns=(
            *TABLES[0].columns[:3],
            Column("published_batch", "batch, published", "count"),
            TABLES[0].columns[3],
            Column("possible", "of the largest possible, %", "number"),
            Column("gain", "times keep-all, ours", "number"),
            Column("published", "times keep-all, published", "number"),
            Column("beyond", "times the best baseline, ours", "number"),
            Column("published_beyond", "times the best baseline, published", "number"),
            *TABLES[0].columns[4:],
        ),
    ),
    TABLES[1],
)
PICTURES = (Picture("figure6", "Largest batch over that of keeping everything, for six networks and five strategies."),)


def run(session: Session) -> list[Row]:
    rows: list[Row] = []
    networks = ("mobilenet-v1",) if session.quick else _NETWORKS
    for table, strategies, function, limit_s in (
        ("batches", (_KEPT, "ap-sqrt") if session.quick else _STRATEGIES, "largest", 4 * _LIMIT_S),
        ("timed", (_KEPT,) if session.quick else (_KEPT, "linearized-greedy", _BEST), "largest_timed", 60 * _TIMED_S),
    ):
        for network in networks:
            for strategy in strategies:
                if not session.wants(f"{table} {network} {strategy}"):
                    continue
                session.say(f"{table}: {network}, {strategy}")
                case = {"network": network, "strategy": strategy}
                called = call(f"benchmarks.paper.batches:{function}", limit_s=limit_s, **case)
                columns = next(known.columns for known in TABLES if known.key == table)
                values = called.values or dict.fromkeys(column.key for column in columns) | {"ending": called.problem}
                rows.append({**values, "table": table, "graph": network, "strategy": strategy})
                session.keep(rows)
    return rows


def completed(rows: Sequence[Row]) -> list[Row]:
    """The rows with the gains over the best baseline, and the published figures."""
    made: list[Row] = []
    timed = [row for row in rows if row["table"] == "timed"]
    rows = [row for row in rows if row["table"] == "batches"]
    for row in rows:
        network, best = row["graph"], row["strategy"] == _BEST
        kept = next((r["batch"] for r in rows if r["graph"] == network and r["strategy"] == _KEPT), None)
        others = [r["batch"] for r in rows if r["graph"] == network and r["strategy"] != _BEST and r["batch"]]
        beyond = round(row["batch"] / max(others), 3) if best and row["batch"] and others else None
        batch = published("batches", network, "batch, Checkmate", CHECKMATE) if best else None
        limits = [r["impossible"] for r in rows if r["graph"] == network and r["impossible"]]
        most = min(limits, default=0) - 1
        told: list[float | None] = [published("batches", network, quantity) for quantity in _BASELINES] if best else []
        made.append(
            {
                **row,
                "possible": round(100 * row["batch"] / most, 1) if most > 0 and row["batch"] else None,
                "gain": round(row["batch"] / kept, 3) if kept and row["batch"] else None,
                "published_batch": None if batch is None else int(batch),
                "published": published("batches", network, "over keep-all (times)") if best else None,
                "beyond": beyond,
                "published_beyond": next((value for value in told if value is not None), None),
            }
        )
    return [*made, *timed]


def largest(network: str, strategy: str) -> dict[str, Any]:
    """The largest batch; no batch within the limit is a valid outcome."""
    from remat_cli.api import SolveOptions, build_graph
    from remat_cli.errors import RematError
    from remat_cli.planning.batches import max_batch, one_forward

    graph = build_graph(_NETWORKS[network] % f"batch={_BATCH},")
    options = SolveOptions(strategy=strategy, time_limit_s=_LIMIT_S, threads=1)
    try:
        found = max_batch(graph, _MEMORY, graph_batch=_BATCH, most_cost=one_forward(graph), options=options)
    except RematError as error:
        return {"batch": None, "impossible": None, "wall_s": None, "ending": error.message.partition(";")[0]}
    return {
        "batch": found.found,
        "impossible": found.impossible,
        "wall_s": round(found.wall_s, 2),
        "ending": found.outcome,
    }


def largest_timed(network: str, strategy: str) -> dict[str, Any]:
    """The largest batch if every batch has costs of its own, and the smallest one that is proven impossible."""
    import time

    from remat_cli.api import build_graph
    from remat_cli.graph.analysis import no_remat_peak, peak_bound

    started_s = time.monotonic()

    def graph_at(batch: int) -> Any:
        return build_graph(_NETWORKS[network] % f"batch={batch},", cost="roofline:v100")

    one = graph_at(1)
    images = graph_at(2).fixed_memory - one.fixed_memory
    fixed = one.fixed_memory - images

    def most(peak: int) -> int:
        return (_MEMORY - fixed) // (peak - fixed)

    low, high = most(no_remat_peak(one)), most(peak_bound(one).bytes) + 1
    found = {"batch": low, "overhead": 0.0, "allowed": _allowed(graph_at(low))}
    impossible = high
    while strategy != _KEPT and low + 1 < high:
        batch = (low + high) // 2
        overhead, possible = _at(graph_at(batch), strategy)
        if overhead is not None:
            low, found = batch, {"batch": batch, "overhead": overhead, "allowed": _allowed(graph_at(batch))}
        else:
            high = batch
            impossible = impossible if possible else min(impossible, batch)
    wall_s = round(time.monotonic() - started_s, 2)
    return {**found, "impossible": impossible, "wall_s": wall_s, "ending": "finished"}


def _allowed(graph: Any) -> float:
    """The overhead of one more forward pass, in percent."""
    from remat_cli.planning.batches import one_forward

    return round(100 * (one_forward(graph) / graph.total_cost - 1), 3)


def _at(graph: Any, strategy: str) -> tuple[float | None, bool]:
    """The overhead of a plan within the memory and one forward pass, None if there is none; and whether one may be."""
    from remat_cli.api import SolveOptions, solve
    from remat_cli.errors import Infeasible, RematError
    from remat_cli.plan.model import Scope
    from remat_cli.planning.batches import one_forward

    try:
        claim = solve(graph, _MEMORY, SolveOptions(strategy=strategy, time_limit_s=_TIMED_S, threads=1)).plan.claim
    except Infeasible:
        return None, strategy != _BEST
    except RematError:
        return None, True
    limit = one_forward(graph)
    if claim.cost <= limit:
        return round(100 * (claim.cost / graph.total_cost - 1), 3), True
    proven = strategy == _BEST and claim.scope in {Scope.ANY_ORDER, Scope.DOCUMENT_ORDER} and claim.lower_bound > limit
    return None, not proven


def draw(rows: list[Row], folder: Path) -> None:
    """The picture of figure 6."""
    from benchmarks.paper.plots import draw_bars

    groups: dict[str, dict[str, float]] = {}
    for row in completed(rows):
        if row["table"] == "batches" and row["gain"] is not None:
            groups.setdefault(row["graph"], {})[row["strategy"]] = row["gain"]
    draw_bars(groups, "largest batch / that of keep-all", folder / "batches-figure6.svg")
