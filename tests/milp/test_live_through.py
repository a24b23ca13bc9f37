"""In-stage rows that hold in any order of a stage, against searches of all schedules."""

import gc
from collections.abc import Iterator

import pytest
from bruteforce import cheapest
from families import varied_graph

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph
from remat_cli.milp import retention
from remat_cli.milp.in_stage_rows import LiveThroughRows
from remat_cli.solvers.base import Request, Termination
from remat_cli.solvers.highs import Highs


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
