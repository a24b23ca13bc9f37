"""Pictures of the papers' figures, in the style of :mod:`remat_cli.reports.figures`.

They are narrow and panels stand below each other, so that they can be read on a small screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from remat_cli.reports.figures import figure_bytes, look, matplotlib_settings

_WIDTH = 6.4
"""Of a picture, in inches."""
_SHORT = 20
"""Characters of a name of which three fit beside each other in a legend."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One of several pictures below each other: points (x, y) by the name of their line."""

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
        across: Label of the last x axis.
        up: Label of all y axes.
        path: The file.
        logarithmic: Axes that are: ``x``, ``y`` or ``xy``.
        scatter: Points only.
        falling: Largest x on the left.
        top: Upper end of the y axes; points above it are cut off.
    """
    with matplotlib_settings():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(_WIDTH, 2.5 * len(panels) + 1.2), layout="constrained")
        names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
        for axes, panel in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
            for name, points in panel.lines.items():
                style = look(names.index(name)) | ({"linestyle": ""} if scatter else {})
                axes.plot([x for x, _ in sorted(points)], [y for _, y in sorted(points)], label=name, **style)
            axes.set_title(panel.title, fontsize="medium")
            axes.set_ylabel(up)
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
        figure.axes[-1].set_xlabel(across)
        known = {}
        for axes in figure.axes:
            known |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        columns = 3 if max(map(len, names)) <= _SHORT else 2
        handles = [known[name] for name in names]
        figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
        path.write_bytes(figure_bytes(figure, path.suffix.lstrip(".")))


def draw_bars(groups: Mapping[str, Mapping[str, float]], up: str, path: Path) -> None:
    """Draw a group of bars for every key, a bar for every name in it, into an SVG file, or PNG by its suffix."""
    with matplotlib_settings():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(_WIDTH, 3.8), layout="constrained")
        axes = figure.subplots()
        names = list(dict.fromkeys(name for group in groups.values() for name in group))
        width = 0.8 / max(1, len(names))
        for k, name in enumerate(names):
            at = [g + (k - (len(names) - 1) / 2) * width for g, group in enumerate(groups.values()) if name in group]
            heights = [group[name] for group in groups.values() if name in group]
            axes.bar(at, heights, width, label=name, color=look(k)["color"], hatch=("", "//", "..", "xx", "--")[k % 5])
        axes.set_xticks(range(len(groups)), list(groups), fontsize="small")
        axes.set_ylabel(up)
        axes.grid(visible=False, axis="x")
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
        path.write_bytes(figure_bytes(figure, path.suffix.lstrip(".")))


def draw_stacks(
    groups: Mapping[str, Mapping[str, float]], across: str, path: Path, *, mark: tuple[float, str] | None = None
) -> None:
    """Draw a horizontal bar for every key, made of a part for every name in it.

    Args:
        groups: What to draw, from the top.
        across: Label of the x axis.
        path: The file: SVG, or PNG by its suffix.
        mark: A number with a vertical line, and its name.
    """
    with matplotlib_settings():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(_WIDTH, 0.22 * len(groups) + 1.6), layout="constrained")
        axes = figure.subplots()
        places = range(len(groups))
        begins = [0.0] * len(groups)
        for k, name in enumerate(dict.fromkeys(name for group in groups.values() for name in group)):
            parts = [group.get(name, 0.0) for group in groups.values()]
            axes.barh(
                places, parts, 0.7, left=begins, label=name, color=look(k)["color"], hatch=("", "//", "..")[k % 3]
            )
            begins = [begin + part for begin, part in zip(begins, parts, strict=True)]
        if mark is not None:
            axes.axvline(mark[0], color="black", linestyle="--", linewidth=1.0, label=mark[1])
        axes.set_yticks(places, list(groups), fontsize="small")
        axes.invert_yaxis()
        axes.set_xlabel(across)
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
        path.write_bytes(figure_bytes(figure, path.suffix.lstrip(".")))
