"""From computes to a checked plan.

Deriving the statements of a schedule, replaying them, and the whole check (replay, budget, claim) run in one process;
`remat check` of the plan's file runs as for a user. There are two families: the unit training chain under square-root
checkpointing (half of the nodes are computed twice), and random graphs of three inputs per node in which an input of
every second node is recomputed. If the time per statement does not grow with the size, the work is linear. Python's
cycle collector is not linear: it scans all statements made so far repeatedly. So deriving is also shown without it.
"""

from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, Target, columns
from benchmarks.measure import call_or_fail, median, repeated, rounded, run_process, spread, succeeded
from benchmarks.startup import remat_command

_FAMILIES = ("training chain", "random DAG")
_SIZES = (5_000, 10_000, 20_000, 40_000)
_TARGET = 20_000

TABLES = (
    Table(
        "replay",
        "In one process",
        (
            Column("family", "family"),
            *columns("count", nodes="nodes", computes="computes", statements="statements"),
            *columns("seconds", derive="derive", replay="replay", check="check"),
        ),
    ),
    Table(
        "growth",
        "Time per statement",
        (
            Column("family", "family"),
            Column("nodes", "nodes", "count"),
            *columns("seconds", derive="derive", derive_uncollected="derive, collector off", replay="replay"),
        ),
    ),
    Table(
        "command",
        "`remat check` of the file",
        (
            Column("family", "family"),
            Column("nodes", "nodes", "count"),
            Column("bytes", "file", "bytes"),
            Column("wall", "time", "seconds"),
            Column("peak_bytes", "memory", "bytes"),
        ),
    ),
)
TARGETS = tuple(
    Target(
        f"a 20,000-node plan replays in less than 2 s ({family})",
        "replay",
        {"family": family, "nodes": _TARGET},
        "replay",
        2.0,
    )
    for family in _FAMILIES
)


def run(session: Session) -> list[Row]:
    rows: list[Row] = []
    for family in _FAMILIES:
        for n in (200, 400) if session.quick else _SIZES:
            session.say(f"{family}, {n} nodes")
            path = session.folder / "made.plan.json"
            seen = call_or_fail(
                "benchmarks.replay:measured", family=family, n=n, path=str(path), times=session.times(5)
            ).values
            uncollected = seen.pop("derive_uncollected")
            command = [remat_command(), "check", str(path)]
            ended = succeeded(run_process(command), "remat check")
            here = {"family": family, "nodes": n}
            rows += [
                {"table": "replay", **here, **seen},
                {
                    "table": "growth",
                    **here,
                    **{key: rounded(median(seen[key]) / seen["statements"]) for key in ("derive", "replay")},
                    "derive_uncollected": rounded(median(uncollected) / seen["statements"]),
                },
                {
                    "table": "command",
                    **here,
                    "bytes": path.stat().st_size,
                    "wall": rounded(ended.wall_s),
                    "peak_bytes": ended.peak_bytes,
                },
            ]
    return rows


def measured(family: str, n: int, path: str, times: int) -> dict[str, Any]:
    """Times of deriving, replaying and checking; writes the plan to ``path``.

    Raises:
        ValueError: If the plan is not valid.
    """
    from benchmarks.inputs import case, plan_of
    from remat_cli.graph.io import dump_document
    from remat_cli.plan.check import check
    from remat_cli.plan.derive import derive
    from remat_cli.plan.io import plan_to_document
    from remat_cli.plan.replay import replay

    graph, computes = case(family, n)
    plan = plan_of(graph, computes)
    report = check(plan)
    if report.findings:
        raise ValueError(f"the plan to measure with is wrong: {report.findings[0].message}")
    Path(path).write_text(dump_document(plan_to_document(plan)), encoding="utf-8")
    return {
        "computes": len(computes),
        "statements": len(plan.statements),
        "derive": spread(repeated(lambda: derive(graph, computes), times)),
        "derive_uncollected": spread(repeated(lambda: derive(graph, computes), times, collect=False)),
        "replay": spread(repeated(lambda: replay(graph, plan.statements), times)),
        "check": spread(repeated(lambda: check(plan), times)),
    }
