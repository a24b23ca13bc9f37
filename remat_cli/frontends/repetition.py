"""Graphs of models with many equal blocks, from graphs of the same model with few of them.

Everything that a graph holds is written as sequences of texts, and every text as a form and the whole numbers in it.
One more repetition of the blocks puts runs of texts into a sequence, behind a run of the same forms; and a number
depends linearly on how many repetitions there are, and on which of them the text belongs to. Two graphs determine such
a rule, a third has to follow from it exactly, and only then does the rule say what more repetitions lead to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from remat_cli.graph.model import Graph, Node, NodeQueue, Phase

_NUMBER = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]*)(?![0-9])")
"""A whole number that is written in one way only: ``05`` is part of the form."""
_HOLE = "\x00"
_FIELDS = tuple(field.name for field in fields(Node))
_SORTED = "modules"
"""The names in the metadata that are sorted as texts, where 10 is before 9."""
_NODES, _REST = "/nodes", "/rest"
"""Sequences that are no entries of the metadata."""
Text = tuple[str, tuple[int, ...]]
"""A form, with holes, and the numbers in them."""


def extrapolated(graphs: Sequence[Graph], repetitions: int) -> Graph | None:
    """The graph of a model with ``repetitions`` of its blocks; ``graphs`` are those with 1, 2 and 3.

    Returns:
        The graph; None if the third is not what follows from the first two.
    """
    if any(graph.splits or graph.origin for graph in graphs):
        return None
    sequences = extrapolated_texts([_sequences(graph) for graph in graphs], repetitions)
    return None if sequences is None else _graph(sequences, graphs[0])


def extrapolated_texts(given: Sequence[Mapping[str, list[str]]], repetitions: int) -> dict[str, list[str]] | None:
    """As :func:`extrapolated`, for sequences of texts by name."""
    if len({tuple(one) for one in given}) > 1:
        return None
    found = {}
    for name in given[0]:
        one, two, three = ([_split(text) for text in each[name]] for each in given)
        rule = next((rule for rule in _rules(one, two) if rule.texts(3) == three), None)
        if rule is None:
            return None
        found[name] = [_joined(text) for text in rule.texts(repetitions)]
    return found


def _split(text: str) -> Text:
    return _NUMBER.sub(_HOLE, text), tuple(map(int, _NUMBER.findall(text)))


def _joined(text: Text) -> str:
    form, numbers = text
    first, *others = form.split(_HOLE)
    return first + "".join(str(number) + part for number, part in zip(numbers, others, strict=True))


@dataclass(frozen=True, slots=True)
class _Line:
    """A text that depends on the number of repetitions, and on its own one.

    Attributes:
        form: Its form.
        first: Its numbers in the first of one repetition.
        by_count: How much they grow with one more repetition of the blocks.
        by_place: How much more they are in the next repetition.
    """

    form: str
    first: tuple[int, ...]
    by_count: tuple[int, ...]
    by_place: tuple[int, ...]

    def text(self, count: int, place: int) -> Text:
        """The text in one of the repetitions, from 0."""
        terms = zip(self.first, self.by_count, self.by_place, strict=True)
        return self.form, tuple(a + (count - 1) * b + place * c for a, b, c in terms)


@dataclass(frozen=True, slots=True)
class _Rule:
    """How a sequence depends on the number of repetitions: runs of texts, of which every second one is repeated."""

    runs: tuple[tuple[_Line, ...], ...]

    def texts(self, count: int) -> list[Text]:
        """The sequence."""
        return [
            line.text(count, place)
            for k, run in enumerate(self.runs)
            for place in range(count if k % 2 else 1)
            for line in run
        ]


def _rules(one: Sequence[Text], two: Sequence[Text]) -> Iterator[_Rule]:
    """The rules that give both sequences, with 1 and 2 repetitions."""
    forms_one, forms_two = [form for form, _ in one], [form for form, _ in two]
    for sites in _sites(forms_one, forms_two, 0, 0):
        runs, at, shift = [], 0, 0
        for end, length in sites:
            begin = end - length
            runs.append(_fixed(one[at:begin], two[at + shift : begin + shift]))
            copies = one[begin:end], two[begin + shift : end + shift], two[end + shift : end + shift + length]
            runs.append(tuple(map(_line, *copies)))
            at, shift = end, shift + length
        runs.append(_fixed(one[at:], two[at + shift :]))
        yield _Rule(tuple(runs))


def _fixed(one: Sequence[Text], two: Sequence[Text]) -> tuple[_Line, ...]:
    return tuple(map(_line, one, two, two))


def _line(alone: Text, first: Text, second: Text) -> _Line:
    """The line of the texts in the only repetition, and in the first and second one of two."""
    grown = tuple(b - a for a, b in zip(alone[1], first[1], strict=True))
    return _Line(alone[0], alone[1], grown, tuple(b - a for a, b in zip(first[1], second[1], strict=True)))


def _sites(one: Sequence[str], two: Sequence[str], at: int, shift: int) -> Iterator[list[tuple[int, int]]]:
    """Where, from ``at`` on, ``two`` has a run a second time: the end of the run in ``one``, and its length.

    ``two`` is ahead by ``shift``. A run may begin anywhere in a block, since the next block begins as it does. The last
    place is tried first, and then one half a run earlier, for what behind the blocks looks like the begin of a block.
    """
    end = at
    while end < len(one) and end + shift < len(two) and one[end] == two[end + shift]:
        end += 1
    left = len(two) - len(one) - shift
    if left == 0:
        if end == len(one):
            yield []
        return
    for length in range(1, min(left, end - at) + 1):
        for last in (end, end - length // 2) if length > 1 else (end,):
            begin, copied = last - length, last + shift
            if begin < at or two[begin + shift : copied] != two[copied : copied + length]:
                continue
            if one[last:end] != two[copied + length : end + shift + length]:
                continue
            for others in _sites(one, two, last, shift + length):
                yield [(last, length), *others]


def _sequences(graph: Graph) -> dict[str, list[str]]:
    """All that a graph holds, as sequences of JSON texts by name."""
    outputs = set(graph.outputs)
    nodes = []
    for k, node in enumerate(graph.nodes):
        stays = [value in outputs for value in graph.values_of(k)]
        nodes.append(json.dumps([*(getattr(node, name) for name in _FIELDS), stays]))
    sequences = {_NODES: nodes}
    rest: dict[str, Any] = {"fixed_memory": graph.fixed_memory}
    for name, entry in graph.metadata.items():
        if isinstance(entry, dict):
            sequences[f"{name}{{}}"] = [json.dumps(item) for item in entry.items()]
        elif isinstance(entry, list):
            listed = sorted(entry, key=_natural) if name == _SORTED else entry
            sequences[f"{name}[]"] = list(map(json.dumps, listed))
        else:
            rest[name] = entry
    return sequences | {_REST: [json.dumps(rest)]}


def _graph(sequences: Mapping[str, list[str]], like: Graph) -> Graph:
    """The graph that sequences hold, with the name and unit of ``like``."""
    read = {name: list(map(json.loads, texts)) for name, texts in sequences.items()}
    [rest] = read[_REST]
    nodes, outputs, value = [], [], 0
    for *given, stays in read[_NODES]:
        facts = dict(zip(_FIELDS, given, strict=True))
        offload = facts["offload"]
        facts |= {
            "inputs": tuple(facts["inputs"]),
            "outputs": tuple(facts["outputs"]),
            "offload": tuple(offload) if isinstance(offload, list) else offload,
            "phase": None if facts["phase"] is None else Phase(facts["phase"]),
            "queue": NodeQueue(facts["queue"]),
        }
        nodes.append(Node(**facts))
        outputs += [value + k for k, stay in enumerate(stays) if stay]
        value += len(stays)
    metadata: dict[str, Any] = {}
    for name in like.metadata:
        if f"{name}{{}}" in read:
            metadata[name] = dict(read[f"{name}{{}}"])
        elif f"{name}[]" in read:
            metadata[name] = sorted(read[f"{name}[]"]) if name == _SORTED else read[f"{name}[]"]
        else:
            metadata[name] = rest[name]
    return replace(
        like, nodes=tuple(nodes), outputs=tuple(outputs), fixed_memory=rest["fixed_memory"], metadata=metadata
    )


def _natural(text: str) -> list[tuple[bool, int | str]]:
    """A key that sorts numbers in texts by their size."""
    parts = re.split(r"([0-9]+)", text)
    return [(part.isdigit(), int(part) if part.isdigit() else part) for part in parts]


def period(signatures: Sequence[object]) -> int:
    """The smallest distance at which members of a sequence are equal; its length if there is none."""
    count = len(signatures)
    return next(p for p in range(1, count + 1) if all(a == b for a, b in zip(signatures, signatures[p:], strict=False)))
