"""What the TensorFlow frontend does without TensorFlow: joins operations, reads documents, says what is missing."""

import random
from dataclasses import replace

import pytest

from remat_cli.cli.main import run
from remat_cli.errors import UsageError
from remat_cli.frontends.tensorflow.capture.grouping import Item, group
from remat_cli.frontends.tensorflow.capture.memory import highest
from remat_cli.frontends.tensorflow.document import (
    Call,
    Input,
    Made,
    Operation,
    Placeholder,
    Read,
    TensorSpec,
    read_step,
)
from remat_cli.graph.model import Graph, Node

BIG, SMALL = 1000, 1


def item(*reads, sizes=(BIG,), pure=True, phase="forward"):
    return Item(frozenset((r, 0) if isinstance(r, int) else r for r in reads), sizes, pure, phase)


def test_a_producer_joins_its_only_reader_where_its_inputs_live_on():
    items = [item(pure=False), item(0), item(1), item(2, 0)]
    assert group(items, [(3, 0)], SMALL) == [[0], [1, 2, 3]]


def test_a_producer_whose_input_dies_stays_apart():
    items = [item(pure=False), item(0), item(1)]
    assert group(items, [(2, 0)], SMALL) == [[0], [1], [2]]


def test_a_producer_that_is_smaller_than_its_reader_s_result_stays_apart():
    items = [item(), item(0, sizes=(BIG // 2,)), item(1, 0)]
    assert group(items, [(2, 0), (0, 0)], SMALL) == [[0], [1], [2]]


def test_small_operations_join_the_one_they_read_from():
    items = [item(), item(0, sizes=(SMALL,)), item(1, sizes=(SMALL,)), item(1, 2, sizes=(SMALL,)), item(0, 1, 2, 3)]
    assert group(items, [(4, 0), (1, 0), (2, 0), (3, 0)], SMALL) == [[0], [1, 2, 3], [4]]


def test_what_runs_once_and_other_phases_stay_apart():
    assert group([item(), item(0, pure=False), item(1)], [(2, 0)], SMALL) == [[0], [1], [2]]
    phases = [item(phase="forward"), item(0, sizes=(SMALL,), phase="backward")]
    assert group(phases, [(1, 0)], SMALL) == [[0], [1]]


@pytest.mark.parametrize("seed", range(60))
def test_joined_operations_can_always_run(seed):
    """Any graph: each operation is in one node, and nodes read only what earlier ones make."""
    draw = random.Random(seed)
    items = []
    for k in range(40):
        reads = draw.sample(range(max(0, k - 8), k), min(k, draw.randint(0, 3)))
        size = draw.choice([SMALL, 10, BIG])
        items.append(item(*reads, sizes=(size,), pure=draw.random() < 0.9, phase="forward" if k < 20 else "backward"))
    read = {r for it in items for r in it.reads}
    kept = [(k, 0) for k in range(40) if (k, 0) not in read or draw.random() < 0.1]
    groups = group(items, kept, SMALL)
    assert sorted(k for found in groups for k in found) == list(range(40))
    home = {k: number for number, found in enumerate(groups) for k in found}
    for found in groups:
        assert found == sorted(found)
        assert len({items[k].phase for k in found}) == 1
        assert len(found) == 1 or all(items[k].pure for k in found)
        for k in found:
            assert all(home[r] <= home[k] for r, _ in items[k].reads)


def test_memory_of_operations_one_after_another():
    steps = [([], [(0, 10)]), ([0], [(1, 5)]), ([1], [(2, 7)])]
    assert highest(steps, frozenset()) == 15
    assert highest(steps, frozenset({0, 2})) == 22
    assert highest([([], [(0, 3), (1, 4)])], frozenset()) == 7


SPEC = TensorSpec("float32", (4,))


def small_graph(**metadata):
    first = Operation((Call("Relu", (Read(0),), (SPEC,)),), (Made(0),))
    second = Operation((Call("Neg", (Input(0),), (SPEC,)),), (Made(0),))
    nodes = (
        Node("a", 1, (), (16,), payload=first.document()),
        Node("b", 1, (0,), (16,), payload=second.document()),
    )
    place = Placeholder("variable", "w", SPEC, trainable=True)
    result = {"tensor": "v0", "value": "b:0", "dtype": "float32", "shape": [4]}
    found = {"frontend": "tf", "version": 1, "places": [place.document()], "constants": [], "functions": []}
    return Graph("small", nodes, (1,), metadata=found | {"results": [result], "update": None, "groups": []} | metadata)


def test_documents_are_read_as_they_are_written():
    step = read_step(small_graph())
    assert [found.document() for found in step.operations] == [node.payload for node in step.graph.nodes]
    assert [place.document() for place in step.places] == step.graph.metadata["places"]
    assert [result.document(step.graph.value_name) for result in step.results] == step.graph.metadata["results"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("version", 99, "another version"),
        ("places", None, "not a list"),
        ("places", [{"kind": "place"}], 'has no "name"'),
        ("constants", [{"dtype": "float32", "shape": [2], "data": "AAAA"}], "another size"),
        ("functions", ["?"], "metadata.functions"),
        ("update", "a", "not the last node"),
        ("results", [{"tensor": "v0", "value": "a:0", "dtype": "float32", "shape": [4]}], "not an output"),
        ("results", [{"tensor": "x0", "dtype": "float32", "shape": [4]}], "not the name of a tensor"),
    ],
)
def test_damaged_metadata_is_refused(key, value, message):
    with pytest.raises(UsageError, match=message):
        read_step(small_graph(**{key: value}))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"op": "Neg", "in": ["v1"], "out": []}, "there is no number 1: there are 1"),
        ({"op": "Neg", "in": ["t0.0"], "out": []}, "there is no number 0"),
        ({"op": "Neg); import os", "in": [], "out": []}, "not the name of an operation"),
        ({"op": "Neg", "in": ["v0"], "out": [["float33", 4]]}, "not a type"),
        ({"op": "Neg", "in": ["v0"], "out": [["float32", -4]]}, "whole number"),
        ({"op": "Neg", "in": ["v0"], "out": [], "attrs": {"T": {"kind": 1}}}, '"kind" is not type or int'),
        ({"op": "Neg", "in": ["v0"], "out": [], "attrs": {"T": {"type": "float33"}}}, "not a type"),
        ({"op": "Neg", "in": ["v0"], "out": [], "more": 1}, 'unknown field "more"'),
        ("Neg", "not an object"),
    ],
)
def test_damaged_payloads_are_refused(call, message):
    graph = small_graph()
    payload = {"ops": [call, {"op": "Neg", "in": ["v0"], "out": [["float32", 4]]}], "values": ["t1.0"]}
    nodes = (graph.nodes[0], replace(graph.nodes[1], payload=payload))
    with pytest.raises(UsageError, match=message):
        read_step(replace(graph, nodes=nodes))


def test_commands_say_that_tensorflow_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("def build(): ...", encoding="utf-8")
    for source in ("tf:train.py:build", "zoo:tf/vgg16{batch=1}"):
        assert run(["export", source, "-o", "step.json"]) == 2
        assert "TensorFlow, which is not installed" in capsys.readouterr().err


def test_devices_belong_to_frameworks(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["export", "tf:train.py:build", "--device", "cuda"]) == 2
    assert "TensorFlow knows no device cuda" in capsys.readouterr().err
