"""Runs blocks of cases in processes of their own, counts what comes of them, and keeps and shrinks inputs that fail.

A block is one run of Hypothesis with a seed, which makes the cases and shrinks one that fails. The same seed gives
the same blocks. Every kind of failure is kept and shrunk once; after that it is counted.
"""

from __future__ import annotations

import json
import os
import re
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import HypothesisException
from hypothesis.reporting import with_reporter
from pebble import ProcessExpired, ProcessPool

BLOCK_LIMIT_S = 900.0
"""A block takes well below a minute, and shrinking at most five; one that takes longer hangs."""
CASES = "cases"


@dataclass(frozen=True, slots=True)
class Campaign:
    """One kind of cases. Its module has ``inputs()``, a strategy of Hypothesis, and ``check(case, counts)``."""

    name: str
    goal: int
    """Cases of the long run."""
    block: int
    """Cases in a block: some ten seconds of them."""
    share: float
    """Of the time, where there is a limit."""
    shrink: bool = True


FUZZ = (
    Campaign("solves", 100_000, block=40, share=0.4),
    Campaign("documents", 1_000_000, block=1000, share=0.4),
    Campaign("models", 50_000, block=300, share=0.1),
    Campaign("runs", 10_000, block=100, share=0.1),
)
FAULTS = (
    Campaign("signals", 2000, block=5, share=0.5, shrink=False),
    Campaign("disks", 1000, block=10, share=0.15, shrink=False),
    Campaign("solvers", 1000, block=5, share=0.15, shrink=False),
    Campaign("sweeps", 100, block=1, share=0.2, shrink=False),
)


class Failure(Exception):
    """remat did what it must not do: of a ``kind`` in a few words without numbers, by which failures are counted."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}\n{detail}")
        self.kind, self.detail = kind, detail


def name_of(error: BaseException) -> str:
    """The class of an exception, with its module unless it is Python's own."""
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def place_of(error: BaseException) -> str:
    """File and line of remat's code at which an exception came up."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = [frame for frame in frames if "remat_cli" in frame.filename] or frames
    return f"{Path(inner[-1].filename).name}:{inner[-1].lineno}"


@dataclass(slots=True)
class Tally:
    """What came of cases."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    details: dict[str, str] = field(default_factory=dict)
    """The detail of the smallest case of every kind of failure."""

    def add(self, other: Tally) -> None:
        self.counts += other.counts
        self.failures += other.failures
        self.details = other.details | self.details


# One block, in a process of its own ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Block:
    """A run of Hypothesis, and the failure that it is about to shrink."""

    campaign: Campaign
    keep: Path
    until_s: float
    tally: Tally = field(default_factory=Tally)
    target: Failure | None = None
    smallest: Any = None

    def case(self, check: Callable[[Any, Counter[str]], None], case: Any) -> None:
        if self.target is None and time.time() > self.until_s:
            return
        under_way(self.keep).write_text(json.dumps([self.campaign.name, case]), encoding="utf-8")
        counts: Counter[str] = Counter({CASES: 1})
        failure = self._failure(check, case, counts)
        if self.target is None:
            self.tally.counts += counts
        if failure is None or (self.target is not None and failure.kind != self.target.kind):
            return
        if self.target is None:
            self.tally.failures[failure.kind] += 1
            if kept(self.keep, self.campaign.name, failure.kind).exists():
                return
        self.target, self.smallest = failure, case
        raise failure

    @staticmethod
    def _failure(check: Callable[[Any, Counter[str]], None], case: Any, counts: Counter[str]) -> Failure | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                check(case, counts)
        except Failure as failure:
            return failure
        except Exception as error:
            return Failure(f"{name_of(error)} at {place_of(error)}", traceback.format_exc())
        return None


def _prepare(campaign: Campaign) -> None:
    """Load what cases need, and make undamaged inputs, before the time begins to count."""
    import_module(f"campaigns.{campaign.name}").inputs()


def run_block(campaign: Campaign, seed: int, cases: int, keep: Path, until_s: float) -> Tally:
    """Run one block, of which no case is begun after ``time.time()`` is ``until_s``; failing inputs go to ``keep``."""
    block = _Block(campaign, keep, until_s)
    attempt = 0
    while (left := cases - block.tally.counts[CASES]) > 0 and time.time() < until_s:
        try:
            _hypothesis(block, seed * 1000 + attempt, left)
        except (Failure, HypothesisException) as error:
            if block.target is None:
                raise  # of Hypothesis itself
            _keep(block, steady=isinstance(error, Failure))
            block.target = None
        attempt += 1
    under_way(keep).unlink(missing_ok=True)
    return block.tally


def _hypothesis(block: _Block, seed: int, cases: int) -> None:
    """One run of Hypothesis, up to the first failure of a kind that was not kept yet, which it shrinks and raises."""
    module = import_module(f"campaigns.{block.campaign.name}")

    @seeded(seed)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink) if block.campaign.shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(module.inputs())
    def run(case: Any) -> None:
        block.case(module.check, case)

    with with_reporter(lambda text: None):  # the kept file says it all
        run()


def _keep(block: _Block, *, steady: bool) -> None:
    """Write down the smallest case, and how to run it again."""
    assert block.target is not None
    kind, name = block.target.kind, block.campaign.name
    detail = block.target.detail if steady else f"{block.target.detail}\n(not every time)"
    block.tally.details[kind] = detail
    path = kept(block.keep, name, kind)
    command = f"PYTHONPATH=tests:. python -m campaigns again {path}"
    record = {"campaign": name, "kind": kind, "detail": detail, "again": command, "case": block.smallest}
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def kept(keep: Path, name: str, kind: str) -> Path:
    """The file for failures of this kind."""
    return keep / f"{name}-{re.sub('[^A-Za-z0-9]+', '-', kind).strip('-')[:100]}.json"


def under_way(keep: Path) -> Path:
    """The file with the case that a process is at, or was at when it ended."""
    return keep / f"under-way-{os.getpid()}.json"


# All blocks ------------------------------------------------------------------------------------------------------


def blocks(campaign: Campaign, seed: int, count: int | None) -> Iterator[tuple[int, int]]:
    """Seed and number of cases of each block: endless, or ``count`` cases in all."""
    number = 0
    while count is None or number * campaign.block < count:
        cases = campaign.block if count is None else min(campaign.block, count - number * campaign.block)
        yield seed * 1_000_003 + number, cases
        number += 1


def run_campaign(
    campaign: Campaign,
    seed: int,
    *,
    keep: Path,
    jobs: int,
    seconds: float | None,
    count: int | None,
    listener: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Run blocks in ``jobs`` processes, until the time is over, ``count`` cases were run, or Ctrl-C.

    The listener gets the tally after every block; inputs that fail go to ``keep``.
    """
    keep.mkdir(parents=True, exist_ok=True)
    total, todo = Tally(), blocks(campaign, seed, count)
    running: dict[Future[Tally], int] = {}
    with ProcessPool(max_workers=jobs, max_tasks=20, context=get_context("spawn")) as pool:
        for prepared in [pool.schedule(_prepare, args=(campaign,)) for _ in range(jobs)]:
            prepared.result()
        until_s = float("inf") if seconds is None else time.time() + seconds
        while True:
            while len(running) < jobs and time.time() < until_s and (following := next(todo, None)) is not None:
                block_seed, cases = following
                arguments = (campaign, block_seed, cases, keep, until_s)
                running[pool.schedule(run_block, args=arguments, timeout=BLOCK_LIMIT_S)] = block_seed
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                total.add(_result(future, campaign, running.pop(future), keep))
                listener(total)
    for left in keep.glob("under-way-*.json"):
        left.unlink()
    return total


def _result(future: Future[Tally], campaign: Campaign, seed: int, keep: Path) -> Tally:
    """The tally of a block; for one whose process died or hung, the case that it was at."""
    try:
        return future.result()
    except ProcessExpired as died:
        kind = f"a process died with {died.exitcode}"
    except TimeoutError:
        kind = "a block did not end"
    left = next(path for path in keep.glob("under-way-*.json") if not psutil.pid_exists(int(path.stem.split("-")[-1])))
    case = json.loads(left.read_text(encoding="utf-8"))[1]
    left.unlink()
    block = _Block(campaign, keep, 0.0, target=Failure(kind, f"block with seed {seed}"), smallest=case)
    block.tally.failures[kind] += 1
    _keep(block, steady=True)
    return block.tally


def again(path: Path) -> Failure | None:
    """Run a kept case again."""
    record = json.loads(path.read_text(encoding="utf-8"))
    return _Block._failure(import_module(f"campaigns.{record['campaign']}").check, record["case"], Counter())
