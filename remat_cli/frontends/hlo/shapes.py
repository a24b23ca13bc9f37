"""Shapes in HLO text: ``f32[8,16]{1,0}``, tuples of them, tokens."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from remat_cli.frontends.imported import LARGEST_DIMENSION, contents

BITS = {
    "pred": 8,  # a byte each in memory
    **dict.fromkeys(("s1", "u1"), 8),
    **dict.fromkeys(("s2", "u2", "s4", "u4", "f4e2m1fn"), 4),
    **dict.fromkeys(("s8", "u8", "f8e3m4", "f8e4m3", "f8e4m3fn", "f8e4m3b11fnuz", "f8e4m3fnuz"), 8),
    **dict.fromkeys(("f8e5m2", "f8e5m2fnuz", "f8e8m0fnu"), 8),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 16),
    **dict.fromkeys(("s32", "u32", "f32"), 32),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 64),
    "c128": 128,
    **dict.fromkeys(("token", "opaque"), 0),
}
"""Bits of an element, by type."""
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([^\]\[]*)\]")
_SIZE = re.compile(r"\s*(?:<=)?\s*([0-9]{1,13})\s*")
_SPACE = re.compile(r"(?:\s|/\*[^*]*\*/)*")
_DEEPEST = 50


@dataclass(frozen=True, slots=True)
class Array:
    """The shape of an array.

    Attributes:
        type: ``f32``.
        sizes: Its dimensions; the bound of one that is dynamic.
    """

    type: str
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Bytes of a dense array."""
        return contents(self.sizes, BITS[self.type])


Shape = Array | tuple["Shape", ...]
"""The shape of an array, or of a tuple."""


def leaves(shape: Shape) -> Iterator[Array]:
    """The arrays in a shape, in order."""
    if isinstance(shape, Array):
        yield shape
    else:
        for item in shape:
            yield from leaves(item)


def first_leaf(shape: Shape, index: int) -> int:
    """Position of the first array of item ``index`` of a tuple among its leaves."""
    assert isinstance(shape, tuple)
    return sum(1 for item in shape[:index] for _ in leaves(item))


def space(text: str, at: int) -> int:
    """Where the text goes on behind blanks and comments."""
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def read_shape(text: str, at: int, depth: int = 0) -> tuple[Shape, int]:
    """The shape that begins at a position, and where it ends.

    Raises:
        ValueError: If there is none; the message says why.
    """
    at = space(text, at)
    if text[at : at + 1] == "(":
        if depth > _DEEPEST:
            raise ValueError("it has tuples within tuples, deeper than any program")
        return _tuple(text, at + 1, depth)
    found = _ARRAY.match(text, at)
    if found is None:
        raise ValueError(f"there is no shape where one should be: {text[at : at + 20]!r}")
    kind, inner = found[1], found[2]
    if kind not in BITS:
        raise ValueError(f"{kind!r} is not a type of XLA")
    sizes = []
    for part in inner.split(",") if inner.strip() else ():
        size = _SIZE.fullmatch(part)
        if size is None or int(size[1]) > LARGEST_DIMENSION:
            raise ValueError(f"{part.strip()!r} is not a size")
        sizes.append(int(size[1]))
    at = found.end()
    if text[at : at + 1] == "{":
        at = closing(text, at) + 1
    return Array(kind, tuple(sizes)), at


def _tuple(text: str, at: int, depth: int) -> tuple[Shape, int]:
    items: list[Shape] = []
    at = space(text, at)
    while text[at : at + 1] != ")":
        item, at = read_shape(text, at, depth + 1)
        items.append(item)
        at = space(text, at)
        if text[at : at + 1] == ",":
            at = space(text, at + 1)
        elif text[at : at + 1] != ")":
            raise ValueError("a tuple of shapes does not end")
    return tuple(items), at + 1


_PAIRS = {"(": ")", "{": "}", "[": "]"}


def unquoted(text: str, at: int = 0) -> Iterator[tuple[int, str]]:
    """The letters of a text that are in no quotes, each with its position, from a position on."""
    quoted, k = False, at
    while k < len(text):
        letter = text[k]
        if quoted:
            k += letter == "\\"
            quoted = letter != '"'
        elif letter == '"':
            quoted = True
        else:
            yield k, letter
        k += 1


def closing(text: str, at: int) -> int:
    """Position of the bracket that closes the one at ``at``; brackets inside quotes do not count.

    Raises:
        ValueError: If it is not closed.
    """
    open_ones: list[str] = []
    for k, letter in unquoted(text, at):
        if letter in _PAIRS:
            open_ones.append(_PAIRS[letter])
        elif letter in ")}]":
            if not open_ones or open_ones.pop() != letter:
                raise ValueError(f"a {letter} closes nothing")
            if not open_ones:
                return k
    raise ValueError(f"a {text[at]} is not closed")


def parts(text: str) -> list[str]:
    """``text`` divided at commas that are in no brackets and no quotes.

    Raises:
        ValueError: If a bracket is not closed.
    """
    found, begin, end = [], 0, -1
    for k, letter in unquoted(text):
        if k > end and letter in _PAIRS:
            end = closing(text, k)
        elif k > end and letter == ",":
            found.append(text[begin:k].strip())
            begin = k + 1
    found.append(text[begin:].strip())
    return [part for part in found if part]
