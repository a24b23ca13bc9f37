"""Pictures of the papers' figures, in the style of :mod:`remat_cli.reports.figures`.

They are narrow and panels stand below each other, so that they can be read on a small screen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from remat_cli.reports.figures import figure_bytes, line_style, matplotlib_settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 6.4
"""Of a picture, in inches."""
_SHORT = 20
"""Characters of a name of which three fit beside each other in a legend."""
_SEEN = 0.01
"""Heights closer than this share of the largest look like one."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: points (x, y) by the name of their line.

    Attributes:
        title: Above it.
        lines: What was measured; the last is drawn on top.
        floor: What is proven that no plan goes below, as a grey area; none if empty.
        published: What a paper states: stars, or dotted lines where there are several points.
        marks: Vertical lines by name.
        top: Upper end of the y axis; what is above it is cut off. None for all.
        dots: Lines without a line between their points.
        steps: Whether x is a budget: a plan stays possible with a larger one, and a bound with a smaller one.
    """

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    floor: Sequence[tuple[float, float]] = ()
    published: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    marks: Mapping[str, float] = field(default_factory=dict)
    top: float | None = None
    dots: Collection[str] = ()
    steps: bool = False


def draw_curves(
    panels: Sequence[Panel],
    across: str,
    up: str,
    path: Path,
    *,
    falling: bool = False,
    plain: bool = False,
    columns: int = 1,
) -> None:
    """Draw panels with axes of their own and one legend into an SVG file, or PNG by its suffix.

    All axes are linear, so that growth in proportion is a straight line. Where lines coincide, those below are wider
    and their markers hollow. ``across`` and ``up`` are the labels of the axes. The largest x is on the left if
    ``falling``; lines are without markers if ``plain``.
    """
    with matplotlib_settings():
        from matplotlib.figure import Figure

        rows = -(-len(panels) // columns)
        figure = Figure(figsize=(_WIDTH, 2.5 * rows + 1.5), layout="constrained")
        names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
        told = list(dict.fromkeys(name for panel in panels for name in panel.published))
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            _draw_panel(axes, panel, names, told, plain=plain)
            if falling:
                axes.invert_xaxis()
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_axis_off()
        for axes in grid[:, 0]:
            axes.set_ylabel(up)
        for axes in grid[-1]:
            axes.set_xlabel(across)
        known = {}
        for axes in figure.axes:
            known |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        empty = {name for name in names if not any(panel.lines.get(name) for panel in panels)}
        order = [*names, *(name for name in known if name not in names)]
        known = {name: known[name] for name in order if name not in empty}
        beside = 3 if max(map(len, known), default=0) <= _SHORT else 2
        legend = {"loc": "outside lower center", "ncols": beside, "frameon": False, "fontsize": "small"}
        figure.legend(list(known.values()), list(known), **legend)
        path.write_bytes(figure_bytes(figure, path.suffix.lstrip(".")))


def _draw_panel(axes: Axes, panel: Panel, names: list[str], told: list[str], *, plain: bool) -> None:
    """Draw one panel, with the looks that its lines have in all panels."""
    drawn = list(panel.lines)
    for at, name in enumerate(drawn):
        points = sorted(panel.lines[name])
        style = line_style(names.index(name)) | ({"marker": ""} if plain else {})
        above = () if name in panel.dots else drawn[at + 1 :]
        under = sum(_meet(points, panel.lines[other]) for other in above)
        if under:
            style |= {"linewidth": style["linewidth"] + 2.0 * min(under, 3), "markerfacecolor": "none"}
            style |= {"markersize": style["markersize"] + 2.0 * min(under, 3)}
        if name in panel.dots:
            style |= {"linestyle": ""}
        if panel.steps:
            style |= {"drawstyle": "steps-post"}
        axes.plot([x for x, _ in points], [y for _, y in points], label=name, **style)
    if panel.floor:
        xs, ys = [x for x, _ in panel.floor], [y for _, y in panel.floor]
        step = "pre" if panel.steps else None
        axes.fill_between(xs, ys, -1e9, step=step, color="#CCCCCC", alpha=0.6, linewidth=0, label="proven impossible")
    for name, points in panel.published.items():
        style = {"color": "black", "zorder": 5}
        if len(points) > 1:
            style |= {"linestyle": (0, (1, 1 + told.index(name))), "linewidth": 1.2}
        else:
            style |= {"linestyle": "", "marker": "*XPpv^"[told.index(name) % 6], "markersize": 8}
        axes.plot([x for x, _ in points], [y for _, y in points], label=name, **style)
    for name, x in panel.marks.items():
        axes.axvline(x, color="black", linestyle="--", linewidth=1.0, label=name)
    axes.set_title(panel.title, fontsize="medium")
    heights = [y for points in (*panel.lines.values(), *panel.published.values()) for _, y in points]
    highest = max(heights, default=1.0)
    if panel.top is not None:
        highest = min(highest, panel.top)
    lowest = min([*heights, 0.0])
    axes.set_ylim(lowest - 0.04 * (highest - lowest or 1.0), highest + 0.06 * (highest - lowest or 1.0))


def _meet(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> bool:
    """Whether two lines coincide, as far as one can see, at half of the places or more that both have."""
    heights = dict(other)
    span = max((abs(y) for _, y in (*one, *other)), default=0.0)
    beside = [abs(heights[x] - y) <= _SEEN * span for x, y in one if x in heights]
    return 2 * sum(beside) >= len(beside) and sum(beside) >= min(2, len(one), len(other)) > 0


def draw_bars(
    groups: Mapping[str, Mapping[str, float]],
    up: str,
    path: Path,
    *,
    limits: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Draw a group of bars for every key, a bar for every name in it, into an SVG file, or PNG by its suffix.

    ``limits`` has by name, for some keys, heights of lines across the whole group.
    """
    with matplotlib_settings():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(_WIDTH, 3.8), layout="constrained")
        axes = figure.subplots()
        names = list(dict.fromkeys(name for group in groups.values() for name in group))
        width = 0.8 / max(1, len(names))
        for k, name in enumerate(names):
            at = [g + (k - (len(names) - 1) / 2) * width for g, group in enumerate(groups.values()) if name in group]
            heights = [group[name] for group in groups.values() if name in group]
            axes.bar(
                at, heights, width, label=name, color=line_style(k)["color"], hatch=("", "//", "..", "xx", "--")[k % 5]
            )
        for k, (name, heights) in enumerate((limits or {}).items()):
            dashes = {"linestyles": ("-", ":")[k % 2], "colors": "black", "linewidth": 1.4, "label": name}
            at = [g for g, key in enumerate(groups) if key in heights]
            axes.hlines(
                [heights[key] for key in groups if key in heights],
                [g - 0.45 for g in at],
                [g + 0.45 for g in at],
                **dashes,
            )
        axes.set_xticks(range(len(groups)), list(groups), fontsize="small")
        axes.set_ylabel(up)
        axes.grid(visible=False, axis="x")
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
        path.write_bytes(figure_bytes(figure, path.suffix.lstrip(".")))


def draw_stacks(
    groups: Mapping[str, Mapping[str, float]], across: str, path: Path, *, mark: tuple[float, str] | None = None
) -> None:
    """Draw a horizontal bar for every key, from the top, made of a part for every name in it.

    ``mark`` is a number with a vertical line, and its name.
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
                places, parts, 0.7, left=begins, label=name, color=line_style(k)["color"], hatch=("", "//", "..")[k % 3]
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
