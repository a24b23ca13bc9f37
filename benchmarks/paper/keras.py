"""Checkmate, figures 5 and 6 and table 2, on the networks as Keras writes them.

Jain et al., Checkmate, MLSys 2020, took its graphs from Keras 2 and its times from a V100. Here Keras 3 wrote the
networks, `remat export` took the training steps at the batches below, and `remat profile` measured times on one core
of a CPU, at two small batches. At the whole batch they lie on the line through the two; the bytes are exact. The batch
of the U-Net is that of section 6.3; the texts print none for the others, so these are those of the zoo. The files in
`keras/` hold all that, so nothing of TensorFlow is needed here. Nodes are those of a TensorFlow step: bytes are what
TensorFlow keeps, operations of no use alone are joined, and gradients of parameters stay to the end. The tables above
have the same networks by the paper's rules for a graph. The U-Net is the one on VGG16 of the published experiments.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Picture, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.paper import batches, budgets
from benchmarks.paper.cells import CELLS, LEAST_NOTE, SHOWN_CELLS, cells_of, with_distances
from benchmarks.paper.keras_graphs import exported
from benchmarks.paper.published import Ours, published

_LIMIT_S = 5.0
_BATCH_LIMIT_S = 20.0
_MEMORY = "16GB"
_PERCENTS: tuple[float | str, ...] = (90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0)
_KEPT, _BEST = "keep-all", "auto"
_STRATEGIES = ("ap-sqrt", "ap-greedy", "linearized-sqrt", "linearized-greedy", _BEST)
_NETWORKS = ("mobilenet-v1", "vgg16", "vgg19", "unet", "resnet50", "fcn8", "segnet")
_TABLE_2, _FIGURE_5 = _NETWORKS[:5], ("vgg16", "mobilenet-v1", "unet")
_FIGURE_6 = ("unet", "fcn8", "segnet", "vgg19", "resnet50", "mobilenet-v1")
_ZOO = {"unet": budgets.UNET} | {name: f"{name}{{fused=true}}" for name in ("vgg16", "vgg19", "fcn8")}
"""The same networks as the tables above have them, where the names differ."""
_WHOLE = "memory without recomputation, batch 32 (GB)"

TABLES = (
    Table(
        "networks",
        "The networks",
        (
            Column("graph", "graph"),
            *columns("count", batch="batch", nodes="nodes", parameters="parameters"),
            *columns("bytes", peak_bytes="peak without recomputation", zoo_bytes="of the zoo's graph"),
            Column("step_s", "time of a step on the CPU, s", "number"),
            Column("profiled", "profiled at batches"),
        ),
        "",
        named_by=("graph",),
    ),
    Table(
        "cells",
        "Overhead against budget in FLOPs",
        CELLS,
        f"{_LIMIT_S:g} s a cell, one thread. " + LEAST_NOTE,
        named_by=("graph", "strategy", "percent"),
    ),
    Table(
        "times",
        "Figure 5: overhead against budget in measured times",
        CELLS,
        f"{_LIMIT_S:g} s a cell, one thread. " + LEAST_NOTE,
        named_by=("graph", "strategy", "percent"),
    ),
    Table(
        "batches",
        "Figure 6: the largest batch on 16 GB with at most one forward pass more",
        batches.TABLES[0].columns,
        f"FLOPs, {_BATCH_LIMIT_S:g} s each. Every batch is solved on its own graph. The gain over the best baseline is "
        "over the largest other batch; the paper gives one figure for it to U-Net and to MobileNet, as said above.",
        named_by=("graph", "strategy"),
    ),
)
SHOWN = (
    Table(
        "networks",
        TABLES[0].title,
        (
            *TABLES[0].columns[:6],
            Column("published_gb", "memory, published, GB", "number"),
            *TABLES[0].columns[6:],
            Column("where", "exported and profiled with"),
        ),
    ),
    Table(
        "ratios",
        "Table 2: cost over the optimum's, geometric mean over budgets",
        budgets.SHOWN[0].columns[:-1],
        budgets.SHOWN[0].note,
    ),
    Table(
        "at16",
        "16 GB, in measured times",
        (Column("graph", "graph"), *budgets.SHOWN[1].columns),
    ),
    Table(TABLES[1].key, TABLES[1].title, SHOWN_CELLS, TABLES[1].note),
    Table(TABLES[2].key, TABLES[2].title, SHOWN_CELLS, TABLES[2].note),
    Table(TABLES[3].key, TABLES[3].title, batches.SHOWN[0].columns, TABLES[3].note),
)
PICTURES = (
    Picture(
        "figure5",
        "Overhead against budget in GB on VGG16, MobileNet and U-Net, in times on a CPU: on the left up to 60%, on the "
        "right close to the optimum. The grey area is proven to be impossible.",
    ),
    Picture("figure6", "Largest batch over that of keeping everything, for six networks and three strategies."),
)


def run(session: Session) -> list[Row]:
    quick = session.quick
    names = _NETWORKS[1:2] if quick else _NETWORKS
    cells = [Cell(f"networks {name}", partial(_network_row, name)) for name in names]
    shares: tuple[float | str, ...] = (80.0,) if quick else _PERCENTS
    strategies = ("ap-sqrt", _BEST) if quick else _STRATEGIES
    for table, of, cost in (("cells", _TABLE_2, "flops"), ("times", _FIGURE_5, "us")):
        budgets_ = (*shares, _MEMORY) if cost == "us" else shares
        for name in ("vgg16",) if quick else of:
            cells += cells_of(table, name, budgets_, strategies, _LIMIT_S, graph=exported(name).at(cost=cost))
    for name in ("vgg19",) if quick else _FIGURE_6:
        for strategy in (_KEPT,) if quick else (_KEPT, "linearized-greedy", _BEST):
            cells.append(
                batches.batch_cell(TABLES[3], "benchmarks.paper.keras:largest", _BATCH_LIMIT_S, name, strategy)
            )
    return rows_of(session, cells)


def _network_row(name: str) -> Row:
    """What the table of networks says of one."""
    from remat_cli.api import build_graph
    from remat_cli.graph.analysis import no_remat_peak

    network = exported(name)
    graph = network.at()
    values = {
        "batch": network.batch,
        "nodes": len(graph.nodes),
        "parameters": network.parameters,
        "peak_bytes": no_remat_peak(graph),
        "zoo_bytes": no_remat_peak(build_graph(_ZOO.get(name, name))),
        "step_s": None if network.times is None else round(network.at(cost="us").total_cost / 1e6, 1),
        "profiled": " and ".join(map(str, network.profiled)),
    }
    return TABLES[0].row({"graph": name}, values)


def largest(network: str, strategy: str) -> dict[str, Any]:
    """The largest batch; no batch within the limit is a valid outcome."""
    return batches.searched(exported(network).at, strategy, _BATCH_LIMIT_S)


def completed(rows: Sequence[Row]) -> list[Row]:
    """The rows with what follows from them, and the published figures."""
    of = {table.key: [row for row in rows if row["table"] == table.key] for table in TABLES}
    cells, times = (with_distances(of[key], _BEST) for key in ("cells", "times"))
    networks = [
        row | {"published_gb": published("keras", row["graph"], _WHOLE), "where": exported(row["graph"]).where()}
        for row in of["networks"]
    ]
    return [
        *networks,
        *budgets.ratios(cells, "keras"),
        *budgets.at_16(times, "keras"),
        *cells,
        *(row for row in times if row["percent"] in _PERCENTS),
        *batches.compared_with_others(of["batches"], "keras"),
    ]


def ours(rows: Sequence[Row]) -> Ours:
    """What stands beside the published figures."""
    told = {
        (row["graph"], _WHOLE): (round(row["peak_bytes"] / 1e9, 1), "") for row in rows if row["table"] == "networks"
    }
    known = {key: value for key, value in told.items() if published("keras", *key) is not None}
    return {**known, **budgets.ours(rows, "keras"), **batches.ours(rows, "keras")}


def draw(rows: list[Row], folder: Path) -> None:
    """The pictures of figures 5 and 6."""
    times = [row for row in rows if row["table"] == "times"]
    wholes = {row["graph"]: row["peak_bytes"] for row in rows if row["table"] == "networks"}
    budgets.draw_figure_5(times, wholes, folder / "keras-figure5.svg", {})
    batches.draw_gains(rows, folder / "keras-figure6.svg")
