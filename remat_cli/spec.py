"""``name{key=value,...}`` to and from frozen dataclasses: the notation for strategies, solvers and architectures.

The fields of the dataclass are the options. A field whose metadata says ``{"unit": "bytes"}`` takes sizes such as
``2GB``; one that lists ``{"choices": (...)}`` takes only those words.
"""

import math
import re
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from types import NoneType
from typing import Any, TypeVar

from remat_cli.errors import UsageError, wrong_type
from remat_cli.registry import suggestion
from remat_cli.units import parse_size

T = TypeVar("T")
_SPEC = re.compile(r"\s*([A-Za-z0-9][\w./+-]*)\s*(?:\{(.*)\})?\s*", re.DOTALL)
_BOOLEANS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def split_spec(text: str) -> tuple[str, dict[str, str]]:
    """Name and options of ``text``, values still as text: ``chen{b=2GB}`` -> ``("chen", {"b": "2GB"})``.

    Raises:
        UsageError: If it is no text of that form, or an option comes twice.
    """
    if not isinstance(text, str):
        raise wrong_type("a name with options", text, 'text such as "chen-greedy{b=2GB}"')
    match = _SPEC.fullmatch(text)
    if match is None:
        raise UsageError(f'"{text}" is not a name with options', hint="write it like name{key=value,other=value}")
    options: dict[str, str] = {}
    for item in (match[2] or "").split(","):
        if not item.strip():
            continue
        key, separator, value = (part.strip() for part in item.partition("="))
        if not separator or not key or not value:
            raise UsageError(f'"{item.strip()}" in "{text}" is not an option', hint="write options like key=value")
        if key in options:
            raise UsageError(f'option "{key}" comes twice in "{text}"')
        options[key] = value
    return match[1], options


def split_specs(text: str) -> list[str]:
    """The specs in a list: ``"auto,chen-greedy{b=2GB,k=3}"`` -> ``["auto", "chen-greedy{b=2GB,k=3}"]``.

    Raises:
        UsageError: If an entry of the list is empty.
    """
    parts = [part.strip() for part in re.split(r",(?![^{]*\})", text)]
    if not all(parts):
        raise UsageError(f'"{text}" has an empty entry', hint="write names with commas between them")
    return parts


def build(cls: type[T], name: str, options: Mapping[str, str]) -> T:
    """An instance of the dataclass ``cls`` from options in text form.

    Raises:
        UsageError: If an option is unknown, missing without a default, or has a bad value, or if ``cls`` refuses the
            combination.
    """
    declared = {f.name: f for f in fields(cls) if f.init}  # type: ignore[arg-type]  # every registered class is a dataclass
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, text in options.items():
        if key not in declared:
            listing = ", ".join(declared) or "none"
            raise UsageError(
                f'{name} has no option "{key}"',
                hint=suggestion(key, list(declared)) or f"options of {name}: {listing}",
            )
        values[key] = _convert(text, hints[key], declared[key], f"{name}{{{key}}}")
    for key, option in declared.items():
        if key not in values and option.default is MISSING and option.default_factory is MISSING:
            raise UsageError(f"{name}{{{key}}} is missing", hint=f"write {name}{{{key}=...}}")
    return cls(**values)


def format_spec(name: str, instance: object) -> str:
    """The shortest text form of ``instance``: ``name{...}`` with the options that differ from their defaults."""
    parts = [
        f"{f.name}={_text(getattr(instance, f.name))}"
        for f in fields(instance)  # type: ignore[arg-type]  # every registered class is a dataclass
        if f.init and getattr(instance, f.name) != f.default
    ]
    return f"{name}{{{','.join(parts)}}}" if parts else name


def options_of(instance: object) -> dict[str, Any]:
    """All options of ``instance`` with their values, for plans and listings."""
    return {
        f.name: getattr(instance, f.name)
        for f in fields(instance)  # type: ignore[arg-type]  # every registered class is a dataclass
        if f.init
    }


def describe_options(cls: type[object]) -> list[tuple[str, str, str]]:
    """``(name, default, help)`` of every option of the dataclass ``cls``."""
    return [
        (f.name, "" if f.default is MISSING else _text(f.default), str(f.metadata.get("help", "")))
        for f in fields(cls)  # type: ignore[arg-type]  # every registered class is a dataclass
        if f.init
    ]


def _text(value: object) -> str:
    if isinstance(value, float) and float(short := f"{value:g}") == value:
        return short  # 0 instead of 0.0
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _convert(text: str, kind: Any, option: Field[Any], where: str) -> Any:
    """``text`` converted to ``kind`` (int, float, bool, str, or one of them ``| None``)."""
    kinds = typing.get_args(kind) or (kind,)
    if NoneType in kinds and text.lower() in {"none", "auto"}:
        return None
    base = next(k for k in kinds if k is not NoneType)
    choices = option.metadata.get("choices")
    if choices is not None and text not in choices:
        raise UsageError(f'{where}: "{text}" is not a choice', hint=f"choose one of {', '.join(map(str, choices))}")
    if option.metadata.get("unit") == "bytes":
        return parse_size(text)
    try:
        if base is bool:
            return _BOOLEANS[text.lower()]
        value = base(text)
        if base is float and not math.isfinite(value):
            raise ValueError
        return value
    except (KeyError, ValueError):
        words = {bool: "true or false", int: "a whole number", float: "a finite number"}.get(base, base.__name__)
        raise UsageError(f'{where}: "{text}" is not {words}') from None
