"""The models of the comparison: each returns its loss, and computes its wide part in a way that can be chosen.

``plain`` is what a user writes first, ``hand:8`` a function with gradients of its own that computes eight parts one
after the other, and ``torch:512`` PyTorch's ``linear_cross_entropy`` for 512 rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.splitting.by_hand import chunked_loss, chunked_mean, chunked_pixels


class Block(nn.Module):
    """A block of a transformer: as GPT-2 has it, or, if ``gated``, as Llama has it."""

    def __init__(self, width: int, *, gated: bool) -> None:
        super().__init__()
        self.heads, self.gated = max(1, width // 32), gated
        norm = nn.RMSNorm if gated else nn.LayerNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=not gated), nn.Linear(width, width, bias=not gated)
        inner = width * 8 // 3 if gated else width * 4
        self.up, self.down = nn.Linear(width, inner, bias=not gated), nn.Linear(inner, width, bias=not gated)
        if gated:
            self.gate = nn.Linear(width, inner, bias=False)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        z = self.norm2(x)
        inner = functional.silu(self.gate(z)) * self.up(z) if self.gated else functional.gelu(self.up(z))
        return x + self.down(inner)


class Language(nn.Module):
    """A language model and its loss. The head of GPT-2 shares the weight of the embedding, that of Llama does not."""

    def __init__(self, words: int, width: int, depth: int, *, gated: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width, gated=gated) for _ in range(depth)))
        self.norm = nn.RMSNorm(width) if gated else nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        nn.init.normal_(self.words.weight, std=0.02)
        if not gated:
            self.head.weight = self.words.weight
        self.way = "plain"

    def forward(self, words: Any, targets: Any) -> Any:
        x = self.norm(self.blocks(self.words(words))).flatten(0, 1)
        way, _, number = self.way.partition(":")
        if way == "hand":
            return chunked_loss(x, self.head.weight, targets.flatten(), int(number))
        if way == "torch":
            options = nn.LinearCrossEntropyOptions(batch_chunk_size=int(number)) if number != "auto" else None
            options = options or nn.LinearCrossEntropyOptions()
            return functional.linear_cross_entropy(x, self.head.weight, targets.flatten(), options=options)
        return functional.cross_entropy(self.head(x), targets.flatten())


class Mlp(nn.Module):
    """Layers that widen every token and narrow it again."""

    def __init__(self, width: int, inner: int, depth: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.ups = nn.ModuleList(nn.Linear(width, inner) for _ in range(depth))
        self.downs = nn.ModuleList(nn.Linear(inner, width) for _ in range(depth))
        self.way = "plain"

    def forward(self, x: Any, targets: Any) -> Any:
        way, _, number = self.way.partition(":")
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            z = norm(x)
            x = x + (chunked_mean(up, down, z, int(number)) if way == "hand" else down(functional.gelu(up(z))))
        return functional.mse_loss(x, targets)


class Segmentation(nn.Module):
    """Features of a quarter of the resolution, a class for every pixel, and the loss in full resolution."""

    def __init__(self, width: int, classes: int, depth: int) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, width, 3, stride=4, padding=1), nn.GELU()]
        for _ in range(depth):
            stem += [nn.Conv2d(width, width, 3, padding=1), nn.GELU()]
        self.stem, self.head = nn.Sequential(*stem), nn.Conv2d(width, classes, 1)
        self.way = "plain"

    def forward(self, images: Any, targets: Any) -> Any:
        x = self.stem(images)
        way, _, number = self.way.partition(":")
        if way == "hand":
            return chunked_pixels(x, self.head.weight, self.head.bias, targets, int(number))
        full = functional.interpolate(self.head(x), scale_factor=4, mode="bilinear", align_corners=False)
        return functional.cross_entropy(full, targets)


@dataclass(frozen=True, slots=True)
class Case:
    """A model of the comparison.

    Attributes:
        name: Its name on the page.
        build: Makes the module and its inputs; small ones if asked.
        hand: Numbers of parts for the ways by hand.
        torch: Numbers of rows for ``linear_cross_entropy``; none if it cannot compute the loss.
        wide: What is widest, in words.
    """

    name: str
    build: Callable[[bool], tuple[Any, tuple[Any, ...]]]
    hand: tuple[int, ...]
    torch: tuple[str, ...]
    wide: str


def _language(words: int, width: int, depth: int, tokens: int, *, gated: bool) -> Callable[[bool], Any]:
    def build(quick: bool) -> Any:
        count, size, layers, length = (1000, 32, 1, 64) if quick else (words, width, depth, tokens // 4)
        batch = torch.randint(0, count, (4, length)), torch.randint(0, count, (4, length))
        return Language(count, size, layers, gated=gated), batch

    return build


def _mlp(quick: bool) -> Any:
    width, inner, depth, tokens = (32, 128, 2, 256) if quick else (64, 512, 2, 32768)
    return Mlp(width, inner, depth), (torch.randn(tokens, width), torch.randn(tokens, width))


def _segmentation(quick: bool) -> Any:
    width, classes, depth, images, size = (8, 40, 1, 4, 32) if quick else (32, 150, 2, 8, 192)
    batch = torch.randn(images, 3, size, size), torch.randint(0, classes, (images, size, size))
    return Segmentation(width, classes, depth), batch


_PARTS = (8, 32)
CASES = (
    Case("GPT-2-like, 50k words", _language(50257, 96, 2, 1024, gated=False), _PARTS, ("128", "auto"), "logits"),
    Case("GPT-2-like, 128k words", _language(128256, 64, 2, 512, gated=False), _PARTS, ("64", "auto"), "logits"),
    Case("Llama-like, 32k words", _language(32000, 128, 4, 1024, gated=True), _PARTS, ("128", "auto"), "logits"),
    Case("MLP, 32k tokens", _mlp, (8, 32), (), "hidden layer"),
    Case("segmentation", _segmentation, (4, 8), (), "logits"),
)
