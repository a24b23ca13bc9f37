"""Measured costs from a trace of the PyTorch profiler (Kineto), or another trace in Chrome's format.

Only complete events of the host count (``"ph": "X"``, durations in microseconds). If the trace has work of a device, an
event costs the time of the kernels and copies that it launched: Kineto names the launching event in
``args["External id"]``. Otherwise it costs its own duration. Both include all nested events.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.errors import InputError, Problem, Worded
from remat_cli.graph.jsontext import load_json
from remat_cli.graph.model import Graph
from remat_cli.graph.quoting import quote
from remat_cli.graph.reader import MAX_COST

UNIT = "us"
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_NO_OPERATION = frozenset(
    {"gpu_user_annotation", "cuda_runtime", "cuda_driver", "python_function", "overhead", "Trace"}
)
_ROUNDING_US = 1e-3  # Kineto writes nanoseconds, as microseconds with three decimals

_LONGEST_US = 1e18  # 30,000 years, so that no sum of times overflows


@dataclass(frozen=True, slots=True)
class Measured:
    """A graph with costs from a trace.

    Attributes:
        graph: The graph, in microseconds.
        by_id: Number of nodes that have events named like their id.
        by_operation: Number of other nodes that have events named like their operation. All nodes of an operation get
            the same cost.
        kept: Ids of the nodes without events.
        scale: Factor by which the costs of those were multiplied; None if they were not changed.
        on_device: Whether costs are times of a device.
        unlinked: Kernels and copies that name no event that launched them; they count nowhere.
    """

    graph: Graph
    by_id: int
    by_operation: int
    kept: tuple[str, ...]
    scale: float | None
    on_device: bool
    unlinked: int


@dataclass(slots=True)
class _Event:
    name: str
    start: float
    duration: float
    external: int | None
    device_us: float = 0.0


def measured_costs(graph: Graph, text: str, source: str, *, scale: bool = False) -> Measured:
    """``graph`` with the mean time of the events of each node as its cost.

    The events of a node are those named like its id (``torch.profiler.record_function``). If there are none, they are
    those named like its operation, with or without ``aten::``. A node without events keeps its cost, if that is in
    microseconds too.

    Args:
        graph: The graph.
        text: The trace, as JSON.
        source: Its name in messages.
        scale: Whether to multiply the costs of nodes without events by the ratio of measured to stated costs of the
            other nodes.

    Raises:
        InputError: If the text is not a trace, or has no event for any node, or if nodes without events have costs in
            another unit that are not scaled.
    """
    means, device, unlinked = _read(text, source)
    ids = {node.id for node in graph.nodes} & means.keys()
    costs: dict[str, float | None] = {}
    for node in graph.nodes:
        names = [node.id] if node.op is None else [node.id, node.op, f"aten::{node.op}"]
        costs[node.id] = next((means[name] for name in names if name in means), None)
    kept = tuple(node_id for node_id, cost in costs.items() if cost is None)
    if len(kept) == len(graph.nodes):
        seen = ", ".join(quote(name) for name in list(means)[:5])
        raise InputError.of(
            source,
            f"no event is named like a node or an operation of {quote(graph.name)}",
            f"events here: {seen}; name them after nodes with torch.profiler.record_function",
        )
    factor = _factor(graph, costs, source) if scale and kept else None
    if kept and factor is None and graph.cost_unit != UNIT:
        raise InputError.of(
            source,
            f"{len(kept)} of {len(graph.nodes)} nodes have no event, {quote(kept[0])} first: "
            f"their costs in {graph.cost_unit} would stand beside microseconds",
            Worded(
                "measure all nodes, or give the others a scaled cost with scale_unmatched",
                "measure all nodes, or give the others a scaled cost with --scale-unmatched",
            ),
        )
    scaled = ((node, costs[node.id], 1.0 if factor is None else factor) for node in graph.nodes)
    nodes = tuple(replace(node, cost=node.cost * share if cost is None else cost) for node, cost, share in scaled)
    if not sum(node.cost for node in nodes) <= MAX_COST:  # "not <=" so that NaN is refused too
        raise InputError.of(source, f"all costs together are more than {MAX_COST:g}", "use a trace with sensible times")
    metadata: Any = graph.metadata
    if metadata is None or isinstance(metadata, dict):
        metadata = (metadata or {}) | {"costs": {"model": "measured", "by": "trace"}}
    return Measured(
        graph=replace(graph, nodes=nodes, cost_unit=UNIT, metadata=metadata),
        by_id=len(ids),
        by_operation=len(graph.nodes) - len(ids) - len(kept),
        kept=kept,
        scale=factor,
        on_device=device,
        unlinked=unlinked,
    )


def _factor(graph: Graph, costs: Mapping[str, float | None], source: str) -> float:
    """Measured costs over stated costs, over the nodes that have both."""
    matched = [(node.cost, cost) for node in graph.nodes if (cost := costs[node.id]) is not None]
    stated = math.fsum(before for before, _ in matched)
    measured = math.fsum(after for _, after in matched)
    if not stated or not measured:
        raise InputError.of(
            source, "the measured nodes cost nothing, so there is no scale", "measure nodes that cost some"
        )
    return measured / stated


def _read(text: str, source: str) -> tuple[dict[str, float], bool, int]:
    """The mean time of events by name; whether there is device work; how much of that is not linked to any event."""
    data = load_json(text, source)
    entries = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(entries, list):
        raise InputError.of(source, "there is no list of traceEvents", "give the JSON that torch.profiler exports")
    threads: dict[tuple[str, str], list[_Event]] = defaultdict(list)
    device_us: dict[int, float] = defaultdict(float)
    device = []
    for i, entry in enumerate(entries):
        if not isinstance(entry, dict) or entry.get("ph") != "X" or str(entry.get("cat")) in _NO_OPERATION:
            continue
        event = _event(entry, i, source)
        if str(entry.get("cat")) in _DEVICE:
            device.append(event)
        else:
            threads[str(entry.get("pid")), str(entry.get("tid"))].append(event)
    if not threads:
        raise InputError.of(source, "there are no complete events of the host", 'give a trace with events of "ph": "X"')
    known = {event.external for events in threads.values() for event in events} - {None}
    for event in device:
        if event.external is not None:
            device_us[event.external] += event.duration
    unlinked = sum(event.external not in known for event in device)
    times: dict[str, list[float]] = defaultdict(list)
    for event in (event for events in threads.values() for event in _nest(events, device_us)):
        times[event.name].append(event.device_us if device else event.duration)
    return {name: math.fsum(of_name) / len(of_name) for name, of_name in times.items()}, bool(device), unlinked


def _event(entry: Mapping[str, Any], i: int, source: str) -> _Event:
    start: Any = entry.get("ts")
    duration: Any = entry.get("dur", 0)
    for key, value in (("ts", start), ("dur", duration)):
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LONGEST_US
        if not good or (key == "dur" and value < 0):
            hint = "a number of microseconds that is not negative" if key == "dur" else "a number of microseconds"
            problem = Problem(f"is {quote(value)}, expected {hint}", pointer=f"/traceEvents/{i}/{key}")
            raise InputError(source, [problem])
    arguments = entry.get("args")
    external = arguments.get("External id") if isinstance(arguments, dict) else None
    whole = isinstance(external, int) and not isinstance(external, bool)
    return _Event(str(entry.get("name", "")), float(start), float(duration), external if whole else None)


def _nest(events: Sequence[_Event], device_us: Mapping[int, float]) -> list[_Event]:
    """The events of one thread, with the device time of all events nested in them.

    An event nested in one of the same name is left out, or its time would count twice.
    """
    outermost: list[_Event] = []
    open_events: list[_Event] = []
    claimed: set[int] = set()
    for event in sorted(events, key=lambda e: (e.start, -e.duration)):
        while open_events and event.start >= open_events[-1].start + open_events[-1].duration - _ROUNDING_US:
            open_events.pop()
        if all(around.name != event.name for around in open_events):
            outermost.append(event)
        open_events.append(event)
        if event.external is not None and event.external not in claimed:
            claimed.add(event.external)
            for around in open_events:
                around.device_us += device_us.get(event.external, 0.0)
    return outermost
