"""The facts of one invocation of the command line; Click carries them as ``ctx.obj``."""

import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path

import click

COMPLETION = "_REMAT_COMPLETE"
"""Set in the environment when a shell asks for completions."""


@dataclass(slots=True)
class Session:
    """One invocation.

    Attributes:
        started_s: ``time.monotonic()`` at its start; time limits count from here.
        color: ``--color`` of the command, once it is known.
        arguments: The arguments after ``remat``.
        config: The configuration file that is used; None for none.
    """

    started_s: float = field(default_factory=time.monotonic)
    color: str = "auto"
    arguments: tuple[str, ...] = ()
    config: Path | None = None

    def command_line(self) -> str:
        """The command as a line for the shell."""
        return shlex.join(["remat", *self.arguments])


def current() -> Session:
    """The session of the running command, or a new one if no command runs."""
    context = click.get_current_context(silent=True)
    session = None if context is None else context.find_object(Session)
    return Session() if session is None else session
