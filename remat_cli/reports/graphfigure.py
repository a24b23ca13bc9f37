"""A graph as a figure for papers, through matplotlib (extra ``plot``): its nodes in layers."""

from __future__ import annotations

from remat_cli.graph.layout import layered
from remat_cli.graph.model import Graph, Phase
from remat_cli.reports.figures import drawable, figure_bytes, matplotlib_settings
from remat_cli.reports.web.graph import edges, node_shades, node_sizes
from remat_cli.reports.words import count

_MARKERS = {Phase.FORWARD: "o", Phase.LOSS: "D", Phase.BACKWARD: "s", Phase.UPDATE: "^", None: "o"}


def graph_figure(graph: Graph, format: str) -> bytes:
    """The nodes of ``graph`` in layers as ``svg`` or ``png``: areas grow with bytes, shades with costs.

    Raises:
        UsageError: If matplotlib is not installed.
    """
    with matplotlib_settings():
        from matplotlib.collections import LineCollection
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 4.5), layout="constrained")
        axes = figure.subplots()
        place = layered(graph)
        for pairs, width, alpha in zip(edges(graph), (0.7, 0.3), (0.7, 0.4), strict=True):
            lines = [place.path(*pair) for pair in pairs]
            axes.add_collection(LineCollection(lines, linewidths=width, colors="#808890", alpha=alpha, zorder=1))
        sizes, shades = node_sizes(graph), node_shades(graph)
        low, high = min(shades, default=0.0), max(shades, default=1.0)
        for phase, marker in _MARKERS.items():
            members = [i for i, node in enumerate(graph.nodes) if node.phase is phase]
            drawn = axes.scatter(
                [place.layer[i] for i in members],
                [place.y[i] for i in members],
                s=[sizes[i] ** 2 / 3 for i in members],
                c=[shades[i] for i in members],
                vmin=low,
                vmax=max(high, low + 1),
                cmap="cividis",
                marker=marker,
                edgecolors="black",
                linewidths=0.3,
                label=None if not members else phase.value if phase else "nodes",
                zorder=2,
            )
        axes.axis("off")
        figure.colorbar(drawn, ax=axes, label=drawable(f"cost, log10 {graph.cost_unit}"), shrink=0.7)
        heading = f"{graph.name or 'graph'} ({count(len(graph.nodes), 'node')})"
        figure.suptitle(drawable(heading), fontsize="medium")
        return figure_bytes(figure, format)
