"""Checkmate, figure 6: the largest batch on 16 GB with at most one forward pass more.

Jain et al., Checkmate, MLSys 2020. Six networks; the bound on the cost is one extra forward pass (eq. 10 and 11). The
paper prints the batches of U-Net and MobileNet and their gains; all else of the figure is its bars. Costs are FLOPs, as
in the paper. The U-Net is the one on VGG16 of the experiments published with the paper; it, VGG19 and FCN-8s have a
ReLU inside convolutions, as Keras counts layers. The memory of a V100 is assumed to be 16 GB, including parameters and
their gradients; only eight images of a batch count. Compare the gains and not the batches. `auto` starts from the
results of quick heuristics, and stops at the limit with what it has proven. A second table has costs of their own for
every batch: times on a V100 by its data sheet, where a launch and the weights take as long for one image as for many.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Picture, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.measure import call
from benchmarks.paper.published import CHECKMATE, Ours, published

MEMORY = 16 * 10**9
_LIMIT_S = 40.0
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
            *columns("text", graph="graph", strategy="strategy"),
            *columns("count", batch="batch, ours", impossible="proven impossible from"),
            Column("wall_s", "time, s", "number"),
            Column("ending", "ended"),
        ),
        f"{_LIMIT_S:g} s each. The gain over the best baseline is over the largest other batch. The paper gives one "
        "figure for it to U-Net in the caption of figure 6, and to MobileNet in the text. No plan of any kind has a "
        "batch that is proven impossible; the share says how much of the largest batch that may be possible was found. "
        "Where a row says so, the long run adds a larger batch; it also proves smaller batches impossible.",
        named_by=("graph", "strategy"),
    ),
    Table(
        "timed",
        "The same with times on a V100 that belong to the batch (section 4.10)",
        (
            *columns("text", graph="graph", strategy="strategy"),
            Column("batch", "batch", "count"),
            Column("next", "next one proven impossible"),
            Column("impossible", "working sets too large from", "count"),
            *columns("number", overhead="overhead there, %", allowed="allowed: one forward pass, %", wall_s="time, s"),
            Column("ending", "ended"),
        ),
        f"By `max_batch` with a function that makes the graph of any batch, {_LIMIT_S:g} s each. Every batch is solved "
        "with its own costs. So a proof for one says nothing of larger ones; working sets too large rule those out.",
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
            *columns("number", possible="of the largest possible, %", gain="times keep-all, ours"),
            *columns("number", published="times keep-all, published", beyond="times the best baseline, ours"),
            *columns("number", published_beyond="times the best baseline, published"),
            *TABLES[0].columns[4:],
        ),
    ),
    TABLES[1],
)
PICTURES = (
    Picture(
        "figure6",
        "Largest batch over that of keeping everything, for six networks and five strategies, with the largest "
        "that may be possible and the two published batches.",
    ),
)


def run(session: Session) -> list[Row]:
    networks = ("mobilenet-v1",) if session.quick else _NETWORKS
    strategies = (
        ("largest", (_KEPT, "ap-sqrt") if session.quick else _STRATEGIES),
        ("largest_timed", (_KEPT,) if session.quick else (_KEPT, "linearized-greedy", _BEST)),
    )
    return rows_of(
        session,
        [
            batch_cell(table, f"benchmarks.paper.batches:{function}", _LIMIT_S, network, strategy)
            for table, (function, names) in zip(TABLES, strategies, strict=True)
            for network in networks
            for strategy in names
        ],
    )


def batch_cell(table: Table, function: str, limit_s: float, network: str, strategy: str) -> Cell:
    """The cell of a row about batches, which a function measures in a process of its own."""

    def measure() -> Row:
        called = call(function, limit_s=4 * limit_s, network=network, strategy=strategy)
        case = {"graph": network, "strategy": strategy}
        return table.row(case, called.values or {"ending": called.problem})

    return Cell(f"{table.key} {network} {strategy}", measure)


BESIDE = ("long",)
"""Parts whose rows :func:`completed` takes as well."""


def completed(rows: Sequence[Row], longer: Sequence[Row] = ()) -> list[Row]:
    """The rows with the gains over the best baseline, the published figures, and what rows of the long run add."""
    timed = [row for row in rows if row["table"] == "timed"]
    mine = [row for row in rows if row["table"] == "batches"]
    asked = [row for row in longer if row["table"] == "batches"]
    return [*compared_with_others([_extended(row, asked) for row in mine]), *timed]


def _extended(row: Row, asked: Sequence[Row]) -> Row:
    """A row with the larger batch of which the long run has a plan, and the smaller that it proves impossible."""
    mine = [r for r in asked if row["strategy"] == r["strategy"] and r["graph"] == spec_of(row["graph"])]
    found = max((r["batch"] for r in mine if r["verdict"] == "possible"), default=0)
    refuted = [r["batch"] for r in asked if r["graph"] == spec_of(row["graph"]) and r["verdict"] == "impossible"]
    if row["batch"] is not None and found > row["batch"]:
        row = row | {"batch": found, "ending": f"{row['batch']} in {_LIMIT_S:g} s; {found} in the long run"}
    if row["impossible"] is not None and refuted:
        row = row | {"impossible": min(row["impossible"], *refuted)}
    return row


def ours(rows: Sequence[Row], part: str = "batches") -> Ours:
    """What stands beside the published figures."""
    told: Ours = {}
    other = "graphs of our own, and other bytes beside the values"
    for row in rows:
        if row["table"] == "batches" and row["strategy"] == _BEST:
            beside = {"batch, Checkmate": "batch", "over keep-all (times)": "gain"} | dict.fromkeys(
                _BASELINES, "beyond"
            )
            for quantity, key in beside.items():
                if row[key] is not None and published(part, row["graph"], quantity, CHECKMATE) is not None:
                    told[row["graph"], quantity] = row[key], other if key != "batch" else ""
    return told


def compared_with_others(rows: Sequence[Row], part: str = "batches") -> list[Row]:
    """The rows of batches with the gains, and the figures that ``part`` quotes."""
    made: list[Row] = []
    for row in rows:
        network, best = row["graph"], row["strategy"] == _BEST
        kept = next((r["batch"] for r in rows if r["graph"] == network and r["strategy"] == _KEPT), None)
        others = [r["batch"] for r in rows if r["graph"] == network and r["strategy"] != _BEST and r["batch"]]
        beyond = round(row["batch"] / max(others), 3) if best and row["batch"] and others else None
        batch = published(part, network, "batch, Checkmate", CHECKMATE) if best else None
        limits = [r["impossible"] for r in rows if r["graph"] == network and r["impossible"]]
        most = min(limits, default=0) - 1
        told: list[float | None] = [published(part, network, quantity) for quantity in _BASELINES] if best else []
        made.append(
            {
                **row,
                "possible": round(100 * row["batch"] / most, 1) if most > 0 and row["batch"] else None,
                "gain": round(row["batch"] / kept, 3) if kept and row["batch"] else None,
                "published_batch": None if batch is None else int(batch),
                "published": published(part, network, "over keep-all (times)") if best else None,
                "beyond": beyond,
                "published_beyond": next((value for value in told if value is not None), None),
            }
        )
    return made


def largest(network: str, strategy: str) -> dict[str, Any]:
    """The largest batch; no batch within the limit is a valid outcome."""
    from remat_cli.api import build_graph
    from remat_cli.planning.max_batch import one_forward

    graph = build_graph(spec_of(network))
    return searched(graph, strategy, _LIMIT_S, graph_batch=_BATCH, most_cost=one_forward(graph))


def searched(source: Any, strategy: str, limit_s: float, **options: Any) -> dict[str, Any]:
    """What ``max_batch`` finds for a graph or for a function that makes the graph of any batch."""
    from remat_cli.api import SolveOptions, max_batch
    from remat_cli.errors import RematError

    solving = SolveOptions(strategy=strategy, time_limit_s=limit_s, threads=1)
    try:
        found = max_batch(source, MEMORY, options=solving, **options)
    except RematError as error:
        return {"ending": error.message.partition(";")[0]}
    base, solved = found.graph.total_cost, found.solved
    return {
        "batch": found.found,
        "next": "yes" if found.proven or found.found + 1 in found.refuted else "no",
        "impossible": found.impossible,
        "overhead": None if solved is None else round(100 * (solved.plan.claim.cost / base - 1), 3),
        "allowed": round(100 * (found.most_cost / base - 1), 3),
        "wall_s": round(found.wall_s, 2),
        "ending": found.outcome,
    }


def largest_timed(network: str, strategy: str) -> dict[str, Any]:
    """The largest batch if every batch has costs of its own, and which ones above it are proven impossible."""
    from remat_cli.api import Graph, build_graph

    def graph_at(batch: int) -> Graph:
        return build_graph(_NETWORKS[network] % f"batch={batch},", cost="roofline:v100")

    return searched(graph_at, strategy, _LIMIT_S)


def spec_of(network: str) -> str:
    """The graph of eight images, as the zoo names it."""
    return (_NETWORKS[network] % f"batch={_BATCH},").replace(",}", "}")


def budget_for(network: str, batch: int) -> int:
    """The budget for the graph of eight images within which a plan has to stay to fit the memory at ``batch``."""
    from remat_cli.api import build_graph

    fixed = build_graph(spec_of(network)).fixed_memory
    return fixed + (MEMORY - fixed) * _BATCH // batch


def draw(rows: list[Row], folder: Path) -> None:
    """The picture of figure 6."""
    draw_gains(rows, folder / "batches-figure6.svg")


def draw_gains(rows: Sequence[Row], path: Path) -> None:
    """Draw the gains of the rows of batches."""
    from benchmarks.paper.plots import draw_bars

    groups: dict[str, dict[str, float]] = {}
    most: dict[str, float] = {}
    told: dict[str, float] = {}
    for row in rows:
        if row["table"] == "batches" and row["gain"] is not None:
            groups.setdefault(row["graph"], {})[row["strategy"]] = row["gain"]
            kept = row["batch"] / row["gain"]
            if row["impossible"]:
                most[row["graph"]] = min(most.get(row["graph"], math.inf), (row["impossible"] - 1) / kept)
            if row["published_batch"]:
                told[row["graph"]] = row["published_batch"] / kept
    draw_bars(
        groups, "largest batch / that of keep-all", path, limits={"proven largest": most, "published batch": told}
    )
