"""Graph documents to graphs and back: their meaning, canonical form and digest, and what they state or leave out."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import Any

from remat_cli.graph.document import Document, Format, join, read_document, validate
from remat_cli.graph.metadata import without_lines
from remat_cli.graph.model import Graph, Node, NodeQueue, Phase
from remat_cli.graph.nodelink import NodeLinkKeys, graph_from_node_link, is_node_link
from remat_cli.graph.quoting import quote
from remat_cli.graph.reader import MAX_BYTES, MAX_COST, Fields, plain_number, report_later_inputs
from remat_cli.graph.regions import regions_to_document, with_regions
from remat_cli.printable import escaped_json
from remat_cli.units import TIME_UNITS

SCHEMA = "remat-graph/1"
DEFAULT_NAME = "graph"
DEFAULT_COST_UNIT = "unit"
_INDEX = re.compile("0|[1-9][0-9]{0,17}", re.ASCII)
_PLAIN: dict[str, Any] = {"sort_keys": True, "ensure_ascii": False, "allow_nan": False, "check_circular": False}
_READABLE = json.JSONEncoder(**_PLAIN)
_COMPACT = json.JSONEncoder(**_PLAIN, separators=(",", ":"))
_BROKEN = json.JSONEncoder(**_PLAIN, separators=(",\n", ": "))
_AT_ONCE = 1000
"""Entries of a list that are encoded together: the encoder holds some thirty small strings for each. Untuned."""


def load_graph(path: str, keys: NodeLinkKeys | None = None) -> Graph:
    """The graph in a file (``-`` for standard input): a graph document, or node-link JSON of networkx.

    Raises:
        InputError: If the file does not contain a valid graph.
    """
    document = read_document(path)
    if is_node_link(document):
        return graph_from_node_link(document, keys or NodeLinkKeys())
    return graph_from_document(document)


def graph_from_document(document: Document, pointer: str = "") -> Graph:
    """The graph that a document states.

    ``pointer`` is empty, or that of a top-level field with a graph document inside (``/graph``).

    Raises:
        InputError: With all violations of the schema, or, if there are none, of the rules that it cannot express.
    """
    validate(document, "graph", pointer)
    data = document.data[pointer[1:]] if pointer else document.data
    fields = Fields(document)
    nodes: list[dict[str, Any]] = data["nodes"]
    sizes = [_sizes(fields, node, pointer, i) for i, node in enumerate(nodes)]
    workspaces = [
        _size(fields, node, "workspace", join(pointer, "nodes", i)) if "workspace" in node else 0
        for i, node in enumerate(nodes)
    ]
    fixed_memory = _size(fields, data, "fixed_memory", pointer)
    offloads = [
        _offload(fields, node, len(sizes[i]), join(pointer, "nodes", i, "offload")) if "offload" in node else True
        for i, node in enumerate(nodes)
    ]
    names = _value_names(fields, nodes, sizes, pointer)
    inputs = _all_inputs(fields, nodes, sizes, names, pointer)
    outputs = _outputs(fields, data, names, sizes, pointer)
    _check_sums(fields, nodes, sizes, workspaces, fixed_memory, pointer)
    _check_queues(fields, data, pointer)
    fields.finish()
    graph = Graph(
        name=data.get("name", DEFAULT_NAME),
        nodes=tuple(
            Node(
                id=node["id"],
                cost=float(node["cost"]) + 0.0,  # turns -0.0 into 0.0
                inputs=inputs[i],
                outputs=sizes[i],
                workspace=workspaces[i],
                recompute=node.get("recompute", True),
                offload=offloads[i],
                op=node.get("op"),
                phase=Phase(node["phase"]) if "phase" in node else None,
                queue=NodeQueue(node["queue"]) if "queue" in node else NodeQueue.COMPUTE,
                payload=node.get("payload"),
            )
            for i, node in enumerate(nodes)
        ),
        outputs=outputs,
        cost_unit=data.get("cost_unit", DEFAULT_COST_UNIT),
        fixed_memory=fixed_memory,
        metadata=data.get("metadata"),
    )
    if "splits" in data:
        graph = with_regions(fields, graph, data["splits"], pointer)
        fields.finish()
    return graph


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
    if graph.splits:
        document["splits"] = regions_to_document(graph)
    if graph.metadata is not None:
        document["metadata"] = graph.metadata
    return document


def graph_sha256(graph: Graph) -> str:
    """SHA-256, in hexadecimal, of the canonical document without ``metadata.lines``: compact JSON with sorted keys."""
    return document_sha256(graph_to_document(graph))


def document_sha256(document: Mapping[str, Any]) -> str:
    """The same of a canonical document of a graph that is at hand."""
    digest = hashlib.sha256()
    for text in _compact(without_lines(document)):
        digest.update(text.encode("utf-8"))
    return digest.hexdigest()


def _compact(document: Mapping[str, Any]) -> Iterator[str]:
    """The text of ``document`` as compact JSON with sorted keys, in parts."""
    before = "{"
    for key in sorted(document):
        yield f"{before}{_COMPACT.encode(key)}:"
        before = ","
        value = document[key]
        if not isinstance(value, list):
            yield _COMPACT.encode(value)
            continue
        yield "["
        for first in range(0, len(value), _AT_ONCE):
            yield ("," if first else "") + _COMPACT.encode(value[first : first + _AT_ONCE])[1:-1]
        yield "]"
    yield "}"


def dump_document(document: Mapping[str, Any]) -> str:
    """``document`` as JSON text, the same for the same data: sorted keys, one line per field, node and statement.

    Characters that a terminal would obey are escaped. A list of objects may also be given as an iterator, which has to
    have at least one.

    Raises:
        ValueError: If it contains a number that is not finite.
    """
    return escaped_json("\n".join(chain(_lines(document, ""), ("",))))


def document_text(document: Mapping[str, Any], format: Format) -> str:
    """``document`` as text in one of the formats of documents."""
    if format == "json":
        return dump_document(document)
    from remat_cli.graph.yaml12 import yaml_text

    return yaml_text(document)


def _lines(document: Mapping[str, Any], after: str) -> Iterator[str]:
    """The lines of the text of ``document``; ``after`` ends the last."""
    yield "{"
    keys = sorted(document)
    for key in keys:
        value, name = document[key], f"{_READABLE.encode(key)}: "
        comma = "" if key == keys[-1] else ","
        if isinstance(value, Mapping) and "schema" in value:  # a graph inside a plan
            inner = _lines(value, comma)
            yield name + next(inner)
            yield from inner
        elif isinstance(value, Iterator) or (isinstance(value, list) and value and isinstance(value[0], Mapping)):
            last = f"{name}["
            for number, line in enumerate(_entry_lines(iter(value))):
                yield f"{last}," if number else last
                last = line
            yield last
            yield f"]{comma}"
        else:
            yield f"{name}{_READABLE.encode(value)}{comma}"
    yield "}" + after


def _entry_lines(entries: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    """The text of each of ``entries``.

    A call of the encoder takes longer than most entries, so many are encoded together. JSON has no line breaks inside
    strings, so a break between two objects ends an entry. An entry that lists objects itself has more of them.
    """
    while together := list(islice(entries, _AT_ONCE)):
        texts = _BROKEN.encode(together)[1:-1].replace("},\n{", "}\n\n{").replace(",\n", ", ").split("\n\n")
        yield from texts if len(texts) == len(together) else map(_READABLE.encode, together)


def _node_to_document(graph: Graph, node: Node) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": node.id,
        "inputs": [graph.value_name(value) for value in node.inputs],
        "cost": plain_number(node.cost),
        "outputs": list(node.outputs),
        "workspace": node.workspace,
        "recompute": node.recompute,
    }
    if node.offload is not True:
        document["offload"] = list(node.offload) if isinstance(node.offload, tuple) else False
    if node.op is not None:
        document["op"] = node.op
    if node.phase is not None:
        document["phase"] = node.phase.value
    if node.queue is not NodeQueue.COMPUTE:
        document["queue"] = node.queue.value
    if node.payload is not None:
        document["payload"] = node.payload
    return document


def _size(fields: Fields, data: Mapping[str, Any], key: str, pointer: str) -> int:
    return fields.size(data[key], join(pointer, key)) if key in data else 0


def _sizes(fields: Fields, node: Mapping[str, Any], pointer: str, index: int) -> tuple[int, ...]:
    memory = node.get("memory")
    if type(memory) is int:  # the schema has limited it; in a million nodes, most are such
        return (memory,)
    place = join(pointer, "nodes", index)
    if memory is not None:
        return (fields.size(memory, f"{place}/memory"),)
    return tuple(fields.size(size, f"{place}/outputs/{k}") for k, size in enumerate(node["outputs"]))


def _offload(fields: Fields, node: Mapping[str, Any], count: int, pointer: str) -> bool | tuple[bool, ...]:
    """Whether values may be copied to the host, in its shortest form: one answer if all are the same."""
    offload = node["offload"]
    if isinstance(offload, bool):
        return offload or count == 0
    if len(offload) != count:
        message = f"has {len(offload)} entries, and the node makes {count} values"
        fields.report(pointer, message, "give one for each value, or a single true or false")
    return offload[0] if len(set(offload)) == 1 else tuple(offload) or True


@dataclass(frozen=True, slots=True)
class _Names:
    """The values of a document by name. ``conv1`` and ``conv1:0`` both name the first value of conv1.

    Attributes:
        node: Index of every node by id.
        first: First value of every node.
        counts: Number of values of every node.
    """

    node: Mapping[str, int]
    first: Sequence[int]
    counts: Sequence[int]

    def value(self, name: str) -> int | None:
        """The value of that name, if there is one."""
        node, number = self.node.get(name), 0
        if node is None:
            node_id, _, index = name.rpartition(":")
            node = self.node.get(node_id)
            if node is None or not _INDEX.fullmatch(index):
                return None
            number = int(index)
        return self.first[node] + number if number < self.counts[node] else None

    def count_by_id(self) -> dict[str, int]:
        """The number of values of every node, by id."""
        return {node_id: self.counts[i] for node_id, i in self.node.items()}


def _value_names(
    fields: Fields, nodes: Sequence[Mapping[str, Any]], sizes: Sequence[tuple[int, ...]], pointer: str
) -> _Names:
    ids = [node["id"] for node in nodes]
    first_place = {node_id: i for i, node_id in zip(range(len(ids) - 1, -1, -1), reversed(ids), strict=True)}
    if len(first_place) < len(ids):
        for i, node_id in enumerate(ids):
            if first_place[node_id] != i:
                first = join(pointer, "nodes", first_place[node_id], "id")
                place = fields.document.locate(first)
                where = first if place is None else f"{first} (line {place[0]})"
                message = f"the id {quote(node_id)} is already used by {where}"
                fields.report(join(pointer, "nodes", i, "id"), message, "give every node an id of its own")
    counts = list(map(len, sizes))
    return _Names(first_place, [0, *accumulate(counts)], counts)


def _all_inputs(
    fields: Fields,
    nodes: Sequence[Mapping[str, Any]],
    sizes: Sequence[tuple[int, ...]],
    names: _Names,
    pointer: str,
) -> list[tuple[int, ...]]:
    """The values that every node reads, each once, in the order of the document."""
    inputs: list[tuple[int, ...]] = []
    too_late: list[tuple[int, int, str]] = []  # value, reader, pointer
    for i, node in enumerate(nodes):
        values: dict[int, None] = {}
        for k, name in enumerate(node["inputs"]):
            value = names.value(name)
            if value is None:
                fields.report_value(join(pointer, "nodes", i, "inputs", k), name, names.count_by_id)
                continue
            values[value] = None
            if value >= names.first[i]:
                too_late.append((value, i, join(pointer, "nodes", i, "inputs", k)))
        inputs.append(tuple(values))
    if too_late:
        maker = [i for i, of_node in enumerate(sizes) for _ in of_node]
        reads = [(maker[value], i) for i, values_of_node in enumerate(inputs) for value in values_of_node]
        late = [(maker[value], reader, place) for value, reader, place in too_late]
        report_later_inputs(fields, [node["id"] for node in nodes], reads, late)
    return inputs


def _outputs(
    fields: Fields,
    data: Mapping[str, Any],
    names: _Names,
    sizes: Sequence[tuple[int, ...]],
    pointer: str,
) -> tuple[int, ...]:
    if "outputs" not in data:
        end = names.first[-1]
        return tuple(range(end - len(sizes[-1]), end))
    outputs = set()
    for k, name in enumerate(data["outputs"]):
        value = names.value(name)
        if value is None:
            fields.report_value(join(pointer, "outputs", k), name, names.count_by_id)
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


def _check_queues(fields: Fields, data: Mapping[str, Any], pointer: str) -> None:
    """Report costs that are no times, if queues run at the same time."""
    unit = data.get("cost_unit", DEFAULT_COST_UNIT)
    if unit in TIME_UNITS:
        return
    for i, node in enumerate(data["nodes"]):
        if node.get("queue") == NodeQueue.COMMUNICATION:
            message = f"costs are {unit}, and a node in the communication queue takes time beside computations"
            fields.report(join(pointer, "nodes", i, "queue"), message, "give times, with cost_unit s, ms, us or ns")
            return


def origins(document: Document, graph: Graph, keys: NodeLinkKeys | None = None) -> list[str]:
    """One line for each kind of fact: where ``document`` states it, and the default for the others."""
    names = keys or NodeLinkKeys()
    linked = is_node_link(document)
    data = document.data
    head = data.get("graph") if linked else data
    head = head if isinstance(head, dict) else {}
    total = len(data["nodes"])

    def stated(key: str) -> int:
        return sum(entry.get(key) is not None for entry in data["nodes"])

    workspaces = stated(names.workspace if linked else "workspace")
    cost = f'attribute "{names.cost}"' if linked else "field cost"
    sizes = f'attribute "{names.memory}"' if linked else "fields memory and outputs"
    unit = "read" if head.get("cost_unit") else "not stated"
    lines = [
        f"costs: {_share(_nodes_with_cost(document, names, linked), total, cost, '0')}; unit {graph.cost_unit}: {unit}",
        f"sizes: {_share(_nodes_with_size(document, names, linked), total, sizes, '0 bytes')}",
        f"workspace: read for {workspaces} of {total} nodes" + (", 0 bytes for the others" * (workspaces < total)),
        "fixed memory: read" if head.get("fixed_memory") is not None else "fixed memory: not stated, 0 bytes",
    ]
    stated_outputs = not linked and "outputs" in data
    lines.append("outputs of the graph: " + ("read" if stated_outputs else "not stated, those of the last node"))
    return lines


def _nodes_with_cost(document: Document, names: NodeLinkKeys, linked: bool) -> int:
    key = names.cost if linked else "cost"
    return sum(entry.get(key) is not None for entry in document.data["nodes"])


def _nodes_with_size(document: Document, names: NodeLinkKeys, linked: bool) -> int:
    keys = (names.memory,) if linked else ("memory", "outputs")
    return sum(any(entry.get(key) is not None for key in keys) for entry in document.data["nodes"])


def _share(number: int, total: int, where: str, default: str) -> str:
    """``read for 8 of 9 nodes from field cost, 0 for the others``."""
    return f"read for {number} of {total} nodes from {where}" + (f", {default} for the others" * (number < total))
