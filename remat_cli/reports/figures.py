"""Figures through matplotlib (extra ``plot``), without its global state: overhead and peak against budget."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from remat_cli.plan.comparison import Comparison
from remat_cli.plan.linked import Linked
from remat_cli.printable import printable
from remat_cli.reports.overlaps import (
    NO_PLAN,
    Curve,
    Scale,
    bound_percents,
    curves,
    logarithmic_scale,
    overhead_percent,
)
from remat_cli.reports.palette import COLOURS

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
        panels[-1].set_xlabel(f"memory budget, {_giga(first)[1]} (fixed memory included)")
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
    unit = _giga(comparison)
    budgets = [amount / unit[0] for _, amount in comparison.budgets]
    logarithmic = logarithmic_scale(comparison)
    scale = logarithmic if logarithmic.first_shown else Scale(())
    tops = [100 * row.overhead for row in comparison.rows if row.overhead is not None]
    if scale.decades:
        axes.set_yscale("log")
    floor = scale.foot / 2 if scale.decades else 0.0
    bounds = [scale.place(bound) for bound in bound_percents(comparison)]
    axes.fill_between(budgets, floor, bounds, color="#BBBBBB", label="no plan (proven)", linewidth=0, step="pre")
    for curve in curves(comparison, overhead_percent):
        heights = [scale.place(overhead_percent(row) or 0.0) for row in curve.rows]
        _draw(axes, curve, heights, unit[0])
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
    unit = _giga(comparison)
    for curve in curves(comparison, lambda row: row.peak_bytes):
        _draw(axes, curve, [(row.peak_bytes or 0) / unit[0] for row in curve.rows], unit[0])
    amounts = [amount / unit[0] for _, amount in comparison.budgets]
    axes.plot(amounts, amounts, color="#666666", linewidth=0.8, linestyle=(0, (1, 2)))
    axes.annotate("budget", (amounts[-1], amounts[-1]), fontsize="small", color="#666666", ha="right", va="bottom")
    axes.set_xlabel(f"memory budget, {unit[1]} (fixed memory included)")
    axes.set_ylabel(f"peak of the plan, {unit[1]}")


def _draw(axes: Axes, curve: Curve, heights: Sequence[float], unit: float) -> None:
    """A curve in steps: a plan remains valid with more memory, and budgets in between were not solved.

    What lies below other curves is wider.
    """
    drawn = look(curve.k)
    drawn["markersize"] += 2 * curve.under
    drawn["linewidth"] += 1.3 * curve.under
    inside = "none" if curve.under else drawn["color"]
    budgets = [row.budget_bytes / unit for row in curve.rows]
    axes.plot(budgets, heights, label=curve.strategy, drawstyle="steps-post", markerfacecolor=inside, **drawn)


def look(k: int) -> dict[str, Any]:
    """Colour, marker and dashes of the k-th strategy, so that strategies never differ by colour alone."""
    return {
        "color": COLOURS[k % len(COLOURS)],
        "marker": _MARKERS[k % len(_MARKERS)],
        "linestyle": _DASHES[(k // len(COLOURS)) % len(_DASHES)],
        "markersize": 4.5,
        "linewidth": 1.3,
    }


def _giga(comparison: Comparison) -> tuple[float, str]:
    """The unit for bytes in which the largest budget is at least 1."""
    largest = max(amount for _, amount in comparison.budgets)
    for factor, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= factor:
            return factor, name
    return 1.0, "bytes"
