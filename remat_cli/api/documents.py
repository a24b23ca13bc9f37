"""Reads and writes graphs and plans, as the command line does with ``GRAPH``, ``PLAN`` and ``-o``."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from remat_cli.api.reading import read_graph
from remat_cli.files import write_text
from remat_cli.graph import io as graphs
from remat_cli.graph.document import format_of
from remat_cli.graph.model import Graph
from remat_cli.plan import io as plans
from remat_cli.plan.model import Plan


def load_graph(path: str | PathLike[str], *, keys: str | None = None) -> Graph:
    """The graph in a JSON or YAML file, or in node-link JSON or GraphML as networkx writes them.

    For models use :func:`import_model`.

    >>> import remat_cli as remat
    >>> remat.save_graph(remat.build_graph("unit-chain{n=9}"), "chain.json")
    >>> graph = remat.load_graph("chain.json")
    >>> len(graph.nodes), graph.total_cost, graph.cost_unit
    (9, 9.0, 'unit')

    Args:
        path: The file; ``-`` for standard input.
        keys: Names of the attributes of a node-link graph, as in ``"cost=weight,memory=size"``.

    Raises:
        InputError: If the file holds no valid graph; the message says where, what is wrong, and how to fix it.
        UsageError: If the file is a model, or the keys are invalid.
    """
    return read_graph(fspath(path), keys)


def load_plan(path: str | PathLike[str]) -> Plan:
    """The plan in a file. Its claims are not verified; use :func:`check` for that.

    >>> import remat_cli as remat
    >>> remat.save_plan(remat.solve(remat.build_graph("unit-chain{n=9}"), "6B").plan, "chain.plan.json")
    >>> plan = remat.load_plan("chain.plan.json")
    >>> plan.budget_bytes, plan.strategy
    (6, 'keep-all')

    Args:
        path: The file; ``-`` for standard input.

    Raises:
        InputError: If there is no plan in it.
    """
    return plans.load_plan(fspath(path))[0]


def save_graph(graph: Graph, path: str | PathLike[str]) -> None:
    """Write ``graph`` in its canonical form: the same bytes for the same graph. YAML for ``.yaml``, else JSON.

    Raises:
        UsageError: If the file cannot be written.
    """
    write_text(fspath(path), _text(graphs.graph_to_document(graph), path))


def save_plan(plan: Plan, path: str | PathLike[str]) -> None:
    """Write ``plan`` as a document that ``remat check`` and :func:`load_plan` read. YAML for ``.yaml``, else JSON.

    Raises:
        UsageError: If the file cannot be written.
    """
    write_text(fspath(path), _text(plans.plan_to_document(plan), path))


def _text(document: Mapping[str, Any], path: str | PathLike[str]) -> str:
    return graphs.document_text(document, format_of(fspath(path)) or "json")
