"""The stages of ``offload``, on an incumbent whose objective is time."""

from __future__ import annotations

from dataclasses import replace

from remat_cli.kernels import compiling
from remat_cli.strategies.conditions import UNLIMITED
from remat_cli.strategies.engine import Stage
from remat_cli.strategies.incumbent import Verdict

_ROOM = "remat_cli.strategies.copying"
_ENGINES, _CROSSING = f"{_ROOM}.annealing", f"{_ROOM}.crossing:CrossingBound"
_KERNELS: tuple[compiling.Group, ...] = ("copying",)

_COMPILE = Stage(
    "compile-copying",
    "remat_cli.strategies.engine:CompiledLoops",
    "compiles inner loops beside the search, in the first run after an installation",
    options={"groups": _KERNELS},
)
_RECOMPUTE_ALONE = Stage(
    "recompute-alone", f"{_ENGINES}:RecomputeAlone", "gives the plan of auto without copies", share=0.3, most_s=15.0
)
_COPY_ALONE = Stage(
    "copy-alone", f"{_ENGINES}:CopyAlone", "copies what waits longest, and computes nothing again", kernels=_KERNELS
)
_CROSSING_PROOF = Stage(
    "crossing-proof",
    _CROSSING,
    "bounds the time of all plans with any copies, and gives solutions to start from",
    share=0.5,
    most_s=60.0,
    writes_model=True,
    kernels=_KERNELS,
)
_ANNEALING = Stage(
    "annealing",
    f"{_ENGINES}:Annealing",
    "changes copies and recomputations while there is time, or without a limit while it gains",
    kernels=_KERNELS,
)
_TIDYING = Stage(
    "tidying",
    f"{_ENGINES}:Tidying",
    "removes copies that save no time",
    until=Verdict.IMPOSSIBLE,
    kernels=_KERNELS,
)


def offload(*, copying: bool = True, computing: bool = True) -> tuple[Stage, ...]:
    """The stages.

    Args:
        copying: Whether values may be copied.
        computing: Whether nodes may be computed again.
    """
    moves = {"copying": copying, "computing": computing}
    proof = replace(_CROSSING_PROOF, options={"relaxed": False, **moves})
    relaxed = Stage(
        "crossing-relaxed",
        _CROSSING,
        "gives a bound and a start in a fraction of the time of the models themselves",
        options={"relaxed": True, **moves},
        share=0.25,
        most_s=30.0,
        kernels=_KERNELS,
    )
    first = replace(
        _ANNEALING,
        name="annealing-first",
        why="improves the starts; little time before the proof, whose solutions are better starts",
        options={"rounds": 1, **moves},
        share=0.2,
        most_s=10.0,
    )
    return (
        _COMPILE,
        *((_RECOMPUTE_ALONE,) if computing else ()),
        *((_COPY_ALONE,) if copying else ()),
        relaxed,
        first,
        proof,
        replace(_ANNEALING, options=moves),
        replace(proof, name="crossing-proof-last", why="goes on without a time limit", when=UNLIMITED),
        _TIDYING,
    )
