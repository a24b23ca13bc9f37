"""Plans inside Inductor beside PyTorch's own tools under torch.compile: memory, time and gradients of a training step.

``python -m benchmarks.torch.compiled --models gpt,llama --minutes 15`` goes on where an earlier run ended, and keeps
``results/compiled-cpu.json`` and the page beside it.

Peak is what is allocated during a step beside parameters and inputs: by the events of PyTorch's profiler on a CPU, by
the allocator's statistics on CUDA. "over plain" is the ratio of the medians of a step and of one of plain
``torch.compile`` in the same process; the two take turns. Gradients are compared with those of plain ``torch.compile``
for the same random numbers. Recomputed FLOPs are those of products and attention by PyTorch's formulas. ``knob`` is
``activation_memory_budget`` with one of PyTorch's solvers; settings that divide the model alike are measured once, and
named under "also". The budget of a row of remat is a share of what its own graph takes without recomputation, or, where
no such plan is better than PyTorch in memory and time, the peak that PyTorch reaches (``at``), and less where more was
measured than predicted. Its plans are searched for at most 10 s each; for the least peak (``least``) for 20 s more.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.frame import Benchmark, Column, Row, Session, Table, columns, described, perform
from benchmarks.page import keep
from benchmarks.torch.compiled_ways import KNOBS, SOLVERS

HERE = Path(__file__).resolve().parent
SHARES = (70, 50, 40, 35, 30)
EAGER = ("eager", "remat eager 60%", "remat eager 40%")
_EQUAL = 1.02
"""Ratio of two medians up to which one is no slower than the other."""
_LIMIT_S = 600.0

TABLES = (
    Table(
        "reached",
        "At the peaks that PyTorch's tools reach",
        (
            Column("model", "model"),
            *columns("bytes", torch_bytes="PyTorch's least peak", remat_bytes="remat's least peak"),
            Column("less", "less, %", "number"),
            *columns("count", peaks="PyTorch's peaks", met="remat no slower there"),
            *columns("number", worst="worst ratio to PyTorch's step", off="predicted peak off by, %"),
            Column("gradients", "same gradients"),
        ),
        note="No slower: the step of a plan whose measured peak is no higher takes at most 1.02 times as long. The "
        'ratio is that of the two columns "over plain" below. Gradients and predictions are the worst of all plans.',
        named_by=("model",),
    ),
    Table(
        "compiled",
        "All ways",
        (
            *columns("text", model="model", way="way"),
            *columns("bytes", peak_bytes="peak", predicted_bytes="predicted"),
            *columns("number", ratio="over plain", step_s="step, s", extra_flops="recomputed FLOPs, %"),
            *columns("text", gradients="same gradients", also="also", problem="problem"),
        ),
        named_by=("model", "way"),
    ),
)


class Process:
    """A process that measures one model, made anew when it has died."""

    def __init__(self, name: str, device: str, kernels: Path, limit_s: float) -> None:
        self.told = [name, device, str(kernels / "plans")]
        self.kernels, self.limit_s = kernels, limit_s
        self.running: subprocess.Popen[str] | None = None

    def ask(self, line: str) -> Any:
        """The answer to a line; a row with a problem if there is none."""
        if self.running is None:
            self.kernels.mkdir(parents=True, exist_ok=True)
            with (self.kernels / "stderr").open("w") as errors:
                self.running = subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.torch.compiled_ways", *self.told],
                    env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(self.kernels)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
        process = self.running
        assert process.stdin is not None
        assert process.stdout is not None
        watch = threading.Timer(self.limit_s, process.kill)
        watch.start()
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        late = not watch.is_alive()
        watch.cancel()
        if answer:
            return json.loads(answer)
        self.end()
        said = (self.kernels / "stderr").read_text(encoding="utf-8").strip().splitlines()
        why = f"not done after {self.limit_s:g} s" if late else said[-1][:200] if said else "it died"
        return {"problem": why}

    def end(self) -> None:
        """End the process."""
        if self.running is not None:
            self.running.kill()
            self.running.communicate()
            self.running = None


class _OutOfTime(Exception):
    """No more rows are to be begun."""


def _also(row: Row) -> list[str]:
    """The settings of the knob that divide the model as that of ``row`` does."""
    return [f"knob {way}" for way in (row["also"] or "").split(", ") if way]


def ways(ask: Callable[[str], Row], splits: Callable[[], list[list[str]]]) -> Iterator[Row]:
    """The rows of one model, in order; ``ask`` measures a way."""
    yield ask("plain")
    yield from map(ask, EAGER)
    peers = []
    for same in splits():
        first, also = same[0], ", ".join(way.removeprefix("knob ") for way in same[1:])
        row = ask(first) | {"also": also or None}
        peers.append(row)
        yield row
    for way in ("checkpoint blocks", "checkpoint selective"):
        peers.append(ask(way))
        yield peers[-1]
    ours = []
    for share in SHARES:
        ours.append(ask(f"remat {share}%"))
        yield ours[-1]
    ours.append(ask("remat least"))
    yield ours[-1]
    asked = set()
    for row in sorted(peers, key=lambda row: -(row["peak_bytes"] or 0)):
        peak = row["peak_bytes"]
        if peak and peak not in asked and not any(_is_better(one, row) for one in ours):
            asked.add(peak)
            ours.append(ask(f"remat at {peak}"))
            yield ours[-1]
            over = (ours[-1]["peak_bytes"] or 0) - peak
            if over > 0:  # what Inductor fuses may hold a little more than predicted
                ours.append(ask(f"remat at {peak - 2 * over}"))
                yield ours[-1]


def measured_rows(
    name: str, process: Process, known: Sequence[Row], say: Callable[[str], None], ends_s: float
) -> Iterator[Row]:
    """The rows of a model that are not ``known``, until the time ``ends_s``; known ones are handed on."""
    there = {row["way"]: row for row in known if row["model"] == name}
    empty: Row = dict.fromkeys(column.key for column in TABLES[1].columns)

    def ask(way: str) -> Row:
        if way in there:
            return there[way]
        if time.monotonic() > ends_s:
            raise _OutOfTime
        say(f"{name}: {way}")
        return empty | {"table": "compiled", "model": name, "way": way} | process.ask(way)

    def splits() -> list[list[str]]:
        kept = [[way, *_also(row)] for way, row in there.items() if way.startswith("knob ")]
        if sum(map(len, kept)) == len(KNOBS) * len(SOLVERS):
            return kept
        answer = process.ask("splits")
        return answer if isinstance(answer, list) else []

    try:
        yield from ways(ask, splits)
    except _OutOfTime:
        return
    finally:
        process.end()


def _is_better(row: Row, other: Row) -> bool:
    """Whether a row is no worse than another in memory and in time."""
    return bool(row["peak_bytes"] and row["peak_bytes"] <= other["peak_bytes"] and row["ratio"] <= other["ratio"])


def _off(row: Row) -> float:
    """How much more was measured than predicted, in percent."""
    return round(100 * (row["peak_bytes"] / row["predicted_bytes"] - 1), 1)


def reached(name: str, rows: Sequence[Row]) -> Row:
    """What the rows of a model say of remat at the peaks that PyTorch's tools reach."""
    done = [row for row in rows if row["model"] == name and row["peak_bytes"]]
    ours = [row for row in done if row["way"].startswith("remat ") and "eager" not in row["way"]]
    peers = [row for row in done if row["way"].startswith(("knob", "checkpoint", "plain"))]
    ratios = []
    for peer in peers:
        within = [row["ratio"] for row in ours if row["peak_bytes"] <= peer["peak_bytes"]]
        ratios += [round(min(within) / peer["ratio"], 3)] if within else []
    least, own = (min((row["peak_bytes"] for row in group), default=None) for group in (peers, ours))
    told = [row["gradients"] for row in ours]
    return {
        "table": "reached",
        "model": name,
        "torch_bytes": least,
        "remat_bytes": own,
        "less": round(100 * (1 - own / least), 1) if own and least else None,
        "peaks": len(peers),
        "met": sum(ratio <= _EQUAL for ratio in ratios),
        "worst": max(ratios) if ratios and len(ratios) == len(peers) else None,
        "off": max(map(_off, ours), key=abs, default=None),
        "gradients": max(told, key=lambda text: float(text.split()[-1]) if "within" in text else 0, default=None),
    }


def benchmark(names: Sequence[str], device: str, before: list[Row], asked: argparse.Namespace) -> Benchmark:
    """The benchmark, which goes on from the rows ``before``."""
    title, about = described(__doc__)
    ends_s = time.monotonic() + 60 * asked.minutes

    def run(session: Session) -> list[Row]:
        rows = [row for row in before if row["table"] == "compiled"]
        for name in names:
            known = [row for row in rows if row["model"] == name]
            others = [row for row in rows if row["model"] != name]
            kernels = Path(asked.kernels) if asked.kernels else session.folder / "kernels"
            process = Process(name, device, kernels, asked.limit)
            found: list[Row] = []
            for row in measured_rows(name, process, known, session.say, ends_s):
                found.append(row)
                # Those that come later in the order stay, so that a run that is cut off loses nothing.
                now = {one["way"] for one in found}
                session.keep([*others, *found, *(row for row in known if row["way"] not in now)])
            now = {one["way"] for one in found}
            rows = [*others, *found, *(row for row in known if row["way"] not in now)]
        return [*(reached(name, rows) for name in dict.fromkeys(row["model"] for row in rows)), *rows]

    return Benchmark(f"compiled-{device}", title, about, TABLES, run)


def main(arguments: list[str] | None = None) -> int:
    from benchmarks.torch.compiled_models import MODELS

    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch.compiled", description=__doc__)
    parser.add_argument("--models", help="names, with commas; all if left out")
    parser.add_argument("--again", action="store_true", help="measure these models again")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no more rows after that")
    parser.add_argument("--limit", type=float, default=_LIMIT_S, help="seconds for each row")
    parser.add_argument("--kernels", default="", help="folder of compiled kernels and plans, to keep them between runs")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the results")
    asked = parser.parse_args(arguments)
    names = asked.models.split(",") if asked.models else list(MODELS)
    if unknown := set(names) - set(MODELS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    asked.results.mkdir(parents=True, exist_ok=True)
    kept = asked.results / f"compiled-{asked.device}.json"
    partial = kept.with_suffix(".partial.json")
    before = [row for path in (kept, partial) if path.exists() for row in json.loads(path.read_text("utf-8"))["rows"]]
    last = {(row["table"], row["model"], row.get("way")): row for row in before}
    before = [row for row in last.values() if not (asked.again and row["model"] in names)]
    made = benchmark(names, asked.device, before, asked)
    keep(made, perform(made, quick=False, partial=partial), asked.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
