"""A training step of which only the steps of loops may be recomputed, as with jax.checkpoint inside of a scan."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from remat_cli.errors import StrategyMismatch, Worded
from remat_cli.graph.model import Graph, Phase

_CARRY = "carry."


def as_scans_hold(graph: Graph) -> Graph:
    """``graph``, in which what lies outside of loops, and what a step of one hands to the next, is kept.

    A compiler may run all of a step again before its gradients, so all that a step would keep for them counts as
    there at any time (``metadata["step_bytes"]``). This is no bound on what a compiler holds: it may
    fuse or copy more.

    Values in a loop are those whose name several values have, one in each step.

    Raises:
        StrategyMismatch: If there is no loop with its steps told apart.
    """
    tags = graph.metadata.get("tags") or {}
    counts = Counter(tags.values())
    if not any(name.startswith(_CARRY) and count > 1 for name, count in counts.items()):
        raise StrategyMismatch(
            "jax-scan needs a jax.lax.scan whose steps the graph tells apart, and there is none",
            hint=Worded(
                'to="jax-names" takes other programs; export unrolled scans to tell their steps apart',
                "--to jax-names takes other programs; remat export --scans unrolled tells steps of long scans apart",
            ),
        )

    def kept(node: int) -> bool:
        own = [name for value in graph.values_of(node) if (name := tags.get(graph.value_name(value))) is not None]
        return any(counts[name] == 1 or name.startswith(_CARRY) for name in own)

    nodes = tuple(
        replace(node, recompute=False) if node.phase is Phase.FORWARD and kept(k) else node
        for k, node in enumerate(graph.nodes)
    )
    return replace(graph, nodes=nodes, fixed_memory=graph.fixed_memory + graph.metadata["step_bytes"])
