"""Searches spread over a cluster.

`remat solve GRAPH --budgets 40%:95%:2% --dask ADDRESS`: 28 budgets of one network on a local Dask cluster of worker
processes. *Computed* rows search, on at most as many workers as there are cores. For more workers than cores, *waiting*
rows run the same commands on real workers that wait for the seconds that the search for a budget took on one worker:
they measure what scheduling and sharing cost. *Simulated* rows let the same scheduler decide in simulated time, for
these budgets and for 1,000 budgets whose times are drawn from the measured ones. Workers without a budget of their own
help others with other seeds; waiting and simulated rows count no gain from that, so the last budgets take as long as
alone. Speedups are beside one worker in the same way.

The second table is for one hard solve with several seeds. The seconds that each of 8 seeds takes alone to come within
0.05% of the best cost that any of them finds are measured; with k workers the first of k seeds counts, in the mean over
10,000 draws with replacement. Sharing of plans between the seeds, which the cluster also does, is not counted.
"""

import math
import random
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.machine import cores
from benchmarks.measure import call_or_fail, rounded
from benchmarks.solving import solved_apart

_SPEC, _BUDGETS = "resnet50", (40, 95, 2)
_QUICK_SPEC, _QUICK_BUDGETS = "linear{n=6}", (60, 90, 10)
_COMPUTED, _WAITING = (1, 2), (1, 2, 4, 8)
_SIMULATED = (1, 2, 4, 8, 16, 32, 64, 100)
_MANY = 1_000
_HARD_SPEC, _HARD_PERCENT, _HARD_LIMIT_S, _SEEDS = "layered-500", 80, 20.0, 8
_QUICK_SEEDS, _QUICK_LIMIT_S = 2, 2.0
_CLOSE = 0.0005
_DRAWS = 10_000

TABLES = (
    Table(
        "sweep",
        "Many budgets",
        (
            Column("how", "workers are"),
            *columns("count", budgets="budgets", workers="workers"),
            Column("wall_s", "time, s", "number"),
            Column("speedup", "speedup", "ratio"),
            Column("busy", "workers busy, %", "number"),
            Column("optimal", "proven optimal", "count"),
        ),
        "One run each, strategy auto, no time limit, one thread for each worker. Busy are workers that search, for a"
        " budget of their own or beside another; time includes the sending of the graph.",
    ),
    Table(
        "seeds",
        "One hard solve",
        (
            Column("workers", "workers, a seed each", "count"),
            Column("wall_s", "expected time, s", "number"),
            Column("speedup", "speedup", "ratio"),
        ),
        f"{_HARD_SPEC} at {_HARD_PERCENT}%, strategy search, one thread each. A seed that does not come so close within"
        f" {_HARD_LIMIT_S:g} s counts as {_HARD_LIMIT_S:g} s.",
    ),
)


def run(session: Session) -> list[Row]:
    spec, span = (_QUICK_SPEC, _QUICK_BUDGETS) if session.quick else (_SPEC, _BUDGETS)
    call_or_fail("benchmarks.solving:warmed")
    rows: list[Row] = []
    seconds: dict[str, float] = {}
    for workers in (number for number in _COMPUTED if number <= cores()):
        session.say(f"{workers} computing")
        told = _swept(spec, span, workers, None)
        seconds = seconds or told["seconds"]
        rows.append(_row("computing", workers, told, rows))
    for workers in _WAITING[:2] if session.quick else _WAITING:
        session.say(f"{workers} waiting")
        rows.append(_row("waiting", workers, _swept(spec, span, workers, seconds), rows))
    rng = random.Random(0)
    many = {str(k): rng.choice(sorted(seconds.values())) for k in range(1, _MANY + 1)}
    for times in (seconds, many):
        for workers in _SIMULATED:
            told = call_or_fail("benchmarks.simulated:simulated", workers=workers, seconds=times).values
            rows.append(_row("simulated", workers, told, rows))
        session.keep(rows)
    return [*rows, *_seeds(session)]


def _swept(spec: str, span: tuple[int, int, int], workers: int, waits: dict[str, float] | None) -> dict[str, Any]:
    asked = {"spec": spec, "percents": list(span), "workers": workers, "waits": waits}
    told: dict[str, Any] = call_or_fail("benchmarks.simulated:swept", limit_s=900.0, **asked).values
    return told


def _row(how: str, workers: int, told: dict[str, Any], rows: list[Row]) -> Row:
    """A row of the first table, with its speedup beside the row of one worker."""
    alike = [row for row in rows if (row["how"], row["budgets"]) == (how, told["budgets"])]
    base = alike[0]["wall_s"] if alike else told["wall_s"]
    case: Row = {"how": how, "workers": workers, "speedup": rounded(base / told["wall_s"])}
    return TABLES[0].row(case, told)


def _seeds(session: Session) -> list[Row]:
    """The second table."""
    limit_s = _QUICK_LIMIT_S if session.quick else _HARD_LIMIT_S
    spec, number = ("linear{n=40}", _QUICK_SEEDS) if session.quick else (_HARD_SPEC, _SEEDS)
    traces = []
    for seed in range(number):
        session.say(f"seed {seed}")
        asked = {"spec": spec, "budget": f"{_HARD_PERCENT}%", "strategy": "search", "seed": seed}
        traces.append(solved_apart(time_limit_s=limit_s, **asked)["steps"])
    best = min(steps[-1][1] for steps in traces if steps)
    close = (1 + best / 100) * (1 + _CLOSE) - 1
    times = [next((at_s for at_s, overhead in steps if overhead <= 100 * close), limit_s) for steps in traces]
    alone = math.fsum(times) / len(times)
    rng = random.Random(0)
    rows = []
    for workers in _SIMULATED:
        draws = [min(rng.choices(times, k=workers)) for _ in range(_DRAWS)]
        mean_s = alone if workers == 1 else math.fsum(draws) / _DRAWS
        case: Row = {"workers": workers, "wall_s": round(mean_s, 2), "speedup": rounded(alone / mean_s)}
        rows.append(TABLES[1].row(case, {}))
    return rows
