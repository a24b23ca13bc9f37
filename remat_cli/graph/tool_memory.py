"""Graphs as other tools hold their memory: eager autograd, and jax.checkpoint inside of scans."""

from collections import Counter
from dataclasses import replace

from remat_cli.errors import StrategyMismatch, Worded
from remat_cli.graph.model import Graph, Phase
from remat_cli.graph.modules import module_of
from remat_cli.graph.phases import Training

_CARRY = "carry."


def as_autograd_holds(graph: Graph) -> Graph:
    """``graph`` whose backward operations hold what their autograd node saved until its last operation.

    Eager autograd runs the gradient of a forward operation as one node: the values that it saved for that node are let
    go when the whole node is done. A graph has several operations for such a node (the gradient of a product is two),
    and a plan may free a value between them.

    Operations of one module that read the same gradient count as one node. That may join too many, and then the
    peak is overestimated.

    Raises:
        StrategyMismatch: If a node has no phase.
    """
    sweep = Training.of(graph, "eager autograd").sweep
    last: dict[tuple[str, int], int] = {}
    held: dict[int, set[int]] = {}

    def gradients(k: int) -> list[tuple[str, int]]:
        node = graph.nodes[k]
        return [(module_of(node.id), value) for value in node.inputs if graph.producer[value] >= sweep]

    for k in range(sweep, len(graph.nodes)):
        for key in gradients(k):
            last[key] = k
    for k in range(sweep, len(graph.nodes)):
        end = max((last[key] for key in gradients(k)), default=k)
        held.setdefault(end, set()).update(v for v in graph.nodes[k].inputs if graph.producer[v] < sweep)
    nodes = tuple(
        replace(node, inputs=tuple(sorted({*node.inputs, *held.get(k, ())}))) for k, node in enumerate(graph.nodes)
    )
    return replace(graph, nodes=nodes)


def as_scans_hold(graph: Graph) -> Graph:
    """``graph``, in which what lies outside of loops, and what a step of one hands to the next, is kept.

    Only the steps of loops may be recomputed, as with jax.checkpoint inside of a scan.

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
