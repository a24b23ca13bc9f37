"""A graph as a figure for papers, through matplotlib (extra ``plot``): its nodes, or blocks of them, in layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat_cli.graph.blocks import blocks, condensed
from remat_cli.graph.layout import Layout, layered
from remat_cli.graph.model import Graph, Phase
from remat_cli.reports.figures import drawable, figure_bytes, matplotlib_settings
from remat_cli.reports.shades import LIGHT, Shades, box_height
from remat_cli.reports.words import cost_words, count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        drawn = condensed(graph, parts)
        shades = Shades.of([node.cost for node in (*graph.nodes, *drawn.nodes)])
        colours = ScalarMappable(Normalize(shades.low, shades.high), "cividis")
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.subplots()
        axes.use_sticky_edges = False
        axes.axis("off")
        place = layered(drawn)
        _edges(axes, drawn, place)
        most = max((sum(node.outputs) for node in drawn.nodes), default=0)
        heights = [box_height(sum(node.outputs), most) for node in drawn.nodes]
        shares = [shades.share(node.cost) for node in drawn.nodes]
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
        for node, share, height, x, y in zip(drawn.nodes, shares, heights, place.layer, place.y, strict=True):
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
    whole = count(len(graph.nodes), "node")
    made = sum(size > 1 for size in sizes)
    return f"{graph.name or 'graph'} ({whole}{f', in {made} blocks' if made else ''})"


def _font(place: Layout, letters: int, height: float) -> tuple[float, int]:
    """Size in points and rotation in degrees with which a name of so many letters fits into its box: the larger."""
    rows = max(place.y, default=0.0) - min(place.y, default=0.0) + 1
    wide = 72 * 0.85 * _INCHES[0] / (place.layers + 1) * _WIDTH
    high = 72 * 0.85 * _INCHES[1] * height / rows

    def points(along: float, across: float) -> float:
        return min(8.0, 0.7 * across, 1.5 * along / max(1, letters))

    lying, upright = points(wide, high), points(high, wide)
    return (lying, 0) if lying >= upright else (upright, 90)


def _edges(axes: Axes, drawn: Graph, place: Layout) -> None:
    """Lines within a pass, and fainter ones from the forward pass to the backward."""
    from matplotlib.collections import LineCollection

    within: set[tuple[int, int]] = set()
    across: set[tuple[int, int]] = set()
    for reader, node in enumerate(drawn.nodes):
        for producer in {drawn.producer[v] for v in node.inputs}:
            crossing = node.phase in _LATE and drawn.nodes[producer].phase not in _LATE
            (across if crossing else within).add((producer, reader))
    for pairs, width, alpha in ((within, 0.7, 0.7), (across, 0.3, 0.4)):
        lines = [place.path(*pair) for pair in sorted(pairs)]
        axes.add_collection(LineCollection(lines, linewidths=width, colors="#808890", alpha=alpha, zorder=1))
