import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from solver_problems import EACH, INF, KNOWN, SPECS, Known, dense, installed, market_split

from remat_cli.control import Control
from remat_cli.errors import UsageError
from remat_cli.solvers.base import Outcome, Request, Solver, SolverProgress, Termination
from remat_cli.solvers.registry import SOLVERS, check_solver

STOPPED_WITHIN_S = 2.5
"""How long after the deadline or Ctrl-C an answer may come (nobody here needs more than 0.6 s on an idle machine)."""


@pytest.fixture(params=EACH)
def spec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def solver(spec: str) -> Solver:
    return installed(spec)


def assert_honest(found: Outcome, request: Request) -> None:
    """What holds for every outcome, however the run ended."""
    model = request.model
    if found.values is None:
        assert found.objective is None
    else:
        assert model.violation(found.values) <= 1e-6
        assert found.objective == model.objective(found.values)
        assert (found.values[model.integer] == np.round(found.values[model.integer])).all()
    if found.bound is not None:
        assert np.isfinite(found.bound)
        if found.objective is not None:
            assert found.bound <= found.objective


def test_the_suite_covers_every_solver_in_the_table() -> None:
    assert {s.partition("{")[0] for s in SPECS} == set(SOLVERS.table)


@pytest.mark.parametrize("known", KNOWN, ids=lambda k: k.name)
def test_known_answers(solver: Solver, known: Known) -> None:
    request = Request(known.model, Control.within(20.0), gap=0.0, threads=1)
    found = solver.solve(request)
    assert found.termination is known.termination, found.log
    assert_honest(found, request)
    if known.objective is None:
        assert found.values is None
        assert found.bound is None
    else:
        assert found.objective == pytest.approx(known.objective, abs=1e-6)
        assert found.bound == pytest.approx(known.objective, abs=1e-6)


def test_without_time_limit_and_with_defaults(solver: Solver) -> None:
    found = solver.solve(Request(KNOWN[0].model))
    assert (found.termination, found.objective) == (Termination.OPTIMAL, -23.0)


def test_stops_at_the_gap(solver: Solver) -> None:
    model, _ = market_split()
    request = Request(model, Control.within(30.0), gap=0.15, threads=1)
    found = solver.solve(request)
    assert found.termination is Termination.OPTIMAL, found.log
    assert_honest(found, request)
    assert found.objective is not None
    assert found.bound is not None
    assert found.bound <= 1000.0 + 1e-6  # no valid bound is above the relaxation's here: see the time limit tests
    assert (found.objective - found.bound) / found.objective <= 0.15 + 1e-6


def test_time_limit_with_a_solution(solver: Solver, tmp_path: Path) -> None:
    model, _ = market_split()
    news: list[SolverProgress] = []
    log = tmp_path / "solver log.txt"
    request = Request(model, Control.within(1.2), gap=0.0, threads=1, on_progress=news.append, log_path=log)
    started_s = time.monotonic()
    found = solver.solve(request)
    assert time.monotonic() - started_s < 1.2 + STOPPED_WITHIN_S
    assert found.termination is Termination.TIME_LIMIT, found.log
    assert_honest(found, request)
    assert found.objective is not None
    assert found.objective < 1400
    assert found.bound == pytest.approx(1000.0, abs=0.01)
    # Progress came, and told the truth: no better than the outcome, and bounds that hold.
    objectives = [n.objective for n in news if n.objective is not None]
    assert objectives
    assert min(objectives) >= found.objective - 1e-5
    assert all(n.bound is None or n.bound <= found.objective for n in news)
    for told in news:
        if told.values is not None:
            assert model.violation(told.values) <= 1e-6
    # The log file has what the outcome quotes.
    assert found.log
    assert found.log.splitlines()[0].strip() in log.read_text(encoding="utf-8")


def test_time_limit_without_a_solution(solver: Solver) -> None:
    model, _ = market_split(6, 50, slack=False)
    request = Request(model, Control.within(1.0), threads=1)
    started_s = time.monotonic()
    found = solver.solve(request)
    assert time.monotonic() - started_s < 1.0 + STOPPED_WITHIN_S
    assert found.termination is Termination.TIME_LIMIT, found.log
    assert found.values is None
    assert found.bound is None or found.bound <= 1000.0 + 1e-6


def test_cancelled_with_a_solution(solver: Solver, spec: str) -> None:
    model, _ = market_split(seed=1)
    control = Control()
    cancelled_s: list[float] = []

    def cancel() -> None:
        cancelled_s.append(time.monotonic())
        control.cancelled.set()

    def on_progress(news: SolverProgress) -> None:
        if news.objective is not None and not timers:
            timers.append(threading.Timer(0.3, cancel))
            timers[0].start()

    timers: list[threading.Timer] = []
    request = Request(model, control, gap=0.0, threads=1, on_progress=on_progress)
    found = solver.solve(request)
    assert time.monotonic() - cancelled_s[0] < STOPPED_WITHIN_S
    assert found.termination is Termination.INTERRUPTED, found.log
    assert_honest(found, request)
    # glpsol cannot be interrupted with its solution in hand; its adapter says so.
    assert (found.values is None) == (spec == "glpk{via=glpsol}")
    assert found.bound == pytest.approx(1000.0, abs=0.01)


def test_cancelled_without_a_solution(solver: Solver) -> None:
    model, _ = market_split(6, 50, slack=False)
    control = Control()
    threading.Timer(0.5, control.cancelled.set).start()
    started_s = time.monotonic()
    found = solver.solve(Request(model, control, threads=1))
    assert time.monotonic() - started_s < 0.5 + STOPPED_WITHIN_S
    assert found.termination is Termination.INTERRUPTED, found.log
    assert found.values is None


def test_cancelled_before_the_start(solver: Solver) -> None:
    control = Control()
    control.cancelled.set()
    assert solver.solve(Request(KNOWN[0].model, control)).termination is Termination.INTERRUPTED
    assert solver.solve(Request(KNOWN[0].model, Control.within(0.0))).termination is Termination.TIME_LIMIT


_CTRL_C = """
import signal, sys, threading
sys.path.insert(0, sys.argv[2])
from remat_cli.control import Control
from remat_cli.solvers.base import Request
from remat_cli.solvers.registry import solver_from_spec
from solver_problems import market_split

control = Control()
signal.signal(signal.SIGINT, lambda number, frame: control.cancelled.set())
seen = threading.Event()

def on_progress(news):
    if news.objective is not None and not seen.is_set():
        seen.set()
        print("ready", flush=True)

found = solver_from_spec(sys.argv[1]).solve(Request(market_split(seed=2)[0], control, gap=0.0, on_progress=on_progress))
print(found.termination.value, found.values is not None, flush=True)
"""


def test_ctrl_c_keeps_the_solution(solver: Solver, spec: str) -> None:
    """A real SIGINT to a real process whose main thread waits for the solver."""
    arguments = [sys.executable, "-c", _CTRL_C, spec, str(Path(__file__).parent)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        rest = child.stdout.read()
        child.wait(20)
    assert rest == f"interrupted {spec != 'glpk{via=glpsol}'}\n"  # and nothing else on standard output
    assert child.returncode == 0


def test_start(solver: Solver) -> None:
    model, planted = market_split(planted=True)
    request = Request(model, Control.within(6.0 if solver.warm_start else 1.0), gap=1e-6, threads=1, start=planted)
    found = solver.solve(request)
    assert_honest(found, request)
    if solver.warm_start:  # at once, where hours would be needed without
        assert found.termination is Termination.OPTIMAL, found.log
        assert found.objective == pytest.approx(1000.0, abs=1e-6)
    else:
        assert found.termination is Termination.TIME_LIMIT
        assert request.start is not None


def test_a_start_that_is_no_solution_is_survived(solver: Solver) -> None:
    known = KNOWN[0]
    start = np.ones(known.model.columns)
    assert known.model.violation(start) > 1
    assert solver.solve(Request(known.model, start=start, gap=0.0)).objective == known.objective


def test_seed_and_threads_are_taken(solver: Solver) -> None:
    for seed, threads in ((7, 1), (2**31, 2), (0, 1), (1, None)):
        found = solver.solve(Request(KNOWN[2].model, Control.within(20.0), gap=0.0, seed=seed, threads=threads))
        assert found.objective == pytest.approx(5.0)


def test_costs_below_the_solvers_tolerances_count(solver: Solver) -> None:
    """Costs come in units of the whole graph's: most are tiny, and together they are what it is about."""
    pairs = 300
    rows = [([0.0] * (2 * k) + [1.0, 1.0] + [0.0] * (2 * (pairs - k) - 2), 1.0, INF) for k in range(pairs)]
    cost = [1e-8 * (1 + (j % 7)) for j in range(2 * pairs)]
    model = dense(cost, rows, [0] * 2 * pairs, [1] * 2 * pairs, [1] * 2 * pairs, offset=1.0)
    optimum = 1.0 + sum(min(cost[2 * k : 2 * k + 2]) for k in range(pairs))
    for each in (model, model.relaxed()):
        found = solver.solve(Request(each, Control.within(20.0), gap=0.0, threads=1))
        assert found.objective == pytest.approx(optimum, abs=1e-11)
        assert found.bound == pytest.approx(optimum, abs=1e-11)


def test_log_path_that_cannot_be_written(solver: Solver, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="log cannot be written"):
        solver.solve(Request(KNOWN[0].model, log_path=tmp_path / "missing" / "log"))


def test_availability_and_selfcheck(solver: Solver) -> None:
    found = solver.availability()
    assert found.version
    assert found.path
    assert Path(found.path).exists()
    assert found.licence
    checked = check_solver(solver)
    assert checked.message == ""
    assert checked.available
    assert checked.solved
    assert checked.licence
