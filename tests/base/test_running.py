import errno
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from remat_cli.control import Control, Progress
from remat_cli.errors import Interrupted, LimitReached
from remat_cli.running import Abandoned, interruptible, run, shortage

LONG_S = 60.0
"""Longer than anything here may take."""


def test_the_value_is_handed_over():
    assert run(lambda: 42, Control(), grace_s=0.0) == 42
    assert run(lambda: None, Control(), grace_s=0.0) is None


@pytest.mark.parametrize("error", [ValueError("bad"), LimitReached("late"), KeyboardInterrupt(), SystemExit(3)])
def test_exceptions_are_handed_over_as_they_are(error):
    def fail():
        raise error

    with pytest.raises(type(error)) as caught:
        run(fail, Control(), grace_s=0.0)
    assert caught.value is error


def test_work_runs_beside_the_main_thread_and_cannot_keep_the_process_alive():
    seen = run(
        lambda: (threading.current_thread() is threading.main_thread(), threading.current_thread().daemon),
        Control(),
        grace_s=0.0,
    )
    assert seen == (False, True)


def test_work_that_heeds_its_deadline_gets_its_grace():
    control = Control.within(0.05)

    def work():
        while not control.stopping():
            time.sleep(0.005)
        time.sleep(0.1)  # tidying up
        return "what there is"

    assert run(work, control, grace_s=LONG_S) == "what there is"


def test_work_that_does_not_stop_is_abandoned_after_its_grace():
    release = threading.Event()
    started_s = time.monotonic()
    with pytest.raises(Abandoned):
        run(lambda: release.wait(LONG_S), Control.within(0.1), grace_s=0.2)
    assert 0.3 <= time.monotonic() - started_s < LONG_S / 2
    release.set()


def test_work_that_does_not_stop_when_cancelled_is_abandoned():
    control = Control()
    release = threading.Event()

    def work():
        control.cancelled.set()
        release.wait(LONG_S)

    with pytest.raises(Abandoned):
        run(work, control, grace_s=0.0)
    release.set()


def test_grace_is_time_on_the_clock_however_rarely_the_waiting_thread_wakes(monkeypatch):
    def held_up(_):
        time.sleep(0.5)  # as by an extension that does not let go of the interpreter
        return True

    monkeypatch.setattr(Control, "stopping", held_up)
    release = threading.Event()
    started_s = time.monotonic()
    with pytest.raises(Abandoned):
        run(lambda: release.wait(LONG_S), Control(), grace_s=0.75)
    release.set()
    assert 0.75 <= time.monotonic() - started_s < 5.0


def test_work_that_is_done_counts_even_if_time_is_up():
    control = Control.within(0.0)
    assert run(lambda: "done", control, grace_s=LONG_S) == "done"


def test_the_first_ctrl_c_cancels_and_the_second_breaks_off():
    control = Control()
    before = signal.getsignal(signal.SIGINT)

    def press_twice():
        signal.raise_signal(signal.SIGINT)
        assert control.cancelled.is_set()
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), interruptible(control):
        press_twice()
    assert control.cancelled.is_set()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_work_in_its_thread(number):
    control = Control()

    def work():
        os.kill(os.getpid(), number)
        assert control.cancelled.wait(LONG_S)
        return "stopped in order"

    with interruptible(control):
        assert run(work, control, grace_s=LONG_S) == "stopped in order"


def test_a_second_ctrl_c_does_not_wait_for_the_grace():
    control = Control()
    release = threading.Event()

    def work():
        os.kill(os.getpid(), signal.SIGINT)
        assert control.cancelled.wait(LONG_S)
        os.kill(os.getpid(), signal.SIGINT)
        release.wait(LONG_S)

    started_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt), interruptible(control):
        run(work, control, grace_s=LONG_S)
    release.set()
    assert time.monotonic() - started_s < LONG_S / 2


def test_handlers_are_put_back():
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with interruptible(Control()):
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        control = Control()
        with interruptible(control):
            signal.raise_signal(signal.SIGINT)
            assert not control.cancelled.is_set()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_nothing_is_touched():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def inside():
        with interruptible(Control()):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [before]


# The control itself


def test_a_control_without_limit_never_stops():
    control = Control.within(None)
    assert control.remaining_s() is None
    assert not control.out_of_time()
    assert not control.stopping()
    control.check()


def test_a_limit_counts_from_the_start_it_is_given():
    now = time.monotonic()
    control = Control.within(5.0, started_s=now - 10.0)
    assert control.remaining_s() == 0.0
    assert control.stopping()
    with pytest.raises(LimitReached) as caught:
        control.check()
    assert "time_limit_s" in caught.value.hint


def test_an_interruption_comes_before_a_limit():
    control = Control.within(0.0)
    control.cancelled.set()
    with pytest.raises(Interrupted):
        control.check()


def test_progress_reaches_its_listener():
    seen = []
    Control(listener=seen.append).report(Progress("building"))
    Control().report(Progress("nobody listens"))
    assert seen == [Progress("building")]


@pytest.mark.parametrize(
    ("cost", "bound", "gap"),
    [(None, 1.0, None), (1.0, None, None), (4.0, 3.0, 0.25), (3.0, 4.0, 0.0), (0.0, 0.0, 0.0)],
)
def test_the_gap_of_progress(cost, bound, gap):
    assert Progress("", cost, bound).gap == gap


# Leaving

_LEAVING = """
import sys, threading, time
from remat_cli.running import exit_now, critical_section
inside = threading.Event()

def work():
    with critical_section():
        inside.set()
        time.sleep(float(sys.argv[1]))
        print("finished", flush=True)

threading.Thread(target=work, daemon=True).start()
inside.wait()
exit_now(7)
"""


@pytest.mark.parametrize(("takes_s", "out"), [(0.3, "finished\n"), (LONG_S, "")])
def test_leaving_lets_a_short_stretch_finish_and_waits_for_no_long_one(takes_s, out):
    started_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _LEAVING, str(takes_s)], capture_output=True, text=True, check=False, timeout=LONG_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, out, "")
    assert time.monotonic() - started_s < LONG_S / 2


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (MemoryError(), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (ImportError("std::bad_alloc"), "memory"),
        (ImportError("libx.so: failed to map segment from shared object"), "memory"),
        (RuntimeError("can't start new thread"), "processes or threads"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "processes or threads"),
        (BlockingIOError(errno.EAGAIN, "write could not complete without blocking", 0), ""),
        (ImportError("No module named 'highspy'"), ""),
        (ValueError("out of memory"), ""),
        (RuntimeError("anything else"), ""),
    ],
    ids=repr,
)
def test_what_the_system_ran_out_of_is_known_also_as_a_cause(error, what):
    assert shortage(error) == what
    outer = OSError("could not load it")
    outer.__cause__ = error
    assert shortage(outer) == what
