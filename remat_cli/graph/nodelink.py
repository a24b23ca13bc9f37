"""Node-link JSON, as ``networkx.node_link_data`` writes it, to graphs and back.

Every node makes one value. :class:`NodeLinkKeys` maps attributes to fields. The graph-level attributes ``name``,
``cost_unit`` and ``fixed_memory`` are used if present; all other attributes are ignored. The output of the graph is the
value of the last node, as in graph documents without ``outputs``.
"""

import heapq
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.errors import Worded
from remat_cli.graph.document import Document, join
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.graph.quoting import quote
from remat_cli.graph.reader import MAX_BYTES, MAX_COST, Fields, plain_number, shortest_path
from remat_cli.printable import CONTROLS, escaped_json
from remat_cli.registry import suggestion

_EDGE_LISTS = ("links", "edges")


@dataclass(frozen=True, slots=True)
class NodeLinkKeys:
    """The names of the attributes of nodes and links.

    Attributes:
        id: Id of a node, as text or an integer.
        cost: Cost of computing the node; required.
        memory: Size of the node's value, as an integer or text such as ``64MiB``; required.
        workspace: Bytes needed only while the node runs; optional.
        op: Kind of operation; optional.
        phase: forward, loss, backward or update; optional.
        recompute: false for a node that may be computed only once; optional.
        source: End of a link at the node that makes the value.
        target: End of a link at the node that reads it.
    """

    id: str = "id"
    cost: str = "cost"
    memory: str = "memory"
    workspace: str = "workspace"
    op: str = "op"
    phase: str = "phase"
    recompute: str = "recompute"
    source: str = "source"
    target: str = "target"


def is_node_link(document: Document) -> bool:
    """Whether ``document`` looks like node-link JSON: no ``schema``, but ``nodes`` and ``links`` or ``edges``."""
    data = document.data
    return "schema" not in data and "nodes" in data and any(key in data for key in _EDGE_LISTS)


def graph_from_node_link(document: Document, keys: NodeLinkKeys) -> Graph:
    """The graph of a node-link document.

    Nodes keep the order of the file if that is an execution order. Otherwise they are sorted topologically: the next
    node is always the first of the file whose inputs have all been made. The graph's ``metadata`` says which order it
    is, and which keys were used.

    Raises:
        InputError: If the JSON is not node-link, or a node has no cost or size, or there is a cycle.
    """
    fields = Fields(document)
    edge_list = _check_shape(fields, keys)
    fields.finish()
    data = document.data
    ids = [_node_id(fields, node, keys, join("/nodes", i)) for i, node in enumerate(data["nodes"])]
    _check_unique(fields, ids)
    _check_attributes(fields, keys)
    nodes = [_node(fields, node, ids[i], keys, join("/nodes", i)) for i, node in enumerate(data["nodes"])]
    reads = _edges(fields, data[edge_list], {node_id: i for i, node_id in enumerate(ids)}, keys, edge_list)
    attributes = data.get("graph")
    attributes = attributes if isinstance(attributes, dict) else {}
    fixed_memory = _bytes(fields, attributes, "fixed_memory", "/graph")
    if sum(node.outputs[0] + node.workspace for node in nodes) + fixed_memory > MAX_BYTES:
        fields.report("/nodes", "all sizes together are more than 2^63 - 1 bytes", "use smaller sizes")
    if sum(node.cost for node in nodes) > MAX_COST:
        fields.report("/nodes", f"all costs together are more than {MAX_COST:g}", "use a larger unit of cost")
    fields.finish()
    order = _execution_order(fields, ids, reads)
    fields.finish()
    place = {node: position for position, node in enumerate(order)}
    return Graph(
        name=_text(attributes, "name") or "graph",
        nodes=tuple(replace(nodes[i], inputs=tuple(place[maker] for maker in reads[i])) for i in order),
        outputs=(len(nodes) - 1,),
        cost_unit=_text(attributes, "cost_unit") or "unit",
        fixed_memory=fixed_memory,
        metadata={
            "format": "node-link",
            "order": "as in the file" if order == list(range(len(order))) else "sorted topologically",
            "keys": {name: getattr(keys, name) for name in NodeLinkKeys.__slots__},
        },
    )


def _check_shape(fields: Fields, keys: NodeLinkKeys) -> str:
    """The name of the list of links. Checks the types of all fields around the nodes."""
    data = fields.document.data
    present = [key for key in _EDGE_LISTS if key in data]
    if len(present) > 1:
        fields.report("", "has both links and edges", "keep one of them")
    if data.get("directed", True) is not True:
        fields.report("/directed", f"is {quote(data['directed'])}: the graph is not directed", "write a DiGraph")
    links = (("source", keys.source), ("target", keys.target))
    for key, ends in (("nodes", (("id", keys.id),)), (present[0], links)):
        entries = data[key]
        if not isinstance(entries, list):
            fields.report(f"/{key}", f"is {quote(entries)}, expected a list")
            continue
        if key == "nodes" and not entries:
            fields.report("/nodes", "is an empty list, expected at least one node")
        for i, entry in enumerate(entries):
            if not isinstance(entry, dict):
                fields.report(join("", key, i), f"is {quote(entry)}, expected an object")
                continue
            for role, end in ends:
                if end not in entry:
                    hint = Worded(
                        f'if it has another name, give keys="{role}=NAME"',
                        f"if it has another name, add --keys {role}=NAME",
                    )
                    fields.report(join("", key, i), f"no attribute {quote(end)}", hint)
    return present[0]


def _node_id(fields: Fields, node: Mapping[str, Any], keys: NodeLinkKeys, pointer: str) -> str:
    value = node[keys.id]
    place = join(pointer, keys.id)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        fields.report(place, f"is {quote(value)}, expected text or an integer", "ids are text or integers")
        return pointer
    text = str(value)
    tail = text.rpartition(":")
    if not text or CONTROLS.search(text) or (tail[1] and tail[2].isascii() and tail[2].isdigit()):
        hint = "an id has no control characters and does not end in a colon and digits"
        fields.report(place, f"{quote(text)} cannot be an id", hint)
    return text


def _check_unique(fields: Fields, ids: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for i, node_id in enumerate(ids):
        if first.setdefault(node_id, i) != i:
            fields.report(
                join("/nodes", i),
                f"the id {quote(node_id)} is already used by /nodes/{first[node_id]}",
                'give every node an id of its own; 1 and "1" are the same',
            )


def _check_attributes(fields: Fields, keys: NodeLinkKeys) -> None:
    """Report nodes without a cost or a size: one by one, or all at once if no node has the attribute."""
    nodes: Sequence[Mapping[str, Any]] = fields.document.data["nodes"]
    for what, key in (("cost", keys.cost), ("memory", keys.memory)):
        without = [i for i, node in enumerate(nodes) if key not in node]
        everywhere = len(without) == len(nodes)
        for i in without[:1] if everywhere else without:
            close = suggestion(key, list(nodes[i]))
            others = ", ".join(quote(k) for k in nodes[i] if k != keys.id) or "none"
            said = f"{close} " if close else ""
            said += f"say which attribute is the {what} with"
            hint = Worded(
                f'{said} keys="{what}=NAME"; attributes here: {others}',
                f"{said} --keys {what}=NAME; attributes here: {others}",
            )
            who, where = (
                ("no node", "/nodes") if everywhere else (f"node {quote(nodes[i][keys.id])}", join("/nodes", i))
            )
            fields.report(where, f"{who} has {'the' if everywhere else 'no'} attribute {quote(key)}", hint)


def _node(fields: Fields, node: Mapping[str, Any], node_id: str, keys: NodeLinkKeys, pointer: str) -> Node:
    return Node(
        id=node_id,
        cost=_cost(fields, node, keys.cost, pointer),
        inputs=(),
        outputs=(_bytes(fields, node, keys.memory, pointer),),
        workspace=_bytes(fields, node, keys.workspace, pointer),
        recompute=bool(_checked(fields, node, keys.recompute, pointer, "true or false", True, _is_bool)),
        op=_checked(fields, node, keys.op, pointer, "text", None, _is_text),
        phase=_phase(fields, node, keys, pointer),
    )


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_cost(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_COST


def _is_size(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return _is_cost(value) and (isinstance(value, int) or math.floor(value) == value)


def _checked(
    fields: Fields,
    data: Mapping[str, Any],
    key: str,
    pointer: str,
    expected: str,
    default: Any,
    good: Callable[[Any], bool],
) -> Any:
    """The attribute, or the default if it is absent or null or (after a report) invalid."""
    value = data.get(key)
    if value is None or good(value):
        return default if value is None else value
    fields.report(join(pointer, key), f"is {quote(value)}, expected {expected}")
    return default


def _cost(fields: Fields, data: Mapping[str, Any], key: str, pointer: str) -> float:
    expected = f"a number from 0 to {MAX_COST:g}"
    return float(_checked(fields, data, key, pointer, expected, 0, _is_cost)) + 0.0


def _bytes(fields: Fields, data: Mapping[str, Any], key: str, pointer: str) -> int:
    expected = "bytes as a whole number that is not negative, or text such as 64MiB"
    return fields.size(_checked(fields, data, key, pointer, expected, 0, _is_size), join(pointer, key))


def _phase(fields: Fields, node: Mapping[str, Any], keys: NodeLinkKeys, pointer: str) -> Phase | None:
    phases = [phase.value for phase in Phase]
    value = _checked(fields, node, keys.phase, pointer, " or ".join(phases), None, lambda v: v in phases)
    return None if value is None else Phase(value)


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _edges(
    fields: Fields, links: Sequence[Mapping[str, Any]], index: Mapping[str, int], keys: NodeLinkKeys, edge_list: str
) -> list[list[int]]:
    """For every node, the nodes it reads, each once, in the order of the links."""
    reads: list[dict[int, None]] = [{} for _ in range(len(index))]
    for k, link in enumerate(links):
        ends = []
        for key in (keys.source, keys.target):
            end = link[key]
            named = str(end) if isinstance(end, (str, int)) and not isinstance(end, bool) else None
            node = index.get(named) if named is not None else None
            if node is None:
                closest = fields.closest(named or "", index, "links name nodes by their id")
                fields.report(join("", edge_list, k, key), f"there is no node {quote(end)}", closest)
            else:
                ends.append(node)
        if len(ends) == 2 and not fields.problems:
            reads[ends[1]][ends[0]] = None
    return [list(makers) for makers in reads]


def _execution_order(fields: Fields, ids: Sequence[str], reads: Sequence[Sequence[int]]) -> list[int]:
    """A topological order of the nodes, which always takes the first possible node of the file (Kahn)."""
    readers: list[list[int]] = [[] for _ in ids]
    missing = [len(makers) for makers in reads]
    for node, makers in enumerate(reads):
        for maker in makers:
            readers[maker].append(node)
    ready = [node for node, count in enumerate(missing) if count == 0]
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for reader in readers[node]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(ids):
        _report_cycle(fields, ids, reads, readers, missing)
    return order


def _report_cycle(
    fields: Fields,
    ids: Sequence[str],
    reads: Sequence[Sequence[int]],
    readers: Sequence[Sequence[int]],
    missing: Sequence[int],
) -> None:
    """Name one cycle among the nodes that never became ready. Going upstream from any of them leads into a cycle."""
    node = next(i for i, count in enumerate(missing) if count)
    seen: set[int] = set()
    while node not in seen:
        seen.add(node)
        node = next(maker for maker in reads[node] if missing[maker])
    for reader in readers[node]:
        path = shortest_path(readers, reader, node)
        if path is not None:
            cycle = " -> ".join(quote(ids[i])[1:-1] for i in [node, *path])
            fields.report(join("/nodes", node), f"is part of a cycle: {cycle}", "a graph has no cycles: cut one link")
            return


def graph_to_node_link(graph: Graph) -> tuple[str, list[str]]:
    """The text of ``graph`` as node-link JSON, and the facts that it cannot express.

    A node of node-link JSON makes one value, so several outputs become one value of their total size, and a plan for
    the converted graph frees them together. Links are in the order in which nodes read.
    """
    nodes: list[dict[str, Any]] = []
    links: list[dict[str, Any]] = []
    for node in graph.nodes:
        entry: dict[str, Any] = {"id": node.id, "cost": plain_number(node.cost), "memory": sum(node.outputs)}
        entry["workspace"] = node.workspace
        entry["recompute"] = node.recompute
        if node.op is not None:
            entry["op"] = node.op
        if node.phase is not None:
            entry["phase"] = node.phase.value
        nodes.append(entry)
        makers = dict.fromkeys(graph.producer[value] for value in node.inputs)
        links += [{"source": graph.nodes[maker].id, "target": node.id} for maker in makers]
    attributes = {"name": graph.name, "cost_unit": graph.cost_unit, "fixed_memory": graph.fixed_memory}
    head = {"directed": True, "multigraph": False, "graph": attributes}
    parts = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    for name, entries in (("nodes", nodes), ("links", links)):
        rows = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
        parts.append(f'"{name}": [\n{rows}\n]' if rows else f'"{name}": []')
    return escaped_json("{\n" + ",\n".join(parts) + "\n}\n"), _lost(graph)


def _lost(graph: Graph) -> list[str]:
    lost = []
    several = sum(len(node.outputs) > 1 for node in graph.nodes)
    if several:
        lost.append(f"{several} nodes with several outputs: written as one value of their joint size")
    if any(not node.outputs for node in graph.nodes):
        lost.append("nodes without outputs: written with a value of 0 bytes")
    if graph.outputs != tuple(graph.values_of(len(graph.nodes) - 1)):
        lost.append("which values are outputs of the graph: a reader takes those of the last node")
    if any(node.offload is not True for node in graph.nodes):
        lost.append("which values may not be copied to the host: left out")
    if graph.splits:
        lost.append("regions that may run in parts: left out")
    if graph.overlaps:
        lost.append("which nodes run in the communication queue: left out")
    if any(node.payload is not None for node in graph.nodes) or graph.metadata is not None:
        lost.append("payload and metadata: left out")
    return lost
