"""Reads the graph that a command or a function is given."""

from __future__ import annotations

import re
from dataclasses import fields

from remat_cli.errors import InputError, Problem, UsageError
from remat_cli.files import read_text
from remat_cli.graph.document import Document, format_of, parse_document
from remat_cli.graph.io import graph_from_document
from remat_cli.graph.model import Graph
from remat_cli.graph.nodelink import NodeLinkKeys, graph_from_node_link, is_node_link
from remat_cli.registry import suggestion

_FOREIGN = re.compile(r"(?:\s|#[^\n]*\n|//[^\n]*\n|Creator[^\n]*\n)*(?:strict\s+)?(?:di)?graph\b[^:\[{]*([\[{])")
"""The beginning of DOT or GML, up to the bracket that tells which."""
_NODE_LINK = "read it with networkx, and write json.dumps(networkx.node_link_data(graph)) or GraphML"


def read_graph(path: str, keys: str | None) -> Graph:
    """The graph in ``path``; ``keys`` (``cost=weight,memory=size``) names the attributes of a node-link document.

    Raises:
        InputError, UsageError: If the file or the keys are invalid.
    """
    return graph_of(read_source(path), keys)


def read_source(path: str) -> Document:
    """The document in ``path``; GraphML becomes node-link data.

    Raises:
        InputError: If the file cannot be read, or is not well-formed.
        UsageError: If the file is a model.
    """
    if path.lower().endswith((".onnx", ".pt2")):
        raise UsageError(
            f"{path} is a model, not a graph", hint=f"make a graph of it: remat convert {path} -o graph.json"
        )
    text, source = read_text(path)
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


def graph_of(document: Document, keys: str | None) -> Graph:
    """The graph in ``document``, which is a graph document or node-link JSON."""
    if is_node_link(document):
        return graph_from_node_link(document, NodeLinkKeys() if keys is None else node_link_keys(keys))
    for field, name in (("adjacency", "adjacency"), ("elements", "Cytoscape")):
        if field in document.data and "schema" not in document.data:
            raise document.error("", f"this is {name} JSON of networkx, which remat does not read", _NODE_LINK)
    if keys is not None:
        raise UsageError("--keys is for node-link graphs, and this is none", hint="leave it out")
    return graph_from_document(document)


def node_link_keys(text: str) -> NodeLinkKeys:
    """The mapping that ``key=name,...`` describes."""
    known = [f.name for f in fields(NodeLinkKeys)]
    chosen: dict[str, str] = {}
    for item in text.split(","):
        key, _, name = (part.strip() for part in item.partition("="))
        if not name:
            raise UsageError(f'--keys: "{item}" is not key=name', hint="write it like cost=weight,memory=size")
        if key not in known:
            hint = suggestion(key, known) or f"known: {', '.join(known)}"
            raise UsageError(f'--keys: there is no key "{key}"', hint=hint)
        chosen[key] = name
    return NodeLinkKeys(**chosen)
