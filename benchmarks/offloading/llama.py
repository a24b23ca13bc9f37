"""A training step like Llama's, in plain PyTorch, for ``remat export torch:``."""

import torch
from torch import nn
from torch.nn import functional

_LAYERS, _WIDTH, _HEADS, _GROUPS, _HIDDEN, _WORDS = 6, 1024, 16, 4, 2816, 32000
_BATCH, _LENGTH = 4, 1024


class _Block(nn.Module):
    """Attention with fewer heads for keys and values, and a gated layer, each behind a norm of root mean squares."""

    def __init__(self) -> None:
        super().__init__()
        head = _WIDTH // _HEADS
        self.first, self.second = nn.RMSNorm(_WIDTH), nn.RMSNorm(_WIDTH)
        self.queries = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.keys = nn.Linear(_WIDTH, _GROUPS * head, bias=False)
        self.values = nn.Linear(_WIDTH, _GROUPS * head, bias=False)
        self.output = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(_WIDTH, _HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(_HIDDEN, _WIDTH, bias=False)

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The states after the block; ``turns`` are the cosines and sines of the positions."""
        batch, length, _ = x.shape
        y = self.first(x)
        split = [layer(y).view(batch, length, -1, _WIDTH // _HEADS).transpose(1, 2) for layer in self.layers]
        queries, keys = (_turned(part, *turns) for part in split[:2])
        keys, values = (part.repeat_interleave(_HEADS // _GROUPS, dim=1) for part in (keys, split[2]))
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, length, _WIDTH))
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    @property
    def layers(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        """The layers that make queries, keys and values."""
        return self.queries, self.keys, self.values


def _turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


class Llama(nn.Module):
    """The language model; it returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.blocks = nn.ModuleList(_Block() for _ in range(_LAYERS))
        self.norm = nn.RMSNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _WORDS, bias=False)
        half = torch.arange(0, _WIDTH // _HEADS, 2) / (_WIDTH // _HEADS)
        angles = torch.outer(torch.arange(_LENGTH).float(), 10000.0**-half).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of predicting ``targets``."""
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, (self.cosine, self.sine))
        scores = self.head(self.norm(x))
        return functional.cross_entropy(scores.view(-1, _WORDS), targets.view(-1))


def step() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model and a batch."""
    tokens = torch.zeros(_BATCH, _LENGTH, dtype=torch.long)
    return Llama(), (tokens, tokens)
