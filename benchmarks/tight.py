"""Tight budgets: the gain of more time, and proofs near the least budget that works.

The first table takes two networks as Checkmate extracts them, given with `--graphs` (`checkmate/unet.json`,
`checkmate/vgg_unet.json`), at 40% of their no-remat peak, with one and with four minutes. The second is for all
networks of Checkmate, and those of the zoo up to 700 nodes, at 1 to 1.25 times the least peak that `remat solve
--minimize peak` found. The least peaks stand here as bytes, so that a row means the same on every machine. A row runs
on each core, at most two at a time, one thread each.
"""

from functools import partial

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.lanes import Cell, lanes_here, rows_of
from benchmarks.measure import MissingInput
from benchmarks.solving import CASE, COST, OUTCOME, solved_row

_PERCENT = 40
_LIMITS_S = (240.0, 60.0)
_LEAST = {
    "checkmate/ResNet50": 4_110_417_920,
    "checkmate/MobileNet": 6_635_651_072,
    "checkmate/linear8": 1_600_454_656,
    "checkmate/test": 126_167_040,
    "checkmate/unet": 8_287_944_704,
    "checkmate/unet_mini": 7_077_888_000,
    "checkmate/vgg_unet": 8_287_944_704,
    "bert": 2_926_866_896,
    "fcn8": 9_460_987_128,
    "feed-forward": 873_242_624,
    "gpt2": 4_339_558_400,
    "inception-v3": 6_129_986_112,
    "linear": 4,
    "mobilenet-v1": 6_918_805_824,
    "mobilenet-v2": 10_201_323_328,
    "resnet18": 3_535_991_104,
    "resnet34": 3_616_856_384,
    "resnet50": 4_469_014_848,
    "segnet": 8_620_710_056,
    "unet": 13_813_298_856,
    "unit-chain": 3,
    "vgg-unet": 8_483_715_736,
    "vgg16": 14_414_338_368,
    "vgg19": 14_456_815_936,
}
"""The least peaks found, fixed memory included; all but those of the two ResNet-50 are proven least."""
_FACTORS = (1.0, 1.01, 1.03, 1.1, 1.25)
_LIMIT_S = 120.0

TABLES = (
    Table(
        "tight",
        "",
        (
            *CASE,
            Column("limit_s", "limit, s", "number"),
            *COST,
            *OUTCOME,
        ),
        "One run each, strategy auto, seed 0. Overhead and bound are over the cost without recomputation.",
        named_by=("graph", "budget", "limit_s"),
    ),
    Table(
        "least",
        "Near the least budget that works",
        (
            Column("graph", "graph"),
            Column("nodes", "nodes", "count"),
            *columns("number", factor="budget over the least peak", limit_s="limit, s"),
            *COST,
            *OUTCOME,
        ),
        "One run each, strategy auto, seed 0. Overhead and bound are over the cost without recomputation.",
        named_by=("graph", "factor"),
    ),
)


def run(session: Session) -> list[Row]:
    found = session.files("checkmate")
    given = {f"checkmate/{name}": str(path) for name, path in found.items()}
    graphs = {name: given[name] for name in ("checkmate/unet", "checkmate/vgg_unet") if name in given}
    if session.quick:
        graphs = {"linear{n=6}": "linear{n=6}"}
    if not graphs:
        raise MissingInput("it measures checkmate/unet.json and checkmate/vgg_unet.json: give them with --graphs")
    cells = []
    for limit_s in (5.0,) if session.quick else _LIMITS_S:  # the long ones first: the lanes end together
        for name, spec in graphs.items():
            percent = 60 if session.quick else _PERCENT
            case: Row = {"graph": name, "budget": f"{percent}%", "limit_s": limit_s}
            measure = partial(solved_row, TABLES[0], case, time_limit_s=limit_s, spec=spec, budget=f"{percent}%")
            cells.append(Cell(f"{name} at {percent}%, {limit_s:g} s", measure))
    if not session.quick:
        cells += _near_the_least(given)
    rows = rows_of(session, cells, lanes=lanes_here())
    return sorted(rows, key=lambda row: (row["table"] == "least", row["graph"], row.get("factor", row.get("limit_s"))))


def _near_the_least(given: dict[str, str]) -> list[Cell]:
    """The cells of the second table; ``given`` maps the names of Checkmate's networks to their files."""
    cells = []
    for name, least in _LEAST.items():
        if name.startswith("checkmate/") and name not in given:
            continue
        for factor in _FACTORS:
            case: Row = {"graph": name, "factor": factor, "limit_s": _LIMIT_S}
            spec, budget = given.get(name, name), int(least * factor)
            measure = partial(solved_row, TABLES[1], case, time_limit_s=_LIMIT_S, spec=spec, budget=budget)
            cells.append(Cell(f"{name} at {factor:g} times the least peak", measure))
    return cells
