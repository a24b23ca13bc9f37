"""Models and graphs of other tools from Python: what ``remat convert`` reads, with the same result and refusals."""

import subprocess
import sys

import networkx
import pytest

import remat_cli as remat
from remat_cli.cli.main import run
from remat_cli.errors import InputError, UsageError

DUMP = """class Net(torch.nn.Module):
    def forward(self, x: "f32[s0, 100]", w: "f32[10, 100]"):
        y: "f32[s0, 10]" = torch.ops.aten.linear.default(x, w);  x = w = None
        z: "f32[s0, 10]" = torch.ops.mine.fancy.default(y);  y = None
        return (z,)
"""


@pytest.fixture
def dump(tmp_path):
    path = tmp_path / "forward.py"
    path.write_text(DUMP, encoding="utf-8")
    return path


def test_a_model_is_what_the_command_makes_of_it(dump, tmp_path):
    graph = remat.import_model(dump, sizes={"s0": 8}, backward="checkmate", default_cost=3)
    options = ["--dim", "s0=8", "--backward", "checkmate", "--default-cost", "3", "-o", str(tmp_path / "step.json")]
    assert run(["convert", str(dump), *options]) == 0
    assert remat.load_graph(tmp_path / "step.json") == graph
    assert [node.cost for node in graph.nodes][:2] == [2 * 8 * 10 * 100, 3 * 8 * 10]
    assert graph.fixed_memory == remat.import_model(str(dump), sizes={"s0": 8}, default_cost=3).fixed_memory
    assert any("costs: derived" in note for note in graph.metadata["notes"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, r"symbolic dimension.*s0"),
        ({"sizes": {"s0": 8}}, r"mine\.fancy"),
        ({"sizes": {"s0": 8, "s1": 8}, "default_cost": 1}, 'no symbolic dimension "s1"'),
        ({"sizes": {"s0": 0}}, 'dimension "s0": 0 is not a size'),
        ({"sizes": {"s0": "8"}}, "dimension \"s0\": '8' is not a size"),
        ({"sizes": {"s0": True}}, "True is not a size"),
        ({"sizes": {"s0": 2**41}}, "is not a size"),
        ({"sizes": 5}, "sizes is int 5, expected a mapping"),
        ({"default_cost": "1"}, "default_cost is str '1', expected a whole number"),
        ({"sizes": {"s0": 8}, "default_cost": 0}, "default_cost is int 0"),
        ({"sizes": {"s0": 8}, "backward": "forwards"}, 'no backward rule "forwards"'),
    ],
)
def test_what_is_missing_or_makes_no_sense_is_refused(dump, arguments, words):
    with pytest.raises((InputError, UsageError), match=words):
        remat.import_model(dump, **arguments)


def test_graphs_and_models_are_told_apart(dump, tmp_path):
    remat.save_graph(remat.build_graph("unit-chain{n=5}"), tmp_path / "chain.json")
    with pytest.raises(UsageError, match="is not a model") as raised:
        remat.import_model(tmp_path / "chain.json")
    assert "load_graph" in raised.value.hint
    with pytest.raises(InputError, match="no such file"):
        remat.import_model(tmp_path / "none.json")
    with pytest.raises(UsageError, match="is a model, not a graph"):
        remat.load_graph(tmp_path / "model.onnx")


def test_a_graph_of_networkx_is_read_with_other_names(tmp_path):
    graph = networkx.DiGraph(name="net")
    graph.add_node("a", weight=1.5, size=10)
    graph.add_node("b", weight=2, size=20)
    graph.add_edge("a", "b")
    networkx.write_graphml_xml(graph, tmp_path / "g.graphml")
    read = remat.load_graph(tmp_path / "g.graphml", keys="cost=weight,memory=size")
    assert [(node.id, node.cost, node.outputs, node.inputs) for node in read.nodes] == [
        ("a", 1.5, (10,), ()),
        ("b", 2.0, (20,), (0,)),
    ]
    with pytest.raises(UsageError, match='there is no key "coast"'):
        remat.load_graph(tmp_path / "g.graphml", keys="coast=weight")


def test_a_dump_is_read_without_pytorch(dump):
    code = (
        f"import sys, remat_cli as remat; remat.import_model({str(dump)!r}, sizes={{'s0': 8}}, default_cost=1);"
        "assert not {'torch', 'onnx', 'numpy', 'click'} & sys.modules.keys(), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
