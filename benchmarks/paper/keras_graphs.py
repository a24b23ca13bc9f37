"""The networks of Checkmate's experiments as Keras wrote them, at any batch, with FLOPs or measured times as costs.

``keras/NAME.json`` is what ``python -m benchmarks.tensorflow.checkmate`` exported and profiled, and needs neither Keras
nor TensorFlow. It holds the graph at the whole batch, bytes and FLOPs at a small batch, and the time of each node at
two small batches. At every other batch they lie on the line through the two, as ``remat max-batch`` takes them; the
exporter has checked that of bytes at a third batch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remat_cli.api import Graph
    from remat_cli.graph.batched import Batched

FOLDER = Path(__file__).parent / "keras"
FORM = 1
"""Version of the form of the files."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A network.

    Attributes:
        batch: The whole batch, of which the tables are.
        profiled: The batches at which the nodes were timed; empty if they were not.
        parameters: Number of its parameters.
        flops: Its graphs with FLOPs as costs.
        times: Its graphs with microseconds as costs; None if it was not profiled.
        facts: Versions, and the machine of the profile.
    """

    batch: int
    profiled: tuple[int, ...]
    parameters: int
    flops: Batched
    times: Batched | None
    facts: dict[str, Any]

    def at(self, batch: int | None = None, *, cost: str = "flops") -> Graph:
        """The graph at a batch (the paper's by default), with costs in ``flops`` or ``us``."""
        graph = self.flops.at(batch or self.batch)
        if cost == "flops":
            return graph
        assert self.times is not None, "it was not profiled"
        timed = self.times.at(batch or self.batch).nodes
        nodes = tuple(replace(node, cost=other.cost) for node, other in zip(graph.nodes, timed, strict=True))
        return replace(graph, nodes=nodes, cost_unit="us")

    def where(self) -> str:
        """The versions that it was exported with, and the processor and the day of its profile."""
        names = {"tensorflow": "TensorFlow", "keras": "Keras"}
        told = [f"{names[name]} {version}" for name, version in sorted(self.facts["frameworks"].items(), reverse=True)]
        measured = self.facts.get("measured")
        return ", ".join([*told, *((measured["machine"]["cpu"], measured["date"]) if measured else ())])


@cache
def exported(name: str) -> Exported:
    """The network in ``keras/NAME.json``."""
    from remat_cli.graph.batched import Batched
    from remat_cli.graph.document import Document
    from remat_cli.graph.io import graph_from_document

    facts = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert facts["form"] == FORM
    whole, small = graph_from_document(Document(name, facts["graph"])), facts["small"]
    nodes = tuple(
        replace(node, cost=cost, outputs=tuple(outputs), workspace=workspace)
        for node, cost, outputs, workspace in zip(
            whole.nodes, small["costs"], small["outputs"], small["workspaces"], strict=True
        )
    )
    least = replace(whole, nodes=nodes, fixed_memory=small["fixed_memory"])
    flops = Batched.of([(small["batch"], least), (facts["batch"], whole)])
    measured = {int(batch): us for batch, us in facts.get("microseconds", {}).items()}
    times = _timed(flops, measured) if measured else None
    keys = ("frameworks", "measured")
    told = {key: facts[key] for key in keys if key in facts}
    return Exported(facts["batch"], tuple(sorted(measured)), facts["parameters"], flops, times, told)


def _timed(flops: Batched, measured: dict[int, list[float]]) -> Batched:
    """The graphs at the batches that were profiled. A node takes no less time at a larger batch: less is noise."""
    from remat_cli.graph.batched import Batched

    graphs = []
    least: list[float] = []
    for batch, us in sorted(measured.items()):
        least = list(map(max, least, us)) if least else us
        graph = flops.at(batch)
        nodes = tuple(replace(node, cost=cost) for node, cost in zip(graph.nodes, least, strict=True))
        graphs.append((batch, replace(graph, nodes=nodes, cost_unit="us")))
    return Batched.of(graphs)
