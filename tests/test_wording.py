"""Errors in Python name arguments, and errors on the command line name options: never the other way round."""

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import remat_cli.api as remat
from remat_cli.errors import InputError, Problem, UsageError, Worded, in_fit, on_command_line, worded
from remat_cli.planning.options import SolveOptions

PACKAGE = Path(remat.__file__).parents[1]
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*|$)")
CALL = re.compile(r"SolveOptions|solve_smallest|Host\.of|remat\.[a-z_]+\(|\b[a-z_]+=(?:True|False)\b")
OF_OTHER_TOOLS = re.compile(r"--(xla-dump|xla|nproc-per-node)")
NOT_ERRORS = {
    "extras.py": "commands of installers",
    "reports/figures.py": "a style of lines",
    "reports/web/plan.py": "the command that makes a plan",
    "solvers/glpk.py": "arguments of a process",
    "solvers/glpk_worker.py": "arguments of a process",
}
"""Files outside of the command line whose texts with options are none for users of Python, and what they are."""


def texts(tree: ast.AST) -> Iterator[tuple[ast.Constant, bool]]:
    """Every text of a module that is no docstring, and whether it is that for the command line."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for part in body if isinstance(body, list) else []:
            if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
                part.value = ast.Constant(None)
    commands = {
        id(part)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Worded" and len(call.args) > 1
        for part in ast.walk(call.args[1])
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node, id(node) in commands


def found(pattern: re.Pattern[str], *, command: bool, files: Iterator[Path]) -> list[str]:
    """Places of texts that match, of those for the command line or of the others."""
    return [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.value}"
        for path in files
        if str(path.relative_to(PACKAGE)) not in NOT_ERRORS
        for node, for_command in texts(ast.parse(path.read_text(encoding="utf-8")))
        if for_command is command and pattern.search(OF_OTHER_TOOLS.sub("", node.value))
    ]


def outside(path: Path) -> bool:
    return path.relative_to(PACKAGE).parts[0] != "cli"


def test_no_text_for_python_names_an_option() -> None:
    assert not found(OPTION, command=False, files=filter(outside, sorted(PACKAGE.rglob("*.py"))))


def test_no_text_for_the_command_line_names_a_call() -> None:
    assert not found(CALL, command=True, files=sorted(PACKAGE.rglob("*.py")))
    assert not found(CALL, command=False, files=sorted((PACKAGE / "cli").rglob("*.py")))


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    code = 'raise E("a", hint=Worded("b=True", f"--c {d}", fit="e"))\nraise E(f"{f} --g")\n"--docstring"\n'
    seen = {node.value: command for node, command in texts(ast.parse(code))}
    assert seen == {"a": False, "b=True": False, "--c ": True, "e": False, " --g": False}


CHAIN = remat.build_graph("unit-chain{n=17}")


@pytest.mark.parametrize(
    ("call", "python", "command"),
    [
        (lambda: remat.solve(CHAIN, "2B"), "solve_smallest finds the least", "--minimize peak finds the least"),
        (lambda: remat.max_batch(CHAIN, "1GB"), "graph_batch", "--batch"),
        (lambda: remat.solve(CHAIN, "6B", SolveOptions(strategy="offload")), "Host.of", "--host-bandwidth"),
        (lambda: remat.solve(CHAIN, "60%", SolveOptions(host=remat.Host.of("1GB/s"))), "cost=", "--cost"),
        (lambda: remat.solve_smallest(CHAIN, SolveOptions(strategy="keep-all")), "leave strategy out", "--strategy"),
    ],
)
def test_hints_are_worded_where_they_are_shown(call, python, command) -> None:
    with pytest.raises(remat.RematError) as raised:
        call()
    hint = raised.value.hint
    assert python in hint
    assert "--" not in hint
    assert command in on_command_line(hint)
    assert not CALL.search(on_command_line(hint))
    assert raised.value.__notes__ == [f"hint: {hint}"]


def test_words_keep_together_through_messages_problems_and_processes() -> None:
    text = Worded("python\x1b", "command", fit="fit")
    error = InputError("a.json", [Problem(text, "/x", hint=Worded("p", "--c"))])
    assert error.message == "a.json: /x: python\\x1b (p)"
    assert on_command_line(error.message) == "a.json: /x: command (--c)"
    assert in_fit(error.message) == "a.json: /x: fit (p)"
    again = pickle.loads(pickle.dumps(UsageError("no", hint=text)))
    assert (again.hint, on_command_line(again.hint), in_fit(again.hint)) == ("python\\x1b", "command", "fit")
    assert type(worded(str.upper, "plain")) is str
    assert on_command_line(Worded("a", fit="b")) == "a"
