"""Transformers of any depth and length: the first one (Vaswani et al., 2017), BERT and GPT-2 (both 2019), and Llama."""

from dataclasses import dataclass
from typing import ClassVar

from remat_cli.errors import UsageError
from remat_cli.zoo.base import NetworkArchitecture, option
from remat_cli.zoo.layers.common import add, cross_entropy, dense, dropout, gelu, relu, silu, softmax
from remat_cli.zoo.layers.sequence import (
    add_positions,
    attention_context,
    attention_scores,
    causal_mask,
    embedding,
    join_rows,
    layer_norm,
    masked,
    merge_heads,
    repeat_heads,
    rms_norm,
    rotate,
    rotation_tables,
    rows,
    scale,
    split_heads,
    tied_head,
    times,
)
from remat_cli.zoo.network import Network, Tensor

DEEPEST = 10_000
"""Upper limit of the number of blocks."""
INDEX_BYTES = 8
"""Bytes of a token's index, as in PyTorch."""


@dataclass(frozen=True)
class _Transformer(NetworkArchitecture):
    depth: int = option(12, "number of blocks")
    heads: int = option(12, "attention heads of a block")
    width: int = option(768, "features of a position; a multiple of heads")
    sequence: int = option(512, "positions per sequence; as many have a learned vector")
    vocab: int = option(30522, "size of the vocabulary")

    def check(self) -> None:
        """Refuse options that make no sense."""
        super().check()
        self.require("depth", 1, DEEPEST)
        for name in ("heads", "width", "sequence", "vocab"):
            self.require(name, 1)
        if self.width % self.heads:
            raise UsageError(
                f"{self.name}{{width}}: {self.width} is not a multiple of {self.heads} heads",
                hint=f"choose a width such as {-(-self.width // self.heads) * self.heads}",
            )

    def attention(self, name: str, queries: Tensor, keys: Tensor, values: Tensor, *, bias: bool = True) -> Tensor:
        """From split heads to the output projection, dropout included."""
        x = softmax(f"{name}/softmax", attention_scores(f"{name}/scores", queries, keys))
        x = dropout(f"{name}/dropout", x)
        x = merge_heads(f"{name}/merge", attention_context(f"{name}/context", x, values))
        return dropout(f"{name}/out_dropout", dense(f"{name}/out", x, self.width, bias=bias))

    def feed_forward(self, name: str, x: Tensor) -> Tensor:
        """Two dense layers with four times the width between them, dropout included."""
        x = gelu(f"{name}/gelu", dense(f"{name}/fc1", x, 4 * self.width))
        return dropout(f"{name}/dropout", dense(f"{name}/fc2", x, self.width))


@dataclass(frozen=True)
class Bert(_Transformer):
    """BERT with its masked-language-model head; the defaults are BERT-base, uncased."""

    batch: int = option(16, "sequences per batch")

    name: ClassVar[str] = "bert"
    summary: ClassVar[str] = "BERT with masked-language-model head (defaults: BERT-base)"
    reference: ClassVar[str] = "Devlin et al., NAACL 2019"

    def network(self) -> Network:
        """Embeddings of tokens, segments and positions; blocks that normalise after each sum; tied head."""
        network = Network(self.name, self.dtype_bytes)
        tokens = network.input(self.batch, self.sequence, element_bytes=INDEX_BYTES)
        segments = network.input(self.batch, self.sequence, element_bytes=INDEX_BYTES)
        x = add(
            "embedding/add",
            embedding("embedding/tokens", tokens, self.vocab, self.width),
            embedding("embedding/segments", segments, 2, self.width),
        )
        x = layer_norm("embedding/norm", add_positions("embedding/positions", x))
        x = dropout("embedding/dropout", x)
        for k in range(1, self.depth + 1):
            x = self._block(f"block{k}", x)
        x = layer_norm("head/norm", gelu("head/gelu", dense("head/transform", x, self.width)))
        return cross_entropy(tied_head("head/logits", x, self.vocab, bias=True))

    def _block(self, name: str, x: Tensor) -> Tensor:
        queries, keys, values = (
            split_heads(f"{name}/attention/split_{part}", dense(f"{name}/attention/{part}", x, self.width), self.heads)
            for part in ("query", "key", "value")
        )
        attended = self.attention(f"{name}/attention", queries, keys, values)
        x = layer_norm(f"{name}/norm1", add(f"{name}/add1", x, attended))
        return layer_norm(f"{name}/norm2", add(f"{name}/add2", x, self.feed_forward(f"{name}/mlp", x)))


@dataclass(frozen=True)
class Gpt2(_Transformer):
    """GPT-2; the defaults are GPT-2 small."""

    batch: int = option(8, "sequences per batch")
    sequence: int = option(1024, "positions per sequence; as many have a learned vector")
    vocab: int = option(50257, "size of the vocabulary")

    name: ClassVar[str] = "gpt2"
    summary: ClassVar[str] = "GPT-2 (defaults: GPT-2 small)"
    reference: ClassVar[str] = "Radford et al., 2019"

    def network(self) -> Network:
        """Embeddings of tokens and positions; blocks that normalise before each branch; tied head."""
        network = Network(self.name, self.dtype_bytes)
        tokens = network.input(self.batch, self.sequence, element_bytes=INDEX_BYTES)
        x = add_positions("embedding/positions", embedding("embedding/tokens", tokens, self.vocab, self.width))
        x = dropout("embedding/dropout", x)
        for k in range(1, self.depth + 1):
            x = self._block(f"block{k}", x)
        return cross_entropy(tied_head("head/logits", layer_norm("head/norm", x), self.vocab))

    def _block(self, name: str, x: Tensor) -> Tensor:
        projected = dense(f"{name}/attention/qkv", layer_norm(f"{name}/norm1", x), 3 * self.width)
        queries, keys, values = (
            split_heads(f"{name}/attention/split_{part}", projected, self.heads, part=k, parts=3)
            for k, part in enumerate(("query", "key", "value"))
        )
        x = add(f"{name}/add1", x, self.attention(f"{name}/attention", queries, keys, values))
        return add(f"{name}/add2", x, self.feed_forward(f"{name}/mlp", layer_norm(f"{name}/norm2", x)))


@dataclass(frozen=True)
class Transformer(_Transformer):
    """The Transformer for translation, as TensorFlow's model garden has it; the defaults are its base configuration.

    It normalises before each branch, shares one table between both embeddings and the logits, and adds constant waves
    for positions. Batch and length make the 2,048 tokens to which it fills a batch by default; its big configuration is
    ``transformer{batch=16,width=1024,heads=16}``.
    """

    batch: int = option(8, "pairs of sequences per batch")
    depth: int = option(6, "number of blocks of the encoder, and of the decoder")
    heads: int = option(8, "attention heads of a block")
    width: int = option(512, "features of a position; a multiple of heads")
    sequence: int = option(256, "positions of a source, and of a target")
    vocab: int = option(33708, "size of the vocabulary of both languages")

    name: ClassVar[str] = "transformer"
    summary: ClassVar[str] = "Transformer for translation, encoder and decoder (defaults: base)"
    reference: ClassVar[str] = "Vaswani et al., NeurIPS 2017"

    def network(self) -> Network:
        """The encoder's blocks, the decoder's, which also attend to the encoder's output, and the tied head."""
        network = Network(self.name, self.dtype_bytes)
        sources = network.input(self.batch, self.sequence, element_bytes=INDEX_BYTES)
        targets = network.input(self.batch, self.sequence, element_bytes=INDEX_BYTES)
        x = self._embedded("encoder", sources, shared=False)
        for k in range(1, self.depth + 1):
            x = self._attending(f"encoder{k}/self", x, None)
            x = self._feeding(f"encoder{k}", x)
        memory = layer_norm("encoder/norm", x)
        x = self._embedded("decoder", targets, shared=True)
        for k in range(1, self.depth + 1):
            x = self._attending(f"decoder{k}/self", x, None)
            x = self._attending(f"decoder{k}/cross", x, memory)
            x = self._feeding(f"decoder{k}", x)
        return cross_entropy(tied_head("head/logits", layer_norm("decoder/norm", x), self.vocab))

    def _embedded(self, name: str, tokens: Tensor, *, shared: bool) -> Tensor:
        x = embedding(f"{name}/tokens", tokens, self.vocab, self.width, shared=shared)
        return dropout(f"{name}/dropout", add_positions(f"{name}/positions", x, learned=False))

    def _attending(self, name: str, x: Tensor, memory: Tensor | None) -> Tensor:
        """A branch of attention to the sequence itself, or to the encoder's output ``memory``."""
        asking = layer_norm(f"{name}/norm", x)
        context = asking if memory is None else memory
        queries, keys, values = (
            split_heads(f"{name}/split_{part}", dense(f"{name}/{part}", source, self.width, bias=False), self.heads)
            for part, source in (("query", asking), ("key", context), ("value", context))
        )
        return add(f"{name}/add", x, self.attention(name, queries, keys, values, bias=False))

    def _feeding(self, name: str, x: Tensor) -> Tensor:
        """A branch of two dense layers, with ReLU and dropout between them."""
        inner = dense(f"{name}/mlp/fc1", layer_norm(f"{name}/mlp/norm", x), 4 * self.width)
        inner = dropout(f"{name}/mlp/relu_dropout", relu(f"{name}/mlp/relu", inner))
        return add(f"{name}/mlp/add", x, dropout(f"{name}/mlp/dropout", dense(f"{name}/mlp/fc2", inner, self.width)))


@dataclass(frozen=True)
class Llama(NetworkArchitecture):
    """Llama (Touvron et al., 2023), operator by operator: what its norms, rotations and activations really execute.

    Shapes and operators are those of the reference implementation (github.com/meta-llama/llama3, ``llama/model.py``)
    and of Llama 3 (Dubey et al., 2024, table 3). The defaults are its 8B model on one sequence of 2048 tokens in 16
    bits; ``depth=80,heads=64,width=8192,hidden=28672`` is its 70B model. Attention may run in chunks of queries, each
    with a softmax over all keys (Rabe and Staats, 2021).
    """

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
