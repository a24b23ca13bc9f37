"""Parts of documents: written and read by the fields of dataclasses, everything else refused with its place."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from remat_cli.errors import UsageError
from remat_cli.frontends.captured.serialiser import Dtype, Hexadecimal, Reader, Stored, stored
from remat_cli.graph.model import Graph, Node


@dataclass(frozen=True, slots=True)
class Shape(Stored):
    dtype: Dtype
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place(Stored):
    number: int = field(metadata=stored("place", below="places"))
    part: int = 0


@dataclass(frozen=True, slots=True)
class Value(Stored):
    number: int = field(metadata=stored("value", names=True))


@dataclass(frozen=True, slots=True)
class Everything(Stored):
    kind: str = field(metadata=stored(words=("one", "other")))
    shape: Shape = field(metadata=stored(inline=True))
    inner: Shape = field(metadata=stored("in"))
    tensor: Place | Value
    item: int | None
    nested: tuple[tuple[Place | None, ...], ...]
    data: bytes
    exact: Hexadecimal = "0x1.0p+0"
    below: int | None = None
    flag: bool = False


class OfEverything(Reader):
    item_bytes: ClassVar = {"float32": 4}

    def check(self, part, at):
        if isinstance(part, Shape):
            self.require_size(4 * sum(part.sizes), at)


GRAPH = Graph("small", (Node("a", 1, (), (16,)), Node("b", 1, (0,), (16,))), (1,))
WHOLE = Everything(
    "other", Shape("float32", (2, 3)), Shape("float32", ()), Value(1), None, ((Place(2, 1), None), ()), b"abc", below=7
)
DOCUMENT = {
    "kind": "other",
    "dtype": "float32",
    "sizes": [2, 3],
    "in": {"dtype": "float32", "sizes": []},
    "tensor": {"value": "b:0"},
    "item": None,
    "nested": [[{"place": 2, "part": 1}, None], []],
    "data": "YWJj",
    "below": 7,
}


def read(document):
    reader = OfEverything(GRAPH)
    reader.counts["places"] = 3
    return reader.part(Everything, document, "node a", ": ")


def test_what_is_written_is_read_again():
    assert WHOLE.document(GRAPH.value_name) == DOCUMENT
    assert read(json.loads(json.dumps(DOCUMENT))) == WHOLE
    more = DOCUMENT | {"flag": True, "exact": "inf", "item": 0}
    assert read(more).document(GRAPH.value_name) == more


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "third"}, 'node a: kind: "third" is not one or other'),
        ({"dtype": "float33"}, 'node a: dtype: "float33" is not a type that graphs have'),
        ({"sizes": [2, -3]}, r"node a: sizes\[1\]: -3 is not a whole number"),
        ({"sizes": [1 << 62]}, "node a: it has more bytes than a tensor can have"),
        ({"in": {"dtype": "float32", "sizes": [1.5]}}, r"node a: in\.sizes\[0\]: 1.5 is not a whole number"),
        ({"in": {"dtype": "float32"}}, 'node a: in: it has no "sizes"'),
        ({"in": {"dtype": "float32", "sizes": [], "x": 1}}, 'node a: in: it has an unknown field "x"'),
        ({"in": []}, "node a: in: it is not an object"),
        ({"tensor": {"place": 3}}, "node a: tensor: there is no number 3: there are 3"),
        ({"tensor": {"value": "a:0"}}, 'node a: tensor: "a:0" is not an output of the graph'),
        ({"tensor": {"other": 1}}, "node a: tensor: an object of 1 fields is nothing that remat writes"),
        ({"tensor": None}, "node a: tensor: null is nothing that remat writes"),
        ({"item": "0"}, 'node a: item: "0" is not a whole number'),
        ({"nested": [{}]}, r"node a: nested\[0\]: it is not a list"),
        ({"nested": [[{"place": True}]]}, r"node a: nested\[0\]\[0\].place: true is not a whole number"),
        ({"data": "?"}, "node a: data: "),
        ({"exact": "one"}, 'node a: exact: "one" is not a number as remat writes it'),
        ({"below": None}, "node a: below: null is not a whole number"),
        ({"flag": 1}, "node a: flag: 1 is neither true nor false"),
        ({"more": 1}, 'node a: it has an unknown field "more"'),
    ],
    ids=str,
)
def test_anything_else_is_refused_with_its_place(change, words):
    with pytest.raises(UsageError, match=f"the graph small holds a payload that remat did not write: {words}"):
        read(DOCUMENT | change)


@pytest.mark.parametrize("name", [key for key in DOCUMENT if key != "below"])
def test_what_has_no_default_has_to_be_there(name):
    with pytest.raises(UsageError, match=f'node a: it has no "{name}"'):
        read({key: value for key, value in DOCUMENT.items() if key != name})
