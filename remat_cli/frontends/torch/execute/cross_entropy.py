"""A softmax, its cross entropy and their gradient for a part of the rows, in the memory of the logits.

PyTorch's four operators have three tensors of that size in memory at once. Here each step overwrites the last, as in
``torch.nn.functional.linear_cross_entropy`` for a chunk of the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.frontends.aten.division_rules import LIKELIHOODS, Rows
from remat_cli.frontends.torch.document import Step, Value, View
from remat_cli.frontends.torch.execute.part_calls import PartCall, tensors_of
from remat_cli.frontends.torch.types import Tensor

CROSS_ENTROPY = "remat.cross_entropy"
"""The name of :func:`cross_entropy` among operators."""

_SOFTMAX, _SOFTMAX_GRADIENT = "aten._log_softmax.default", "aten._log_softmax_backward_data.default"
_LIKELIHOOD_GRADIENTS = frozenset({"aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default"})
_VIEWS = frozenset({"aten.view.default", "aten._unsafe_view.default"})
_TYPES = ("float32", "float64")
"""Numbers of 16 bits would be rounded at every step; PyTorch's operators round once."""


def cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor | None, ignored: int, scale: Tensor | None, total: Tensor | None
) -> tuple[Tensor, ...]:
    """The sum of the losses of some rows, the weight of their targets, and the gradient in the memory of ``logits``.

    Args:
        logits: Scores, with classes along dimension 1; they are overwritten.
        targets: The class of each row.
        weights: The weight of each class; None for 1.
        ignored: The target of rows that do not count.
        scale: The gradient of the loss; None if no gradient is wanted: then none is returned.
        total: What a mean is divided by; None for a sum.
    """
    import torch

    counted = (targets != ignored).unsqueeze(1)
    own = targets.unsqueeze(1).where(counted, 0)
    logits.sub_(logits.amax(1, keepdim=True))
    picked = logits.gather(1, own)
    sums = logits.exp_().sum(1, keepdim=True)
    weight = counted.to(logits.dtype)
    if weights is not None:
        weight *= weights[own]
    loss = torch.where(counted, (sums.log() - picked) * weight, 0).sum()
    if scale is None:
        return loss, weight.sum()
    each = torch.where(counted, weight * (scale if total is None else scale / total), 0)
    logits.mul_(each / sums).scatter_add_(1, own, -each)
    return loss, weight.sum(), logits


def in_one_buffer(step: Step, calls: Sequence[PartCall], results: Collection[int]) -> tuple[PartCall, ...]:
    """``calls`` with each softmax, its likelihoods and their gradients as one, where only they read what it makes.

    Args:
        step: The step, with whole operations.
        calls: The calls for a part.
        results: The values that others read.
    """
    for k, call in enumerate(calls):
        found = _Found(step, calls, results, k).joined() if call.call == _SOFTMAX else None
        if found is not None:
            gone, at, instead = found
            kept = [instead if i == at else one for i, one in enumerate(calls) if i == at or i not in gone]
            return in_one_buffer(step, kept, results)
    return tuple(calls)


@dataclass(frozen=True, slots=True)
class _Found:
    """A softmax among the calls for a part.

    Attributes:
        step: The step, with whole operations.
        calls: The calls.
        results: The values that others read.
        at: The position of the softmax.
    """

    step: Step
    calls: Sequence[PartCall]
    results: Collection[int]
    at: int

    def joined(self) -> tuple[set[int], int, PartCall] | None:
        """The calls that one stands for, which of them it takes the place of, and that one; None if there is none."""
        softmax = self.calls[self.at]
        [(number, _, state)] = softmax.made
        [returned] = self.step.tensors(number)
        axis, logits = softmax.args[1] % len(returned.spec.shape), self._logits(softmax.args[0])
        if logits is None or axis != 1 or state != Rows(0) or softmax.args[2] or returned.spec.dtype not in _TYPES:
            return None
        readers = self._readers(number)
        kinds = {self._kind(k, number): k for k in readers}
        if None in kinds or len(kinds) != len(readers) or number in self.results:
            return None
        forward, slope, backward = (kinds.get(kind) for kind in ("forward", "slope", "backward"))
        terms = [self._terms(k) for k in (forward, slope) if k is not None]
        if not terms or (slope is None) != (backward is None) or any(one != terms[0] for one in terms):
            return None
        made = () if forward is None else self.calls[forward].made
        gone, at = {self.at, *readers}, max(readers)
        if any(k <= at for value, _, _ in made for k in self._readers(value)):
            return None
        if slope is None or backward is None:
            return gone, at, self._call(at, softmax.args[0], terms[0], (None, None), made, None)
        if self.calls[backward].args[0] != Value(self.calls[slope].made[0][0]) or not self._is_read_once(slope):
            return None
        scale, *_, mean, _, total = self.calls[slope].args
        [(gradient, _, divided)] = self.calls[backward].made
        scaled = scale, total if mean == 1 else None
        return gone, at, self._call(at, softmax.args[0], terms[0], scaled, (*made, (gradient, 2, divided)), logits)

    def _call(self, at: int, logits: Any, terms: Any, scaled: Any, made: Any, over: int | None) -> PartCall:
        return PartCall(self.calls[at].node, CROSS_ENTROPY, (logits, *terms, *scaled), {}, made, over)

    def _readers(self, number: int) -> list[int]:
        return [
            k
            for k, call in enumerate(self.calls)
            if any(one == Value(number) for one in tensors_of((*call.args, *call.kwargs.values())))
        ]

    def _is_read_once(self, at: int) -> bool:
        """Whether one call reads what the call ``at`` makes, and nothing else."""
        [(number, *_)] = self.calls[at].made
        return len(self._readers(number)) == 1 and number not in self.results

    def _logits(self, argument: Any) -> int | None:
        """The value that the softmax reads, if its memory may be overwritten."""
        while isinstance(argument, View) and argument.call in _VIEWS:
            argument = argument.args[0]
        if not isinstance(argument, Value):
            return None
        made = [k for k, call in enumerate(self.calls) if argument.number in {number for number, _, _ in call.made}]
        free = bool(made) and self._readers(argument.number) == [self.at] and argument.number not in self.results
        return argument.number if free and self.calls[made[0]].over is None else None

    def _kind(self, at: int, number: int) -> str | None:
        """What a call does with the softmax."""
        call, read = self.calls[at], Value(number)
        if call.call in LIKELIHOODS and call.args[0] == read:
            return "forward"
        if call.call in _LIKELIHOOD_GRADIENTS and call.args[1] == read:
            return "slope"
        return "backward" if call.call == _SOFTMAX_GRADIENT and call.args[1] == read else None

    def _terms(self, at: int) -> tuple[Any, ...]:
        """The targets, the weights of classes and the ignored target of a likelihood or its gradient."""
        call = self.calls[at]
        first = 1 if call.call in LIKELIHOODS else 2
        return call.args[first], call.args[first + 1], call.args[first + 3]
