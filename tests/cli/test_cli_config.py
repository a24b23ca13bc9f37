"""Options from a configuration file."""

from pathlib import Path

import pytest
from cli_process import TOY, TOY_PEAK, read


def budget_of(path: str = "toy.plan.json") -> int:
    return read(path)["budget"]


def test_the_nearest_file_above_is_read(remat, monkeypatch):
    Path("pyproject.toml").write_text('[tool.remat.solve]\nbudget = "90%"\nquiet = true\n')
    Path("a/b").mkdir(parents=True)
    Path("a/pyproject.toml").write_text("[tool.other]\nx = 1\n")  # nothing of ours: the search goes on
    monkeypatch.chdir("a/b")
    assert remat("solve", TOY).err == ""
    assert budget_of() == TOY_PEAK * 9 // 10
    Path("../remat.toml").write_text('[solve]\nbudget = "80%"\n')
    remat("solve", TOY)
    assert budget_of() == TOY_PEAK * 8 // 10


def test_the_command_line_beats_the_environment_and_that_the_file(remat, monkeypatch):
    Path("remat.toml").write_text(
        '[solve]\nbudgets = "80%,85%"\ngap = 0.5\nseed = 7\n[convert]\ndim = ["n=1", "m=2"]\n'
    )
    remat("solve", TOY)
    assert sorted(path.name for path in Path().glob("*.plan.json")) == ["toy.80pct.plan.json", "toy.85pct.plan.json"]
    monkeypatch.setenv("REMAT_SOLVE_BUDGET", "90%")
    monkeypatch.setenv("REMAT_SOLVE_SEED", "8")
    remat("solve", TOY)
    assert budget_of() == TOY_PEAK * 9 // 10
    remat("solve", TOY, "-b", "100%", "--seed", "9")
    made = read()["provenance"]
    assert (made["budget"], made["gap"], made["seed"]) == ("100%", 0.5, 9)
    for ignoring in (("--no-config",), ("--config", "other.toml")):
        Path("other.toml").write_text("")
        remat(*ignoring, "solve", TOY)
        assert read()["provenance"]["gap"] == 1e-4
    assert "are for models" in remat("convert", TOY, code=2).err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[solve]\nbudget = 80%\n", "remat.toml:2:12: not valid TOML"),
        ('\n[sovle]\nbudget = "80%"\n', 'remat.toml:2: there is no command "sovle" (did you mean "solve"?)'),
        (
            '[show]\n[solve]\ntime_limit = "1s"',
            'remat.toml:3: remat solve has no option "time_limit" (did you mean "time-',
        ),
        ("[solve]\nquiet = 'yes'\n", 'remat.toml:2: quiet is "yes", expected true or false'),
        ("[solve]\n\nbudget = ['80%']\n", "remat.toml:3: budget is a list of 1, expected text"),
        ("budget = '80%'\n", 'remat.toml:1: there is no command "budget"'),
        ("solve = 3\n", "remat.toml:1: is 3, expected a table (write [solve], and options below it)"),
        ('[solve]\nbudget = "80%"\ntime-limit = "soon"\n', "it is set in"),
    ],
)
def test_mistakes_are_errors_with_their_place(remat, text, message):
    Path("remat.toml").write_text(text)
    failed = remat("solve", TOY, "-b", "80%", code=2)
    assert failed.out == ""
    assert message in failed.err
    assert [path.name for path in Path().iterdir()] == ["remat.toml"]


def test_all_mistakes_are_told_and_the_place_of_a_bad_value_too(remat, monkeypatch):
    Path("pyproject.toml").write_text('[tool.remat.solve]\nx = 1\n"y" = 2\n[tool.remat]\nchek.z = 3\n')
    failed = remat("solve", TOY, code=2)
    assert failed.err.count("pyproject.toml:") == 3
    for line in (2, 3, 5):
        assert f"pyproject.toml:{line}: " in failed.err
    monkeypatch.setenv("REMAT_CHECK_BUDGET", "16")
    assert "it is set in the environment variable REMAT_CHECK_BUDGET" in remat("--no-config", "check", "x", code=2).err


def test_a_file_that_is_asked_for_must_be_there_and_be_for_remat(remat):
    Path("pyproject.toml").write_text("[tool.other]\n")
    for arguments, words in (
        (("--config", "none.toml", "show", TOY), "none.toml: there is no such file"),
        (("--config", "pyproject.toml", "show", TOY), "pyproject.toml has no table [tool.remat]"),
        (("--config", "x.toml", "--no-config", "show", TOY), "exclude each other"),
        (("show", TOY, "--no-config"), "put it before the command: remat --no-config ... show"),
    ):
        assert words in remat(*arguments, code=2).err
