"""``python -m benchmarks.offloading FOLDER [GRAPH DEVICE]...``: plans that recompute, copy, do both, and greedy ones.

The graphs are captured training steps with the costs of data sheets, planned at shares of their no-remat peaks for a
link of PCIe 4 (25 GB/s) and one of NVLink-C2C (400 GB/s). Every plan is replayed. The overhead is the time of the plan
over the cost without recomputation, stalls included. The bound holds for every plan in document order with any copies.
Captured graphs are kept in FOLDER, rows in ``results/``; without pairs, all are measured anew.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import remat_cli as remat
from benchmarks.machine import ROOT, machine, versions
from benchmarks.measure import run_process, succeeded
from benchmarks.offloading.greedy import greedy_time
from benchmarks.startup import remat_command
from remat_cli.errors import Infeasible, LimitReached
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.io import load_graph
from remat_cli.graph.model import Graph
from remat_cli.plan.host import Host

SOURCES = {
    "resnet50": "zoo:torch/resnet50",
    "unet": "zoo:torch/unet",
    "gpt2": "zoo:torch/gpt2",
    "llama": "torch:benchmarks/offloading/llama.py:step",
}
DEVICES = ("h200", "a100")
SHARES = (20, 40, 60, 80)
BANDWIDTHS = (25, 400)
RECOMPUTE, COPY, BOTH = "recompute", "copy", "both"
LIMITS_S = {RECOMPUTE: 10.0, COPY: 6.0, BOTH: 40.0}
STRATEGIES = {RECOMPUTE: "auto", COPY: "offload{recompute=false}", BOTH: "auto"}
HEADS = ("graph", "device", "budget", "GB/s", "recompute", "copy", "both", "bound", "gap", "greedy", "seconds")
RESULTS = ROOT / "benchmarks" / "offloading" / "results"


def captured(name: str, device: str, folder: Path) -> Graph:
    """A training step as PyTorch runs it, with the costs of a data sheet; from ``folder`` if it is there."""
    path = folder / f"{name}-{device}.json"
    if not path.exists():
        command = [remat_command(), "export", SOURCES[name], "--cost", f"roofline:{device}", "-o", str(path)]
        if SOURCES[name].startswith("zoo:"):
            command[2:5] = [f"{SOURCES[name]}{{cost=roofline:{device}}}"]
        succeeded(run_process(command), f"exporting {name}")
    return load_graph(str(path))


def planned(graph: Graph, budget_bytes: int, mode: str, host: Host | None) -> remat.Solved | None:
    """The plan of one mode; None for none."""
    options = remat.SolveOptions(strategy=STRATEGIES[mode], host=host, time_limit_s=LIMITS_S[mode], threads=1)
    try:
        return remat.solve(graph, budget_bytes, options)
    except (Infeasible, LimitReached):
        return None


def over(graph: Graph, time: float | None) -> float | None:
    """The overhead of a time in percent."""
    return None if time is None else 100 * (time / graph.total_cost - 1)


def cells(name: str, device: str, folder: Path) -> list[dict[str, Any]]:
    """The rows of one graph with the costs of one device: overheads in percent, None for no plan."""
    graph, rows = captured(name, device, folder), []
    for share in SHARES:
        budget = no_remat_peak(graph) * share // 100
        alone = planned(graph, budget, RECOMPUTE, None)
        for bandwidth in BANDWIDTHS:
            host = Host(bandwidth * 1e9, bandwidth * 1e9)
            copy, both = planned(graph, budget, COPY, host), planned(graph, budget, BOTH, host)
            rows.append(
                {
                    "graph": name,
                    "nodes": len(graph.nodes),
                    "device": device,
                    "budget": share,
                    "bandwidth": bandwidth,
                    RECOMPUTE: over(graph, alone and alone.plan.claim.cost),
                    COPY: over(graph, copy and copy.plan.claim.cost),
                    BOTH: over(graph, both and both.plan.claim.cost),
                    "bound": over(graph, both and both.plan.claim.lower_bound),
                    "gap": both and 100 * both.report.gap,
                    "greedy": over(graph, greedy_time(graph, budget, host)),
                    "seconds": both and both.wall_s,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


PAGE = """# Recompute, copy, or both

Made by `python -m benchmarks.offloading FOLDER`; do not edit. Captured training steps with costs from data sheets, at
shares of their no-remat peaks. Overheads are times of plans over the cost without recomputation, with stalls. *Both*
is `auto` with a host. *Greedy* decides value by value: it copies what waits longest and fits the link's time, and
recomputes where no copy does. The bound holds for every plan in document order with any copies; the gap is that between
bound and *both*. Where *both* has no plan, the budget is below a working set, so that none exists.

"""


def percent(value: float) -> str:
    """An overhead; rounding has no sign."""
    return f"{round(value, 2) + 0.0:.2f}%"


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a table in Markdown."""
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    for row in rows:
        shown = [percent(row[key]) if row[key] is not None else "no plan" for key in HEADS[4:10]]
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.0f}"
        first = [f"{row['graph']}, {row['nodes']} nodes", row["device"], f"{row['budget']}%", str(row["bandwidth"])]
        lines.append(f"| {' | '.join([*first, *shown, seconds])} |")
    return "\n".join(lines) + "\n"


def main(folder: Path, arguments: list[str]) -> None:
    """Measure the pairs, and keep their rows beside those of the others."""
    pairs = list(zip(arguments[::2], arguments[1::2], strict=True)) if arguments else list(product(SOURCES, DEVICES))
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = RESULTS / "offloading.json"
    for name, device in pairs:
        old = json.loads(kept.read_text(encoding="utf-8"))["rows"] if kept.exists() else []
        rows = [row for row in old if (row["graph"], row["device"]) != (name, device)] + cells(name, device, folder)
        rows.sort(key=lambda row: (list(SOURCES).index(row["graph"]), row["device"], row["bandwidth"], row["budget"]))
        document = {"machine": machine(), "versions": versions(), "limits_s": LIMITS_S, "rows": rows}
        kept.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        (RESULTS / "offloading.md").write_text(PAGE + table(rows), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
