"""The model of the comparison: a transformer whose blocks can be checkpointed in PyTorch's own ways."""

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

_KEPT = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
"""What selective checkpointing keeps: products of matrices, which are expensive to recompute."""


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


class Model(nn.Module):
    """Blocks and a loss; ``way`` is ``plain``, ``blocks``, ``sequential`` or ``selective``."""

    def __init__(self, depth: int, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(depth)))
        self.head = nn.Linear(width, width)
        self.way = "plain"

    def forward(self, x: Any) -> Any:
        if self.way == "plain":
            x = self.blocks(x)
        elif self.way == "sequential":
            x = checkpoint_sequential(self.blocks, max(1, round(len(self.blocks) ** 0.5)), x, use_reentrant=False)
        else:
            options = {} if self.way == "blocks" else {"context_fn": _contexts}
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False, **options)
        return self.head(x).square().mean()


def _contexts() -> Any:
    def policy(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> Any:
        return CheckpointPolicy.MUST_SAVE if operator in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
