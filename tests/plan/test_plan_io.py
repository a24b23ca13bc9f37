import json
import math
from dataclasses import replace

import pytest
from families import JSON_VALUES, graphs
from hypothesis import given
from hypothesis import strategies as st
from mangling import as_json, outcome, spoiled, spoiled_text, to_yaml

from remat_cli.errors import InputError
from remat_cli.graph.document import Document, parse_document
from remat_cli.graph.io import dump_document, graph_sha256
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.derive import derive
from remat_cli.plan.host import Host
from remat_cli.plan.io import dump_plan, load_plan, plan_from_document, plan_to_document
from remat_cli.plan.model import (
    Allocate,
    Claim,
    ClaimStatus,
    Compute,
    Copies,
    Deallocate,
    Offload,
    Plan,
    Prefetch,
    Release,
    Scope,
)

GRAPH = Graph("g", (Node("a", 2.0, (), (4, 8)), Node("b", 1.0, (1,), (4,))), (2,), fixed_memory=16)
PLAN = Plan(
    graph=GRAPH,
    statements=(
        Allocate("%0", 0),
        Allocate("%1", 1),
        Compute(0, ("%0", "%1")),
        Deallocate("%0"),
        Allocate("%2", 2),
        Compute(1, ("%2",)),
        Deallocate("%1"),
    ),
    budget_bytes=40,
    claim=Claim(ClaimStatus.OPTIMAL, 3.0, 2.5, Scope.FRONTIER),
    strategy="checkmate-ilp{relax=true}",
    strategy_options={"relax": True},
    solver="highs",
    solver_version="1.11.0",
    provenance={"remat": "0.1", "budget": "80%"},
    run={"seconds": 0.25},
)
TEXT = f"""\
{{
"budget": 40,
"claim": {{"cost": 3, "gap": 0.16666666666666666, "lower_bound": 2.5, "scope": "frontier", "status": "optimal"}},
"graph": {{
"cost_unit": "unit",
"fixed_memory": 16,
"name": "g",
"nodes": [
{{"cost": 2, "id": "a", "inputs": [], "outputs": [4, 8], "recompute": true, "workspace": 0}},
{{"cost": 1, "id": "b", "inputs": ["a:1"], "outputs": [4], "recompute": true, "workspace": 0}}
],
"outputs": ["b:0"],
"schema": "remat-graph/1"
}},
"graph_sha256": "{graph_sha256(GRAPH)}",
"provenance": {{"budget": "80%", "remat": "0.1"}},
"run": {{"seconds": 0.25}},
"schema": "remat-plan/1",
"solver": "highs",
"solver_version": "1.11.0",
"statements": [
{{"allocate": "%0", "bytes": 4, "value": "a:0"}},
{{"allocate": "%1", "bytes": 8, "value": "a:1"}},
{{"compute": "a", "registers": ["%0", "%1"]}},
{{"deallocate": "%0"}},
{{"allocate": "%2", "bytes": 4, "value": "b:0"}},
{{"compute": "b", "registers": ["%2"]}},
{{"deallocate": "%1"}}
],
"strategy": "checkmate-ilp{{relax=true}}",
"strategy_options": {{"relax": true}}
}}
"""


def read(text: str, format: str | None = None) -> Plan:
    return plan_from_document(parse_document(text, "p", format))


def refusal(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(text)
    return str(caught.value).splitlines()


def test_the_form_of_a_plan():
    assert dump_document(plan_to_document(PLAN)) == TEXT
    assert read(TEXT) == PLAN


def test_statements_can_be_located(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(TEXT)
    plan, document = load_plan(str(path))
    assert plan == PLAN
    assert document.locate("/statements/2") == (24, 1)


def test_bad_plans_are_for_the_judge():
    text = TEXT.replace('"bytes": 8', '"bytes": 9').replace('["%2"]', '["%2", "%2", "%77"]')
    plan = read(text)
    assert plan.statements[1] == Allocate("%1", 1, 9)
    assert plan.statements[5] == Compute(1, ("%2", "%2", "%77"))
    assert dump_document(plan_to_document(plan)) == text


def test_optional_fields():
    data = json.loads(TEXT)
    for key in ("strategy_options", "solver", "solver_version", "provenance", "run"):
        del data[key]
    data["budget"] = None
    expected = replace(
        PLAN, budget_bytes=None, strategy_options={}, solver=None, solver_version=None, provenance={}, run={}
    )
    assert read(json.dumps(data)) == expected


FORMS = "(a statement is {allocate, value, bytes}, {compute, registers} or {deallocate})"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"cost": 2',
            '"cost": 3',
            "p:15:1: /graph_sha256: the graph in this plan was changed after the plan was made: its digest is "
            "DIGEST (solve the changed graph again)",
        ),
        (
            '"compute": "b"',
            '"compute": "c"',
            'p:27:2: /statements/5/compute: there is no node "c" (compute names a node of the graph by its id)',
        ),
        (
            '"value": "a:1"',
            '"value": "a:2"',
            'p:23:32: /statements/1/value: "a:2" does not exist: "a" has 2 outputs (write "a:0" to "a:1")',
        ),
        (
            '"bytes": 8, ',
            "",
            f"p:23:1: /statements/1: has the fields allocate, value: not one of the forms {FORMS}",
        ),
        (
            '"bytes": 8',
            '"bytes": "8B"',
            'p:23:20: /statements/1/bytes: is the string "8B", expected an integer '
            "(the size of the value as a whole number of bytes)",
        ),
        (
            '"deallocate": "%0"',
            '"deallocate": 0',
            'p:25:2: /statements/3/deallocate: is the number 0, expected a string (a register is a name such as "%3")',
        ),
        (
            '"status": "optimal"',
            '"status": "optimum"',
            'p:3:91: /claim/status: is "optimum", expected optimal or feasible (did you mean "optimal"?)',
        ),
        (
            '"inputs": ["a:1"]',
            '"inputs": ["a:3"]',
            'p:10:35: /graph/nodes/1/inputs/0: "a:3" does not exist: "a" has 2 outputs (write "a:0" to "a:1")',
        ),
        (
            '"fixed_memory": 16',
            '"fixed_memory": null',
            "p:6:1: /graph/fixed_memory: is null, expected an integer or a string "
            "(write bytes as a whole number, or as text such as 64MiB (2^20) or 64MB (10^6))",
        ),
        ("remat-graph/1", "remat-graph/2", None),
        ('"schema": "remat-plan/1"', '"schema": "remat-graph/1"', None),
        ('"schema": "remat-plan/1",\n', "", 'p:1:1: no field schema (add "schema": "remat-plan/1")'),
    ],
)
def test_refusals(old, new, message):
    assert TEXT.count(old) >= 1
    shown = refusal(TEXT.replace(old, new, 1))
    if old == "remat-graph/1":
        message = (
            'p:13:1: /graph/schema: "remat-graph/2" was made by a newer remat (this one reads remat-graph/1: upgrade)'
        )
    elif message is None:
        message = "p:18:1: /schema: this is a graph, expected a plan (give a plan)"
    assert len(shown) == 1
    assert shown[0].replace(_digest_in(shown[0]), "DIGEST") == message


def _digest_in(line: str) -> str:
    return next((word for word in line.split() if len(word) == 64), "no digest")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A plan that can be written down; hardly ever a valid one."""
    graph = draw(graphs(max_nodes=4))
    registers = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=4)
    forms = [
        st.builds(Deallocate, registers),
        st.builds(Compute, st.integers(0, len(graph.nodes) - 1), st.lists(registers, max_size=3).map(tuple)),
    ]
    if graph.size:
        allocate = st.builds(Allocate, registers, st.integers(0, len(graph.size) - 1), st.integers(0, 2**40))
        forms.append(allocate.map(lambda a: replace(a, size_bytes=None) if a.size_bytes == graph.size[a.value] else a))
        forms.append(allocate.map(lambda a: replace(a, size_bytes=None)))
    texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=6)
    objects = st.dictionaries(texts, JSON_VALUES, max_size=2)
    return Plan(
        graph=graph,
        statements=tuple(draw(st.lists(st.one_of(forms), max_size=8))),
        budget_bytes=draw(st.none() | st.integers(0, 2**80)),
        claim=Claim(
            draw(st.sampled_from(ClaimStatus)),
            draw(st.floats(0, allow_nan=False, allow_infinity=False)),
            draw(st.floats(0, allow_nan=False, allow_infinity=False)),
            draw(st.sampled_from(Scope)),
        ),
        strategy=draw(texts),
        strategy_options=draw(objects),
        solver=draw(st.none() | texts),
        solver_version=draw(st.none() | texts),
        provenance=draw(objects),
        run=draw(objects),
    )


@given(plans())
def test_any_plan_is_read_back(plan):
    text = dump_document(plan_to_document(plan))
    assert read(text, "json") == plan
    assert dump_document(plan_to_document(read(text, "json"))) == text


@given(plans())
def test_any_plan_is_read_back_from_yaml(plan):
    assert read(to_yaml(plan_to_document(plan)), "yaml") == plan


@given(st.data(), st.booleans())
def test_mangled_data_is_read_or_refused(data, keep_graph):
    document = plan_to_document(PLAN)
    mangled = data.draw(spoiled({**document, "graph": {}} if keep_graph else document))
    if keep_graph and isinstance(mangled, dict):
        mangled["graph"] = document["graph"]
    plan, message = outcome(lambda: read(as_json(mangled), "json"))
    assert len(message.splitlines()) <= 21
    if plan is not None:
        assert read(dump_document(plan_to_document(plan))) == plan


@given(st.data(), st.sampled_from(["json", "yaml"]))
def test_mangled_text_is_read_or_refused(data, format):
    text = data.draw(spoiled_text(TEXT if format == "json" else to_yaml(plan_to_document(PLAN))))
    plan, message = outcome(lambda: read(text, format))
    assert len(message.splitlines()) <= 21
    if plan is not None:
        assert read(dump_document(plan_to_document(plan))) == plan


COPYING = Graph("g", (Node("a", 1.0, (), (4,)), Node("b", 2.0, (0,), (4,), offload=False)), (0, 1), cost_unit="us")
COPIES = (
    Allocate("%0", 0),
    Compute(0, ("%0",)),
    Offload("%0", "#0"),
    Allocate("%1", 1),
    Compute(1, ("%1",)),
    Deallocate("%0"),
    Allocate("%2", 0),
    Prefetch("#0", "%2"),
    Release("#0"),
)


@pytest.mark.parametrize("host", [Host(25e9, 20.5e9, 1e-5, 2**36), Host(math.inf, math.inf)])
def test_a_plan_with_copies_is_read_back(host):
    claim = Claim(ClaimStatus.FEASIBLE, 3.0, 3.0, Scope.DOCUMENT_ORDER, copies=Copies.ANY)
    plan = Plan(COPYING, COPIES, 12, claim, "hand", host=host)
    text = dump_plan(plan)
    assert '"schema": "remat-plan/2"' in text
    back = plan_from_document(parse_document(text, "f"))
    assert back == replace(plan, claim=replace(claim, stated_gap=0.0))
    assert dump_plan(back) == text


def test_a_plan_without_copies_says_nothing_of_a_host():
    claim = Claim(ClaimStatus.OPTIMAL, 3.0, 3.0, Scope.DOCUMENT_ORDER)
    plan = Plan(COPYING, derive(COPYING, [0, 1]), 12, claim, "hand")
    with_host = replace(plan, host=Host(1.0, 1.0), claim=replace(claim, copies=Copies.ANY))
    assert dump_plan(plan) == dump_plan(with_host)
    assert '"schema": "remat-plan/1"' in dump_plan(plan)


def test_copies_are_refused_in_version_1_and_where_costs_are_no_times():
    claim = Claim(ClaimStatus.FEASIBLE, 3.0, 3.0, Scope.DOCUMENT_ORDER)
    document = plan_to_document(Plan(COPYING, COPIES, 12, claim, "hand", host=Host(1.0, 1.0)))
    with pytest.raises(InputError, match="/statements/2: has the fields offload, slot: not one of the forms"):
        plan_from_document(Document("f", {**document, "schema": "remat-plan/1"}))
    flops = replace(COPYING, cost_unit="flops")
    document = plan_to_document(Plan(flops, COPIES, 12, claim, "hand", host=Host(1.0, 1.0)))
    with pytest.raises(InputError, match="costs are flops, and copies take time"):
        plan_from_document(Document("f", document))
