"""The graphs of all tests: ``graphs()`` for Hypothesis, ``random_graph()`` and kin for loops with a seed."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.plan.model import Compute, Plan


def random_graph(
    rng: random.Random,
    n: int,
    *,
    max_outputs: int = 1,
    max_inputs: int = 3,
    max_size: int = 8,
    max_cost: int = 8,
    zero_outputs: bool = False,
    workspace: bool = False,
    recompute_false: float = 0.0,
    unread: bool = True,
    random_outputs: bool = False,
    fixed_memory: int = 0,
    phases: bool = False,
) -> Graph:
    """A random graph of ``n`` >= 1 nodes ``n0``, ``n1``, ...; the same ``rng`` state gives the same graph.

    Args:
        rng: Source of randomness.
        n: Number of nodes.
        max_outputs: Every node makes 1 to this many values.
        max_inputs: Every node but the first reads 0 to this many values, if there are as many.
        max_size: Sizes are 1 to this many bytes.
        max_cost: Costs are the integers 1 to this.
        zero_outputs: Also let nodes make no value, and values have no bytes.
        workspace: Give about half of the nodes a workspace of up to ``max_size`` bytes.
        recompute_false: Probability that a node may be computed only once.
        unread: Let values go unread. If false, some later node or the graph's outputs read every value: those that
            nobody read become inputs of the last node (which may then read more than ``max_inputs``).
        random_outputs: Choose the graph's outputs at random (perhaps none) instead of the last node's values.
        fixed_memory: Bytes always resident.
        phases: Label the nodes forward, loss, backward in order.
    """
    smallest = 0 if zero_outputs else 1
    sizes: list[list[int]] = []
    inputs: list[list[int]] = []
    made = 0
    for _ in range(n):
        inputs.append(sorted(rng.sample(range(made), min(made, rng.randint(min(1, max_inputs), max_inputs)))))
        sizes.append([rng.randint(smallest, max_size) for _ in range(rng.randint(smallest, max_outputs))])
        made += len(sizes[-1])
    first_of_last = made - len(sizes[-1])
    if not unread:
        read = {value for values in inputs for value in values}
        inputs[-1] = sorted({*inputs[-1], *(v for v in range(first_of_last) if v not in read)})
    outputs = tuple(v for v in range(made) if rng.random() < 0.3) if random_outputs else range(first_of_last, made)
    if not unread:
        outputs = tuple(sorted({*outputs, *range(first_of_last, made)}))
    return Graph(
        name="random",
        nodes=tuple(
            Node(
                id=f"n{i}",
                cost=float(rng.randint(1, max_cost)),
                inputs=tuple(inputs[i]),
                outputs=tuple(sizes[i]),
                workspace=rng.choice((0, rng.randint(0, max_size))) if workspace else 0,
                recompute=rng.random() >= recompute_false,
                phase=_phase(i, n) if phases else None,
            )
            for i in range(n)
        ),
        outputs=tuple(outputs),
        fixed_memory=fixed_memory,
    )


def varied_graph(
    seed: int, low: int = 3, high: int = 6, *, most_outputs: Sequence[int] = (1, 1, 2, 3), **chosen: Any
) -> Graph:
    """A random graph with ``low`` to ``high`` nodes, of the kinds that in-stage rows and searches tell apart.

    With the default sizes a search of all schedules is quick.

    Args:
        seed: The same seed gives the same graph.
        low: Fewest nodes.
        high: Most nodes.
        most_outputs: ``max_outputs`` is one of these.
        chosen: Options of :func:`random_graph` that are not left to chance.
    """
    rng = random.Random(seed)
    n = low if low == high else rng.randint(low, high)
    options = {
        "max_outputs": rng.choice(most_outputs),
        "workspace": rng.random() < 0.5,
        "recompute_false": rng.choice((0.0, 0.2)),
        "random_outputs": rng.random() < 0.5,
        "zero_outputs": rng.random() < 0.3,
        "fixed_memory": rng.choice((0, 5)),
    }
    return random_graph(rng, n, **options | chosen)


def sized_graph(seed: int, n: int) -> Graph:
    """A random graph with ``n`` nodes, of the kinds that bounds and starts of large graphs tell apart."""
    return varied_graph(seed, n, n, most_outputs=(1, 1, 3))


def uneven_graph(seed: int) -> Graph:
    """A random graph of 3 to 6 nodes with bytes beside gigabytes, and with costs that may be as unequal."""
    rng = random.Random(seed * 7919 + 1)
    graph = varied_graph(seed, 3, 6)
    big = rng.choice((2**31, 2**31, 2**32, 2**40, 2**50, 10**9, 2 * 10**8, 2**59))

    def size(count: int) -> int:
        if count == 0:
            return 0
        kind = rng.random()
        if kind < 0.4:
            return rng.randint(1, 1000)
        if kind < 0.5:
            return rng.choice((4, 8, 1, 2))
        if kind < 0.75:
            return big + rng.randint(-50, 50)
        return big // rng.choice((2, 3, 4)) + rng.randint(0, 3) if kind < 0.9 else rng.randint(1, big)

    cost = rng.choice(
        (lambda: float(rng.randint(1, 30)), lambda: rng.uniform(0.1, 30), lambda: 10 ** rng.uniform(-3, 15))
    )
    nodes = [
        replace(node, cost=cost(), outputs=tuple(map(size, node.outputs)), workspace=size(node.workspace))
        for node in graph.nodes
    ]
    return Graph(graph.name, tuple(nodes), graph.outputs, fixed_memory=rng.choice((0, 0, big, 7)))


def chosen_graph(seed: int, wanted: Callable[[Graph], bool], *, random_outputs: bool) -> Graph:
    """The first of the random graphs of 5 or 6 nodes of this seed that is ``wanted``."""
    rng = random.Random(seed)
    while True:
        graph = random_graph(
            rng,
            rng.randint(5, 6),
            max_outputs=rng.choice((1, 2)),
            max_size=5,
            workspace=seed % 2 == 0,
            recompute_false=rng.choice((0.0, 0.2)),
            random_outputs=random_outputs,
            fixed_memory=rng.choice((0, 7)),
        )
        if wanted(graph):
            return graph


def computes_of(plan: Plan) -> tuple[int, ...]:
    """The sequence of computes of a plan."""
    return tuple(s.node for s in plan.statements if isinstance(s, Compute))


def _phase(i: int, n: int) -> Phase:
    middle = n // 2
    return Phase.LOSS if i == middle else Phase.FORWARD if i < middle else Phase.BACKWARD


# Ids may hold anything but control characters and line separators, and do not end in a colon and digits.
_TEXT = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")),
    min_size=1,
    max_size=12,
)
_IDS = st.one_of(
    st.from_regex(r"[a-z]{1,3}[0-9]?", fullmatch=True),
    st.sampled_from(
        ["on", "no", "null", "~", "1.2e9", "1:a", "010", "a b", ":", "a:", "- x", "#", "%3", "Ünïcödé", "数"]
    ),
    _TEXT,
).filter(lambda text: not text.rpartition(":")[2].isdigit() or ":" not in text)
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)
"""Any JSON value, such as a payload."""


@st.composite
def graphs(
    draw: st.DrawFn,
    *,
    min_nodes: int = 1,
    max_nodes: int = 8,
    max_outputs: int = 3,
    max_size: int = 2**40,
    plain_ids: bool = False,
    payloads: bool = True,
) -> Graph:
    """Any valid graph: several or no outputs, workspace, ``recompute: false``, phases, unread values, odd ids.

    Args:
        draw: Given by Hypothesis.
        min_nodes: Fewest nodes.
        max_nodes: Most nodes.
        max_outputs: Most values per node; the fewest is none.
        max_size: Largest size in bytes.
        plain_ids: Name the nodes ``n0``, ``n1``, ... instead of anything a document allows.
        payloads: Give nodes payloads and the graph metadata.
    """
    n = draw(st.integers(min_nodes, max_nodes))
    ids = [f"n{i}" for i in range(n)] if plain_ids else draw(st.lists(_IDS, min_size=n, max_size=n, unique=True))
    sizes = st.integers(0, max_size)
    costs = st.one_of(st.integers(0, 10**18).map(float), st.floats(0, 1e200, allow_nan=False).map(abs))
    nodes: list[Node] = []
    made = 0
    for node_id in ids:
        inputs = draw(st.sets(st.integers(0, made - 1), max_size=4)) if made else set()
        outputs = tuple(draw(st.lists(sizes, max_size=max_outputs)))
        nodes.append(
            Node(
                id=node_id,
                cost=draw(costs),
                inputs=tuple(sorted(inputs)),
                outputs=outputs,
                workspace=draw(st.one_of(st.just(0), sizes)),
                recompute=draw(st.booleans()),
                op=draw(st.one_of(st.none(), _TEXT)),
                phase=draw(st.one_of(st.none(), st.sampled_from(Phase))),
                payload=draw(st.one_of(st.none(), JSON_VALUES)) if payloads else None,
            )
        )
        made += len(outputs)
    outputs_of_graph = draw(st.sets(st.integers(0, made - 1), max_size=4)) if made else set()
    return Graph(
        name=draw(_TEXT),
        nodes=tuple(nodes),
        outputs=tuple(sorted(outputs_of_graph)),
        cost_unit=draw(st.sampled_from(["unit", "flops", "us", "µs"])),
        fixed_memory=draw(sizes),
        metadata=draw(st.one_of(st.none(), JSON_VALUES)) if payloads else None,
    )
