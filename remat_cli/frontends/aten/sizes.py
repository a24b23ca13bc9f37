"""Sizes of symbolic dimensions: those the user gave, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from remat_cli.errors import InputError, Problem
from remat_cli.frontends.aten.symbols import evaluate, symbols
from remat_cli.graph.quoting import quote
from remat_cli.registry import suggestion


@dataclass(slots=True)
class Sizes:
    """What symbols stand for.

    Attributes:
        given: By symbol, or by ``INPUT:AXIS``.
        ranges: Least and largest value of symbols that have such.
        hints: What symbols stood for when the graph was made.
        used: Symbols that occur, and their values; None for those without.
        unread: Expressions that could not be computed.
    """

    given: dict[str, int]
    ranges: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    used: dict[str, int | None] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    def name_axis(self, tensor: str, axis: int, text: str) -> None:
        """Say that an axis of an input is ``text``, so that users may name it ``INPUT:AXIS``."""
        name = f"{tensor}:{axis}"
        found = symbols(text)
        if name in self.given and found == {text_of_symbol(text)}:
            self.given.setdefault(next(iter(found)), self.given[name])
            self.used[name] = self.given[name]

    def value(self, text: str, hint: int | None = None) -> int:
        """The value of an expression; 1 in its place if a symbol in it has none, which :meth:`check` will say."""
        try:
            found = symbols(text)
            for name in found:
                self.used[name] = self.given.get(name)
            if hint is not None and found == {text_of_symbol(text)}:
                self.hints.setdefault(next(iter(found)), hint)
            return evaluate(text, self.given)
        except KeyError:
            return 1
        except ValueError as error:
            self.unread[text] = str(error)
            return 1

    def check(self, source: str) -> dict[str, int]:
        """The symbols that occur, and their values.

        Raises:
            InputError: If one has no value, or one out of its range, or a name that was given does not occur.
        """
        problems = [Problem(f"a size cannot be computed: {words}") for words in self.unread.values()]
        for name, value in self.used.items():
            low, high = self.ranges.get(name, (None, None))
            bounds = [f"at least {low}"] * (low is not None) + [f"at most {high}"] * (high is not None)
            if value is None:
                words = [f"{self.hints[name]} in the example"] if name in self.hints else []
                told = f" ({', '.join(words + bounds)})" if words or bounds else ""
                problems.append(Problem(f"{quote(name)} is a symbolic dimension{told}", hint=f"say --dim {name}=SIZE"))
            elif (low is not None and value < low) or (high is not None and value > high):
                problems.append(Problem(f"--dim {name}={value}: the model takes {' and '.join(bounds)}"))
        known = sorted(self.used)
        for name in self.given.keys() - self.used.keys():
            hint = suggestion(name, known) or f"known: {', '.join(known) or 'none'}"
            problems.append(Problem(f"--dim: there is no symbolic dimension {quote(name)}", hint=hint))
        if problems:
            raise InputError(source, problems)
        return {name: value for name, value in self.used.items() if value is not None}


def text_of_symbol(text: str) -> str:
    """The name in an expression that is nothing but a symbol; the text itself otherwise."""
    found = symbols(text)
    alone = len(found) == 1 and (text.strip() in found or text.strip().startswith("Symbol("))
    return next(iter(found)) if alone else text
