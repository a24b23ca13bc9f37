"""Solvers that are missing, crash, hang, talk rubbish or have no licence, and bad requests."""

import stat
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gurobipy
import numpy as np
import pytest
from cli_process import script
from solver_problems import KNOWN, dense, installed, market_split

from remat_cli.control import Control
from remat_cli.errors import ExitCode, LicenceLimit, RematError, SolverFailed, SolverUnavailable, UsageError
from remat_cli.extras import install_command
from remat_cli.mip import LinearModel
from remat_cli.solvers import cbc, glpk, gurobi, highs, process, worker
from remat_cli.solvers.base import Request, SolverProgress, Termination
from remat_cli.solvers.checked import objective_scale, outcome, polish
from remat_cli.solvers.registry import SOLVERS, check_solver, solver_from_spec
from remat_cli.solvers.worker import Call

KNAPSACK = KNOWN[0].model
INF = float("inf")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LATE_S", "INTERRUPT_GRACE_S", "TERMINATE_GRACE_S"):
        monkeypatch.setattr(process, name, 0.2)


def fake(spec: str, path: Path, body: str) -> str:
    """The spec of a solver whose binary is a script."""
    binary = script(path / "fake", body)
    return f"cbc{{path={binary}}}" if spec == "cbc" else f"glpk{{via=glpsol,path={binary}}}"


BINARIES = pytest.mark.parametrize("spec", ["cbc", "glpsol"])


# Missing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "module", "hint"),
    [
        ("highs", "highspy", "pip install highspy"),
        ("glpk{via=swiglpk}", "swiglpk", install_command("glpk")),
        ("gurobi", "gurobipy", install_command("gurobi")),
    ],
)
def test_missing_package(spec: str, module: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    solver = solver_from_spec(spec)
    assert not solver.availability().available
    assert solver.availability().hint == hint
    with pytest.raises(SolverUnavailable) as caught:
        solver.solve(Request(KNAPSACK))
    assert caught.value.hint == hint
    assert caught.value.exit_code is ExitCode.SOLVER
    checked = check_solver(solver)
    assert (checked.available, checked.solved) == (False, False)
    assert hint in checked.message


class Refusing:
    """A finder that lets one package not be imported, as an import hook may."""

    def __init__(self, module: str) -> None:
        self.module = module

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == self.module:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("spec", "module"), [("highs", "highspy"), ("glpk{via=swiglpk}", "swiglpk"), ("gurobi", "gurobipy")]
)
def test_a_package_that_imports_are_refused_for_is_missing(
    spec: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Refusing(module), *sys.meta_path])
    seen = solver_from_spec(spec).availability()
    assert not seen.available
    assert "pip install" in seen.hint


def test_missing_cbc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pulp.apis.coin_api", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SolverUnavailable, match="CBC is not installed") as caught:
        solver_from_spec("cbc").solve(Request(KNAPSACK))
    assert "pip install 'pulp<4'" in caught.value.hint
    assert "coinor-cbc" in caught.value.hint


def test_missing_glpk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SolverUnavailable, match="glpsol is not installed") as caught:
        solver_from_spec("glpk{via=glpsol}").solve(Request(KNAPSACK))
    assert "glpk-utils" in caught.value.hint
    assert solver_from_spec("glpk").availability().available  # through swiglpk
    monkeypatch.setitem(sys.modules, "swiglpk", None)
    found = solver_from_spec("glpk").availability()
    assert ("GLPK is not installed" in found.problem, found.optional) == (True, True)
    monkeypatch.setenv("REMAT_GLPSOL", "/nowhere/glpsol")  # then somebody has asked for it
    assert not solver_from_spec("glpk").availability().optional


@pytest.mark.system
def test_glpk_auto_takes_glpsol_where_there_is_no_swiglpk(monkeypatch: pytest.MonkeyPatch) -> None:
    installed("glpk{via=glpsol}")
    assert "swiglpk" in str(solver_from_spec("glpk").availability().version)
    monkeypatch.setitem(sys.modules, "swiglpk", None)
    assert str(solver_from_spec("glpk").availability().path).endswith("glpsol")
    assert solver_from_spec("glpk").solve(Request(KNAPSACK)).objective == -23.0


@pytest.mark.parametrize("option", ["cbc{path=%s}", "glpk{path=%s}"])
def test_a_path_that_is_no_program_is_never_replaced(option: str, tmp_path: Path) -> None:
    solver = solver_from_spec(option % (tmp_path / "nothing"))
    assert "is not a program" in solver.availability().problem
    with pytest.raises(SolverUnavailable, match="is not a program"):
        solver.solve(Request(KNAPSACK))


@pytest.mark.parametrize(
    ("variable", "spec"),
    [("REMAT_CBC", "cbc"), pytest.param("REMAT_GLPSOL", "glpk{via=glpsol}", marks=pytest.mark.system)],
)
def test_environment_names_the_binary(
    variable: str, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = solver_from_spec(spec).availability().path
    monkeypatch.setenv(variable, script(tmp_path / "linked", f'exec "{real}" "$@"'))
    assert solver_from_spec(spec).availability().path == str(tmp_path / "linked")
    assert solver_from_spec(spec).solve(Request(KNAPSACK)).objective == -23.0
    monkeypatch.setenv(variable, str(tmp_path / "gone"))
    assert "is not a program" in solver_from_spec(spec).availability().problem


def test_cbc_on_path_comes_before_the_one_in_pulp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = script(tmp_path / "cbc", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cbc.find_cbc(None) == own


def test_the_cbc_in_pulp_is_made_executable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "bundled"
    binary.write_text("#!/bin/sh\n", encoding="ascii")
    binary.chmod(0o644)
    monkeypatch.setitem(sys.modules, "pulp.apis.coin_api", SimpleNamespace(pulp_cbc_path=str(binary)))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cbc.find_cbc(None) == str(binary)
    assert binary.stat().st_mode & stat.S_IXUSR


def test_a_binary_in_a_folder_with_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    real = installed("cbc").availability().path
    solver = cbc.Cbc(path=script(folder / "my cbc", f'exec "{real}" "$@"'))
    assert solver.solve(Request(KNAPSACK)).objective == -23.0


# Crashing, hanging, talking rubbish ------------------------------------------------------------------------------


@BINARIES
def test_crash(spec: str, tmp_path: Path) -> None:
    solver = solver_from_spec(fake(spec, tmp_path, "echo last words; kill -SEGV $$"))
    with pytest.raises(SolverFailed, match=r"SIGSEGV") as caught:
        solver.solve(Request(KNAPSACK))
    assert "last words" in caught.value.message
    assert caught.value.exit_code is ExitCode.SOLVER


def test_crash_of_the_swiglpk_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashing = tmp_path / "worker.py"
    crashing.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGABRT)\n", encoding="ascii")
    monkeypatch.setattr(glpk, "_WORKER", crashing)
    with pytest.raises(SolverFailed, match="SIGABRT"):
        solver_from_spec("glpk{via=swiglpk}").solve(Request(KNAPSACK))


@BINARIES
def test_no_solution_file(spec: str, tmp_path: Path) -> None:
    solver = solver_from_spec(fake(spec, tmp_path, "echo all is well"))
    with pytest.raises(SolverFailed, match="wrote no solution file"):
        solver.solve(Request(KNAPSACK))


@BINARIES
@pytest.mark.parametrize("rubbish", ["", "&%", "Optimal", "s mip x", "j 1 word\\ns mip 1 4 o 3"])
def test_rubbish_in_the_solution_file(spec: str, rubbish: str, tmp_path: Path) -> None:
    solver = solver_from_spec(fake(spec, tmp_path, f"printf '{rubbish}\\n' > solution.txt"))
    with pytest.raises(SolverFailed):
        solver.solve(Request(KNAPSACK))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("cbc", "Optimal - objective value -38\\n0 c0 1 0\\n1 c1 1 0\\n2 c2 1 0\\n3 c3 1 0\\n"),
        ("cbc", "Optimal - objective value -11.5\\n0 c0 0.5 0\\n1 c1 0.5 0\\n"),
        ("cbc", "Optimal - objective value 1\\n9 c9 1 0\\n"),
        ("glpsol", "s mip 1 4 o -38\\nj 1 1\\nj 2 1\\nj 3 1\\nj 4 1\\ne o f\\n"),
        ("glpsol", "s mip 1 4 o -11.5\\nj 1 0.5\\nj 2 0.5\\nj 3 0\\nj 4 0\\ne o f\\n"),
        ("glpsol", "s mip 1 4 o -10\\nj 1 1\\n"),
    ],
)
def test_a_wrong_solution_is_refused(spec: str, text: str, tmp_path: Path) -> None:
    solver = solver_from_spec(fake(spec, tmp_path, f"printf '{text}' > solution.txt"))
    with pytest.raises(SolverFailed):
        solver.solve(Request(KNAPSACK))


def test_a_bounded_model_is_not_called_unbounded(tmp_path: Path) -> None:
    solver = solver_from_spec(fake("cbc", tmp_path, "echo 'Unbounded - objective value 0' > solution.txt"))
    model = dense([1, -1, 0], [([1, -1, 1], -INF, 3)], [0, -INF, -INF], [INF, 1, INF], [0, 0, 0])
    with pytest.raises(SolverFailed, match="claims that a model is unbounded"):
        solver.solve(Request(model))
    open_below = dense([1, -1], [([1, -1], -INF, 3)], [-INF, -INF], [INF, 1], [0, 0])
    assert solver.solve(Request(open_below)).termination is Termination.UNBOUNDED


def test_the_objective_is_ours(tmp_path: Path) -> None:
    text = "Optimal - objective value -99\\n0 c0 0.9999999 0\\n1 c1 1.0000001 0\\n"
    found = solver_from_spec(fake("cbc", tmp_path, f"printf '{text}' > solution.txt")).solve(Request(KNAPSACK))
    assert found.objective == -23.0
    assert found.values is not None
    assert found.values.tolist() == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "termination"),
    [
        ("Stopped on iterations - objective value -23.0", Termination.STOPPED),
        ("Stopped on nodes - objective value -23.0", Termination.STOPPED),
        ("Stopped on time - objective value -23.0", Termination.TIME_LIMIT),
    ],
)
def test_cbc_every_stop_with_an_objective_counts(text: str, termination: Termination, tmp_path: Path) -> None:
    body = f"printf '{text}\\n0 c0 1 0\\n1 c1 1 0\\n' > solution.txt"
    found = solver_from_spec(fake("cbc", tmp_path, body)).solve(Request(KNAPSACK))
    assert (found.termination, found.objective, found.bound) == (termination, -23.0, None)


@BINARIES
def test_hang_past_the_deadline(spec: str, tmp_path: Path, impatient: None) -> None:
    solver = solver_from_spec(fake(spec, tmp_path, "trap '' INT TERM; while :; do sleep 0.05; done"))
    started_s = time.monotonic()
    found = solver.solve(Request(KNAPSACK, Control.within(0.2)))
    assert time.monotonic() - started_s < 3.0
    assert (found.termination, found.values, found.bound) == (Termination.TIME_LIMIT, None, None)
    assert "sends SIGKILL" in found.log


def test_hang_of_the_swiglpk_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None) -> None:
    hanging = tmp_path / "worker.py"
    body = (
        "import signal, time\nfor s in (2, 15):\n    signal.signal(s, signal.SIG_IGN)\nwhile True:\n    time.sleep(1)\n"
    )
    hanging.write_text(body, encoding="ascii")
    monkeypatch.setattr(glpk, "_WORKER", hanging)
    found = solver_from_spec("glpk{via=swiglpk}").solve(Request(KNAPSACK, Control.within(0.2)))
    assert (found.termination, found.values) == (Termination.TIME_LIMIT, None)


def test_binaries_that_are_something_else(tmp_path: Path) -> None:
    other = script(tmp_path / "other", "echo hello")
    assert "does not say that it is CBC" in solver_from_spec(f"cbc{{path={other}}}").availability().problem
    assert "does not say that it is glpsol" in solver_from_spec(f"glpk{{path={other}}}").availability().problem


def test_selfcheck_tells_a_wrong_answer(tmp_path: Path) -> None:
    body = 'case "$2" in -*) ;; esac; echo "Version: 9"; printf "Infeasible - objective value 0\\n" > solution.txt'
    checked = check_solver(solver_from_spec(fake("cbc", tmp_path, f"cd {tmp_path}; {body}")))
    assert checked.available
    assert not checked.solved
    assert checked.message
    honest = 'echo "Version: 9"; [ -f model.mps ] && printf "Infeasible - objective value 0\\n" > solution.txt; exit 0'
    checked = check_solver(solver_from_spec(fake("cbc", tmp_path, honest)))
    assert "the answer was: infeasible" in checked.message


# An embedded solver that does not stop ---------------------------------------------------------------------------


def test_highs_that_does_not_stop_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solution that its callbacks saw is not lost."""
    monkeypatch.setattr(worker, "GRACE_S", 0.2)
    monkeypatch.setattr(highs._Run, "_on_interrupt", lambda self, event: None)
    control = Control.within(2.0)  # HiGHS's own limit ends the thread that is left behind

    def on_progress(news: SolverProgress) -> None:
        if news.values is not None:
            control.cancelled.set()

    model, _ = market_split()
    found = solver_from_spec("highs").solve(Request(model, control, gap=0.0, threads=1, on_progress=on_progress))
    assert found.wall_s < 1.5
    assert found.termination is Termination.INTERRUPTED
    assert found.values is not None
    assert model.violation(found.values) < 1e-6
    assert "abandoned" in found.log
    assert worker._abandoned.pop()[0].wait(10)


def test_call_passes_errors_on_and_survives_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise SolverFailed("as planned")

    with pytest.raises(SolverFailed, match="as planned"):
        Call(fail, lambda: None, lambda: None).wait(Control())
    release = threading.Event()

    def interrupted(self: object, control: Control) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Call, "_watch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Call(lambda: release.wait(10), release.set, lambda: None).wait(Control())
    assert release.is_set()


# Licences --------------------------------------------------------------------------------------------------------


def test_gurobi_licence_limit() -> None:
    installed("gurobi")
    n = 3000
    model = dense([1.0] * n, [([1.0] * n, 1, INF)], [0] * n, [1] * n, [1] * n)
    with pytest.raises(LicenceLimit, match="2,000 variables") as caught:
        solver_from_spec("gurobi").solve(Request(model))
    assert "GRB_LICENSE_FILE" in caught.value.hint
    assert caught.value.exit_code is ExitCode.SOLVER


@pytest.mark.parametrize("code", sorted(gurobi._LICENCE_ERRORS))
def test_gurobi_without_a_licence(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> None:
        raise gurobipy.GurobiError(code, "No Gurobi license found")

    monkeypatch.setattr(gurobipy.Env, "start", refuse, raising=True)
    with pytest.raises(SolverUnavailable, match="no valid licence: No Gurobi license found"):
        solver_from_spec("gurobi").solve(Request(KNAPSACK))
    checked = check_solver(solver_from_spec("gurobi"))
    assert "no valid licence" in checked.message


def test_gurobi_with_a_licence_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRB_LICENSE_FILE", str(tmp_path / "gurobi.lic"))
    solver = solver_from_spec("gurobi")
    assert str(tmp_path) in solver.availability().licence
    with pytest.raises(RematError):
        solver.solve(Request(KNAPSACK))


# Bad requests, and what is made of bad answers


@pytest.mark.parametrize("spec", ["highs{tolerance=1}", "gurobi{tolerance=0}", "glpk{via=swiglpk,path=/bin/sh}", "cpx"])
def test_options_out_of_range(spec: str) -> None:
    with pytest.raises(UsageError):
        solver_from_spec(spec)


def test_options_from_text() -> None:
    assert solver_from_spec("highs{presolve=off,tolerance=1e-7}") == highs.Highs(presolve="off", tolerance=1e-7)
    assert solver_from_spec("cbc{path=/opt/cbc}") == cbc.Cbc(path="/opt/cbc")
    with pytest.raises(UsageError, match="not a choice"):
        solver_from_spec("glpk{via=pigeon}")


@pytest.mark.parametrize("name", sorted(SOLVERS.table))
def test_a_model_with_nan_and_a_start_of_the_wrong_length(name: str) -> None:
    solver = solver_from_spec(name)
    broken = replace(KNAPSACK, cost=np.array([1.0, np.nan, 0.0, 0.0]))
    with pytest.raises(SolverFailed, match="NaN"):
        solver.solve(Request(broken))
    with pytest.raises(SolverFailed, match="the start has 2 values for 4 columns"):
        solver.solve(Request(KNAPSACK, start=np.zeros(2)))


def test_answers_are_checked() -> None:
    solver, log = solver_from_spec("highs"), "last words"
    model: LinearModel = KNAPSACK
    assert polish(solver, model, np.array([1 - 1e-7, 1 + 1e-7, -1e-9, 0]), log).tolist() == [1, 1, 0, 0]
    for wrong in ([0.5, 0, 0, 0], [1, 1, 1, 1], [np.nan, 0, 0, 0], [0, 0, 0]):
        with pytest.raises(SolverFailed, match="last words"):
            polish(solver, model, np.array(wrong, dtype=float), log)
    request = Request(model)
    with pytest.raises(SolverFailed, match="gives no solution"):
        outcome(solver, request, Termination.OPTIMAL, values=None, bound=1.0, started_s=0.0)
    values = np.array([1.0, 1.0, 0.0, 0.0])
    done = outcome(solver, request, Termination.STOPPED, values=values, bound=-22.0, started_s=0.0)
    assert done.bound == -23.0
    done = outcome(solver, request, Termination.STOPPED, values=values, bound=-INF, started_s=0.0)
    assert done.bound is None


def test_the_objective_is_scaled_by_a_power_of_two() -> None:
    for cost in ([3e-8, 1e-5, 0.0], [1e9, 3e12, -1e10], [1e-7, 1e-7, 1e-7, 1.0], [1e-300, 1e300]):
        factor = objective_scale(np.array(cost))
        assert factor == 2.0 ** round(np.log2(factor))
        assert max(abs(c) for c in cost) * factor <= 1e6
    assert objective_scale(np.zeros(3)) == objective_scale(np.ones(3)) == 1.0
