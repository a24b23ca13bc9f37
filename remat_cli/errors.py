"""Every error that remat raises on purpose, with its exit code and a hint how to fix it.

All packages raise these; only ``cli/main.py`` turns them into exit codes. An exception of another type that reaches
it is a defect of remat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from remat_cli.printable import printable

SHOWN_PROBLEMS = 20
"""The number of problems of one document that are listed; the others are counted."""


MOST_PROBLEMS = 10_000
"""The number of problems of one document after which the search for more ends."""


class ExitCode(IntEnum):
    """The exit status of every command, with its meaning."""

    OK = 0
    """The answer is yes: a plan within the budget, a valid document."""
    NO = 1
    """The answer is no: infeasible, plan invalid or over budget, or not proven optimal although required."""
    USAGE = 2
    """Wrong usage or bad input."""
    SOLVER = 3
    """A solver is missing or failed, a strategy returned a plan that does not replay, or the system ran out of memory,
    processes or threads."""
    LIMIT = 4
    """A limit was reached before any plan was found."""
    DEFECT = 70
    """Something that must not happen: a defect of remat itself."""
    INTERRUPTED = 130
    """Interrupted before any plan was found."""


class Worded(str):
    """A text as it reads in Python, where options are arguments, with other words for other places.

    Attributes:
        command: The same on the command line; by default as in Python.
        fit: The same in ``fit``, for somebody who trains and has neither a document nor a graph; as in Python.
    """

    command: str
    fit: str

    def __new__(cls, python: str, command: str | None = None, fit: str | None = None) -> Worded:
        """A text with its other words."""
        text = super().__new__(cls, python)
        text.command = python if command is None else command
        text.fit = python if fit is None else fit
        return text

    def __getnewargs__(self) -> tuple[Any, ...]:
        """What to make a copy of, in another process, too."""
        return str(self), self.command, self.fit


def on_command_line(text: str) -> str:
    """``text`` as the command line words it."""
    return text.command if isinstance(text, Worded) else text


def in_fit(text: str) -> str:
    """``text`` as ``fit`` words it."""
    return text.fit if isinstance(text, Worded) else text


def worded(words: Callable[..., str], *texts: str) -> str:
    """What ``words`` makes of texts, for each place of what it says there."""
    python = words(*texts)
    if not any(isinstance(text, Worded) for text in texts):
        return python
    return Worded(python, words(*map(on_command_line, texts)), words(*map(in_fit, texts)))


class RematError(Exception):
    """Base class of all errors of remat.

    Names and texts from outside may stand in it as they are: characters that break a line or that a terminal would
    obey are escaped here.

    Args:
        message: What is wrong, in one line, without a final stop.
        hint: What the user can do about it; may be empty. It and the message may be ``Worded``.
        details: Lines that follow the message.
    """

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, message: str, *, hint: str = "", details: Sequence[str] = ()) -> None:
        self.message = worded(lambda *lines: "\n".join(map(printable, lines)), message, *details)
        self.hint = worded(printable, hint)
        super().__init__(self.message)
        if hint:
            self.add_note(f"hint: {self.hint}")  # shown below a traceback in Python


class UsageError(RematError):
    """A request that cannot be understood or met: an unknown name, an option out of range."""


def wrong_type(argument: str, value: object, expected: str, *, hint: str = "") -> UsageError:
    """The error for an argument of a function that has the wrong type; ``expected`` says in words what is taken."""
    from reprlib import repr as short

    try:
        text = short(value)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        text = "<a number of thousands of digits>"
    kind = "" if text.startswith("<") else f"{type(value).__name__} "  # <Graph vgg16: ...> says what it is
    return UsageError(f"{argument} is {kind}{text}, expected {expected}", hint=hint)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a document: where it is, what is wrong, and how to fix it.

    As in :class:`RematError`, names and texts from outside may stand in message and hint as they are.

    Attributes:
        message: What is wrong, the offending value included.
        pointer: JSON pointer to the place (``/nodes/3/memory``; empty for the whole document).
        line: Line in the file, from 1; None when unknown.
        column: Column in that line, from 1; None when unknown.
        hint: The remedy.
    """

    message: str
    pointer: str = ""
    line: int | None = None
    column: int | None = None
    hint: str = ""

    def __post_init__(self) -> None:
        """Escape what a terminal would obey."""
        object.__setattr__(self, "message", worded(printable, self.message))
        object.__setattr__(self, "hint", worded(printable, self.hint))

    def text(self, source: str) -> str:
        """The problem in one line: ``source:line:column: pointer: message (hint)``."""
        place = source
        if self.line is not None:
            place += f":{self.line}" + (f":{self.column}" if self.column is not None else "")
        parts = [place, *([self.pointer] if self.pointer else [])]

        def line(message: str, hint: str) -> str:
            return printable(": ".join([*parts, message]) + (f" ({hint})" if hint else ""))

        return worded(line, self.message, self.hint)


class InputError(RematError):
    """A document that cannot be used.

    Args:
        source: Name of the file, or ``<stdin>``.
        problems: What is wrong, in the order of the document; at least one.
    """

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        lines = [p.text(source) for p in problems[:SHOWN_PROBLEMS]]
        if len(problems) > SHOWN_PROBLEMS:
            most = "at least " if len(problems) >= MOST_PROBLEMS else ""
            lines.append(f"{source}: and {most}{len(problems) - SHOWN_PROBLEMS} more problems")
        super().__init__(lines[0], details=lines[1:])
        self.source = source
        self.problems = tuple(problems)

    @classmethod
    def of(cls, source: str, message: str, hint: str = "", *, pointer: str = "", line: int | None = None) -> InputError:
        """The error for a single problem."""
        return cls(source, [Problem(message, pointer=pointer, line=line, hint=hint)])


class Infeasible(RematError):
    """No plan fits: the answer is no. ``message`` gives the reason, ``hint`` a budget that works.

    Attributes:
        scope: The plans for which that is proven, a value of ``Scope``; empty if the strategy makes but one plan.
    """

    exit_code = ExitCode.NO
    scope: str = ""


class StrategyMismatch(RematError):
    """The strategy does not take this graph (it needs phases, or a chain); the message says why."""


class LimitReached(RematError):
    """The time limit was reached before any plan was found."""

    exit_code = ExitCode.LIMIT


class Interrupted(RematError):
    """The user interrupted before any plan was found."""

    exit_code = ExitCode.INTERRUPTED


class SolverUnavailable(RematError):
    """The requested solver is not installed; the hint says how to install it."""

    exit_code = ExitCode.SOLVER


class SolverFailed(RematError):
    """The solver crashed or gave a meaningless answer; the message ends with the last lines of its log."""

    exit_code = ExitCode.SOLVER


class OutOfResources(RematError):
    """The system ran out of memory, processes or threads; the message names what."""

    exit_code = ExitCode.SOLVER


class LicenceLimit(SolverFailed):
    """The solver works, but its licence does not cover a model of this size."""


class InvalidStrategyPlan(RematError):
    """A strategy returned a plan that the replayer rejects: a defect of the strategy, never shown as a plan."""

    exit_code = ExitCode.SOLVER


class FrameworkUnavailable(RematError):
    """The framework that a frontend needs is not installed, or not in a version it knows; the hint says what to do."""


class CaptureFailed(RematError):
    """A model could not be turned into a graph; the message names the part that failed, the hint a remedy."""


class NotOneGraph(CaptureFailed):
    """A step that PyTorch captures in parts, and not as one graph: what it calls a graph break divides it.

    Attributes:
        reason: The first graph break, in a sentence.
    """

    def __init__(self, message: str, *, reason: str, hint: str = "", details: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint, details=details)
        self.reason = reason


class TooLarge(CaptureFailed):
    """The machine has too little memory to build a model with real tensors."""


class ExecutionFailed(RematError):
    """A graph or a plan could not be run on the device; the message names the node and the reason."""


class OutOfMemory(ExecutionFailed):
    """The device ran out of memory during a run, so the plan does not fit: the answer is no."""

    exit_code = ExitCode.NO
