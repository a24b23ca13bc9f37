"""What a tool that recomputes is to do, as its snippet needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan
from remat_cli.spec import split_spec


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a tool is to do.

    Attributes:
        graph: The graph.
        plan: The plan.
        options: The options of the strategy that make this plan.
        facts: What is predicted, as lines of a comment.
    """

    graph: Graph
    plan: Plan
    options: Mapping[str, str]
    facts: tuple[str, ...] = ()

    @classmethod
    def of(cls, graph: Graph, plan: Plan, facts: tuple[str, ...] = ()) -> Chosen:
        """What ``plan`` says."""
        return cls(graph, plan, split_spec(plan.strategy)[1], facts)

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of modules or values, the distance of layers, or the kind of a setting and what it names."""
        for key in ("modules", "saved"):
            if key in self.options:
                return () if self.options[key] == "none" else tuple(self.options[key].split("+"))
        if "setting" in self.options:
            kind, _, names = self.options["setting"].partition("/")
            return (kind, *names.split("+")) if names else (kind,)
        return (self.options["n"],) if "n" in self.options else ()
