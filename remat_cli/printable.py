"""Text from documents, file names and other programs, made safe for terminals and logs.

A terminal obeys control characters (C0 and C1, with which escape sequences begin), and reorders text at bidirectional
controls. A line break makes one message look like two. So such characters are shown as escapes: errors and cells of
reports escape them in every single text, and everything that goes to a terminal is escaped once more as a whole.
"""

import re

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that ids must not contain: control characters and line separators."""

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that move the cursor or reorder text, and that JSON and YAML allow unescaped within strings."""


def printable(text: str, *, ascii_only: bool = False) -> str:
    """``text`` on one line, with escapes for every character that would break the line or that a terminal obeys."""
    if text.isprintable() and (not ascii_only or text.isascii()):
        return text
    return "".join(
        c if c.isprintable() and (not ascii_only or c.isascii()) else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def printable_lines(text: str, *, colours: bool = False) -> str:
    """The same for text of several lines: line ends and tabs remain."""
    if text.translate(_LAYOUT).isprintable():
        return text
    if colours:
        return "".join(part if k % 2 else printable_lines(part) for k, part in enumerate(_COLOUR.split(text)))
    return "".join(c if c in "\n\t" else printable(c) for c in text)


_LAYOUT = str.maketrans("\n\t", "  ")


def escaped_json(text: str) -> str:
    r"""JSON text, or YAML text whose strings are in double quotes, with ``\uXXXX`` for what a terminal would obey.

    Its meaning stays the same. Control characters below U+0020 are escaped there already.
    """
    if text.isascii() and "\x7f" not in text:
        return text
    return _IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
