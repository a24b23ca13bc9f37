"""Progress on stderr: one live line on a terminal, a plain line every ten seconds elsewhere, nothing if quiet."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from remat_cli.cli.output import Output
from remat_cli.cli.session import current
from remat_cli.control import Progress
from remat_cli.printable import printable
from remat_cli.units import format_count, format_duration, format_percent

_PLAIN_EVERY_S = 10.0
_LIVE_EVERY_S = 0.2
_LIVE_AFTER_S = 0.5
"""Delay before the live line appears, so that nothing flickers when the answer comes at once."""
_NOTHING = 1e-9
"""An overhead below this is a rounding error of a solver, and shown as 0."""


class ProgressLine:
    """The latest progress, and its text.

    Args:
        base_cost: Cost of the graph without recomputation; costs are shown as overhead over it.
        started_s: ``time.monotonic()`` from which elapsed time counts.
    """

    def __init__(self, base_cost: float, started_s: float) -> None:
        self._base = base_cost
        self._started_s = started_s
        self._latest = Progress("starting")

    def update(self, progress: Progress) -> None:
        """Replace the latest progress. A stage without a cost or bound keeps those of earlier stages."""
        old = self._latest
        self._latest = Progress(
            progress.activity,
            old.cost if progress.cost is None else progress.cost,
            old.bound if progress.bound is None else progress.bound,
            progress.nodes,
        )

    def text(self) -> str:
        """The latest progress in one line."""
        now = self._latest
        parts = [f"{format_duration(time.monotonic() - self._started_s)}"]
        if now.cost is not None:
            parts.append(f"best {self._overhead(now.cost)}")
        if now.bound is not None:
            parts.append(f"bound {self._overhead(max(now.bound, self._base))}")
        if now.gap is not None:
            parts.append(f"gap {format_percent(now.gap)}")
        parts.append(now.activity)  # behind the figures, because a narrow terminal cuts off the end
        if now.nodes:
            parts.append(f"{format_count(now.nodes)} nodes")
        return printable("  ".join(parts))

    def _overhead(self, cost: float) -> str:
        if self._base <= 0:
            return format_count(cost)
        ratio = cost / self._base - 1
        return f"+{format_percent(ratio if ratio > _NOTHING else 0.0)}"


@contextmanager
def showing(line: ProgressLine, *, quiet: bool) -> Iterator[None]:
    """Show ``line`` on stderr while inside."""
    if quiet:
        yield
        return
    live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    stop = threading.Event()
    if live:
        color = Output(current().color).colourful(sys.stderr)
        thread = threading.Thread(target=_live, args=(line, stop, color), name="remat-progress", daemon=True)
    else:
        thread = threading.Thread(target=_plain, args=(line, stop), name="remat-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(1.0)


def _plain(line: ProgressLine, stop: threading.Event) -> None:
    while not stop.wait(_PLAIN_EVERY_S):
        print(line.text(), file=sys.stderr, flush=True)  # noqa: T201 - progress is what this file is for


def _live(line: ProgressLine, stop: threading.Event, color: bool) -> None:
    """Redraw one line through rich, which clips it to the terminal and hides the cursor."""
    if stop.wait(_LIVE_AFTER_S):
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    # rich does not count dim as a colour, and would keep it under NO_COLOR.
    look = "dim" if color else ""
    console = Console(stderr=True, no_color=not color)
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        while not stop.wait(_LIVE_EVERY_S):
            screen.update(Text(line.text(), overflow="ellipsis", no_wrap=True, style=look), refresh=True)
