"""Errors of a JSON Schema validator in plain words: the value, the expected form, and how to fix it.

The remedy is the description of the violated part of the schema, so it is written only there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from remat_cli.graph.quoting import escape_token, quote
from remat_cli.registry import suggestion

if TYPE_CHECKING:
    from jsonschema import ValidationError

Complaint = tuple[str, str, str]
"""JSON pointer, message, hint."""

_SHOWN_FIELDS = 8
_KINDS = {
    "object": "an object",
    "array": "a list",
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


def complaints(errors: Iterable[ValidationError]) -> list[Complaint]:
    """Pointer, message and hint of all ``errors``, each once."""
    found: dict[Complaint, None] = {}
    for error in errors:
        pointer = "".join(f"/{escape_token(str(token))}" for token in error.absolute_path)
        words = _WORDING.get(str(error.validator))
        if words is None:
            raise AssertionError(f"no wording for the schema keyword {error.validator}")
        found.update(dict.fromkeys(words(error, pointer)))
    return list(found)


def _described(message: Callable[[ValidationError], str]) -> Callable[[ValidationError, str], list[Complaint]]:
    """Wording for a keyword about one value: its message, and the description of what was expected there."""

    def words(error: ValidationError, pointer: str) -> list[Complaint]:
        return [(pointer, message(error), _description(error))]

    return words


def _description(error: ValidationError) -> str:
    schema: Any = error.schema
    return _as_hint(schema)


def _as_hint(schema: dict[str, Any]) -> str:
    text = str(schema.get("description", "")).rstrip(".")
    return text[:1].lower() + text[1:]


def _type(error: ValidationError) -> str:
    wanted = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
    return f"is {_with_kind(error.instance)}, expected {_or([_KINDS[str(name)] for name in wanted])}"


def _with_kind(value: Any) -> str:
    if isinstance(value, (list, dict, bool)) or value is None:
        return quote(value)
    return f"the {'string' if isinstance(value, str) else 'number'} {quote(value)}"


def _required(error: ValidationError, pointer: str) -> list[Complaint]:
    wanted: Any = error.validator_value
    instance: Any = error.instance
    schema: Any = error.schema
    missing = [str(name) for name in wanted if name not in instance]
    return [(pointer, f"no field {name}", f"add it: {_as_hint(schema['properties'][name])}") for name in missing]


def _unknown_fields(error: ValidationError, pointer: str) -> list[Complaint]:
    schema: Any = error.schema
    instance: Any = error.instance
    fields = list(schema["properties"])
    return [
        (
            f"{pointer}/{escape_token(name)}",
            f"unknown field {quote(name)}",
            suggestion(name, fields) or f"known: {', '.join(fields)}",
        )
        for name in instance
        if name not in schema["properties"]
    ]


def _one_of_fields(error: ValidationError, pointer: str) -> list[Complaint]:
    """Wording of a choice between required fields. The schemas use ``oneOf`` only for that."""
    branches: Any = error.validator_value
    instance: Any = error.instance
    if not isinstance(instance, dict):
        return []  # its type is wrong, which is reported separately
    names = [str(branch["required"][0]) for branch in branches]
    present = [name for name in names if name in instance]
    message = f"has both {' and '.join(present)}" if present else f"has neither {' nor '.join(names)}"
    return [(pointer, message, "give exactly one of them")]


def _enum(error: ValidationError, pointer: str) -> list[Complaint]:
    known: Any = error.validator_value
    instance = error.instance
    closest = suggestion(instance, known) if isinstance(instance, str) else ""
    return [(pointer, f"is {quote(instance)}, expected {_or([str(name) for name in known])}", closest)]


def _at_least_characters(count: Any) -> str:
    return "some text" if count == 1 else f"at least {count} characters"


def _or(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _fields(instance: Any) -> str:
    names = [quote(name)[1:-1] for name in instance]
    if not names:
        return "no fields"
    return f"the fields {', '.join(names[:_SHOWN_FIELDS])}{', ...' if len(names) > _SHOWN_FIELDS else ''}"


_WORDING: dict[str, Callable[[ValidationError, str], list[Complaint]]] = {
    "type": _described(_type),
    "const": _described(lambda error: f"is {quote(error.instance)}, expected {quote(error.validator_value)}"),
    "minimum": _described(lambda error: f"is {quote(error.instance)}, expected at least {error.validator_value}"),
    "exclusiveMinimum": _described(
        lambda error: f"is {quote(error.instance)}, expected more than {error.validator_value}"
    ),
    "maximum": _described(lambda error: f"is {quote(error.instance)}, expected at most {error.validator_value}"),
    "minLength": _described(
        lambda error: f"is {quote(error.instance)}, expected {_at_least_characters(error.validator_value)}"
    ),
    "minItems": _described(lambda error: f"is {quote(error.instance)}, expected at least one item"),
    "not": _described(lambda error: f"is {quote(error.instance)}, which is not allowed"),
    "pattern": _described(lambda error: f"is {quote(error.instance)}, which is not of the right form"),
    "anyOf": _described(lambda error: f"has {_fields(error.instance)}: not one of the forms"),
    "required": _required,
    "additionalProperties": _unknown_fields,
    "oneOf": _one_of_fields,
    "enum": _enum,
}
