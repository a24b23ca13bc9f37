"""Graph documents to graphs and back: their meaning, their canonical form, and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from remat_cli.graph.document import Document, Format, join, read_document, validate
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.graph.nodelink import NodeLinkKeys, graph_from_node_link, is_node_link
from remat_cli.graph.quoting import quote
from remat_cli.graph.reader import MAX_BYTES, MAX_COST, Fields, plain_number, report_later_inputs

SCHEMA = "remat-graph/1"
DEFAULT_NAME = "graph"
DEFAULT_COST_UNIT = "unit"
_READABLE = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False)
_COMPACT = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def load_graph(path: str, keys: NodeLinkKeys | None = None) -> Graph:
    """The graph in a file (``-`` for standard input): a graph document, or node-link JSON of networkx.

    Args:
        path: The file.
        keys: Names of the attributes of node-link JSON; None for the default names.

    Raises:
        InputError: If the file does not contain a valid graph.
    """
    document = read_document(path)
    if is_node_link(document):
        return graph_from_node_link(document, keys or NodeLinkKeys())
    return graph_from_document(document)


def graph_from_document(document: Document, pointer: str = "") -> Graph:
    """The graph that a document states.

    Args:
        document: A graph document, or one with a graph document inside.
        pointer: Where the graph is: empty, or the pointer of a top-level field (``/graph``).

    Raises:
        InputError: With all violations of the schema, or, if there are none, of the rules that it cannot express.
    """
    validate(document, "graph", pointer)
    data = document.data[pointer[1:]] if pointer else document.data
    fields = Fields(document)
    nodes: list[dict[str, Any]] = data["nodes"]
    sizes = [_sizes(fields, node, join(pointer, "nodes", i)) for i, node in enumerate(nodes)]
    workspaces = [_size(fields, node, "workspace", join(pointer, "nodes", i)) for i, node in enumerate(nodes)]
    fixed_memory = _size(fields, data, "fixed_memory", pointer)
    names = _value_names(fields, nodes, sizes, pointer)
    inputs = _all_inputs(fields, nodes, sizes, names, pointer)
    outputs = _outputs(fields, data, names, sizes, pointer)
    _check_sums(fields, nodes, sizes, workspaces, fixed_memory, pointer)
    fields.finish()
    return Graph(
        name=data.get("name", DEFAULT_NAME),
        nodes=tuple(
            Node(
                id=node["id"],
                cost=float(node["cost"]) + 0.0,  # turns -0.0 into 0.0
                inputs=inputs[i],
                outputs=sizes[i],
                workspace=workspaces[i],
                recompute=node.get("recompute", True),
                op=node.get("op"),
                phase=Phase(node["phase"]) if "phase" in node else None,
                payload=node.get("payload"),
            )
            for i, node in enumerate(nodes)
        ),
        outputs=outputs,
        cost_unit=data.get("cost_unit", DEFAULT_COST_UNIT),
        fixed_memory=fixed_memory,
        metadata=data.get("metadata"),
    )


def graph_to_document(graph: Graph) -> dict[str, Any]:
    """The canonical document of ``graph``: defaults explicit, sizes as integers, inputs as ``id:k``.

    All documents of the same graph have the same canonical form. ``payload`` and ``metadata`` are copied unchanged:
    ``1`` and ``1.0`` in them are different.
    """
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "name": graph.name,
        "cost_unit": graph.cost_unit,
        "fixed_memory": graph.fixed_memory,
        "nodes": [_node_to_document(graph, node) for node in graph.nodes],
        "outputs": [graph.value_name(value) for value in graph.outputs],
    }
    if graph.metadata is not None:
        document["metadata"] = graph.metadata
    return document


def graph_sha256(graph: Graph) -> str:
    """SHA-256, in hexadecimal, of the canonical document written as compact JSON with sorted keys."""
    return hashlib.sha256(_COMPACT.encode(graph_to_document(graph)).encode("utf-8")).hexdigest()


def dump_document(document: Mapping[str, Any]) -> str:
    """``document`` as JSON text, the same for the same data: sorted keys, one line per field, node and statement.

    Raises:
        ValueError: If it contains a number that is not finite.
    """
    return _dump(document) + "\n"


def document_text(document: Mapping[str, Any], format: Format) -> str:
    """``document`` as text in one of the formats of documents."""
    if format == "json":
        return dump_document(document)
    from remat_cli.graph.yamltext import yaml_text

    return yaml_text(document)


def _dump(document: Mapping[str, Any]) -> str:
    lines = []
    for key in sorted(document):
        value = document[key]
        if isinstance(value, Mapping) and "schema" in value:
            text = _dump(value)  # a graph inside a plan
        elif isinstance(value, Sequence) and len(value) > 0 and isinstance(value[0], Mapping):
            text = "[\n" + ",\n".join(map(_READABLE.encode, value)) + "\n]"
        else:
            text = _READABLE.encode(value)
        lines.append(f"{_READABLE.encode(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}"


def _node_to_document(graph: Graph, node: Node) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": node.id,
        "inputs": [graph.value_name(value) for value in node.inputs],
        "cost": plain_number(node.cost),
        "outputs": list(node.outputs),
        "workspace": node.workspace,
        "recompute": node.recompute,
    }
    if node.op is not None:
        document["op"] = node.op
    if node.phase is not None:
        document["phase"] = node.phase.value
    if node.payload is not None:
        document["payload"] = node.payload
    return document


def _size(fields: Fields, data: Mapping[str, Any], key: str, pointer: str) -> int:
    return fields.size(data[key], join(pointer, key)) if key in data else 0


def _sizes(fields: Fields, node: Mapping[str, Any], pointer: str) -> tuple[int, ...]:
    if "memory" in node:
        return (fields.size(node["memory"], f"{pointer}/memory"),)
    return tuple(fields.size(size, f"{pointer}/outputs/{k}") for k, size in enumerate(node["outputs"]))


def _value_names(
    fields: Fields, nodes: Sequence[Mapping[str, Any]], sizes: Sequence[tuple[int, ...]], pointer: str
) -> dict[str, int]:
    """The values by name. ``conv1`` and ``conv1:0`` both name the first value of conv1."""
    names: dict[str, int] = {}
    seen: dict[str, int] = {}
    made = 0
    for i, node in enumerate(nodes):
        node_id = node["id"]
        if node_id in seen:
            first = join(pointer, "nodes", seen[node_id], "id")
            place = fields.document.locate(first)
            where = first if place is None else f"{first} (line {place[0]})"
            message = f"the id {quote(node_id)} is already used by {where}"
            fields.report(join(pointer, "nodes", i, "id"), message, "give every node an id of its own")
        else:
            seen[node_id] = i
            if sizes[i]:
                names[node_id] = made
            names.update((f"{node_id}:{k}", made + k) for k in range(len(sizes[i])))
        made += len(sizes[i])
    return names


def _all_inputs(
    fields: Fields,
    nodes: Sequence[Mapping[str, Any]],
    sizes: Sequence[tuple[int, ...]],
    names: Mapping[str, int],
    pointer: str,
) -> list[tuple[int, ...]]:
    """The values that every node reads, each once, in the order of the document."""
    inputs: list[tuple[int, ...]] = []
    too_late: list[tuple[int, int, str]] = []  # value, reader, pointer
    counts = {node["id"]: len(of_node) for node, of_node in zip(nodes, sizes, strict=True)}
    made = 0
    for i, node in enumerate(nodes):
        values: dict[int, None] = {}
        for k, name in enumerate(node["inputs"]):
            value = names.get(name)
            if value is None:
                fields.report_value(join(pointer, "nodes", i, "inputs", k), name, counts)
                continue
            values[value] = None
            if value >= made:
                too_late.append((value, i, join(pointer, "nodes", i, "inputs", k)))
        inputs.append(tuple(values))
        made += len(sizes[i])
    if too_late:
        maker = [i for i, of_node in enumerate(sizes) for _ in of_node]
        reads = [(maker[value], i) for i, values_of_node in enumerate(inputs) for value in values_of_node]
        late = [(maker[value], reader, place) for value, reader, place in too_late]
        report_later_inputs(fields, [node["id"] for node in nodes], reads, late)
    return inputs


def _outputs(
    fields: Fields,
    data: Mapping[str, Any],
    names: Mapping[str, int],
    sizes: Sequence[tuple[int, ...]],
    pointer: str,
) -> tuple[int, ...]:
    if "outputs" not in data:
        made = sum(map(len, sizes))
        return tuple(range(made - len(sizes[-1]), made))
    outputs = set()
    counts = {node["id"]: len(of_node) for node, of_node in zip(data["nodes"], sizes, strict=True)}
    for k, name in enumerate(data["outputs"]):
        value = names.get(name)
        if value is None:
            fields.report_value(join(pointer, "outputs", k), name, counts)
        else:
            outputs.add(value)
    return tuple(sorted(outputs))


def _check_sums(
    fields: Fields,
    nodes: Sequence[Mapping[str, Any]],
    sizes: Sequence[tuple[int, ...]],
    workspaces: Sequence[int],
    fixed_memory: int,
    pointer: str,
) -> None:
    if sum(map(sum, sizes)) + sum(workspaces) + fixed_memory > MAX_BYTES:
        fields.report(join(pointer, "nodes"), "all sizes together are more than 2^63 - 1 bytes", "use smaller sizes")
    if sum(node["cost"] for node in nodes) > MAX_COST:
        fields.report(
            join(pointer, "nodes"), f"all costs together are more than {MAX_COST:g}", "use a larger cost_unit"
        )
