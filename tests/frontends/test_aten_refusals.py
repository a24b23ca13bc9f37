"""Archives and dumps that are broken, or do not say all: refused with a reason, and nothing in them is run."""

import io
import json
import zipfile

import pytest
import torch
from aten_models import imported, model_json, save, symbol_of
from torch import nn

from remat_cli.errors import InputError
from remat_cli.frontends.aten.symbols import evaluate
from remat_cli.frontends.models import model_format

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # PyTorch's own, when it copies trees


def test_missing_and_odd_sizes_are_refused_in_one_message(archives):
    path = archives["conv*"]
    (symbol,) = symbol_of(path, 1)
    with pytest.raises(
        InputError, match=rf'"{symbol}" is a symbolic dimension \(4 in the example.*sizes={{"{symbol}": SIZE}}'
    ):
        imported(path)
    with pytest.raises(
        InputError, match=rf"the size 65 of {symbol} is no good: the model takes at least 2 and at most 64"
    ):
        imported(path, sizes={symbol: 65})
    with pytest.raises(InputError, match='no symbolic dimension "batsh"'):
        imported(path, sizes={symbol: 8, "batsh": 3})


def test_operators_of_others_need_a_price(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(
        'class Net(torch.nn.Module):\n    def forward(self, x: "bf16[2, 3]"):\n'
        '        y: "bf16[2, 30]" = torch.ops.mine.fancy.default(x);  x = None\n        return (y,)\n'
    )
    with pytest.raises(InputError, match=r"not PyTorch's own.*mine\.fancy \(1 times\).*default_cost=1"):
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
        ('y: "f32[s0*]" = torch.ops.aten.relu.default(x)\n        return (y,)', "not an expression"),
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


@pytest.mark.parametrize(
    "text", ["s0/2", "-s0", "s0//0", "__import__('os')", "s0.real", "'a'", "(", "2**99", "s0 if s0 else 1"]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - every one has words of its own
        evaluate(text, {"s0": 7})
