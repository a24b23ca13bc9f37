"""A plan as a trace of events in Chrome's format, which Perfetto, ``chrome://tracing`` and Speedscope open.

Every computation is a complete event (``"ph": "X"``), and memory in use is a counter (``"ph": "C"``). Times are in
microseconds, as the format asks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from remat_cli.plan.check import Report
from remat_cli.plan.model import Compute, Plan
from remat_cli.version import __version__

_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
"""The cost of a second, in units that are times."""
_LEAST_US = 1e-3
"""A nanosecond, the resolution of viewers: a computation without cost takes this long, so that it can be seen."""
_PROCESS = {"pid": 1, "tid": 1}


def plan_trace(report: Report, plan: Plan) -> str:
    """The trace of ``plan`` as JSON, one event in a line.

    A computation lasts as long as it costs. If costs are not times, the cost of computing every node once is shown as
    one second, so an overhead of 5% is 0.05 s more; ``otherData`` says which cost a second stands for.

    Args:
        report: The report of the replay.
        plan: The plan, valid or not.
    """
    graph = report.graph
    second = _SECOND.get(graph.cost_unit) or graph.total_cost or 1.0
    told = {
        "cost unit": graph.cost_unit,
        "cost of a second": second,
        "budget in bytes": report.budget_bytes,
        "made by": report.strategy,
        "remat": __version__,
    }
    lines = [json.dumps(event, sort_keys=True) for event in _events(report, plan, second)]
    end = f'"displayTimeUnit": "ms",\n"otherData": {json.dumps(told, sort_keys=True)}'
    return '{"traceEvents": [\n' + ",\n".join(lines) + f"\n],\n{end}}}\n"


def _events(report: Report, plan: Plan, second: float) -> Iterator[dict[str, Any]]:
    graph = report.graph
    for name, text in (("process_name", graph.name or "plan"), ("thread_name", "computations")):
        yield {"ph": "M", "name": name, "args": {"name": text}, **_PROCESS}
    now = 0.0
    times = [0] * len(graph.nodes)
    for at, (statement, used) in enumerate(zip(plan.statements, report.replay.profile, strict=True)):
        yield _memory(now, used)
        if isinstance(statement, Compute):
            node = graph.nodes[statement.node]
            times[statement.node] += 1
            kind = "recomputed" if times[statement.node] > 1 else node.phase.value if node.phase else "computed"
            told = {"cost": node.cost, "op": node.op, "statement": at, "time": times[statement.node]}
            lasts = max(_LEAST_US, node.cost / second * 1e6)
            yield {"ph": "X", "name": node.id, "cat": kind, "ts": now, "dur": lasts, "args": told, **_PROCESS}
            now += lasts
            yield _memory(now, used - node.workspace)


def _memory(now: float, used: int) -> dict[str, Any]:
    return {"ph": "C", "name": "memory in use", "ts": now, "args": {"bytes": used}, **_PROCESS}
