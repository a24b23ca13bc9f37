"""Pictures of the papers' figures, in the style of :mod:`remat_cli.reports.figures`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from remat_cli.reports.figures import figure_bytes, look, matplotlib_settings


@dataclass(frozen=True, slots=True)
class Panel:
    """One of several pictures side by side: points (x, y) by the name of their line."""

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


def draw_curves(
    panels: Sequence[Panel],
    across: str,
    up: str,
    path: Path,
    *,
    logarithmic: str = "",
    scatter: bool = False,
    falling: bool = False,
    top: float | None = None,
) -> None:
    """Draw panels with axes of their own and one legend into an SVG file, or PNG by its suffix.

    Args:
        panels: What to draw.
        across: Label of all x axes.
        up: Label of the first y axis.
        path: The file.
        logarithmic: Axes that are: ``x``, ``y`` or ``xy``.
        scatter: Points only.
        falling: Largest x on the left.
        top: Upper end of the y axes; points above it are cut off.
    """
    with matplotlib_settings():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(max(8.5, 3.6 * len(panels)), 4.0), layout="constrained")
        names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for name, points in panel.lines.items():
                style = look(names.index(name)) | ({"linestyle": ""} if scatter else {})
                axes.plot([x for x, _ in sorted(points)], [y for _, y in sorted(points)], label=name, **style)
            axes.set_title(panel.title, fontsize="medium")
            axes.set_xlabel(across)
            if any(panel.lines.values()):  # an empty axis cannot be logarithmic
                axes.set(**{f"{axis}scale": "log" for axis in logarithmic})
            if "x" in logarithmic:  # few values, far apart: name them rather than powers of ten
                places = sorted({x for points in panel.lines.values() for x, _ in points})
                axes.set_xticks(places, [f"{x:g}" for x in places])
                axes.set_xticks([], minor=True)
            highest = max((y for points in panel.lines.values() for _, y in points), default=0.0)
            if top is not None and highest > top:
                axes.set_ylim(bottom=-0.03 * top, top=top)
            if falling:
                axes.invert_xaxis()
        figure.axes[0].set_ylabel(up)
        known = {}
        for axes in figure.axes:
            known |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(
            [known[name] for name in names], names, loc="outside lower center", ncols=3, frameon=False, fontsize="small"
        )
        path.write_bytes(figure_bytes(figure, path.suffix.lstrip(".")))


def draw_bars(groups: Mapping[str, Mapping[str, float]], up: str, path: Path) -> None:
    """Draw a group of bars for every key, a bar for every name in it, into an SVG file, or PNG by its suffix."""
    with matplotlib_settings():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8.5, 3.8), layout="constrained")
        axes = figure.subplots()
        names = list(dict.fromkeys(name for group in groups.values() for name in group))
        width = 0.8 / max(1, len(names))
        for k, name in enumerate(names):
            at = [g + (k - (len(names) - 1) / 2) * width for g, group in enumerate(groups.values()) if name in group]
            heights = [group[name] for group in groups.values() if name in group]
            axes.bar(at, heights, width, label=name, color=look(k)["color"], hatch=("", "//", "..", "xx", "--")[k % 5])
        axes.set_xticks(range(len(groups)), list(groups))
        axes.set_ylabel(up)
        axes.grid(visible=False, axis="x")
        figure.legend(loc="outside lower center", ncols=len(names), frameon=False, fontsize="small")
        path.write_bytes(figure_bytes(figure, path.suffix.lstrip(".")))
