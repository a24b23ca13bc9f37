"""The lines that nodes come from are shown, and make no other graph."""

from dataclasses import replace

import pytest

from remat_cli.graph.io import graph_sha256
from remat_cli.graph.metadata import line_of
from remat_cli.plan.check import graphs_differ
from remat_cli.reports.web.graph import node_documents
from remat_cli.zoo.registry import build_graph

PLAIN = build_graph("unit-chain{n=3}")


def told(lines):
    return replace(PLAIN, metadata={**PLAIN.metadata, "lines": lines})


def test_lines_are_no_part_of_the_digest():
    graph = told({"n1": "train.py:7 in forward"})
    assert graph_sha256(graph) == graph_sha256(PLAIN)
    assert graphs_differ(graph, PLAIN) is None
    assert graph_sha256(replace(graph, metadata={**graph.metadata, "batch": 3})) != graph_sha256(PLAIN)


def test_a_pinned_node_says_its_line():
    first, second, _ = node_documents(told({"n1": "train.py:7 in forward"}))
    assert ("line", "train.py:7 in forward") in second["facts"]
    assert not [fact for fact in first["facts"] if fact[0] == "line"]


@pytest.mark.parametrize("lines", [None, [], "n1", {"n1": 7}, {"n1": None}])
def test_other_things_by_that_name_are_no_lines(lines):
    graph = told(lines)
    assert line_of(graph, "n1") == ""
    assert node_documents(graph) == node_documents(PLAIN)


def test_a_graph_without_metadata_has_none():
    assert line_of(replace(PLAIN, metadata=None), "n1") == ""
