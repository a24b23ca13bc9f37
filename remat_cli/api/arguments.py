"""Checks the small arguments of the functions for users: a wrong type is an error that names the argument."""

from __future__ import annotations

from numbers import Integral, Real
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from remat_cli.errors import UsageError, wrong_type
from remat_cli.units import Budget, as_budget, as_float

if TYPE_CHECKING:
    from remat_cli.planning.options import SolveOptions

_LEAST_BYTES = 1000
"""A smaller number, as the budget of a training step, is meant to be gigabytes or a percentage."""


def as_path(value: str | PathLike[str], argument: str = "path") -> str:
    """A path as text.

    Raises:
        UsageError: If it is of another type.
    """
    path = fspath(value) if isinstance(value, PathLike) else value
    if not isinstance(path, str) or "\0" in path:
        raise wrong_type(argument, value, "a path")
    return path


def as_text(value: Any, argument: str) -> str:
    """A text.

    Raises:
        UsageError: If it is of another type.
    """
    if not isinstance(value, str):
        raise wrong_type(argument, value, "text")
    return value


def as_number(value: Any, argument: str, expected: str, hint: str = "") -> float:
    """A number.

    Raises:
        UsageError: If it is of another type; ``expected`` says what the number means.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong_type(argument, value, expected, hint=hint)
    return as_float(value)


def as_whole(value: Any, argument: str, least: int = 1, most: int = 2**31 - 1) -> int:
    """A whole number from ``least`` to ``most``.

    Raises:
        UsageError: If it is anything else.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        raise wrong_type(argument, value, f"a whole number from {least} to {most:,}")
    return int(value)


def as_training_budget(value: Any, argument: str = "budget") -> Budget:
    """The budget of a training step: as :func:`as_budget`, but a number of bytes that no step fits into is refused.

    Raises:
        UsageError: If it is no budget, or such a number.
    """
    budget = as_budget(value, argument)
    if isinstance(value, Budget | str) or budget.amount >= _LEAST_BYTES:
        return budget
    number = f"{float(value):g}"
    share = f', or "{number}%" of what a step needs without recomputation' if 1 <= value <= 100 else ""
    raise UsageError(
        f"{argument} is {number}, and a number is bytes: no training step fits into that",
        hint=f'write "{number}GB"{share}' if value else 'write a size such as "8GB"',
    )


def require_order(batch: Any, budget: Any) -> None:
    """Check that there is a budget, and that it does not stand in the place of the batch.

    Raises:
        UsageError: If not.
    """
    if isinstance(batch, str | int | float | Budget):
        shown = f'"{batch}"' if isinstance(batch, str) else batch.text if isinstance(batch, Budget) else str(batch)
        raise UsageError(
            f"{shown} stands in the place of the batch, which is what the module is called with",
            hint=f"fit(module, batch, {shown}) has the budget after it; fit(module, None, {shown}) takes the first "
            "batch of the training",
        )
    if budget is None:
        raise UsageError("fit needs a budget", hint='fit(module, batch, "8GB"), "80%" of the peak as it is, or "auto"')


def options_of(value: Any, default: SolveOptions | None = None) -> SolveOptions:
    """How to solve; ``default``, or the usual way, for None.

    Raises:
        UsageError: If it is of another type.
    """
    from remat_cli.planning.options import SolveOptions

    if value is None:
        return default or SolveOptions()
    if not isinstance(value, SolveOptions):
        hint = 'write remat.SolveOptions(strategy="optimal")'
        raise wrong_type("options", value, "SolveOptions", hint=hint)
    return value
