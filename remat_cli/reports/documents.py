"""The report on a plan as a document, ``remat-report/1`` (schemas/report-v1.json), and what all documents share.

The same report gives the same bytes, for pipelines.
"""

import json
import math
from typing import Any

from remat_cli.graph.model import Graph
from remat_cli.plan.check import Report
from remat_cli.plan.io import host_to_document, peak_claim_to_document

SHOWN_RESIDENTS = 100
"""Values at the peak that are listed; ``peak_value_count`` is their number."""


def report_document(report: Report) -> dict[str, Any]:
    """The report as JSON values. ``claim`` comes from the strategy; everything else comes from the replay.

    ``lower_bound`` and ``gap`` repeat the claim's bound (null when it has none) against the replayed cost.
    """
    graph, claim, replay = report.graph, report.claim, report.replay
    bound = claim.lower_bound if claim.lower_bound > 0 else None
    return {
        "schema": "remat-report/1",
        "valid": report.valid,
        "within_budget": None if report.budget_bytes is None else report.within_budget,
        "budget": report.budget_bytes,
        "plan_budget": report.made_for_bytes,
        "budget_asked": report.budget_text or None,
        "peak_memory": replay.peak_bytes,
        "peak_statement": replay.peak_statement,
        "peak_node": report.peak_node,
        "peak_values": [{"value": r.value, "bytes": r.size_bytes} for r in report.peak_values[:SHOWN_RESIDENTS]],
        "peak_value_count": len(report.peak_values),
        "peak_workspace": replay.workspace_bytes,
        "fixed_memory": graph.fixed_memory,
        "cost": replay.cost,
        "cost_unit": graph.cost_unit,
        **_queues(report),
        "no_remat_cost": graph.no_remat_cost,
        **({} if graph.origin is None else {"splits": dict(graph.origin.parts)}),
        "no_remat_peak": report.no_remat_peak_bytes,
        "overhead": report.overhead if graph.no_remat_cost > 0 else None,
        "recomputed": [{"node": r.node, "times": r.times, "cost": r.extra_cost} for r in report.recomputed],
        "lower_bound": bound,
        "gap": None if bound is None else report.gap,
        "claim": {
            "status": claim.status.value,
            "cost": claim.cost,
            "lower_bound": claim.lower_bound,
            "gap": claim.gap,
            "scope": claim.scope.value,
            **peak_claim_to_document(claim.peak),
            **({} if report.host is None else {"copies": claim.copies.value}),
            **({"splits": "any" if claim.any_split else "these"} if graph.whole.splits else {}),
        },
        "graph": graph_document(graph),
        "strategy": report.strategy,
        "solver": report.solver,
        "statements": len(replay.profile),
        "findings": [
            {"code": f.code, "severity": f.severity.value, "message": f.message, "statement": f.statement}
            for f in report.findings
        ],
    }


def _queues(report: Report) -> dict[str, Any]:
    """The host, and when the queues work; nothing if only computations take time."""
    times, copying = report.replay.timing, {}
    if times is None:
        return {}
    if report.host is not None:
        copying = {"host": host_to_document(report.host), "host_peak_memory": report.replay.host_peak_bytes}
    path = times.critical
    return {
        **copying,
        "time": times.time,
        "stalls": [{"statement": s.statement, "time": s.duration, "copy": s.copy} for s in times.stalls],
        "queues": {
            queue.value: {
                "spans": sum(span.queue is queue for span in times.spans),
                "busy": times.busy(queue),
                "critical": times.on_path(queue),
            }
            for queue in report.queues
        },
        "critical_path": [times.spans[k].statement for k in path],
    }


def graph_document(graph: Graph) -> dict[str, Any]:
    """The name and the size of a graph, as most documents of reports state them."""
    return {"name": graph.name, "nodes": len(graph.nodes), "values": len(graph.size), "edges": graph.edges}


def rate_limit(bytes_per_s: float) -> float | None:
    """A bandwidth for JSON and CSV, which have no infinity: None for no limit."""
    return None if math.isinf(bytes_per_s) else bytes_per_s


def document_json(document: dict[str, Any]) -> str:
    """``document`` as text that depends only on its content.

    Raises:
        ValueError: If it holds a number that JSON cannot express.
    """
    return json.dumps(document, sort_keys=True, indent=2, allow_nan=False) + "\n"
