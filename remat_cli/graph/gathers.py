"""The gathers of parameters in a graph with collectives.

A gather is a collective with all that is computed for it alone, such as the conversion of a rank's part, and with what
is as large as its result and made of that alone, such as the copy that puts the parts of all ranks together.
"""

from remat_cli.graph.model import Graph, NodeQueue

_LONGEST = 8
"""Most nodes of a gather up to its collective. Untuned: a conversion and padding are two."""


def gathers(graph: Graph) -> set[int]:
    """The nodes of all gathers, by index."""
    found: set[int] = set()
    for k, node in enumerate(graph.nodes if graph.overlaps else ()):
        if node.queue is NodeQueue.COMMUNICATION:
            found |= _up_to(graph, k)
        elif node.recompute and node.inputs:
            made_of = {graph.producer[v] for v in node.inputs}
            if made_of <= found and sum(node.outputs) == sum(graph.size[v] for v in node.inputs):
                found.add(k)
    return found


def _up_to(graph: Graph, collective: int) -> set[int]:
    """A collective and what is computed for it alone; nothing if it needs anything else."""
    chain, waiting = {collective}, [collective]
    while waiting and len(chain) <= _LONGEST:
        above = {graph.producer[v] for v in graph.nodes[waiting.pop()].inputs} - chain
        chain |= above
        waiting += above
    beside = (r for i in chain - {collective} for v in graph.values_of(i) for r in graph.readers[v] if r not in chain)
    computed = all(graph.nodes[i].queue is NodeQueue.COMPUTE for i in chain - {collective})
    again = all(graph.nodes[i].recompute for i in chain)
    return chain if not waiting and computed and again and next(beside, None) is None else set()
