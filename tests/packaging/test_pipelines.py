"""The GitHub action and the pre-commit hook: well-formed, and run here as their hosts run them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from remat_cli.cli.main import _COMMANDS, run

ROOT = Path(__file__).parents[2]
TOY = ROOT / "graphs" / "toy.yaml"
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"] if "name" in step}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with a tight plan committed, tagged ``base``, and a looser plan in its place."""
    monkeypatch.chdir(tmp_path)
    Path("plans").mkdir()
    assert run(["solve", str(TOY), "-b", "80%", "-q", "-o", "plans/toy.plan.json"]) == 0
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -q -m plan", "tag base"):
        subprocess.run(["git", *command.split()], check=True, env=environment(tmp_path))
    assert run(["solve", str(TOY), "-b", "none", "-q", "-o", "plans/toy.plan.json"]) == 0
    assert run(["solve", str(TOY), "-b", "80%", "-q", "-o", "plans/new one.plan.json"]) == 0
    subprocess.run(["git", "add", "."], check=True, env=environment(tmp_path))
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    """An environment in which ``remat`` is this one, and git knows no configuration but the repository's."""
    binaries = folder / ".git-ignored-bin"
    binaries.mkdir(exist_ok=True)
    (binaries / ".gitignore").write_text("*")
    remat = binaries / "remat"
    remat.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from remat_cli.cli.main import main; main()" "$@"\n')
    remat.chmod(0o755)
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("REMAT_", "GIT_"))}
    paths = os.pathsep.join([str(ROOT), plain.get("PYTHONPATH", "")])
    path = f"{binaries}{os.pathsep}{plain['PATH']}"
    return {**plain, "PATH": path, "PYTHONPATH": paths, "GIT_CONFIG_GLOBAL": os.devnull, "HOME": str(folder)}


def step(name: str, folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run a step of the action as GitHub does: bash with -e and pipefail, the inputs in its environment."""
    values = {key: value["default"] for key, value in ACTION["inputs"].items() if "default" in value}
    values |= {key.replace("_", "-"): value for key, value in inputs.items()}
    given = {}
    for variable, expression in STEPS[name]["env"].items():
        match = re.fullmatch(r"\$\{\{ inputs\.([a-z-]+) \}\}", expression)
        assert match
        given[variable] = values[match[1]]
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]],
        cwd=folder,
        env=environment(folder) | given | {"GITHUB_STEP_SUMMARY": str(folder / "summary.md")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_action_is_one_that_github_takes():
    assert ACTION["runs"]["using"] == "composite"
    assert all(value["description"] for value in ACTION["inputs"].values())
    for part in ACTION["runs"]["steps"]:
        assert "uses" in part or (part["shell"] == "bash" and part["name"])
        assert "${{" not in part.get("run", "")  # inputs are data, never part of a script
    used = set(re.findall(r"inputs\.([a-z-]+)", (ROOT / "action.yml").read_text(encoding="utf-8")))
    assert used == set(ACTION["inputs"])
    assert set(re.findall(r"\bremat ([a-z]+) ", " ".join(s["run"] for s in STEPS.values()))) == {"check", "diff"}
    assert {"check", "diff"} <= set(_COMMANDS)


@pytest.mark.parametrize(
    ("plans", "budget", "code"),
    [
        ("plans/*.plan.json", "", 0),
        ("plans/toy.plan.json\nplans/new one.plan.json\n", "", 0),
        ("plans/*.plan.json", "210MB", 1),
        ("none/*.json", "", 2),
        ("$(touch pwned)\n; touch pwned", "", 2),
    ],
)
def test_the_action_checks_plans(checkout, plans, budget, code):
    done = step("Check plans", checkout, plans=plans, budget=budget)
    assert (done.returncode, done.stderr) == (code, "")
    assert ("::error" in done.stdout) == bool(code)
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    ("tolerances", "code"),
    [({}, 0), ({"max_cost_increase": "0%", "max_peak_increase": "33%"}, 0), ({"max_peak_increase": "32%"}, 1)],
)
def test_the_action_compares_plans_with_those_of_a_commit(checkout, tolerances, code):
    done = step("Compare plans", checkout, plans="plans/*.plan.json", base="base", **tolerances)
    assert (done.returncode, done.stderr) == (code, "")
    assert "plans/new one.plan.json is new\n" in done.stdout
    assert ("::error file=plans/toy.plan.json" in done.stdout) == bool(code)
    summary = (checkout / "summary.md").read_text(encoding="utf-8")
    assert "plans/toy.plan.json: peak +33.0%, cost -11.0%" in summary
    assert summary.count("| peak |") == 1


def test_the_hook_takes_the_plans_that_solve_writes_and_runs(checkout):
    (hook,) = HOOKS
    assert (hook["id"], hook["language"]) == ("remat-check", "python")
    files = sorted(str(path.relative_to(checkout)) for path in checkout.rglob("*.json"))
    taken = [name for name in files if re.search(hook["files"], name)]
    assert taken == ["plans/new one.plan.json", "plans/toy.plan.json"]
    assert not re.search(hook["files"], "package.json")
    command = [*shlex.split(hook["entry"]), *taken]
    done = subprocess.run(command, env=environment(checkout), capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "2 plans: 2 are fine" in done.stdout
    tight = subprocess.run([*command, "--budget", "210MB"], env=environment(checkout), capture_output=True, check=False)
    assert tight.returncode == 1
