"""Calls that other processes and the caller share."""

import math
import os
import time

from remat_cli.control import Control
from remat_cli.planning.processes import shared_calls


def test_every_call_is_taken_once_by_a_process_or_by_the_caller():
    calls = [(k,) for k in range(8)]
    with shared_calls(math.factorial, calls, 1, "math", 60.0) as shared:
        shared.begin()
        mine = {k: math.factorial(k) for k in iter(shared.take, None)}
        theirs = shared.results(Control())
    assert mine | theirs == {k: math.factorial(k) for k in range(8)}
    assert not mine.keys() & theirs.keys()
    assert list(mine) == sorted(mine)


def test_processes_do_without_the_caller_and_survive_the_death_of_one():
    calls = [(4,), (3,)]
    with shared_calls(os._exit, calls, 2, "math", 60.0) as shared:
        shared.begin()
        while len(shared.futures) < 2:
            time.sleep(0.01)
        assert shared.take() is None
        assert shared.results(Control()) == {}
        assert set(shared.lost()) == {0, 1}
    with shared_calls(math.factorial, calls, 2, "math", 60.0) as shared:
        shared.begin()
        while len(shared.futures) < 2:
            time.sleep(0.01)
        assert shared.results(Control()) == {0: 24, 1: 6}
        assert shared.lost() == {}


def test_what_is_not_needed_any_more_is_not_waited_for():
    control = Control.within(0.2)
    with shared_calls(time.sleep, [(300.0,)] * 3, 1, "math", None) as shared:
        shared.begin()
        while not shared.futures:
            time.sleep(0.01)
        began = time.monotonic()
        assert shared.results(control) == {}
    assert time.monotonic() - began < 60
    assert not shared.left


def test_the_caller_can_do_it_all():
    with shared_calls(math.factorial, [(2,), (3,)], 1, "math", None) as shared:
        assert list(iter(shared.take, None)) == [0, 1]
        assert shared.results(Control()) == {}
    with shared_calls(math.factorial, [(2,)], 1, "math", None) as shared:
        assert shared.take() == 0
        shared.begin()


def test_without_processes_everything_is_left_to_the_caller():
    with shared_calls(math.factorial, [(2,), (3,)], 1, "math", None) as shared:
        shared.pool.stop()
        shared._hand_out()
        assert list(iter(shared.take, None)) == [0, 1]
        assert shared.results(Control()) == {}


def test_processes_that_are_not_needed_by_then_are_not_begun():
    with shared_calls(math.factorial, [(2,), (3,)], 1, "math", None) as shared:
        shared.begin(3600.0)
        assert list(iter(shared.take, None)) == [0, 1]
    assert not shared.futures
    assert not shared.pool.active
