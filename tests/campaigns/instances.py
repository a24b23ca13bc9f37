"""Small graph documents for Hypothesis, with sizes from bytes to exbibytes, and budgets at which answers change."""

from typing import Any

from hypothesis import strategies as st

from campaigns.truth import ANY_ORDER, DOCUMENT_ORDER, FRONTIER, Instance, least_peak, peak_of, working_set

MOST_STATES = 2**14
"""Graphs with more states are not searched: a search of so many takes about a second."""

MIXED = "bytes beside gigabytes"
"""The sizes on which solvers, who count in floats, are wrong first."""
_SMALL = st.integers(1, 1000)
_LARGE = st.builds(lambda power, more: (1 << power) + more, st.integers(31, 59), st.integers(-3, 3))
_SIZES = {
    "units": st.integers(1, 8),
    "bytes": _SMALL,
    "gigabytes": _LARGE,
    MIXED: st.one_of(_SMALL, _SMALL, _LARGE),
    "no bytes": st.one_of(st.just(0), st.integers(0, 4)),
}
_COSTS = {
    "whole": st.integers(1, 8),
    "free": st.integers(0, 2),
    "floats": st.floats(0.01, 10),
    "large": st.integers(1, 10**15),
    "wild": st.builds(lambda digits, power: float(f"{digits}e{power}"), st.integers(1, 9), st.integers(-300, 15)),
}


@st.composite
def graph_documents(draw: st.DrawFn) -> dict[str, Any]:
    """A valid graph document: a random graph or a training chain, small enough to search all its schedules."""
    sizes, costs = _SIZES[draw(st.sampled_from([*_SIZES, *[MIXED] * 3]))], _COSTS[draw(st.sampled_from([*_COSTS]))]
    shape = draw(st.sampled_from([_any_graph, _any_graph, _training_chain]))
    nodes, values = shape(draw)
    for node in nodes:
        node["cost"] = draw(costs)
        node["outputs"] = [draw(sizes) for _ in range(node.pop("makes"))]
        if draw(st.integers(0, 3)) == 3:
            node["workspace"] = draw(sizes)
        if draw(st.integers(0, 7)) == 7:
            node["recompute"] = False
    document: dict[str, Any] = {"schema": "remat-graph/1", "nodes": nodes}
    if values and draw(st.booleans()):
        document["outputs"] = sorted(draw(st.sets(st.sampled_from(values), max_size=3)))
    if draw(st.integers(0, 3)) == 3:
        document["fixed_memory"] = draw(sizes)
    return document


def _any_graph(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[str]]:
    nodes: list[dict[str, Any]] = []
    values: list[str] = []
    most = draw(st.sampled_from([1, 1, 2, 3]))
    phases = draw(st.sampled_from([None, None, ["forward", "loss", "backward"]]))
    n = draw(st.sampled_from([3, 4, 5, 6, 7, 6, 7] if most == 1 else [3, 4, 5, 5]))
    for i in range(n):
        inputs = sorted(draw(st.sets(st.sampled_from(values), max_size=3))) if values else []
        makes = draw(st.integers(min(1, most), most))
        nodes.append({"id": f"n{i}", "inputs": inputs, "makes": makes})
        if phases:
            nodes[-1]["phase"] = phases[0 if i < n // 2 else 1 if i == n // 2 else 2]
        values += [f"n{i}:{k}" for k in range(makes)]
    return nodes, values


def _training_chain(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[str]]:
    """f1 ... fk, a loss, and bk ... b1; each backward node reads the gradient and what its layer read or made."""
    layers = draw(st.sampled_from([1, 2, 3, 3, 3]))
    reads_own = draw(st.booleans())
    nodes: list[dict[str, Any]] = []
    for k in range(1, layers + 1):
        inputs = [f"f{k - 1}:0"] if k > 1 else []
        nodes.append({"id": f"f{k}", "inputs": inputs, "makes": 1, "phase": "forward"})
    nodes.append({"id": "loss", "inputs": [f"f{layers}:0"], "makes": 1, "phase": "loss"})
    above = "loss:0"
    for k in range(layers, 0, -1):
        kept = [f"f{k}:0"] if reads_own else [f"f{k - 1}:0"] if k > 1 else []
        nodes.append({"id": f"b{k}", "inputs": [above, *kept], "makes": 1, "phase": "backward"})
        above = f"b{k}:0"
    return nodes, [f"{node['id']}:0" for node in nodes]


def has_room(document: dict[str, Any]) -> bool:
    """Whether some schedule takes less memory than computing everything once."""
    instance = Instance.of(document)
    if instance.states > MOST_STATES:
        return True
    return least_peak(instance, ANY_ORDER) < peak_of(instance, range(len(instance.nodes)))


@st.composite
def budgets(draw: st.DrawFn, document: dict[str, Any]) -> int:
    """A budget at the peak of some schedule, or a byte beside it, or in between."""
    instance = Instance.of(document)
    everything = tuple(range(len(instance.nodes)))
    peaks = {peak_of(instance, everything), working_set(instance)}
    again = [i for i in everything if instance.nodes[i].recompute]
    for _ in range(draw(st.integers(0, 3)) if again else 0):
        computes = list(everything)
        for i in draw(st.lists(st.sampled_from(again), min_size=1, max_size=4)):
            computes.insert(draw(st.integers(computes.index(i) + 1, len(computes))), i)
        peaks.add(peak_of(instance, computes))
    if instance.states <= MOST_STATES:
        peaks |= {least_peak(instance, schedules) for schedules in (ANY_ORDER, DOCUMENT_ORDER, FRONTIER)}
    low, high = min(peaks), peak_of(instance, everything)
    known = sorted(peak + beside for peak in peaks for beside in (-1, 0, 1) if 0 <= peak + beside <= high + 1)
    return draw(st.sampled_from(known)) if draw(st.integers(0, 3)) else draw(st.integers(low, max(low, high - 1)))
