"""The regions of a graph document that may run in parts, from documents and back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from remat_cli.graph.document import join
from remat_cli.graph.model import Graph, NodeQueue, Operation, Region
from remat_cli.graph.quoting import quote
from remat_cli.graph.reader import MAX_BYTES, MAX_COST, Fields, plain_number
from remat_cli.graph.splitting import waits_in_a_circle


def with_regions(fields: Fields, graph: Graph, data: Sequence[Mapping[str, Any]], pointer: str) -> Graph:
    """``graph`` with the regions of its document, which is at ``pointer``; what is wrong with them is reported."""
    number = {node.id: i for i, node in enumerate(graph.nodes)}
    taken: dict[int, str] = {}
    names: set[str] = set()
    regions = []
    for k, entry in enumerate(data):
        place = join(pointer, "splits", k)
        _report_repeated(fields, names, entry["id"], join(place, "id"), "a region")
        parts = tuple(int(count) for count in entry["parts"])
        if any(more <= less for less, more in pairwise(parts)):
            fields.report(join(place, "parts"), "is not ascending", "write each number of parts once, the least first")
        operations = []
        for j, item in enumerate(entry["operations"]):
            at = join(place, "operations", j)
            if item["id"] in number:
                fields.report(
                    join(at, "id"), f"is the id of a node: {quote(item['id'])}", "take an id that no node has"
                )
            _report_repeated(fields, names, item["id"], join(at, "id"), "an operation")
            operation = _operation(fields, graph, number, item, len(parts), at)
            for i in operation.nodes:
                if (other := taken.setdefault(i, item["id"])) != item["id"]:
                    message = f"{quote(graph.nodes[i].id)} is a node of {quote(other)}, too"
                    fields.report(join(at, "nodes"), message, "give each node to one operation")
            operations.append(operation)
        regions.append(Region(entry["id"], parts, tuple(operations), entry.get("along", "")))
    if fields.problems:
        return graph
    graph = replace(graph, splits=tuple(regions))
    if waits_in_a_circle(graph):
        message = "operations in parts would wait for each other"
        hint = "a node that reads from an operation and is read by it has to be part of it"
        fields.report(join(pointer, "splits"), message, hint)
    return graph


def regions_to_document(graph: Graph) -> list[dict[str, Any]]:
    """The field ``splits`` of the canonical document of ``graph``."""
    return [
        {
            "id": region.id,
            **({"along": region.along} if region.along else {}),
            "parts": list(region.parts),
            "operations": [
                {
                    "id": operation.id,
                    "nodes": [graph.nodes[i].id for i in operation.nodes],
                    "repeats": [graph.nodes[i].id for i in operation.repeats],
                    **({"ahead_of": [graph.nodes[i].id for i in operation.ahead_of]} if operation.ahead_of else {}),
                    "cost": [plain_number(cost) for cost in operation.costs],
                    "workspace": list(operation.workspaces),
                }
                for operation in region.operations
            ],
        }
        for region in graph.splits
    ]


def _operation(
    fields: Fields, graph: Graph, number: Mapping[str, int], item: Mapping[str, Any], count: int, at: str
) -> Operation:
    for name in ("cost", "workspace"):
        if len(item[name]) != count:
            message = f"has {len(item[name])} entries, and the region offers {count} numbers of parts"
            fields.report(join(at, name), message, "give one for each number of parts")
    nodes = tuple(sorted({*_nodes(fields, number, item["nodes"], join(at, "nodes"))}))
    repeats = tuple(sorted({*_nodes(fields, number, item.get("repeats", []), join(at, "repeats"))}))
    for i in (*nodes, *repeats):
        if graph.nodes[i].queue is not NodeQueue.COMPUTE:
            message = f"{quote(graph.nodes[i].id)} runs in the communication queue"
            fields.report(at, message, "leave it out: only computations run in parts")
    for i in repeats:
        if not graph.nodes[i].recompute:
            message = f"{quote(graph.nodes[i].id)} may be computed only once"
            fields.report(join(at, "repeats"), message, "leave it out: the operation then reads its values")
        if i in nodes:
            message = f"{quote(graph.nodes[i].id)} is one of its own nodes"
            fields.report(join(at, "repeats"), message, "leave it out")
    ahead_of = tuple(sorted({*_nodes(fields, number, item.get("ahead_of", []), join(at, "ahead_of"))}))
    inside = {*nodes, *repeats}
    for i in ahead_of:
        if i in inside or not any(inside.intersection(graph.readers[v]) for v in graph.values_of(i)):
            message = f"{quote(graph.nodes[i].id)} is not a node from which the operation reads"
            fields.report(join(at, "ahead_of"), message, "leave it out")
    costs = tuple(float(cost) + 0.0 for cost in item["cost"])
    if sum(costs) > MAX_COST:
        fields.report(join(at, "cost"), f"all costs together are more than {MAX_COST:g}", "use a larger cost_unit")
    workspaces = tuple(fields.size(size, join(at, "workspace", k)) for k, size in enumerate(item["workspace"]))
    if graph.fixed_memory + sum(graph.size) + max(workspaces, default=0) > MAX_BYTES:
        fields.report(
            join(at, "workspace"),
            "all sizes together are more than 2^63 - 1 bytes",
            "use sizes that a machine can have",
        )
    return Operation(item["id"], nodes, repeats, costs, workspaces, ahead_of)


def _nodes(fields: Fields, number: Mapping[str, int], names: Sequence[str], pointer: str) -> Iterator[int]:
    for k, name in enumerate(names):
        if name in number:
            yield number[name]
        else:
            hint = fields.closest(name, number, "write the id of a node")
            fields.report(join(pointer, k), f"there is no node {quote(name)}", hint)


def _report_repeated(fields: Fields, names: set[str], name: str, pointer: str, what: str) -> None:
    if f"{what} {name}" in names:
        fields.report(pointer, f"the id {quote(name)} is already used", f"give {what} an id of its own")
    names.add(f"{what} {name}")
