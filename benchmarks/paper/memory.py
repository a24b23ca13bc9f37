"""Checkmate, figures 1 and 3, table 1 and section 2: what fills the memory, what recomputation saves, and the methods.

Jain et al., Checkmate, MLSys 2020. Figure 1 is a network of 32 layers that needs 30 GB in training, and 21 GB less
with some activations computed again, at a modest cost; the paper does not say which network it is. Here it is a chain
of 32 equal layers of that size, with the cheapest plan that saves as much. Figure 3 compares activations with
parameters of popular networks; its numbers stand only in the picture. Here they are those of the zoo, at the batches
of the other tables. Table 1 says which graphs the methods take, and whether they consider costs and sizes; beside it
stands what the strategies of those names declare.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Picture, Row, Session, Table, columns
from benchmarks.paper.published import METHODS, Ours

_WHOLE = 30 * 10**9
_LAYER_BYTES = _WHOLE // 34
"""34 values of a chain of 32 layers are resident at its peak."""
_SAVED = 21 * 10**9
_LIMIT_S = 10.0
_MEMORY = 16 * 10**9
_NETWORKS = (
    *("vgg16{fused=true}", "vgg19{fused=true}", "mobilenet-v1", "mobilenet-v2"),
    *("resnet18", "resnet50", "resnet101", "resnet152", "resnet200"),
    *("densenet121", "densenet161", "densenet169", "densenet201", "inception-v3"),
    *("vgg-unet{fused=true}", "unet", "fcn8{fused=true}", "segnet"),
    *("transformer", "bert", "gpt2"),
)

TABLES = (
    Table(
        "saved",
        "Figure 1: 32 layers",
        (
            Column("way", "plan"),
            *columns("bytes", peak_bytes="memory", saved_bytes="saved"),
            *columns("number", overhead="overhead, %", bound="proven least overhead, %"),
            Column("ending", "ended"),
        ),
        "Equal layers, the backward rule of Checkmate.",
    ),
    Table(
        "filled",
        "Figure 3: activations against parameters",
        (
            Column("graph", "graph"),
            Column("batch", "batch", "count"),
            *columns("bytes", values_bytes="activations and their gradients"),
            *columns("bytes", parameters_bytes="parameters and their gradients", inputs_bytes="inputs"),
            Column("share", "activations, %", "number"),
            Column("fits", "within 16 GB"),
            Column("orders", "orders of magnitude between the costs of layers", "number"),
        ),
        "The peak without recomputation. The last column is of FLOPs in the forward pass and the loss; section "
        "2 states it for VGG19, whose smallest layer is a softmax, here a part of the loss.",
    ),
)
_TIMELINE = Table(
    "timeline",
    "Figure 1: memory over time",
    (Column("way", "plan"), Column("step", "compute", "count"), Column("resident_bytes", "memory", "bytes")),
    "Bytes resident while each node is computed, one after the other.",
)
TABLES = (*TABLES, _TIMELINE)
SHOWN = (
    Table(
        "methods",
        "Table 1: the methods",
        (
            *columns("text", method="method", strategy="strategy", graphs_told="general graphs, in the paper"),
            *columns("text", graphs="takes", costs_told="considers costs, in the paper", costs="considers costs"),
            *columns(
                "text",
                sizes_told="considers memory, in the paper",
                sizes="considers sizes",
                budget="considers the budget",
            ),
        ),
        "Partly is the paper's sign ~. Its greedy methods consider memory partly, since they use sizes, not the peak; "
        "here they choose the segment whose peak fits. Those on articulation points take any training graph, and are "
        "general partly since few nodes of some graphs are such points.",
    ),
    *TABLES,
)
PICTURES = (
    Picture("figure1", "Memory over time of a network of 32 layers: all kept, and the cheapest plan that saves 21 GB."),
    Picture("figure3", "Memory of activations, parameters and inputs of every network, with a line at 16 GB."),
)


def run(session: Session) -> list[Row]:
    rows = _saved()
    session.keep(rows)
    for spec in _NETWORKS[2:3] if session.quick else _NETWORKS:
        session.say(spec)
        rows.append({"table": "filled", "graph": spec, **_filled(spec)})
    return rows


def _saved() -> list[Row]:
    """Keeping all, and the cheapest plan that saves as much as in figure 1."""
    from remat_cli.api import SolveOptions, build_graph, solve
    from remat_cli.graph.analysis import no_remat_peak
    from remat_cli.plan.model import Compute

    graph = build_graph(f"linear{{n=32,sizes={_LAYER_BYTES}B}}")
    whole = no_remat_peak(graph)
    rows: list[Row] = []
    for way, budget in (("keep-all", whole), ("auto", whole - _SAVED)):
        solved = solve(graph, budget, SolveOptions(strategy=way, time_limit_s=_LIMIT_S, threads=1))
        claim, peak = solved.plan.claim, solved.report.replay.peak_bytes
        rows.append(
            {
                "table": "saved",
                "way": way,
                "peak_bytes": peak,
                "saved_bytes": whole - peak,
                "overhead": round(100 * (claim.cost / graph.total_cost - 1), 2),
                "bound": round(100 * (claim.lower_bound / graph.total_cost - 1), 2),
                "ending": claim.proof,
            }
        )
        used = residents(graph, [step.node for step in solved.plan.statements if isinstance(step, Compute)])
        rows += [{"table": "timeline", "way": way, "step": k, "resident_bytes": b} for k, b in enumerate(used, 1)]
    return rows


def residents(graph: Any, computes: Sequence[int]) -> list[int]:
    """Bytes resident while each compute runs, fixed memory included."""
    from benchmarks.paper.placing import lifetimes

    used = [graph.fixed_memory + graph.nodes[i].workspace for i in computes]
    for first, last, size in lifetimes(graph, computes):
        for step in range(first, min(last + 1, len(used))):
            used[step] += size
    return used


def _filled(spec: str) -> dict[str, Any]:
    """What fills the memory of a network."""
    from remat_cli.api import build_graph
    from remat_cli.graph.analysis import no_remat_peak
    from remat_cli.graph.model import Phase

    graph = build_graph(spec)
    values = no_remat_peak(graph) - graph.fixed_memory
    metadata = graph.metadata
    parameters = 2 * metadata["parameters"] * metadata["options"]["dtype_bytes"]
    costs = [node.cost for node in graph.nodes if node.phase in {Phase.FORWARD, Phase.LOSS} and node.cost]
    return {
        "batch": metadata["options"]["batch"],
        "values_bytes": values,
        "parameters_bytes": parameters,
        "inputs_bytes": graph.fixed_memory - parameters,
        "share": round(100 * values / (values + graph.fixed_memory), 1),
        "fits": "yes" if values + graph.fixed_memory <= _MEMORY else "no",
        "orders": round(math.log10(max(costs) / min(costs)), 1),
    }


def completed(rows: list[Row]) -> list[Row]:
    """Table 1, then the rows."""
    return [*_methods(), *rows]


def ours(rows: list[Row]) -> Ours:
    """What stands beside the published figures."""
    saved = next(row for row in rows if row["table"] == "saved" and row["way"] == "auto")
    vgg19 = next((row["orders"] for row in rows if row["table"] == "filled" and row["graph"].startswith("vgg19")), None)
    return {
        ("32 layers", "memory of keep-all (GB)"): (round((saved["peak_bytes"] + saved["saved_bytes"]) / 1e9, 2), ""),
        ("32 layers", "memory saved (GB)"): (round(saved["saved_bytes"] / 1e9, 2), ""),
        ("vgg19", "orders of magnitude between the costs of layers"): (
            vgg19,
            "the smallest is the softmax, with three FLOPs an entry here",
        ),
    }


def _methods() -> list[Row]:
    """Table 1, with what the strategies declare."""
    from remat_cli.strategies.registry import STRATEGIES

    made: list[Row] = []
    for method, strategy, graphs, costs, sizes in METHODS:
        declared = STRATEGIES.load(strategy)
        considered = {name: "no" if name in declared.ignores else "yes" for name in ("costs", "sizes", "budget")}
        told = {"graphs_told": graphs, "costs_told": costs, "sizes_told": sizes}
        takes = "training graphs" if declared.needs == "phases" else declared.needs.value
        made.append({"table": "methods", "method": method, "strategy": strategy, "graphs": takes, **considered, **told})
    return made


def draw(rows: list[Row], folder: Path) -> None:
    """The picture of figure 3."""
    from benchmarks.paper.plots import Panel, draw_curves, draw_stacks

    parts = {
        "activations and their gradients": "values_bytes",
        "parameters and their gradients": "parameters_bytes",
        "inputs": "inputs_bytes",
    }
    groups = {
        f"{row['graph'].partition('{')[0]}, {row['batch']}": {name: row[key] / 1e9 for name, key in parts.items()}
        for row in rows
        if row["table"] == "filled"
    }
    mark = (_MEMORY / 1e9, "16 GB")
    draw_stacks(groups, "memory without recomputation, GB", folder / "memory-figure3.svg", mark=mark)
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["table"] == "timeline":
            lines.setdefault(row["way"], []).append((row["step"], row["resident_bytes"] / 1e9))
    ends = [1, max(len(points) for points in lines.values())] if lines else []
    levels = {"published: 30 GB": _WHOLE / 1e9, "published: 21 GB less": (_WHOLE - _SAVED) / 1e9}
    told = {name: [(float(x), level) for x in ends] for name, level in levels.items()}
    panel = Panel("a network of 32 equal layers", lines, published=told)
    draw_curves([panel], "nodes computed, one after the other", "memory, GB", folder / "memory-figure1.svg", plain=True)
