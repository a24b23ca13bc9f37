"""What searches on a cluster receive of each other, and when they end, on a cluster that follows a script."""

import bruteforce
import pytest

from remat_cli.control import Outcome
from remat_cli.plan.liveness import cost_of
from remat_cli.plan.model import Scope
from remat_cli.planning.coordinator import Assignment, Coordinator, Ended, Improved, Lost
from remat_cli.planning.job import Job
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solution_pool import PooledRuns, SolutionPool
from remat_cli.strategies.base import Bound, Found, NotFound, Task
from remat_cli.zoo.registry import build_graph

CHAIN = build_graph("unit-chain{n=9}")


class Scripted:
    """A cluster of one worker for each budget, whose events are those of a script."""

    def __init__(self, slots, script):
        self.number, self.script, self.started, self.told = slots, list(script), [], {}

    def slots(self):
        return self.number

    def start(self, run, known):
        self.started.append((run, known))

    def send(self, budget_bytes, update):
        self.told.setdefault(budget_bytes, []).append(update)

    def events(self):
        assert self.script, "the coordinator goes on after the end of the script"
        return self.script.pop(0)(self)

    def run_for(self, budget, *, leading=True):
        return next(run for run, _ in self.started[::-1] if (run.budget_bytes, run.leading) == (budget, leading))


def coordinator(cluster, budgets, **options):
    job = Job.of(CHAIN, SolveOptions(**options), None)
    return Coordinator.of(PooledRuns(job, SolutionPool(CHAIN)), cluster, budgets)


def plan(budget):
    """A cheapest plan within a budget, by the strategy optimal."""
    job = Job.of(CHAIN, SolveOptions(strategy="optimal"), None)
    answer, _ = job.attempt(Task(CHAIN, budget))
    assert cost_of(CHAIN, answer.schedule.computes) == bruteforce.cheapest(CHAIN, budget)
    return answer


def test_a_plan_is_told_to_larger_budgets_and_a_bound_to_smaller_ones():
    found = Found(plan(4).schedule, (Bound(9.5, Scope.DOCUMENT_ORDER),))
    done = [lambda c: [Improved(c.run_for(4), found)]]
    done += [lambda c, b=b: [Ended(c.run_for(b), NotFound("none"), Outcome.FINISHED, 1.0)] for b in (3, 4, 5)]
    cluster = Scripted(3, done)
    coordinator(cluster, [3, 4, 5]).run()
    smaller, same, larger = (cluster.told[budget] for budget in (3, 4, 5))
    assert all(told.found is None for told in smaller)
    assert same[1].found.schedule == larger[1].found.schedule == found.schedule
    assert Bound(9.5, Scope.DOCUMENT_ORDER) in same[1].found.bounds
    assert Bound(9.5, Scope.DOCUMENT_ORDER) not in larger[1].found.bounds
    for told in (smaller, same, larger):
        assert told[-1].closed


def test_a_bound_from_one_search_and_a_plan_from_another_close_a_budget():
    best = plan(4)
    cost = bruteforce.cheapest(CHAIN, 4)
    script = [
        lambda c: [Improved(c.run_for(4), Found(plan(3).schedule, (Bound(cost, Scope.DOCUMENT_ORDER),)))],
        lambda c: [Improved(c.run_for(4, leading=False), Found(best.schedule))],
    ]
    cluster = Scripted(2, script)
    ran = coordinator(cluster, [4])
    assert ran.run() == {4: Outcome.FINISHED}
    assert ran.runs.pool.proven_within(4, 1e-9)
    assert cluster.told[4][-1].closed


def test_bounds_of_one_class_of_one_search_are_not_passed_on():
    cluster = Scripted(
        1,
        [
            lambda c: [Improved(c.run_for(5), Found(plan(5).schedule, (Bound(99.0, Scope.RESTRICTED),)))],
            lambda c: [Ended(c.run_for(5), plan(5), Outcome.FINISHED, 1.0)],
        ],
    )
    coordinator(cluster, [5]).run()
    assert all(b.scope is not Scope.RESTRICTED for told in cluster.told[5] if told.found for b in told.found.bounds)


def test_a_lost_search_starts_again_and_after_three_losses_its_budget_is_given_up():
    cluster = Scripted(1, [lambda c: [Lost(c.run_for(4), "KilledWorker")]] * 3)
    ran = coordinator(cluster, [4])
    assert ran.run() == {4: Outcome.SOLVER_FAILED}
    assert len(cluster.started) == 3
    assert "KilledWorker" in ran.runs.pool.answer(4).reason


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_no_worker_is_idle_while_a_budget_is_open(workers):
    seen = []

    def end_one(cluster):
        seen.append(len(ran.assignment.runs))
        run = next(iter(ran.assignment.runs.values()))
        return [Ended(run, NotFound("none"), Outcome.FINISHED, 1.0)]

    cluster = Scripted(workers, [end_one] * 100)
    ran = coordinator(cluster, [3, 4, 5, 6])
    ran.run()
    assert set(seen) == {workers}


def test_the_pool_keeps_only_bounds_that_say_more():
    pool = SolutionPool(CHAIN)
    schedule = plan(6).schedule

    def hear(budget, cost, scope=Scope.DOCUMENT_ORDER):
        pool.add_published(budget, Found(schedule, (Bound(cost, scope),)))

    hear(5, 10.0)
    hear(4, 10.0)  # says no more: what holds within five bytes holds within four
    hear(4, 11.0)
    hear(6, 9.5, Scope.FRONTIER)
    assert pool.bounds_at(4) == (
        Bound(10.0, Scope.DOCUMENT_ORDER),
        Bound(11.0, Scope.DOCUMENT_ORDER),
        Bound(9.5, Scope.FRONTIER),
    )
    assert pool.bounds_at(5) == (Bound(10.0, Scope.DOCUMENT_ORDER), Bound(9.5, Scope.FRONTIER))
    hear(6, 12.0)  # says more than all others of its scope
    assert pool.bounds_at(4) == (Bound(9.5, Scope.FRONTIER), Bound(12.0, Scope.DOCUMENT_ORDER))
    assert len(pool.bounds) == 2
    assert len(pool.schedules) == 1


# Which search a free worker gets


def started(assignment, slots, remaining_s=None):
    runs = []
    while (run := assignment.next(slots, remaining_s)) is not None:
        runs.append(run)
    return runs


def test_every_budget_gets_a_search_before_any_gets_a_second_one():
    assignment = Assignment.of([30, 10, 20], "auto", 7)
    runs = started(assignment, 5)
    assert [(run.budget_bytes, run.leading, run.strategy, run.seed) for run in runs] == [
        (10, True, "auto", 7),
        (20, True, "auto", 7),
        (30, True, "auto", 7),
        (10, False, "search", 8),
        (20, False, "search", 8),
    ]
    assert len(assignment.runs) == 5


def test_the_searches_beside_one_have_other_seeds_and_for_auto_other_strategies():
    runs = started(Assignment.of([10], "auto", 0), 6)
    assert [(run.strategy, run.seed) for run in runs] == [
        ("auto", 0),
        ("search", 1),
        ("anneal", 2),
        ("lns", 3),
        ("search", 4),
        ("anneal", 5),
    ]
    assert {run.strategy for run in started(Assignment.of([10], "dtr{h=lru}", 0), 3)} == {"dtr{h=lru}"}
    assert len({run.number for run in runs}) == 6


def test_a_closed_budget_gets_no_search_and_its_workers_help_elsewhere():
    assignment = Assignment.of([10, 20], "auto", 0)
    first, _ = started(assignment, 2)
    assignment.close(10)
    assert started(assignment, 2) == []  # its search still runs
    assignment.ended(first)
    assert [(run.budget_bytes, run.leading) for run in started(assignment, 2)] == [(20, False)]


def test_time_is_shared_only_where_budgets_wait_for_workers():
    few = started(Assignment.of([10, 20], "auto", 0), 4, remaining_s=60.0)
    assert {run.most_s for run in few} == {60.0}
    first, *_ = started(Assignment.of(range(1, 12), "auto", 0), 1, remaining_s=60.0)
    assert first.most_s == 10.0  # twice its equal share


def test_losses_are_counted_and_the_search_begins_again():
    assignment = Assignment.of([10], "auto", 0)
    losses = []
    for _ in range(3):
        (run,) = started(assignment, 1)
        assert run.leading
        losses.append(assignment.lost(run))
    assert losses == [1, 2, 3]
