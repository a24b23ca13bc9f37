"""The GitHub action and the pre-commit hook: well-formed, and run here as their hosts run them."""

import os
import re
import shlex
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_process import program

from remat_cli.cli.main import _COMMANDS, run

ROOT = Path(__file__).parents[2]
TOY = ROOT / "graphs" / "toy.yaml"
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"] if "run" in step}


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
    binaries = program(folder / ".git-ignored-bin").parent
    (binaries / ".gitignore").write_text("*")
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
        assert re.fullmatch(r"actions/[\w-]+@v\d+", part.get("uses", "actions/none@v1"))
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


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    """The ``bin`` folder of a new Python with pip and without remat, which lends its other packages from this one."""
    folder = tmp_path_factory.mktemp("runner")
    venv.create(folder, with_pip=True, symlinks=True)
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    (Path(site) / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "bin"


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ({"base": "base", "max-peak-increase": "33%"}, 0),
        ({"base": "base"}, 0),
        ({"budget": "210MB", "base": "base"}, 1),
    ],
)
def test_all_steps_of_the_action_one_after_the_other(checkout, runner, inputs, code):
    """As a runner does it: the action installs remat from its own folder, and a step that fails stops the next."""
    files = {name: checkout / f".git-ignored-bin/{name.lower()}" for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    outside = environment(checkout)
    # The packages that remat needs are lent; without them pip would look for them in the network.
    pip = {"PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    path = f"{runner}:{outside['PATH'].partition(os.pathsep)[2]}"
    told = {**outside, **pip, "PATH": path, "PYTHONPATH": "", "GITHUB_ACTION_PATH": str(ROOT)}
    told["RUNNER_TEMP"] = str(checkout / ".git-ignored-bin")
    told |= {name: str(file) for name, file in files.items()}
    told |= {f"INPUT_{name.upper()}": value for name, value in inputs.items()}
    values = {key: value.get("default", "plans/*.plan.json") for key, value in ACTION["inputs"].items()} | inputs
    ended = 0
    for part in ACTION["runs"]["steps"]:
        if "run" not in part or not _wanted(part.get("if", "success()"), values, failed=bool(ended)):
            continue
        given = {name: values[text[11:-3]] for name, text in part.get("env", {}).items()}
        line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", part["run"]]
        done = subprocess.run(line, cwd=checkout, env=told | given, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        ended = ended or done.returncode
    assert ended == code
    assert (runner / "remat").exists()
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text(encoding="utf-8").splitlines())
    assert outputs.keys() == {"folder", "key"}
    assert "| peak |" in files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")


def _wanted(condition: str, values: dict[str, str], *, failed: bool) -> bool:
    """What the two conditions that the action uses mean."""
    if condition == "success()":
        return not failed
    assert condition == "${{ !cancelled() && inputs.base != '' }}"
    return values["base"] != ""
