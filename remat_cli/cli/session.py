"""What one invocation of the command line knows about itself; Click carries it as ``ctx.obj``."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, field

import click


@dataclass(slots=True)
class Session:
    """One invocation.

    Attributes:
        started_s: ``time.monotonic()`` at its start; time limits count from here.
        color: ``--color`` of the command, once it is known.
        arguments: What came after ``remat``.
    """

    started_s: float = field(default_factory=time.monotonic)
    color: str = "auto"
    arguments: tuple[str, ...] = ()

    def command_line(self) -> str:
        """The command as it would be typed again."""
        return shlex.join(["remat", *self.arguments])


def current() -> Session:
    """The session of the command that runs; a fresh one where none does."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.find_object(Session)
    return Session() if found is None else found
