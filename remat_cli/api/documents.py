"""Reads and writes graphs and plans, which may be given as an object, a path, a document or an open file."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from os import PathLike
from typing import IO, TYPE_CHECKING, Any

from remat_cli.api.arguments import as_path
from remat_cli.errors import InputError, Problem, UsageError, Worded, wrong_type
from remat_cli.files import decoded, read_bytes, read_text, write_text
from remat_cli.graph.document import Document, format_of, kind_of, parse_document
from remat_cli.graph.io import document_text, graph_from_document, graph_to_document
from remat_cli.graph.model import Graph
from remat_cli.graph.nodelink import NodeLinkKeys, graph_from_node_link, is_node_link
from remat_cli.plan.io import dump_plan, plan_from_document
from remat_cli.plan.model import Plan
from remat_cli.registry import suggestion
from remat_cli.tracebacks import door

if TYPE_CHECKING:
    from remat_cli.plan.snapshot import Snapshot
    from remat_cli.planning.solved import Solved

_FOREIGN = re.compile(r"(?:\s|#[^\n]*\n|//[^\n]*\n|Creator[^\n]*\n)*(?:strict\s+)?(?:di)?graph\b[^:\[{]*([\[{])")
"""The beginning of DOT or GML, up to the bracket that tells which."""
_NODE_LINK = "read it with networkx, and write json.dumps(networkx.node_link_data(graph)) or GraphML"

_PICKLE = b"\x80"
"""What pickles begin with since protocol 2, of 2003."""
_NOT_NODE_LINK = "is for node-link graphs, but this is not one"

Source = str | PathLike[str] | Mapping[str, Any] | IO[str] | IO[bytes]
"""A document: its path (``-`` for standard input), its data, or a file open for reading."""


def as_graph(value: Graph | Source, argument: str = "graph", keys: str | Mapping[str, str] | None = None) -> Graph:
    """The graph that an argument of a function stands for.

    Raises:
        InputError, UsageError: If it is of another type, or the document or the keys are invalid.
    """
    if isinstance(value, Graph):
        return value
    return graph_of(document_of(value, argument, "a graph, or the path or the data of one"), keys)


def as_plan(value: Plan | Solved | Source, argument: str = "plan") -> Plan:
    """The plan that an argument of a function stands for: a plan, the result of a search, or a document.

    Raises:
        InputError, UsageError: If it is of another type, or the document is invalid.
    """
    candidate: Any = getattr(value, "plan", value)  # what a search returned; its class is not imported for a check
    if isinstance(candidate, Plan):
        return candidate
    return plan_from_document(document_of(candidate, argument, "a plan, or the path or the data of one"))


def document_of(value: Source, argument: str, expected: str = "a path or a document") -> Document:
    """The document that an argument of a function stands for: a path, a mapping or an open file.

    Raises:
        InputError, UsageError: If it is of another type, or not well-formed.
    """
    if isinstance(value, str | PathLike):
        return read_source(as_path(value, argument))
    if isinstance(value, Mapping):
        return _checked_data(value, argument)
    if not callable(getattr(value, "read", None)):
        torch = sys.modules.get("torch")  # nothing is a module of it before it is imported
        module = torch is not None and isinstance(value, torch.nn.Module)
        hint = "fit(module, batch, budget) plans a module, and export_torch makes a graph of one" if module else ""
        raise wrong_type(argument, value, expected, hint=hint)
    text, name = value.read(), getattr(value, "name", None)
    source = name if isinstance(name, str) else f"<{argument}>"
    if not isinstance(text, str | bytes):
        raise wrong_type(argument, value, expected)
    return parse_source(decoded(text, source) if isinstance(text, bytes) else text, source)


def _checked_data(data: Mapping[str, Any], argument: str) -> Document:
    """The document with this data, which has to pass all checks that a file has to pass."""
    source = f"<{argument}>"
    try:
        text = json.dumps(dict(data), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:  # an object that is no JSON, a NaN, a circle
        problem = Problem(f"not a document: {error}", hint="a document has texts, numbers, lists and mappings")
        raise InputError(source, [problem]) from None
    return Document(source, parse_document(text, source, "json").data)  # without the text, whose lines nobody wrote


def read_source(path: str) -> Document:
    """The document in ``path``; GraphML becomes node-link data.

    Raises:
        InputError: If the file cannot be read, or is not well-formed.
        UsageError: If the file is a model.
    """
    _refuse_model(path)
    return parse_source(*read_text(path))


def read_shown(path: str, keys: str | None = None) -> Graph | Plan | Snapshot:
    """The graph, the plan or the recording of CUDA memory in a file.

    Raises:
        InputError, UsageError: If it is none of these, or there are ``keys`` for something else than a node-link graph.
    """
    _refuse_model(path)
    data, name = read_bytes(path)
    if not data.startswith(_PICKLE):
        return graph_or_plan(parse_source(decoded(data, name), name), keys)
    from remat_cli.frontends.cuda_snapshot import snapshot_of  # who checks a plan does without frontends

    _refuse_keys(keys, "this is a recording of memory")
    return snapshot_of(data, name)


def _refuse_model(path: str) -> None:
    if path.lower().endswith((".onnx", ".pt2")):
        raise UsageError(
            f"{path} is a model, not a graph", hint=f"make a graph of it: remat convert {path} -o graph.json"
        )


def _refuse_keys(keys: str | None, what: str) -> None:
    if keys is not None:
        message = f"for node-link graphs, but {what}"
        raise UsageError(Worded(f"keys are {message}", f"--keys is {message}"), hint="leave it out")


def parse_source(text: str, source: str) -> Document:
    """The document in ``text``, from a file that messages call ``source``; GraphML becomes node-link data.

    Raises:
        InputError: If it is not well-formed.
    """
    foreign = _FOREIGN.match(text)
    if foreign is not None:
        name = "DOT" if foreign[1] == "{" else "GML"
        raise InputError(source, [Problem(f"this is {name}, which remat does not read", line=1, hint=_NODE_LINK)])
    if not is_xml(text, source):
        return parse_document(text, source, format_of(source))
    from remat_cli.frontends.graphml import graphml_document

    return graphml_document(text, source)


def is_xml(text: str, source: str) -> bool:
    """Whether to read ``text`` as GraphML: its file has that suffix, or it starts as XML does."""
    return source.lower().endswith(".graphml") or text.lstrip("\ufeff \t\r\n")[:1] == "<"


def graph_of(document: Document, keys: str | Mapping[str, str] | None) -> Graph:
    """The graph in ``document``, which is a graph document or node-link JSON."""
    if is_node_link(document):
        return graph_from_node_link(document, NodeLinkKeys() if keys is None else node_link_keys(keys))
    for field, name in (("adjacency", "adjacency"), ("elements", "Cytoscape")):
        if field in document.data and "schema" not in document.data:
            raise document.error("", f"this is {name} JSON of networkx, which remat does not read", _NODE_LINK)
    if keys is not None:
        raise UsageError(Worded(f"keys {_NOT_NODE_LINK}", f"--keys {_NOT_NODE_LINK}"), hint="leave it out")
    return graph_from_document(document)


def graph_or_plan(document: Document, keys: str | None = None) -> Graph | Plan:
    """The graph or the plan in ``document``.

    Raises:
        InputError, UsageError: If it is none, or there are ``keys`` for a plan.
    """
    if kind_of(document) != "plan":
        return graph_of(document, keys)
    _refuse_keys(keys, "this is a plan")
    return plan_from_document(document)


def node_link_keys(value: str | Mapping[str, str]) -> NodeLinkKeys:
    """The mapping that ``key=name,...``, or a mapping from keys to names, describes."""
    allowed = [f.name for f in fields(NodeLinkKeys)]
    chosen: dict[str, str] = {}
    for item, key, name in _pairs(value):
        if not isinstance(name, str) or not name:
            raise UsageError(_keys(f'"{item}" is not key=name'), hint="write it like cost=weight,memory=size")
        if key not in allowed:
            hint = suggestion(str(key), allowed) or f"known: {', '.join(allowed)}"
            raise UsageError(_keys(f'there is no key "{key}"'), hint=hint)
        chosen[key] = name
    return NodeLinkKeys(**chosen)


def _keys(message: str) -> Worded:
    return Worded(f"keys: {message}", f"--keys: {message}")


def _pairs(value: str | Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
    """Each pair of keys as it was written, and its two parts."""
    if isinstance(value, Mapping):
        return [(f"{key}={name}", key, name) for key, name in value.items()]
    if not isinstance(value, str):
        raise wrong_type("keys", value, 'text such as "cost=weight", or a mapping')
    pairs = ((item, *item.partition("=")[::2]) for item in value.split(","))
    return [(item, key.strip(), name.strip()) for item, key, name in pairs]


@door
def load_graph(source: Source, *, keys: str | Mapping[str, str] | None = None) -> Graph:
    """The graph in a JSON or YAML document, or in node-link JSON or GraphML as networkx writes them.

    For models use :func:`import_model`.

    >>> import remat_cli as remat
    >>> remat.save_graph(remat.build_graph("unit-chain{n=9}"), "chain.json")
    >>> graph = remat.load_graph("chain.json")
    >>> len(graph.nodes), graph.no_remat_cost, graph.cost_unit
    (9, 9.0, 'unit')
    >>> nodes = [{"id": "a", "inputs": [], "cost": 2, "memory": "1kB"}]
    >>> remat.load_graph({"schema": "remat-graph/1", "nodes": nodes})
    <Graph graph: nodes 1, values 1, cost 2 units, fixed memory 0 B>

    Args:
        source: The path (``-`` for standard input), the document as a mapping, or an open file.
        keys: Names of the attributes of a node-link graph, as in ``"cost=weight,memory=size"``, or as a mapping.

    Raises:
        InputError: If there is no valid graph in it; the message says where, what is wrong, and how to fix it.
        UsageError: If the file is a model, or an argument is invalid.
    """
    return as_graph(source, "source", keys)


@door
def load_plan(source: Source) -> Plan:
    """The plan in a document. Its claims are not verified; use :func:`check` for that.

    >>> import remat_cli as remat
    >>> remat.save_plan(remat.solve(remat.build_graph("unit-chain{n=9}"), "6B").plan, "chain.plan.json")
    >>> plan = remat.load_plan("chain.plan.json")
    >>> plan.budget_bytes, plan.strategy
    (6, 'keep-all')

    Args:
        source: The path (``-`` for standard input), the document as a mapping, or an open file.

    Raises:
        InputError: If there is no plan in it.
        UsageError: If it is none of these.
    """
    return as_plan(source, "source")


@door
def save_graph(graph: Graph, path: str | PathLike[str]) -> None:
    """Write ``graph`` in its canonical form: the same bytes for the same graph. YAML for ``.yaml``, else JSON.

    Raises:
        UsageError: If the file cannot be written.
    """
    if not isinstance(graph, Graph):
        raise wrong_type("graph", graph, "a graph")
    target = as_path(path)
    write_text(target, document_text(graph_to_document(graph), format_of(target) or "json"))


@door
def save_plan(plan: Plan | Solved, path: str | PathLike[str]) -> None:
    """Write ``plan``, or the plan of a search, as a document that ``remat check`` and :func:`load_plan` read.

    YAML for ``.yaml``, else JSON.

    Raises:
        UsageError: If the file cannot be written.
    """
    target = as_path(path)
    write_text(target, dump_plan(as_plan(plan), format_of(target) or "json"))
