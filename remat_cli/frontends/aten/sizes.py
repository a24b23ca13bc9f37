"""Sizes of symbolic dimensions: those that the user gave, and those that are missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from remat_cli.errors import InputError, Problem, Worded
from remat_cli.frontends.aten.symbols import evaluate, symbols
from remat_cli.graph.quoting import quote
from remat_cli.registry import suggestion


@dataclass(slots=True)
class Sizes:
    """Values of symbols.

    Attributes:
        given: Values from the user, by symbol or by ``INPUT:AXIS``.
        ranges: Least and largest value of the symbols that have limits.
        hints: Values of symbols when the graph was made.
        used: Values of the symbols that occur; None for those without a value.
        unread: Expressions that could not be evaluated, with the reason.
    """

    given: dict[str, int]
    ranges: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    used: dict[str, int | None] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    def name_axis(self, tensor: str, axis: int, text: str) -> None:
        """Record that the size of an input's axis is ``text``, so that users may call it ``INPUT:AXIS``."""
        name = f"{tensor}:{axis}"
        try:
            found = symbols(text)
        except ValueError:
            return  # :meth:`value` reports it
        if name in self.given and found == {text_of_symbol(text)}:
            self.given.setdefault(next(iter(found)), self.given[name])
            self.used[name] = self.given[name]

    def value(self, text: str, hint: int | None = None) -> int:
        """The value of an expression; 1 if a symbol in it has no value, which :meth:`check` reports later."""
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
        """The values of the symbols that occur.

        Raises:
            InputError: If a symbol has no value or one out of its range, or if a name given by the user does not occur.
        """
        problems = [Problem(f"a size cannot be computed: {words}") for words in self.unread.values()]
        for name, value in self.used.items():
            low, high = self.ranges.get(name, (None, None))
            bounds = [f"at least {low}"] * (low is not None) + [f"at most {high}"] * (high is not None)
            if value is None:
                words = [f"{self.hints[name]} in the example"] if name in self.hints else []
                told = f" ({', '.join(words + bounds)})" if words or bounds else ""
                problems.append(
                    Problem(
                        f"{quote(name)} is a symbolic dimension{told}",
                        hint=Worded(f'say sizes={{"{name}": SIZE}}', f"say --dim {name}=SIZE"),
                    )
                )
            elif (low is not None and value < low) or (high is not None and value > high):
                problems.append(
                    Problem(f"the size {value} of {name} is no good: the model takes {' and '.join(bounds)}")
                )
        known = sorted(self.used)
        for name in self.given.keys() - self.used.keys():
            hint = suggestion(name, known) or f"known: {', '.join(known) or 'none'}"
            problems.append(Problem(f"there is no symbolic dimension {quote(name)}", hint=hint))
        if problems:
            raise InputError(source, problems)
        return {name: value for name, value in self.used.items() if value is not None}


def text_of_symbol(text: str) -> str:
    """The name of the symbol if an expression is a single symbol; otherwise the text itself."""
    found = symbols(text)
    alone = len(found) == 1 and (text.strip() in found or text.strip().startswith("Symbol("))
    return next(iter(found)) if alone else text
