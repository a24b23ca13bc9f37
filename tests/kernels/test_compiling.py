"""The groups of kernels: one signature each, ready when they say so, and errors that reach whoever asks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cold import script
from families import sized_graph

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import NodeQueue
from remat_cli.kernels import compiling
from remat_cli.kernels.segments import fill_visits
from remat_cli.plan.host import Host
from remat_cli.planning.solving import SolveOptions, solve
from remat_cli.strategies.annealing.walk import Problem, Walk
from remat_cli.strategies.chains.extract import Chain
from remat_cli.strategies.chains.rotor import Program
from remat_cli.strategies.copying.walker import Walker
from remat_cli.strategies.openers.clearing import Network, Question
from remat_cli.strategies.openers.prices import Pricing
from remat_cli.strategies.ordering import anneal
from remat_cli.strategies.ordering.any_order import cheapest_in_any_order
from remat_cli.strategies.overlapping.walker import Walker as OverlappingWalker
from remat_cli.strategies.repeated.bound import bound_of
from remat_cli.strategies.repeated.levels import Spine, levels_of
from remat_cli.strategies.repeated.reachability import Reachability
from remat_cli.strategies.states import coarse_states
from remat_cli.zoo.registry import build_graph


def test_importing_it_imports_no_numba(tmp_path):
    told = script("import sys; import remat_cli.kernels.compiling; print('numba' in sys.modules)", tmp_path)
    assert told == "False"


def with_collectives(graph):
    """The graph with a collective in every fifth place."""
    queues = [NodeQueue.COMPUTE if i % 5 else NodeQueue.COMMUNICATION for i in range(len(graph.nodes))]
    nodes = (replace(node, queue=queue) for node, queue in zip(graph.nodes, queues, strict=True))
    return replace(graph, nodes=tuple(nodes), cost_unit="s")


def test_every_entry_is_called_with_the_types_of_its_annotations():
    """An entry with a second signature would be compiled on the way, which takes seconds."""
    graph = sized_graph(3, 40)
    budget = no_remat_peak(graph)
    Walk.of(Problem.of(graph, budget // 2), range(len(graph.nodes)), 1, 0.1).advance(10, 1e-3, 1e-4)
    Pricing.of(graph, budget // 2).round(1.0, 0.5, 0.1)
    anneal.anneal(anneal.Problem.of(graph), range(len(graph.nodes)), budget // 2, 10, 1)
    cheapest_in_any_order(graph, budget, Control(), ceiling=np.inf, most_bytes=0)
    assert coarse_states(build_graph("linear{n=5}"), 5, Control(), least_left=0, most_bytes=2**24) is not None
    wanted = np.zeros(len(graph.size), dtype=np.bool_)
    Network.of(graph, budget).choose(Question(wanted, np.ones(len(graph.size)), len(graph.nodes)), 0.1)
    square, line = np.zeros((3, 3), dtype=np.int64), np.zeros(3, dtype=np.int64)
    fill_visits(np.zeros(3), np.zeros(3), line, square, square, line, line, np.zeros(2), np.full((3, 3, 2), np.inf))
    assert Program.of(Chain.of(build_graph("linear{n=5}"), "rotor"), 20, 100) is not None
    chain = build_graph("linear{n=5}")
    assert solve(chain, "7B", SolveOptions(strategy="repeated")).plan is not None
    levels = levels_of(chain, Spine.of(chain))
    assert levels is not None
    assert bound_of(chain, levels, 6, Control.within(None)) is not None
    assert Reachability.of(chain).least_beyond(5, Control.within(None)) is None
    walker = Walker(replace(graph, cost_unit="s"), budget, Host(1.0, 1.0))
    timed = walker.timed(range(len(graph.nodes)))
    assert timed is not None
    walker.anneal(timed, 10, (1e-2, 1e-3))
    overlapping = OverlappingWalker(with_collectives(graph), budget)
    begun = overlapping.timed(range(len(graph.nodes)))
    assert begun is not None
    overlapping.anneal(begun, 10, (1e-2, 1e-3))
    for group in compiling.GROUPS:
        for dispatcher in compiling._entries_of(group):
            assert list(dispatcher.overloads) == [compiling._signature(dispatcher)], dispatcher
        assert compiling.ready(group)


def test_types_that_kernels_do_not_take_are_refused():
    with pytest.raises(TypeError, match="kernels take no"):
        compiling._numba_type(str)


def test_warming_compiles_in_order_beside_other_work(tmp_path):
    told = script(
        """
        from remat_cli.control import Control
        from remat_cli.kernels.compiling import compiling, ready, wait, warm
        import time, threading
        assert not ready("flow")
        warm(("flow", "segments"))
        warm(("flow",))
        assert threading.active_count() == 2
        seen = []
        while not ready("segments"):
            if compiling() not in (None, *seen):
                seen.append(compiling())
            time.sleep(0.001)
        assert seen == ["flow", "segments"], seen
        assert ready("flow") and compiling() is None
        assert not wait("pricing", Control.within(0.0))
        """,
        tmp_path,
    )
    assert told == ""


def test_an_error_reaches_whoever_asks(tmp_path):
    told = script(
        """
        from remat_cli.control import Control
        from remat_cli.kernels import compiling
        compiling._MODULES["flow"] = "remat_cli.kernels.nothing"
        compiling.warm(("flow",))
        for ask in (lambda: compiling.wait("flow", Control()), lambda: compiling.ready("flow")):
            try:
                ask()
            except ModuleNotFoundError as error:
                print(error.name)
        """,
        tmp_path,
    )
    assert told.split() == ["remat_cli.kernels.nothing"] * 2


def test_the_end_of_the_process_does_not_wait(tmp_path):
    told = script(
        """
        import time
        from remat_cli.kernels.compiling import GROUPS, compiling, warm
        warm(GROUPS)
        while compiling() != "pricing":
            time.sleep(0.01)
        print("leaving")
        """,
        tmp_path,
    )
    assert told == "leaving"
    assert not list(tmp_path.rglob("ordering.*"))
