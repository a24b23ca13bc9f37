"""Figures of comparisons, plans and graphs through matplotlib (extra ``plot``), without its global state."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from remat_cli.graph.drawing import Layout, blocks, condensed, layered
from remat_cli.graph.model import Graph, Phase
from remat_cli.plan.check import Report
from remat_cli.plan.comparison import Comparison, Linked
from remat_cli.plan.matrices import Raster, raster
from remat_cli.plan.model import Plan
from remat_cli.plan.occupancy import Kind, Occupancy, occupancy
from remat_cli.printable import printable
from remat_cli.reports.charts import (
    BUDGET,
    COLOURS,
    KINDS,
    LIGHT,
    NO_PLAN,
    Line,
    Scale,
    Shades,
    bound_percents,
    box_height,
    chart_lines,
    logarithmic_scale,
    overhead_percent,
)
from remat_cli.reports.words import cost_words, count, peak_words, verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_MARKERS = "osD^vP*X<>hd"
_DASHES = ("-", "--", ":", "-.")


@contextmanager
def matplotlib_settings() -> Iterator[None]:
    """Matplotlib with fixed settings, independent of the user's, and with the same bytes in every run."""
    import matplotlib as mpl

    settings: dict[str, Any] = {
        "svg.hashsalt": "remat",
        "svg.fonttype": "path",
        "font.family": ["DejaVu Sans"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#DDDDDD",
        "axes.axisbelow": True,
    }
    with mpl.rc_context(settings):
        yield


def comparison_figure(comparison: Comparison, format: str) -> bytes:
    """Overhead against budget above, peak against budget below, as ``svg`` or ``png``.

    A budget at which a strategy has no plan is a cross on the upper edge; the proven lower bound is a grey area that no
    plan can enter.
    """
    with matplotlib_settings():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8.5, 8.0), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        _overheads(upper, comparison)
        _peaks(lower, comparison)
        handles, labels = upper.get_legend_handles_labels()
        order = sorted(range(len(labels)), key=lambda k: ["no plan (proven)", *comparison.strategies].index(labels[k]))
        handles, labels = [handles[k] for k in order], [labels[k] for k in order]
        figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize="small")
        nodes = f"{len(comparison.graph.nodes):,} nodes"
        figure.suptitle(drawable(f"{comparison.graph.name or 'graph'} ({nodes})"), fontsize="large")
        return figure_bytes(figure, format)


def linked_figure(linked: Linked, format: str) -> bytes:
    """Overheads against budget, one panel for each link below the other, as ``svg`` or ``png``."""
    with matplotlib_settings():
        from matplotlib.figure import Figure

        number, first = len(linked.links), linked.comparisons[0]
        figure = Figure(figsize=(8.5, 1.0 + 3.2 * number), layout="constrained")
        panels = figure.subplots(number, 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, host), comparison in zip(panels, linked.links, linked.comparisons, strict=True):
            _overheads(axes, comparison)
            axes.set_title(drawable(f"{name}: {host.words}"), fontsize="medium", loc="left")
        panels[-1].set_xlabel(f"memory budget, {_byte_unit(first)[1]} (fixed memory included)")
        named = {
            label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        labels = [label for label in ("no plan (proven)", *first.strategies) if label in named]
        figure.legend([named[label] for label in labels], labels, loc="outside lower left", frameon=False, ncols=2)
        figure.suptitle(drawable(f"{first.graph.name or 'graph'} ({len(first.graph.nodes):,} nodes)"), fontsize="large")
        return figure_bytes(figure, format)


def drawable(text: str) -> str:
    """``text`` that a document may have a part in, on one line and never taken for mathematics."""
    return printable(text).replace("$", r"\$")


def figure_bytes(figure: Figure, format: str) -> bytes:
    """``figure`` as ``svg`` or ``png``, the same bytes every time."""
    out = io.BytesIO()
    metadata = {"Date": None, "Creator": "remat"} if format == "svg" else {"Software": "remat"}
    figure.savefig(out, format=format, dpi=150, metadata=metadata, facecolor="white")
    return out.getvalue()


def _overheads(axes: Axes, comparison: Comparison) -> None:
    unit = _byte_unit(comparison)
    budgets = [amount / unit[0] for _, amount in comparison.budgets]
    logarithmic = logarithmic_scale(comparison)
    scale = logarithmic if logarithmic.first_shown else Scale(())
    tops = [100 * row.overhead for row in comparison.rows if row.overhead is not None]
    if scale.decades:
        axes.set_yscale("log")
    floor = scale.foot / 2 if scale.decades else 0.0
    bounds = [scale.place(bound) for bound in bound_percents(comparison)]
    axes.fill_between(budgets, floor, bounds, color="#BBBBBB", label="no plan (proven)", linewidth=0, step="pre")
    for line in chart_lines(comparison, overhead_percent):
        heights = [scale.place(overhead_percent(row) or 0.0) for row in line.rows]
        _draw(axes, line, heights, unit[0])
    highest = scale.above(max([1e-3, *tops]), 0)
    for row in (row for row in comparison.rows if row.ended in NO_PLAN):
        k = comparison.strategies.index(row.strategy)
        highest = max(highest, height := scale.above(max([1e-3, *tops]), k))
        axes.plot(row.budget_bytes / unit[0], height, "x", color=COLOURS[k % len(COLOURS)], markersize=6)
    if any(row.ended in NO_PLAN for row in comparison.rows):
        axes.annotate("✕ no plan within this budget", (0.99, 0.99), xycoords="axes fraction", va="top", ha="right")
    axes.set_ylabel("cost over no-remat, %")
    if scale.decades:
        places, texts = zip(*scale.ticks(), strict=True)
        axes.set_yticks(places, texts)
        axes.minorticks_off()
    axes.set_ylim(bottom=floor, top=scale.above(highest, 3))


def _peaks(axes: Axes, comparison: Comparison) -> None:
    unit = _byte_unit(comparison)
    for line in chart_lines(comparison, lambda row: row.peak_bytes):
        _draw(axes, line, [(row.peak_bytes or 0) / unit[0] for row in line.rows], unit[0])
    amounts = [amount / unit[0] for _, amount in comparison.budgets]
    axes.plot(amounts, amounts, color="#666666", linewidth=0.8, linestyle=(0, (1, 2)))
    axes.annotate("budget", (amounts[-1], amounts[-1]), fontsize="small", color="#666666", ha="right", va="bottom")
    axes.set_xlabel(f"memory budget, {unit[1]} (fixed memory included)")
    axes.set_ylabel(f"peak of the plan, {unit[1]}")


def _draw(axes: Axes, line: Line, heights: Sequence[float], unit: float) -> None:
    """A line in steps: a plan remains valid with more memory, and budgets in between were not solved.

    What lies below other lines is wider.
    """
    style = line_style(line.index)
    style["markersize"] += 2 * line.covered
    style["linewidth"] += 1.3 * line.covered
    fill = "none" if line.covered else style["color"]
    budgets = [row.budget_bytes / unit for row in line.rows]
    axes.plot(budgets, heights, label=line.strategy, drawstyle="steps-post", markerfacecolor=fill, **style)


def line_style(k: int) -> dict[str, Any]:
    """Colour, marker and dashes of the k-th strategy, so that strategies never differ by colour alone."""
    return {
        "color": COLOURS[k % len(COLOURS)],
        "marker": _MARKERS[k % len(_MARKERS)],
        "linestyle": _DASHES[(k // len(COLOURS)) % len(_DASHES)],
        "markersize": 4.5,
        "linewidth": 1.3,
    }


def _byte_unit(comparison: Comparison) -> tuple[float, str]:
    """The unit for bytes in which the largest budget is at least 1."""
    largest = max(amount for _, amount in comparison.budgets)
    for factor, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= factor:
            return factor, name
    return 1.0, "bytes"


_HATCHES = {Kind.RECOMPUTED: "////", Kind.FETCHED: "xxxx", Kind.WORKSPACE: "....", Kind.BACKWARD: "\\\\"}
_MOMENTS = 1000
_CELLS = 300


def plan_figure(report: Report, plan: Plan, format: str) -> bytes:
    """Memory over statements, the computations, and the matrices R and S, as ``svg`` or ``png``.

    Raises:
        UsageError: If matplotlib is not installed.
    """
    with matplotlib_settings():
        from matplotlib.figure import Figure

        bitmap = raster(plan, _CELLS)
        figure = Figure(figsize=(7.5, 3.8 if bitmap is None else 7.6), layout="constrained")
        grid = figure.add_gridspec(
            2 if bitmap is None else 3, 2, height_ratios=(12, 0.7) + (() if bitmap is None else (11,))
        )
        upper = figure.add_subplot(grid[0, :])
        strip = figure.add_subplot(grid[1, :], sharex=upper)
        if report.replay.profile:
            usage = occupancy(report.graph, plan.statements, report.replay.profile, _MOMENTS)
            _memory(upper, report, usage)
            _computing(strip, usage)
        if bitmap is not None:
            _matrix(figure.add_subplot(grid[2, 0]), bitmap, "R")
            _matrix(figure.add_subplot(grid[2, 1]), bitmap, "S")
        heading = f"{report.graph.name or 'plan'}: {verdict(report)}, {peak_words(report)}"
        figure.suptitle(drawable(heading), fontsize="medium")
        return figure_bytes(figure, format)


def _memory(axes: Axes, report: Report, usage: Occupancy) -> None:
    from matplotlib.ticker import EngFormatter

    begins = [*(moment.first for moment in usage.moments), usage.statements]
    moments = [*usage.moments, usage.moments[-1]]
    floor = [0] * len(begins)
    for kind in usage.kinds():
        top = [low + moment.bytes.get(kind, 0) for low, moment in zip(floor, moments, strict=True)]
        axes.fill_between(
            begins,
            floor,
            top,
            step="post",
            label=kind.value,
            facecolor=KINDS[kind],
            hatch=_HATCHES.get(kind),
            edgecolor="#00000055",
            linewidth=0,
        )
        floor = top
    axes.plot(begins, floor, color="black", linewidth=0.7, drawstyle="steps-post")
    if report.no_remat_peak_bytes:
        axes.axhline(report.no_remat_peak_bytes, color="black", linestyle=":", linewidth=1, label="no-remat peak")
    if report.budget_bytes is not None:
        axes.axhline(report.budget_bytes, color=BUDGET, linestyle="--", linewidth=1.3, label="budget")
    if report.graph.fixed_memory:
        axes.axhline(report.graph.fixed_memory, color="black", linestyle="-.", linewidth=0.8)
    axes.set_ylabel("memory in use")
    axes.yaxis.set_major_formatter(EngFormatter("B", sep=" "))
    axes.set_xlim(0, usage.statements)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelbottom=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.22), ncols=5, frameon=False, fontsize="small")


def _computing(axes: Axes, usage: Occupancy) -> None:
    for kind in Kind:
        runs = [(first, last - first) for first, last in usage.runs(kind)]
        axes.broken_barh(runs, (0, 1), facecolor=KINDS[kind], linewidth=0)
    axes.set_yticks([0.5], ["computing"])
    axes.set_ylim(0, 1)
    axes.grid(visible=False)
    stands = f" (each point: the highest of {usage.each})" if usage.each > 1 else ""
    axes.set_xlabel(f"statement{stands}")


def _matrix(axes: Axes, bitmap: Raster, which: str) -> None:
    from matplotlib.colors import ListedColormap

    cells = bitmap.computed if which == "R" else bitmap.kept
    first, again, kept = KINDS[Kind.FORWARD], KINDS[Kind.RECOMPUTED], KINDS[Kind.UPDATE]
    colours = ListedColormap(["#F4F5F6", first, again] if which == "R" else ["#F4F5F6", kept])
    rows, columns = cells.shape
    extent = (-0.5 * bitmap.each, (columns - 0.5) * bitmap.each, (rows - 0.5) * bitmap.each, -0.5 * bitmap.each)
    axes.imshow(cells, cmap=colours, vmin=-0.5, vmax=colours.N - 0.5, extent=extent, interpolation="nearest")
    axes.grid(visible=False)
    axes.set_title("R: computed first (blue), again (orange)" if which == "R" else "S: kept", fontsize="small")
    cell = f", {bitmap.each} to a cell" if bitmap.each > 1 else ""
    axes.set_xlabel(f"node{cell}")
    axes.set_ylabel(f"stage{cell}")


_LATE = (Phase.BACKWARD, Phase.UPDATE)
_WIDTH = 0.84
_INCHES = (11.0, 4.5)
_LONGEST = 16
"""Longer names lose their middle."""


def graph_figure(graph: Graph, format: str) -> bytes:
    """``graph`` in layers as ``svg`` or ``png``: heights grow with bytes, shades with costs.

    A large graph is drawn in blocks of nodes, as on its page.

    Raises:
        UsageError: If matplotlib is not installed.
    """
    with matplotlib_settings():
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize
        from matplotlib.figure import Figure

        parts = blocks(graph).parts
        sizes = [part.end - part.first for part in parts]
        blocks_graph = condensed(graph, parts)
        shades = Shades.of([node.cost for node in (*graph.nodes, *blocks_graph.nodes)])
        colours = ScalarMappable(Normalize(shades.low, shades.high), "cividis")
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.subplots()
        axes.use_sticky_edges = False
        axes.axis("off")
        place = layered(blocks_graph)
        _edges(axes, blocks_graph, place)
        most = max((sum(node.outputs) for node in blocks_graph.nodes), default=0)
        heights = [box_height(sum(node.outputs), most) for node in blocks_graph.nodes]
        shares = [shades.share(node.cost) for node in blocks_graph.nodes]
        axes.bar(
            place.layer,
            heights,
            _WIDTH,
            [y - height / 2 for y, height in zip(place.y, heights, strict=True)],
            color=colours.cmap(shares),
            edgecolor="black",
            linewidth=[1.2 if size > 1 else 0.4 for size in sizes],
            zorder=2,
        )
        for node, share, height, x, y in zip(blocks_graph.nodes, shares, heights, place.layer, place.y, strict=True):
            name = node.id if len(node.id) <= _LONGEST else f"{node.id[:8]}…{node.id[-7:]}"
            points, rotation = _font(place, len(name), height)
            label = axes.text(x, y, name, rotation=rotation, ha="center", va="center", fontsize=points)
            label.set(color="black" if share > LIGHT else "white", parse_math=False)
            label.set_in_layout(False)  # it fits into its box; at the size of the first layout it would not
        bar = figure.colorbar(colours, ax=axes, label="cost", shrink=0.7, pad=0.01)
        bar.set_ticks(shades.ticks(), labels=[drawable(cost_words(10.0**k, graph.cost_unit)) for k in shades.ticks()])
        figure.suptitle(drawable(_title(graph, sizes)), fontsize="medium")
        return figure_bytes(figure, format)


def _title(graph: Graph, sizes: list[int]) -> str:
    nodes = count(len(graph.nodes), "node")
    number = sum(size > 1 for size in sizes)
    return f"{graph.name or 'graph'} ({nodes}{f', in {number} blocks' if number else ''})"


def _font(place: Layout, letters: int, height: float) -> tuple[float, int]:
    """Size in points and rotation in degrees with which a name of so many letters fits into its box: the larger."""
    rows = max(place.y, default=0.0) - min(place.y, default=0.0) + 1
    wide = 72 * 0.85 * _INCHES[0] / (place.layers + 1) * _WIDTH
    high = 72 * 0.85 * _INCHES[1] * height / rows

    def points(along: float, across: float) -> float:
        return min(8.0, 0.7 * across, 1.5 * along / max(1, letters))

    lying, upright = points(wide, high), points(high, wide)
    return (lying, 0) if lying >= upright else (upright, 90)


def _edges(axes: Axes, graph: Graph, place: Layout) -> None:
    """Lines within a pass, and fainter ones from the forward pass to the backward."""
    from matplotlib.collections import LineCollection

    within: set[tuple[int, int]] = set()
    across: set[tuple[int, int]] = set()
    for reader, node in enumerate(graph.nodes):
        for producer in {graph.producer[v] for v in node.inputs}:
            crossing = node.phase in _LATE and graph.nodes[producer].phase not in _LATE
            (across if crossing else within).add((producer, reader))
    for pairs, width, alpha in ((within, 0.7, 0.7), (across, 0.3, 0.4)):
        lines = [place.path(*pair) for pair in sorted(pairs)]
        axes.add_collection(LineCollection(lines, linewidths=width, colors="#808890", alpha=alpha, zorder=1))
