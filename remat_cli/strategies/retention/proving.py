"""Engines that prove bounds on all schedules in document order (see ``proof``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from remat_cli.strategies.engine import Engine
from remat_cli.strategies.retention.proof import InStageProof, Proof

_REHEARSAL_DEPTH, _REHEARSAL_GAP = 1.0, 1e-3
_REHEARSAL_S, _REHEARSAL_SHARE = 15.0, 0.2
"""A small support shows which rows a proof needs, in a fraction of the time of the full one. Untuned."""


@dataclass(slots=True)
class EventProof(Engine):
    """Bounds the cost over an event support, once for each new incumbent.

    Attributes:
        tried: The incumbent's cost at the last proof; a cheaper one gives a smaller support.
    """

    uses_solver: ClassVar[bool] = True

    tried: float = math.inf

    def work(self, most_pairs: int) -> bool:
        """Prove, if the support has at most ``most_pairs`` (stage, node) pairs."""
        incumbent = self.incumbent
        if incumbent.cost < self.tried:
            proof = Proof.within(incumbent, most_pairs)
            if proof is not None:
                self.tried = incumbent.cost
                proof.run(math.inf, 1.0)
        return False


@dataclass(slots=True)
class InStageProofs(Engine):
    """Bounds the cost by the model with rows inside stages, starting with the rows of earlier turns.

    Attributes:
        steps: The steps whose rows were stated so far.
    """

    uses_solver: ClassVar[bool] = True

    steps: frozenset[tuple[int, int]] = frozenset()

    def work(self) -> bool:
        """Learn the rows on a small support if no earlier turn did, then prove with them."""
        incumbent = self.incumbent
        if not self.steps:
            rehearsal = InStageProof.of(incumbent, _REHEARSAL_DEPTH)
            rehearsal.run(incumbent.step(_REHEARSAL_S, _REHEARSAL_SHARE), gap=_REHEARSAL_GAP)
            self.steps = frozenset(rehearsal.rows.steps)
        if incumbent.over():
            return False
        proof = InStageProof.of(incumbent)
        proof.state(self.steps)
        proof.run(incumbent.context.control)
        self.steps = frozenset(proof.rows.steps)
        return True
