import json
from pathlib import Path

import pytest
from families import graphs
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from mangling import spoiled

from remat_cli.cli.commands.schema import command
from remat_cli.errors import InputError
from remat_cli.graph import schema_errors
from remat_cli.graph.document import (
    KINDS,
    Document,
    accepts_quickly,
    inner_schema,
    load_schema,
    newest,
    schema_text,
    validate,
)
from remat_cli.graph.io import graph_to_document

REPORT = {
    "schema": "remat-report/1",
    "valid": True,
    "within_budget": None,
    "budget": None,
    "peak_memory": 12,
    "peak_statement": 3,
    "peak_values": [{"value": "a:0", "bytes": 4}],
    "fixed_memory": 0,
    "cost": 2.5,
    "no_remat_cost": 2,
    "no_remat_peak": 16,
    "overhead": 0.25,
    "recomputed": [{"node": "a", "times": 2, "cost": 0.5}],
    "lower_bound": 2,
    "gap": 0.2,
    "findings": [{"code": "over-budget", "severity": "error", "message": "too much", "statement": None}],
}
PLAN = {
    "schema": "remat-plan/1",
    "graph": {"schema": "remat-graph/1", "nodes": [{"id": "a", "inputs": [], "cost": 1, "memory": 4}]},
    "graph_sha256": "0" * 64,
    "budget": 4,
    "strategy": "keep-all",
    "strategy_options": {"x": 1},
    "solver": None,
    "solver_version": None,
    "claim": {"status": "optimal", "cost": 1, "lower_bound": 1, "gap": 0, "scope": "any-order"},
    "statements": [
        {"allocate": "%0", "value": "a:0", "bytes": 4},
        {"compute": "a", "registers": ["%0"]},
        {"deallocate": "%0"},
    ],
    "provenance": {},
    "run": {},
}


VERSIONS = [(name, version) for name in KINDS for version in range(1, newest(name) + 1)]


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_schemas_are_schemas(name, version):
    Draft202012Validator.check_schema(load_schema(name, version))
    assert json.loads(schema_text(name, version)) == load_schema(name, version)
    assert load_schema(name, version)["title"] == f"remat-{name}/{version}"


def test_the_command_knows_every_kind():
    argument = command.params[0]
    assert tuple(argument.type.choices) == KINDS


def test_unknown_schemas_are_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="no schema nonsense"):
        schema_text("nonsense")


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_installed_schemas_come_first(name, version, tmp_path, monkeypatch):
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / f"{name}-v{version}.json").write_text("from the wheel")
    monkeypatch.setattr("remat_cli.graph.document.files", lambda package: tmp_path)
    assert schema_text(name, version) == "from the wheel"


def keywords(schema):
    """Every keyword that constrains something."""
    if isinstance(schema, list):
        return set().union(*map(keywords, schema))
    found = set(schema) - {"properties", "$defs", "items"}
    below = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    return found.union(*map(keywords, [*below, *([schema["items"]] if "items" in schema else [])]))


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_every_keyword_has_a_wording(name, version):
    assert keywords(inner_schema(name, version)) - {"$schema", "$ref", "title", "description"} <= set(
        schema_errors._WORDING
    )


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_every_field_is_described(name, version):
    def check(schema):
        for field in schema.get("properties", {}).values():
            assert "$ref" in field or field["description"].endswith((".", ")"))
            check(field)
            check(field.get("items", {}))

    check(load_schema(name, version))
    for part in load_schema(name, version).get("$defs", {}).values():
        assert part["description"]
        check(part)


@pytest.mark.parametrize(("name", "data"), [("plan", PLAN), ("report", REPORT)])
def test_examples_are_accepted(name, data):
    validate(Document("f", data), name)
    assert Draft202012Validator(inner_schema(name)).is_valid(data)


def agree(name, data):
    quick = accepts_quickly(name, data)
    assert quick == Draft202012Validator(inner_schema(name)).is_valid(data)
    if not quick:
        with pytest.raises(InputError):
            validate(Document("f", data), name)


@given(st.data(), graphs(max_nodes=3, plain_ids=True))
def test_both_validators_agree_on_mangled_graphs(data, graph):
    agree("graph", data.draw(spoiled(graph_to_document(graph))))


@given(st.data(), st.sampled_from([("plan", PLAN), ("report", REPORT)]))
def test_both_validators_agree_on_other_mangled_documents(data, named):
    name, document = named
    agree(name, data.draw(spoiled(document)))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ({}, "has no fields: not one of the forms"),
        ({"allocate": "%0", "value": "a"}, "has the fields allocate, value: not one of the forms"),
        (
            {"compute": "a", "registers": [], "deallocate": "%0"},
            "has the fields compute, registers, deallocate: not one of the forms",
        ),
    ],
)
def test_statements_are_of_three_forms(statement, message):
    with pytest.raises(InputError) as caught:
        validate(Document("f", PLAN | {"statements": [statement]}), "plan")
    assert str(caught.value) == (
        f"f: /statements/0: {message} "
        "(a statement is {allocate, value, bytes}, {compute, registers} or {deallocate})"
    )


def test_schemas_are_beside_the_package_or_in_it():
    here = Path(__file__).parents[2] / "schemas"
    assert {path.name for path in here.iterdir()} == {f"{name}-v{version}.json" for name, version in VERSIONS}


def _required_fields(schema, place=""):
    """Every required field in a schema, with the place of the object that requires it."""
    if isinstance(schema, dict):
        for name in schema.get("required", []) if "properties" in schema else []:
            yield f"{place}/{name}", schema["properties"][name]
        for key, inner in schema.items():
            yield from _required_fields(inner, f"{place}/{key}")


@pytest.mark.parametrize(("kind", "version"), VERSIONS)
def test_every_required_field_says_what_to_add_when_it_is_missing(kind, version):
    fields = dict(_required_fields(json.loads(schema_text(kind, version))))
    assert fields
    assert [place for place, field in fields.items() if not field.get("description")] == []


def test_an_id_that_is_no_text_is_refused_once():
    graph = {"schema": "remat-graph/1", "nodes": [{"id": 1, "inputs": [], "cost": 1, "memory": 4}]}
    with pytest.raises(InputError) as caught:
        validate(Document("f", graph), "graph")
    assert str(caught.value).count("/nodes/0/id") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"graph": None}, "f: no field graph (add it: the whole remat-graph/1 document)"),
        ({"graph_sha256": "00"}, 'f: /graph_sha256: is "00", expected at least 64 characters'),
    ],
)
def test_what_a_plan_lacks_is_said_in_full(change, message):
    plan = {key: value for key, value in (PLAN | change).items() if value is not None or key not in change}
    with pytest.raises(InputError) as caught:
        validate(Document("f", plan), "plan")
    assert message in str(caught.value)
