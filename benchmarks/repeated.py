"""Large training steps of equal blocks.

Llama 3 operator by operator with 20 and 80 blocks, whole attention or in 32 chunks of queries, ResNet-1001 and a ResNet
of 299 layers, a DenseNet of 250, GPT-2 with 2,500 blocks, and a chain of 50,000 layers: strategy `auto`, one thread,
30 s. Budgets are the fixed memory and a share of what no-remat needs beside it, or a multiple of the largest working
set: near the least memory, where blocks must be recomputed from blocks that are recomputed themselves. Two columns say
what `auto` found in the same time at commit 0ff2026e, before it knew blocks (on the same machine, one run). All loops
are compiled before. A row that ends without a plan or with a gap above .5% runs again with 300 s.
"""

from functools import partial

from benchmarks.frame import Row, Session, Table, columns
from benchmarks.lanes import Cell, rows_of
from benchmarks.measure import call_or_fail
from benchmarks.solving import CASE, COST, OUTCOME, long_columns, solved_longer

_LIMIT_S, _QUICK_LIMIT_S = 30.0, 3.0
_LONG_S, _QUICK_LONG_S = 300.0, 6.0
_OPEN = 0.5
"""The gap in percent above which a row runs again, with the longer limit: what 300 s are to reach on large graphs."""
_LARGE = "depth=80,heads=64,width=8192,hidden=28672"
GRAPHS = {
    "llama, 20 blocks, chunks": "llama{depth=20,chunks=32,backward=operator}",
    "llama, 80 blocks": f"llama{{{_LARGE},backward=operator}}",
    "llama, 80 blocks, chunks": f"llama{{{_LARGE},chunks=32,backward=operator}}",
    "resnet-1001": "resnet-deep{backward=operator}",
    "resnet-299": "resnet-deep{depth=299,backward=operator}",
    "densenet-250": "densenet-deep{backward=operator}",
    "gpt2, 2,500 blocks": "gpt2{depth=2500,backward=operator}",
    "chain, 50,000 layers": "linear{n=50000}",
}
BUDGETS = {"60%": (0.6, 0.0), "20%": (0.2, 0.0), "2 working sets": (0.0, 2.0), "1.2 working sets": (0.0, 1.2)}
"""Share of the no-remat peak without fixed memory, and multiple of the largest working set."""
_BEFORE: dict[tuple[str, str], tuple[float, float] | None] = {
    ("llama, 20 blocks, chunks", "60%"): (0.3420, 0.018),
    ("llama, 20 blocks, chunks", "20%"): (13.3015, 0.4327),
    ("llama, 20 blocks, chunks", "2 working sets"): (18.0175, 0.0703),
    ("llama, 20 blocks, chunks", "1.2 working sets"): (125.8405, 44.5203),
    ("llama, 80 blocks", "60%"): (0.1461, 0.0089),
    ("llama, 80 blocks", "20%"): (8.7903, 1.1045),
    ("llama, 80 blocks", "2 working sets"): (49.8704, 15.9983),
    ("llama, 80 blocks", "1.2 working sets"): (713.1166, 84.0088),
    ("llama, 80 blocks, chunks", "60%"): (0.2611, 0.1236),
    ("resnet-1001", "60%"): (0.8304, 0.0005),
    ("resnet-1001", "20%"): (10.7668, 3.3564),
    ("densenet-250", "60%"): (0.1154, 0.0091),
    ("densenet-250", "20%"): (0.6475, 0.0441),
    ("densenet-250", "2 working sets"): (8.8399, 4.7105),
    ("gpt2, 2,500 blocks", "60%"): (1.0571, 1.0212),
}
"""Overhead and gap in percent, measured earlier; no plan for the others."""

TABLES = (
    Table(
        "repeated",
        "",
        (
            *CASE,
            *columns("number", before="overhead before, %", before_gap="gap before, %"),
            *COST,
            *OUTCOME,
            *long_columns(_LONG_S),
        ),
        "One run each, strategy auto, seed 0, one thread. Overhead and bound are over the cost without recomputation. "
        "Where the columns of before are empty, there was no plan; resnet-299 was not measured then. Rows that are "
        "open by more than "
        f"{_OPEN:g}% after {_LIMIT_S:g} s ran again for {_LONG_S:g} s, and found no plan where its columns are empty.",
        named_by=("graph", "budget"),
    ),
)


def run(session: Session) -> list[Row]:
    limits_s = (_QUICK_LIMIT_S, _QUICK_LONG_S) if session.quick else (_LIMIT_S, _LONG_S)
    graphs = {"gpt2, 30 blocks": "gpt2{depth=30,backward=operator}"} if session.quick else GRAPHS
    cells = []
    for name, spec in graphs.items():
        for budget in list(BUDGETS)[:2] if session.quick else BUDGETS:
            before = _BEFORE.get((name, budget))
            told = {} if before is None else {"before": before[0], "before_gap": before[1]}
            measure = partial(_row, {"graph": name, "budget": budget, **told}, spec, budget, limits_s)
            cells.append(Cell(f"{name} at {budget}", measure))
    call_or_fail("benchmarks.solving:warmed")
    return rows_of(session, cells)


def _row(case: Row, spec: str, budget: str, limits_s: tuple[float, float]) -> Row:
    asked = {"spec": spec, "budget": bytes_of(spec, budget)}
    return solved_longer(TABLES[0], case, limits_s=limits_s, enough=_OPEN, **asked)


def bytes_of(spec: str, budget: str) -> int:
    """The budget in bytes."""
    from remat_cli.graph.analysis import no_remat_peak, working_sets
    from remat_cli.zoo.registry import build_graph

    graph = build_graph(spec)
    share, sets = BUDGETS[budget]
    free = share * (no_remat_peak(graph) - graph.fixed_memory) if share else sets * max(working_sets(graph))
    return graph.fixed_memory + int(free)
