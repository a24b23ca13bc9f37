"""Functions that build models and read numbers while they do: exported without memory where that is possible."""

import copy
import random
import sys
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from remat_cli.cli.main import run
from remat_cli.errors import CaptureFailed
from remat_cli.frontends.torch.capture import construction
from remat_cli.frontends.torch.capture.construction import build_model
from remat_cli.frontends.torch.capture.naming import place_in
from remat_cli.frontends.torch.compat.fake_tensors import is_fake, new_fake_mode
from remat_cli.frontends.torch.export import export_model
from remat_cli.graph.io import dump_document, graph_to_document

WIDE = 600
"""Width of a layer whose weights are larger than what is made for real."""


def exported(build, tell=None):
    """The graph, and what was told; none of the generators has moved."""
    told = []
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    graph = export_model(build, name="x", source="torch:x", tell=told.append)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == before[1:]
    return graph, told


def mean(out):
    return out.square().mean()


def truncated():
    """As vision transformers are initialized, with a weight of 14 GB."""
    layer = nn.Linear(60_000, 60_000)
    nn.init.trunc_normal_(layer.weight, std=0.02)
    nn.init.trunc_normal_(layer.bias, mean=1, std=1, a=-1, b=0)
    return layer, (torch.randn(1, 60_000),), mean


def rates():
    """As stochastic depth: the rates come from a tensor."""
    layers = []
    for rate in torch.linspace(0, 0.3, 3).tolist():
        layers += [nn.Linear(8, 8), nn.Dropout(rate)]
    return nn.Sequential(*layers), (torch.randn(4, 8),), mean


def with_numpy():
    layer = nn.Linear(8, 8)
    orthogonal, _ = numpy.linalg.qr(layer.weight.detach().numpy())
    layer.weight.data = torch.from_numpy(orthogonal)
    return layer, (torch.from_numpy(numpy.random.rand(4, 8)).float(),), mean


def sized():
    """A table of positions decides on a size, as in windowed attention."""
    grid = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
    index = (grid[:, :, None] - grid[:, None, :]).sum(0)
    index -= index.min()
    layer = nn.Embedding(int(index.max()) + 1, 8)
    return layer, (index,), mean


def of_large():
    """A number that only real weights give; tied, and a loss that refers to a weight."""
    first, second = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
    second.weight = first.weight
    scale = 1 / torch.linalg.vector_norm(first.weight).item()
    module = nn.Sequential(first, nn.BatchNorm1d(WIDE), second)
    return module, (torch.randn(3, WIDE),), lambda out: scale * (mean(out) + mean(first.weight))


def small_from_large():
    """Writes what is computed from a large tensor into a small one."""
    layer = nn.Linear(WIDE, WIDE)
    with torch.no_grad():
        layer.bias.copy_(layer.weight.mean(0))
    return layer, (torch.randn(3, WIDE),), mean


def caught():
    """The function itself catches the error of a tensor without data, and would go another way."""
    layer = nn.Linear(WIDE, WIDE)
    try:
        deep = layer.weight.abs().max().item() > 0
    except Exception:
        deep = False
    return nn.Sequential(layer, *[nn.ReLU()] * deep), (torch.randn(3, WIDE),), mean


@pytest.mark.parametrize(
    ("build", "operations"),
    [
        (truncated, {"addmm"}),
        (rates, {"native_dropout"}),
        (with_numpy, {"addmm"}),
        (sized, {"embedding"}),
        (of_large, {"addmm", "mean"}),
        (small_from_large, {"addmm"}),
        (caught, {"relu"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_function_that_reads_numbers_exports(build, operations):
    graph, told = exported(build)
    assert operations <= {node.op for node in graph.nodes}
    assert told == []
    again, _ = exported(build)
    assert dump_document(graph_to_document(again)) == dump_document(graph_to_document(graph))


def test_tied_weights_and_what_a_loss_refers_to_stay_the_same_tensors():
    graph, _ = exported(of_large)
    places = graph.metadata["places"]
    weights = [place["name"] for place in places if place["shape"] == [WIDE, WIDE]]
    assert weights == ["0.weight"]
    gradients = [places[result["of"]]["name"] for result in graph.metadata["results"] if result["kind"] == "gradient"]
    assert sorted(gradients) == ["0.bias", "0.weight", "1.bias", "1.weight", "2.bias"]
    model = of_large()[0]
    held = [*model.parameters(), *model.buffers()]
    assert graph.fixed_memory == sum(t.numel() * t.element_size() for t in held) + 3 * WIDE * 4


@pytest.mark.parametrize("build", [rates, of_large, with_numpy, sized])
def test_all_tensors_are_fake_in_the_end(build):
    model = build_model(build, new_fake_mode(), "cpu", lambda text: None)
    held = [*model.module.parameters(), *model.module.buffers(), *model.inputs]
    assert held
    assert all(map(is_fake, held))
    assert all(isinstance(p, nn.Parameter) and p.requires_grad and p.is_leaf for p in model.module.parameters())


def test_numbers_are_real_numbers():
    graph, _ = exported(rates)
    shares = [node.payload["args"][1]["float"] for node in graph.nodes if node.op == "native_dropout"]
    assert [float.fromhex(share) for share in shares] == pytest.approx([0.15, 0.3])  # none for the rate 0


class Recorded(list):
    """Numbers drawn in the function."""


DRAWN = Recorded()


def draws():
    DRAWN.append((random.random(), float(numpy.random.rand()), torch.rand(()).item()))
    return nn.Linear(2, 2), (torch.ones(1, 2),), mean


def test_what_becomes_large_by_its_type_alone_is_fake():
    """Real numbers of 0.8 MB stay real in a type of that size, and not in one twice as wide."""
    seen = []

    def build():
        small = torch.zeros(construction.SMALL // 5)
        same, wide = small.to(torch.int32), small.to(torch.float64)
        seen.extend(map(is_fake, (small, small.to(torch.uint8), same, wide)))
        return nn.Linear(8, 8), (torch.randn(4, 8),), mean

    build_model(build, new_fake_mode(), "cpu")
    assert seen == [False, False, False, True]


def test_random_numbers_are_the_same_every_time():
    DRAWN.clear()
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        exported(draws)
    assert len(DRAWN) == 2
    assert DRAWN[0] == DRAWN[1]


def test_a_large_model_is_announced_before_its_memory_is_taken(monkeypatch):
    monkeypatch.setattr(construction, "LARGE", 1 << 20)
    _, told = exported(of_large)
    [text] = told
    assert "of_large() is built with real tensors, since it reads a number that is computed from a large tensor" in text
    assert "test_torch_construction.py:" in text
    assert "in of_large: they take 2.88 MB so far" in text
    assert "are available" in text


def grows():
    """Most of its memory comes after the number that is read."""
    first = nn.Linear(WIDE, WIDE)
    first.weight.sum().item()
    return nn.Sequential(first, *[nn.Linear(WIDE, WIDE) for _ in range(4)]), (torch.randn(3, WIDE),), mean


def test_what_grows_later_is_announced_too_and_refused_before_it_fills_the_machine(monkeypatch):
    monkeypatch.setattr(construction, "LARGE", 4 << 20)
    assert len(exported(grows)[1]) == 1
    monkeypatch.setattr(construction, "available_bytes", lambda: 5 << 20)
    with pytest.raises(CaptureFailed, match=r"cannot be built without memory, since it reads a number .* available"):
        exported(grows)
    monkeypatch.setattr(construction, "available_bytes", lambda: 1 << 20)
    with pytest.raises(CaptureFailed, match=r"takes 1\.44 MB and more, of 1\.049 MB available") as raised:
        exported(grows)
    assert "small tensors" in raised.value.hint


def test_memory_that_was_freed_does_not_count(monkeypatch):
    monkeypatch.setattr(construction, "LARGE", 4 << 20)
    monkeypatch.setattr(construction, "available_bytes", lambda: 6 << 20)

    def build():
        first = nn.Linear(WIDE, WIDE)
        for _ in range(9):
            first = nn.Linear(WIDE, WIDE)
            first.weight.sum().item()
        return first, (torch.randn(3, WIDE),), mean

    assert exported(build)[1] == []


def test_the_system_says_how_much_memory_is_available(monkeypatch):
    if sys.platform == "linux":
        assert construction.available_bytes() > 1 << 20

    def missing(*args, **options):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert construction.available_bytes() is None


def test_without_a_listener_it_is_told_on_standard_error(monkeypatch, capsys):
    monkeypatch.setattr(construction, "LARGE", 1 << 20)
    export_model(of_large, name="x", source="torch:x", cost="flops")
    assert capsys.readouterr().err.startswith("remat: of_large() is built with real tensors, since it reads a number")


def loaded(path):
    def build():
        layer = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 3))
        layer.load_state_dict(torch.load(path))
        return layer.bfloat16(), (torch.randn(3, WIDE, dtype=torch.bfloat16),), mean

    return build


def test_weights_may_be_loaded(tmp_path):
    """Without data: what is loaded into small tensors has none either."""
    torch.save(nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 3)).state_dict(), tmp_path / "weights.pt")
    graph, told = exported(loaded(tmp_path / "weights.pt"))
    assert told == []
    assert {place["dtype"] for place in graph.metadata["places"]} == {"bfloat16"}


def test_a_copy_of_a_module_is_made_without_a_warning():
    def build():
        layer = nn.Linear(WIDE, WIDE)
        return nn.Sequential(layer, copy.deepcopy(layer)), (torch.randn(3, WIDE),), mean

    graph, _ = exported(build)
    assert [place["name"] for place in graph.metadata["places"] if place["kind"] == "parameter"] == [
        "0.weight", "0.bias", "1.weight", "1.bias",
    ]  # fmt: skip


SOURCE = """\
import torch
from helpers import layer

def build():
    return layer(3), (torch.randn(2, 4),), torch.sum

def late():
    raise KeyError("colour")
"""
HELPERS = """\
import torch

def layer(width):
    torch.nn.functional.linear(torch.zeros(2, 4), torch.zeros(3, 5))
"""


def test_an_error_of_the_user_has_file_line_and_function_and_no_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SOURCE, encoding="utf-8")
    Path("helpers.py").write_text(HELPERS, encoding="utf-8")
    Path("broken.py").write_text("import torch\n\nwidth = 1 / 0\n", encoding="utf-8")
    for source, words in (
        ("train.py:build", "build() failed at helpers.py:4 in layer: RuntimeError: "),
        ("train.py:late", "late() failed at train.py:8 in late: KeyError: 'colour'"),
        ("broken.py:build", "broken.py: cannot be loaded: ZeroDivisionError at broken.py:3: division by zero"),
    ):
        assert run(["export", f"torch:{source}", "-o", "out.json"]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert "Traceback" not in said
        assert not Path("out.json").exists()
    monkeypatch.delitem(sys.modules, "helpers")


def test_a_place_in_a_package_comes_with_the_users_own():
    library = str(Path(torch.__file__).parent / "nn" / "init.py")
    package = "/usr/lib/python3/site-packages/timm/layers/drop.py"
    frames = [("/home/me/train.py", 5, "build"), (package, 219, "rates"), (library, 3, "trunc_normal_")]
    assert place_in(frames) == "timm/layers/drop.py:219 in rates, called from train.py:5 in build"
    assert place_in(frames[:1]) == "train.py:5 in build"
    assert place_in(frames[1:2]) == "timm/layers/drop.py:219 in rates"
    assert place_in(frames[2:]) == ""
    assert place_in([("/home/me/train.py", 5, "<lambda>")]) == "train.py:5"
