"""The retention MILP and the cover bound against searches of all schedules and against the paper's MILP."""

import gc
import math
from collections.abc import Iterator

import pytest
from bruteforce import cheapest, least_peak
from families import varied_graph
from seeded import seeded

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, closed
from remat_cli.milp import cover_bound, retention
from remat_cli.milp.checkmate import Formulation
from remat_cli.milp.checkmate import build as build_checkmate
from remat_cli.milp.decode import Decoder, overfull
from remat_cli.milp.in_stage_rows import LiveThroughRows, in_stage_rows
from remat_cli.milp.support import Support, full_support, support_within
from remat_cli.mip import LinearModel
from remat_cli.plan.derive import peak, prune
from remat_cli.solvers.base import Request, Termination
from remat_cli.solvers.highs import Highs
from remat_cli.zoo.registry import build_graph


def graph_of(seed: int, low: int = 2, high: int = 6) -> Graph:
    return varied_graph(seed, low, high, most_outputs=(1, 2, 3))


def optimum(graph: Graph, budget: int, *, all_rows: bool) -> float | None:
    """Optimum over the full support, all in-stage rows at once or only those that turn out to matter."""
    stated = retention.build(graph, budget, None, Control())
    model = stated.model()
    steps = list(stated.R) if all_rows else []
    for _ in range(200):
        rows = in_stage_rows(stated, steps)
        if rows is not None:
            model = model.with_block(rows.block)
        outcome = Highs().solve(Request(model, gap=1e-7, threads=1))
        if outcome.termination is Termination.INFEASIBLE:
            return None
        assert outcome.values is not None
        assert outcome.objective is not None
        decoder = Decoder.of(stated)
        chosen = decoder.chosen(outcome.values)
        steps = overfull(stated, chosen)
        if not steps:
            computes = prune(graph, decoder.computes(chosen))
            assert peak(graph, computes) <= budget
            assert outcome.objective * stated.cost_scale == pytest.approx(sum(graph.nodes[k].cost for k in computes))
            return round(outcome.objective * stated.cost_scale, 6)
        assert not all_rows, "with all rows no step is over the budget"
    raise AssertionError("rows on demand did not come to an end")


def branch(graph: Graph, cost: float | None) -> Iterator[str]:
    """Whether there is no schedule, or one that recomputes."""
    if cost is None:
        yield "none"
    elif cost > graph.total_cost:
        yield "dearer"


def budgets(graph: Graph) -> range:
    top = no_remat_peak(graph)
    return range(max(peak_bound(graph).bytes, top - 4), top + 1)


@seeded(range(60), none=10, dearer=25)
def test_full_support_and_all_rows_equal_a_search_of_all_frontier_advancing_schedules(seed: int) -> Iterator[str]:
    graph = graph_of(seed)
    for budget in budgets(graph):
        truth = cheapest(graph, budget, passes=1)
        assert optimum(graph, budget, all_rows=True) == truth
        yield from branch(graph, truth)


@seeded(range(60, 120), none=1, dearer=12)
def test_rows_on_demand_come_to_the_same(seed: int) -> Iterator[str]:
    graph = graph_of(seed)
    for budget in budgets(graph):
        truth = cheapest(graph, budget, passes=1)
        assert optimum(graph, budget, all_rows=False) == truth
        yield from branch(graph, truth)


@seeded(range(10), none=1, dearer=5)
def test_equals_the_papers_milp_on_larger_graphs(seed: int) -> Iterator[str]:
    graph = graph_of(1000 + seed, 8, 11)
    budget = (no_remat_peak(graph) + peak_bound(graph).bytes) // 2
    decoder = build_checkmate(graph, budget, Formulation(), Control())
    outcome = Highs().solve(Request(decoder.model, gap=1e-7, threads=1))
    paper = None if outcome.objective is None else round(outcome.objective * decoder.cost_scale, 6)
    assert optimum(graph, budget, all_rows=False) == paper
    yield from branch(graph, paper)


def test_training_chain_relaxation_is_tight_where_the_papers_is_not() -> None:
    graph = build_graph("unit-chain{n=17}")
    stated = retention.build(graph, 4, None, Control())
    rows = in_stage_rows(stated, list(stated.R))
    assert rows is not None
    model = stated.model().with_block(rows.block)
    outcome = Highs().solve(Request(model.relaxed(), threads=1))
    assert outcome.bound is not None
    assert 22.5 < outcome.bound * stated.cost_scale <= 26  # the paper's relaxation: 22


@seeded(range(120), impossible=3, compared=35, tight=25)
def test_cover_bound_is_never_above_the_truth(seed: int) -> Iterator[str]:
    graph = graph_of(seed)
    floor = cover_bound.least_peak(graph)
    assert peak_bound(graph).bytes <= floor <= least_peak(graph)
    for budget in budgets(graph):
        truth = cheapest(graph, budget)
        model = cover_bound.build(graph, budget)
        if model is None:
            continue
        if model == cover_bound.IMPOSSIBLE:
            assert truth is None
            assert budget < floor
            yield "impossible"
            continue
        assert budget >= floor
        outcome = Highs().solve(Request(model, gap=1e-7, threads=1))
        assert outcome.bound is not None
        bound = graph.total_cost * (1 + outcome.bound)
        if truth is not None:
            assert bound <= truth * (1 + 1e-6)
            yield from ["compared"] + ["tight"] * (bound >= truth * (1 - 1e-6))


@seeded(range(120), impossible=8, compared=150, telling=150)
def test_cover_bound_by_running_sums_is_the_same(seed: int) -> Iterator[str]:
    """Its rows are weaker, but not for whole numbers."""
    graph = graph_of(seed, 2, 14)
    for budget in budgets(graph):
        plain = cover_bound.build(graph, budget)
        running = cover_bound.build_running(graph, budget, Control())
        if plain is None or plain == cover_bound.IMPOSSIBLE:
            assert running == plain
            yield from ["impossible"] * (plain is not None)
            continue
        assert isinstance(plain, LinearModel)
        assert isinstance(running, LinearModel)
        answers = [Highs().solve(Request(m, gap=0.0, threads=1)).objective for m in (plain, running)]
        assert answers[1] == pytest.approx(answers[0], abs=1e-6)
        yield from ["compared"] + ["telling"] * (answers[0] is not None and answers[0] > 1e-6)


@seeded(range(40), none=6, dearer=18)
def test_frontier_rows_by_running_sums_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    graph = graph_of(seed)
    for budget in budgets(graph):
        monkeypatch.setattr(retention, "_DENSE_MOST", 10**9)
        plain = optimum(graph, budget, all_rows=False)
        monkeypatch.setattr(retention, "_DENSE_MOST", -1)
        assert retention.build(graph, budget, None, Control()).running
        assert optimum(graph, budget, all_rows=False) == plain
        yield from branch(graph, plain)


def test_cover_bound_is_worth_something() -> None:
    graph = build_graph("unit-chain{n=17}")
    model = cover_bound.build(graph, 5)
    assert isinstance(model, LinearModel)
    outcome = Highs().solve(Request(model, gap=1e-7, threads=1))
    assert outcome.bound is not None
    assert graph.total_cost * (1 + outcome.bound) == pytest.approx(22)  # the optimum


def test_supports_grow_with_depth_and_stay_within_the_full_one() -> None:
    graph = closed(build_graph("linear{n=20}"))
    full = full_support(graph)
    last: Support = tuple(() for _ in graph.nodes)
    for depth in (0.0, 0.25, 1.0, 3.0, math.inf):
        support = support_within(graph, depth)
        for i, stages in enumerate(support):
            assert set(last[i]) <= set(stages) <= set(full[i])
        last = support
    assert support_within(graph, 0.0)[3] == tuple(sorted({j for v in graph.values_of(3) for j in graph.readers[v]}))


def test_columns_are_called_by_what_they_mean_also_those_of_rows_on_demand() -> None:
    stated = retention.build(build_graph("unit-chain{n=6}"), 5, None, Control())
    model = stated.model()
    assert {place: model.column_names[column] for place, column in stated.R.items()} == {
        (t, i): f"R[{t},{i}]" for t, i in stated.R
    }
    kept = {(gaps.events[k + 1], v): column for v, gaps in enumerate(stated.gaps) for k, column in enumerate(gaps.kept)}
    assert {place: model.column_names[column] for place, column in kept.items()} == {
        (t, v): f"S[{t},{v}]" for t, v in kept
    }
    rows = in_stage_rows(stated, list(stated.R))
    assert rows is not None
    wider = model.with_block(rows.block, stated.names(stated.columns))
    assert list(wider.column_names[: model.columns]) == list(model.column_names)
    assert list(wider.column_names[model.columns :]) == [f"w[{column}]" for column, _ in rows.levels]
    assert len(wider.column_names) == wider.columns


def test_a_block_out_of_turn_is_refused() -> None:
    stated = retention.build(build_graph("unit-chain{n=6}"), 5, None, Control())
    rows = in_stage_rows(stated, list(stated.R))
    assert rows is not None
    wider = stated.model().with_block(rows.block)
    added = slice(rows.block.first, None)
    assert (set(wider.lower[added]), set(wider.upper[added]), any(wider.integer[added])) == ({0.0}, {1.0}, False)
    with pytest.raises(ValueError, match="cannot follow"):
        wider.with_block(rows.block)


# Rows that hold in any order


def bound(graph: Graph, budget: int, *, rows: bool) -> float | None:
    """Optimum of the retention model without rows inside stages, or with all that hold in any order."""
    stated = retention.build(graph, budget, None, Control())
    model = stated.model()
    standing = LiveThroughRows(stated)
    block = standing.block(stated.R) if rows else None
    if block is not None:
        model = model.with_block(block)
        assert standing.block(stated.R) is None
    outcome = Highs().solve(Request(model, gap=1e-9, threads=1))
    if outcome.termination is Termination.INFEASIBLE:
        return None
    assert outcome.objective is not None
    return round(outcome.objective * stated.cost_scale, 6)


@pytest.fixture
def new_objects_alone() -> Iterator[None]:
    """The collector looks through nothing that is there already, which may be all of PyTorch, again and again."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("new_objects_alone")
def test_rows_in_several_blocks_come_to_the_same() -> None:
    for seed in range(1070, 1080):
        graph = varied_graph(seed)
        budget = max(peak_bound(graph).bytes, no_remat_peak(graph) - 3)
        stated = retention.build(graph, budget, None, Control())
        model = stated.model()
        standing = LiveThroughRows(stated)
        for step in stated.R:
            block = standing.block([step])
            assert block is not None
            model = model.with_block(block)
            del block
            gc.collect()
        outcome = Highs().solve(Request(model, gap=1e-9, threads=1))
        value = None if outcome.objective is None else round(outcome.objective * stated.cost_scale, 6)
        assert value == bound(graph, budget, rows=True)


def test_never_above_the_truth_and_sometimes_above_the_model_without_them() -> None:
    better = checked = 0
    for seed in range(1000, 1120):
        graph = varied_graph(seed)
        top = no_remat_peak(graph)
        for budget in range(max(peak_bound(graph).bytes, top - 4), top):
            truth = cheapest(graph, budget)
            plain, rows = bound(graph, budget, rows=False), bound(graph, budget, rows=True)
            if rows is None:
                assert truth is None
                better += plain is not None
                continue
            assert plain is not None
            assert plain <= rows
            assert truth is None or rows <= truth
            better += rows > plain
            checked += truth is not None
    assert checked > 80
    assert better > 5
