"""Small language models whose regions run in parts, and what runs their steps."""

import functools

import torch
from torch import nn
from torch_plans import plain

from remat_cli.frontends.torch.document import read_step
from remat_cli.frontends.torch.execute.program import program
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.measure.memory import live_storages
from remat_cli.frontends.torch.measure.operations import place_tensors
from remat_cli.graph.splitting import split
from remat_cli.plan.derive import derive

WORDS, WIDTH, BATCH, LENGTH = 300, 16, 2, 15


class Block(nn.Module):
    """Attention and a layer of GPT-2, or a gated one as of Llama."""

    def __init__(self, gated, dropout, inner_dropout):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.RMSNorm(WIDTH) if gated else nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=not gated), nn.Linear(4 * WIDTH, WIDTH, bias=not gated)
        self.gate = nn.Linear(WIDTH, 4 * WIDTH, bias=False) if gated else None
        self.dropout, self.inner_dropout = nn.Dropout(dropout), nn.Dropout(inner_dropout)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, 2, 8).transpose(1, 2) for p in self.qkv(self.norm(x)).split(c, dim=2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.dropout(self.out(y))
        h = self.norm2(x)
        h = nn.functional.gelu(self.up(h)) if self.gate is None else nn.functional.silu(self.gate(h)) * self.up(h)
        return x + self.dropout(self.down(self.inner_dropout(h)))


class Language(nn.Module):
    """A small language model, with its loss, of the words themselves or, as in Transformers, of those that follow."""

    def __init__(
        self,
        gated=False,
        dropout=0.0,
        inner_dropout=0.0,
        smoothing=0.0,
        logits=False,
        weight=None,
        after="nothing",
        padding=None,
        follows=False,
    ):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=padding)
        self.blocks = nn.Sequential(*(Block(gated, dropout, inner_dropout) for _ in range(2)))
        self.head = nn.Linear(WIDTH, WORDS, bias=gated)
        if not gated:
            self.head.weight = self.words.weight
        self.smoothing, self.logits, self.reduction = smoothing, logits, "mean"
        self.after, self.follows = after, follows
        self.register_buffer("weight", weight)

    def forward(self, words, targets):
        logits = self.head(self.blocks(self.words(words)))
        if self.follows:
            targets = nn.functional.pad(targets, (0, 1), value=3)[..., 1:].contiguous()
        loss = nn.functional.cross_entropy(
            logits.view(-1, WORDS),
            targets.view(-1),
            weight=self.weight,
            ignore_index=3,
            label_smoothing=self.smoothing,
            reduction=self.reduction,
        )
        loss = loss / 2 if self.after == "half" else loss
        return (loss, logits) if self.logits else loss


KINDS = {
    "gpt": {},
    "llama": {"gated": True},
    "dropout": {"dropout": 0.1},
    "inner dropout": {"inner_dropout": 0.1},  # its mask is made outside
    "autocast": {},
    "weighted": {"weight": torch.rand(WORDS, dtype=torch.float64)},
    "half the loss": {"after": "half"},
}

EXACT = [kind for kind in KINDS if kind != "autocast"]
"""Kinds that compute in the type of their parameters."""


@functools.cache
def graph_of(kind="gpt", dtype=torch.float64, cost="flops", reduction="mean", shape=(BATCH, LENGTH), **options):
    """The graph of a language model with the regions that it offers."""

    def build():
        model = Language(**KINDS[kind], **options).to(dtype)
        model.reduction = reduction
        if kind == "autocast":
            model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
        return model, (torch.randint(0, WORDS, shape), torch.randint(0, WORDS, shape))

    return export_model(build, kind, "torch:language.py:build", cost=cost, split=True)


def ran(graph, statements, seed=0, places=None):
    """Results of statements on a CPU, with the bytes at the peak."""
    step = read_step(graph)
    places = place_tensors(step.given, "cpu", seed) if places is None else places
    number = next(k for k, place in enumerate(step.given) if place.kind == "input" and "int" in place.spec.dtype)
    targets = next(k for k in range(number + 1, len(step.given)) if "int" in step.given[k].spec.dtype)
    places[targets].view(-1)[::4] = 3  # ignored
    runnable = program(graph, statements, "cpu")
    tangents = [place for place in step.places if place.kind == "tangent"]
    torch.manual_seed(seed)
    with live_storages()(places) as live:
        results = runnable.run(places, lambda k: torch.ones((), dtype=getattr(torch, tangents[k].spec.dtype)))
    return results, graph.fixed_memory + live.peak_bytes


def whole(graph):
    return derive(graph, range(len(graph.nodes)))


def plan_in_parts(graph, parts):
    return plain(split(graph, parts))
