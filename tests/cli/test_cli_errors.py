import errno
import os
import resource
from pathlib import Path

import pytest
from cli_process import GRAPHS, TOY, Running, environment, remat_process, run_code

GRAPH = """\
schema: remat-graph/1
nodes:
  - {id: a, inputs: [], cost: 1, memory: 1}
  - {id: b, inputs: [a], cost: 1, memory: 1}
"""


@pytest.fixture
def documents(remat):
    """One file of every kind, good and bad, in the current folder."""
    Path("graph.yaml").write_text(GRAPH, encoding="utf-8")
    remat("solve", "graph.yaml", "-b", "none", "-o", "plan.json", "-q")
    report = remat("show", "plan.json", "--format", "json").out
    Path("report.json").write_text(report, encoding="utf-8")
    Path("bad.json").write_text('{"schema": "remat-graph/1",\n  "nodes": [}', encoding="utf-8")
    Path("bad.yaml").write_text("schema: remat-graph/1\nnodes: [a\n", encoding="utf-8")
    Path("number.json").write_text("42", encoding="utf-8")
    Path("latin1.yaml").write_bytes("schema: remat-graph/1\nname: grüße\n".encode("latin-1"))
    Path("deep.json").write_text("[" * 100_000, encoding="utf-8")
    Path("empty.json").write_text("", encoding="utf-8")
    Path("cycle.yaml").write_text(GRAPH.replace("inputs: []", "inputs: [b]"), encoding="utf-8")
    Path("folder").mkdir()


_BUDGET = ("-b", "80%")
_CASES = [
    # Usage
    ((), 2, ["Usage: remat"]),
    (("slove",), 2, ['there is no command "slove"', 'did you mean "solve"?']),
    (("zzz",), 2, ["commands: solve, check"]),
    (("--nonsense",), 2, ["--nonsense"]),
    (("solve",), 2, ["remat: error: missing argument 'GRAPH'\n  hint: see remat solve --help\n"]),
    (("solve", "graph.yaml"), 2, ["--budget"]),
    (("solve", "graph.yaml", *_BUDGET, "--budgte", "1"), 2, ["--budgte"]),
    (("solve", "graph.yaml", "-b", "16G"), 2, ["ambiguous", "16GB", "16GiB"]),
    (("solve", "graph.yaml", "-b", "-5"), 2, ["negative"]),
    (("solve", "graph.yaml", "-b", "16"), 2, ['"16" has no unit (write 16GB or 16GiB or 16% or 16B)']),
    (("solve", "graph.yaml", "--budgets", "0.5,90%"), 2, ['"0.5" has no unit', "50%"]),
    (("check", "plan.json", "-b", "16"), 2, ['"16" has no unit']),
    (("max-batch", "graph.yaml", "--memory", "16"), 2, ['"16" has no unit (write 16GB or 16GiB or 16B)']),
    (("solve", "graph.yaml", "-b", "lots"), 2, ['"lots" is not a size']),
    (("solve", "graph.yaml", "-b", "1e999"), 2, ["more than 9223372036854775807 bytes"]),
    (("solve", "graph.yaml", "-b", "1e99%"), 2, ["more than 9223372036854775807 bytes"]),
    (("solve", "graph.yaml", *_BUDGET, "--time-limit", "0"), 2, ["is not above 0"]),
    (("solve", "graph.yaml", *_BUDGET, "--time-limit", "-1s"), 2, ["negative"]),
    (("solve", "graph.yaml", *_BUDGET, "--time-limit", "1e400"), 2, ["longer than"]),
    (("solve", "graph.yaml", *_BUDGET, "--time-limit", "soon"), 2, ["is not a duration"]),
    (("solve", "graph.yaml", *_BUDGET, "--gap", "1"), 2, ["--gap"]),
    (("solve", "graph.yaml", *_BUDGET, "--gap", "nan"), 2, ['"nan" is not a share']),
    (("solve", "graph.yaml", *_BUDGET, "--threads", "0"), 2, ["--threads"]),
    (("solve", "graph.yaml", *_BUDGET, "--seed", "-1"), 2, ["--seed"]),
    (("solve", "graph.yaml", *_BUDGET, "--format", "xml"), 2, ["--format", "json"]),
    (("solve", "graph.yaml", *_BUDGET, "--color", "blue"), 2, ["--color", "never"]),
    (("solve", "graph.yaml", *_BUDGET, "--keys", "cost=x"), 2, ["--keys is for node-link graphs"]),
    (("solve", "graph.yaml", "-b", "99%", "--strategy", "keep-al"), 2, ['no strategy "keep-al"', 'mean "keep-all"?']),
    (("solve", "graph.yaml", "-b", "99%", "--strategy", "checkmate-ilp{relaxed=1}"), 2, ['did you mean "relax"?']),
    (("solve", "graph.yaml", "-b", "99%", "--strategy", "checkmate-ilp{stage_split=0}"), 2, ["stage_split=0"]),
    (("solve", "graph.yaml", "-b", "99%", "--strategy", "checkmate-ilp{"), 2, ["is not a name with options"]),
    (("solve", "graph.yaml", "-b", "99%", "--solver", "higsh"), 2, ['no solver "higsh"', 'did you mean "highs"?']),
    (("solve", "graph.yaml", "-b", "99%", "--solver", "cbc{pth=x}"), 2, ['did you mean "path"?']),
    (("solve", "graph.yaml", "-b", "99%", "--write-model", "m.txt"), 2, [".lp"]),
    (("check",), 2, ["PLAN"]),
    (("check", "plan.json", "-b", "none"), 2, ['"none" is not a size']),
    (("check", "plan.json", "--format", "svg"), 2, ["--format"]),
    (("schema", "grahp"), 2, ["graph", "plan", "report"]),
    (("completion", "tcsh"), 2, ["bash", "zsh", "fish"]),
    # Documents
    (("solve", "none.json", *_BUDGET), 2, ["none.json: there is no such file"]),
    (("check", "none.json"), 2, ["none.json: there is no such file"]),
    (("show", "none.json"), 2, ["none.json: there is no such file"]),
    (("check", "plan.json", "--graph", "none.json"), 2, ["none.json: there is no such file"]),
    (("solve", "folder", *_BUDGET), 2, ["folder: cannot be read: Is a directory"]),
    (("solve", "bad.json", *_BUDGET), 2, ["bad.json:2:13"]),
    (("show", "bad.yaml"), 2, ["bad.yaml:"]),
    (("show", "number.json"), 2, ["number.json"]),
    (("solve", "latin1.yaml", *_BUDGET), 2, ["latin1.yaml:2: byte 0xfc is not UTF-8"]),
    (("check", "deep.json"), 2, ["nested"]),
    (("solve", "empty.json", *_BUDGET), 2, ["empty.json", "empty"]),
    (("solve", "-", *_BUDGET), 2, ["<stdin>", "empty"]),
    (("check", "-"), 2, ["<stdin>", "empty"]),
    (("show", "-"), 2, ["<stdin>", "empty"]),
    (("show", "cycle.yaml"), 2, ["cycle.yaml:", "a", "b"]),
    # One kind of document in place of another
    (("check", "graph.yaml"), 2, ["this is a graph, expected a plan"]),
    (("solve", "plan.json", *_BUDGET, "--keys", "cost=w"), 2, ["--keys is for node-link graphs, but this is a plan"]),
    (("check", "plan.json", "--graph", "plan.json"), 2, ["this is a plan, expected a graph"]),
    (("check", "report.json"), 2, ["this is a report, expected a plan"]),
    (("solve", "report.json", *_BUDGET), 2, ["this is a report, expected a graph"]),
    (("show", "report.json"), 2, ["this is a report"]),
    # Outputs
    (("solve", "graph.yaml", "-b", "none", "-o", "bad.json/x"), 2, ["bad.json/x: cannot be written: Not a directory"]),
    (("solve", "graph.yaml", "-b", "none", "-o", "/dev/full"), 2, ["/dev/full: cannot be written: No space left"]),
    (("show", "graph.yaml", "-o", "bad.json/x"), 2, ["bad.json/x: cannot be written"]),
    (("show", "graph.yaml", "-o", "folder"), 2, ["folder: cannot be written: Is a directory"]),
    (("show", "graph.yaml", "-o", "/dev/full"), 2, ["/dev/full: cannot be written: No space left"]),
    (("export", "zoo:linear", "-o", "bad.json/x"), 2, ["bad.json/x: cannot be written"]),
    (("export", "zoo:linear", "-o", "/dev/full"), 2, ["/dev/full: cannot be written: No space left"]),
]


@pytest.mark.parametrize(
    ("arguments", "code", "words"), _CASES, ids=[" ".join(arguments) or "nothing" for arguments, _, _ in _CASES]
)
def test_errors_are_clean_and_leave_nothing_behind(remat, documents, arguments, code, words):
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    failed = remat(*arguments, code=code)
    for word in words:
        assert word in failed.err
    assert "Traceback" not in failed.err
    assert failed.out == ""
    assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before


def test_every_problem_of_a_document_is_told_up_to_twenty(remat):
    nodes = "".join(f"  - {{id: n{i}, inputs: [], cost: -1, memory: 1}}\n" for i in range(25))
    Path("many.yaml").write_text("schema: remat-graph/1\nnodes:\n" + nodes, encoding="utf-8")
    failed = remat("show", "many.yaml", code=2)
    assert failed.err.count("/cost") == 20
    assert "and 5 more problems" in failed.err


def test_a_missing_choice_is_told_in_one_line(remat):
    for command, choice in (("schema", "plan"), ("completion", "zsh")):
        failed = remat(command, code=2)
        assert failed.err.splitlines()[0] == "remat: error: missing argument"
        assert choice in failed.err.splitlines()[1]
        assert len(failed.err.splitlines()) == 2


def test_a_bad_option_in_the_environment_is_named(remat, monkeypatch):
    monkeypatch.setenv("REMAT_SOLVE_TIME_LIMIT", "soon")
    failed = remat("solve", TOY, "-b", "80%", code=2)
    assert "--time-limit" in failed.err
    assert "soon" in failed.err


@pytest.mark.parametrize(
    "command",
    [
        ("--help",),
        ("schema", "graph"),
        ("completion", "zsh"),
        ("strategies",),
        ("export", "zoo:linear{n=3}"),
        ("export", "--list"),
        ("show", TOY),
        ("solve", TOY, "-b", "none", "-o", "-"),
    ],
    ids=" ".join,
)
def test_a_full_disk_behind_standard_output_is_a_clean_error(command):
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        failed = remat_process(*command, stdout=full, code=2)
    assert failed.code == 2
    assert "No space left on device" in failed.err
    assert "Traceback" not in failed.err


def test_with_nowhere_to_complain_the_exit_code_still_tells():
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        remat_process("check", "none.json", stdout=full, stderr=full, code=2)


@pytest.mark.parametrize(
    ("closed", "command", "code"), [(0, "check -", 2), (1, "show", 0), (2, "show", 0), (2, "check", 2)]
)
def test_closed_standard_streams_are_borne(closed, command, code):
    arguments = command.split() if "-" in command else [command, TOY]
    done = remat_process(*arguments, stdin=None, preexec_fn=lambda: os.close(closed), code=code)
    assert "Traceback" not in done.err
    if closed == 0:
        assert "standard input is closed" in done.err


@pytest.mark.parametrize("command", ["solve -b none -o -", "convert", "convert --to dot"])
def test_a_document_for_a_closed_standard_output_is_an_error(tmp_path, command):
    name, *options = command.split()
    done = remat_process(name, TOY, *options, cwd=tmp_path, preexec_fn=lambda: os.close(1), code=2)
    assert done.err.endswith("remat: error: standard output is closed\n  hint: name a file with -o\n")


def test_a_disk_that_fills_up_is_seen_without_buffers_too(tmp_path):
    """A raw file takes what fits and says so; only the next write fails."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    for command in (("convert", str(GRAPHS / "unet.json")), ("schema", "plan"), ("strategies",)):
        with (tmp_path / "out").open("w") as out:
            done = remat_process(*command, stdout=out, preexec_fn=limit, env=environment(PYTHONUNBUFFERED="1"), code=2)
        assert (done.code, (tmp_path / "out").stat().st_size) == (2, 4096)
        assert "writing failed: File too large" in done.err
    whole = remat_process("schema", "graph", env=environment(PYTHONUNBUFFERED="1"))
    assert whole.json()["title"] == "remat-graph/1"


@pytest.mark.parametrize(
    ("missing", "error", "message"),
    [
        ("threading.Thread.start", RuntimeError("can't start new thread"), "the system gives no more processes or"),
        ("subprocess.Popen", BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "the system gives no more proc"),
        ("subprocess.Popen", OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "out of memory"),
        ("remat_cli.solvers.cbc.Cbc.solve", MemoryError(), "out of memory"),
    ],
)
def test_a_lack_of_processes_or_memory_is_told(remat, monkeypatch, missing, error, message):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(missing, refuse)
    failed = remat("solve", TOY, "-b", "80%", "--strategy", "checkmate-ilp", "--solver", "cbc", "-q", code=3)
    assert failed.err.startswith(f"remat: error: {message}")
    assert "hint: " in failed.err


def test_colour_of_errors_follows_the_terminal_and_the_option(remat, monkeypatch):
    def coloured(*extra: str) -> bool:
        return "\x1b[" in remat("check", "none.json", *extra, code=2).err

    assert not coloured()
    assert coloured("--color", "always")
    monkeypatch.setattr("remat_cli.cli.output.Output.colourful", lambda self, _: self.color != "never")
    assert coloured()
    assert not coloured("--color", "never")


def test_ctrl_c_while_waiting_for_standard_input(tmp_path):
    with Running("check", "-", cwd=tmp_path) as running:
        running.wait_for("ready")
        running.press_ctrl_c()
        done = running.finish()
    assert done.code == 130
    assert "Traceback" not in done.err
    assert done.out == ""


def test_json_reports_are_for_machines_only(remat, documents):
    failed = remat("check", "bad.json", "--format", "json", code=2)
    assert failed.err == ""
    assert failed.json()["counts"] == {"ok": 0, "no": 0, "unreadable": 1}
    assert remat("check", "plan.json", "--format", "json").json()["ok"]


def test_a_defect_has_an_exit_code_of_its_own():
    code = "from remat_cli.cli import main; main.run = lambda *_, **__: 1 // 0; main.main([])"
    done = run_code(code, code=70)
    assert done.out == ""
    assert "remat: internal error: ZeroDivisionError at <string>:1" in done.err
    assert "Traceback" not in done.err
