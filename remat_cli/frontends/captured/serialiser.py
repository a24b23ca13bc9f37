"""Writes the contents of captured steps into documents, and reads them back strictly, by the fields of dataclasses.

A part of a document is a dataclass that inherits :class:`Stored`. Its fields and their types say what stands in the
document: whole numbers (not negative), text, truth values, bytes (in base64), tuples (lists), other parts (objects),
and ``X | None`` (null). A field with a default is left out where it has that value. :func:`stored` says what types
cannot: another name in the document, the words or the numbers that are allowed, values of the graph by their names.

A document may come from a stranger, so reading is strict: everything that remat would not write is refused, with its
place.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from remat_cli.errors import UsageError
from remat_cli.frontends.captured.origin import damaged
from remat_cli.graph.model import Graph
from remat_cli.graph.quoting import quote

ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"), 1),
        **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
        **dict.fromkeys(("int32", "uint32", "float32"), 4),
        **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
        "complex128": 16,
    }
)
"""Bytes of the elements of tensors, by the names that frameworks share; each adds the types that it alone has."""
Dtype = Annotated[str, "dtype"]
"""The name of a type of elements, such as ``float32``."""
Hexadecimal = Annotated[str, "hexadecimal"]
"""A floating-point number as ``float.hex`` writes it: exact, including infinities and NaN."""
_Part = TypeVar("_Part", bound="Stored")
LARGEST = (1 << 63) - 1
"""Frameworks count sizes and bytes in 64 bits with a sign."""


def stored(
    key: str = "", *, words: tuple[str, ...] = (), below: str = "", names: bool = False, inline: bool = False
) -> dict[str, Any]:
    """How a field of a part stands in a document: the ``metadata`` of the field.

    Args:
        key: Its name in the document; that of the field by default.
        words: The words that it may be; any text by default.
        below: What it counts, a key of :attr:`Reader.counts`: it is below that number.
        names: Whether it is a value of the graph by number, which the document names.
        inline: Whether the fields of this part stand among those of the part that it is in.
    """
    return {"key": key, "words": words, "below": below, "names": names, "inline": inline}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A field of a part.

    Attributes:
        name: Its name.
        key: Its name in the document.
        left_out: The value that is left out; MISSING for none.
        names: Whether it is a value of the graph, by its name.
        part: The part whose fields stand among those of this one; None if it is no such field.
        read: Reads it from a value at a place.
    """

    name: str
    key: str
    left_out: Any
    names: bool
    part: type[Any] | None
    read: _Read


@dataclass(frozen=True, slots=True)
class _Form:
    """How a part stands in documents: its fields, and the names that an object has to have and may have."""

    entries: tuple[_Entry, ...]
    needed: tuple[str, ...]
    known: tuple[str, ...]


_FORMS: dict[type[Any], _Form] = {}
"""The forms of the parts that were asked for."""


def _form(part: type[Any]) -> _Form:
    if part not in _FORMS:
        hints = get_type_hints(part, include_extras=True)
        entries = tuple(_entry(own, hints[own.name]) for own in fields(part))
        inner = [_form(entry.part) for entry in entries if entry.part is not None]
        own = [entry for entry in entries if entry.part is None]
        needed = [entry.key for entry in own if entry.left_out is MISSING]
        _FORMS[part] = _Form(
            entries,
            (*needed, *(key for form in inner for key in form.needed)),
            (*(entry.key for entry in own), *(key for form in inner for key in form.known)),
        )
    return _FORMS[part]


def _entry(own: Field[Any], hint: Any) -> _Entry:
    options = stored() | dict(own.metadata)
    left_out = own.default if own.default_factory is MISSING else own.default_factory()
    inline = hint if options["inline"] else None
    return _Entry(
        own.name, options["key"] or own.name, left_out, options["names"], inline, _reading(hint, options, left_out)
    )


def _reading(hint: Any, options: Mapping[str, Any], left_out: Any = None) -> _Read:
    """What reads a value of a type."""
    if options["names"]:
        return lambda reader, value, at: reader.value_named(value, at)
    if get_origin(hint) in {Union, UnionType}:
        choices = [choice for choice in get_args(hint) if choice is not NoneType]
        read = _reading(choices[0], options) if len(choices) == 1 else _reading_one_of(choices)
        if NoneType in get_args(hint) and left_out is MISSING:
            return lambda reader, value, at: None if value is None else read(reader, value, at)
        return read
    if get_origin(hint) is tuple:
        item = _reading(get_args(hint)[0], options, MISSING)
        return lambda reader, value, at: tuple(item(reader, one, place) for one, place in reader.items(value, at))
    if isinstance(hint, type) and issubclass(hint, Stored):
        return lambda reader, value, at: reader.part(hint, value, at)
    if hint is int and options["below"]:
        return lambda reader, value, at: reader.number(value, at, reader.counts[options["below"]])
    if hint is str:
        return lambda reader, value, at: reader.text(value, at, options["words"])
    return _SIMPLE.get(hint, _by_hand)


def _by_hand(reader: Reader, value: Any, at: str) -> Any:
    raise AssertionError(f"{at} is of a type that its frontend reads itself")


def _reading_one_of(parts: Sequence[type[Any]]) -> _Read:
    """What reads one of several parts: that whose first field is there. Its fields have no place of their own."""

    def read(reader: Reader, value: Any, at: str) -> Any:
        for part in parts if isinstance(value, dict) else ():
            if _form(part).entries[0].key in value:
                return reader.part(part, value, at, None)
        raise reader.wrong(at, f"{quote(value)} is nothing that remat writes")

    return read


def _no_name(number: int) -> str:
    raise AssertionError(f"an operation names value {number} of the graph, and not what its node reads")


class Stored:
    """A part of a document: a dataclass, written and read by its fields."""

    __slots__ = ()

    def document(self, name_of: Callable[[int], str] = _no_name) -> Any:
        """As JSON values; ``name_of`` gives the names of values of the graph."""
        written: dict[str, Any] = {}
        for entry in _form(type(self)).entries:
            value = getattr(self, entry.name)
            if entry.part is not None:
                written |= value.document(name_of)
            elif value != entry.left_out:
                written[entry.key] = name_of(value) if entry.names else _plain(value, name_of)
        return written


def _plain(value: Any, name_of: Callable[[int], str]) -> Any:
    match value:
        case Stored():
            return value.document(name_of)
        case tuple():
            return [_plain(item, name_of) for item in value]
        case Mapping():
            return {key: _plain(item, name_of) for key, item in value.items()}
        case bytes():
            return b64encode(value).decode("ascii")
        case _:
            return value


class Reader:
    """Reads the documents of one graph. In all methods, ``at`` is the place of the value, for messages.

    Attributes:
        graph: The graph.
        values: The numbers of its values, by name.
        counts: How many there are of what the document refers to by number, such as ``places``.
    """

    item_bytes: ClassVar[Mapping[str, int]]
    """Bytes of an element, by the name of its type."""
    called: ClassVar[str] = "a tensor"

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = {graph.value_name(value): value for value in range(len(graph.size))}
        self.counts: dict[str, int] = {}

    def part(self, kind: type[_Part], value: Any, at: str, joint: str | None = ".") -> _Part:
        """A part of the document, from an object with its fields.

        Args:
            kind: The part.
            value: What stands in the document.
            at: Its place.
            joint: What joins the place and the name of a field; None if fields have the place of the part.
        """
        form = _form(kind)
        return self._part(kind, self.fields(value, at, form.needed, form.known), at, joint)

    def _part(self, kind: type[_Part], values: dict[str, Any], at: str, joint: str | None) -> _Part:
        arguments: dict[str, Any] = {}
        for entry in _form(kind).entries:
            if entry.part is not None:
                arguments[entry.name] = self._part(entry.part, values, at, joint)
            elif entry.key in values:
                arguments[entry.name] = entry.read(
                    self, values[entry.key], at if joint is None else f"{at}{joint}{entry.key}"
                )
        part = kind(**arguments)
        self.check(part, at)
        return part

    def check(self, part: Stored, at: str) -> None:
        """Refuse a part whose fields do not go together."""

    def wrong(self, at: str, message: str) -> UsageError:
        """The error for something that remat does not write."""
        return damaged(self.graph, at, message)

    def listed(self, key: str) -> list[tuple[Any, str]]:
        """The items of a list in the metadata, each with its place."""
        metadata: Any = self.graph.metadata
        return self.items(metadata.get(key) if isinstance(metadata, dict) else None, f"metadata.{key}")

    def items(self, value: Any, at: str) -> list[tuple[Any, str]]:
        """The items of a list, each with its place."""
        if not isinstance(value, list):
            raise self.wrong(at, "it is not a list")
        return [(item, f"{at}[{k}]") for k, item in enumerate(value)]

    def fields(self, value: Any, at: str, needed: tuple[str, ...], others: tuple[str, ...] = ()) -> dict[str, Any]:
        """An object with all fields of ``needed``, and otherwise only fields of ``others``."""
        if not isinstance(value, dict):
            raise self.wrong(at, "it is not an object")
        for name in needed:
            if name not in value:
                raise self.wrong(at, f'it has no "{name}"')
        for name in value:
            if name not in needed and name not in others:
                raise self.wrong(at, f"it has an unknown field {quote(name)}")
        return value

    def number(self, value: Any, at: str, below: int | None = None) -> int:
        """A whole number that is not negative."""
        if type(value) is not int or value < 0:
            raise self.wrong(at, f"{quote(value)} is not a whole number from 0 on")
        if value > LARGEST:
            raise self.wrong(at, f"{quote(value)} is more than {self.called} can have")
        if below is not None and value >= below:
            raise self.wrong(at, f"there is no number {value}: there are {below}")
        return value

    def text(self, value: Any, at: str, words: tuple[str, ...] = ()) -> str:
        """A text; one of ``known``, if any are."""
        if not isinstance(value, str) or (words and value not in words):
            raise self.wrong(at, f"{quote(value)} is not {' or '.join(words) if words else 'text'}")
        return value

    def flag(self, value: Any, at: str) -> bool:
        """A truth value."""
        if type(value) is not bool:
            raise self.wrong(at, f"{quote(value)} is neither true nor false")
        return value

    def dtype(self, value: Any, at: str) -> str:
        """The name of a type."""
        if self.text(value, at) not in self.item_bytes:
            raise self.wrong(at, f"{quote(value)} is not a type that graphs have")
        return str(value)

    def require_size(self, size: int, at: str) -> None:
        """Refuse more bytes than a framework counts."""
        if size > LARGEST:
            raise self.wrong(at, f"it has more bytes than {self.called} can have")

    def hexadecimal(self, value: Any, at: str) -> str:
        """A number as ``float.hex`` writes it."""
        try:
            float.fromhex(value)
        except (TypeError, ValueError, OverflowError):
            raise self.wrong(at, f"{quote(value)} is not a number as remat writes it") from None
        return str(value)

    def base64(self, value: Any, at: str) -> bytes:
        """The bytes that a text in base64 stands for."""
        try:
            return b64decode(self.text(value, at), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.wrong(at, str(error)) from None

    def require_length(self, data: bytes, size: int, at: str) -> None:
        """Refuse data that is longer or shorter than an array of ``size`` bytes."""
        if len(data) != size:
            raise self.wrong(f"{at}.data", f"it has another size, {len(data)} bytes, than its shape")

    def value_named(self, name: Any, at: str) -> int:
        """The number of an output of the graph, by its name."""
        number = self.values.get(name) if isinstance(name, str) else None
        if number is None:
            raise self.wrong(at, f"the graph has no value {quote(name)}")
        self.require_output(number, at)
        return number

    def require_output(self, value: int, at: str) -> None:
        """Refuse a value of the graph that is not there at the end."""
        if value not in self.graph.outputs:
            raise self.wrong(at, f"{quote(self.graph.value_name(value))} is not an output of the graph")

    def require_made(self, node: str, wanted: int, told: int) -> None:
        """Refuse a payload that tells of another number of values than its node makes."""
        if wanted != told:
            raise self.wrong(node, f"it makes {wanted} values, and tells of {told}")


_Read = Callable[[Reader, Any, str], Any]
_SIMPLE: Mapping[Any, _Read] = {
    int: Reader.number,
    bool: Reader.flag,
    bytes: Reader.base64,
    Dtype: Reader.dtype,
    Hexadecimal: Reader.hexadecimal,
}
"""What reads a value, by its type."""
