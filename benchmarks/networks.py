"""Distance to the optimum on real networks.

Training graphs of the zoo at budgets between 80% and 40% of their no-remat peak. Every strategy has the same time limit
and the embedded solver; a row runs on each core, at most two at a time, one thread each. The default strategy is
compared with the paper's MILP if that model is small enough to be built. Overhead is over the cost without
recomputation. The bound is the one that the strategy proved, for the schedules named beside it. "First" is the time to
the first plan within the budget, including the building of the model.
"""

from pathlib import Path

from benchmarks.frame import Row, Session, Table
from benchmarks.lanes import Cell, lanes_here, rows_of
from benchmarks.solving import CASE, COST, OUTCOME, STRATEGY, solved_row

LIMIT_S = 60.0
_QUICK_LIMIT_S = 10.0
_CASES = (
    ("vgg16", 50, "auto"),
    ("vgg16", 50, "checkmate-ilp"),
    ("unet", 50, "auto"),
    ("unet", 50, "checkmate-ilp"),
    ("mobilenet-v1", 60, "auto"),
    ("mobilenet-v1", 60, "checkmate-ilp"),
    ("mobilenet-v2", 40, "auto"),
    ("fcn8", 60, "auto"),
    ("segnet", 40, "auto"),
    ("resnet50", 60, "auto"),
    ("resnet50", 40, "auto"),
    ("inception-v3", 50, "auto"),
    ("bert", 50, "auto"),
    ("gpt2", 50, "auto"),
    ("densenet121", 50, "auto"),
    ("resnet152", 60, "auto"),
    ("resnet152", 40, "auto"),
    ("densenet161", 50, "auto"),
    ("gpt2{depth=132,batch=1}", 60, "auto"),
)
_FILE_PERCENTS = (80, 60)
"""Budgets for graphs given on the command line."""
_QUICK_CASES = (("linear{n=6}", 60, "auto"),)

TABLES = (
    Table(
        "networks",
        "",
        (
            *CASE,
            STRATEGY,
            *COST,
            *OUTCOME,
        ),
        f"One run each, {LIMIT_S:g} s at most, seed 0. The search stops at a gap of 0.01%.",
        named_by=("graph", "budget", "strategy"),
    ),
)


def run(session: Session) -> list[Row]:
    files = [(str(path.resolve()), percent, "auto") for path in session.graphs for percent in _FILE_PERCENTS]
    cases = [*(_QUICK_CASES if session.quick else _CASES), *files]
    return rows_of(session, [_cell(session, *case) for case in cases], lanes=lanes_here())


def _cell(session: Session, spec: str, percent: int, strategy: str) -> Cell:
    name = f"{Path(spec).parent.name}/{Path(spec).stem}" if spec.endswith(".json") else spec
    case: Row = {"graph": name, "budget": f"{percent}%", "strategy": strategy}
    limit_s = session.limited(LIMIT_S, _QUICK_LIMIT_S)

    def measure() -> Row:
        asked = {"spec": spec, "budget": f"{percent}%", "strategy": strategy}
        return solved_row(TABLES[0], case, time_limit_s=limit_s, **asked)

    return Cell(f"{name} at {percent}%, {strategy}", measure)
