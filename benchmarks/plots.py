"""Pictures of results: small multiples with logarithmic axes, the same bytes for the same numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Okabe and Ito's colours, which colour-blind readers can tell apart; markers and dashes repeat the distinction.
_STYLES = (
    ("#0072B2", "o", "-"),
    ("#D55E00", "s", "--"),
    ("#009E73", "^", "-."),
    ("#CC79A7", "D", ":"),
)

_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class Panel:
    """One of the small pictures: points (x, y) by the name of their line."""

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


def draw_panels(panels: Sequence[Panel], across: str, up: str, path: Path, *, alike: bool = True) -> None:
    """Draw ``panels`` in rows of four with one legend into an SVG file.

    Both axes are logarithmic and common to all panels; unless they are ``alike``, each has a linear vertical axis of
    its own.
    """
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    settings = {"svg.hashsalt": "remat", "svg.fonttype": "path", "font.size": 9}
    with mpl.rc_context(settings):
        columns = min(len(panels), _COLUMNS)
        rows = -(-len(panels) // columns)
        size = (3.1 * columns, 3.1 if rows == 1 else 2.6 * rows + 0.5)
        figure, axes = plt.subplots(rows, columns, figsize=size, sharex=True, sharey=alike, squeeze=False)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        for axis, panel in zip(axes.flat, panels, strict=False):
            for name, (colour, marker, dashes) in zip(names, _STYLES, strict=False):
                points = sorted(panel.lines.get(name, ()))
                axis.plot(
                    [x for x, _ in points],
                    [y for _, y in points],
                    color=colour,
                    marker=marker,
                    linestyle=dashes,
                    label=name,
                )
            axis.set(title=panel.title)
            if any(points for panel in panels for points in panel.lines.values()):  # no logarithms without points
                axis.set(xscale="log", yscale="log" if alike else "linear")
            axis.grid(visible=True, which="major", color="#dddddd")
        for row in axes:
            row[0].set_ylabel(up)
        for k in range(columns):
            lowest = axes[max(row for row in range(rows) if row * columns + k < len(panels)), k]
            lowest.set_xlabel(across)
            lowest.tick_params(labelbottom=True)
        figure.legend(
            *axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(names), frameon=False
        )
        figure.tight_layout(rect=(0, 0.08, 1, 1))
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)
