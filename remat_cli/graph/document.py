"""Documents of every kind: reading of JSON and YAML, schemas, and places in files for messages.

Here a document is only text, plain data and a schema; other modules interpret it as a graph or a plan. Places are
looked up only for a message, because that means reading the text again, token by token.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

from remat_cli.errors import MOST_PROBLEMS, InputError, Problem
from remat_cli.files import LIMIT, most_input, read_text
from remat_cli.graph.jsontext import json_places, load_json
from remat_cli.graph.quoting import SURROGATE, escape_token, quote, show_pointer
from remat_cli.graph.schema_errors import complaints

Format = Literal["json", "yaml"]
KINDS = (
    "batch",
    "checks",
    "comparison",
    "comparisons",
    "curve",
    "diff",
    "explanation",
    "fits",
    "graph",
    "graph-summary",
    "pipeline",
    "plan",
    "policy",
    "report",
    "snapshot",
    "worth",
)
_VERSIONS = {"plan": 2}
"""The newest version of each kind, if it is not 1; all versions are read."""
_BYTES_EACH = 100
"""Bytes of the limit on inputs for every object or list: a small one takes about as much memory."""
_SCHEMA_FIELD = re.compile(r"remat-([a-z-]+)/([0-9]{1,9})", re.ASCII)
_SUFFIXES: dict[str, Format] = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}


@dataclass(frozen=True, slots=True)
class Document:
    """A document as data, and its text.

    Attributes:
        source: Name for messages: a file name, or ``<stdin>``.
        data: The top-level mapping.
        text: The text; None for data that did not come from a file, which has no lines.
        format: The format of the text.
    """

    source: str
    data: dict[str, Any]
    text: str | None = None
    format: Format = "json"
    _places: dict[str, tuple[int, int]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _walk: list[Iterator[tuple[str, tuple[int, int]]]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def locate(self, pointer: str) -> tuple[int, int] | None:
        """Line and column, from 1, of the place that a JSON pointer names.

        The place of a member of an object is its key. The place of a missing member is its innermost existing parent.
        The text is read again, but no further than to that place, and all places on the way are kept.
        """
        if self.text is None:
            return None
        if not self._walk:
            self._walk.append(_find_places(self.text, self.format, self.source))
        pointer = self._existing(pointer)
        while pointer not in self._places:
            found, self._places[found] = next(self._walk[0])
        return self._places[pointer]

    def _existing(self, pointer: str) -> str:
        """``pointer``, or that of its innermost parent that the document has."""
        inner: Any = self.data
        prefix = ""
        for token in pointer.split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            if isinstance(inner, dict) and key in inner:
                inner = inner[key]
            elif isinstance(inner, list) and token.isascii() and token.isdigit() and int(token) < len(inner):
                inner = inner[int(token)]
            else:
                break
            prefix += f"/{token}"
        return prefix

    def problem(self, pointer: str, message: str, hint: str = "") -> Problem:
        """A problem at the place that ``pointer`` names, with line and column."""
        line, column = self.locate(pointer) or (None, None)
        return Problem(message, pointer=show_pointer(pointer), line=line, column=column, hint=hint)

    def error(self, pointer: str, message: str, hint: str = "") -> InputError:
        """An error with one problem."""
        return InputError(self.source, [self.problem(pointer, message, hint)])


def read_document(path: str) -> Document:
    """The document in a file, or on standard input for ``-``.

    The suffix determines the format (``.json``, ``.yaml``, ``.yml``). For standard input and other suffixes, a text
    that starts with a brace or a bracket is JSON, and any other is YAML.

    Raises:
        InputError: If it cannot be read, or is not well-formed.
    """
    text, source = read_text(path)
    return parse_document(text, source, format_of(source))


def format_of(source: str) -> Format | None:
    """The format of a file name's suffix; None for an unknown suffix, and for ``<stdin>``."""
    return _SUFFIXES.get(Path(source).suffix.lower())


def parse_document(text: str, source: str, format: Format | None = None) -> Document:
    """The document in ``text``; ``source`` names it in messages.

    Raises:
        InputError: If the text is not JSON or YAML, has duplicate keys or numbers that are not finite, has anything
            that the other format or a file could not express, or is not a mapping.
    """
    text = text.removeprefix("\ufeff")
    if format is None:
        format = "json" if text.lstrip()[:1] in {"{", "["} else "yaml"
    if not text.isascii() and SURROGATE.search(text):
        raise InputError(source, [Problem("the text contains half of a surrogate pair", hint="save the file as UTF-8")])
    _refuse_many(text, source)
    data = _load(text, source, format)
    if not isinstance(data, dict):
        raise InputError(
            source,
            [
                Problem(
                    f"the document is {quote(data)}, expected a mapping with a schema field",
                    line=1,
                    hint="a graph starts with schema: remat-graph/1",
                )
            ],
        )
    return Document(source, data, text, format)


def _refuse_many(text: str, source: str) -> None:
    """Refuse, before it is read, a text with so many objects and lists that they would not fit into memory.

    Block style in YAML needs no brackets, but then every entry has at least a line or a colon.
    """
    most = most_input() // _BYTES_EACH
    if len(text) <= most:
        return
    count = text.count("{") + text.count("[")
    if count > most:
        message = f"has {count:,} objects and lists; {most:,} are the most that are read"
        raise InputError(source, [Problem(message, hint=f"set {LIMIT} to a larger size, such as 4GB")])


def _load(text: str, source: str, format: Format) -> Any:
    if format == "json":
        return load_json(text, source)
    from remat_cli.graph.yaml12 import load_yaml  # PyYAML takes 20 ms to import, and most documents are JSON

    return load_yaml(text, source)


def _find_places(text: str, format: Format, source: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """JSON pointer, line and column of everything in the text, in its order."""
    if format == "json":
        yield from json_places(text)
        return
    from remat_cli.graph.yaml12 import load_yaml

    places: dict[str, tuple[int, int]] = {}
    load_yaml(text, source, places)
    yield from places.items()


def kind_of(document: Document) -> str | None:
    """The kind in :data:`KINDS` that the ``schema`` field of ``document`` names; None if it names no known kind."""
    match = _SCHEMA_FIELD.fullmatch(str(document.data.get("schema")))
    return match[1] if match is not None and match[1] in KINDS else None


def newest(name: str) -> int:
    """The newest version of documents of a kind in :data:`KINDS`."""
    return _VERSIONS.get(name, 1)


def schema_text(name: str, version: int = 1) -> str:
    """The text of the JSON Schema of a version of a kind in :data:`KINDS`."""
    if name not in KINDS:
        raise ValueError(f"no schema {name}")
    file_name = f"{name}-v{version}.json"
    packaged = files("remat_cli") / "schemas" / file_name
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    # An editable install: the schemas are at the top of the repository.
    return (Path(__file__).parents[2] / "schemas" / file_name).read_text(encoding="utf-8")


@cache
def load_schema(name: str, version: int = 1) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a version of a kind in :data:`KINDS`. It is shared: do not change it."""
    return cast("dict[str, Any]", json.loads(schema_text(name, version)))


def validate(document: Document, name: str, pointer: str = "") -> None:
    """Check ``document``, or the document inside it at the top-level field ``pointer``, against a schema.

    ``name`` is one of :data:`KINDS`; ``pointer`` is empty, or ``/graph`` for the graph in a plan.

    Raises:
        InputError: With all problems, in the order of the document.
    """
    data = document.data[pointer[1:]] if pointer else document.data
    header = _header_problem(document, data, name, pointer)
    if header is not None:
        raise InputError(document.source, [header])
    version = int(data["schema"].rpartition("/")[2])
    if accepts_quickly(name, data, version):
        return
    schema = inner_schema(name, version)
    from jsonschema import Draft202012Validator  # 0.2 s to import, needed only for documents with errors

    violations = complaints(islice(Draft202012Validator(schema).iter_errors(data), MOST_PROBLEMS))
    problems = [document.problem(pointer + where, message, hint) for where, message, hint in violations]
    problems.sort(key=lambda problem: (problem.line or 0, problem.column or 0))
    if not problems:
        raise AssertionError(f"the two validators disagree about {document.source}")
    raise InputError(document.source, problems)


def inner_schema(name: str, version: int = 1) -> dict[str, Any]:
    """The schema of a version of ``name`` without references to other files, whose contents are checked separately."""
    schema = load_schema(name, version)
    properties = {
        key: {"type": "object", "description": value["description"]}
        if str(value.get("$ref", "#")).endswith(".json")
        else value
        for key, value in schema["properties"].items()
    }
    return {key: value for key, value in schema.items() if key != "$id"} | {"properties": properties}


def accepts_quickly(name: str, data: Any, version: int = 1) -> bool:
    """Whether fastjsonschema accepts ``data`` under the same schema. Its errors are not used, only yes or no."""
    from fastjsonschema import JsonSchemaValueException

    try:
        _compiled(name, version)(data)
    except JsonSchemaValueException:
        return False
    return True


@cache
def _compiled(name: str, version: int) -> Any:
    import fastjsonschema

    # It knows no draft after 7; the schemas use only keywords that mean the same in both drafts.
    whole = inner_schema(name, version)
    schema = _quick_form(whole, whole.get("$defs", {})) | {"$schema": "http://json-schema.org/draft-07/schema#"}
    return fastjsonschema.compile(schema, use_default=False)


def _quick_form(schema: Any, shared: dict[str, Any]) -> Any:
    """The same schema in the form for which fastjsonschema writes its fastest code, four times as fast on a graph.

    References become copies of what they name. ``not`` a pattern becomes a pattern, and ``oneOf`` two required fields a
    condition, because in both an exception would be raised and caught for every good node.
    """
    if isinstance(schema, list):
        return [_quick_form(item, shared) for item in schema]
    if not isinstance(schema, dict):
        return schema
    named = shared[schema["$ref"].removeprefix("#/$defs/")] if "$ref" in schema else {}
    schema = {
        key: _quick_form(value, shared) for key, value in (named | schema).items() if key not in {"$ref", "$defs"}
    }
    match schema:
        case {"type": "string", "not": {"type": "string", "pattern": refused}}:
            del schema["not"]
            schema["pattern"] = f"^(?![\\s\\S]*(?:{refused}))"
        case {"oneOf": [{"required": [first]}, {"required": [second]}]}:
            del schema["oneOf"]
            # A node without the field that is asked for costs an exception. Most nodes have the second field.
            schema["if"] = {"required": [second]}
            schema["then"] = {"properties": {first: False}}
            schema["else"] = {"required": [first]}
    return schema


def _header_problem(document: Document, data: Any, name: str, pointer: str) -> Problem | None:
    """The problem of the ``schema`` field, if any. Without a correct field, nothing else can be checked."""
    versions = [f"remat-{name}/{version}" for version in range(1, newest(name) + 1)]
    expected = versions[0]
    place = pointer + "/schema"
    if not isinstance(data, dict):
        return document.problem(pointer, f"is {quote(data)}, expected a {expected} document")
    if "schema" not in data:
        written = f'"schema": "{expected}"' if document.format == "json" else f"schema: {expected}"
        return document.problem(pointer, "no field schema", f"add {written}")
    value = data["schema"]
    if isinstance(value, str) and value in versions:
        return None
    match = _SCHEMA_FIELD.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[1] not in KINDS:
        return document.problem(place, f"is {quote(value)}, which is not a schema of remat", f'expected "{expected}"')
    if match[1] != name:
        hint = f"give a {name}" if pointer == "" else f"put the {name} here"
        return document.problem(place, f"this is a {match[1]}, expected a {name}", hint)
    if int(match[2]) > newest(name):
        return document.problem(
            place, f"{quote(value)} was made by a newer remat", f"this one reads {' and '.join(versions)}: upgrade"
        )
    return document.problem(place, f"is {quote(value)}, a version that does not exist", f'expected "{expected}"')


def join(pointer: str, *tokens: str | int) -> str:
    """A JSON pointer with more tokens: ``join("/nodes", 3, "id")`` is ``/nodes/3/id``."""
    return pointer + "".join(f"/{escape_token(str(token))}" for token in tokens)
