"""GraphML (http://graphml.graphdrawing.org) to node-link data, by networkx.

networkx parses the XML. Its result goes through the same mapping of attributes as node-link JSON. Before that the text
is checked as XML: a document type declaration is refused. GraphML needs none, and the entities that it declares can
expand from a few lines to gigabytes.
"""

from typing import Any, NoReturn
from xml.parsers import expat

from remat_cli.errors import InputError, Problem
from remat_cli.graph.document import Document
from remat_cli.graph.quoting import MAX_DEPTH, SURROGATE, quote
from remat_cli.printable import printable


def graphml_document(text: str, source: str) -> Document:
    """The graph of a GraphML text as the data of a node-link document.

    Node attributes without a value get the default that the file declares. Ids are those of the XML.

    Raises:
        InputError: If the text is not GraphML, declares a document type, or has features that networkx does not read
            (several graphs, hyperedges, ports).
    """
    _look_at(text, source)
    import networkx

    try:
        graph = networkx.parse_graphml(text)
        data = networkx.node_link_data(graph, edges="links")
    except Exception as error:  # networkx checks little: faults appear as KeyError, TypeError, ...
        raise InputError.of(
            source, f"not GraphML that networkx reads: {type(error).__name__}: {printable(str(error))}"
        ) from None
    attributes: dict[str, Any] = data["graph"]
    attributes.pop("edge_default", None)
    defaults: dict[str, Any] = attributes.pop("node_default", {})
    for name, value in defaults.items():
        if isinstance(value, bool):
            hint = "write it into every node"
            raise InputError.of(source, f"the default of the boolean {quote(name)} is not read", hint)
    data["nodes"] = [defaults | node for node in data["nodes"]]
    return Document(source, data)


def _look_at(text: str, source: str) -> None:
    """Make sure that ``text`` is plain XML with one graph, and that its edges name nodes of it."""
    if SURROGATE.search(text):
        raise InputError.of(source, "the text holds half of a surrogate pair", "save the file as UTF-8")
    parser = expat.ParserCreate("UTF-8")
    seen = _Seen(source, parser)
    parser.StartDoctypeDeclHandler = seen.document_type
    parser.StartElementHandler = seen.start
    parser.EndElementHandler = seen.end
    try:
        parser.Parse(text.encode("utf-8"), True)
    except expat.ExpatError as error:
        message = f"not valid XML: {expat.ErrorString(error.code)}"
        raise InputError(source, [Problem(message, line=error.lineno, column=error.offset + 1)]) from None
    seen.finish()


class _Seen:
    """The elements seen so far. networkx itself would merge nodes of the same id, and invent nodes that edges name."""

    def __init__(self, source: str, parser: expat.XMLParserType) -> None:
        self._source = source
        self._parser = parser
        self._depth = 0
        self._graphs = 0
        self._nodes: dict[str, int] = {}
        self._ends: list[tuple[str, int]] = []

    def document_type(self, *_: Any) -> None:
        self._refuse("a document type declaration is not allowed", "take the DOCTYPE out: GraphML needs none")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        local = name.rpartition(":")[2]
        self._depth += 1
        if self._depth == 1 and local != "graphml":
            self._refuse(f"the root element is {quote(name)}, expected graphml")
        if self._depth > MAX_DEPTH:
            self._refuse(f"nested deeper than {MAX_DEPTH} levels")
        if local == "graph":
            self._graph(attributes)
        elif local == "node":
            self._node(attributes)
        elif local == "edge":
            for key in ("source", "target"):
                if key not in attributes:
                    self._refuse(f"an edge without {key}", "name the node that it joins")
                self._ends.append((attributes[key], self._parser.CurrentLineNumber))

    def end(self, _: str) -> None:
        self._depth -= 1

    def finish(self) -> None:
        """Refuse faults that only show at the end of the text."""
        if not self._graphs:
            raise InputError.of(self._source, "there is no graph in it", "GraphML holds a graph with nodes and edges")
        for end, line in self._ends:
            if end not in self._nodes:
                raise InputError.of(
                    self._source, f"there is no node {quote(end)}", "edges name nodes by their id", line=line
                )

    def _graph(self, attributes: dict[str, str]) -> None:
        self._graphs += 1
        if self._graphs > 1:
            self._refuse("a second graph starts here", "put one graph into one file")
        if attributes.get("edgedefault") != "directed":
            self._refuse("the graph is not directed", 'set edgedefault="directed"')

    def _node(self, attributes: dict[str, str]) -> None:
        if "id" not in attributes:
            self._refuse("a node without id", "give every node an id of its own")
        node = attributes["id"]
        if node in self._nodes:
            self._refuse(f"the id {quote(node)} is already used on line {self._nodes[node]}", "give every node its own")
        self._nodes[node] = self._parser.CurrentLineNumber

    def _refuse(self, message: str, hint: str = "") -> NoReturn:
        raise InputError.of(self._source, message, hint, line=self._parser.CurrentLineNumber)
