"""``python -m benchmarks.offloading [FOLDER]``: the time of plans that recompute, that copy, and that do both.

The graphs are captured training steps with the costs of ``roofline:a100``, planned at shares of their no-remat peaks
for a link of PCIe 4 (25 GB/s) and one of NVLink-C2C (400 GB/s). Each plan is replayed. The overhead is the time of the
plan over the cost without recomputation, stalls included. The bound holds for every plan in document order with any
copies. Rows are printed as they are finished, and written to ``results/`` or to FOLDER.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import remat_cli as remat
from benchmarks.machine import ROOT
from benchmarks.measure import run_process, succeeded
from benchmarks.startup import remat_command
from remat_cli.errors import Infeasible, LimitReached
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.io import load_graph
from remat_cli.graph.model import Graph
from remat_cli.plan.host import Host

GRAPHS = ("resnet50", "unet", "gpt2")
SHARES = (20, 40, 60, 80)
BANDWIDTHS = (25, 400)
MODES = {"both": "offload", "copies alone": "offload{recompute=false}", "recomputation alone": "offload{copy=false}"}
LIMITS_S = {"both": 30.0, "copies alone": 8.0, "recomputation alone": 12.0}


def captured(name: str) -> Graph:
    """A training step of the zoo as PyTorch runs it, with the costs of a data sheet."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.json"
        source = f"zoo:torch/{name}{{cost=roofline:a100}}"
        succeeded(run_process([remat_command(), "export", source, "-o", str(path)]), f"exporting {name}")
        return load_graph(str(path))


def cell(graph: Graph, share: int, bandwidth: int) -> dict[str, Any]:
    """One row: the overhead of each mode in percent, None for no plan, and the bound."""
    row: dict[str, Any] = {"graph": graph.name, "nodes": len(graph.nodes), "budget": share, "bandwidth": bandwidth}
    host = Host(bandwidth * 1e9, bandwidth * 1e9)
    budget = no_remat_peak(graph) * share // 100
    for mode, strategy in MODES.items():
        options = remat.SolveOptions(strategy=strategy, host=host, time_limit_s=LIMITS_S[mode], threads=1)
        try:
            solved = remat.solve(graph, budget, options)
        except (Infeasible, LimitReached):
            row[mode] = None
            continue
        row[mode] = 100 * solved.report.overhead
        if mode == "both":
            row["bound"] = 100 * (solved.plan.claim.lower_bound / graph.total_cost - 1)
            row["gap"] = 100 * solved.report.gap
            row["seconds"] = solved.wall_s
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a table in Markdown."""
    heads = ["graph", "nodes", "budget", "GB/s", *MODES, "bound", "gap", "seconds"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        shown = [f"{row[key]:.3f}%" if row.get(key) is not None else "no plan" for key in (*MODES, "bound", "gap")]
        seconds = f"{row['seconds']:.0f}" if "seconds" in row else ""
        first = [row["graph"], str(row["nodes"]), f"{row['budget']}%", str(row["bandwidth"])]
        lines.append(f"| {' | '.join([*first, *shown, seconds])} |")
    return "\n".join(lines) + "\n"


def main(folder: Path) -> None:
    """Run all cells, and write what there is after each."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name in GRAPHS:
        graph = captured(name)
        for bandwidth in BANDWIDTHS:
            for share in SHARES:
                rows.append(cell(graph, share, bandwidth))
                print(json.dumps(rows[-1]), flush=True)
                (folder / "offloading.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
                (folder / "offloading.md").write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "benchmarks" / "offloading" / "results")
