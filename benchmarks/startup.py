"""Start-up of the command.

Small commands as a user runs them, alternating with a Python that does nothing. Modules are counted in a separate run
(`python -X importtime`); *large* are modules that only some commands need.
"""

import re
import sys
import sysconfig
from pathlib import Path

from benchmarks.frame import Column, Row, Session, Table, Target
from benchmarks.machine import ROOT
from benchmarks.measure import BenchmarkError, Ended, median, rounded, run_process, spread, succeeded

_BARE = "python -c pass"
_HELP = "remat --help"
_LARGE = (
    *("fastjsonschema", "gurobipy", "highspy", "jsonschema", "numpy", "pulp"),
    *("pyomo", "rich", "scipy", "swiglpk", "torch", "yaml"),
)
_MODULE = re.compile(r"import time:\s+\d+ \|\s+\d+ \|\s+(\S+)")

TABLES = (
    Table(
        "startup",
        "",
        (
            Column("command", "command"),
            Column("wall", "time", "seconds"),
            Column("ratio", "beside bare Python", "ratio"),
            Column("modules", "modules", "count"),
            Column("large", "large packages loaded"),
            Column("peak_bytes", "memory", "bytes"),
        ),
    ),
)
TARGETS = (Target("`remat --help` in less than 0.3 s", "startup", {"command": _HELP}, "wall", 0.3),)


def run(session: Session) -> list[Row]:
    graph = ROOT / "graphs" / "unit-chain17.json"
    solve = ["solve", str(graph), "--budget", "100%", "--strategy", "keep-all", "-o"]
    plan = session.folder / "made.plan.json"
    commands = {
        _BARE: [sys.executable, "-c", "pass"],
        _HELP: [remat_command(), "--help"],
        "remat completion bash": [remat_command(), "completion", "bash"],
        "remat check unit-chain17.plan.json": [remat_command(), "check", str(plan)],
        "remat solve unit-chain17.json --strategy keep-all": [
            remat_command(),
            *solve,
            str(session.folder / "again.json"),
        ],
    }
    succeeded(run_process([remat_command(), *solve, str(plan)]), "making a plan")
    session.say("modules")
    modules = {name: _modules(name, command) for name, command in commands.items()}
    ended: dict[str, list[Ended]] = {name: [] for name in commands}
    for k in range(session.times(15)):
        session.say(f"round {k + 1}")
        for name, command in commands.items():
            ended[name].append(succeeded(run_process(command), name))
    walls = {name: spread([end.wall_s for end in runs]) for name, runs in ended.items()}
    bare = median(walls[_BARE])
    return [
        {
            "table": "startup",
            "command": name,
            "wall": walls[name],
            "ratio": rounded(median(walls[name]) / bare),
            "modules": len(modules[name]),
            "large": ", ".join(package for package in _LARGE if package in modules[name]) or "none",
            "peak_bytes": max(end.peak_bytes for end in ended[name]),
        }
        for name in commands
    ]


def remat_command() -> str:
    """The ``remat`` of this environment.

    Raises:
        BenchmarkError: If it is not installed.
    """
    script = Path(sysconfig.get_path("scripts")) / "remat"
    if not script.is_file():
        raise BenchmarkError("the remat command is not installed beside this Python: pip install -e .")
    return str(script)


def _modules(name: str, command: list[str]) -> set[str]:
    """All modules that a run of a Python program imports."""
    traced = command[1:] if command[0] == sys.executable else command
    return set(_MODULE.findall(succeeded(run_process([sys.executable, "-X", "importtime", *traced]), name).err))
