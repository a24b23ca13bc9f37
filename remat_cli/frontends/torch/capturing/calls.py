"""The calls of a module's compiled graphs while it is captured."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Calls:
    """What a module did when it was captured.

    Attributes:
        made: For each call of a compiled graph in order, its number (None without a backward pass) and its results.
        given: The inputs of these calls.
        output: What the module returned; None if it did not come to its end.
    """

    made: list[tuple[int | None, Sequence[Any]]] = field(default_factory=list)
    given: list[Sequence[Any]] = field(default_factory=list)
    output: Any = None

    def watched(self, number: int | None, compiled: Any) -> Any:
        """``compiled``, a compiled graph, with its calls recorded."""

        def run(*args: Any) -> Any:
            results = compiled(*args)
            self.made.append((number, tuple(results)))
            self.given.append(args)
            return results

        return run

    def without(self, left_out: Collection[int]) -> Calls:
        """The same, if the graphs with these numbers had no backward pass; the others are numbered anew."""

        def renumbered(number: int | None) -> int | None:
            if number is None or number in left_out:
                return None
            return number - sum(other < number for other in left_out)

        return Calls([(renumbered(number), results) for number, results in self.made], self.given, self.output)
