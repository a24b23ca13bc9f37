"""The least peak against the truth, and what is claimed of it."""

import dataclasses
import os
import signal

import pytest
from bruteforce import cheapest, least_peak
from cli_process import GRAPHS
from families import chosen_graph
from seeded import seeded

from remat_cli.control import Control
from remat_cli.errors import StrategyMismatch
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.document import Document
from remat_cli.graph.io import dump_document, load_graph
from remat_cli.graph.model import Graph
from remat_cli.plan.check import check
from remat_cli.plan.derive import peak
from remat_cli.plan.io import plan_from_document, plan_to_document
from remat_cli.plan.model import PeakClaim, Scope
from remat_cli.plan.replay import replay
from remat_cli.planning.least_peak import solve_smallest
from remat_cli.planning.options import SolveOptions
from remat_cli.strategies.annealing.squeeze import squeeze
from remat_cli.zoo.registry import build_graph

QUICK = SolveOptions(threads=1, gap=1e-6)


def small(seed: int) -> Graph:
    """A random graph; two of three have room for recomputation."""

    def wanted(graph: Graph) -> bool:
        return seed % 3 == 0 or least_peak(graph) < no_remat_peak(graph)

    return chosen_graph(seed, wanted, random_outputs=seed % 5 == 0)


@seeded(range(12), recomputed=6, optimal=6, exact=6)
def test_never_below_the_truth_and_proven_where_it_says_so(seed):
    graph = small(seed)
    solved = solve_smallest(graph, QUICK)
    truth = least_peak(graph)
    seen, claim = replay(graph, solved.plan.statements), solved.plan.claim
    assert seen.valid
    assert seen.peak_bytes == solved.plan.budget_bytes
    assert seen.peak_bytes == truth  # so small that the search misses nothing
    bound = claim.peak
    passes = 1 if bound.scope is Scope.FRONTIER else None
    assert bound.lower_bound_bytes <= least_peak(graph, passes=passes)
    assert bound.lower_bound_bytes <= seen.peak_bytes
    assert seen.cost >= cheapest(graph, truth)
    if claim.status == "optimal":
        best = cheapest(graph, truth, passes=1 if claim.scope is Scope.FRONTIER else None)
        assert best is None or seen.cost == best
    assert solved.plan.provenance["minimize"] == "peak"
    yield from ["recomputed"] * bool(solved.report.recomputed) + ["optimal"] * (claim.status == "optimal")
    if bound.lower_bound_bytes == seen.peak_bytes:
        yield "exact"


def test_a_peak_at_the_working_set_is_proven_for_every_order():
    graph = build_graph("unit-chain{n=9}")
    solved = solve_smallest(graph, QUICK)
    assert solved.report.replay.peak_bytes == peak_bound(graph).bytes == 3
    assert solved.plan.claim.peak == PeakClaim(3, Scope.ANY_ORDER)


def test_a_network_reaches_its_bound():
    graph = load_graph(str(GRAPHS / "vgg16.json"))
    solved = solve_smallest(graph, SolveOptions(threads=1))
    assert solved.report.replay.peak_bytes == peak_bound(graph).bytes == 14_414_338_368
    assert solved.report.overhead < 0.005


def test_under_a_limit_the_least_peak_found_counts():
    graph = load_graph(str(GRAPHS / "resnet50.json"))
    solved = solve_smallest(graph, SolveOptions(threads=1, time_limit_s=5))
    assert solved.outcome in ("finished", "time limit")  # as far as the machine gets in the time
    assert solved.report.ok
    assert solved.plan.claim.peak.lower_bound_bytes <= solved.report.replay.peak_bytes <= no_remat_peak(graph)


def test_blocks_that_do_not_fit_bound_the_least_peak_of_a_network():
    tensor = 128 * 64 * 32 * 32 * 4  # the largest working set is three of them
    graph = build_graph("resnet-deep{depth=20,backward=operator}")
    solved = solve_smallest(graph, SolveOptions(threads=1, time_limit_s=40))
    least = solved.plan.claim.peak
    assert least.scope is Scope.DOCUMENT_ORDER
    assert graph.fixed_memory + 4 * tensor <= least.lower_bound_bytes <= solved.report.replay.peak_bytes


def test_without_time_there_is_still_the_plan_that_keeps_all():
    graph = load_graph(str(GRAPHS / "unet.json"))
    solved = solve_smallest(graph, SolveOptions(time_limit_s=0.001))
    assert solved.outcome == "time limit"
    assert solved.report.replay.peak_bytes <= no_remat_peak(graph)


def test_an_interruption_keeps_what_is_there():
    graph = load_graph(str(GRAPHS / "unet.json"))
    stopped = []

    def listener(progress):
        if "bounding" in progress.activity and not stopped:
            stopped.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    solved = solve_smallest(graph, SolveOptions(threads=1, time_limit_s=30), listener=listener)
    assert stopped
    assert solved.outcome == "interrupted"
    assert solved.report.replay.peak_bytes < no_remat_peak(graph)


def test_a_strategy_that_ignores_the_budget_is_refused_before_anything_is_searched():
    graph = load_graph(str(GRAPHS / "toy.yaml"))
    with pytest.raises(StrategyMismatch, match="keep-all makes one plan, whatever the budget"):
        solve_smallest(graph, SolveOptions(strategy="keep-all"))


def test_the_strategy_asked_for_proves_the_cost():
    graph = build_graph("unit-chain{n=9}")
    solved = solve_smallest(graph, SolveOptions(strategy="checkmate-ilp", threads=1))
    assert solved.plan.claim.status == "optimal"
    assert solved.plan.claim.scope is Scope.FRONTIER
    assert solved.plan.claim.cost == cheapest(graph, 3, passes=1)


def test_squeezing_offers_smaller_and_smaller_peaks():
    graph = load_graph(str(GRAPHS / "unet.json"))
    offered = []
    best = squeeze(graph, 0, Control.within(3.0), 0, offered.append)
    peaks = [peak(graph, computes) for computes in offered]
    assert peaks == sorted(set(peaks), reverse=True)
    assert peaks[0] == no_remat_peak(graph)
    assert peaks[-1] == peak(graph, best) < 0.6 * peaks[0]


# The claim in documents


def test_the_claim_travels_with_the_plan_and_is_held_against_the_replay():
    solved = solve_smallest(build_graph("unit-chain{n=9}"), QUICK)
    document = plan_to_document(solved.plan)
    assert document["claim"]["peak"] == {"lower_bound": 3, "scope": "any-order"}
    read = plan_from_document(Document("f", document))
    assert read.claim == solved.plan.claim
    assert dump_document(plan_to_document(read)) == dump_document(document)
    assert check(read).ok
    wrong = dataclasses.replace(read, claim=dataclasses.replace(read.claim, peak=PeakClaim(4, Scope.FRONTIER)))
    report = check(wrong)
    assert not report.valid
    assert [f.code for f in report.findings] == ["claimed-peak"]


def test_plans_for_a_budget_say_nothing_of_the_least_peak():
    solved = solve_smallest(build_graph("unit-chain{n=9}"), QUICK)
    plain = dataclasses.replace(solved.plan, claim=dataclasses.replace(solved.plan.claim, peak=None))
    assert "peak" not in plan_to_document(plain)["claim"]
