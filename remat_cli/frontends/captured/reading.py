"""Reads documents of captured steps: what the documents of all frameworks are made of.

A document may come from a stranger, so reading is strict: everything that remat would not write is refused, with its
place.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, ClassVar

from remat_cli.errors import UsageError
from remat_cli.frontends.captured.origin import damaged
from remat_cli.graph.model import Graph
from remat_cli.graph.quoting import quote

LARGEST = (1 << 63) - 1
"""Frameworks count sizes and bytes in 64 bits with a sign."""


class Reader:
    """Reads the documents of one graph. In all methods, ``at`` is the place of the value, for messages.

    Attributes:
        graph: The graph.
        values: The numbers of its values, by name.
        places: Number of the arrays that the step is given.
        constants: Number of the arrays whose data is in the document.
    """

    item_bytes: ClassVar[Mapping[str, int]]
    """Bytes of an element, by the name of its type."""
    called: ClassVar[str] = "a tensor"

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = {graph.value_name(value): value for value in range(len(graph.size))}
        self.places = self.constants = 0

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

    def numbers(self, value: Any, at: str) -> tuple[int, ...]:
        """A list of such numbers."""
        return tuple(self.number(item, place) for item, place in self.items(value, at))

    def limit(self, found: Mapping[str, Any], at: str) -> int | None:
        """The field ``below``, if it is there."""
        return self.number(found["below"], f"{at}.below") if "below" in found else None

    def text(self, value: Any, at: str, known: tuple[str, ...] = ()) -> str:
        """A text; one of ``known``, if any are."""
        if not isinstance(value, str) or (known and value not in known):
            raise self.wrong(at, f"{quote(value)} is not {' or '.join(known) if known else 'text'}")
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
            return base64.b64decode(self.text(value, at), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.wrong(at, str(error)) from None

    def data(self, value: Any, at: str, size: int) -> bytes:
        """The data of an array of ``size`` bytes."""
        data = self.base64(value, f"{at}.data")
        if len(data) != size:
            raise self.wrong(f"{at}.data", f"it has another size, {len(data)} bytes, than its shape")
        return data

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

    def require_made(self, node: str, wanted: int, found: int) -> None:
        """Refuse a payload that tells of another number of values than its node makes."""
        if wanted != found:
            raise self.wrong(node, f"it makes {wanted} values, and tells of {found}")
