"""Kumar et al., figures 2 to 4 and tables 1 and 2: peak and length against depth, and the recursion limit.

Kumar et al., Efficient Rematerialization for Deep Networks, NeurIPS 2019, on its three families: ResNets (32 images of
224x224), feed-forward networks with weights, ReLU and squared error (1024 items of 1024 features), and the Transformer
for translation (base: 8 pairs of 256 tokens, big: 16), each with `backward=operator`: gradients read what derivatives
need. The paper names the networks and prints no batch and no width; for the Transformer ours are the defaults of the
implementation that it names. NoRemat computes everything once. GreedyRemat recomputes one operation at a time, as
XLA's pass does by default (`xla-greedy{block=1}`), at the smallest budget that it reaches, found by bisection; `XLA,
blocks` is the same pass with runs of up to 16 operations, which is stronger than the paper's. TWRemat is the full
recursion over a tree decomposition, that is TWRemat(1); TWRemat(k) ends at parts with fewer than k bags, and the one
with the lowest peak has a row of its own, since a smaller k does not always take less. `PWRemat, spine` is the full
recursion along a path decomposition with a spine (section 5, of which the paper has a sketch and no results):
`pwremat{spine=true,bags=1}`. Nothing is kept afterwards to use the rest of a budget. Length is the number of computes
over that of NoRemat. Peaks are sums of the bytes of live values. Those of the paper belong to an optimal static
allocation; the column beside has the memory that these values take at fixed offsets, and where it equals the peak, it
is optimal. What no schedule can go below is proven by `remat solve --minimize peak`, whose plan stands there too.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Picture, Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.measure import call
from benchmarks.paper.placing import placed_bytes
from benchmarks.paper.published import Ours, published

_NO, _GREEDY, _BLOCKS, _TREE, _LEAST = "NoRemat", "GreedyRemat", "XLA, blocks", "TWRemat", "least peak found"
_LOWEST, _SPINE = "TWRemat(k), lowest", "PWRemat, spine"
_WAYS = (_NO, _GREEDY, _BLOCKS, _TREE, _LOWEST, _SPINE, _LEAST)
_RESNETS = (18, 34, 50, 101, 152, 200)
_LAYERS = (10, 25, 50, 75, 100)
_BIG = "transformer{batch=16,width=1024,heads=16,backward=operator}"
_FAMILIES: dict[str, tuple[tuple[int, str], ...]] = {
    "ResNet": tuple((n, f"resnet{n}{{batch=32,backward=operator}}") for n in _RESNETS),
    "FFN": tuple((n, f"feed-forward{{depth={n},backward=operator}}") for n in _LAYERS),
    "Transformer Base": ((6, "transformer{backward=operator}"),),
    "Transformer Big": ((6, _BIG),),
}
_PAIRS = {"Transformer Base": 8, "Transformer Big": 16}
"""Pairs of texts in a batch."""
_QUICK = {"FFN": ((10, "linear{n=10}"), (20, "linear{n=20}"))}
_COUNTED = {
    "resnet200{batch=32,backward=operator}": "ResNet200",
    "feed-forward{depth=100,backward=operator}": "FFN (100 layers)",
    "transformer{backward=operator}": "Transformer Base",
}
"""The graphs of table 1."""
_SIZES = "smaller graphs here: see table 1"
_GIB = 2**30
_LIMIT_S = 60.0
_GREEDY_S = 20.0
"""Seconds for all budgets that Greedy tries, and for the least peak."""
_LONGEST = 200
"""Schedules with more computes than so many times the number of nodes are abandoned."""
_HALVINGS = 12

TABLES = (
    Table(
        "depth",
        "Figures 2 to 4 and table 2: peak and length against depth",
        (
            Column("family", "family"),
            *columns("count", depth="depth", nodes="nodes"),
            Column("way", "algorithm"),
            *columns("bytes", peak_bytes="peak", placed_bytes="at fixed offsets"),
            Column("share", "of NoRemat's, %", "number"),
            *columns("bytes", bound_bytes="proven least", fixed_bytes="parameters and inputs"),
            *columns("number", length="length, times", cost="cost, times", wall_s="time, s"),
            Column("ending", "ended"),
        ),
        "Peaks are those of values; the column in GiB adds parameters, their gradients and inputs. Greedy and the "
        f"least peak have {_GREEDY_S:g} s each; where they took them they were stopped, and could have come lower. No "
        "schedule has a peak below the proven least.",
        named_by=("family", "depth", "way"),
    ),
    Table(
        "bags",
        "Figure 4: TWRemat(k), the recursion limit",
        (
            Column("graph", "graph"),
            Column("k", "k", "count"),
            *columns("number", share="peak, % of NoRemat's", length="length, times"),
        ),
        "Every k from 1 to n makes one of these schedules: that of the next smaller k of the table.",
        named_by=("graph", "k"),
    ),
    Table(
        "graphs",
        "Table 1: computation graphs",
        (
            Column("graph", "graph"),
            *columns("count", nodes="n", edges="m", width="width"),
        ),
        "Width: of the min-fill tree decomposition. TensorFlow's graphs, which the paper counts, have a node for each "
        "gradient of a parameter, each update, reshape and constant; ours have one for each operation on large values.",
        named_by=("graph",),
    ),
)
_BESIDE_EACH_OTHER = tuple(way for way in _WAYS if way not in {_NO, _LEAST})
SHOWN = (
    Table(
        "ways",
        "Figures 2 and 3 and table 2: peak of values in % of NoRemat's, and length in times NoRemat's",
        (
            Column("name", "graph"),
            Column("peak_bytes", "NoRemat", "bytes"),
            Column("least", "proven least, %", "number"),
            *(Column(way, f"{way}: %, times") for way in _BESIDE_EACH_OTHER),
        ),
        f"All columns of these rows are in the next file. Greedy had {_GREEDY_S:g} s.",
    ),
    replace(
        TABLES[0],
        columns=(
            *TABLES[0].columns[:8],
            *columns("number", above="above the proven least, %", gib="with parameters, GiB"),
            *columns("number", published_gib="GiB, published", length="length, times"),
            *columns("number", published_length="length, published"),
            *TABLES[0].columns[-3:],
        ),
    ),
    TABLES[1],
    replace(
        TABLES[2],
        columns=(
            *TABLES[2].columns,
            *columns("count", published_n="n, published", published_m="m, published", published_tw="tw, published"),
        ),
    ),
)
PICTURES = (
    Picture("peak", "Peak against depth, for ResNets and feed-forward networks."),
    Picture("length", "Length of the schedule against depth, for ResNets and feed-forward networks."),
    Picture("bags", "Length against peak of TWRemat(k) for all k: ResNets, feed-forward networks, Transformers."),
)


def run(session: Session) -> list[Row]:
    cells = []
    for family, members in (_QUICK if session.quick else _FAMILIES).items():
        for depth, spec in members:
            for way in _WAYS[:-1] if session.quick and depth > members[0][0] else _WAYS:
                cells.append(Cell(f"{spec} {way}", partial(_rows, family, depth, spec, way)))
    return rows_of(session, cells)


def _rows(family: str, depth: int, spec: str, way: str) -> list[Row]:
    called = call("benchmarks.paper.treewidth:measured", limit_s=_LIMIT_S, spec=spec, way=way)
    values = called.values or {"row": {"ending": called.problem}, "bags": [], "graph": None}
    rows = [TABLES[0].row({"family": family, "depth": depth, "way": way}, values["row"])]
    rows += [TABLES[1].row({"graph": spec}, point) for point in values["bags"]]
    if values["graph"] is not None:
        rows.append(TABLES[2].row({"graph": spec}, values["graph"]))
    return rows


def completed(rows: Sequence[Row]) -> list[Row]:
    """The rows with the distance to the proven least peak, and with the published figures beside them."""
    least = {(r["family"], r["depth"]): r["bound_bytes"] for r in rows if r["table"] == "depth" and r["way"] == _LEAST}
    return [*_ways(rows, least), *(_completed(row, least) for row in rows)]


def _ways(rows: Sequence[Row], least: dict[tuple[str, int], int | None]) -> list[Row]:
    """A row for each graph, with peak and length of all algorithms."""
    kept = [row for row in rows if row["table"] == "depth" and row["way"] == _NO and row["peak_bytes"]]
    made = []
    for row in kept:
        at = row["family"], row["depth"]
        mine = {r["way"]: r for r in rows if r["table"] == "depth" and (r["family"], r["depth"]) == at}
        bound = least.get(at)
        made.append(
            {
                "table": "ways",
                "name": row["family"] if row["family"].startswith("Transformer") else f"{row['family']} {row['depth']}",
                "peak_bytes": row["peak_bytes"],
                "least": None if bound is None else round(100 * bound / row["peak_bytes"], 1),
                **{way: _briefly(mine.get(way)) for way in _BESIDE_EACH_OTHER},
            }
        )
    return made


def _briefly(row: Row | None) -> str:
    return "" if row is None or row["share"] is None else f"{row['share']:.1f}, {row['length']:.2f}"


def ours(rows: Sequence[Row]) -> Ours:
    """What stands beside the published figures."""
    found = {
        (row["family"], row["depth"], row["way"]): row for row in rows if row["table"] == "depth" and row["peak_bytes"]
    }

    def over(family: str, depth: int, way: str) -> float | None:
        kept, other = found.get((family, depth, _NO)), found.get((family, depth, way))
        return None if kept is None or other is None else round(kept["peak_bytes"] / other["peak_bytes"], 2)

    trees = [row for row in found.values() if row["way"] == _TREE and row["family"] in {"ResNet", "FFN"}]
    lengths = [row["length"] for row in trees]
    most = max((over(row["family"], row["depth"], _TREE) or 0.0 for row in trees), default=None)
    no = "peak of NoRemat over TWRemat's"
    told: Ours = {
        ("Transformer Base", f"{no} (times)"): (over("Transformer Base", 6, _TREE), ""),
        ("Transformer Big", f"{no} (times)"): (
            over("Transformer Big", 6, _TREE),
            "theirs may count parameters, as the row in GiB does",
        ),
        ("ResNet", "peak of NoRemat over GreedyRemat's, about (times)"): (over("ResNet", 200, _GREEDY), "ResNet-200"),
        ("ResNet and FFN", f"{no}, up to (times)"): (most, ""),
        ("ResNet and FFN, least", "length of TWRemat, about (times)"): (min(lengths, default=None), _SIZES),
        ("ResNet and FFN, most", "length of TWRemat, about (times)"): (max(lengths, default=None), _SIZES),
        # Figure 1: tests/strategies/test_kumar.py makes both.
        ("A B C D E", "peak (values)"): (4, ""),
        ("A B C D A E", "peak (values)"): (3, ""),
    }
    for row in rows:
        if row["table"] == "graphs" and row["graph"] in _COUNTED:
            for key, column in (("n", "nodes"), ("m", "edges"), ("tw", "width")):
                told[_COUNTED[row["graph"]], key] = row[column], _SIZES
    for family in ("Transformer Base", "Transformer Big"):
        for way in (_NO, _GREEDY, _TREE):
            row = found.get((family, 6, way))
            if row is not None:
                quantity = f"peak of {way} (GiB)"
                told[family, quantity] = row["gib"], _other_batch(row, quantity) if way == _NO else "another batch"
                if way != _NO:
                    told[family, f"length of {way} (times)"] = row["length"], _SIZES
    return told


def _other_batch(row: Row, quantity: str) -> str:
    """Why the memory of NoRemat differs: the batch at which ours would be theirs."""
    batch, theirs = _PAIRS[row["family"]], published("treewidth", row["family"], quantity)
    assert theirs is not None
    least = batch * (theirs * _GIB - row["fixed_bytes"]) / row["peak_bytes"]
    return f"they print no batch: {least:.0f} pairs of 256 tokens instead of {batch} would take as much here"


def _completed(row: Row, least: dict[tuple[str, int], int | None]) -> Row:
    if row["table"] == "graphs":
        name = _COUNTED.get(row["graph"], "")
        told = {key: published("treewidth", name, key) for key in ("n", "m", "tw")}
        return row | {f"published_{key}": None if value is None else int(value) for key, value in told.items()}
    if row["table"] != "depth":
        return row
    bound, peak = least.get((row["family"], row["depth"])), row["peak_bytes"]
    return row | {
        "bound_bytes": bound,
        "above": round(100 * (peak / bound - 1), 1) if bound and peak else None,
        "gib": None if peak is None else round((peak + row["fixed_bytes"]) / _GIB, 2),
        "published_gib": published("treewidth", row["family"], f"peak of {row['way']} (GiB)"),
        "published_length": published("treewidth", row["family"], f"length of {row['way']} (times)"),
    }


def measured(spec: str, way: str) -> dict[str, Any]:
    """One algorithm on one graph: its row, and with TWRemat's a row for every k that makes a schedule of its own."""
    import time

    from remat_cli.api import build_graph
    from remat_cli.plan.derive import peak
    from remat_cli.plan.liveness import cost_of

    graph = build_graph(spec)
    base = peak(graph, tuple(range(len(graph.nodes)))) - graph.fixed_memory

    def facts(computes: Sequence[int]) -> dict[str, Any]:
        height = peak(graph, computes) - graph.fixed_memory
        cost = cost_of(graph, computes)
        return {
            "peak_bytes": height,
            "share": round(100 * height / base, 3),
            "length": round(len(computes) / len(graph.nodes), 3),
            "cost": round(cost / graph.total_cost, 3),
        }

    started_s = time.monotonic()
    found: list[tuple[int, Sequence[int]]] = []
    ending, facts_of_graph, bound = "finished", None, None
    if way == _NO:
        found = [(0, range(len(graph.nodes)))]
    elif way in {_GREEDY, _BLOCKS}:
        found = [(0, _squeezed(graph, 1 if way == _GREEDY else None))]
        if time.monotonic() - started_s > _GREEDY_S:
            ending = f"stopped after {_GREEDY_S:g} s"
    elif way == _LEAST:
        least, bound, ending = _least(graph)
        found = [(0, least)]
    elif way == _SPINE:
        found = [(1, _along_spine(graph))]
    else:
        facts_of_graph, found = _recursive(graph)
    wall_s = round(time.monotonic() - started_s, 2)
    told = [facts(computes) for _, computes in found]
    if way == _TREE:
        assert found[0][0] == 1, f"TWRemat(1) computes more than {_LONGEST} times as many nodes"
    at = 0 if way == _TREE else min(range(len(told)), key=lambda k: (told[k]["peak_bytes"], told[k]["length"]))
    curve = [{"k": k, "share": row["share"], "length": row["length"]} for (k, _), row in zip(found, told, strict=True)]
    placed = placed_bytes(graph, found[at][1])
    sizes = {"placed_bytes": placed, "bound_bytes": bound, "fixed_bytes": graph.fixed_memory}
    row = {"nodes": len(graph.nodes), **told[at], **sizes, "wall_s": wall_s, "ending": ending}
    return {"row": row, "bags": curve if way == _TREE else [], "graph": facts_of_graph}


def _squeezed(graph: Any, block: int | None) -> Sequence[int]:
    """The schedule with the least peak that XLA's pass makes, found by bisection over budgets.

    ``block`` operations are recomputed together: 1, as in the paper, or None for up to 16.
    """
    from remat_cli.control import Control
    from remat_cli.graph.analysis import no_remat_peak, peak_bound
    from remat_cli.plan.derive import peak
    from remat_cli.solvers.highs import Highs
    from remat_cli.strategies.base import Context, Found, Task
    from remat_cli.strategies.published.xla_greedy import XlaGreedy

    context = Context(Control.within(_GREEDY_S), Highs(), threads=1)
    low, high = peak_bound(graph).bytes, no_remat_peak(graph)
    best: Sequence[int] = range(len(graph.nodes))
    for _ in range(_HALVINGS):
        if low >= high or context.control.stopping():
            break
        middle = (low + high) // 2
        answer = XlaGreedy(block=block).solve(Task(graph, middle), context)
        schedule = answer.schedule if isinstance(answer, Found) else answer.best
        if schedule is not None and peak(graph, schedule.computes) < high:
            best, high = schedule.computes, peak(graph, schedule.computes)
        low = low if isinstance(answer, Found) else middle + 1
    return best


def _least(graph: Any) -> tuple[Sequence[int], int, str]:
    """The schedule of the least peak that a search finds, the proven least in bytes of values, and how it ended."""
    from remat_cli.api import SolveOptions, solve_smallest
    from remat_cli.plan.model import Compute

    solved = solve_smallest(graph, SolveOptions(time_limit_s=_GREEDY_S, threads=1))
    claim = solved.plan.claim.peak
    assert claim is not None
    computes = [step.node for step in solved.plan.statements if isinstance(step, Compute)]
    return computes, claim.lower_bound_bytes - graph.fixed_memory, f"bound for {claim.scope.value}"


def _along_spine(graph: Any) -> Sequence[int]:
    """The schedule of the full recursion along a spine."""
    from remat_cli.control import Control
    from remat_cli.plan.derive import prune
    from remat_cli.strategies.published.spine import Spine, spine_schedule
    from remat_cli.strategies.published.twremat import in_document_order

    control, n = Control.within(_LIMIT_S), len(graph.nodes)
    computes = spine_schedule(graph, Spine.both(graph, control), n, _LONGEST * n, control)
    assert computes is not None, f"it computes more than {_LONGEST} times as many nodes"
    return prune(graph, in_document_order(graph, computes))


def _recursive(graph: Any) -> tuple[dict[str, int], list[tuple[int, Sequence[int]]]]:
    """The counts of table 1, and the schedule of TWRemat(k) for every k that makes one of its own."""
    from remat_cli.plan.derive import prune
    from remat_cli.strategies.published.separators import recursive_schedule, skeleton, tree_separators
    from remat_cli.strategies.published.twremat import in_document_order

    root, width = tree_separators(graph)
    counts, todo = set(), [root]
    while todo:
        part = todo.pop()
        counts.add(part.bags)
        todo.extend(part.below)
    schedules: list[tuple[int, Sequence[int]]] = []
    for k in (1, *(count + 1 for count in sorted(counts))):
        computes = recursive_schedule(graph, root, root.depth, _LONGEST * len(graph.nodes), k)
        if computes is None:
            continue
        schedule = prune(graph, in_document_order(graph, computes))
        if not schedules or schedule != schedules[-1][1]:
            schedules.append((k, schedule))
    edges = sum(map(len, skeleton(graph))) // 2
    return {"nodes": len(graph.nodes), "edges": edges, "width": width}, schedules


def draw(rows: list[Row], folder: Path) -> None:
    """The pictures."""
    from benchmarks.paper.plots import Panel, draw_curves

    depth = [row for row in rows if row["table"] == "depth" and row["peak_bytes"] is not None]
    for key, unit, label in (("peak", 1e9, "peak of values, GB"), ("length", 1.0, "length / that of NoRemat")):
        panels = []
        for family in dict.fromkeys(row["family"] for row in depth):
            mine = [row for row in depth if row["family"] == family]
            if len({row["depth"] for row in mine}) < 2:
                continue
            lines: dict[str, list[tuple[float, float]]] = {way: [] for way in _WAYS if way != _LOWEST}
            for row in mine:
                if row["way"] in lines:
                    value = row["peak_bytes" if key == "peak" else "length"]
                    lines[row["way"]].append((row["depth"], value / unit))
            floor = sorted({(row["depth"], row["bound_bytes"] / unit) for row in mine if row["bound_bytes"]})
            told = _told_of(family, lines[_NO], {row["depth"] for row in mine}, key)
            seen = [y for way, points in lines.items() if way != _LEAST for _, y in points]
            top = None if key == "peak" else 1.2 * max(seen, default=1.0)
            panels.append(Panel(family, lines, floor if key == "peak" else (), told, top=top))
        if panels:
            draw_curves(panels, "depth", label, folder / f"treewidth-{key}.svg")
    names = {spec: (family, depth) for family, members in _FAMILIES.items() for depth, spec in members}
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if row["table"] == "bags":
            family, layers = names.get(row["graph"], (row["graph"], 0))
            alone = family.startswith("Transformer") or not layers
            lines = curves.setdefault(family.partition(" ")[0], {})
            lines.setdefault(family if alone else f"{family} {layers}", []).append((row["share"], row["length"]))
    panels = [
        Panel(f"TWRemat(k), {family}", lines, published=_points_of(family) if family in {"Transformer"} else {})
        for family, lines in curves.items()
    ]
    if panels:
        draw_curves(panels, "peak, % of NoRemat's", "length / that of NoRemat", folder / "treewidth-bags.svg")


def _told_of(
    family: str, kept: Sequence[tuple[float, float]], depths: Collection[int], key: str
) -> dict[str, list[tuple[float, float]]]:
    """What the text states of figures 2 and 3, as lines over the depth."""
    if key == "length":
        ends = (min(depths), max(depths))
        return {
            f"published: TWRemat, {which}": [
                (
                    float(x),
                    published("treewidth", f"ResNet and FFN, {which}", "length of TWRemat, about (times)") or 0.0,
                )
                for x in ends
            ]
            for which in ("least", "most")
        }
    half = published("treewidth", "ResNet", "peak of NoRemat over GreedyRemat's, about (times)") or 1.0
    tenth = published("treewidth", "ResNet and FFN", "peak of NoRemat over TWRemat's, up to (times)") or 1.0
    told = {"published: TWRemat, at best": [(x, y / tenth) for x, y in sorted(kept)]}
    if family == "ResNet":
        told["published: GreedyRemat, about"] = [(x, y / half) for x, y in sorted(kept)]
    return told


def _points_of(family: str) -> dict[str, list[tuple[float, float]]]:
    """The published TWRemat of the Transformers: peak over that of NoRemat, and length."""
    told = {}
    for size in ("Base", "Big"):
        peak, whole = (published("treewidth", f"{family} {size}", f"peak of {way} (GiB)") for way in (_TREE, _NO))
        length = published("treewidth", f"{family} {size}", f"length of {_TREE} (times)")
        if peak is not None and whole is not None and length is not None:
            told[f"published: {size}"] = [(100 * peak / whole, length)]
    return told
