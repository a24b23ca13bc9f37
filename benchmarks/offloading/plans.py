"""Recompute, copy, or both.

Captured training steps with costs from data sheets, planned at shares of their no-remat peaks for a link of PCIe 4
(25 GB/s) and one of NVLink-C2C (400 GB/s). Every plan is replayed. Overheads are times of plans over the cost without
recomputation, with stalls. *Both* is `auto` with a host. *Greedy* decides value by value: it copies what waits longest
and fits the link's time, and recomputes where no copy does. The bound holds for every plan in document order with any
copies; the gap is that between bound and *both*. Where *both* has no plan, the budget is below a working set, so that
none exists. Captured graphs are kept in `build/offloading`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.measure import call, run_process, succeeded
from benchmarks.startup import remat_command

if TYPE_CHECKING:
    import remat_cli as remat
    from remat_cli.graph.model import Graph
    from remat_cli.plan.host import Host

_SOURCES = {
    "resnet50": "zoo:torch/resnet50",
    "unet": "zoo:torch/unet",
    "gpt2": "zoo:torch/gpt2",
    "llama": "torch:benchmarks/offloading/llama.py:step",
}
_DEVICES = ("a100", "h200")
_SHARES = (20, 40, 60, 80)
_BANDWIDTHS = (25, 400)
_RECOMPUTE, _COPY, _BOTH = "recompute", "copy", "both"
_LIMITS_S = {_RECOMPUTE: 10.0, _COPY: 6.0, _BOTH: 40.0}
_STRATEGIES = {_RECOMPUTE: "auto", _COPY: "offload{recompute=false}", _BOTH: "auto"}
_MOST_S = 600.0
"""Seconds after which the process of one cell is killed. Untuned."""

TABLES = (
    Table(
        "plans",
        "",
        (
            Column("graph", "graph"),
            Column("nodes", "nodes", "count"),
            Column("device", "device"),
            *columns("number", budget="budget, %", bandwidth="GB/s"),
            Column(_RECOMPUTE, "recompute, %", "number"),
            Column(_COPY, "copy, %", "number"),
            Column(_BOTH, "both, %", "number"),
            *columns("number", bound="bound, %", gap="gap, %", greedy="greedy, %", wall_s="seconds"),
        ),
        f"At most {_LIMITS_S[_RECOMPUTE]:g} s for recomputation, {_LIMITS_S[_COPY]:g} s for copies and "
        f"{_LIMITS_S[_BOTH]:g} s for both, one thread. Empty: no plan.",
        named_by=("graph", "device", "budget", "bandwidth"),
    ),
)


def run(session: Session) -> list[Row]:
    folder = session.folder if session.quick else Path("build/offloading")
    shares, names, bandwidths = (
        (_SHARES[2:3], ("unet",), _BANDWIDTHS[:1]) if session.quick else (_SHARES, _SOURCES, _BANDWIDTHS)
    )
    cells = [
        Cell(f"{name} on {device} at {share}%", partial(_rows, name, device, share, bandwidths, folder, session.quick))
        for name in names
        for device in _DEVICES[: session.times(2)]
        for share in shares
    ]
    return rows_of(session, cells)


def _rows(name: str, device: str, share: int, bandwidths: tuple[int, ...], folder: Path, quick: bool) -> list[Row]:
    """The rows of one graph and budget."""
    path = captured(name, device, folder, small=quick)
    limits = {mode: 1.0 if quick else limit_s for mode, limit_s in _LIMITS_S.items()}
    asked = {"path": str(path), "share": share, "bandwidths": list(bandwidths), "limits_s": limits}
    called = call("benchmarks.offloading.plans:planned_rows", limit_s=_MOST_S, **asked)
    case: Row = {"graph": name, "device": device, "budget": share}
    found = called.values or [{"bandwidth": bandwidth} for bandwidth in bandwidths]
    return [TABLES[0].row(case, values) for values in found]


def captured(name: str, device: str, folder: Path, *, small: bool) -> Path:
    """The file of a training step as PyTorch runs it, with the costs of a data sheet; made if it is not there."""
    path = (folder / f"{name}-{device}.json").resolve()
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        sizes = ",batch=1,resolution=64,depth=2,width=8" if small else ""
        source = [f"{_SOURCES[name]}{{cost=roofline:{device}{sizes}}}"]
        if not _SOURCES[name].startswith("zoo:"):
            source = [_SOURCES[name], "--cost", f"roofline:{device}"]
        succeeded(run_process([remat_command(), "export", *source, "-o", str(path)]), f"exporting {name}")
    return path


def planned_rows(path: str, share: int, bandwidths: list[int], limits_s: dict[str, float]) -> list[Row]:
    """Overheads in percent for each bandwidth, None for no plan."""
    from benchmarks.offloading.greedy import greedy_time
    from remat_cli.graph.analysis import no_remat_peak
    from remat_cli.graph.io import load_graph
    from remat_cli.plan.host import Host

    graph = load_graph(path)
    budget = no_remat_peak(graph) * share // 100
    alone = _planned(graph, budget, _RECOMPUTE, None, limits_s)
    rows: list[Row] = []
    for bandwidth in bandwidths:
        host = Host(bandwidth * 1e9, bandwidth * 1e9)
        copy, both = (_planned(graph, budget, mode, host, limits_s) for mode in (_COPY, _BOTH))
        rows.append(
            {
                "nodes": len(graph.nodes),
                "bandwidth": bandwidth,
                _RECOMPUTE: _over(graph, alone and alone.plan.claim.cost),
                _COPY: _over(graph, copy and copy.plan.claim.cost),
                _BOTH: _over(graph, both and both.plan.claim.cost),
                "bound": _over(graph, both and both.plan.claim.lower_bound),
                "gap": both and round(100 * both.report.gap, 2),
                "greedy": _over(graph, greedy_time(graph, budget, host)),
                "wall_s": both and round(both.wall_s),
            }
        )
    return rows


def _planned(
    graph: Graph, budget_bytes: int, mode: str, host: Host | None, limits_s: dict[str, float]
) -> remat.Solved | None:
    """The plan of one mode; None for none."""
    import remat_cli as remat

    options = remat.SolveOptions(strategy=_STRATEGIES[mode], host=host, time_limit_s=limits_s[mode], threads=1)
    try:
        return remat.solve(graph, budget_bytes, options)
    except (remat.Infeasible, remat.LimitReached):
        return None


def _over(graph: Graph, time: Any) -> float | None:
    """The overhead of a time in percent; rounding has no sign."""
    return None if time is None else round(100 * (time / graph.total_cost - 1), 2) + 0.0
