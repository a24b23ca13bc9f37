"""Archives of torch.export and dumps of torch.fx against what the frontend for PyTorch captures, and PyTorch itself."""

from __future__ import annotations

import copy
import io
import json
import random
import subprocess
import sys
import warnings
import zipfile

import pytest
import torch
import torch_models
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from remat_cli.cli.main import run
from remat_cli.errors import InputError, RematError, UsageError
from remat_cli.frontends.aten.importing import import_aten
from remat_cli.frontends.aten.symbols import evaluate, symbols
from remat_cli.frontends.aten.views import viewable
from remat_cli.frontends.models import import_model, model_format
from remat_cli.frontends.torch.capture import capture, fake_mode
from remat_cli.frontends.torch.costs import cost_model
from remat_cli.frontends.torch.lower import lower
from remat_cli.frontends.torch.source import build_model
from remat_cli.graph.document import parse_document
from remat_cli.graph.io import dump_document, graph_from_document, graph_to_document, load_graph
from remat_cli.graph.model import Phase
from remat_cli.zoo.training import Backward

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # PyTorch's own, when it copies trees


class Small(nn.Module):
    """A convolutional net with normalisation, in training, and with nothing random."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(16, 4, 2, stride=2)
        self.head = nn.Linear(4 * 8 * 8, 10)

    def forward(self, x):
        x = nn.functional.relu(self.norm(self.conv1(x)), inplace=True)
        x = nn.functional.gelu(self.up(self.conv2(x)))
        return self.head(nn.functional.max_pool2d(x, 2).flatten(1))


def block():
    return nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)


EXAMPLES = {"conv": (Small, (4, 3, 16, 16)), "block": (block, (4, 10, 32))}


def exported(name, *, batch=4, dynamic=False):
    build, shape = EXAMPLES[name]
    example = torch.randn(batch, *shape[1:])
    dims = ({0: torch.export.Dim("batch", min=2, max=64)},) if dynamic else None
    return torch.export.export(build(), (example,), dynamic_shapes=dims)


def save(program, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of its own pickles
        torch.export.save(program, path)
    return str(path)


def imported(path, *, sizes=None, **options):
    graph = import_model(path, model_format(path), sizes=sizes or {}, **options).graph
    assert graph_from_document(parse_document(dump_document(graph_to_document(graph)), "x.json")) == graph
    assert all(node.cost > 0 for node in graph.nodes)
    return graph


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """``archives["conv"]``: exported at batch 4; ``conv8`` at batch 8; ``conv*`` for every batch."""
    folder = tmp_path_factory.mktemp("archives")
    made = {}
    for name in EXAMPLES:
        made[name] = save(exported(name), folder / f"{name}.pt2")
        made[f"{name}8"] = save(exported(name, batch=8), folder / f"{name}8.pt2")
        made[f"{name}*"] = save(exported(name, dynamic=True), folder / f"{name}-any.pt2")
    return made


def nodes(graph):
    return [(node.op, node.cost, node.outputs) for node in graph.nodes]


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
    symbolic = import_aten(archives[f"{name}*"], "pt2", sizes=symbol_of(archives[f"{name}*"], 8)).graph
    assert nodes(symbolic) == nodes(graph)
    assert symbolic.fixed_memory == graph.fixed_memory
    axis = "input:0" if "input:0" in input_names(archives[f"{name}*"]) else "src:0" if name == "block" else "x:0"
    assert nodes(import_aten(archives[f"{name}*"], "pt2", sizes={axis: 8}).graph) == nodes(graph)


def model_json(path):
    with zipfile.ZipFile(path) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("models/model.json")]
        return json.loads(archive.read(name))


def input_names(path):
    return {f"{i['as_tensor']['name']}:0" for i in model_json(path)["graph_module"]["graph"]["inputs"]}


def symbol_of(path, size):
    (symbol,) = model_json(path)["range_constraints"]
    return {symbol: size}


def test_missing_and_odd_sizes_are_refused_in_one_message(archives):
    path = archives["conv*"]
    (symbol,) = symbol_of(path, 1)
    with pytest.raises(
        InputError, match=rf'"{symbol}" is a symbolic dimension \(4 in the example.*--dim {symbol}=SIZE'
    ):
        imported(path)
    with pytest.raises(InputError, match=rf"--dim {symbol}=65: the model takes at least 2 and at most 64"):
        imported(path, sizes={symbol: 65})
    with pytest.raises(InputError, match='no symbolic dimension "batsh"'):
        imported(path, sizes={symbol: 8, "batsh": 3})


def test_the_forward_pass_of_an_archive_is_that_of_a_captured_training_step(tmp_path):
    """Decomposed as PyTorch compiles it: the same operators, costs, sizes and reads."""
    aten = torch.ops.aten
    composed = [aten.conv2d.default, aten.conv_transpose2d.input, aten.linear.default, aten.max_pool2d.default]
    composed += [aten.batch_norm.default, aten.flatten.using_ints]
    table = torch.export.default_decompositions()
    program = exported("conv").run_decompositions({op: table[op] for op in composed if op in table})
    archive = imported(save(program, tmp_path / "net.pt2"))
    mode = fake_mode()
    build, shape = EXAMPLES["conv"]
    captured = capture(build_model(lambda: (build(), (torch.randn(shape),), lambda out: out.sum()), mode, "cpu"), mode)
    step = lower(captured, cost_model("flops").cost, "step")
    forward = [node for node in step.nodes if node.phase is Phase.FORWARD]
    assert nodes(archive) == [(node.op, node.cost, node.outputs) for node in forward]
    assert [node.inputs for node in archive.nodes] == [node.inputs for node in forward]
    assert archive.fixed_memory == step.fixed_memory


@pytest.mark.parametrize("name", ["mlp", "conv", "tied", "in_place", "squared"])
def test_a_dump_of_a_joint_graph_is_the_captured_step(tmp_path, name):
    """PyTorch's frontend knows by identity which tensors share memory; the dump has to tell it by operators."""
    mode = fake_mode()
    captured = capture(build_model(getattr(torch_models, name), mode, "cpu"), mode)
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = exported("conv")
    path = tmp_path / "program.txt"
    path.write_text(str(program))
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
    mode = fake_mode()
    captured = capture(build_model(torch_models.mlp, mode, "cpu"), mode)
    path = tmp_path / "step.py"
    path.write_text(captured.joint.print_readable(print_output=False))
    with pytest.raises(UsageError, match="has a backward pass already"):
        imported(str(path), backward=Backward.CHECKMATE)


def test_operators_of_others_need_a_price(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(
        'class Net(torch.nn.Module):\n    def forward(self, x: "bf16[2, 3]"):\n'
        '        y: "bf16[2, 30]" = torch.ops.mine.fancy.default(x);  x = None\n        return (y,)\n'
    )
    with pytest.raises(InputError, match=r"not PyTorch's own.*mine\.fancy \(1 times\).*--default-cost"):
        imported(str(path))
    (node,) = imported(str(path), default_cost=7).nodes
    assert (node.op, node.cost, node.outputs) == ("fancy", 7 * 60, (120,))


def test_control_flow_is_refused(tmp_path):
    class Choice(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    program = torch.export.export(Choice(), (torch.randn(3),))
    with pytest.raises(InputError, match="graph of its own, and how often that runs is not known"):
        imported(save(program, tmp_path / "choice.pt2"))
    path = tmp_path / "choice.txt"
    path.write_text(str(program))
    with pytest.raises(InputError, match=r"forward|graph of its own|expected one"):
        imported(str(path))


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_pickles_are_refused_unread(tmp_path):
    sprung = tmp_path / "sprung"
    for name in ("model.pt", "model.pth", "model", "model.pt2"):
        path = tmp_path / name
        torch.save(Trap(str(sprung)), path)
        with pytest.raises(InputError, match="reading those runs whatever code the file names"):
            imported(str(path))
    assert not sprung.exists()


def test_code_in_a_dump_is_not_run(tmp_path):
    sprung = tmp_path / "sprung"
    for line in (
        f"open({str(sprung)!r}, 'w')",
        f"y = open({str(sprung)!r}, 'w')",
        f"return open({str(sprung)!r}, 'w')",
    ):
        path = tmp_path / "net.py"
        path.write_text(f'class Net(torch.nn.Module):\n    def forward(self, x: "f32[3]"):\n        {line}\n')
        with pytest.raises(InputError):
            imported(str(path))
    assert not sprung.exists()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('y: "f32[3]" = torch.relu(x)\n        return (y,)', r"4: torch\.relu\(x\) calls no ATen operator"),
        ('y: "f32[s0*]" = torch.ops.aten.relu.default(x)\n        return (y,)', "no expression"),
        ('y: "q7[3]" = torch.ops.aten.relu.default(x)\n        return (y,)', "elements of an unknown size: q7"),
        ('y: "thing" = torch.ops.aten.relu.default(x)\n        return (y,)', 'is "thing", which is not understood'),
        ("return (x,)", "nothing is computed"),
        ("while x:\n            pass", "is not understood"),
        ("y = (", "not Python"),
    ],
)
def test_what_is_no_dump_is_refused_with_its_line(tmp_path, body, words):
    path = tmp_path / "net.py"
    path.write_text(f'# head\nclass Net(torch.nn.Module):\n    def forward(self, x: "f32[3]"):\n        {body}\n')
    with pytest.raises(InputError, match=words):
        imported(str(path))


def test_a_listing_without_shapes_is_refused(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text(str(torch.fx.symbolic_trace(nn.ReLU()).graph))
    with pytest.raises(InputError, match=r"without shapes and types.*print_readable"):
        model_format(str(path))


@pytest.mark.parametrize("change", ["version", "nodes", "types", "empty", "text", "two"])
def test_broken_archives_are_refused(archives, tmp_path, change):
    data = model_json(archives["conv"])
    if change == "version":
        data["schema_version"]["major"] = 9
    elif change == "nodes":
        data["graph_module"]["graph"]["nodes"][0].pop("outputs")
    elif change == "types":
        data["graph_module"]["graph"]["tensor_values"]["x"]["dtype"] = 99
    path = tmp_path / "net.pt2"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        if change != "empty":
            archive.writestr("net/models/model.json", "no" if change == "text" else json.dumps(data))
        if change == "two":
            archive.writestr("net/models/other.json", json.dumps(data))
    path.write_bytes(buffer.getvalue())
    with pytest.raises(InputError):
        imported(str(path))
    path.write_bytes(buffer.getvalue()[:10])
    with pytest.raises(InputError, match="not an archive"):
        imported(str(path))


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
    assert run(["convert", str(tmp_path / "g.json"), "--dim", "batch=8"]) == 2
    assert "are for models, and this is none" in capsys.readouterr().err
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


@pytest.mark.parametrize(
    "text", ["s0/2", "-s0", "s0//0", "__import__('os')", "s0.real", "'a'", "(", "2**99", "s0 if s0 else 1"]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - every one has words of its own
        evaluate(text, {"s0": 7})


def test_whether_a_reshape_is_a_view_is_what_pytorch_says():
    """All permutations and some slices of small tensors, to all shapes of as many elements."""
    import itertools

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


def test_archives_with_anything_in_the_wrong_place_are_read_or_refused(archives, tmp_path):
    """One place of the JSON is taken out or replaced; whatever comes of it is a good graph, or an error for users."""
    rng = random.Random(0)
    original = model_json(archives["block"])

    def places(data, path=()):
        items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
        for key, value in items:
            yield (*path, key)
            yield from places(value, (*path, key))

    everywhere = list(places(original))
    refused = 0
    for _ in range(120):
        data = copy.deepcopy(original)
        *way, last = rng.choice(everywhere)
        parent = data
        for key in way:
            parent = parent[key]
        if rng.random() < 0.3:
            del parent[last]
        else:
            parent[last] = rng.choice([None, -1, 0, "x", [], {}, True, 1.5, 10**30, {"as_int": -3}, ["a"]])
        path = tmp_path / "net.pt2"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("net/models/model.json", json.dumps(data))
        try:
            imported(str(path))
        except RematError:
            refused += 1
    assert 20 < refused < 100
