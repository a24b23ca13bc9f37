"""Quotes values and JSON pointers for messages, and holds the limits that the readers of JSON and YAML share."""

import json
import re
from typing import Any

from remat_cli.printable import printable

MAX_DEPTH = 100
"""Documents nested deeper are refused: no graph needs it, and later code may recurse over the data."""

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character outside the basic plane. Python strings can contain it, UTF-8 files cannot."""

_LONGEST = 60
_LONGEST_POINTER = 160


def escape_token(key: str) -> str:
    """A key as a token of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1") if "~" in key or "/" in key else key


def show_pointer(pointer: str) -> str:
    """A JSON pointer for a message: on one line, and cut off if it is long."""
    return printable(pointer if len(pointer) <= _LONGEST_POINTER else pointer[:_LONGEST_POINTER] + "...")


def quote(value: Any) -> str:
    """A value for a message: as in JSON, on one line, at most some 60 characters; collections by their kind."""
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, dict):
        return f"an object of {len(value)} fields" if value else "an empty object"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_LONGEST:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str) and len(value) > _LONGEST:
        return printable(json.dumps(value[:_LONGEST], ensure_ascii=False)[:-1]) + '..."'
    return printable(json.dumps(value, ensure_ascii=False))
