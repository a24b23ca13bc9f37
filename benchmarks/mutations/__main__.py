"""``python -m benchmarks.mutations [--tree PATH] [--label NAME] [--only TEXT]``: plant mistakes one by one, run tests.

The tree is copied once, with its compiled loops. Every mistake is planted in the copy and removed again. A
mistake counts as caught if a test fails with it and passes without it. Results lie in ``results/LABEL.json``, and
``results/README.md`` shows all labels beside each other.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import ROOT

_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "dist", ".hypothesis", ".*_cache", "*.egg-info")
_RESULTS = Path(__file__).with_name("results")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/[^\s\[]+(?:\[.*?\](?= - |$))?)", re.MULTILINE)
_LIMIT_S = 300.0
"""A mistake may make a loop endless: tests are stopped after several times what the slowest selection takes."""
_MEANING = {0: "survived", 1: "caught", 2: "caught"}
"""What exit codes of pytest mean; 2 is for a module of tests that cannot be imported."""


class Mutation(NamedTuple):
    """A mistake, as ``planted.toml`` describes it."""

    name: str
    breaks: str
    old: str
    new: str
    tests: list[str]


_PLANTED = tomllib.loads(Path(__file__).with_name("planted.toml").read_text(encoding="utf-8"))
MUTATIONS = [Mutation(**told | {"tests": [f"tests/{test}" for test in told["tests"]]}) for told in _PLANTED["mistakes"]]


def main(arguments: list[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and tests need it
    chosen = [mutation for mutation in MUTATIONS if asked.only in mutation.name]
    if not chosen:
        raise SystemExit(f"no mutation has {asked.only!r} in its name")
    kept = asked.output / f"{asked.label}.json"
    found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    asked.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutations-") as scratch:
        tree = Path(scratch) / "tree"
        shutil.copytree(asked.tree, tree, ignore=_LEFT_OUT)
        for mutation in chosen:
            found[mutation.name] = tried(tree, mutation)
            print(
                f"{mutation.name}: {found[mutation.name]['outcome']} {found[mutation.name].get('test', '')}", flush=True
            )
            kept.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    (asked.output / "README.md").write_text(page(asked.output), encoding="utf-8")
    return 0 if all(found[mutation.name]["outcome"] == "caught" for mutation in chosen) else 1


def tried(tree: Path, mutation: Mutation) -> dict[str, Any]:
    """The result of the tests in ``tree``: ``caught``, ``survived``, ``not there``, or ``fails anyway``."""
    files = sorted((tree / "remat_cli").rglob("*.py"))
    places = [path for path in files for _ in range(path.read_text(encoding="utf-8").count(mutation.old))]
    if len(places) != 1:
        return {"outcome": "not there", "places": [str(path.relative_to(tree)) for path in places]}
    [path] = places
    result: dict[str, Any] = {"file": str(path.relative_to(tree))}
    with planted(path, mutation.old, mutation.new):
        began_s = time.monotonic()
        code, test = run(tree, mutation.tests)
        result["seconds"] = round(time.monotonic() - began_s, 1)
    if code is None:
        return result | {"outcome": "caught", "test": "(no end)"}
    result["outcome"] = _MEANING.get(code, f"pytest ended with {code}")
    if test is not None:
        result["test"] = test
        if run(tree, [test])[0] != 0:
            result["outcome"] = "fails anyway"
    return result


@contextmanager
def planted(path: Path, old: str, new: str) -> Iterator[None]:
    """While inside, ``path`` has ``new`` for ``old``."""
    text, stat = path.read_text(encoding="utf-8"), path.stat()
    path.write_text(text.replace(old, new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # so that what numba compiled before still counts


def run(tree: Path, tests: list[str]) -> tuple[int | None, str | None]:
    """Run tests up to the first that fails: pytest's exit code, None for no end, and the test."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *tests]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return None, None
    failed = _FAILED.search(output)
    return process.returncode, None if failed is None else failed[1]


def page(results: Path) -> str:
    """A table of all mutations with a column for each label."""
    states = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))}
    labels = sorted(states, key=lambda label: (label != "before", label))
    lines = [
        "# Planted mistakes",
        "",
        "Made by `python -m benchmarks.mutations`; do not edit. Each row is one mistake planted in the package, with",
        "the first test that fails with it. All of these tests pass without it.",
        "",
        f"| mistake | what it breaks | {' | '.join(labels)} |",
        f"|---|---|{'---|' * len(labels)}",
    ]
    for mutation in MUTATIONS:
        cells = [_cell(states[label].get(mutation.name)) for label in labels]
        lines.append(f"| {mutation.name} | {mutation.breaks} | {' | '.join(cells)} |")
    for label in labels:
        outcomes = [states[label][m.name]["outcome"] for m in MUTATIONS if m.name in states[label]]
        lines += ["", f"{label}: {outcomes.count('caught')} of {len(outcomes)} caught."]
    return "\n".join(lines) + "\n"


def _cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return "not run"
    if result["outcome"] != "caught":
        return f"**{result['outcome']}**"
    file, _, name = result["test"].rpartition("/")[2].partition("::")
    return f"caught: {file} `{name.partition('[')[0]}`" if name else f"caught: {file}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutations", description=__doc__)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the repository to plant mistakes in a copy of")
    parser.add_argument("--label", default="after", help="name of the column")
    parser.add_argument("--only", default="", help="mutations with this in their names")
    parser.add_argument("--output", type=Path, default=_RESULTS, help="folder of the results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
