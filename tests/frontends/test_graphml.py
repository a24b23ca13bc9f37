import json
from pathlib import Path

import networkx
import pytest

from remat_cli.api.documents import as_graph
from remat_cli.cli.main import run
from remat_cli.errors import InputError
from remat_cli.frontends.graphml import graphml_document
from remat_cli.graph.io import load_graph


def _small() -> networkx.DiGraph:
    graph = networkx.DiGraph(name="net", cost_unit="us", fixed_memory=7)
    graph.add_node("a", cost=1.5, memory=10, workspace=3, op="conv", phase="forward", recompute=False)
    graph.add_node("b", cost=2, memory=20)
    graph.add_node("c", cost=4, memory=40)
    graph.add_edges_from([("a", "b"), ("a", "c"), ("b", "c")])
    return graph


def test_graphml_says_the_same_as_node_link_json_of_the_same_graph(tmp_path):
    graph = _small()
    networkx.write_graphml_xml(graph, tmp_path / "g.graphml")
    (tmp_path / "g.json").write_text(json.dumps(networkx.node_link_data(graph, edges="links")), encoding="utf-8")
    read = as_graph(str(tmp_path / "g.graphml"))
    assert read == load_graph(str(tmp_path / "g.json"))
    assert (read.name, read.cost_unit, read.fixed_memory) == ("net", "us", 7)
    assert read.nodes[0].recompute is False
    assert read.nodes[2].inputs == (0, 1)


def test_other_names_of_attributes_and_declared_defaults(tmp_path):
    text = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="d0" for="node" attr.name="weight" attr.type="double"><default>5</default></key>
  <key id="d1" for="node" attr.name="bytes" attr.type="long"/>
  <graph edgedefault="directed">
    <node id="b"><data key="d1">2</data></node>
    <node id="a"><data key="d0">1</data><data key="d1">1</data></node>
    <edge source="a" target="b"/>
  </graph>
</graphml>"""
    (tmp_path / "g.xml").write_text(text, encoding="utf-8")
    graph = as_graph(str(tmp_path / "g.xml"), keys="cost=weight,memory=bytes")
    assert [(n.id, n.cost, n.outputs) for n in graph.nodes] == [("a", 1.0, (1,)), ("b", 5.0, (2,))]
    with pytest.raises(InputError, match='keys="cost=NAME"'):
        as_graph(str(tmp_path / "g.xml"))


_LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
_HEAD = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
_NODE = '<node id="a"><data key="c">1</data><data key="m">1</data></node>'
_COST = '<key id="c" for="node" attr.name="cost" attr.type="{}"/>'
_KEYS = _COST + '<key id="m" for="node" attr.name="memory" attr.type="int"/>'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_LAUGHS + "]><graphml>&j;</graphml>", "document type declaration"),
        ('<!DOCTYPE g SYSTEM "file:///etc/passwd"><graphml/>', "document type declaration"),
        ("<graphml><key>", "not valid XML: no element found"),
        ("<graphml>&none;</graphml>", "undefined entity"),
        ("<svg/>", 'root element is "svg"'),
        ("<graphml/>", "there is no graph"),
        ('<graphml><graph edgedefault="undirected"/></graphml>', "not directed"),
        ("<graphml>" + "<x>" * 200_000, "nested deeper"),
        (f'{_HEAD}<graph edgedefault="directed"/><graph edgedefault="directed"/></graphml>', "a second graph"),
        (f'{_HEAD}<graph edgedefault="directed"><hyperedge/></graph></graphml>', "hyperedges"),
        (f'{_HEAD}<graph edgedefault="directed">{_NODE}</graph></graphml>', "not GraphML that networkx reads"),
        (f'{_HEAD}{_KEYS.format("x")}<graph edgedefault="directed">{_NODE}</graph></graphml>', "not GraphML that"),
        (
            f'{_HEAD}{_KEYS.format("string")}<graph edgedefault="directed">{_NODE}</graph></graphml>',
            "expected a number",
        ),
        (f'{_HEAD}<graph edgedefault="directed"><node/></graph></graphml>', "a node without id"),
        (f'{_HEAD}<graph edgedefault="directed">{_NODE}{_NODE}</graph></graphml>', 'id "a" is already used on line 1'),
        (f'{_HEAD}<graph edgedefault="directed">{_NODE}<edge source="a"/></graph></graphml>', "edge without target"),
        (f'{_HEAD}<graph edgedefault="directed"></graph></graphml>', "at least one node"),
        (
            f'{_HEAD}<key id="r" for="node" attr.name="recompute" attr.type="boolean"><default>false</default></key>'
            '<graph edgedefault="directed"><node id="a"/></graph></graphml>',
            'default of the boolean "recompute"',
        ),
        (
            f'{_HEAD}{_KEYS.format("double")}<graph edgedefault="directed">{_NODE}'
            '<edge source="a" target="z"/></graph></graphml>',
            'there is no node "z"',
        ),
        (
            f'{_HEAD}{_KEYS.format("double").replace("int", "double")}<graph edgedefault="directed">'
            f"{_NODE.replace('>1<', '>nan<')}</graph></graphml>",
            "is NaN, expected bytes",
        ),
    ],
)
def test_what_is_not_a_graph_is_refused_with_a_reason(tmp_path, capsys, text, words):
    path = tmp_path / "bad.graphml"
    path.write_text(text, encoding="utf-8")
    assert run(["convert", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert "bad.graphml" in said.err


def test_every_command_that_reads_graphs_reads_graphml(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    networkx.write_graphml_xml(_small(), "g.graphml")
    assert run(["show", "g.graphml"]) == 0
    assert "net: 3 nodes" in capsys.readouterr().out
    assert run(["solve", "g.graphml", "-b", "none"]) == 0
    assert Path("g.plan.json").exists()
    assert "valid plan: peak 77 B" in capsys.readouterr().out


def test_places_of_a_document_from_graphml_have_no_lines(tmp_path):
    networkx.write_graphml_xml(_small(), tmp_path / "g.graphml")
    document = graphml_document((tmp_path / "g.graphml").read_text(encoding="utf-8"), "g.graphml")
    assert document.locate("/nodes/0") is None
