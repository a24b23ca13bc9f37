"""Checkmate, figure 6: the largest batch on 16 GB with at most one forward pass more.

Jain et al., Checkmate, MLSys 2020. Six networks; the bound on the cost is one extra forward pass (eq. 10 and 11). The
paper prints the batches of U-Net and MobileNet and their gains; all else of the figure is its bars. The memory of a
V100 is assumed to be 16 GB, including parameters and their gradients; only eight images of a batch count. Costs
here are FLOPs, so one forward pass allows recomputing more values of few FLOPs but much memory. Compare the
gains and not the batches. `auto` starts from the results of quick heuristics, and stops at the limit with what it has
proven.
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
_KEPT, _BEST = "keep-all", "auto"
_STRATEGIES = (_KEPT, "ap-sqrt", "ap-greedy", "linearized-greedy", _BEST)
_NETWORKS = ("unet", "fcn8", "segnet", "vgg19", "resnet50", "mobilenet-v1")
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
        "figure for it to U-Net in the caption of figure 6, and to MobileNet in the text.",
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
            Column("gain", "times keep-all, ours", "number"),
            Column("published", "times keep-all, published", "number"),
            Column("beyond", "times the best baseline, ours", "number"),
            Column("published_beyond", "times the best baseline, published", "number"),
            *TABLES[0].columns[4:],
        ),
    ),
)
PICTURES = (Picture("figure6", "Largest batch over that of keeping everything, for six networks and five strategies."),)


def run(session: Session) -> list[Row]:
    rows: list[Row] = []
    for network in ("mobilenet-v1",) if session.quick else _NETWORKS:
        for strategy in (_KEPT, "ap-sqrt") if session.quick else _STRATEGIES:
            if not session.wants(f"{network} {strategy}"):
                continue
            session.say(f"{network}, {strategy}")
            called = call("benchmarks.paper.batches:largest", limit_s=4 * _LIMIT_S, network=network, strategy=strategy)
            values = called.values or {"batch": None, "impossible": None, "wall_s": None, "ending": called.problem}
            rows.append({"table": "batches", "graph": network, "strategy": strategy, **values})
            session.keep(rows)
    return rows


def completed(rows: Sequence[Row]) -> list[Row]:
    """The rows with the gains over the best baseline, and the published figures."""
    made: list[Row] = []
    for row in rows:
        network, best = row["graph"], row["strategy"] == _BEST
        kept = next((r["batch"] for r in rows if r["graph"] == network and r["strategy"] == _KEPT), None)
        others = [r["batch"] for r in rows if r["graph"] == network and r["strategy"] != _BEST and r["batch"]]
        beyond = round(row["batch"] / max(others), 3) if best and row["batch"] and others else None
        batch = published("batches", network, "batch, Checkmate", CHECKMATE) if best else None
        told: list[float | None] = [published("batches", network, quantity) for quantity in _BASELINES] if best else []
        made.append(
            {
                **row,
                "gain": round(row["batch"] / kept, 3) if kept and row["batch"] else None,
                "published_batch": None if batch is None else int(batch),
                "published": published("batches", network, "over keep-all (times)") if best else None,
                "beyond": beyond,
                "published_beyond": next((value for value in told if value is not None), None),
            }
        )
    return made


def largest(network: str, strategy: str) -> dict[str, Any]:
    """The largest batch; no batch within the limit is a valid outcome."""
    from remat_cli.api import SolveOptions, build_graph
    from remat_cli.errors import RematError
    from remat_cli.planning.batches import max_batch, one_forward

    graph = build_graph(f"{network}{{batch={_BATCH}}}")
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


def draw(rows: list[Row], folder: Path) -> None:
    """The picture of figure 6."""
    from benchmarks.paper.plots import draw_bars

    groups: dict[str, dict[str, float]] = {}
    for row in completed(rows):
        if row["gain"] is not None:
            groups.setdefault(row["graph"], {})[row["strategy"]] = row["gain"]
    draw_bars(groups, "largest batch / that of keep-all", folder / "batches-figure6.svg")
