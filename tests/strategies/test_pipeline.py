"""Pipelines: the order of stages, what is published first, stages that wait for compiled loops, and verdicts."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from threading import Timer
from time import sleep

import pytest
from families import random_graph

from remat_cli.control import Control
from remat_cli.errors import Interrupted, LimitReached, StrategyMismatch, UsageError
from remat_cli.graph.analysis import no_remat_peak, working_set
from remat_cli.graph.model import Graph, Node
from remat_cli.kernels import compiling
from remat_cli.plan.model import Scope
from remat_cli.solvers.highs import Highs
from remat_cli.strategies import conditions, engine
from remat_cli.strategies.annealing.squeeze import Squeezing
from remat_cli.strategies.base import Bound, Context, Found, Known, NotFound, Schedule, Task
from remat_cli.strategies.engine import Engine, Pipelined, Stage, pursue
from remat_cli.strategies.incumbent import Incumbent, Verdict
from remat_cli.strategies.pipeline import AUTO
from remat_cli.strategies.published.opener import OPENING_METHODS, QUICK_METHODS
from remat_cli.strategies.registry import STRATEGIES, strategy_from_spec
from remat_cli.zoo.registry import build_graph

CHAIN = build_graph("unit-chain{n=17}")
PIPELINES = [name for name in STRATEGIES.names() if issubclass(STRATEGIES.load(name), Pipelined)]


def stages(pipeline: tuple[Stage, ...]) -> Iterator[Stage]:
    for stage in pipeline:
        yield stage
        if isinstance(stage.engine, tuple):
            yield from stages(stage.engine)


def incumbent(graph: Graph, budget: int, control: Control | None = None, goal: Verdict = Verdict.GAP) -> Incumbent:
    return Incumbent.of(Task(graph, budget), Context(control or Control(), Highs(), threads=1), goal=goal)


def test_the_strategies_that_search_are_pipelines_of_loadable_engines() -> None:
    assert {"auto", "optimal", "search", "lns", "anneal"} <= set(PIPELINES)
    for name in PIPELINES:
        pipeline = strategy_from_spec(name).pipeline()  # type: ignore[attr-defined] - they are pipelined
        assert len({stage.name for stage in pipeline}) == len(pipeline)
        for stage in stages(pipeline):
            assert stage.why
            assert 0 < stage.share <= 1
            assert set(stage.kernels) <= set(compiling.GROUPS)
            if isinstance(stage.engine, str):
                module, _, engine = stage.engine.partition(":")
                assert issubclass(getattr(import_module(module), engine), Engine)


@pytest.mark.parametrize("name", ["auto", "optimal", "search", "anneal"])
def test_a_quick_method_publishes_before_anything_else_begins(name: str) -> None:
    graph = build_graph("mobilenet-v1")
    trace: list[tuple[str, int]] = []
    context = Context(Control.within(3.0), Highs(), threads=1)

    def publish(found: Found) -> None:
        trace.append((found.maker, len(context.trace)))

    object.__setattr__(context, "publish", publish)
    strategy_from_spec(name).solve(Task(graph, no_remat_peak(graph) // 2), context)
    assert trace[0][0].partition("{")[0] in {spec.partition("{")[0] for spec in QUICK_METHODS}
    assert trace[0][1] == 1, "it came from the first stage"
    assert next(record.name for record in context.trace) == "quick-method"


def test_what_the_caller_has_opened_is_not_opened_again() -> None:
    graph = build_graph("resnet50")
    for opened in (False, True):
        context = Context(Control.within(2.0), Highs(), threads=1)
        known = Known(opened=opened)
        strategy_from_spec("auto").solve(Task(graph, no_remat_peak(graph) // 2, known), context)
        ran = {record.name for record in context.trace}
        assert ("quick-method" in ran) is not opened
        assert ran > {"starts"}, "the later stages run in both cases"


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("limit_s", [2.0, None])
def test_more_quick_methods_run_where_none_has_a_plan_and_under_a_limit_while_loops_are_compiled(
    compiled: bool, limit_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    when = next(stage.when for stage in stages(AUTO) if stage.name == "quick-methods")
    monkeypatch.setattr(compiling, "ready", lambda group: compiled)
    control, graph = Control() if limit_s is None else Control.within(limit_s), build_graph("unit-chain{n=40}")
    assert when.holds(incumbent(graph, no_remat_peak(graph) - 1, control))
    scheduled = incumbent(graph, no_remat_peak(graph), control)
    assert scheduled.computes is not None
    assert when.holds(scheduled) is (limit_s is not None and not compiled), "else the plan would depend on the clock"
    small = incumbent(CHAIN, no_remat_peak(CHAIN), control)
    assert not when.holds(small), "small graphs need no loops"


def test_auto_is_never_worse_than_a_method_it_begins_with() -> None:
    compared = better = 0
    for seed in range(16):
        graph = random_graph(random.Random(seed), 24, max_outputs=2, workspace=True, recompute_false=0.1)
        budget = round(0.7 * no_remat_peak(graph))
        costs = []
        for spec in OPENING_METHODS:
            try:
                answer = strategy_from_spec(spec).solve(Task(graph, budget), Context(Control(), Highs()))
            except StrategyMismatch:
                continue
            if isinstance(answer, Found):
                costs.append(math.fsum(graph.nodes[k].cost for k in answer.schedule.computes))
        found = strategy_from_spec("auto").solve(Task(graph, budget), Context(Control.within(1.0), Highs(), threads=1))
        if not costs:
            continue
        compared += 1
        assert isinstance(found, Found)
        cost = math.fsum(graph.nodes[k].cost for k in found.schedule.computes)
        assert cost <= min(costs) * (1 + 1e-12)
        better += cost < min(costs) * (1 - 1e-9)
    assert compared > 6
    assert better > 2


@dataclass(slots=True)
class Noting(Engine):
    """Writes down its turns."""

    def work(self, name: str, fails: bool = False) -> bool:
        NOTES.append(name)
        if fails:
            raise LimitReached("no time to state the model")
        return False


NOTES: list[str] = []
NOTING = f"{__name__}:Noting"


def noting(name: str, *, fails: bool = False, kernels: tuple[compiling.Group, ...] = ()) -> Stage:
    return Stage(name, NOTING, "a test", options={"name": name, "fails": fails}, kernels=kernels)


@pytest.mark.parametrize("limited", [True, False])
def test_stages_wait_for_their_kernels_under_a_limit_and_keep_their_order_without_one(
    limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: set[str] = set()
    monkeypatch.setattr(compiling, "ready", lambda group: group in compiled)
    monkeypatch.setattr(compiling, "warm", lambda groups: None)
    monkeypatch.setattr(compiling, "wait", lambda group, clock: compiled.add(group) is None)
    NOTES.clear()
    pipeline = (noting("first", kernels=("pricing",)), noting("second"), (noting("third")))
    pursue(pipeline, incumbent(CHAIN, 5, Control.within(60.0) if limited else None))
    assert (["second", "third", "first"] if limited else ["first", "second", "third"]) == NOTES


def test_a_stage_that_waits_has_its_turn_as_soon_as_its_kernels_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    NOTES.clear()
    monkeypatch.setattr(compiling, "ready", lambda group: "second" in NOTES)
    monkeypatch.setattr(compiling, "warm", lambda groups: None)
    pipeline = (noting("first", kernels=("pricing",)), noting("second"), noting("third"))
    pursue(pipeline, incumbent(CHAIN, 5, Control.within(60.0)))
    assert NOTES == ["second", "first", "third"]


class Lasting(Engine):
    """Works until it is stopped, at its first turn."""

    def work(self, raises: bool) -> bool:
        NOTES.append("lasting")
        while NOTES.count("lasting") == 1 and not self.incumbent.context.control.stopping():
            sleep(0.001)
        if raises:
            self.incumbent.context.control.check()
        return False


@pytest.mark.parametrize("raises", [False, True])
def test_a_long_stage_is_cut_short_once_for_one_whose_kernels_are_there(
    raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    NOTES.clear()
    monkeypatch.setattr(engine, "_UNDISTURBED_S", 0.01)
    monkeypatch.setattr(compiling, "ready", lambda group: "lasting" in NOTES)
    monkeypatch.setattr(compiling, "finished", lambda group: "lasting" in NOTES)
    monkeypatch.setattr(compiling, "warm", lambda groups: None)
    lasting = Stage("lasting", f"{__name__}:Lasting", "a test", options={"raises": raises})
    best = incumbent(CHAIN, 5, Control.within(60.0))
    pursue((noting("first", kernels=("pricing",)), lasting, noting("last")), best)
    assert NOTES == ["lasting", "first", "lasting", "last"]
    assert [bool(record.note) for record in best.context.trace] == [True, False, False, False]


def test_an_interruption_ends_a_stage_that_could_be_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    NOTES.clear()
    monkeypatch.setattr(compiling, "ready", lambda group: False)
    monkeypatch.setattr(compiling, "warm", lambda groups: None)
    control = Control.within(60.0)
    lasting = Stage("lasting", f"{__name__}:Lasting", "a test", options={"raises": True})
    Timer(0.05, control.cancelled.set).start()
    with pytest.raises(Interrupted):
        pursue((noting("first", kernels=("pricing",)), lasting, noting("last")), incumbent(CHAIN, 5, control))
    assert NOTES == ["lasting"]


def test_a_stage_without_time_to_begin_does_not_end_the_others() -> None:
    NOTES.clear()
    best = incumbent(CHAIN, 5)
    pursue((noting("first", fails=True), noting("second")), best)
    assert NOTES == ["first", "second"]
    assert [record.note for record in best.context.trace] == ["no time to state the model", ""]
    assert all(record.seconds is not None for record in best.context.trace)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("name", ["auto", "optimal", "search"])
def test_time_that_is_left_goes_to_what_has_not_come_to_its_end(
    name: str, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Idle(Engine):
        """Gains nothing, at once."""

        def work(self, **options: object) -> bool:
            return False

    def idle(target: str, best: Incumbent) -> Engine:
        asked.append(target.rpartition(":")[2])
        return Idle(best)

    monkeypatch.setattr(engine, "engine_at", idle)
    monkeypatch.setattr(conditions, "is_dense", lambda graph: dense)
    monkeypatch.setattr(compiling, "ready", lambda group: True)
    monkeypatch.setattr(compiling, "warm", lambda groups: None)
    graph = random_graph(random.Random(1), 40)
    budget = max(working_set(graph, t) for t in range(40)) + graph.fixed_memory
    assert budget < no_remat_peak(graph)
    for control in (Control.within(60.0), None):  # without a limit every stage before had the time that it wanted
        asked.clear()
        best = incumbent(graph, budget, control, strategy_from_spec(name).goal)  # type: ignore[attr-defined] - pipelined
        pursue(strategy_from_spec(name).pipeline(), best)  # type: ignore[attr-defined] - as above
        assert not best.done()
        assert (asked[-3:] == ["StageCuts", "FullSupport", "RoundRobin"]) is (control is not None)


def test_squeezing_finds_a_schedule_where_only_the_tightest_budget_is_given() -> None:
    graph = build_graph("unet{batch=1}")
    least = max(working_set(graph, t) for t in range(len(graph.nodes))) + graph.fixed_memory
    best = incumbent(graph, least)
    squeezing = Squeezing(best)
    assert squeezing.turn(Control(), "search").more is (best.computes is None)
    assert best.computes is not None
    assert best.peak_bytes == least
    assert best.maker == "search"


def test_nothing_more_is_tried_once_the_goal_is_reached() -> None:
    NOTES.clear()
    best = incumbent(CHAIN, no_remat_peak(CHAIN))
    assert best.verdict is Verdict.EXACT
    pursue((noting("first"),), best)
    assert not NOTES


def test_verdicts_rise_with_what_is_proven() -> None:
    best = Incumbent.of(
        Task(CHAIN, 5, Known((Schedule(tuple(_cheapest())),))), Context(Control(), Highs(), gap=1e-2, threads=1)
    )
    cost = best.cost
    seen = [best.verdict]
    for bound, scope in (
        (cost, Scope.FRONTIER),
        (cost * (1 - 5e-3), Scope.DOCUMENT_ORDER),
        (cost * (1 - 5e-7), Scope.DOCUMENT_ORDER),
        (cost, Scope.DOCUMENT_ORDER),
    ):
        best.raise_bound(Bound(bound, scope))
        seen.append(best.verdict)
    assert seen == [Verdict.OPEN, Verdict.CLASS, Verdict.GAP, Verdict.SETTLED, Verdict.EXACT]
    assert all(low < high for low, high in pairwise(seen))
    nothing = incumbent(CHAIN, 2)
    nothing.raise_bound(Bound(math.inf, Scope.FRONTIER))
    assert nothing.verdict is Verdict.CLASS
    nothing.raise_bound(Bound(math.inf, Scope.DOCUMENT_ORDER))
    assert nothing.verdict is Verdict.IMPOSSIBLE


def _cheapest() -> tuple[int, ...]:
    found = strategy_from_spec("optimal").solve(Task(CHAIN, 5), Context(Control(), Highs(), threads=1))
    assert isinstance(found, Found)
    return found.schedule.computes


def test_of_two_schedules_of_the_same_cost_the_lower_peak_is_kept() -> None:
    nodes = (
        Node("free", 0.0, (), (4,)),
        Node("large", 1.0, (), (8,)),
        Node("small", 1.0, (1,), (1,)),
        Node("end", 1.0, (0, 2), (1,)),
    )
    graph = Graph("tie", nodes, (3,))
    best = incumbent(graph, no_remat_peak(graph))
    assert (best.computes, best.peak_bytes) == ((0, 1, 2, 3), 13)
    larger = best.cost, best.peak_bytes
    # Dropping the first value and recomputing it at the end costs nothing.
    assert best.offer((0, 1, 2, 0, 3))
    assert best.computes == (0, 1, 2, 0, 3)
    assert best.cost == larger[0]
    assert best.peak_bytes < larger[1]
    assert best.offer((0, 1, 2, 3))
    assert best.computes == (0, 1, 2, 0, 3)


def test_a_method_that_was_asked_last_may_have_the_last_word() -> None:
    best = incumbent(CHAIN, 2)
    known = next(stage.engine for stage in AUTO if stage.name == "beyond-one-pass")
    options = {"methods": ("checkmate-ilp{stage_split=2}",), "last_word": True}
    stage = Stage("paper", known, "a test", options=options)
    pursue((stage,), best)
    assert isinstance(best.refusal, NotFound)
    assert "at most 2 passes" in best.refusal.reason


def test_auto_goes_through_chosen_stages_only() -> None:
    context = Context(Control(), Highs(), threads=1)
    answer = strategy_from_spec("auto{stages=quick-method+starts}").solve(Task(CHAIN, 5), context)
    assert isinstance(answer, Found)
    assert {record.name for record in context.trace if not record.depth} <= {"quick-method", "starts"}
    with pytest.raises(UsageError, match='"magic" is not a stage'):
        strategy_from_spec("auto{stages=magic}")
