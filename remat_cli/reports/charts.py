"""What charts on pages and in figures share: the order of lines, the scale of overheads, and colours.

The colours are fit for the colour-blind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from remat_cli.plan.comparison import Comparison, Ended, Row
from remat_cli.plan.occupancy import Kind
from remat_cli.tolerances import SAME_COST

_RECOMMENDED = ("auto", "optimal")
_MOMENTS = 2000
"""More are closer together than the pixels of a chart."""
_WIDEST = 5
"""So many widths can be told apart; untuned."""
NO_PLAN = (Ended.NONE, Ended.LIMIT)
"""Outcomes that are drawn as a cross above the lines."""


@dataclass(frozen=True, slots=True)
class Line:
    """The line of a strategy.

    Attributes:
        strategy: The strategy.
        index: Its place among all strategies, which gives its colour and its marker.
        covered: The number of lines drawn on top of it that coincide with it somewhere, at most ``_WIDEST``. With so
            many steps more in width it can be seen below them.
        rows: Its rows with a plan, by budget.
    """

    strategy: str
    index: int
    covered: int
    rows: tuple[Row, ...]


def highest_moments(amounts: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of neighbouring moments, all alone if they are few: where each begins, and where its amount is highest."""
    each = max(1, -(-len(amounts) // _MOMENTS))
    runs = (range(first, min(first + each, len(amounts))) for first in range(0, len(amounts), each))
    return [(run.start, max(run, key=amounts.__getitem__)) for run in runs]


def chart_lines(comparison: Comparison, amount: Callable[[Row], float | None]) -> list[Line]:
    """The lines of ``amount`` in the order in which they are drawn: the recommended strategy last, on top."""
    first = recommended(comparison)
    order = sorted(comparison.strategies, key=lambda name: (name == first, -comparison.strategies.index(name)))
    rows_of = {name: tuple(r for r in rows if amount(r) is not None) for name, rows in comparison.by_strategy().items()}
    points = {name: {row.budget_bytes: amount(row) or 0.0 for row in rows} for name, rows in rows_of.items()}
    last = comparison.budgets[-1][1] if len(comparison.budgets) > 1 else None
    return [
        Line(
            name,
            comparison.strategies.index(name),
            min(_WIDEST, sum(_coincide(points[name], points[other], last) for other in order[at + 1 :])),
            rows_of[name],
        )
        for at, name in enumerate(order)
    ]


def recommended(comparison: Comparison) -> str | None:
    """The strategy that the documentation recommends, if it takes part."""
    by_name = {strategy.partition("{")[0]: strategy for strategy in reversed(comparison.strategies)}
    return next((by_name[name] for name in _RECOMMENDED if name in by_name), None)


def _coincide(one: dict[int, float], other: dict[int, float], last: int | None) -> bool:
    """Whether two lines have a step in common; at the last budget they have points, and no steps."""
    shared = (one.keys() & other) - {last}
    return any(math.isclose(one[at], other[at], rel_tol=SAME_COST, abs_tol=SAME_COST) for at in shared)


def overhead_percent(row: Row) -> float | None:
    """The cost of a plan over no-remat, in percent."""
    return None if row.overhead is None else 100 * row.overhead


def bound_percents(comparison: Comparison) -> list[float]:
    """The least overhead that any plan can have, in percent, for each budget."""
    base = comparison.graph.no_remat_cost or 1.0
    return [max(0.0, 100 * (comparison.bound(amount) / base - 1)) for _, amount in comparison.budgets]


@dataclass(frozen=True, slots=True)
class Scale:
    """The positions of overheads on their axis.

    Attributes:
        decades: The powers of ten that a logarithmic axis shows, in percent; none for a linear one.
        cut: Whether overheads just above zero are drawn at zero, because they are too small to distinguish.
    """

    decades: tuple[int, ...]
    cut: bool = False

    @property
    def first_shown(self) -> bool:
        """Whether this scale is shown first, because a linear one would draw most of the lines as one near zero."""
        return len(self.decades) >= _MANY_DECADES

    def ticks(self) -> list[tuple[float, str]]:
        """The marks of a logarithmic axis, with their words."""
        powers = [10.0**k for k in self.decades]
        foot = f"below {powers[0]:g}" if self.cut else "0"
        return [(self.foot, foot), *((power, f"{power:g}") for power in powers)]

    @property
    def foot(self) -> float:
        """The position of zero on a logarithmic axis: half a decade below the first."""
        return float(10.0 ** (self.decades[0] - 0.5))

    def place(self, percent: float) -> float:
        """The position of ``percent``."""
        if not self.decades:
            return percent
        return percent if percent >= 10.0 ** self.decades[0] else self.foot

    def above(self, most: float, k: int) -> float:
        """The height of the crosses of the k-th strategy: above ``most``, in rows that do not cover each other."""
        row = k % 6
        if not self.decades:
            return 1.12 * most * (1 + 0.03 * row)
        return float(10.0 ** (math.log10(most) + len(self.decades) * (0.08 + 0.025 * row)))


_DECADES = 7
"""The largest number of powers of ten on a logarithmic axis."""
_MANY_DECADES = 4
"""From this number on, a logarithmic axis is shown first; untuned."""


def logarithmic_scale(comparison: Comparison) -> Scale:
    """A logarithmic axis for all overheads and bounds; without decades if all of them are zero."""
    percents = [100 * row.overhead for row in comparison.rows if row.overhead is not None]
    percents += bound_percents(comparison)
    above = [percent for percent in percents if percent > 100 * SAME_COST]
    if not above:
        return Scale(())
    last = math.ceil(math.log10(max(above)))
    wanted = min(math.floor(math.log10(min(above))), last - 1)
    first = max(wanted, last + 1 - _DECADES)
    return Scale(tuple(range(first, last + 1)), cut=min(above) < 10.0**first)


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B")
"""Okabe and Ito's palette, and a brown."""

KINDS = {
    Kind.FIXED: "#999999",
    Kind.FORWARD: "#0072B2",
    Kind.PLAIN: "#0072B2",
    Kind.LOSS: "#CC79A7",
    Kind.BACKWARD: "#56B4E9",
    Kind.UPDATE: "#009E73",
    Kind.RECOMPUTED: "#E69F00",
    Kind.FETCHED: "#009E73",
    Kind.WORKSPACE: "#F0E442",
}
BUDGET = "#D55E00"
PATTERNS = {Kind.RECOMPUTED: "/", Kind.FETCHED: "x", Kind.WORKSPACE: ".", Kind.BACKWARD: "\\"}
"""Hatching, for print without colour."""


_SHADE_DECADES = 6
"""Costs below the largest by more powers of ten have the same shade."""
_LOWEST, _HIGHEST = 0.45, 0.95
"""Heights of boxes, in rows."""
_TICKS = 3
LIGHT = 0.45
"""On colours above this share of the scale, black text has more contrast than white."""


@dataclass(frozen=True, slots=True)
class Shades:
    """A scale of powers of ten, from ``low`` to ``high``."""

    low: int
    high: int

    @classmethod
    def of(cls, costs: Sequence[float]) -> Shades:
        """The scale for ``costs``; those of zero count as the cheapest."""
        top = max(costs, default=0.0)
        if top <= 0:
            return cls(0, 1)
        least = max(min(cost for cost in costs if cost > 0), top * 10.0**-_SHADE_DECADES)
        low = math.floor(math.log10(least))
        return cls(low, max(math.ceil(math.log10(top)), low + 1))

    def share(self, cost: float) -> float:
        """The place of ``cost`` on the scale, 0 to 1."""
        power = math.log10(cost) if cost > 0 else self.low
        return min(1.0, max(0.0, (power - self.low) / (self.high - self.low)))

    def ticks(self) -> list[int]:
        """A few powers of ten of the scale, its ends among them."""
        return sorted({round(self.low + k * (self.high - self.low) / (_TICKS - 1)) for k in range(_TICKS)})


def box_height(size: int, most: int) -> float:
    """The height of a box that makes ``size`` bytes, in rows; ``most`` bytes have the largest."""
    return round(_LOWEST + (_HIGHEST - _LOWEST) * math.sqrt(size / most), 3) if most else _LOWEST
