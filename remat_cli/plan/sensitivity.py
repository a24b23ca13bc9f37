"""What more memory and a faster link are worth: times of plans over budgets and links, and their slopes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.graph.model import Graph
from remat_cli.plan.host import Host

GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Offer:
    """The plans for one link at one budget, and for everything smaller and slower: their best times, and the bound.

    Times are in the graph's cost unit.

    Attributes:
        link: Name of the link.
        host: The host behind it.
        budget: The budget as asked.
        budget_bytes: In bytes, fixed memory included.
        recompute: The least time of plans that only recompute; None for no plan.
        copy: The same for plans that only copy.
        both: The same for plans that may do both.
        bound: No plan in document order takes less, with any copies.
    """

    link: str
    host: Host
    budget: str
    budget_bytes: int
    recompute: float | None
    copy: float | None
    both: float | None
    bound: float

    @property
    def gap(self) -> float | None:
        """(both - bound) / both; None for no plan."""
        return None if self.both is None else max(0.0, (self.both - self.bound) / self.both) if self.both > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Slope:
    """Time that a step takes less, per unit of what it gets more of.

    Attributes:
        found: By the plans found.
        least: The least that it can be, if all plans found were optimal where that counts; not below 0.
        most: The most that it can be, by the bounds.
    """

    found: float
    least: float
    most: float


def slope(small: Offer, large: Offer, units: float) -> Slope | None:
    """The slope between two offers that are ``units`` apart; None if the small one has no plan."""
    if small.both is None or large.both is None or units <= 0:
        return None
    return Slope(
        (small.both - large.both) / units,
        max(0.0, (small.bound - large.both) / units),
        max(0.0, (small.both - large.bound) / units),
    )


@dataclass(frozen=True, slots=True)
class Worth:
    """Offers for every link and budget.

    Attributes:
        graph: The graph.
        links: Names and hosts, the slowest first.
        budgets: As asked and in bytes, the smallest first.
        offers: By link, then by budget.
        interrupted: Whether plans are missing because the search was stopped.
    """

    graph: Graph
    links: tuple[tuple[str, Host], ...]
    budgets: tuple[tuple[str, int], ...]
    offers: tuple[Offer, ...]
    interrupted: bool = False

    def offer(self, link: int, budget: int) -> Offer:
        """The offer for a link and a budget, both by number."""
        return self.offers[link * len(self.budgets) + budget]

    def memory(self, link: int, budget: int) -> Slope | None:
        """What a GB of memory more is worth, up to the next budget; None for the last one."""
        if budget + 1 == len(self.budgets):
            return None
        small, large = self.offer(link, budget), self.offer(link, budget + 1)
        return slope(small, large, (large.budget_bytes - small.budget_bytes) / GIGA)

    def speed(self, link: int, budget: int) -> Slope | None:
        """What a GB/s more in each direction is worth, up to the next link; None for the last one, or no limit."""
        if link + 1 == len(self.links) or math.isinf(_rate(self.links[link + 1][1])):
            return None
        small, large = self.offer(link, budget), self.offer(link + 1, budget)
        return slope(small, large, _rate(large.host) - _rate(small.host))


def _rate(host: Host) -> float:
    return (host.out_bytes_per_s + host.in_bytes_per_s) / 2 / GIGA


def offers(
    links: Sequence[tuple[str, Host]],
    budgets: Sequence[tuple[str, int]],
    recompute: Sequence[float | None],
    copy: Sequence[Sequence[float | None]],
    both: Sequence[Sequence[float | None]],
    bound: Sequence[Sequence[float]],
) -> tuple[Offer, ...]:
    """Offers from the times of plans by link and by budget.

    A plan fits every larger budget, and takes no longer with a faster link, since all of its waits end no later. A
    plan that only recomputes or only copies may do both. A bound holds for every smaller budget and slower link.
    """
    best_offers = []
    for at, (link, host) in enumerate(links):
        slower = [k for k, (_, other) in enumerate(links) if k == at or _within(other, host)]
        faster = [k for k, (_, other) in enumerate(links) if k == at or _within(host, other)]
        for place, (budget, budget_bytes) in enumerate(budgets):
            below, above = range(place + 1), range(place, len(budgets))
            again = _least([recompute[b] for b in below])
            copied = _least([copy[k][b] for k in slower for b in below])
            mixed = _least([again, copied, *(both[k][b] for k in slower for b in below)])
            most = max(bound[k][b] for k in faster for b in above)
            best_offers.append(Offer(link, host, budget, budget_bytes, again, copied, mixed, most))
    return tuple(best_offers)


def _within(slow: Host, fast: Host) -> bool:
    """Whether every plan for ``slow`` is one for ``fast``, and takes no longer there."""
    memory = fast.memory_bytes is None or (slow.memory_bytes is not None and slow.memory_bytes <= fast.memory_bytes)
    return (
        memory
        and slow.out_bytes_per_s <= fast.out_bytes_per_s
        and slow.in_bytes_per_s <= fast.in_bytes_per_s
        and slow.latency_s >= fast.latency_s
    )


def _least(times: Sequence[float | None]) -> float | None:
    return min((time for time in times if time is not None), default=None)
