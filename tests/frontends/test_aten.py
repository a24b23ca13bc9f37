"""Archives of torch.export and dumps of torch.fx against what the frontend for PyTorch captures, and PyTorch itself."""

import functools
import itertools
import subprocess
import sys

import pytest
import torch
import torch_models
from aten_models import EXAMPLES, Small, exported, imported, model_json, nodes, save, symbol_of
from torch.utils.flop_counter import FlopCounterMode

from remat_cli.api import import_model
from remat_cli.cli.main import run
from remat_cli.errors import UsageError
from remat_cli.frontends.aten import retained_bytes
from remat_cli.frontends.aten.importing import import_aten
from remat_cli.frontends.aten.symbols import evaluate, symbols
from remat_cli.frontends.aten.views import viewable
from remat_cli.frontends.imported import Wishes
from remat_cli.frontends.torch.capture.capture import capture
from remat_cli.frontends.torch.capture.construction import build_model
from remat_cli.frontends.torch.capture.lower import lower
from remat_cli.frontends.torch.compat.fake_tensors import new_fake_mode
from remat_cli.frontends.torch.measure.costs import cost_model
from remat_cli.graph.io import load_graph
from remat_cli.graph.model import Phase
from remat_cli.zoo.training import Backward

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # PyTorch's own, when it copies trees


@pytest.mark.parametrize("name", EXAMPLES)
def test_products_cost_what_pytorch_counts_when_the_module_runs(archives, name):
    graph = imported(archives[name])
    build, shape = EXAMPLES[name]
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        build()(torch.randn(shape))
    products = ("conv", "linear", "scaled_dot_product_attention")
    assert sum(node.cost for node in graph.nodes if node.op.startswith(products)) == counter.get_total_flops()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_symbolic_dimension_takes_the_size_that_is_given(archives, name):
    graph = imported(archives[f"{name}8"])
    symbolic = import_aten(archives[f"{name}*"], "pt2", Wishes(symbol_of(archives[f"{name}*"], 8))).graph
    assert nodes(symbolic) == nodes(graph)
    assert symbolic.fixed_memory == graph.fixed_memory
    axis = "input:0" if "input:0" in input_names(archives[f"{name}*"]) else "src:0" if name == "block" else "x:0"
    assert nodes(import_aten(archives[f"{name}*"], "pt2", Wishes({axis: 8})).graph) == nodes(graph)


def input_names(path):
    return {f"{i['as_tensor']['name']}:0" for i in model_json(path)["graph_module"]["graph"]["inputs"]}


def test_the_forward_pass_of_an_archive_is_that_of_a_captured_training_step(tmp_path):
    """Decomposed as PyTorch compiles it: the same operators, costs, sizes and reads."""
    aten = torch.ops.aten
    composed = [aten.conv2d.default, aten.conv_transpose2d.input, aten.linear.default, aten.max_pool2d.default]
    composed += [aten.batch_norm.default, aten.flatten.using_ints]
    table = torch.export.default_decompositions()
    program = exported("conv").run_decompositions({op: table[op] for op in composed if op in table})
    archive = imported(save(program, tmp_path / "net.pt2"))
    mode = new_fake_mode()
    build, shape = EXAMPLES["conv"]
    captured = capture(build_model(lambda: (build(), (torch.randn(shape),), lambda out: out.sum()), mode, "cpu"), mode)
    step = lower(captured, cost_model("flops").cost, "step")
    forward = [node for node in step.nodes if node.phase is Phase.FORWARD]
    assert nodes(archive) == [(node.op, node.cost, node.outputs) for node in forward]
    assert [node.inputs for node in archive.nodes] == [node.inputs for node in forward]
    assert archive.fixed_memory == step.fixed_memory


@functools.cache
def captured_step(name):
    """What is captured of a model's step, the same object each time."""
    mode = new_fake_mode()
    return capture(build_model(getattr(torch_models, name), mode, "cpu"), mode)


@pytest.mark.parametrize("name", ["mlp", "conv", "tied", "in_place", "squared"])
def test_a_dump_of_a_joint_graph_is_the_captured_step(tmp_path, name):
    """PyTorch's frontend knows by identity which tensors share memory; the dump has to tell it by operators."""
    captured = captured_step(name)
    step = lower(captured, cost_model("flops").cost, "step")
    path = tmp_path / "step.py"
    path.write_text(captured.joint.print_readable(print_output=False, include_stride=True, include_device=True))
    dump = imported(str(path))
    assert [(n.op, n.phase, n.inputs, n.outputs) for n in dump.nodes] == [
        (n.op, n.phase, n.inputs, n.outputs) for n in step.nodes
    ]
    assert dump.outputs == step.outputs
    for ours, theirs in zip(dump.nodes, step.nodes, strict=True):
        assert ours.cost == theirs.cost
    unused = 4 * (3 * 3 + 3) if name == "conv" else 0  # parameters without a part in the step
    assert dump.fixed_memory == step.fixed_memory - unused
    plain = tmp_path / "plain.py"
    plain.write_text(captured.joint.print_readable(print_output=False))
    assert [n.op for n in imported(str(plain)).nodes] == [n.op for n in step.nodes]


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy"])
def test_losses_keep_what_pytorch_keeps_in_memory(tmp_path, name, reduction):
    """One number per element, also where these are summed up; with operands that are broadcast, as far as it goes."""
    shapes = ((4, 3), (4, 3)) if name in {"soft_margin_loss", "binary_cross_entropy"} else ((5, 1, 3), (4, 3))
    made = getattr(torch.ops.aten, name)(*(torch.rand(shape) for shape in shapes), reduction=reduction)
    text = f"""class Net(torch.nn.Module):
    def forward(self, x: "f32{list(shapes[0])}", y: "f32{list(shapes[1])}"):
        a: "f32{list(made.shape)}" = torch.ops.aten.{name}.default(x, y, reduction = {reduction})
        return (a,)
"""
    path = tmp_path / "net.py"
    path.write_text(text)
    assert [n.outputs for n in imported(str(path)).nodes] == [(made.untyped_storage().nbytes(),)]


COLUMNS = {
    "whole": torch.rand(1, 8, 9),
    "every second": torch.rand(1, 8, 18)[:, :, ::2],
    "repeated": torch.rand(1, 8, 1).expand(1, 8, 9),
}


@pytest.mark.parametrize("x", COLUMNS.values(), ids=COLUMNS)
def test_columns_keep_a_copy_of_what_they_are_folded_from(tmp_path, x):
    """As large as the tensor's shape says, whatever lies between its elements."""
    window = "[4, 4], [2, 2], [1, 1], [0, 0], [1, 1]"
    made = torch.ops.aten.col2im(x, [4, 4], [2, 2], [1, 1], [0, 0], [1, 1])
    path = tmp_path / "net.py"
    path.write_text(
        f'class Net(torch.nn.Module):\n    def forward(self, x: "f32[1, 8, 9]{list(x.stride())}"):\n'
        f'        y: "f32{list(made.shape)}" = torch.ops.aten.col2im.default(x, {window})\n        return (y,)\n'
    )
    (node,) = imported(str(path)).nodes
    assert node.outputs == (made.untyped_storage().nbytes(),)
    assert node.outputs[0] > made.nbytes


def test_operators_that_end_in_two_underscores_write_into_nothing(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(
        'class Net(torch.nn.Module):\n    def forward(self, x: "i64[3]"):\n'
        '        y: "i64[3]" = torch.ops.aten.__lshift__.Scalar(x, 1)\n        return (y,)\n'
    )
    graph = imported(str(path))
    assert [(node.op, node.inputs) for node in graph.nodes] == [("__lshift__", ())]
    assert len(graph.outputs) == 1


def test_arguments_that_decide_what_is_kept_are_where_the_schemas_have_them():
    table = {op: {place: "reduction"} for op, place in retained_bytes.REDUCED.items()}
    table |= retained_bytes.STATISTICS | {retained_bytes.GROUPS_BACKWARD: {1: "input"}}
    for op, places in table.items():
        arguments = getattr(torch.ops.aten, op.removeprefix("aten.")).default._schema.arguments
        assert {place: arguments[place].name for place in places} == places


def test_attention_and_its_derivative_cost_their_products(tmp_path):
    """Against the formulas of PyTorch, which it does not apply to the operators for CPUs."""
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    q, k, v = (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)
    text = f"""class Net(torch.nn.Module):
    def forward(self, q: "f32{list(q)}", k: "f32{list(k)}", v: "f32{list(v)}", g: "f32[2, 3, 5, 6]"):
        a = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(q, k, v)
        y: "f32[2, 3, 5, 6]" = a[0]
        s: "f32[2, 5, 3]" = a[1];  a = None
        b = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default(g, q, k, v, y, s, 0.0, False)
        dq: "f32{list(q)}" = b[0]
        return (dq,)
"""
    path = tmp_path / "net.py"
    path.write_text(text)
    graph = imported(str(path))
    assert [n.cost for n in graph.nodes] == [
        sdpa_flop_count(q, k, v),
        sdpa_backward_flop_count((2, 3, 5, 6), q, k, v),
    ]


def test_a_printed_program_is_a_dump(archives, tmp_path):
    """``print(exported_program)`` has a head, an indented class, and a tail."""
    path = tmp_path / "program.txt"
    path.write_text(str(exported("conv")))
    assert nodes(imported(str(path))) == nodes(imported(archives["conv"]))


def test_operations_in_place_make_new_values(tmp_path):
    """The same values as those of the program that PyTorch itself makes functional, and the buffer at the end."""
    program = torch.export.export(torch_models.InPlace(), (torch.randn(6, 12),))
    plain = imported(save(program, tmp_path / "plain.pt2"))
    functional = imported(save(program.run_decompositions({}), tmp_path / "functional.pt2"))
    assert {"add", "mul"} <= {node.op for node in plain.nodes}
    assert sorted(plain.size[v] for v in plain.outputs) == sorted(functional.size[v] for v in functional.outputs)
    writes = [node for node in plain.nodes if node.op in {"mul", "add"} and node.outputs == (6 * 16 * 4,)]
    assert len(writes) == 2  # into halves of one value: each makes the whole anew
    assert writes[1].inputs == (plain.first_value[plain.nodes.index(writes[0])],)


def test_tied_weights_count_once(tmp_path):
    module = torch_models.Tied(0.0)
    batch = torch_models.tied()[1]
    program = torch.export.export(module, (), kwargs=batch)
    graph = imported(save(program, tmp_path / "tied.pt2"))
    inputs = sum(t.nbytes for t in batch.values())
    assert graph.fixed_memory >= inputs + sum(p.nbytes for p in module.parameters())
    assert graph.fixed_memory - inputs - sum(p.nbytes for p in module.parameters()) < 1000  # lifted constants


def test_a_backward_pass_can_be_derived_by_the_rule_checkmate(archives):
    graph = imported(archives["conv"], backward=Backward.CHECKMATE)
    forward = [node for node in graph.nodes if node.phase is Phase.FORWARD]
    backward = [node for node in graph.nodes if node.phase is Phase.BACKWARD]
    assert len(backward) == len(forward)
    assert sum(node.cost for node in backward) == 2 * sum(node.cost for node in forward)
    parameters = sum(p.nbytes for p in Small().parameters())
    assert graph.fixed_memory == imported(archives["conv"]).fixed_memory + parameters
    with pytest.raises(UsageError, match=r"what the derivatives of .* read is not known"):
        imported(archives["conv"], backward=Backward.OPERATOR)


def test_a_joint_graph_has_its_backward_pass_already(tmp_path):
    path = tmp_path / "step.py"
    path.write_text(captured_step("mlp").joint.print_readable(print_output=False))
    with pytest.raises(UsageError, match="has a backward pass already"):
        imported(str(path), backward=Backward.CHECKMATE)


def test_archives_and_dumps_are_read_without_pytorch(archives, tmp_path):
    code = (
        "import sys; from remat_cli.cli.main import run; "
        f"code = run(['convert', {archives['block']!r}, '-o', {str(tmp_path / 'block.json')!r}]); "
        "assert not {'torch', 'onnx', 'numpy'} & sys.modules.keys(), sorted(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "sizes: read, from types and shapes in the file" in done.stderr
    assert load_graph(str(tmp_path / "block.json")).metadata["format"] == "pt2"


def test_the_command_takes_dimensions_of_archives_and_refuses_them_for_documents(archives, tmp_path, capsys):
    (symbol,) = symbol_of(archives["conv*"], 1)
    assert run(["convert", archives["conv*"], "--dim", f"{symbol}=8", "-o", str(tmp_path / "g.json")]) == 0
    assert f"({symbol}=8 as asked)" in capsys.readouterr().err
    assert import_model(archives["conv*"], sizes={symbol: 8}) == load_graph(str(tmp_path / "g.json"))
    assert run(["convert", str(tmp_path / "g.json"), "--dim", "batch=8"]) == 2
    assert "are for models, but this is not a model" in capsys.readouterr().err
    assert run(["solve", archives["conv"], "--budget", "80%"]) == 2
    assert "remat convert" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4*s0", 28),
        ("s0", 7),
        ("((s0 + 1)//2)", 4),
        ("Mul(Integer(4), Symbol('s0', positive=True, integer=True))", 28),
        ("Add(Symbol('s0', integer=True), Integer(-1))", 6),
        ("FloorDiv(Symbol('s0'), Integer(2))", 3),
        ("Max(1, Min(s0, 3))", 3),
        ("Pow(Symbol('s0'), Integer(2))", 49),
        ("s0**2 % 5", 4),
        ("Mul(Rational(1, 7), Symbol('s0'))", 1),
    ],
)
def test_sizes_are_computed_from_symbols(text, value):
    assert symbols(text) <= {"s0"}
    assert evaluate(text, {"s0": 7}) == value


def test_whether_a_reshape_is_a_view_is_what_pytorch_says():
    """All permutations and some slices of small tensors, to all shapes of as many elements."""

    base = torch.zeros(2, 3, 4)
    cases = [base.permute(p) for p in itertools.permutations(range(3))]
    cases += [base[:, :, ::2], base[:, 1:], base[:1].expand(2, 3, 4), base[:, :1].permute(2, 1, 0), base.unsqueeze(1)]
    for tensor in cases:
        n = tensor.numel()
        shapes = [(a, b, n // (a * b)) for a in range(1, n + 1) for b in range(1, n + 1) if n % (a * b) == 0]
        for shape in [(n,), *shapes]:
            try:
                tensor.view(shape)
                fits = True
            except RuntimeError:
                fits = False
            assert viewable(tensor.shape, tensor.stride(), shape) == fits, (tensor.shape, tensor.stride(), shape)
