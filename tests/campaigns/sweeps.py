"""Comparisons that are killed at random moments and continued, alone or with the workers of a Dask cluster.

In the end the table is the one of a comparison that nobody disturbed.
"""

import functools
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from hypothesis import strategies as st

from campaigns.engine import Failure
from campaigns.processes import Ended, Scene, chain, check_words, scene, send
from remat_cli.errors import ExitCode

_COMMAND = (
    *("compare", "chain.json", "--budgets", "3B:6B:1B", "--strategies", "keep-all,optimal,checkmate-ilp,chen-sqrt"),
    *("--time-limit", "60s", "--format", "json", "-o", "out.json", "--results", "rows.jsonl"),
)
_PATIENCE_S = 300.0
_CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster:
        print(cluster.scheduler_address, *(worker.pid for worker in cluster.workers.values()), flush=True)
        sys.stdin.read()
"""


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, Any]:
    """Where cells run, and what is killed when."""
    kinds, moments = st.sampled_from(["KILL", "INT", "TERM", "worker"]), st.sampled_from(range(0, 6000, 10))
    return {
        "dask": not draw(st.integers(0, 4)),
        "jobs": draw(st.sampled_from([1, 2])),
        "kills": draw(st.lists(st.tuples(kinds, moments), min_size=1, max_size=4)),
    }


def check(case: dict[str, Any], counts: Counter[str]) -> None:
    """Run the comparison; a Failure if rows are lost or damaged, or processes are left."""
    expected = _table()
    with scene() as here:
        (here.folder / "chain.json").write_text(chain(9), encoding="utf-8")
        if case["dask"]:
            ended = _on_cluster(case, here, counts)
            what = "compare --dask, a worker killed"
        else:
            ended = _again_and_again(case, here, counts)
            what = "compare, killed and continued"
        check_words(what, ended)
        if ended.code != ExitCode.OK:
            raise Failure(f"{what}: exit {ended.code}", ended.err)
        found = _rows(here.folder / "out.json")
        if found != expected:
            raise Failure(f"{what}: another table", json.dumps([found, expected], indent=1))
        here.check_gone(what)


def _again_and_again(case: dict[str, Any], here: Scene, counts: Counter[str]) -> Ended:
    """Kill it, and start it again, and at last let it end."""
    results = here.folder / "rows.jsonl"
    for kind, moment_ms in case["kills"]:
        what = f"compare, {kind}"

        def trouble(process: subprocess.Popen[str], kind: str = kind, moment_ms: int = moment_ms) -> bool:
            time.sleep(moment_ms / 1000)
            if kind == "worker":
                return _kill_a_child(process.pid)
            return send(process, signal.Signals[f"SIG{kind}"], group=False)

        before = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
        ended = here.run(*_COMMAND, "--jobs", str(case["jobs"]), trouble=trouble, patience_s=_PATIENCE_S)
        counts["killed while running" if ended.signalled else "ended before"] += 1
        number = signal.SIGKILL if kind == "worker" else signal.Signals[f"SIG{kind}"]
        check_words(what, ended, killed=[number] if kind != "worker" else [])
        after = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
        if after[: max(0, len(before) - 1)] != before[:-1]:
            raise Failure(f"{what}: saved rows lost", f"{before}\n{after}")
        if kind == "worker":  # its cell failed, and says so; it is computed again only where nothing was saved
            results.write_text(
                "".join(f"{line}\n" for line in after if '"ended": "failed"' not in line), encoding="utf-8"
            )
        here.check_gone(what)
    return here.run(*_COMMAND, "--jobs", str(case["jobs"]), patience_s=_PATIENCE_S)


def _kill_a_child(pid: int) -> bool:
    try:
        children = psutil.Process(pid).children(recursive=True)
        working = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        if working:
            random.Random(pid).choice(working).kill()
        return bool(working)
    except psutil.Error:
        return False


def _on_cluster(case: dict[str, Any], here: Scene, counts: Counter[str]) -> Ended:
    """One of two workers is killed on the way; Dask starts another."""
    moment_s = case["kills"][0][1] / 1000
    cluster = subprocess.Popen(
        [sys.executable, "-c", _CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert cluster.stdout is not None
    address, *workers = cluster.stdout.readline().split()

    def trouble(process: subprocess.Popen[str]) -> bool:
        time.sleep(moment_s)
        return process.poll() is None and _kill_a_child_of_dask(int(workers[0]))

    try:
        ended = here.run(*_COMMAND, "--dask", address, trouble=trouble, patience_s=_PATIENCE_S)
    finally:
        cluster.communicate()
    counts["Dask workers killed" if ended.signalled else "ended before"] += 1
    return ended


def _kill_a_child_of_dask(pid: int) -> bool:
    try:
        psutil.Process(pid).kill()
    except psutil.Error:
        return False
    return True


@functools.cache
def _table() -> list[dict[str, Any]]:
    """The rows of a comparison that nobody disturbs."""
    with scene() as here:
        (here.folder / "chain.json").write_text(chain(9), encoding="utf-8")
        ended = here.run(*_COMMAND, "--jobs", "1", patience_s=_PATIENCE_S)
        if ended.code != ExitCode.OK:
            raise Failure("compare: exit code", ended.err)
        return _rows(here.folder / "out.json")


def _rows(path: Path) -> list[dict[str, Any]]:
    """What a table says, but for how long it took."""
    return [{**row, "wall_s": None} for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]
