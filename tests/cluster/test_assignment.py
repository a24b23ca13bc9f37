"""Which search a free worker gets."""

from remat_cli.planning.coordinator import Assignment


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
