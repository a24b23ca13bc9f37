"""JSON text to plain data, more strictly than the standard library, and the places of all values in the text.

The fast path is the standard library's C scanner with hooks that only check. If something is wrong, a second pass goes
through the text token by token and finds the place.
"""

import json
import math
import re
import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import InputError, Problem
from remat_cli.graph.quoting import MAX_DEPTH, SURROGATE, escape_token, quote, show_pointer

_TOKEN = re.compile(
    r""""[^"\\]*(?:\\.[^"\\]*)*" | [\[\]{}:,] | NaN | -?Infinity | true | false | null
    | -?[0-9]+ (?:\.[0-9]+)? (?:[eE][-+]?[0-9]+)? | \S""",
    re.DOTALL | re.VERBOSE | re.ASCII,
)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SYNTAX = {
    "Expecting value": "expected a value",
    "Expecting property name enclosed in double quotes": "expected a field name in double quotes",
    "Expecting ',' delimiter": "expected a comma",
    "Expecting ':' delimiter": "expected a colon",
    "Extra data": "the document ended before this",
    "Unterminated string starting at": "this string has no end",
    "Invalid control character at": "this character must be written as an escape",
}
_LAST_COMMA = re.compile(r",(?=\s*([}\]]))")


class _RefusedError(Exception):
    """Raised by a hook for text that JSON or Python allows but documents do not; the second pass finds the place."""


def load_json(text: str, source: str) -> Any:
    """The data of a JSON text.

    Raises:
        InputError: If the text is not JSON, has duplicate keys, numbers that are not finite or too long, or halves of
            surrogate pairs, or is nested too deeply.
    """
    if not text.strip():
        raise InputError(source, [Problem("the file is empty", hint="a document starts with its schema field")])
    try:
        data = _DECODER.decode(text)
        if _too_deep(data) or (
            _SURROGATE_ESCAPE.search(text) and SURROGATE.search(json.dumps(data, ensure_ascii=False))
        ):
            raise _RefusedError
    except json.JSONDecodeError as error:
        raise InputError(source, [_syntax_problem(text, error)]) from None
    except (_RefusedError, RecursionError, ValueError):  # ValueError: an integer of too many digits
        raise InputError(source, [_first_offence(text)]) from None
    return data


def json_places(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """JSON pointer, line and column (from 1) of every field name, array item and the document, in the text's order."""
    starts = _line_starts(text)
    return ((pointer, _place(starts, offset)) for pointer, offset, _ in _walk(text))


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise _RefusedError
    return data


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _RefusedError
    return number


def _constant(text: str) -> Any:
    raise _RefusedError(text)


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=_float, parse_constant=_constant)


def _too_deep(data: Any) -> bool:
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for outer in level
            for child in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


def _syntax_problem(text: str, error: json.JSONDecodeError) -> Problem:
    what = _SYNTAX.get(error.msg, error.msg[:1].lower() + error.msg[1:])
    if comma := _last_comma(text, error.pos):
        bracket = {"}": "brace", "]": "bracket"}[comma[1]]
        line, column = _place(_line_starts(text), comma.start())
        return Problem(f"not valid JSON: a comma before the closing {bracket}", line=line, column=column)
    if error.pos >= len(text.rstrip()):
        return Problem(
            f"not valid JSON: the text ends too early, {what}",
            line=error.lineno,
            column=error.colno,
            hint="is the file cut off?",
        )
    excerpt = text[error.pos : error.pos + 20].split("\n")[0].rstrip()
    hint = "JSON has no comments; YAML has" if excerpt.startswith(("//", "/*", "#")) else ""
    return Problem(f"not valid JSON: {what}, found {quote(excerpt)}", line=error.lineno, column=error.colno, hint=hint)


def _last_comma(text: str, position: int) -> re.Match[str] | None:
    """The comma right before a closing bracket. Python 3.13 reports the comma, older versions the bracket."""
    start = len(text[:position].rstrip()) - 1
    return _LAST_COMMA.match(text, position) or (_LAST_COMMA.match(text, start) if start >= 0 else None)


@dataclass(slots=True)
class _Frame:
    """An open object or array: its pointer, the keys seen with their offsets (None for an array), the next index."""

    pointer: str
    keys: dict[str, int] | None
    index: int = 0
    key: str | None = None
    key_offset: int = 0


def _walk(text: str) -> Iterator[tuple[str, int, Problem | None]]:
    """Pointer, offset and problem (if any) of every value, in the order of the text.

    The text must be valid JSON up to the first problem. Problems come without a place.
    """
    stack: list[_Frame] = []
    for match in _TOKEN.finditer(text):
        token, offset = match[0], match.start()
        frame = stack[-1] if stack else None
        if token in ":,":
            continue
        if token in "]}":
            stack.pop()
            continue
        if frame is not None and frame.keys is not None and frame.key is None:
            problem = _enter_key(frame, text, token, offset)
            if problem is not None:
                yield f"{frame.pointer}/{escape_token(frame.key or '')}", offset, problem
            continue
        pointer = ""
        if frame is not None and frame.keys is None:
            pointer = f"{frame.pointer}/{frame.index}"
            frame.index += 1
        elif frame is not None:
            pointer, offset, frame.key = f"{frame.pointer}/{escape_token(frame.key or '')}", frame.key_offset, None
        if token in "[{":
            stack.append(_Frame(pointer, {} if token == "{" else None))
            deep = len(stack) > MAX_DEPTH
            yield pointer, offset, Problem(f"nested deeper than {MAX_DEPTH} levels") if deep else None
        else:
            yield pointer, offset, _scalar_problem(token)


def _enter_key(frame: _Frame, text: str, token: str, offset: int) -> Problem | None:
    assert frame.keys is not None
    key: str = json.loads(token) if "\\" in token else token[1:-1]
    frame.key, frame.key_offset = key, offset
    if key in frame.keys:
        line = text.count("\n", 0, frame.keys[key]) + 1
        return Problem(f"the key {quote(key)} is repeated, first on line {line}", hint="remove one of the two")
    frame.keys[key] = offset
    return _scalar_problem(token)


def _scalar_problem(token: str) -> Problem | None:
    if token[0] == '"':
        if "\\u" in token and SURROGATE.search(json.loads(token)):
            return Problem("half of a surrogate pair is not a character", hint="write the whole character")
        return None
    if token in {"NaN", "Infinity", "-Infinity"}:
        return Problem(f"{token} is not a finite number", hint="write a finite number")
    digits = token.lstrip("-")
    if digits.isdigit():
        if 0 < sys.get_int_max_str_digits() < len(digits):
            return Problem(f"a number of {len(digits)} digits is too long", hint="write it as 1.5e12")
        return None
    if digits[0].isdigit() and math.isinf(float(token)):
        return Problem(f"{quote(token)[1:-1]} is too large for a number", hint="write a finite number")
    return None


def _first_offence(text: str) -> Problem:
    for pointer, offset, problem in _walk(text):
        if problem is not None:
            line, column = _place(_line_starts(text), offset)
            return Problem(problem.message, pointer=show_pointer(pointer), line=line, column=column, hint=problem.hint)
    raise AssertionError("the fast reader refused a text in which the second pass finds no problem")


def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("\n", text))]


def _place(starts: list[int], offset: int) -> tuple[int, int]:
    line = bisect_right(starts, offset)
    return line, offset - starts[line - 1] + 1
