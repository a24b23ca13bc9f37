"""ONNX models that do not say all that has to be known, or are none: what is refused, and what helps."""

import json
from importlib import metadata

import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import Builder, imported, vgg16

from remat_cli.cli.main import run
from remat_cli.errors import FrameworkUnavailable, InputError, UsageError
from remat_cli.extras import install_command
from remat_cli.frontends.imported import Wishes
from remat_cli.frontends.onnx.importing import import_onnx
from remat_cli.zoo.training import Backward


def test_a_gradient_through_a_second_output_is_refused_by_the_rule_operator(tmp_path):
    b = Builder()
    weights = [b.weight(1, 12, 4), b.weight(1, 12, 3)]
    states = b.node("LSTM", b.input("x", 5, 2, 4), *weights, hidden_size=3, outputs=2, name="lstm")
    with pytest.raises(UsageError, match="output 1 of lstm"):
        imported(tmp_path, b, states[1], backward="operator")
    assert len(imported(tmp_path, b, states[1], backward="checkmate").nodes) == 3


def test_what_is_not_known_is_refused_in_one_message(tmp_path):
    b = Builder()
    x = b.input("x", "batch", None, 4)
    y = b.node("Relu", x)
    path = b.save(tmp_path / "net.onnx", y)
    with pytest.raises(InputError) as caught:
        import_onnx(path, Wishes({"bach": 3}))
    words = caught.value.message
    assert 'symbolic dimension "batch" (say sizes={"batch": SIZE})' in words
    assert '(say sizes={"x:1": SIZE})' in words
    assert 'no symbolic dimension "bach" (did you mean "batch"?)' in words
    graph = import_onnx(path, Wishes({"batch": 3, "x:1": 5})).graph
    assert graph.nodes[0].outputs == (3 * 5 * 4 * 4,)


def test_sizes_that_depend_on_data_can_be_given(tmp_path):
    b = Builder()
    found = b.node("NonZero", b.input("x", 3, 4))
    y = b.node("Cast", b.node("Transpose", found, perm=[1, 0]), to=TensorProto.FLOAT)
    with pytest.raises(InputError, match=r'sizes of 3 tensors are unknown: "nonzero1" \(NonZero\).*TENSOR:AXIS'):
        imported(tmp_path, b, y)
    graph = imported(tmp_path, b, y, sizes={f"{found}:1": 7})
    assert [n.outputs for n in graph.nodes] == [(2 * 7 * 8,), (2 * 7 * 8,), (2 * 7 * 4,)]


def test_operators_of_others_need_shapes_and_a_price(tmp_path):
    b = Builder()
    x = b.input("x", 2, 3)
    y = b.node("Fancy", x, domain="com.example", name="fancy")
    model = b.model(b.node("Relu", y))
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    model.graph.value_info.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, [2, 30]))
    path = str(tmp_path / "net.onnx")
    onnx.save(model, path)
    with pytest.raises(
        InputError, match=r"without a rule for their cost: com\.example\.Fancy \(1 times\).*default_cost=1"
    ):
        import_onnx(path, Wishes())
    found = import_onnx(path, Wishes(default_cost=5))
    assert [(n.cost, n.outputs) for n in found.graph.nodes] == [(5 * 60, (240,)), (60, (240,))]
    assert any("com.example.Fancy (1)" in note for note in found.notes)
    with pytest.raises(UsageError, match=r"derivatives of Fancy.*not known"):
        import_onnx(path, Wishes(default_cost=5, backward=Backward.OPERATOR))


def test_control_flow_is_refused(tmp_path):
    branch = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"])], "b", [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, [3])]
    )
    b = Builder()
    b.input("x", 3)
    y = b.node("If", b.input("c", element=TensorProto.BOOL), then_branch=branch, else_branch=branch, name="choice")
    with pytest.raises(InputError, match='as data decides, which remat cannot represent: If "choice"'):
        imported(tmp_path, b, y)


def test_text_and_broken_files_are_refused(tmp_path):
    path = tmp_path / "net.onnx"
    for content in (b"", b"hello", b"\x00" * 50, json.dumps({"nodes": []}).encode()):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not an ONNX model"):
            import_onnx(str(path), Wishes())
    with pytest.raises(InputError, match="there is no such file"):
        import_onnx(str(tmp_path / "none.onnx"), Wishes())
    b = Builder()
    b.input("x", 3)
    b.nodes.append(helper.make_node("Relu", ["later"], ["y"]))
    b.nodes.append(helper.make_node("Relu", ["x"], ["later"]))
    with pytest.raises(InputError, match="not a good ONNX model"):
        imported(tmp_path, b, "y")


def test_text_has_no_size(tmp_path):
    b = Builder()
    y = b.node(
        "Equal", b.input("words", 3, element=TensorProto.STRING), b.input("others", 3, element=TensorProto.STRING)
    )
    with pytest.raises(InputError, match=r'sizes of 2 tensors are unknown: "words" \(string\)'):
        imported(tmp_path, b, y, elements={y: TensorProto.BOOL})


def test_axes_that_are_not_there_or_have_a_size_of_their_own_are_refused(tmp_path):
    b = Builder()
    y = b.node("Relu", b.input("x", "batch", 4))
    for name, size in ((f"{y}:7", 3), (f"{y}:1", 5)):
        with pytest.raises(InputError, match=rf"the size {size} of {name} is another"):
            imported(tmp_path, b, y, sizes={"batch": 2, name: size})
    b = Builder()
    y = b.node("Relu", b.input("x", 0, 4))
    with pytest.raises(InputError, match="dimension without a size"):
        imported(tmp_path, b, y)


def test_without_the_package_one_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    builder, logits = vgg16(2)
    path = builder.save(tmp_path / "net.onnx", logits)
    monkeypatch.setattr(metadata, "version", missing)
    assert run(["convert", path]) == FrameworkUnavailable.exit_code == 2
    said = capsys.readouterr().err
    assert "needs the onnx package, which is not installed" in said
    assert install_command("onnx") in said


@pytest.mark.parametrize("texts", [["batch"], ["=3"], ["batch=0"], ["batch=-1"], ["batch=x"], ["a=1", "a=2"]])
def test_bad_dimensions_are_refused(tmp_path, texts, capsys):
    builder, logits = vgg16()
    path = builder.save(tmp_path / "net.onnx", logits)
    assert run(["convert", path, *(part for text in texts for part in ("--dim", text))]) == 2
    assert "--dim" in capsys.readouterr().err
