"""A plan as one figure for papers, through matplotlib (extra ``plot``): memory over time above, R and S below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat_cli.plan.check import Report
from remat_cli.plan.model import Plan
from remat_cli.plan.occupancy import Kind, Occupancy, occupancy
from remat_cli.plan.raster import Raster, raster
from remat_cli.reports.figures import drawable, figure_bytes, matplotlib_settings
from remat_cli.reports.palette import BUDGET, KINDS
from remat_cli.reports.words import peak_words, verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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

        drawn = raster(plan, _CELLS)
        figure = Figure(figsize=(7.5, 3.8 if drawn is None else 7.6), layout="constrained")
        grid = figure.add_gridspec(
            2 if drawn is None else 3, 2, height_ratios=(12, 0.7) + (() if drawn is None else (11,))
        )
        upper = figure.add_subplot(grid[0, :])
        strip = figure.add_subplot(grid[1, :], sharex=upper)
        if report.replay.profile:
            seen = occupancy(report.graph, plan.statements, report.replay.profile, _MOMENTS)
            _memory(upper, report, seen)
            _computing(strip, seen)
        if drawn is not None:
            _matrix(figure.add_subplot(grid[2, 0]), drawn, "R")
            _matrix(figure.add_subplot(grid[2, 1]), drawn, "S")
        heading = f"{report.graph.name or 'plan'}: {verdict(report)}, {peak_words(report)}"
        figure.suptitle(drawable(heading), fontsize="medium")
        return figure_bytes(figure, format)


def _memory(axes: Axes, report: Report, seen: Occupancy) -> None:
    from matplotlib.ticker import EngFormatter

    begins = [*(moment.first for moment in seen.moments), seen.statements]
    moments = [*seen.moments, seen.moments[-1]]
    floor = [0] * len(begins)
    for kind in seen.kinds():
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
    axes.set_xlim(0, seen.statements)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelbottom=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.22), ncols=5, frameon=False, fontsize="small")


def _computing(axes: Axes, seen: Occupancy) -> None:
    for kind in Kind:
        runs = [(first, last - first) for first, last in seen.runs(kind)]
        axes.broken_barh(runs, (0, 1), facecolor=KINDS[kind], linewidth=0)
    axes.set_yticks([0.5], ["computing"])
    axes.set_ylim(0, 1)
    axes.grid(visible=False)
    stands = f" (each point: the highest of {seen.each})" if seen.each > 1 else ""
    axes.set_xlabel(f"statement{stands}")


def _matrix(axes: Axes, drawn: Raster, which: str) -> None:
    from matplotlib.colors import ListedColormap

    cells = drawn.computed if which == "R" else drawn.kept
    first, again, kept = KINDS[Kind.FORWARD], KINDS[Kind.RECOMPUTED], KINDS[Kind.UPDATE]
    colours = ListedColormap(["#F4F5F6", first, again] if which == "R" else ["#F4F5F6", kept])
    rows, columns = cells.shape
    extent = (-0.5 * drawn.each, (columns - 0.5) * drawn.each, (rows - 0.5) * drawn.each, -0.5 * drawn.each)
    axes.imshow(cells, cmap=colours, vmin=-0.5, vmax=colours.N - 0.5, extent=extent, interpolation="nearest")
    axes.grid(visible=False)
    axes.set_title("R: computed first (blue), again (orange)" if which == "R" else "S: kept", fontsize="small")
    cell = f", {drawn.each} to a cell" if drawn.each > 1 else ""
    axes.set_xlabel(f"node{cell}")
    axes.set_ylabel(f"stage{cell}")
