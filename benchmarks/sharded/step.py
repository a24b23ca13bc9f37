"""Training steps of a sharded Llama on one rank, as graphs with collectives: sizes and times from arithmetic.

Every block gathers its weights before its first operation, and reduces their gradients after its last. Weights and
gradients are in bfloat16, optimizer state in single precision; all shards are fixed memory. Attention is fused and
keeps one number for each row of scores. An operation takes the larger of the time for its arithmetic and for its bytes,
a collective of a ring (ranks - 1) / ranks of its bytes over the link's bandwidth, and a latency.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from remat_cli.graph.model import Graph, Node, NodeQueue, Phase

_NUMBER = 2
_STATE = 12
"""Bytes of optimizer state for each parameter: master copy and two moments."""
_FLOPS_PER_S, _BYTES_PER_S = 4e14, 2.4e12
"""What an H100 attains in bfloat16, and of its memory's bandwidth."""
_LATENCY_S = 2e-5


@dataclass(frozen=True)
class Llama:
    """A model and how it is trained.

    Attributes:
        layers: Blocks.
        width: Features of a position.
        inner: Features inside of the feed-forward part.
        tokens: Positions on a rank in a step.
        sequence: Positions of a sequence.
        ranks: Ranks among which parameters are sharded.
        link_bytes_per_s: Bandwidth of the link of a rank.
    """

    layers: int = 32
    width: int = 4096
    inner: int = 11008
    tokens: int = 8192
    sequence: int = 4096
    ranks: int = 64
    link_bytes_per_s: float = 5e10


@dataclass
class _Builder:
    nodes: list[Node] = field(default_factory=list)
    values: int = 0

    def add(
        self,
        name: str,
        phase: Phase,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        seconds: float,
        queue: NodeQueue = NodeQueue.COMPUTE,
    ) -> int:
        """Add a node; its first value."""
        op = name.rpartition("/")[2]
        self.nodes.append(
            Node(name, seconds * 1e3, tuple(dict.fromkeys(inputs)), outputs, op=op, phase=phase, queue=queue)
        )
        first = self.values
        self.values += len(outputs)
        return first


def step(model: Llama) -> Graph:
    """The graph of one step; costs are milliseconds."""
    return _Step(model).graph()


class _Step:
    """A step under construction."""

    def __init__(self, model: Llama) -> None:
        self.model, self.build = model, _Builder()
        w, f = model.width, model.inner
        self.weights = {"qkv": 3 * w * w, "out": w * w, "up": 2 * w * f, "down": w * f}
        self.row = model.tokens * _NUMBER
        self.tapes: list[dict[str, int]] = []

    def graph(self) -> Graph:
        """All blocks forward, the loss, all blocks backward."""
        m, b = self.model, self.build
        x = b.add("embedding", Phase.FORWARD, (), (self.row * m.width,), self._moved(2 * self.row * m.width))
        for k in range(m.layers):
            x = self.forward(k, x)
        size = self.row * m.width
        grad = b.add("loss", Phase.LOSS, (x,), (size,), self._product(m.width, 8 * m.width))
        reduced = []
        for k in range(m.layers - 1, -1, -1):
            grad, shard = self.backward(k, grad)
            reduced.append(shard)
        b.add("grad/embedding", Phase.BACKWARD, (grad,), (), self._moved(2 * size))
        parameters = sum(self.weights.values()) * m.layers // m.ranks
        fixed = parameters * (_NUMBER + _STATE)
        name = f"llama-{m.layers}x{m.width}-{m.ranks}-ranks"
        return Graph(name, tuple(b.nodes), tuple(sorted(reduced)), "ms", fixed)

    def forward(self, k: int, x: int) -> int:
        """One block."""
        m, b, row, tape = self.model, self.build, self.row, {"x": x}
        width, inner, at = row * m.width, row * m.inner, f"layers.{k}"
        whole = sum(self.weights.values()) * _NUMBER
        moved = self._link(whole)
        tape["w"] = w = b.add(f"{at}/gather", Phase.FORWARD, (), (whole,), moved, NodeQueue.COMMUNICATION)
        tape["n1"] = n1 = b.add(f"{at}/norm1", Phase.FORWARD, (x,), (width,), self._moved(2 * width))
        qkv = b.add(f"{at}/qkv", Phase.FORWARD, (n1, w), (3 * width,), self._product(m.width, 3 * m.width))
        tape["qkv"] = qkv
        scores = 4 * m.tokens * m.sequence * m.width / 2 / _FLOPS_PER_S
        tape["att"] = att = b.add(f"{at}/attention", Phase.FORWARD, (qkv,), (width, 128 * m.tokens), scores)
        tape["h"] = h = b.add(f"{at}/out", Phase.FORWARD, (att, w, x), (width,), self._product(m.width, m.width))
        tape["n2"] = n2 = b.add(f"{at}/norm2", Phase.FORWARD, (h,), (width,), self._moved(2 * width))
        tape["up"] = up = b.add(f"{at}/up", Phase.FORWARD, (n2, w), (2 * inner,), self._product(m.width, 2 * m.inner))
        tape["act"] = act = b.add(f"{at}/act", Phase.FORWARD, (up,), (inner,), self._moved(3 * inner))
        y = b.add(f"{at}/down", Phase.FORWARD, (act, w, h), (width,), self._product(m.inner, m.width))
        self.tapes.append(tape)
        return y

    def backward(self, k: int, grad: int) -> tuple[int, int]:
        """The gradients of one block: of its input, and the shard of those of its weights."""
        m, b, row, t = self.model, self.build, self.row, self.tapes[k]
        width, inner, at = row * m.width, row * m.inner, f"grad/layers.{k}"
        size = {name: count * _NUMBER for name, count in self.weights.items()}
        back = Phase.BACKWARD
        g_act = b.add(
            f"{at}/down", back, (grad, t["act"], t["w"]), (inner, size["down"]), 2 * self._product(m.inner, m.width)
        )
        g_up = b.add(f"{at}/act", back, (g_act, t["up"]), (2 * inner,), self._moved(5 * inner))
        g_n2 = b.add(
            f"{at}/up", back, (g_up, t["n2"], t["w"]), (width, size["up"]), 2 * self._product(m.width, 2 * m.inner)
        )
        g_h = b.add(f"{at}/norm2", back, (g_n2, t["h"], grad), (width,), self._moved(4 * width))
        g_att = b.add(
            f"{at}/out", back, (g_h, t["att"], t["w"]), (width, size["out"]), 2 * self._product(m.width, m.width)
        )
        scores = 10 * m.tokens * m.sequence * m.width / 2 / _FLOPS_PER_S
        g_qkv = b.add(f"{at}/attention", back, (g_att, t["qkv"], t["att"], t["att"] + 1), (3 * width,), scores)
        g_n1 = b.add(
            f"{at}/qkv", back, (g_qkv, t["n1"], t["w"]), (width, size["qkv"]), 2 * self._product(m.width, 3 * m.width)
        )
        g_x = b.add(f"{at}/norm1", back, (g_n1, t["x"], g_h), (width,), self._moved(4 * width))
        whole = sum(size.values())
        reads = (g_act + 1, g_n2 + 1, g_att + 1, g_n1 + 1)
        shard = b.add(f"{at}/reduce", back, reads, (-(-whole // m.ranks),), self._link(whole), NodeQueue.COMMUNICATION)
        return g_x, shard

    def _product(self, rows: int, columns: int) -> float:
        """Seconds of the product of all positions with a matrix."""
        m = self.model
        numbers = rows * columns + m.tokens * (rows + columns)
        return max(2 * m.tokens * rows * columns / _FLOPS_PER_S, numbers * _NUMBER / _BYTES_PER_S)

    def _moved(self, count: int) -> float:
        """Seconds of an operation that reads and writes so many bytes."""
        return count / _BYTES_PER_S

    def _link(self, count: int) -> float:
        """Seconds of a collective of so many bytes."""
        m = self.model
        return count * (m.ranks - 1) / m.ranks / m.link_bytes_per_s + _LATENCY_S
