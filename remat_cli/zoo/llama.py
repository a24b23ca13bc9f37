"""Llama (Touvron et al., 2023), operator by operator: what its norms, rotations and activations really execute.

Shapes and operators are those of the reference implementation (github.com/meta-llama/llama3, ``llama/model.py``) and of
Llama 3 (Dubey et al., 2024, table 3), whose 8B model gives the defaults; ``depth=80,heads=64,width=8192,hidden=28672``
is its 70B model. Attention may run in chunks of queries, each with a softmax over all keys (Rabe and Staats, 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.zoo.base import NetworkArchitecture, option
from remat_cli.zoo.layers.common import add, cross_entropy, dense, silu, softmax
from remat_cli.zoo.layers.elementary import (
    causal_mask,
    join_rows,
    masked,
    repeat_heads,
    rms_norm,
    rotate,
    rotation_tables,
    rows,
    scale,
    times,
)
from remat_cli.zoo.layers.sequence import attention_context, attention_scores, embedding, merge_heads, split_heads
from remat_cli.zoo.network import Network, Tensor
from remat_cli.zoo.transformer import DEEPEST, INDEX_BYTES


@dataclass(frozen=True)
class Llama(NetworkArchitecture):
    """Llama; the defaults are Llama 3 8B on one sequence of 2048 tokens in 16 bits."""

    batch: int = option(1, "sequences per batch")
    dtype_bytes: int = option(2, "bytes of one activation, parameter or gradient")
    depth: int = option(32, "number of blocks")
    heads: int = option(32, "attention heads of the queries")
    kv_heads: int = option(8, "attention heads of keys and values; heads is a multiple of it")
    width: int = option(4096, "features of a position; a multiple of twice the heads")
    hidden: int = option(14336, "features inside the feed-forward part")
    sequence: int = option(2048, "positions per sequence; a multiple of chunks")
    vocab: int = option(128256, "size of the vocabulary")
    chunks: int = option(1, "chunks of queries in which attention runs")

    name: ClassVar[str] = "llama"
    summary: ClassVar[str] = "Llama, operator by operator (defaults: Llama 3 8B)"
    reference: ClassVar[str] = "Touvron et al., 2023; Dubey et al., 2024"

    def check(self) -> None:
        """Refuse options that make no sense."""
        super().check()
        self.require("depth", 1, DEEPEST)
        for name in ("heads", "kv_heads", "width", "hidden", "sequence", "vocab", "chunks"):
            self.require(name, 1)
        for whole, part in (("width", 2 * self.heads), ("heads", self.kv_heads), ("sequence", self.chunks)):
            size = getattr(self, whole)
            if size % part:
                raise UsageError(
                    f"{self.name}{{{whole}}}: {size} is not a multiple of {part}",
                    hint=f"choose {whole}={-(-size // part) * part}",
                )

    def network(self) -> Network:
        """Embedding, blocks that normalise before each branch, a last norm and an output layer of its own."""
        network = Network(self.name, self.dtype_bytes)
        tokens = network.input(self.batch, self.sequence, element_bytes=INDEX_BYTES)
        tables = rotation_tables("rotation", network, self.sequence, self.width // self.heads)
        mask = causal_mask("mask", network, self.sequence)
        x = embedding("embedding", tokens, self.vocab, self.width)
        for k in range(1, self.depth + 1):
            x = self._block(f"block{k}", x, tables, mask)
        return cross_entropy(dense("head/logits", rms_norm("head/norm", x), self.vocab, bias=False))

    def _block(self, name: str, x: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        attended = self._attention(f"{name}/attention", rms_norm(f"{name}/norm1", x), tables, mask)
        x = add(f"{name}/add1", x, attended)
        return add(f"{name}/add2", x, self._feed_forward(f"{name}/mlp", rms_norm(f"{name}/norm2", x)))

    def _attention(self, name: str, x: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        features = self.width // self.heads * self.kv_heads
        split = {}
        for part, heads, size in (("q", self.heads, self.width), ("k", self.kv_heads, features)):
            projected = dense(f"{name}/{part}", x, size, bias=False)
            split[part] = rotate(f"{name}/rotate_{part}", split_heads(f"{name}/split_{part}", projected, heads), tables)
        values = split_heads(f"{name}/split_v", dense(f"{name}/v", x, features, bias=False), self.kv_heads)
        keys, values = (
            repeat_heads(f"{name}/repeat_{part}", tensor, self.heads // self.kv_heads)
            for part, tensor in (("k", split["k"]), ("v", values))
        )
        parts = []
        for k in range(self.chunks):
            label = f"{name}/chunk{k + 1}" if self.chunks > 1 else name
            queries = rows(f"{label}/queries", split["q"], k, self.chunks)
            scores = scale(f"{label}/scale", attention_scores(f"{label}/scores", queries, keys))
            weights = softmax(
                f"{label}/softmax", masked(f"{label}/mask", scores, rows(f"{label}/rows", mask, k, self.chunks))
            )
            parts.append(attention_context(f"{label}/context", weights, values))
        merged = merge_heads(f"{name}/merge", join_rows(f"{name}/join", parts))
        return dense(f"{name}/out", merged, self.width, bias=False)

    def _feed_forward(self, name: str, x: Tensor) -> Tensor:
        gate = silu(f"{name}/silu", dense(f"{name}/gate", x, self.hidden, bias=False))
        product = times(f"{name}/times", gate, dense(f"{name}/up", x, self.hidden, bias=False))
        return dense(f"{name}/down", product, self.width, bias=False)
