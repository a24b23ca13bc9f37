"""The models of the comparison under torch.compile; each a function that returns a module and its inputs."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal attention; with fewer heads for keys than for queries, and rotated positions, as in Llama."""

    def __init__(self, width: int, heads: int, shared: int = 1, *, causal: bool = True, rotate: bool = False) -> None:
        super().__init__()
        self.heads, self.shared, self.causal, self.rotate = heads, shared, causal, rotate
        self.query = nn.Linear(width, width, bias=not rotate)
        self.keys = nn.Linear(width, 2 * width // shared, bias=not rotate)
        self.out = nn.Linear(width, width, bias=not rotate)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        size = width // self.heads
        q = self.query(x).view(batch, length, self.heads, size).transpose(1, 2)
        k, v = self.keys(x).view(batch, length, 2, self.heads // self.shared, size).permute(2, 0, 3, 1, 4)
        if self.rotate:
            q, k = _rotated(q), _rotated(k)
        if self.shared > 1:
            k, v = k.repeat_interleave(self.shared, 1), v.repeat_interleave(self.shared, 1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def _rotated(x: Any) -> Any:
    length, size = x.shape[-2:]
    angles = torch.arange(length, device=x.device)[:, None] / 10000 ** (
        torch.arange(0, size, 2, device=x.device) / size
    )
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Block(nn.Module):
    """A block of a transformer: attention, then ``inner``."""

    def __init__(self, attention: nn.Module, norms: list[nn.Module], inner: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention, self.inner, self.drop = attention, inner, nn.Dropout(dropout)
        self.first, self.second = norms

    def forward(self, x: Any) -> Any:
        x = x + self.drop(self.attention(self.first(x)))
        return x + self.drop(self.inner(self.second(x)))


class Gated(nn.Module):
    """The inner part of a Llama block."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """A mixture of experts that computes all of them and adds the two chosen ones by weight."""

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, inner) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, width) / inner**0.5)

    def forward(self, x: Any) -> Any:
        shares, chosen = self.router(x).softmax(-1).topk(2, -1)
        weights = torch.zeros(*x.shape[:-1], len(self.up), device=x.device).scatter(-1, chosen, shares)
        made = torch.einsum("blw,ewi->ebli", x, self.up)
        return torch.einsum("ebli,eiw,ble->blw", functional.gelu(made), self.down, weights)


class Language(nn.Module):
    """Tokens in, loss out."""

    def __init__(self, blocks: list[nn.Module], width: int, tokens: int, norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(tokens, width), nn.Linear(width, tokens, bias=False)
        self.blocks, self.norm, self.drop = nn.ModuleList(blocks), norm, nn.Dropout(dropout)

    def forward(self, tokens: Any, wanted: Any) -> Any:
        x = self.drop(self.embedding(tokens))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), wanted.flatten())


class Images(nn.Module):
    """Images in, loss of a classification out."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module], width: int) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = stem, nn.ModuleList(blocks), nn.Linear(width, 10)

    def forward(self, images: Any, wanted: Any) -> Any:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x.flatten(2).mean(2) if x.dim() == 4 else x.mean(1)), wanted)


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, given: int, inner: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_normed(given, inner, 1),
            nn.ReLU(),
            *_normed(inner, inner, 3, stride),
            nn.ReLU(),
            *_normed(inner, 4 * inner),
        )
        same = stride == 1 and given == 4 * inner
        self.side = nn.Identity() if same else nn.Sequential(*_normed(given, 4 * inner, 1, stride))

    def forward(self, x: Any) -> Any:
        return functional.relu(self.body(x) + self.side(x))


def _normed(given: int, made: int, size: int = 1, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(given, made, size, stride, size // 2, bias=False), nn.BatchNorm2d(made)


class Patches(nn.Module):
    """Images as rows of patches."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, size, size)

    def forward(self, images: Any) -> Any:
        return self.cut(images).flatten(2).transpose(1, 2)


class UNet(nn.Module):
    """A U-Net; the loss is the mean square of what it makes."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**k for k in range(depth + 1)]
        self.down = nn.ModuleList([_twice(a, b) for a, b in zip([3, *widths], widths, strict=False)])
        self.up = nn.ModuleList([_twice(a + b, a) for a, b in pairwise(widths)][::-1])

    def forward(self, x: Any) -> Any:
        kept = []
        for part in self.down:
            x = part(functional.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        for part, side in zip(self.up, kept[-2::-1], strict=True):
            x = part(torch.cat([functional.interpolate(x, scale_factor=2.0), side], 1))
        return x.square().mean()


def _twice(given: int, made: int) -> nn.Module:
    return nn.Sequential(*_normed(given, made, 3), nn.ReLU(), *_normed(made, made, 3), nn.ReLU())


def _tokens(batch: int, length: int, tokens: int) -> tuple[Any, Any]:
    given = torch.randint(0, tokens, (batch, length))
    return given, given.roll(-1, 1)


def _images(batch: int, size: int) -> tuple[Any, Any]:
    return torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,))


def _mixed(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def _blocks(
    depth: int, width: int, norm: Callable[[int], nn.Module], inner: Callable[[], nn.Module], **options: Any
) -> list[nn.Module]:
    """Blocks with attention of four heads; ``options`` are those of the attention, and ``dropout``."""
    dropout = options.pop("dropout", 0.0)
    attentions = (Attention(width, 4, **options) for _ in range(depth))
    return [Block(attention, [norm(width), norm(width)], inner(), dropout) for attention in attentions]


def gpt(depth: int = 4, width: int = 128, dropout: float = 0.0, batch: int = 8, length: int = 128) -> Any:
    blocks = _blocks(depth, width, nn.LayerNorm, lambda: _mixed(width), dropout=dropout)
    return Language(blocks, width, 256, nn.LayerNorm(width), dropout), _tokens(batch, length, 256)


def gpt_dropout(**sizes: int) -> Any:
    return gpt(dropout=0.1, **sizes)


def llama(depth: int = 4, width: int = 128, batch: int = 8, length: int = 128) -> Any:
    blocks = _blocks(depth, width, nn.RMSNorm, lambda: Gated(width, 3 * width), shared=2, rotate=True)
    return Language(blocks, width, 256, nn.RMSNorm(width)), _tokens(batch, length, 256)


def moe(depth: int = 3, width: int = 96, batch: int = 4, length: int = 96) -> Any:
    blocks = _blocks(depth, width, nn.LayerNorm, lambda: Experts(width, 2 * width, 4))
    return Language(blocks, width, 256, nn.LayerNorm(width)), _tokens(batch, length, 256)


def vit(depth: int = 4, width: int = 96, batch: int = 8, size: int = 64) -> Any:
    blocks = _blocks(depth, width, nn.LayerNorm, lambda: _mixed(width), causal=False)
    return Images(Patches(8, width), blocks, width), _images(batch, size)


def resnet(width: int = 8, batch: int = 4, size: int = 64) -> Any:
    """ResNet-50 with an eighth of its channels."""
    blocks: list[nn.Module] = []
    given = width
    for k, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            blocks.append(Bottleneck(given, width * 2**k, 2 if k and not block else 1))
            given = 4 * width * 2**k
    stem = nn.Sequential(*_normed(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return Images(stem, blocks, given), _images(batch, size)


def unet(width: int = 16, depth: int = 3, batch: int = 4, size: int = 64) -> Any:
    return UNet(width, depth), (torch.randn(batch, 3, size, size),)


def deep(depth: int = 12, width: int = 64, batch: int = 4, length: int = 64) -> Any:
    """Many small blocks in the style of Llama: PyTorch's peaks go up again at larger budgets (pytorch #197838)."""
    return llama(depth=depth, width=width, batch=batch, length=length)


def wide(depth: int = 6, width: int = 256, batch: int = 256) -> Any:
    """Layers of one width."""
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1))]
    return Squares(nn.Sequential(*layers)), (torch.randn(batch, width),)


class Squares(nn.Module):
    """The mean square of what ``body`` makes."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, *inputs: Any) -> Any:
        return self.body(*inputs).square().mean()


MODELS: dict[str, Callable[..., Any]] = {
    made.__name__: made for made in (gpt, gpt_dropout, llama, moe, vit, resnet, unet, deep, wide)
}

_ON_CUDA: dict[str, dict[str, int]] = {
    "gpt": {"depth": 8, "width": 512, "batch": 16, "length": 512},
    "gpt_dropout": {"depth": 8, "width": 512, "batch": 16, "length": 512},
    "llama": {"depth": 8, "width": 512, "batch": 16, "length": 512},
    "moe": {"depth": 4, "width": 256, "batch": 8, "length": 512},
    "vit": {"depth": 8, "width": 384, "batch": 32, "size": 128},
    "resnet": {"width": 64, "batch": 16, "size": 128},
    "unet": {"width": 32, "batch": 8, "size": 256},
    "deep": {"depth": 32, "width": 256, "batch": 8, "length": 256},
    "wide": {"width": 2048, "batch": 8192},
}
"""Sizes that keep a GPU busy; those of a CPU are the defaults."""


def made(name: str, device: str) -> Any:
    """A model and its inputs, in a size for ``device``."""
    sizes = _ON_CUDA[name] if device == "cuda" else {}
    return MODELS[name](**sizes)
