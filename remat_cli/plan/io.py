"""Plan documents to plans and back.

A document that is not a plan (an unknown node, a missing field) is an input error. Faults of a plan (wrong sizes, wrong
numbers of registers, reads of freed values) are findings of the replay instead.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.graph.document import Document, Format, join, read_document, validate
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
from remat_cli.graph.splitting import split
from remat_cli.plan.host import Host, seconds_in
from remat_cli.plan.model import (
    COPIES,
    Allocate,
    Claim,
    ClaimStatus,
    Compute,
    Copies,
    Deallocate,
    Offload,
    PeakClaim,
    Plan,
    Prefetch,
    Release,
    Scope,
    Statement,
)

SCHEMA = "remat-plan/1"
SCHEMA_WITH_COPIES = "remat-plan/2"
_ANY = "any"


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
    host = _host(fields, graph, data.get("host"))
    digest = graph_sha256(graph)
    graph = _split(fields, graph, data.get("splits", {}))
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
            copies=Copies(claim.get("copies", Copies.NONE)),
            any_split=claim.get("splits") == _ANY,
            stated_gap=float(claim["gap"]),
        ),
        strategy=data["strategy"],
        strategy_options=data.get("strategy_options", {}),
        solver=data.get("solver"),
        solver_version=data.get("solver_version"),
        provenance=data.get("provenance", {}),
        run=data.get("run", {}),
        host=host,
    )


def plan_to_document(plan: Plan) -> dict[str, Any]:
    """The canonical document of ``plan``. Facts that differ from run to run are only under ``run``.

    A plan without copies is a document of version 1, which says nothing of a host.
    """
    claim, graph, copies = plan.claim, graph_to_document(plan.graph.whole), plan.copies
    origin = plan.graph.origin
    return {
        "schema": SCHEMA_WITH_COPIES if copies else SCHEMA,
        **({"host": host_to_document(plan.host)} if copies else {}),
        "graph": graph,
        "graph_sha256": document_sha256(graph),
        **({} if origin is None else {"splits": dict(origin.parts)}),
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
            **({"copies": claim.copies.value} if copies else {}),
            **({"splits": _ANY} if claim.any_split else {}),
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
    # One statement stands for all: whether it is a copy decides on the version.
    first = next((s for s in plan.statements if isinstance(s, COPIES)), plan.statements[0])
    return dump_document({**plan_to_document(replace(plan, statements=(first,))), "statements": written})


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
    if isinstance(statement, Deallocate):
        return {"deallocate": statement.register}
    if isinstance(statement, Offload):
        return {"offload": statement.register, "slot": statement.slot}
    if isinstance(statement, Prefetch):
        return {"prefetch": statement.slot, "register": statement.register}
    return {"release": statement.slot}


def host_to_document(host: Host | None) -> dict[str, Any]:
    """The field ``host`` of a plan or a report; null for no limit.

    Raises:
        ValueError: If there is no host.
    """
    if host is None:
        raise ValueError("the plan copies values, and has no host")
    return {
        "bandwidth_out": None if math.isinf(host.out_bytes_per_s) else plain_number(host.out_bytes_per_s),
        "bandwidth_in": None if math.isinf(host.in_bytes_per_s) else plain_number(host.in_bytes_per_s),
        "latency": plain_number(host.latency_s),
        "memory": host.memory_bytes,
    }


def _split(fields: Fields, graph: Graph, parts: Mapping[str, int]) -> Graph:
    """The graph with those regions in parts that the plan names."""
    regions = {region.id: region.parts for region in graph.splits}
    for name, count in parts.items():
        place = join("/splits", name)
        if name not in regions:
            hint = fields.closest(name, regions, "splits names regions of the graph by their ids")
            fields.report(place, f"the graph has no region {quote(name)}", hint)
        elif count not in regions[name]:
            offers = ", ".join(map(str, regions[name]))
            fields.report(place, f"the region does not offer {count} parts", f"it offers {offers}")
    return graph if fields.problems else split(graph, parts)


def _host(fields: Fields, graph: Graph, data: Mapping[str, Any] | None) -> Host | None:
    """The host of a document; costs that are no times are reported."""
    if data is None:
        return None
    try:
        seconds_in(graph.cost_unit)
    except UsageError as error:
        fields.report("/host", error.message, error.hint)
    out, back = data["bandwidth_out"], data["bandwidth_in"]
    return Host(
        math.inf if out is None else float(out),
        math.inf if back is None else float(back),
        float(data["latency"]) + 0.0,
        None if data["memory"] is None else int(data["memory"]),
    )


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
        elif "deallocate" in entry:
            statements.append(Deallocate(entry["deallocate"]))
        elif "offload" in entry:
            statements.append(Offload(entry["offload"], entry["slot"]))
        elif "prefetch" in entry:
            statements.append(Prefetch(entry["prefetch"], entry["register"]))
        else:
            statements.append(Release(entry["release"]))
    return tuple(statements)


def _allocate(graph: Graph, entry: Mapping[str, Any], value: int) -> Allocate:
    size = int(entry["bytes"])
    return Allocate(entry["allocate"], value, None if size == graph.size[value] else size)
