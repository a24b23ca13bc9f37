"""Plan documents to plans and back.

A document that is not a plan (an unknown node, a missing field) is an input error. Faults of a plan (wrong sizes, wrong
numbers of registers, reads of freed values) are findings of the replay instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from remat_cli.graph.document import Document, Format, read_document, validate
from remat_cli.graph.io import (
    document_sha256,
    document_text,
    dump_document,
    graph_from_document,
    graph_sha256,
    graph_to_document,
)
from remat_cli.graph.model import Graph
from remat_cli.graph.quoting import quote
from remat_cli.graph.reader import Fields, plain_number
from remat_cli.plan.model import Allocate, Claim, ClaimStatus, Compute, Deallocate, PeakClaim, Plan, Scope, Statement

SCHEMA = "remat-plan/1"


def load_plan(path: str) -> tuple[Plan, Document]:
    """The plan in a file (``-`` for standard input), and the document, which locates places in the file.

    Raises:
        InputError: If the file does not contain a plan.
    """
    document = read_document(path)
    return plan_from_document(document), document


def plan_from_document(document: Document) -> Plan:
    """The plan that a document states.

    Raises:
        InputError: With all problems of its graph, or, if there are none, with all others.
    """
    validate(document, "plan")
    graph = graph_from_document(document, "/graph")
    data = document.data
    fields = Fields(document)
    digest = graph_sha256(graph)
    if data["graph_sha256"].lower() != digest:
        fields.report(
            "/graph_sha256",
            f"the graph in this plan was changed after the plan was made: its digest is {digest}",
            "solve the changed graph again",
        )
    statements = _statements(fields, graph, data["statements"])
    fields.finish()
    claim = data["claim"]
    return Plan(
        graph=graph,
        statements=statements,
        budget_bytes=None if data["budget"] is None else int(data["budget"]),
        claim=Claim(
            status=ClaimStatus(claim["status"]),
            cost=float(claim["cost"]) + 0.0,  # turns -0.0 into 0.0
            lower_bound=float(claim["lower_bound"]) + 0.0,
            scope=Scope(claim["scope"]),
            peak=_peak_claim(claim.get("peak")),
            stated_gap=float(claim["gap"]),
        ),
        strategy=data["strategy"],
        strategy_options=data.get("strategy_options", {}),
        solver=data.get("solver"),
        solver_version=data.get("solver_version"),
        provenance=data.get("provenance", {}),
        run=data.get("run", {}),
    )


def plan_to_document(plan: Plan) -> dict[str, Any]:
    """The canonical document of ``plan``. Facts that differ from run to run are only under ``run``."""
    claim, graph = plan.claim, graph_to_document(plan.graph)
    return {
        "schema": SCHEMA,
        "graph": graph,
        "graph_sha256": document_sha256(graph),
        "budget": plan.budget_bytes,
        "strategy": plan.strategy,
        "strategy_options": dict(plan.strategy_options),
        "solver": plan.solver,
        "solver_version": plan.solver_version,
        "claim": {
            "status": claim.status.value,
            "cost": plain_number(claim.cost),
            "lower_bound": plain_number(claim.lower_bound),
            "gap": plain_number(claim.gap),
            "scope": claim.scope.value,
            **peak_claim_to_document(claim.peak),
        },
        "statements": [_statement_to_document(plan.graph, statement) for statement in plan.statements],
        "provenance": dict(plan.provenance),
        "run": dict(plan.run),
    }


def dump_plan(plan: Plan, format: Format = "json") -> str:
    """The text of :func:`plan_to_document`; JSON is made without all statements as objects in memory at once."""
    if not plan.statements or format != "json":
        return document_text(plan_to_document(plan), format)
    written = (_statement_to_document(plan.graph, statement) for statement in plan.statements)
    return dump_document({**plan_to_document(replace(plan, statements=())), "statements": written})


def peak_claim_to_document(claim: PeakClaim | None) -> dict[str, Any]:
    """The field ``peak`` of a claim in a document; no field if there is no claim on the peak."""
    if claim is None:
        return {}
    return {"peak": {"lower_bound": claim.lower_bound_bytes, "scope": claim.scope.value}}


def _peak_claim(data: Mapping[str, Any] | None) -> PeakClaim | None:
    return None if data is None else PeakClaim(int(data["lower_bound"]), Scope(data["scope"]))


def _statement_to_document(graph: Graph, statement: Statement) -> dict[str, Any]:
    if isinstance(statement, Allocate):
        size = graph.size[statement.value] if statement.size_bytes is None else statement.size_bytes
        return {"allocate": statement.register, "value": graph.value_name(statement.value), "bytes": size}
    if isinstance(statement, Compute):
        return {"compute": graph.nodes[statement.node].id, "registers": list(statement.registers)}
    return {"deallocate": statement.register}


def _statements(fields: Fields, graph: Graph, entries: list[dict[str, Any]]) -> tuple[Statement, ...]:
    """The statements; names that are not in the graph are reported."""
    nodes = {node.id: i for i, node in enumerate(graph.nodes)}
    values = {graph.value_name(value): value for value in range(len(graph.size))}
    values |= {node.id: graph.first_value[i] for i, node in enumerate(graph.nodes) if node.outputs}
    counts = {node.id: len(node.outputs) for node in graph.nodes}
    statements: list[Statement] = []
    for k, entry in enumerate(entries):
        if "compute" in entry:
            node = nodes.get(entry["compute"])
            if node is None:
                closest = fields.closest(entry["compute"], nodes, "compute names a node of the graph by its id")
                fields.report(f"/statements/{k}/compute", f"there is no node {quote(entry['compute'])}", closest)
            else:
                statements.append(Compute(node, tuple(entry["registers"])))
        elif "allocate" in entry:
            value = values.get(entry["value"])
            if value is None:
                fields.report_value(f"/statements/{k}/value", entry["value"], lambda: counts)
            else:
                statements.append(_allocate(graph, entry, value))
        else:
            statements.append(Deallocate(entry["deallocate"]))
    return tuple(statements)


def _allocate(graph: Graph, entry: Mapping[str, Any], value: int) -> Allocate:
    size = int(entry["bytes"])
    return Allocate(entry["allocate"], value, None if size == graph.size[value] else size)
