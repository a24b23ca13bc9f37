"""Checkmate, figure 6: the largest batch on 16 GB with at most one forward pass more.

Jain et al., Checkmate, MLSys 2020. Six networks; the bound on the cost is one extra forward pass (eq. 10 and 11). The
paper states U-Net's batch (61, and 16 if everything is kept) and the largest gains: 5.1 times the batch of keeping
everything (MobileNet), and 1.73 times that of the best other strategy (U-Net). Other numbers are not available. The
memory of a V100 is assumed to be 16 GB, including parameters and their gradients; only eight images of a batch count.
Costs here are FLOPs, so one forward pass allows recomputing more values of few FLOPs but much memory. Compare the gains
and not the batches. `auto` starts from the results of quick heuristics, and stops at the limit with what it has proven.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Picture, Row, Session, Table
from benchmarks.measure import call

_MEMORY = 16 * 10**9
_LIMIT_S = 40.0
_KEPT, _BEST = "keep-all", "auto"
_STRATEGIES = (_KEPT, "ap-sqrt", "ap-greedy", "linearized-greedy", _BEST)
_NETWORKS = ("unet", "fcn8", "segnet", "vgg19", "resnet50", "mobilenet-v1")
_BATCH = 8
"""The graphs are made for this batch; parameters, their gradients and so many images are fixed memory."""
_PUBLISHED_GAIN = {("unet", _BEST): 3.8, ("mobilenet-v1", _BEST): 5.1}
_PUBLISHED_BATCH = {("unet", _KEPT): 16, ("unet", _BEST): 61}

TABLES = (
    Table(
        "batches",
        "",
        (
            Column("graph", "graph"),
            Column("strategy", "strategy"),
            Column("batch", "batch, ours", "count"),
            Column("published_batch", "batch, published", "count"),
            Column("impossible", "proven impossible from", "count"),
            Column("gain", "times keep-all, ours", "number"),
            Column("published", "times keep-all, published", "number"),
            Column("wall_s", "time, s", "number"),
            Column("ending", "ended"),
        ),
        f"{_LIMIT_S:g} s each. Published: caption of figure 6 and the text on it, quoted from memory, not yet held "
        "against the paper.",
    ),
)
PICTURES = (Picture("figure6", "Largest batch over that of keeping everything, for six networks and five strategies."),)


def run(session: Session) -> list[Row]:
    rows: list[Row] = []
    for network in ("mobilenet-v1",) if session.quick else _NETWORKS:
        kept = None
        for strategy in (_KEPT, "ap-sqrt") if session.quick else _STRATEGIES:
            session.say(f"{network}, {strategy}")
            called = call("benchmarks.paper.batches:largest", limit_s=4 * _LIMIT_S, network=network, strategy=strategy)
            values = called.values or {"batch": None, "impossible": None, "wall_s": None, "ending": called.problem}
            kept = values["batch"] if strategy == _KEPT else kept
            gain = round(values["batch"] / kept, 3) if kept and values["batch"] else None
            case = (network, strategy)
            rows.append(
                {
                    "table": "batches",
                    "graph": network,
                    "strategy": strategy,
                    **values,
                    "gain": gain,
                    "published": _PUBLISHED_GAIN.get(case),
                    "published_batch": _PUBLISHED_BATCH.get(case),
                }
            )
            session.keep(rows)
    return rows


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
    for row in rows:
        if row["gain"] is not None:
            groups.setdefault(row["graph"], {})[row["strategy"]] = row["gain"]
    draw_bars(groups, "largest batch / that of keep-all", folder / "batches-figure6.svg")
