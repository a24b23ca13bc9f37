"""The names by which another tool saves values, as a graph's metadata gives them.

Tools that save single values (``jax.checkpoint`` with a policy, torch's selective checkpointing) run the forward pass,
keep the values with the chosen names, and recompute the others when the backward pass needs them. ``metadata["tags"]``
maps the names of values to these names; several values may have one name, and are saved or not together.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.errors import StrategyMismatch
from remat_cli.graph.model import Graph, Phase
from remat_cli.graph.phases import Training

KEPT, REPEATED = -1, -2
"""In place of a tag: the value is saved in any case; the value cannot be saved."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A training step whose forward values have names.

    Attributes:
        training: The step.
        names: The names, in the order in which values with them are made.
        tag: For each value the number of its name, :data:`KEPT` or :data:`REPEATED`. What nodes of other phases make, and
            nodes that may not run twice or make a graph output, is kept.
    """

    training: Training
    names: tuple[str, ...]
    tag: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph, strategy: str) -> Tagged:
        """``graph`` with the names in its metadata.

        Raises:
            StrategyMismatch: If there are none, or a node has no phase.
        """
        training = Training.of(graph, strategy)
        given = graph.metadata.get("tags") if isinstance(graph.metadata, dict) else None
        if not isinstance(given, dict) or not all(isinstance(name, str) for name in given.values()):
            raise StrategyMismatch(
                f"{strategy} needs names of values in the graph's metadata",
                hint="graphs of remat export torch:... and jax:... have them; export it again",
            )
        outputs = frozenset(graph.outputs)
        numbers: dict[str, int] = {}
        tags = []
        for k, node in enumerate(graph.nodes):
            values = graph.values_of(k)
            free = node.phase is Phase.FORWARD and node.recompute and outputs.isdisjoint(values)
            for value in values:
                name = given.get(graph.value_name(value))
                if not free:
                    tags.append(KEPT)
                else:
                    tags.append(REPEATED if name is None else numbers.setdefault(name, len(numbers)))
        return cls(training, tuple(numbers), tuple(tags))

    def free(self, node: int) -> bool:
        """Whether a node may be recomputed."""
        values = self.training.graph.values_of(node)
        return bool(values) and self.tag[values[0]] != KEPT

    def saved(self, chosen: frozenset[int]) -> frozenset[int]:
        """The values that are saved if the names ``chosen`` are."""
        return frozenset(value for value, tag in enumerate(self.tag) if tag == KEPT or tag in chosen)
