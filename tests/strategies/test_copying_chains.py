"""Plans with copies of chains: against a dynamic programme that knows nothing of the search, and against all plans."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from copying_bruteforce import TooMany
from copying_bruteforce import least_time as least_of_all
from copying_chains import Chain, least_time, random_chain
from seeded import seeded

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.kernels import compiling
from remat_cli.plan.host import Host
from remat_cli.planning.solving import SolveOptions, solve


def room_of(rng: random.Random, chain: Chain) -> tuple[int, Host] | None:
    """A budget below the peak, and a host; None if every budget is the peak."""
    low, high = peak_bound(chain.graph()).bytes, no_remat_peak(chain.graph())
    if low >= high:
        return None
    return rng.randint(low, high - 1), Host(rng.choice((0.5, 1.0, 2.0, 4.0)), rng.choice((0.5, 1.0, 2.0, 4.0)))


def test_the_programme_finds_plans_that_no_plan_beats() -> None:
    compared = met = 0
    for seed in range(10):
        rng = random.Random(seed)
        chain = random_chain(rng)
        given = room_of(rng, chain)
        short = Chain(chain.forward[:3], chain.backward[:3], chain.a[:3], chain.g[:3])
        low, high = peak_bound(short.graph()).bytes, no_remat_peak(short.graph())
        if given is None or low >= high:
            continue
        room, host = rng.randint(low, high - 1), given[1]
        found = least_time(short, room, host)
        try:
            least = least_of_all(short.graph(), room, host, most=2_000)
        except TooMany:
            continue
        if found is not None:
            assert least is not None
            assert found >= least - 1e-9
            compared += 1
            met += found <= least + 1e-9
    assert compared >= 4
    assert met >= 0.8 * compared


@seeded([27, 48])
def test_no_plan_of_the_programme_takes_less_time(seed: int) -> None:
    """On these it took less until copies out were issued before their queue was idle. The bounds are met: both end."""
    assert compiling.wait("copying", Control())
    rng = random.Random(seed)
    chain = random_chain(rng)
    given = room_of(rng, chain)
    assert given is not None
    room, host = given
    found = least_time(chain, room, host)
    assert found is not None
    claim = solve(chain.graph(), room, SolveOptions(host=host, time_limit_s=40, threads=1)).plan.claim
    assert claim.cost <= found + 1e-6
    assert claim.lower_bound <= found + 1e-6


def test_whole_numbers_may_be_costs() -> None:
    graph = Chain((1, 2, 3, 1), (1, 1, 1, 1), (4, 5, 3, 2), (2, 3, 3, 2)).graph()
    options = SolveOptions(time_limit_s=40, threads=1)
    whole = solve(graph, no_remat_peak(graph) - 1, options).plan.claim
    floats = replace(graph, nodes=tuple(replace(node, cost=float(node.cost)) for node in graph.nodes))
    assert whole.cost == solve(floats, no_remat_peak(graph) - 1, options).plan.claim.cost


def test_a_link_too_slow_for_numbers_is_not_used() -> None:
    rng = random.Random(1)
    chain = random_chain(rng)
    given = room_of(rng, chain)
    assert given is not None
    slow = Host(5e-324, 5e-324)
    claim = solve(chain.graph(), given[0], SolveOptions(host=slow, time_limit_s=8, threads=1)).plan
    assert not claim.copies
    assert claim.claim.cost == pytest.approx(
        solve(chain.graph(), given[0], SolveOptions(time_limit_s=8, threads=1)).plan.claim.cost
    )
