"""What a framework gives to this benchmark: a graph, and programs that run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from remat_cli.graph.model import Graph
from remat_cli.plan.model import Statement


class Runner(Protocol):
    """A program for the statements of a plan."""

    def step(self) -> float:
        """Seconds that one step takes."""

    def computes(self) -> list[float]:
        """Seconds of each computation in the order of the plan, measured in one step."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model on a framework.

    Attributes:
        spec: What it is, for the page.
        version: Name and version of the framework.
        graph: Its graph.
        runner: Makes a program.
    """

    spec: str
    version: str
    graph: Graph
    runner: Callable[[Sequence[Statement]], Runner]
