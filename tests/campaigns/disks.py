"""Commands whose disk is full, whose files may not grow, or whose folder cannot be written.

The old file stays, or a whole new one takes its place; the exit code is documented, and nothing half-written is left.
"""

import contextlib
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from campaigns.engine import Failure
from campaigns.processes import OLD, Ended, Scene, chain, check_target, check_words, scene
from remat_cli.errors import ExitCode

_PAGE = 4096
_PAGES = 64
"""Of the full disk."""
FULL = Path("/dev/full")
_SOLVE = ("solve", "chain.json", "-b", "8B", "--time-limit", "5s", "--strategy")
COMMANDS: dict[str, tuple[str, ...]] = {
    "keep-all": ("solve", "chain.json", "-b", "none", "--strategy", "keep-all", "-o", "out.plan.json"),
    "optimal": (*_SOLVE, "optimal", "-o", "out.plan.json"),
    "cbc": (*_SOLVE, "checkmate-lp", "--solver", "cbc", "-o", "out.plan.json"),
    "glpk": (*_SOLVE, "checkmate-lp", "--solver", "glpk", "-o", "out.plan.json"),
    "convert": ("convert", "chain.json", "-o", "out.yaml"),
    "show": ("show", "chain.json", "--format", "html", "-o", "out.html"),
    "export": ("export", "zoo:unit-chain{n=65}", "-o", "out.json"),
    "show, stdout": ("show", "chain.json", "--format", "json"),
    "convert, stdout": ("convert", "chain.json"),
    "schema, stdout": ("schema", "plan"),
}


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, Any]:
    """A command and a disk."""
    return {
        "command": draw(st.sampled_from([*COMMANDS])),
        "disk": draw(st.sampled_from(["full", "full", "growth", "read-only", "device"])),
        "pages": draw(st.sampled_from([0, 0, 1, 2, 3, 5, 8, 16, 40])),
        "temporary": draw(st.booleans()),
        "unbuffered": draw(st.booleans()),
        "old": draw(st.booleans()),
    }


def check(case: dict[str, Any], counts: Counter[str]) -> None:
    """Run the command on the disk.

    Raises:
        Failure: If it loses or halves a file, or says something else than what happened.
    """
    command = COMMANDS[case["command"]]
    what = f"{case['command']}, {case['disk']} disk"
    with scene() as here:
        (here.folder / "chain.json").write_text(chain(33), encoding="utf-8")
        expected = "" if "-o" in command else here.run(*command).out
        with _disk(case, here, counts) as disk:
            if "-o" in command:
                ended = _to_file(case, here, disk, what)
            else:
                ended = _to_stdout(case, here, disk, expected, what)
            counts["written" if ended.code == ExitCode.OK else "refused"] += 1
            if parts := [str(path) for path in disk.rglob("*.part")]:
                raise Failure(f"{what}: half a file left", f"{parts}")
        here.check_gone(what)


def _to_file(case: dict[str, Any], here: Scene, disk: Path, what: str) -> Ended:
    *arguments, name = COMMANDS[case["command"]]
    target = FULL if case["disk"] == "device" else disk / name
    ended = here.run(*arguments, str(target), prefix=_prefix(case), **_environment(case, disk))
    check_words(what, ended)
    if target != FULL:
        check_target(what, ended, target, old=target.exists(), killed=False)
    elif ended.code == ExitCode.OK:
        raise Failure(f"{what}: exit 0", ended.out)
    return ended


def _to_stdout(case: dict[str, Any], here: Scene, disk: Path, expected: str, what: str) -> Ended:
    """Run it with its output in a file there: whole with exit code 0, else an error."""
    target = FULL if case["disk"] in ("device", "read-only") else disk / "stdout"
    with target.open("w", encoding="utf-8") as stream:
        ended = here.run(*COMMANDS[case["command"]], stdout=stream, prefix=_prefix(case), **_environment(case, disk))
    check_words(what, ended)
    written = "" if target == FULL else target.read_text(encoding="utf-8")
    if (ended.code == ExitCode.OK) != (written == expected):
        raise Failure(f"{what}: exit {ended.code} and {len(written)} of {len(expected)} characters", ended.err)
    return ended


def _environment(case: dict[str, Any], disk: Path) -> dict[str, str]:
    buffering = {"PYTHONUNBUFFERED": "1"} if case["unbuffered"] else {}
    return {**buffering, "TMPDIR": str(disk)} if case["temporary"] and case["disk"] == "full" else buffering


def _prefix(case: dict[str, Any]) -> tuple[str, ...]:
    """A shell under which no file grows beyond some pages (in bash, ``ulimit`` counts blocks of 1024 bytes)."""
    if case["disk"] != "growth":
        return ()
    return ("bash", "-c", f'ulimit -f {case["pages"] * _PAGE // 1024}; exec "$@"', "bash")


@contextlib.contextmanager
def _disk(case: dict[str, Any], here: Scene, counts: Counter[str]) -> Iterator[Path]:
    """The folder for the output, with the old file in it."""
    kind, disk = case["disk"], here.folder / "disk"
    disk.mkdir()
    mounted = kind in ("full", "read-only") and _mount(disk)
    if kind == "full" and not mounted:
        kind = "full, but mounting is not allowed here: no case"
    counts[f"disk: {kind}"] += 1
    command = COMMANDS[case["command"]]
    if case["old"] and "-o" in command:
        (disk / command[-1]).write_text(OLD, encoding="utf-8")
    if mounted and kind == "full":
        left = os.statvfs(disk).f_bavail - case["pages"]
        (disk / "filler").write_bytes(bytes(max(0, left) * _PAGE))
    elif kind == "read-only" and mounted:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    elif kind == "read-only":
        disk.chmod(0o555)
    try:
        yield disk
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(disk)], check=True)
        else:
            disk.chmod(0o755)


def _mount(disk: Path) -> bool:
    """Mount a small disk in memory there, if that is allowed here."""
    size = f"size={_PAGES * _PAGE}"
    return (
        os.geteuid() == 0
        and subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)], capture_output=True).returncode
        == 0
    )
