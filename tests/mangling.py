"""Ways to spoil documents, for tests that nothing but a clean error comes of it."""

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import yaml
from families import JSON_VALUES
from hypothesis import strategies as st

from remat_cli.errors import InputError, RematError


def _quoting(base: type[yaml.SafeDumper] | type[yaml.CSafeDumper]) -> Any:
    """A dumper that writes all text in double quotes: what PyYAML takes for a string may be a number in YAML 1.2."""
    dumper = type("_QuotingDumper", (base,), {"ignore_aliases": lambda self, data: True})
    dumper.add_representer(str, lambda self, text: self.represent_scalar("tag:yaml.org,2002:str", text, style='"'))
    return dumper


_FAST, _ANY = _quoting(yaml.CSafeDumper), _quoting(yaml.SafeDumper)


def to_yaml(data: Any) -> str:
    try:
        return yaml.dump(data, Dumper=_FAST, allow_unicode=True, sort_keys=False, width=10**6)
    except UnicodeEncodeError:  # libyaml writes no lone surrogates
        return yaml.dump(data, Dumper=_ANY, allow_unicode=True, sort_keys=False, width=10**6)


def _places(data: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value below ``data``."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path for key, value in items for path in [(*prefix, key), *_places(value, (*prefix, key))]]


@st.composite
def spoiled(draw: st.DrawFn, data: Any) -> Any:
    """``data`` with one to three values replaced, removed, renamed or moved."""
    data = copy.deepcopy(data)
    for _ in range(draw(st.integers(1, 3))):
        places = _places(data)
        if not places:
            break
        *path, last = draw(st.sampled_from(places))
        holder = data
        for key in path:
            holder = holder[key]
        what = draw(st.sampled_from(["replace", "replace", "number", "text", "remove", "add", "copy"]))
        if what == "replace":
            holder[last] = draw(JSON_VALUES)
        elif what == "number":
            holder[last] = draw(
                st.one_of(st.integers(-3, 10), st.sampled_from([2**63, 10**400, 1e301, 0.5, 3.0, -0.0]))
            )
        elif what == "text":
            holder[last] = draw(
                st.sampled_from(["16G", "1kB", "-1B", "n0:1", "n0", "n1:0", "", "%1", "a\nb", "x:7", "🙂"])
            )
        elif what == "remove":
            del holder[last]
        elif what == "copy":
            source: Any = data
            for key in draw(st.sampled_from(places)):
                try:
                    source = source[key]
                except (KeyError, IndexError, TypeError):
                    break
            holder[last] = copy.deepcopy(source)
        elif isinstance(holder, dict):
            holder[draw(st.text(st.characters(exclude_categories=("Cs",)), max_size=8))] = draw(JSON_VALUES)
        else:
            holder.insert(last, copy.deepcopy(holder[last]))
    return data


ODD = (
    *(None, True, False, -1, 0, 1, 7, 1.5, -0.0, 2**31, 2**53, 2**63 - 1, 2**63, 10**30, 10**400, 1e301),
    *("", "x", "0", "n0:0", "\x1b[2J", "a\nb", "\u202e", "float32", "9" * 5000, "(" * 300, "aten.add.Tensor"),
    *([], {}, [[]], [None], ["a"], [-1], [2**62, 2**62], {"a": 1}, {"as_int": -3}, {"place": 0}, {"input": 0}),
)
"""Values that are seldom right."""


def mangled(data: Any, source: random.Random, odd: Sequence[Any] = ODD) -> Any:
    """``data`` with one or two values replaced by odd ones or by others of it, taken out, doubled, or renamed."""
    data = copy.deepcopy(data)
    for _ in range(source.choice([1, 1, 2])):
        places = _places(data)
        if not places:
            break
        *path, last = source.choice(places)
        holder = data
        for key in path:
            holder = holder[key]
        what = source.choice(["replace", "replace", "replace", "remove", "copy", "double"])
        if what == "remove":
            del holder[last]
        elif what == "copy":
            other = data
            for key in source.choice(places):
                other = other[key]
            holder[last] = copy.deepcopy(other)
        elif what == "double" and isinstance(holder, list):
            holder.insert(last, copy.deepcopy(holder[last]))
        elif what == "double":
            holder[str(last) + "2"] = holder.pop(last)
        else:
            holder[last] = copy.deepcopy(source.choice(odd))
    return data


def refusal(action: Callable[[], Any]) -> RematError | None:
    """The error for users that ``action`` raises, whose text must be fit for a terminal. Nothing else is caught."""
    try:
        action()
    except RematError as error:
        found = error
    else:
        return None
    assert found.message
    assert all(line.isprintable() for line in f"{found.message}\n{found.hint}".split("\n")), found
    return found


@st.composite
def spoiled_text(draw: st.DrawFn, text: str) -> str:
    """``text`` cut off, or with pieces removed, doubled, exchanged or put in."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        what = draw(st.sampled_from(["cut", "remove", "double", "insert", "insert"]))
        if what == "cut":
            text = text[:start]
        elif what == "remove":
            text = text[:start] + text[end:]
        elif what == "double":
            text = text[:end] + text[start:]
        else:
            piece = draw(
                st.one_of(
                    st.sampled_from(
                        [
                            "{",
                            "}",
                            "[",
                            "]",
                            ",",
                            ":",
                            '"',
                            "\n",
                            "NaN",
                            "1e999",
                            "-",
                            "\\ud800",
                            "&a ",
                            "*a ",
                            "<<: ",
                            "!x ",
                        ]
                    ),
                    st.sampled_from(
                        ["9" * 5000, "[" * 200, "\x00", "\ufeff", "\t", "- ", "? ", "| ", "%", "---\n", "..."]
                    ),
                    st.text(max_size=3),
                )
            )
            text = text[:start] + piece + text[start:]
    return text


def outcome(action: Callable[[], Any]) -> tuple[Any, str]:
    """What ``action`` returns, or None and the text of the InputError that it raises. Nothing else is caught."""
    try:
        return action(), ""
    except InputError as error:
        return None, str(error)


def as_json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)
