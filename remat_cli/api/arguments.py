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


def as_path(given: str | PathLike[str], argument: str = "path") -> str:
    """A path as text.

    Raises:
        UsageError: If it is of another type.
    """
    path = fspath(given) if isinstance(given, PathLike) else given
    if not isinstance(path, str) or "\0" in path:
        raise wrong_type(argument, given, "a path")
    return path


def as_text(given: Any, argument: str) -> str:
    """A text.

    Raises:
        UsageError: If it is of another type.
    """
    if not isinstance(given, str):
        raise wrong_type(argument, given, "text")
    return given


def as_number(given: Any, argument: str, expected: str, hint: str = "") -> float:
    """A number.

    Raises:
        UsageError: If it is of another type; ``expected`` says what the number means.
    """
    if isinstance(given, bool) or not isinstance(given, Real):
        raise wrong_type(argument, given, expected, hint=hint)
    return as_float(given)


def as_whole(given: Any, argument: str, least: int = 1, most: int = 2**31 - 1) -> int:
    """A whole number from ``least`` to ``most``.

    Raises:
        UsageError: If it is anything else.
    """
    if isinstance(given, bool) or not isinstance(given, Integral) or not least <= int(given) <= most:
        raise wrong_type(argument, given, f"a whole number from {least} to {most:,}")
    return int(given)


def as_training_budget(given: Any, argument: str = "budget") -> Budget:
    """The budget of a training step: as :func:`as_budget`, but a number of bytes that no step fits into is refused.

    Raises:
        UsageError: If it is no budget, or such a number.
    """
    budget = as_budget(given, argument)
    if isinstance(given, Budget | str) or budget.amount >= _LEAST_BYTES:
        return budget
    number = f"{float(given):g}"
    share = f', or "{number}%" of what a step needs without recomputation' if 1 <= given <= 100 else ""
    raise UsageError(
        f"{argument} is {number}, and a number is bytes: no training step fits into that",
        hint=f'write "{number}GB"{share}' if given else 'write a size such as "8GB"',
    )


def require_order(batch: Any, budget: Any) -> None:
    """Check that there is a budget, and that it does not stand in the place of the batch.

    Raises:
        UsageError: If not.
    """
    if isinstance(batch, str | int | float | Budget):
        told = f'"{batch}"' if isinstance(batch, str) else batch.text if isinstance(batch, Budget) else str(batch)
        raise UsageError(
            f"{told} stands in the place of the batch, which is what the module is called with",
            hint=f"fit(module, batch, {told}) has the budget after it; fit(module, None, {told}) takes the first batch "
            "of the training",
        )
    if budget is None:
        raise UsageError("fit needs a budget", hint='fit(module, batch, "8GB"), "80%" of the peak as it is, or "auto"')


def options_of(given: Any, default: SolveOptions | None = None) -> SolveOptions:
    """How to solve; ``default``, or the usual way, for None.

    Raises:
        UsageError: If it is of another type.
    """
    from remat_cli.planning.options import SolveOptions

    if given is None:
        return default or SolveOptions()
    if not isinstance(given, SolveOptions):
        hint = 'write remat.SolveOptions(strategy="optimal")'
        raise wrong_type("options", given, "SolveOptions", hint=hint)
    return given
