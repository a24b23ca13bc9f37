"""The judge: what it says of every kind of bad plan, and that it says something of every damaged one."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from families import random_graph
from seeded import seeded

from remat_cli.graph.model import Graph, Node
from remat_cli.plan.check import check
from remat_cli.plan.derive import derive, peak
from remat_cli.plan.model import Allocate, Claim, ClaimStatus, Compute, Deallocate, Plan, Scope, Statement
from remat_cli.plan.replay import Severity, replay

GRAPH = Graph(
    "g",
    (
        Node("a", 1.0, (), (10,), recompute=False),
        Node("bn", 2.0, (0,), (20, 4)),
        Node("c", 3.0, (1,), (5,), workspace=50),
    ),
    outputs=(3,),
    fixed_memory=100,
)
GOOD = derive(GRAPH, [0, 1, 2])
# 0 allocate a  1 compute a  2 allocate bn:0  3 allocate bn:1  4 compute bn  5 free a  6 free bn:1
# 7 allocate c  8 compute c  9 free bn:0


def changed(at: int, *statements: Statement, drop: int = 1) -> tuple[Statement, ...]:
    return GOOD[:at] + statements + GOOD[at + drop :]


def test_the_good_plan() -> None:
    seen = replay(GRAPH, GOOD)
    assert seen.valid
    assert seen.findings == ()
    assert seen.profile == (110, 110, 130, 134, 134, 124, 120, 125, 175, 105)
    assert (seen.peak_bytes, seen.peak_statement, seen.workspace_bytes) == (175, 8, 50)
    assert seen.residents == ((1, 20), (3, 5))
    assert (seen.cost, seen.times) == (6.0, (1, 1, 1))


CASES = {
    "missing-input": (changed(5, Deallocate("%0"), Deallocate("%1")), "statement 9: compute c reads bn:0, freed at 6"),
    "never computed": (changed(1, drop=1), "statement 3: compute bn reads a:0, allocated at 0 but not computed since"),
    "never there": (changed(0, drop=2), "statement 2: compute bn reads a:0, never computed before"),
    "register-reused": (
        changed(7, Allocate("%0", 3)),
        "statement 7: register %0 is allocated again; register names are used once",
    ),
    "wrong-size": (changed(0, Allocate("%0", 0, 11)), "statement 0: allocate a:0 takes 11 bytes; the graph says 10"),
    "value-live-twice": (
        changed(2, Allocate("%9", 0), GOOD[2]),
        "statement 2: allocate a:0 while register %0 still holds it (allocated at 0)",
    ),
    "recomputed": (
        changed(7, Allocate("%8", 0), Compute(0, ("%8",)), Deallocate("%8"), GOOD[7]),
        "statement 8: compute a again, but it has recompute: false",
    ),
    "register-count": (
        changed(4, Compute(1, ("%1",))),
        "statement 4: compute bn names 1 registers; the node has 2 outputs",
    ),
    "missing-register": (
        changed(8, Compute(2, ("%7",))),
        "statement 8: compute c writes c:0 into %7, never allocated",
    ),
    "gone register": (changed(8, Compute(2, ("%0",))), "statement 8: compute c writes c:0 into %0, freed at 5"),
    "wrong-register": (
        changed(8, Compute(2, ("%1",))),
        "statement 8: compute c writes c:0 into %1, allocated for bn:0",
    ),
    "overwritten": (
        changed(9, GOOD[8], GOOD[9]),
        "statement 9: compute c writes c:0 into %3, which already holds it",
    ),
    "double-free": (changed(6, Deallocate("%0"), GOOD[6]), "statement 6: deallocate %0, already freed at 5"),
    "unknown free": (changed(6, Deallocate("%x"), GOOD[6]), "statement 6: deallocate %x, never allocated"),
    "freed-unused": (
        changed(2, Allocate("%8", 3), Deallocate("%8"), GOOD[2]),
        "statement 3: deallocate %8 (c:0), which was never computed",
    ),
    "never-computed": (GOOD[:7] + GOOD[9:], "c is never computed"),
    "left-over": (GOOD[:9], "bn:0 in %1 (allocated at 2) is never freed"),
    "missing-output": ((*GOOD, Deallocate("%3")), "output c:0 is not in memory at the end, freed at 10"),
}


@pytest.mark.parametrize("name", CASES)
def test_every_fault_is_named(name: str) -> None:
    statements, message = CASES[name]
    seen = replay(GRAPH, statements)
    assert not seen.valid
    assert message in [f.message for f in seen.findings]
    if name in {f.code for f in seen.findings}:
        return
    assert " " in name, f"no finding has the code {name}"


def test_first_computations_in_document_order() -> None:
    graph = Graph("g", (Node("a", 1.0, (), (1,)), Node("b", 1.0, (), (1,))), outputs=(0, 1))
    swapped = derive(graph, [1, 0])
    assert [f.message for f in replay(graph, swapped).findings] == [
        "statement 3: compute a for the first time after b",
    ]
    assert replay(graph, swapped, any_order=True).valid


@seeded(range(40), found=400, valid=80)
def test_no_damage_goes_unnoticed(seed: int) -> Iterator[str]:
    """Dropping, doubling or moving one statement either is found or leaves a plan that is as good."""
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(2, 8), max_outputs=2, workspace=True, max_inputs=2)
    computes = [*range(len(graph.nodes)), 0]
    good = derive(graph, computes)
    for _ in range(20):
        at = rng.randrange(len(good))
        assert not replay(graph, good[:at] + good[at + 1 :]).valid, f"dropping statement {at} went unnoticed"
        assert not replay(graph, good[: at + 1] + good[at:]).valid, f"doubling statement {at} went unnoticed"
        to = rng.randrange(len(good))
        moved = list(good)
        moved.insert(to, moved.pop(at))
        seen = replay(graph, moved)
        # What is still valid takes no less memory than what is derived from its computes.
        assert not seen.valid or seen.peak_bytes >= peak(graph, [s.node for s in moved if isinstance(s, Compute)])
        yield "valid" if seen.valid and moved != list(good) else "found"


def plan(**changes: object) -> Plan:
    claim = Claim(ClaimStatus.OPTIMAL, 6.0, 6.0, Scope.ANY_ORDER)
    return replace(Plan(GRAPH, GOOD, 200, claim, "keep-all"), **changes)  # type: ignore[arg-type]


def test_check_accepts_an_honest_plan() -> None:
    report = check(plan())
    assert report.ok
    assert (report.overhead, report.gap, report.recomputed) == (0.0, 0.0, ())
    assert [(r.value, r.size_bytes) for r in report.peak_values] == [("bn:0", 20), ("c:0", 5)]
    assert report.peak_node == "c"


def test_check_holds_a_plan_against_another_budget() -> None:
    report = check(plan(), budget_bytes=174)
    assert report.valid
    assert not report.within_budget
    assert [f.message for f in report.findings] == [
        "statement 8: peak memory 175 B is 1 B over the budget of 174 B (175 bytes, budget 174)",
    ]
    assert check(plan(), budget_bytes=175).ok


@pytest.mark.parametrize(
    ("claim", "code", "severity"),
    [
        (Claim(ClaimStatus.FEASIBLE, 5.0, 1.0, Scope.FRONTIER), "claimed-cost", Severity.ERROR),
        (Claim(ClaimStatus.FEASIBLE, 6.0, 7.0, Scope.FRONTIER), "claimed-bound", Severity.ERROR),
        (Claim(ClaimStatus.OPTIMAL, 6.0, 1.0, Scope.FRONTIER), "claimed-optimal", Severity.WARNING),
        (Claim(ClaimStatus.FEASIBLE, 6.0, 3.0, Scope.FRONTIER, stated_gap=0.1), "claimed-gap", Severity.ERROR),
    ],
)
def test_check_compares_the_claim_with_the_replay(claim: Claim, code: str, severity: Severity) -> None:
    report = check(plan(claim=claim))
    assert [(f.code, f.severity) for f in report.findings] == [(code, severity)]
    assert report.ok is (severity is Severity.WARNING)


def test_scopes_contain_each_other_as_sets_do() -> None:
    for wide in Scope:
        for narrow in Scope:
            expected = wide is narrow or narrow is Scope.RESTRICTED or wide is Scope.ANY_ORDER
            expected = expected or (wide is Scope.DOCUMENT_ORDER and narrow is not Scope.ANY_ORDER)
            assert wide.contains(narrow) is expected, (wide, narrow)
