"""How to solve: the options that all ways of solving share."""

from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from remat_cli.errors import UsageError, wrong_type
from remat_cli.plan.host import Host
from remat_cli.plan.model import Plan
from remat_cli.tolerances import GAP
from remat_cli.units import MOST_SECONDS, as_float

OPTIMAL_GAP = GAP
"""A plan is called optimal when its proven gap is at most this (and at most the gap asked for)."""

_MODEL_SUFFIXES = (".lp", ".mps")
_SECONDS = "a number of seconds such as 60"
_TYPES: dict[str, tuple[tuple[type, ...], str, bool]] = {
    "strategy": ((str,), 'text such as "optimal"', False),
    "solver": ((str,), 'text such as "highs"', False),
    "time_limit_s": ((Real,), _SECONDS, True),
    "gap": ((Real,), "a number such as 0.001", False),
    "threads": ((Integral,), "a whole number", True),
    "seed": ((Integral,), "a whole number", False),
    "write_model": ((str, Path), "a path", True),
    "solver_log": ((str, Path), "a path", True),
    "started_s": ((Real,), _SECONDS, True),
    "reorder": ((bool,), "True or False", False),
    "split": ((bool,), "True or False", False),
    "start": ((Plan,), "a plan, as load_plan reads it", True),
    "host": ((Host,), 'a Host such as Host.of("25GB/s")', True),
}
"""For each option: its types, the same in words, and whether it may be None."""


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """How to solve.

    Attributes:
        strategy: Strategy with options: ``checkmate-ilp{stage_split=2}``.
        solver: MIP solver with options: ``cbc``.
        time_limit_s: Seconds of wall time for the whole command, from ``started_s``; None for no limit.
        gap: Relative gap at which to stop.
        threads: Threads for the solver; None for its own choice.
        seed: Random seed.
        write_model: File for the model (``.lp`` or ``.mps``).
        solver_log: File for the solver's log.
        started_s: ``time.monotonic()`` at which the time limit starts; None for the time of the call.
        reorder: Whether nodes may also run in another order than the document's.
        start: An old plan of the graph, for any budget, to start from; the answer never costs more if it fits.
        split: Whether regions may run in parts, if the graph offers it.
        host: Host memory next to the device, and how fast values get there; None for plans without copies.
    """

    strategy: str = "auto"
    solver: str = "highs"
    time_limit_s: float | None = None
    gap: float = OPTIMAL_GAP
    threads: int | None = None
    seed: int = 0
    write_model: Path | None = None
    solver_log: Path | None = None
    started_s: float | None = None
    reorder: bool = False
    start: Plan | None = None
    split: bool = True
    host: Host | None = None

    def __post_init__(self) -> None:
        """Refuse values of wrong types or out of range.

        Raises:
            UsageError: If a value has the wrong type, the gap or the time limit is out of range, the thread count is
                below one, or the suffix of the model file is neither ``.lp`` nor ``.mps``.
        """
        for name, (kinds, expected, optional) in _TYPES.items():
            value = getattr(self, name)
            if optional and value is None:
                continue
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise wrong_type(name, value, expected + (", or None" if optional else ""))
        for name in ("write_model", "solver_log"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Path(getattr(self, name)))
        if not 0 <= self.gap < 1:
            raise UsageError(f"gap {as_float(self.gap):g} is not between 0 and 1", hint="a gap of 0.0001 means 0.01%")
        if self.time_limit_s is not None and not 0 < self.time_limit_s <= MOST_SECONDS:
            raise UsageError(
                f"a time limit of {as_float(self.time_limit_s):g} seconds is not above 0 and up to {MOST_SECONDS}",
                hint="leave it out for no limit",
            )
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"{as_float(self.threads):g} threads are too few", hint="give 1 or more")
        path = self.write_model
        if path is not None and path.suffix.lower() not in _MODEL_SUFFIXES:
            raise UsageError(f"{path}: a model file ends in .mps or .lp", hint=f"write {path.stem}.lp instead")


_OF_EVERY_CELL = ("solver", "time_limit_s", "gap", "threads", "seed", "host")
"""The options that cells of a comparison have in common."""


@dataclass(frozen=True, slots=True)
class Limits(SolveOptions):
    """How every cell of a comparison is solved: ``Limits(time_limit_s=10)``; by default for at most 60 seconds.

    The comparison itself names the strategies. What else belongs to a single search is refused: ``strategy``,
    ``write_model``, ``solver_log``, ``started_s``, ``reorder`` and ``start``.
    """

    time_limit_s: float | None = 60.0

    def __post_init__(self) -> None:
        """Refuse values of wrong types or out of range, and options of a single search.

        Raises:
            UsageError: If there is such a value or option.
        """
        SolveOptions.__post_init__(self)  # super() does not work in classes with slots before Python 3.14
        for option in fields(self):
            if option.name not in _OF_EVERY_CELL and getattr(self, option.name) != option.default:
                raise UsageError(
                    f"{option.name} is an option of one search, and not of a comparison", hint="leave it out"
                )

    def of(self, strategy: str) -> SolveOptions:
        """The options of a search by ``strategy``."""
        return SolveOptions(strategy=strategy, **{name: getattr(self, name) for name in _OF_EVERY_CELL})

    def facts(self) -> dict[str, Any]:
        """The limits as data; a host only if there is one."""
        facts = {name: getattr(self, name) for name in _OF_EVERY_CELL if name != "host"}
        if self.host is None:
            return facts
        from remat_cli.plan.io import host_to_document  # with the readers of documents, which take a while to load

        return facts | {"host": host_to_document(self.host)}
