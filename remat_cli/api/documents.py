"""Reads and writes graphs and plans, as the command line does with ``GRAPH``, ``PLAN`` and ``-o``."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING

from remat_cli.api.arguments import as_path
from remat_cli.api.reading import Source, as_graph, as_plan
from remat_cli.errors import wrong_type
from remat_cli.files import write_text
from remat_cli.graph import io as graphs
from remat_cli.graph.document import format_of
from remat_cli.graph.model import Graph
from remat_cli.plan import io as plans
from remat_cli.plan.model import Plan
from remat_cli.tracebacks import door

if TYPE_CHECKING:
    from remat_cli.planning.solved import Solved


@door
def load_graph(source: Source, *, keys: str | Mapping[str, str] | None = None) -> Graph:
    """The graph in a JSON or YAML document, or in node-link JSON or GraphML as networkx writes them.

    For models use :func:`import_model`.

    >>> import remat_cli as remat
    >>> remat.save_graph(remat.build_graph("unit-chain{n=9}"), "chain.json")
    >>> graph = remat.load_graph("chain.json")
    >>> len(graph.nodes), graph.total_cost, graph.cost_unit
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
    write_text(target, graphs.document_text(graphs.graph_to_document(graph), format_of(target) or "json"))


@door
def save_plan(plan: Plan | Solved, path: str | PathLike[str]) -> None:
    """Write ``plan``, or the plan of a search, as a document that ``remat check`` and :func:`load_plan` read.

    YAML for ``.yaml``, else JSON.

    Raises:
        UsageError: If the file cannot be written.
    """
    target = as_path(path)
    write_text(target, plans.dump_plan(as_plan(plan), format_of(target) or "json"))
