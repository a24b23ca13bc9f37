"""What ``fit`` says on standard error: where it stands, on a terminal, and a line for each plan that it has made."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remat_cli.control import Progress
from remat_cli.frontends.messages import clear_live, show_live, tell_stderr
from remat_cli.frontends.torch.train.report import Fitted, saving
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.replay import replay

if TYPE_CHECKING:
    from remat_cli.plan.model import Plan

_EVERY_S = 0.2
"""Seconds between two texts of the line on a terminal."""


@dataclass(slots=True)
class Announcer:
    """Tells of the plans of one module.

    Attributes:
        name: The module.
        quiet: Whether another process tells it all.
        started_s: ``time.monotonic()`` at which the planning began that is under way.
        shown_s: The same, when the line on the terminal was last written.
        unit: Unit of the costs of the plans.
        note: What else there is to say of the plans of the first batch.
        search_s: Seconds that the searches took so far; None before the first one.
        own: Type and shape of each tensor of the module; others are inputs.
    """

    name: str
    quiet: bool = False
    started_s: float = field(default_factory=time.monotonic)
    shown_s: float = 0.0
    unit: str = ""
    note: str = ""
    search_s: float | None = None
    own: frozenset[tuple[str, tuple[int, ...]]] = frozenset()

    @classmethod
    def of(cls, module: Any, *, quiet: bool) -> Announcer:
        """Tells of the plans of ``module``."""
        tensors = [*module.parameters(), *module.buffers()]
        own = frozenset((str(tensor.dtype).rpartition(".")[2], tuple(tensor.shape)) for tensor in tensors)
        return cls(type(module).__name__, quiet, own=own)

    @contextlib.contextmanager
    def until_done(self) -> Iterator[None]:
        """Show that the module is captured; at the end, and on an error, nothing is left of what was shown."""
        if not self.quiet:
            show_live(f"capturing {self.name}")
        try:
            yield
        finally:
            clear_live()

    @contextlib.contextmanager
    def planning(self, graph: Graph, *, again: bool) -> Iterator[None]:
        """A plan of ``graph`` is sought, ``again`` after that of the first batch; then the time counts from now."""
        self.unit, self.shown_s = graph.cost_unit, 0.0
        if again:
            self.started_s = time.monotonic()
        self.progress(graph, Progress("starting"))
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.search_s = (self.search_s or 0.0) + time.monotonic() - began_s
            clear_live()

    def progress(self, graph: Graph, progress: Progress) -> None:
        """Show how far the search for a plan of ``graph`` is."""
        now = time.monotonic()
        if self.quiet or now - self.shown_s < _EVERY_S:
            return
        self.shown_s = now
        best = ""
        if progress.cost is not None and graph.no_remat_cost > 0:
            best = f", best +{max(0.0, 100 * (progress.cost / graph.no_remat_cost - 1)):.1f}%"
        show_live(f"planning {self.name}: {now - self.started_s:.0f} s{best}")

    def fitted(self, report: Fitted | None) -> None:
        """Tell what the plans of the module need."""
        if report is not None and not self.quiet:
            line = report.line(self.unit, time.monotonic() - self.started_s, self.search_s)
            tell_stderr("; ".join(filter(None, (line, self.note))))

    def planned(self, graph: Graph, plan: Plan) -> None:
        """Tell of the plan of a graph that came in training."""
        seconds = time.monotonic() - self.started_s
        if self.quiet:
            return
        seen = replay(plan.graph, plan.statements, host=plan.host if plan.copies else None)
        extra = 100 * (seen.time / graph.no_remat_cost - 1) if graph.no_remat_cost else 0.0
        figures = no_remat_peak(graph), seen.peak_bytes, plan.budget_bytes, extra, graph.cost_unit, seconds
        said = saving(*figures, host_bytes=seen.host_peak_bytes)
        tell_stderr(f"{self.name}, called with {self._inputs(graph)}: {said}")

    def _inputs(self, graph: Graph) -> str:
        """The inputs of a compiled graph: ``int64[8, 128]``."""
        places = [place for place in graph.metadata["places"] if place["kind"] == "captured"]
        named = [
            f"{place['dtype']}{place['shape']}"
            for place in places
            if (place["dtype"], tuple(place["shape"])) not in self.own
        ]
        more = f" and {len(named) - 2} more" if len(named) > 2 else ""
        return ", ".join(named[:2]) + more or "other inputs"
