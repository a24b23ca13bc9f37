"""Figures through matplotlib (extra ``plot``), without its global state: overhead and peak against budget."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from remat_cli.errors import UsageError
from remat_cli.extras import install_command
from remat_cli.plan.comparison import Comparison, Ended
from remat_cli.reports.palette import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "osD^vP*X<>hd"
_DASHES = ("-", "--", ":", "-.")


@contextmanager
def matplotlib_settings() -> Iterator[None]:
    """Matplotlib with fixed settings, independent of the user's, and with the same bytes in every run."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise UsageError("matplotlib is not installed", hint=f"install it with: {install_command('plot')}") from None
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

    Raises:
        UsageError: If matplotlib is not installed.
    """
    with matplotlib_settings():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8.5, 8.0), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        _overheads(upper, comparison)
        _peaks(lower, comparison)
        handles, labels = upper.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize="small")
        nodes = f"{len(comparison.graph.nodes):,} nodes"
        figure.suptitle(f"{comparison.graph.name or 'graph'} ({nodes})", fontsize="large")
        return figure_bytes(figure, format)


def figure_bytes(figure: Figure, format: str) -> bytes:
    """``figure`` as ``svg`` or ``png``, the same bytes every time."""
    out = io.BytesIO()
    metadata = {"Date": None, "Creator": "remat"} if format == "svg" else {"Software": "remat"}
    figure.savefig(out, format=format, dpi=150, metadata=metadata, facecolor="white")
    return out.getvalue()


def _overheads(axes: Axes, comparison: Comparison) -> None:
    base, unit = comparison.graph.total_cost or 1.0, _giga(comparison)
    budgets = [amount / unit[0] for _, amount in comparison.budgets]
    bounds = [100 * (comparison.bound(amount) / base - 1) for _, amount in comparison.budgets]
    tops = [100 * row.overhead for row in comparison.rows if row.overhead is not None]
    axes.fill_between(budgets, 0, bounds, color="#BBBBBB", label="no plan (proven)", linewidth=0, step="pre")
    for k, (strategy, rows) in enumerate(comparison.by_strategy().items()):
        held = [(row.budget_bytes / unit[0], 100 * row.overhead) for row in rows if row.overhead is not None]
        # Steps: a plan remains valid with more memory, and budgets in between were not solved.
        axes.plot(*_columns(held), label=strategy, drawstyle="steps-post", **look(k))
    missing = [row for row in comparison.rows if row.ended in {Ended.NONE, Ended.LIMIT}]
    edge = max([1e-3, *tops]) * 1.12
    shift = 0.035 * edge
    for row in missing:
        k = comparison.strategies.index(row.strategy)
        colour = COLOURS[k % len(COLOURS)]
        axes.plot(row.budget_bytes / unit[0], edge + shift * (k % 6), "x", color=colour, markersize=6)
    if missing:
        axes.annotate(
            "✕ no plan within this budget", (0.01, 0.99), xycoords="axes fraction", va="top", fontsize="small"
        )
    axes.set_ylabel("cost over no-remat, %")
    axes.set_ylim(bottom=0, top=edge * 1.3 if missing else edge)


def _peaks(axes: Axes, comparison: Comparison) -> None:
    unit = _giga(comparison)
    for k, rows in enumerate(comparison.by_strategy().values()):
        held = [(r.budget_bytes / unit[0], r.peak_bytes / unit[0]) for r in rows if r.peak_bytes is not None]
        axes.plot(*_columns(held), **look(k))
    amounts = [amount / unit[0] for _, amount in comparison.budgets]
    axes.plot(amounts, amounts, color="#666666", linewidth=0.8, linestyle=(0, (1, 2)))
    axes.annotate("budget", (amounts[-1], amounts[-1]), fontsize="small", color="#666666", ha="right", va="bottom")
    axes.set_xlabel(f"memory budget, {unit[1]} (fixed memory included)")
    axes.set_ylabel(f"peak of the plan, {unit[1]}")


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


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
