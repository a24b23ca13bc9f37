import json
import shutil
import subprocess
import sys

import click
import jsonschema
import pytest
from cli_process import GRAPHS, MAIN, TOY, environment, program, remat_process

from remat_cli import __version__
from remat_cli.cli.main import _COMMANDS, cli
from remat_cli.errors import ExitCode
from remat_cli.solvers import gurobi
from remat_cli.solvers.registry import SOLVERS
from remat_cli.strategies.registry import STRATEGIES


def test_strategies_are_listed(remat):
    listed = remat("strategies")
    assert listed.err == ""
    for name in STRATEGIES.names():
        assert name in listed.out
        assert STRATEGIES.load(name).summary in " ".join(listed.out.split())
    assert "stage_split=1" in listed.out


def test_strategies_as_json(remat):
    rows = {r["name"]: r for r in remat("strategies", "--format", "json").json()["strategies"]}
    assert list(rows) == STRATEGIES.names()
    assert rows["checkmate-ilp"]["uses_solver"]
    assert not rows["keep-all"]["minds_budget"]
    assert {o["name"] for o in rows["checkmate-ilp"]["options"]} >= {"frontier", "stage_split", "relax"}


def test_the_stages_of_a_strategy_are_listed(remat):
    listed = remat("strategies", "auto")
    rows = remat("strategies", "auto", "--format", "json").json()["stages"]
    names = [row["stage"] for row in rows]
    assert names[0] == "quick-method"
    assert names.index("starts") < names.index("exact") < names.index("search")
    for row in rows:
        assert row["stage"] in listed.out
        assert row["why"]
    inner = [row["stage"] for row in rows[names.index("starts")]["stages"]]
    assert inner[:3] == ["blocks-tight", "unreachable-first", "quick-bound"]
    assert "dtr is one method, without stages" in remat("strategies", "dtr", code=ExitCode.USAGE).err


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_reasons_of_stages_are_never_cut(remat, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    listed = remat("strategies", "auto").out
    assert max(map(len, listed.splitlines())) <= columns
    assert "…" not in listed
    words = "".join(listed.split())
    rows = remat("strategies", "auto", "--format", "json").json()["stages"]
    if columns == 200:
        for row in rows:
            assert row["why"][:60].replace(" ", "") in words
    for word in (word for row in rows for word in row["why"].split()):
        assert word in words


def test_solvers_are_listed_and_all_four_work_here(remat):
    listed = remat("solvers", "--check")
    for name in SOLVERS.names():
        assert name in listed.out
    rows = remat("solvers", "--check", "--format", "json").json()["solvers"]
    assert [r["name"] for r in rows] == ["cbc", "glpk", "gurobi", "highs"]
    for row in rows:
        assert row["available"]
        assert row["solves"]
        assert row["version"]
        assert row["path"]
        assert row["licence"]


def test_a_missing_solver_is_told_and_fails_the_check(remat, monkeypatch):
    monkeypatch.setenv("REMAT_CBC", "/nowhere/cbc")
    listed = remat("solvers")
    assert "missing" in listed.out
    assert "/nowhere/cbc" in listed.out
    assert "pip install" in listed.out
    checked = remat("solvers", "--check", code=3)
    assert checked.out.count("/nowhere/cbc") == 1
    assert checked.out.count("pip install 'pulp") == 1


def test_a_check_tells_what_the_licence_covers(remat):
    rows = remat("solvers", "--check", "--format", "json").json()["solvers"]
    licence = {row["name"]: row["licence"] for row in rows}["gurobi"]
    assert licence == gurobi.check_licence()


@pytest.mark.parametrize("document", ["graph", "plan", "report", "curve", "graph-summary"])
def test_schemas_are_printed(remat, document):
    schema = remat("schema", document).json()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"].startswith(f"remat-{document}/")


def test_the_version_is_told(remat):
    for flag in ("-V", "--version"):
        assert remat(flag).out == f"remat {__version__}\n"


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "remat_cli", "--version"], capture_output=True, text=True, check=True, env=environment()
    )
    assert done.stdout == f"remat {__version__}\n"


# Help


def test_help_names_every_command_and_exit_code(remat):
    for flag in ("-h", "--help"):
        told = remat(flag)
        for name, text in _COMMANDS.items():
            assert f"  {name} " in told.out
            assert text in told.out
        for code in ExitCode:
            assert f"\n    {int(code)} " in told.out


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_command_has_help_with_an_example(remat, name):
    told = remat(name, "--help")
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.help
    assert f"remat {name}" in (command.epilog or ""), f"remat {name} --help has no example"
    assert f"remat {name}" in told.out.partition("Options:")[2]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts} has no help"


@pytest.mark.parametrize("name", _COMMANDS)
def test_options_are_named_like_their_flags_and_so_are_their_variables(name):
    command = cli.get_command(click.Context(cli), name)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            flag = max(parameter.opts, key=len).removeprefix("--").replace("-", "_")
            # A list is asked for, not set once and for all; the name would hide Python's own.
            assert parameter.name == flag or (name, flag) == ("export", "list")


# Imports that must not happen

_SOLVING = {"pyomo", "highspy", "scipy", "pulp", "gurobipy", "swiglpk", "torch", "networkx"}
_DOCUMENTS = {"numpy", "yaml", "jsonschema", "fastjsonschema", "rich"}


@pytest.mark.parametrize(
    ("arguments", "forbidden"),
    [
        (("--help",), _SOLVING | _DOCUMENTS),
        (("solve", "--help"), _SOLVING | _DOCUMENTS),
        (("completion", "bash"), _SOLVING | _DOCUMENTS),
        (("schema", "graph"), _SOLVING | _DOCUMENTS),
        (("check", "PLAN"), _SOLVING | {"numpy"}),
        (("check", "PLAN", "--format", "json"), _SOLVING | {"numpy", "rich"}),
        (("check", "PLA*", "--format", "sarif"), _SOLVING | {"numpy", "rich"}),
        (("diff", "PLAN", "PLAN", "--format", "markdown"), _SOLVING | {"numpy"}),
        (("explain", "PLAN", "bn1"), _SOLVING | {"numpy"}),
        (("show", TOY), _SOLVING | {"numpy"}),
        (("export", "zoo:vgg16"), _SOLVING | _DOCUMENTS),
        (("strategies",), _SOLVING | {"numba", "ortools"}),
        (("solve", TOY, "-b", "none", "-o", "x.json"), {"pyomo", "highspy", "scipy", "pulp", "gurobipy", "swiglpk"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_commands_import_only_what_they_need(remat, arguments, forbidden):
    remat("solve", TOY, "-b", "none", "-o", "PLAN", "-q")
    code = (
        "import sys, json; from remat_cli.cli.main import run; assert run(sys.argv[1:]) == 0;"
        "print('\\n' + json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, env=environment()
    )
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "remat_cli" in loaded
    assert not loaded & forbidden


def test_no_module_of_a_command_loads_what_takes_long():
    """All that takes long loads when a command runs: help and completion of every command stay quick."""
    code = (
        "import sys; from remat_cli.cli.main import _COMMANDS, cli;"
        "loaded = [cli.get_command(None, name) for name in _COMMANDS]; assert len(loaded) > 15;"
        "print(*{m.partition('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert not set(done.stdout.split()) & (_SOLVING | _DOCUMENTS | {"numba", "jinja2", "plotly", "matplotlib"})


# Completion


@pytest.mark.parametrize(("shell", "words"), [("bash", "complete "), ("zsh", "#compdef remat"), ("fish", "complete ")])
def test_completion_scripts_are_printed(remat, shell, words):
    printed = remat("completion", shell)
    assert words in printed.out
    assert "_REMAT_COMPLETE" in printed.out
    binary = shutil.which(shell)
    if binary is not None:  # bash is always there; the other two are checked where they are
        subprocess.run([binary, "-n"], input=printed.out, text=True, check=True)
    else:
        assert shell != "bash"


def completions(line: str) -> list[str]:
    """What bash would offer for the last word of ``line``, by the protocol of the completion script."""
    asked = {"COMP_LINE": line, "COMP_WORD": line.rpartition(" ")[2], "COMP_WORDBREAKS": " \t\n\"'><=;|&(:"}
    done = remat_process(env=environment(_REMAT_COMPLETE="bash_complete", **asked))
    assert done.err == ""
    return [row.partition(",")[2] for row in done.out.splitlines() if row]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("remat so", ["solve", "solvers"]),
        ("remat solve g.json --strategy checkp", ["checkpoint-all"]),
        ("remat solve g.json --solver ", ["cbc", "glpk", "gurobi", "highs"]),
        ("remat solve g.json --solver g", ["glpk", "gurobi"]),
        ("remat check p.json --format g", ["github"]),
        ("remat schema p", ["pipeline", "plan", "policy"]),
        ("remat completion ", ["bash", "fish", "zsh"]),
        ("remat solve g.json --solver-l", ["--solver-log"]),
        ("remat solve g.json --strategy zzz", []),
    ],
)
def test_bash_completion_offers_what_fits(line, offered):
    assert sorted(completions(line)) == offered


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["so"], {"solve", "solvers"}),
        (["solve", "g.json", "--strategy", "checkp"], {"checkpoint-all"}),
        (["schema", "p"], {"pipeline", "plan", "policy"}),
        (["solve", "g.json", "--strategy", "zzz"], set()),
    ],
    ids=lambda value: " ".join(sorted(value)),
)
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_are_offered_the_same_with_its_help(shell, words, offered):
    """By the protocols of their scripts: three lines an offer for zsh; for fish one line with a tab before the help."""
    asked = {"COMP_WORDS": " ".join(["remat", *words])}
    asked["COMP_CWORD"] = str(len(words)) if shell == "zsh" else words[-1]
    done = remat_process(env=environment(_REMAT_COMPLETE=f"{shell}_complete", **asked))
    assert done.err == ""
    rows = done.out.strip("\n").splitlines()  # nothing to offer is an empty line
    if shell == "zsh":
        told = dict(zip(rows[1::3], rows[2::3], strict=True))
        assert set(rows[0::3]) <= {"plain"}
    else:
        told = dict(row.partition(",")[2].partition("\t")[::2] for row in rows)
        assert {row.partition(",")[0] for row in rows} <= {"plain"}
    assert set(told) == offered
    if "solve" in offered:
        assert told["solve"].startswith("Find the cheapest plan")


def test_completed_in_a_real_bash(remat, tmp_path):
    """The script, loaded into bash, completes ``remat schema re`` to ``report``."""
    program(tmp_path)
    script = remat("completion", "bash").out + (
        "\nCOMP_WORDS=(remat schema re) COMP_CWORD=2 COMP_LINE='remat schema re' COMP_POINT=15\n"
        '_remat_completion remat re schema\necho "${COMPREPLY[@]}"\n'
    )
    path = f"{tmp_path}:{environment()['PATH']}"
    done = subprocess.run(
        ["bash", "--norc"], input=script, text=True, capture_output=True, check=True, env=environment(PATH=path)
    )
    assert done.stdout.split() == ["report"]


def test_head_ends_a_long_output_quietly():
    line = f"{sys.executable} -c '{MAIN}' export zoo:resnet152 | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False, env=environment()
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")
    assert (GRAPHS / "resnet152.json").stat().st_size > 100_000  # more than a pipe holds
