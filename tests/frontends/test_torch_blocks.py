"""Graphs of models with many equal blocks, from few of them: the same as those of the whole model, or not at all."""

import json
import random
import re

import pytest
import torch
from torch import nn

import remat_cli as remat
from remat_cli.frontends.repetition import extrapolated, extrapolated_texts, period
from remat_cli.frontends.torch import blocks as by_blocks
from remat_cli.frontends.torch.capture.construction import build_model
from remat_cli.frontends.torch.compat.fake_tensors import new_fake_mode
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.measure.eager import eager_graph


class Residual(nn.Module):
    def __init__(self, width, *, wide=False, scale=None):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 6 * width if wide else 4 * width)
        self.down = nn.Linear(6 * width if wide else 4 * width, width, bias=not wide)
        self.scale = scale

    def forward(self, hidden):
        changed = self.down(nn.functional.gelu(self.up(self.norm(hidden))))
        return hidden + (changed if self.scale is None else self.scale * changed)


class Stack(nn.Module):
    """Blocks between an embedding and a head; ``kind`` says how they are called."""

    def __init__(self, members, kind):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.layers = nn.Sequential(*members) if kind == "sequential" else nn.ModuleList(members)
        self.head = nn.Linear(16, 50)
        self.kind, self.count = kind, len(members)

    def forward(self, tokens):
        first = hidden = self.table(tokens)
        shared = hidden.mean(-1, keepdim=True)
        if self.kind == "sequential":
            hidden = self.layers(hidden)
        elif self.kind == "indexed":
            for k in range(self.count):
                hidden = self.layers[k](hidden)
        else:
            for k, layer in enumerate(self.layers):
                hidden = layer(hidden)
                if self.kind == "shared":
                    hidden = hidden + shared
                if self.kind == "later" and k == 9:
                    hidden = hidden + first
                if self.kind == "numbered":
                    hidden = hidden / (k + 1)
                if self.kind == "growing":
                    hidden = hidden[:, k:]
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, : hidden.shape[1]].flatten())


def members_of(name, count):
    return [
        Residual(16, wide=name == "every-third" and k % 3 == 2, scale=k if name == "scaled" and k > 8 else None)
        for k in range(count)
    ]


def step(kind, count, members="equal"):
    def build():
        model = Stack(members_of(members, count), kind)
        if members == "frozen":
            model.table.requires_grad_(False)
            for layer in model.layers:
                layer.up.requires_grad_(False)
        return model, (torch.randint(0, 50, (4, 32)),)

    return build


def same(one, other):
    """Whether two graphs are equal in all that a document holds."""
    return all(json.dumps(a) == json.dumps(b) for a, b in zip(document(one), document(other), strict=True))


def document(graph):
    nodes = [
        [n.id, n.cost, n.inputs, n.outputs, n.workspace, n.recompute, n.offload, n.op, n.phase, n.payload, n.queue]
        for n in graph.nodes
    ]
    return [graph.name, graph.outputs, graph.cost_unit, graph.fixed_memory, graph.metadata, nodes]


@pytest.fixture
def captured(monkeypatch):
    """The graph from few blocks, and how few, though they are all of a model that is captured quickly."""
    monkeypatch.setattr(by_blocks, "LARGEST_SHARE", 1.0)

    def export(build):
        exported = by_blocks.export_by_blocks(build, "stack", "x", eager=False)
        return exported.graph, exported.few

    return export


@pytest.mark.parametrize(
    ("kind", "members", "count"),
    [
        ("list", "equal", 12),
        ("sequential", "equal", 13),
        ("shared", "equal", 12),
        ("list", "every-third", 26),
        ("list", "frozen", 12),
        ("numbered", "equal", 12),
    ],
)
def test_the_graph_of_few_blocks_is_that_of_the_whole_model(captured, kind, members, count):
    graph, said = captured(step(kind, count, members))
    whole = export_model(step(kind, count, members), "stack", "x")
    few = "5, 8 and 11" if members == "every-third" else "3, 4 and 5"
    assert said == f"the graph of {count} blocks follows from those of {few} of them"
    assert same(graph, whole)
    assert remat.solve(graph, "90%").report.valid


@pytest.mark.parametrize(
    ("kind", "members"), [("later", "equal"), ("growing", "equal"), ("indexed", "equal"), ("list", "scaled")]
)
def test_what_other_blocks_do_otherwise_is_captured(captured, kind, members):
    graph, said = captured(step(kind, 12, members))
    assert said == ""
    assert same(graph, export_model(step(kind, 12, members), "stack", "x"))


def test_eager_mode_follows_from_few_blocks_too(monkeypatch):
    monkeypatch.setattr(by_blocks, "LARGEST_SHARE", 1.0)
    build, mode = step("list", 12), new_fake_mode()
    whole = eager_graph(build_model(build, mode, "cpu"), mode, "stack")
    followed = []
    monkeypatch.setattr(by_blocks, "eager_graph", lambda *given: followed.append(1) or eager_graph(*given))
    assert same(by_blocks.eager_by_blocks(build, "stack"), whole)
    assert len(followed) == 3, "of the whole model it is not followed"


def test_few_blocks_are_captured_as_they_are(monkeypatch):
    model = Stack(members_of("equal", 19), "list")
    assert by_blocks.repeated_blocks(model) is None
    monkeypatch.setattr(by_blocks, "LARGEST_SHARE", 1.0)
    blocks = by_blocks.repeated_blocks(model)
    assert blocks.container is model.layers
    with blocks.only(3):
        assert len(model.layers) == 3
    assert len(model.layers) == 19
    assert by_blocks.repeated_blocks(Stack(members_of("every-third", 19), "list")) is None
    model.layers[7].up.weight.requires_grad_(False)
    assert by_blocks.repeated_blocks(model) is None


@pytest.mark.parametrize("count", range(1, 14))
@pytest.mark.parametrize("every", [1, 2, 3])
def test_blocks_that_are_left_out_are_whole_periods(every, count):
    blocks = by_blocks.Blocks(None, count, every)
    assert all((count - few) % every == 0 for few in blocks.captured)
    assert every + 2 <= blocks.fewest < 2 * every + 2
    assert blocks.fewest + (blocks.repetitions - 1) * every == count


def sequence(runs, count):
    """The texts of a rule that is written down: fixed and repeated runs, whose numbers are linear."""
    texts = []
    for k, run in enumerate(runs):
        for place in range(count if k % 2 else 1):
            texts += [re.sub("#", str(a + b * count + c * place), form) for form, a, b, c in run]
    return texts


@pytest.mark.parametrize("seed", range(60))
def test_rules_are_found_again(seed):
    def run(length, letters):
        return [(f"{pick(letters)}#.05", 30 + pick(range(9)), pick(range(4)), pick((-1, 0, 1))) for _ in range(length)]

    pick = random.Random(seed).choice
    lengths = [pick(range(1, 6)) if k % 2 else pick(range(4)) for k in range(pick([3, 5]))]
    runs = [run(length, "ab" if k % 2 else "xyz") for k, length in enumerate(lengths)]
    given = [{"": sequence(runs, count)} for count in (1, 2, 3)]
    found = extrapolated_texts(given, 9)
    if found is None:  # no text is invented if a rule is not found, but it is found if runs differ from what is around
        assert any(not length for length in lengths[2:-1:2])
    else:
        assert found == {"": sequence(runs, 9)}
    broken = [*given[:2], {"": [*given[2][""][:-1], given[2][""][-1] + "!"]}]
    assert extrapolated_texts(broken, 9) is None


def test_no_rule_is_found_where_there_is_none():
    assert extrapolated_texts([{"": ["a1"]}, {"": ["a2"]}, {"": ["a4"]}], 4) is None
    assert extrapolated_texts([{"": ["a1"]}, {"": ["a2"]}, {"": ["a3"]}], 9) == {"": ["a9"]}
    assert extrapolated_texts([{"": ["a"]}, {"b": ["a"]}, {"": ["a"]}], 4) is None
    assert extrapolated_texts([{"": ["a"]}, {"": ["a", "b"]}, {"": ["a", "b", "b"]}], 4) is None
    assert extrapolated_texts([{"": ["05"]}, {"": ["05", "05"]}, {"": ["05"] * 3}], 4) == {"": ["05"] * 4}
    chains = [remat.build_graph(f"unit-chain{{n={n}}}") for n in (9, 11, 14)]
    assert extrapolated(chains, 5) is None
    assert (period("ababa"), period("aaa"), period("abc"), period("a")) == (2, 1, 3, 1)
