"""What a framework gives to this benchmark: graphs, and programs that run them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from remat_cli.graph.model import Graph


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
        export: Makes its graph.
    """

    spec: str
    export: Callable[[], Graph]
