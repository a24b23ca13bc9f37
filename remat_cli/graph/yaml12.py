"""YAML text to plain data and back, as YAML 1.2 reads it, and as strictly as JSON.

PyYAML's own loaders follow YAML 1.1: to them ``1.2e9`` is a string, ``1:0`` the number 60 and ``on`` true. So only
its parser is used (libyaml if PyYAML was built with it), never its resolvers and constructors. This module turns the
stream of events into dicts, lists and scalars by the core schema of YAML 1.2. Tags, merge keys and aliases of
collections are refused, and aliases of scalars are limited, so no document can construct an object, or become much
larger than its text when it is read or written again.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import yaml

from remat_cli.errors import InputError, Problem
from remat_cli.graph.quoting import MAX_DEPTH, SURROGATE, escape_token, quote, show_pointer
from remat_cli.printable import escaped_json

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./%-]*", re.ASCII)
_VALUES_OF_SOME_VERSION = re.compile(r"null|true|false|yes|no|on|off|y|n", re.IGNORECASE)
_NEVER_FOLD = 2**30
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+", re.ASCII)
_BASED = re.compile(r"0o([0-7]+)|0x([0-9a-fA-F]+)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NUMBER_STARTS = frozenset("0123456789+-.")
_LONGEST_BASED = 3000  # characters; a longer number has too many decimal digits for Python
_COLLECTION = object()
_GROWTH = 10
"""Aliases may stand for so many times as many characters as the whole text has. A scalar of ten characters with aliases
of one grows as much; a document that grows more is made to fill memory."""


@dataclass(slots=True)
class _Frame:
    """An open mapping or sequence: its data, its pointer, and the key whose value comes next."""

    data: dict[str, Any] | list[Any]
    pointer: str
    key: str | None = None
    lines: dict[str, int] = field(default_factory=dict)


def load_yaml(text: str, source: str, places: dict[str, tuple[int, int]] | None = None) -> Any:
    """The data of a YAML text that holds one document.

    ``places`` gets line and column (from 1) of every key and item, by JSON pointer.

    Raises:
        InputError: If the text is not YAML, or has something that JSON cannot express.
    """
    bad = _UNPRINTABLE.search(text)
    if bad is not None:
        line = text.count("\n", 0, bad.start()) + 1
        raise InputError(source, [Problem(f"the character U+{ord(bad[0]):04X} is not allowed in YAML", line=line)])
    builder = _Builder(source, places, _GROWTH * len(text))
    handlers = {
        yaml.DocumentStartEvent: builder.start_document,
        yaml.MappingStartEvent: builder.start_mapping,
        yaml.SequenceStartEvent: builder.start_sequence,
        yaml.MappingEndEvent: builder.end,
        yaml.SequenceEndEvent: builder.end,
        yaml.ScalarEvent: builder.scalar,
        yaml.AliasEvent: builder.alias,
    }
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        what = getattr(error, "problem", None) or getattr(error, "context", None) or str(error)
        problem = Problem(f"not valid YAML: {what}")
        if mark is not None:
            problem = replace(problem, line=mark.line + 1, column=mark.column + 1)
            if text[mark.index : mark.index + 1] == "\t":
                problem = replace(
                    problem, message="not valid YAML: a tab in the indentation", hint="indent with spaces"
                )
        raise InputError(source, [problem]) from None
    except (ValueError, OverflowError, IndexError) as error:
        # PyYAML's Python scanner raises these for "\UFFFFFFFF", or for a "%" at the very end of the text.
        raise InputError(source, [Problem(f"not valid YAML: {error}")]) from None
    if not builder.documents:
        raise InputError(source, [Problem("the file is empty", hint="a document starts with its schema field")])
    return builder.root


class _Builder:
    """Turns YAML events into data."""

    def __init__(self, source: str, places: dict[str, tuple[int, int]] | None, most_growth: int) -> None:
        self.root: Any = None
        self.documents = 0
        self._source = source
        self._places = places
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int]] = {}  # value, and characters
        self._most_growth = self._growth_left = most_growth

    def start_document(self, event: Any) -> None:
        self.documents += 1
        if self.documents > 1:
            self._refuse(event, "a second document starts here", "put one document into one file")

    def start_mapping(self, event: Any) -> None:
        self._start(event, {})

    def start_sequence(self, event: Any) -> None:
        self._start(event, [])

    def end(self, event: Any) -> None:
        del event
        self._stack.pop()

    def scalar(self, event: Any) -> None:
        if event.tag is not None:
            self._refuse(event, f"the tag {quote(event.tag)} is not allowed", "leave the tag out")
        text = event.value
        if not text.isascii() and SURROGATE.search(text):
            self._refuse(event, "half of a surrogate pair is not a character", "write the whole character")
        value = self._resolve(event, text) if event.implicit[0] else text
        if event.anchor is not None:
            self._anchors[event.anchor] = value, len(text)
        if self._expects_key():
            self._key(event, value)
        else:
            self._place(event, value)

    def alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            self._refuse(event, f"there is no anchor {quote(event.anchor)} before this alias")
        value, length = self._anchors[event.anchor]
        if value is _COLLECTION or self._expects_key():
            what = "a list or mapping" if value is _COLLECTION else "a key"
            self._refuse(event, f"an alias for {what} is not allowed", "write it out; aliases stand for scalars only")
        self._growth_left -= length
        if self._growth_left < 0:
            message = f"up to here, aliases stand for more than {self._most_growth:,} characters"
            self._refuse(event, f"{message}, {_GROWTH} times as many as the text has", "write the values out")
        self._place(event, value)

    def _start(self, event: Any, data: dict[str, Any] | list[Any]) -> None:
        if event.tag is not None:
            self._refuse(event, f"the tag {quote(event.tag)} is not allowed", "leave the tag out")
        if self._expects_key():
            self._refuse(event, "a list or mapping cannot be a key", "write the key as text")
        if len(self._stack) >= MAX_DEPTH:
            self._refuse(event, f"nested deeper than {MAX_DEPTH} levels")
        if event.anchor is not None:
            self._anchors[event.anchor] = _COLLECTION, 0
        pointer = self._pointer()
        self._place(event, data)
        self._stack.append(_Frame(data, pointer))

    def _expects_key(self) -> bool:
        return bool(self._stack) and self._stack[-1].key is None and isinstance(self._stack[-1].data, dict)

    def _key(self, event: Any, key: Any) -> None:
        frame = self._stack[-1]
        if event.implicit[0] and key == "<<":
            self._refuse(event, "merge keys (<<) are not allowed", "write the fields out")
        if not isinstance(key, str):
            self._refuse(event, f"the key {event.value or 'null'} is not a string", "write the key in quotes")
        line = event.start_mark.line + 1
        if key in frame.lines:
            frame.key = key
            first = frame.lines[key]
            self._refuse(event, f"the key {quote(key)} is repeated, first on line {first}", "remove one of the two")
        frame.lines[key] = line
        frame.key = key
        if self._places is not None:
            self._places[self._pointer()] = (line, event.start_mark.column + 1)

    def _place(self, event: Any, value: Any) -> None:
        if not self._stack:
            self.root = value
            if self._places is not None:
                self._places[""] = (event.start_mark.line + 1, event.start_mark.column + 1)
            return
        frame = self._stack[-1]
        if isinstance(frame.data, list):
            if self._places is not None:
                self._places[self._pointer()] = (event.start_mark.line + 1, event.start_mark.column + 1)
            frame.data.append(value)
        elif frame.key is not None:
            frame.data[frame.key] = value
            frame.key = None

    def _pointer(self) -> str:
        """JSON pointer of the next value."""
        if not self._stack:
            return ""
        frame = self._stack[-1]
        if isinstance(frame.data, list):
            return f"{frame.pointer}/{len(frame.data)}"
        return frame.pointer if frame.key is None else f"{frame.pointer}/{escape_token(frame.key)}"

    def _resolve(self, event: Any, text: str) -> Any:
        """The value of a plain scalar by the core schema of YAML 1.2."""
        if text in _WORDS:
            return _WORDS[text]
        if text[0] not in _NUMBER_STARTS:
            return text
        try:
            if _INTEGER.fullmatch(text):
                return int(text)
            based = _BASED.fullmatch(text)
            if based is not None and len(text) < _LONGEST_BASED:
                return int(based[1], 8) if based[1] else int(based[2], 16)
        except ValueError:
            based = _INTEGER.fullmatch(text)
        if based is not None:
            self._refuse(event, f"a number of {len(text)} digits is too long", "write it as 1.5e12")
        if _FLOAT.fullmatch(text):
            number = float(text)
            if math.isfinite(number):
                return number
            self._refuse(event, f"{quote(text)[1:-1]} is too large for a number", "write a finite number")
        if _NOT_FINITE.fullmatch(text):
            self._refuse(event, f"{text} is not a finite number", "write a finite number")
        return text

    def _refuse(self, event: Any, message: str, hint: str = "") -> NoReturn:
        mark = event.start_mark
        problem = Problem(
            message, pointer=show_pointer(self._pointer()), line=mark.line + 1, column=mark.column + 1, hint=hint
        )
        raise InputError(self._source, [problem])


class _Block(dict[str, Any]):
    """A mapping with a line for each field."""


class _Lines(list[Any]):
    """A list with a line for each entry."""


class _Writer(_Dumper):  # type: ignore[misc]  # the base is chosen when this is imported
    """Writes collections on one line, except ``_Block`` and ``_Lines``, and never an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(writer: Any, text: str) -> Any:
    bare = _PLAIN.fullmatch(text) is not None and _VALUES_OF_SOME_VERSION.fullmatch(text) is None
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=None if bare else '"')


_Writer.add_representer(str, _text)
_Writer.add_representer(
    _Block, lambda writer, data: writer.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=False)
)
_Writer.add_representer(
    _Lines, lambda writer, data: writer.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=False)
)


def yaml_text(document: Mapping[str, Any]) -> str:
    """``document`` as YAML that YAML 1.2 reads as the same data; the same data gives the same text.

    PyYAML writes the text, but decides by YAML 1.1 which text needs no quotes: it would leave the string ``1.2e9``, a
    number in YAML 1.2, bare. So only plain words of every version stay without quotes. Fields keep their order, and
    long documents stay readable, with one line per field, node and statement, as in remat's JSON.
    """
    text = yaml.dump(
        _laid_out(document),
        Dumper=_Writer,
        default_flow_style=True,
        allow_unicode=True,
        sort_keys=False,
        width=_NEVER_FOLD,
    )
    return escaped_json(str(text))  # what it escapes is nowhere but in double quotes


def _laid_out(document: Mapping[str, Any]) -> _Block:
    """The same data with marks for its layout: nodes and statements line by line, also of a graph inside a plan."""
    fields = _Block()
    for key, value in document.items():
        if isinstance(value, Mapping) and "schema" in value:
            fields[key] = _laid_out(value)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            fields[key] = _Lines(value)
        else:
            fields[key] = value
    return fields
