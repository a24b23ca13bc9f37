"""Ctrl-C, SIGTERM and time limits, on real searches in processes of their own.

Every test waits for something that the process says or does; none counts on its speed.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli_process import GRAPHS, Done, Running, alive, environment, remat_process, run_code, script, wait_until

from remat_cli.cli.main import run

LONG = ("--strategy", "checkmate-ilp", "--gap", "0")
"""A search that has something early and goes on for minutes, on the chain below."""


@pytest.fixture
def chain(tmp_path) -> str:
    """The unit chain with 33 nodes: at budget 6 a good plan comes soon and a proof does not."""
    assert run(["export", "zoo:unit-chain{n=33}", "-o", "chain.json", "-q"]) == 0
    return "chain.json"


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name != "chain.json")


def assert_interrupted_with_plan(done: Done, folder: Path) -> None:
    assert done.code == 0, done.err
    assert "interrupted; this is the best plan found until then" in done.out
    assert "Traceback" not in done.err
    plan = json.loads((folder / "chain.plan.json").read_text(encoding="utf-8"))
    assert plan["run"]["outcome"] == "interrupted"
    assert plan["claim"]["status"] == "feasible"
    assert plan["claim"]["lower_bound"] < plan["claim"]["cost"]
    assert run(["check", "chain.plan.json"]) == 0


# Interrupted with a plan in hand


def test_ctrl_c_at_the_terminal_keeps_the_best_plan(chain, tmp_path):
    with Running("solve", chain, "-b", "6B", *LONG, cwd=tmp_path) as running:
        running.wait_for(r"best \+.*HiGHS")
        running.press_ctrl_c()
        done = running.finish()
    assert_interrupted_with_plan(done, tmp_path)
    assert files(tmp_path) == ["chain.plan.json"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_to_the_process_alone_keeps_the_best_plan_of_a_solver_outside(chain, tmp_path, number):
    (tmp_path / "temporary").mkdir()
    with Running(
        "solve", chain, "-b", "6B", *LONG, "--solver", "cbc", cwd=tmp_path, TMPDIR=str(tmp_path / "temporary")
    ) as running:
        running.wait_for(r"best \+.*CBC")
        children = running.descendants()
        running.signal(number)
        done = running.finish()
    assert_interrupted_with_plan(done, tmp_path)
    assert children
    wait_until(lambda: not any(map(alive, children)), "the end of the solver")
    assert files(tmp_path / "temporary") == []


def test_the_default_strategy_keeps_its_best_plan_too(tmp_path):
    with Running("solve", str(GRAPHS / "resnet50.json"), "-b", "60%", "--gap", "0", cwd=tmp_path) as running:
        running.wait_for(r"best \+")
        running.press_ctrl_c()
        done = running.finish()
    assert done.code == 0, done.err
    assert "interrupted" in done.out
    assert run(["check", "resnet50.plan.json"]) == 0


# Interrupted with nothing in hand


def test_ctrl_c_while_the_model_is_built(tmp_path):
    arguments = ("solve", str(GRAPHS / "resnet152.json"), "-b", "60%", "--strategy", "checkmate-ilp")
    with Running(*arguments, cwd=tmp_path) as running:
        running.wait_for("building the model")
        running.signal(signal.SIGINT)
        done = running.finish()
    assert done.code == 130
    assert "remat: error: interrupted before a plan was found" in done.err
    assert "Traceback" not in done.err
    assert "ERROR" not in done.err  # Pyomo's logger keeps out of it
    assert (done.out, files(tmp_path)) == ("", [])


@pytest.mark.parametrize("solver", ["highs", "glpk"])
def test_ctrl_c_before_the_solver_has_anything(chain, tmp_path, solver):
    with Running("solve", chain, "-b", "6B", *LONG, "--solver", solver, cwd=tmp_path) as running:
        running.wait_for("GLPK|HiGHS")
        running.press_ctrl_c()
        done = running.finish()
    assert done.code == 130
    assert "interrupted before a plan was found" in done.err
    assert (done.out, files(tmp_path)) == ("", [])


# Too early, and too late


def test_ctrl_c_while_the_command_is_imported_is_quiet(tmp_path):
    (tmp_path / "click.py").write_text("import sys, time\nprint('importing', flush=True)\ntime.sleep(1000)\n")
    environ = environment(PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environ, "process_group": 0}
    with subprocess.Popen([sys.executable, "-m", "remat_cli", "show", "-"], **pipes) as running:
        assert running.stdout.readline() == b"importing\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == -signal.SIGINT  # 130 in a shell
        assert running.stderr.read() == b""


def command_with(before: str, *arguments: str, **options: Any) -> Done:
    """Run the command in a process that first runs ``before``."""
    return run_code(
        f"import os, signal, time\n{before}\nfrom remat_cli.__main__ import main\nmain()", *arguments, **options
    )


def test_a_ctrl_c_that_a_library_swallows_ends_the_command_all_the_same(tmp_path):
    code = """
from remat_cli import running
from remat_cli.cli import main as cli
running._SWALLOWED_AFTER_S = 0.2
def run(arguments, **_):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1000)
def swallowing(arguments, **more):
    try:
        run(arguments)
    except KeyboardInterrupt:
        time.sleep(1000)
cli.run = swallowing
"""
    done = command_with(code, "show", cwd=tmp_path, code=130)
    assert (done.out, done.err) == ("", "remat: interrupted\n")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("budget", ["-b", "--budgets"])
def test_ctrl_c_once_there_is_a_plan_comes_too_late(chain, tmp_path, when, budget):
    code = f"""
from remat_cli import files
real = files.write_text
def writing(path, text):
    if "{when}" == "after":
        real(path, text)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.05)
    if "{when}" == "before":
        real(path, text)
files.write_text = writing
"""
    done = command_with(code, "solve", chain, budget, "15B", "--strategy", "dtr", "-o", "{budget}.json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    [name] = files(tmp_path)
    assert run(["check", name]) == 0


# Twice


def deaf_solver(folder: Path) -> str:
    """A CBC that says its version, and else never stops, whatever it is told; its process ids go to ``pids``."""
    body = '[ "$1" = -stop ] && echo "Version: 2" && exit\n'
    body += (
        f"trap '' INT TERM\nsleep 1000 &\necho $$ $! > {folder}/pids.new\nmv {folder}/pids.new {folder}/pids\nwait\n"
    )
    return script(folder / "deaf", f"{body}wait\nwait")


def test_a_second_ctrl_c_ends_at_once_and_takes_the_solver_along(chain, tmp_path):
    (tmp_path / "temporary").mkdir()
    solver = deaf_solver(tmp_path)
    with Running(
        "solve", chain, "-b", "6B", *LONG, "--solver", f"cbc{{path={solver}}}", cwd=tmp_path,
        TMPDIR=str(tmp_path / "temporary"),
    ) as running:  # fmt: skip
        wait_until(lambda: (tmp_path / "pids").exists(), "the start of the solver")
        children = set(map(int, (tmp_path / "pids").read_text().split()))
        assert all(map(alive, children))
        running.press_ctrl_c()
        time.sleep(0.2)  # two signals at the same moment are one
        running.press_ctrl_c()
        done = running.finish()
    assert done.code == 130
    assert done.err.rstrip().endswith("remat: interrupted")  # not the orderly end, which takes longer
    assert done.out == ""
    wait_until(lambda: not any(map(alive, children)), "the end of the solver")
    wait_until(lambda: files(tmp_path / "temporary") == [], "an empty temporary folder")
    assert files(tmp_path) == ["deaf", "pids", "temporary"]


@pytest.mark.parametrize("solver", ["cbc", "glpk"])
def test_nothing_is_left_of_a_solver_after_ctrl_c_twice(chain, tmp_path, solver):
    (tmp_path / "temporary").mkdir()
    arguments = ("solve", chain, "-b", "6B", *LONG, "--solver", solver, "--solver-log", "log.txt")
    log = tmp_path / "log.txt"
    with Running(*arguments, cwd=tmp_path, TMPDIR=str(tmp_path / "temporary")) as running:
        wait_until(lambda: log.exists() and log.stat().st_size > 0, "the solver's first words")
        children: set[int] = set()
        wait_until(lambda: children.update(running.descendants()) or children, "the solver's process")
        running.press_ctrl_c()
        time.sleep(0.2)  # two signals at the same moment are one
        running.press_ctrl_c()
        done = running.finish()
    assert done.code in (0, 130)  # it may have stopped in order at the first
    assert "Traceback" not in done.err
    assert children
    wait_until(lambda: not any(map(alive, children)), "the end of the solver")
    wait_until(lambda: files(tmp_path / "temporary") == [], "an empty temporary folder")


# Time limits

_SLACK_S = 5.0
"""What the whole command may take beyond its limit: start-up, the last words, a slow machine."""


def limited(folder: Path, graph: str, solver: str, limit_s: int, *options: str) -> Done:
    started_s = time.monotonic()
    arguments = ("solve", graph, "-b", "60%", "--solver", solver, "--time-limit", f"{limit_s}s", *options, "-q")
    done = remat_process(*arguments, cwd=folder, code=None)
    assert time.monotonic() - started_s < limit_s + _SLACK_S
    return done


def assert_limit_is_told(done: Done, folder: Path, plan: str) -> None:
    if done.code == 4:
        assert "--time-limit" in done.err
        assert files(folder) == []
    else:
        assert done.code == 0, done.err
        assert run(["check", plan]) == 0
        assert json.loads((folder / plan).read_text(encoding="utf-8"))["run"]["wall_s"] > 0


@pytest.mark.parametrize("solver", ["highs", "cbc", "glpk"])
def test_the_limit_holds_for_every_solver_at_work(tmp_path, solver):
    done = limited(tmp_path, str(GRAPHS / "vgg16.json"), solver, 3, "--strategy", "checkmate-ilp")
    assert_limit_is_told(done, tmp_path, "vgg16.plan.json")


def test_the_limit_holds_while_a_large_model_is_built(tmp_path):
    done = limited(tmp_path, str(GRAPHS / "resnet50.json"), "highs", 6, "--strategy", "checkmate-ilp")
    assert done.code == 4
    assert "ERROR" not in done.err
    assert_limit_is_told(done, tmp_path, "resnet50.plan.json")


@pytest.mark.parametrize("solver", ["highs", "cbc", "glpk"])
def test_the_limit_holds_for_the_default_strategy(tmp_path, solver):
    done = limited(tmp_path, str(GRAPHS / "resnet50.json"), solver, 5)
    assert_limit_is_told(done, tmp_path, "resnet50.plan.json")


def test_at_the_limit_the_best_plan_counts(chain, tmp_path):
    done = remat_process("solve", chain, "-b", "6B", *LONG, "--solver", "cbc", "--time-limit", "8s", cwd=tmp_path)
    assert "stopped at the time limit" in done.out
    plan = json.loads((tmp_path / "chain.plan.json").read_text(encoding="utf-8"))
    assert plan["run"]["outcome"] == "time limit"
    assert plan["provenance"]["time_limit_s"] == 8.0
