import io
import json
from pathlib import Path

import pytest
import yaml
from families import JSON_VALUES
from hypothesis import given
from hypothesis import strategies as st
from mangling import outcome, spoiled_text, to_yaml

from remat_cli.errors import InputError, Problem
from remat_cli.graph import yaml12
from remat_cli.graph.document import Document, join, kind_of, parse_document, read_document, validate
from remat_cli.graph.quoting import quote


def refusal(text: str, format: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        parse_document(text, "f", format)
    return str(caught.value)


EMPTY = "f: the file is empty (a document starts with its schema field)"
NO_COLLECTION = "an alias for a list or mapping is not allowed (write it out; aliases stand for scalars only)"
NOT_A_MAPPING = "expected a mapping with a schema field (a graph starts with schema: remat-graph/1)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", EMPTY),
        (" \n ", EMPTY),
        ("[]", f"f:1: the document is an empty list, {NOT_A_MAPPING}"),
        ("7", f"f:1: the document is 7, {NOT_A_MAPPING}"),
        (
            '{\n"a":',
            "f:2:5: not valid JSON: the text ends too early, expected a value (is the file cut off?)",
        ),
        ('{"a": 1,\n}', "f:1:8: not valid JSON: a comma before the closing brace"),
        (
            '{"a": 1, // one\n}',
            'f:1:10: not valid JSON: expected a field name in double quotes, found "// one" '
            "(JSON has no comments; YAML has)",
        ),
        ('{"a": [1, 2,]}', "f:1:12: not valid JSON: a comma before the closing bracket"),
        ('{"a": 1, b: 2}', 'f:1:10: not valid JSON: expected a field name in double quotes, found "b: 2}"'),
        ("[,]", "f:1:2: not valid JSON: a comma before the closing bracket"),
        ('{"a": 1}\nx', 'f:2:1: not valid JSON: the document ended before this, found "x"'),
        ('{"a" 1}', 'f:1:6: not valid JSON: expected a colon, found "1}"'),
        ('{"a": [1 2]}', 'f:1:10: not valid JSON: expected a comma, found "2]}"'),
        ('{"a": "b\nc"}', 'f:1:9: not valid JSON: this character must be written as an escape, found ""'),
        (
            '{"a": {"b": 1,\n "b": 2}}',
            'f:2:2: /a/b: the key "b" is repeated, first on line 1 (remove one of the two)',
        ),
        ('{"a": 1, "\\u0061": 2}', 'f:1:10: /a: the key "a" is repeated, first on line 1 (remove one of the two)'),
        ('{"a": [0,\n NaN]}', "f:2:2: /a/1: NaN is not a finite number (write a finite number)"),
        ('{"a": -Infinity}', "f:1:2: /a: -Infinity is not a finite number (write a finite number)"),
        ('{"a": "1e400", "b": -1e400}', "f:1:16: /b: -1e400 is too large for a number (write a finite number)"),
        ('{"a/b": {"~": 1e999}}', "f:1:10: /a~1b/~0: 1e999 is too large for a number (write a finite number)"),
        ('{"a": ' + "9" * 5000 + "}", "f:1:2: /a: a number of 5000 digits is too long (write it as 1.5e12)"),
        (
            '{"a": "\\ud83d\\ude00", "b": "\\ud83d"}',
            "f:1:23: /b: half of a surrogate pair is not a character (write the whole character)",
        ),
        (
            '{"\\udc00": 1}',
            "f:1:2: /\\udc00: half of a surrogate pair is not a character (write the whole character)",
        ),
    ],
)
def test_json_refusals(text, message):
    assert refusal(text, "json") == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", EMPTY),
        ("# nothing\n", EMPTY),
        ("---\n", f"f:1: the document is null, {NOT_A_MAPPING}"),
        ("a: 1\nb: {c: 2}\na: 3", 'f:3:1: /a: the key "a" is repeated, first on line 1 (remove one of the two)'),
        ("a: .nan", "f:1:4: /a: .nan is not a finite number (write a finite number)"),
        ("a: [1, -.INF]", "f:1:8: /a/1: -.INF is not a finite number (write a finite number)"),
        ("a: 1e999", "f:1:4: /a: 1e999 is too large for a number (write a finite number)"),
        ("a: " + "9" * 5000, "f:1:4: /a: a number of 5000 digits is too long (write it as 1.5e12)"),
        ("a: 0x" + "f" * 5000, "f:1:4: /a: a number of 5002 digits is too long (write it as 1.5e12)"),
        ("a: {<<: {b: 1}}", "f:1:5: /a: merge keys (<<) are not allowed (write the fields out)"),
        ("a: !!str 1", 'f:1:4: /a: the tag "tag:yaml.org,2002:str" is not allowed (leave the tag out)'),
        ("a: ! 1", 'f:1:4: /a: the tag "!" is not allowed (leave the tag out)'),
        (
            "a: !!python/object/apply:os.system [ls]",
            'f:1:4: /a: the tag "tag:yaml.org,2002:python/object/apply:os.system" is not allowed (leave the tag out)',
        ),
        ("1: x", "f:1:1: the key 1 is not a string (write the key in quotes)"),
        ("é: 1\nb:\n\t- 1", "f:3:1: not valid YAML: a tab in the indentation (indent with spaces)"),
        ("b:\n- 1\n\tc: 1", "f:3:1: not valid YAML: a tab in the indentation (indent with spaces)"),
        ("a: {null: x}", "f:1:5: /a: the key null is not a string (write the key in quotes)"),
        ("? [a]\n: x", "f:1:3: a list or mapping cannot be a key (write the key as text)"),
        ("a: 1\n---\nb: 2", "f:2:1: a second document starts here (put one document into one file)"),
        ("a: *x", 'f:1:4: /a: there is no anchor "x" before this alias'),
        (
            "a: &x [1]\nb: [*x, *x]",
            f"f:2:5: /b/0: {NO_COLLECTION}",
        ),
        (
            "a: &x {b: *x}",
            f"f:1:11: /a/b: {NO_COLLECTION}",
        ),
        ("a: 'b", "f:1:6: not valid YAML: found unexpected end of stream"),
        ("a: b\x07", "f:1: the character U+0007 is not allowed in YAML"),
    ],
)
@pytest.mark.parametrize("loader", ["C", "Python"])
def test_yaml_refusals(text, message, loader, monkeypatch):
    monkeypatch.setattr(yaml12, "_LOADER", {"C": yaml.CSafeLoader, "Python": yaml.SafeLoader}[loader])
    assert refusal(text, "yaml") == message


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a":' + "[" * 150 + "]" * 150 + "}"])
@pytest.mark.parametrize("format", ["json", "yaml"])
def test_deep_nesting_is_refused(text, format):
    assert "nested deeper than 100 levels" in refusal(text, format)


def test_billion_laughs_are_refused():
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    assert "f:2:10: /a1/0: an alias for a list or mapping is not allowed" in refusal("\n".join(lines))


@pytest.mark.parametrize(
    "text", ['a: "\\UFFFFFFFF"', 'a: "\\ud800"', "a: [", "%", "a: 'b", "- x\n y: *", "@", "a: \t- b"]
)
@pytest.mark.parametrize("loader", ["C", "Python"])
def test_yaml_syntax_errors_are_clean(text, loader, monkeypatch):
    monkeypatch.setattr(yaml12, "_LOADER", {"C": yaml.CSafeLoader, "Python": yaml.SafeLoader}[loader])
    assert refusal(text, "yaml").startswith(("f:1", "f:2", "f: not valid YAML"))


STRINGS = ["1:0", "12:30:00", "on", "off", "yes", "no", "y", "n", "1_000", "2001-01-01", "0b11", "=", "nUll", "1e", "."]


@pytest.mark.parametrize("loader", ["C", "Python"])
def test_yaml_scalars_follow_the_core_schema_of_1_2(loader, monkeypatch):
    monkeypatch.setattr(yaml12, "_LOADER", {"C": yaml.CSafeLoader, "Python": yaml.SafeLoader}[loader])
    text = f"""
        floats: [1.2e9, 1e9, +1.5, .5, 5., -0.0, 1E3]
        integers: [010, 0o10, 0x1F, -3, +4]
        strings: [{", ".join(STRINGS)}, "1", '2']
        words: [true, True, FALSE, null, ~, NULL, ]
        empty:
        anchored: [&x 3, *x, &y "3", *y]
        on: off
    """
    data = parse_document(text, "f", "yaml").data
    assert data == {
        "floats": [1.2e9, 1e9, 1.5, 0.5, 5.0, 0.0, 1e3],
        "integers": [10, 8, 31, -3, 4],
        "strings": [*STRINGS, "1", "2"],
        "words": [True, True, False, None, None, None],
        "empty": None,
        "anchored": [3, 3, "3", "3"],
        "on": "off",
    }
    assert all(type(x) is float for x in data["floats"])
    assert all(type(x) is int for x in data["integers"])


def test_half_characters_in_the_text_are_refused():
    assert refusal('{"a": "\ud800"}') == "f: the text contains half of a surrogate pair (save the file as UTF-8)"


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "g.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_document(str(path)).data == {"a": 1}
    assert parse_document('\ufeff{"a": 1}', "f").data == {"a": 1}


@pytest.mark.parametrize(
    ("name", "text", "format"),
    [
        ("g.json", '{"a": 1}', "json"),
        ("g.YML", '{"a": 1}', "yaml"),
        ("g.yaml", "a: 1", "yaml"),
        ("g.txt", "a: 1", "yaml"),
        ("g", ' {"a": 1}', "json"),
    ],
)
def test_the_suffix_or_else_the_text_tells_the_format(tmp_path, name, text, format):
    path = tmp_path / name
    path.write_text(text)
    document = read_document(str(path))
    assert (document.data, document.format, document.source) == ({"a": 1}, format, str(path))


@pytest.mark.parametrize(("text", "format"), [('{"a": 1}', "json"), ("a: 1", "yaml")])
def test_standard_input(monkeypatch, text, format):
    class Stdin:
        buffer = io.BytesIO(text.encode())

    monkeypatch.setattr("sys.stdin", Stdin())
    document = read_document("-")
    assert (document.data, document.format, document.source) == ({"a": 1}, format, "<stdin>")


PLACES = {
    "json": '{"a": [1,\n  {"b/c": 2}],\n "d": {"e":\n []}}',
    "yaml": "a:\n - 1\n - b/c: 2\nd:\n  e: []\n",
}


@pytest.mark.parametrize(
    ("format", "places"),
    [
        ("json", {"": (1, 1), "/a": (1, 2), "/a/0": (1, 8), "/a/1": (2, 3), "/a/1/b~1c": (2, 4), "/d/e": (3, 8)}),
        ("yaml", {"": (1, 1), "/a": (1, 1), "/a/0": (2, 4), "/a/1": (3, 4), "/a/1/b~1c": (3, 4), "/d/e": (5, 3)}),
    ],
)
def test_pointers_are_located(format, places):
    document = parse_document(PLACES[format], "f", format)
    assert {pointer: document.locate(pointer) for pointer in places} == places
    assert document.locate("/a/1/b~1c/x/y") == places["/a/1/b~1c"]
    assert document.locate("/nowhere/at/all") == (1, 1)


def test_data_without_text_has_no_lines():
    assert Document("f", {"a": 1}).problem("/a", "is bad").text("f") == "f: /a: is bad"


def test_pointers_in_messages_stay_on_one_line():
    problem = Document("f", {}).problem(join("", "a\nb\x1b[0m", "x" * 1000), "is bad")
    assert problem.pointer == "/a\\nb\\x1b[0m/" + "x" * 151 + "..."


def test_words_of_a_problem_hold_nothing_that_a_terminal_obeys():
    """The damage campaign found a suggested attribute of GraphML with a DEL in the hint."""
    problem = Problem("there is no\nc\x7fst", hint='did you mean "c\x7fst"?')
    assert (problem.message, problem.hint) == ("there is no\\nc\\x7fst", 'did you mean "c\\x7fst"?')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", '"a\\nb"'),
        ("\x9b\u202e", '"\\x9b\\u202e"'),
        ("x" * 100, '"' + "x" * 60 + '..."'),
        ([1, 2], "a list of 2"),
        ({}, "an empty object"),
        (True, "true"),
        (10**99, "an integer of 329 bits"),
        (1.5, "1.5"),
    ],
)
def test_quoted_values(value, text):
    assert quote(value) == text


def test_kinds():
    kinds = [kind_of(Document("f", {"schema": s})) for s in ("remat-plan/1", "remat-graph/9", "remat-x/1", 3, [])]
    assert kinds == ["plan", "graph", None, None, None]
    assert kind_of(Document("f", {})) is None


OBJECTS = st.dictionaries(st.text(st.characters(exclude_categories=("Cs",)), max_size=5), JSON_VALUES, max_size=4)


def identical(a, b):
    """Equal, and of equal types: 1, 1.0 and true are three things."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(identical(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(identical, a, b))
    return type(a) is type(b) and a == b


@given(OBJECTS, st.booleans())
def test_any_object_is_read_back_from_json(data, ascii_only):
    assert identical(parse_document(json.dumps(data, ensure_ascii=ascii_only, indent=1), "f", "json").data, data)


@given(OBJECTS)
def test_any_object_is_read_back_from_yaml(data):
    text = to_yaml(data)
    read = parse_document(text, "f", "yaml").data
    assert identical(read, data), f"{read} instead of {data}"


@given(OBJECTS, st.sampled_from(["json", "yaml"]))
def test_every_place_can_be_located(data, format):
    document = parse_document(json.dumps(data, indent=1) if format == "json" else to_yaml(data), "f", format)

    def visit(value, pointer):
        line, column = document.locate(pointer)
        assert pointer in document._places  # itself, and not its parent
        assert 1 <= line <= document.text.count("\n") + 2
        assert column >= 1
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, child in items:
            visit(child, join(pointer, key))

    visit(document.data, "")


@given(st.data(), OBJECTS, st.sampled_from(["json", "yaml", None]))
def test_mangled_text_is_read_or_refused(data, value, format):
    text = data.draw(spoiled_text(to_yaml(value) if format == "yaml" else json.dumps(value)))
    document, message = outcome(lambda: parse_document(text, "f", format))
    assert len(message.encode("utf-8").splitlines()) <= 1
    if document is not None:
        json.dumps(document.data, ensure_ascii=False, allow_nan=False).encode("utf-8")
        assert document.locate("") is not None


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    path = Path(tmp_path_factory.getbasetemp()) / "bytes"
    path.write_bytes(data)
    document, message = outcome(lambda: read_document(str(path)))
    assert (str(path) in message) == (document is None)


def test_aliases_do_not_make_a_document_much_larger_than_its_text():
    """A scalar with aliases grows when it is written out: 106 kB became 200 MB."""
    few = "long: &a " + "x" * 1000 + "\nlist: [" + ", ".join(["*a"] * 10) + "]\n"
    assert parse_document(few, "f", "yaml").data["list"] == ["x" * 1000] * 10
    sizes = "a: &size 67108864\nb: [" + "*size, " * 5000 + "]\n"
    assert len(parse_document(sizes, "f", "yaml").data["b"]) == 5000
    many = "long: &a " + "x" * 1000 + "\nlist:\n" + "- *a\n" * 1000
    with pytest.raises(InputError) as caught:
        parse_document(many, "f", "yaml")
    [problem] = caught.value.problems
    length = len(many)
    assert problem.message == (
        f"up to here, aliases stand for more than {10 * length:,} characters, 10 times as many as the text has"
    )
    first_too_many = 10 * length // 1000
    assert (problem.pointer, problem.line) == (f"/list/{first_too_many}", first_too_many + 3)


@pytest.mark.parametrize("format", ["json", "yaml"])
def test_a_document_of_too_many_objects_is_refused_before_it_is_read(format, monkeypatch):
    monkeypatch.setenv("REMAT_MAX_INPUT", "100kB")
    fine = '{"schema": "x", "nodes": [' + ", ".join(["{}"] * 998) + "]}"
    assert len(parse_document(fine, "f", format).data["nodes"]) == 998
    many = fine.replace("[{}", "[{}, {}")
    monkeypatch.setattr("remat_cli.graph.document._load", None)
    with pytest.raises(InputError, match=r"f: has 1,001 objects and lists; 1,000 are the most .*REMAT_MAX_INPUT"):
        parse_document(many, "f", format)


def test_places_are_looked_up_no_further_than_needed():
    data = {"nodes": [{"id": "a"}, *({"id": str(i), "inputs": []} for i in range(5000))], "z": 1}
    document = parse_document(json.dumps(data, indent=0), "f", "json")
    for pointer, line in (("/nodes/0/id", 4), ("/nodes/0/cost", 3), ("/nodes/1/inputs/5", 8), ("/nodes/0/x/y", 3)):
        assert document.locate(pointer)[0] == line
    assert len(document._places) < 20
    assert document.locate("/z")[0] == json.dumps(data, indent=0).count("\n")
    assert document.locate("/nodes/0/cost")[0] == 3


def test_the_search_for_problems_ends():
    nodes = [{"id": str(i)} for i in range(6000)]
    with pytest.raises(InputError) as caught:
        validate(parse_document(json.dumps({"schema": "remat-graph/1", "nodes": nodes}), "f", "json"), "graph")
    assert "f: and at least " in str(caught.value)
