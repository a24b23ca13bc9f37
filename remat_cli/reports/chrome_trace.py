"""A plan as a trace of events in Chrome's format, which Perfetto, ``chrome://tracing`` and Speedscope open.

Every computation is a complete event (``"ph": "X"``), and memory in use is a counter (``"ph": "C"``). Times are in
microseconds, as the format asks. A plan whose queues overlap has a thread for each: computations, collectives,
and copies each way.
"""

import json
from collections.abc import Iterator
from typing import Any

from remat_cli.graph.model import Node
from remat_cli.plan.check import Report
from remat_cli.plan.model import Allocate, Compute, Offload, Plan, Prefetch
from remat_cli.plan.queues import Queue, Timing
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
    """
    graph = report.graph
    second = _SECOND.get(graph.cost_unit) or graph.no_remat_cost or 1.0
    facts = {
        "cost unit": graph.cost_unit,
        "cost of a second": second,
        "budget in bytes": report.budget_bytes,
        "made by": report.strategy,
        "remat": __version__,
    }
    lines = [json.dumps(event, sort_keys=True) for event in _events(report, plan, second)]
    end = f'"displayTimeUnit": "ms",\n"otherData": {json.dumps(facts, sort_keys=True)}'
    return '{"traceEvents": [\n' + ",\n".join(lines) + f"\n],\n{end}}}\n"


def _events(report: Report, plan: Plan, second: float) -> Iterator[dict[str, Any]]:
    graph = report.graph
    if report.replay.timing is not None:
        yield from _timed_events(report, plan, report.replay.timing, second)
        return
    for name, text in (("process_name", graph.name or "plan"), ("thread_name", "computations")):
        yield {"ph": "M", "name": name, "args": {"name": text}, **_PROCESS}
    now = 0.0
    times = [0] * len(graph.nodes)
    for at, (statement, used) in enumerate(zip(plan.statements, report.replay.profile, strict=True)):
        yield _memory(now, used)
        if isinstance(statement, Compute):
            node = graph.nodes[statement.node]
            times[statement.node] += 1
            duration = max(_LEAST_US, node.cost / second * 1e6)
            yield {**_computation(node, at, times[statement.node]), "ts": now, "dur": duration, **_PROCESS}
            now += duration
            yield _memory(now, used - node.workspace)


def _timed_events(report: Report, plan: Plan, timing: Timing, second: float) -> Iterator[dict[str, Any]]:
    """The events of a plan with several queues: a thread for each, and memory as the compute queue uses it."""
    graph = report.graph
    threads = {queue: {"pid": 1, "tid": number} for number, queue in enumerate(report.queues, 1)}
    yield {"ph": "M", "name": "process_name", "args": {"name": graph.name or "plan"}, **_PROCESS}
    for queue, thread in threads.items():
        yield {"ph": "M", "name": "thread_name", "args": {"name": queue.value}, **thread}
    value_of = {s.register: s.value for s in plan.statements if isinstance(s, Allocate)}
    times = [0] * len(graph.nodes)
    for span in timing.spans:
        statement, start = plan.statements[span.statement], span.start / second * 1e6
        if isinstance(statement, Compute):
            times[statement.node] += 1
            event = _computation(graph.nodes[statement.node], span.statement, times[statement.node])
            if span.queue is Queue.COMMUNICATION:
                event["cat"] = span.queue.value
            yield _memory(start, report.replay.profile[span.statement])
            if report.replay.host_profile:
                used = {"bytes": report.replay.host_profile[span.statement]}
                yield {"ph": "C", "name": "host memory in use", "ts": start, "args": used, **_PROCESS}
        elif isinstance(statement, Offload | Prefetch):
            value = value_of[statement.register]
            event = {"ph": "X", "name": graph.value_name(value), "cat": span.queue.value}
            event["args"] = {"statement": span.statement, "bytes": graph.size[value]}
        else:
            raise AssertionError(f"statement {span.statement} takes no time")
        duration = max(_LEAST_US, (span.end - span.start) / second * 1e6)
        yield {**event, "ts": start, "dur": duration, **threads[span.queue]}


def _computation(node: Node, statement: int, time: int) -> dict[str, Any]:
    """The ``time``-th computation of a node, without when it begins and how long it takes."""
    kind = "recomputed" if time > 1 else node.phase.value if node.phase else "computed"
    arguments = {"cost": node.cost, "op": node.op, "statement": statement, "time": time}
    return {"ph": "X", "name": node.id, "cat": kind, "args": arguments}


def _memory(now: float, used: int) -> dict[str, Any]:
    return {"ph": "C", "name": "memory in use", "ts": now, "args": {"bytes": used}, **_PROCESS}
