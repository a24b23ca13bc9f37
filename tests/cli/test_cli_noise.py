"""What libraries, child processes and models print on standard output never gets into a document there."""

import csv
import io
import json
import os
import signal
import subprocess

import pytest
from cli_process import GRAPHS, environment, remat_process, run_code

NOISE = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).printf(b"noise of C\\n")
ctypes.CDLL(None).fflush(None)
os.write(1, b"noise on the descriptor\\n")
print("noise of Python", flush=True)
subprocess.run(["echo", "noise of a child"], check=True)
ctypes.CDLL(None).printf(b"noise left in the buffer of C\\n")
"""
VOICES = ("noise of C\n", "noise on the descriptor\n", "noise of Python\n", "noise of a child\n")
GRAPH, BUDGET = str(GRAPHS / "unet.json"), "60%"
"""Not so small that it is solved without a solver."""
SEARCH = ("--strategy", "optimal")


@pytest.fixture
def noisy(tmp_path):
    """An environment in which a solver prints while it is imported, in every way that there is, and then works."""
    package = tmp_path / "noisy" / "highspy"
    package.mkdir(parents=True)
    really = f"""
sys.path.remove({str(package.parent)!r})
del sys.modules["highspy"]
import highspy
"""
    (package / "__init__.py").write_text(NOISE + really, encoding="utf-8")
    return environment(PYTHONPATH=f"{package.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def json_documents(text: str) -> list[object]:
    return [json.loads(text)]


def csv_rows(text: str) -> list[list[str]]:
    rows = list(csv.reader(io.StringIO(text)))
    assert len({len(row) for row in rows}) == 1
    return rows


@pytest.mark.parametrize(
    ("command", "read"),
    [
        (("solve", GRAPH, "-b", BUDGET, *SEARCH, "-o", "-"), json_documents),
        (("solve", GRAPH, "-b", BUDGET, *SEARCH, "-o", "plan.json", "--format", "json"), json_documents),
        (("solve", GRAPH, "--budgets", f"{BUDGET},70%", *SEARCH, "--format", "csv"), csv_rows),
        (("compare", GRAPH, "--budgets", f"{BUDGET},70%", "--strategies", "optimal", "--format", "csv"), csv_rows),
        (
            ("compare", GRAPH, "--budgets", f"{BUDGET},70%", "--strategies", "optimal", "--format", "json"),
            json_documents,
        ),
        (("solvers", "--check", "--format", "json"), json_documents),
    ],
    ids=lambda value: " ".join(value[:1] + value[-2:]) if isinstance(value, tuple) else value.__name__,
)
def test_a_document_is_all_that_a_noisy_solver_leaves_on_standard_output(tmp_path, noisy, command, read):
    done = remat_process(*command, cwd=tmp_path, env=noisy)
    assert read(done.out)
    assert "noise" not in done.out
    for voice in VOICES:
        assert voice in done.err


@pytest.mark.parametrize("command", [("solve", GRAPH, "-b", BUDGET, *SEARCH, "-q", "-o", "-")])
def test_quiet_drops_the_noise(tmp_path, noisy, command):
    done = remat_process(*command, cwd=tmp_path, env=noisy)
    assert done.err == ""
    assert done.json()["schema"] == "remat-plan/1"


def test_a_report_has_no_noise(tmp_path, noisy):
    done = remat_process("solve", GRAPH, "-b", BUDGET, *SEARCH, cwd=tmp_path, env=noisy)
    assert (done.out[:6], "noise" in done.out) == ("✓ fits", False)


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2), (0, 1, 2)])
def test_noise_gets_into_no_file_where_a_stream_is_closed(tmp_path, noisy, closed):
    """The next file that is opened would take the number of a closed stream."""

    def close():
        for descriptor in closed:
            os.close(descriptor)

    command = ("solve", GRAPH, "-b", BUDGET, *SEARCH, "-o", "plan.json", "--solver-log", "highs.log")
    remat_process(*command, cwd=tmp_path, env=noisy, stdin=None, preexec_fn=close)
    assert json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))["schema"] == "remat-plan/1"
    for file in tmp_path.glob("*.*"):
        assert "noise" not in file.read_text(encoding="utf-8")


def test_what_a_model_prints_is_no_part_of_its_graph(tmp_path):
    model = "import torch\ndef build():\n    return torch.nn.Linear(4, 4), (torch.zeros(2, 4),)\n"
    (tmp_path / "train.py").write_text(NOISE + model, encoding="utf-8")
    done = remat_process("export", "torch:train.py:build", cwd=tmp_path)
    assert done.json()["schema"] == "remat-graph/1"
    assert all(voice in done.err for voice in VOICES)
    quiet = remat_process("export", "torch:train.py:build", "-q", cwd=tmp_path)
    assert quiet.err == ""
    assert quiet.json() == done.json()


def test_a_child_that_lives_on_does_not_hold_the_pipe(tmp_path, noisy):
    """Whoever reads our output waits for its end; only we may hold it open."""
    package, pid = tmp_path / "noisy" / "highspy" / "__init__.py", tmp_path / "pid"
    child = f'open({str(pid)!r}, "w").write(str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid))'
    package.write_text(f"{NOISE}{child}\n{package.read_text(encoding='utf-8')}", encoding="utf-8")
    command = ("solve", GRAPH, "-b", BUDGET, *SEARCH, "-o", "-")
    try:
        done = remat_process(*command, cwd=tmp_path, env=noisy, stderr=subprocess.DEVNULL)
    finally:
        os.kill(int(pid.read_text(encoding="utf-8")), signal.SIGKILL)
    assert done.json()["schema"] == "remat-plan/1"


def test_a_script_of_its_own_hears_nothing_from_highs():
    """In a script standard output is not ours to change; HiGHS's banner is kept off it by HiGHS itself."""
    code = (
        "import remat_cli as remat; graph = remat.build_graph('unet{batch=8}');"
        "print(remat.solve(graph, '60%', remat.SolveOptions(strategy='optimal')).plan.claim.status.value)"
    )
    done = run_code(code)
    assert (done.out, done.err) == ("optimal\n", "")
