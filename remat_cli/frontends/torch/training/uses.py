"""What is known of the results of a module's graphs: assumed at first, and corrected by what steps do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from remat_cli.frontends.torch.capturing.capture import Captured
from remat_cli.frontends.torch.capturing.placeholders import joint_inputs, result_kind
from remat_cli.frontends.torch.capturing.pruning import tangent_numbers
from remat_cli.frontends.torch.capturing.results import Use
from remat_cli.frontends.torch.tensors import dense_bytes, is_random

_WORTHWHILE = 0.01
"""Share of the budget that a result has to take for a plan without it to be worth the search. Untuned."""

Form = tuple[tuple[int | str, int, str], ...]
"""Number, dimensions and type of each result of a graph: the same for all batch sizes and lengths."""
Room = Callable[[Captured, Use], int]
"""Bytes of the budget if the plan of a graph recomputes anything, so that freed memory would help it; else 0."""


@dataclass(slots=True)
class Uses:
    """The use of each form of graph.

    Attributes:
        room: Says whether freed memory would help.
        known: The use assumed now.
        stated: Whether the user said which results take a gradient, so that a first step need not tell.
        assumed_gone: Whether results without a gradient are assumed to be gone in the backward pass.
    """

    room: Room
    known: dict[Form, Use] = field(default_factory=dict)
    stated: bool = False
    assumed_gone: bool = False
    _watched: set[Form] = field(default_factory=set)

    def assume(self, captured: Captured, use: Use) -> None:
        """Assume ``use`` for graphs with results like ``captured``'s; also what was assumed for others of them."""
        form = form_of(captured)
        before = self.known.get(form, use)
        self.known[form] = Use(before.takes | use.takes, before.holds | use.holds)

    def use_of(self, captured: Captured) -> Use:
        """What to assume of the results of a joint graph.

        For results of a form not seen before: the first number takes a gradient; all do if there is no number.
        """
        numbers = frozenset(tangent_numbers(captured))
        form = form_of(captured)
        known = self.known.get(form)
        if known is None:
            scalars = [given.number for given in joint_inputs(captured) if given.is_tangent and _is_number(given)]
            takes = frozenset(scalars[:1]) or numbers
            known = Use(takes, frozenset(k for k, _, _ in form if isinstance(k, int)))
            known = self.known[form] = known.without_others() if self.assumed_gone else known
        return Use(known.takes & numbers or numbers, known.holds)

    def learn(self, captured: Captured, assumed: Use, seen: Use) -> bool:
        """Take note of what a step has done with the results. Whether the graph is to be planned again."""
        form = form_of(captured)
        first = form not in self._watched
        self._watched.add(form)
        known = self.known[form]
        more = Use(known.takes | seen.takes, known.holds | seen.holds)
        if more != known:
            self.known[form] = more
            if not seen.takes <= assumed.takes:
                names = ", ".join(str(k) for k in sorted(seen.takes - assumed.takes, key=str))
                warnings.warn(
                    f"remat: result {names} of the module takes a gradient, which was not assumed: this step computes "
                    "its forward pass twice, and later steps have a plan that expects it (returns=[...] says so "
                    "beforehand)",
                    stacklevel=2,
                )
            elif not seen.holds <= assumed.holds:
                kept = ", ".join(str(k) for k in sorted(seen.holds - assumed.holds))
                warnings.warn(
                    f"remat: result {kept} of the module is still there in the backward pass, which was not assumed: "
                    "this step may exceed the budget, and later steps have a plan that counts it",
                    stacklevel=2,
                )
        elif first and seen != known and not self.stated:
            fewer = Use(seen.takes or known.takes, seen.holds & known.holds)
            if self._gains(captured, known, fewer):
                self.known[form] = fewer
        return self.use_of(captured) != assumed

    def _gains(self, captured: Captured, known: Use, fewer: Use) -> bool:
        """Whether a plan that assumes ``fewer`` would recompute noticeably less."""
        room = self.room(captured, known)
        results = _result_bytes(captured)
        freed = sum(results.get(k, 0) for k in known.holds - fewer.holds)
        freed += sum(results.get(k, 0) for k in known.takes - fewer.takes)
        return room > 0 and freed > _WORTHWHILE * room


def copied_bytes(captured: Captured, use: Use) -> int:
    """Bytes that a step keeps to be able to compute everything a second time.

    These are copies of what it updates, and the state of the random generator.
    """
    import torch

    if use.takes.issuperset(tangent_numbers(captured)):
        return 0
    inputs = joint_inputs(captured)
    kinds = (result_kind(captured, k, inputs) for k in range(captured.forward_outputs))
    updated = {of for kind, of in kinds if kind == "update" and isinstance(of, int)}
    draws = any(is_random(node) for node in captured.joint.graph.nodes)
    state = int(torch.get_rng_state().numel()) if draws else 0  # that of CUDA is smaller, and not on the device
    return state + sum(inputs[of].placeholder.spec.bytes for of in updated)


def _is_number(given: Any) -> bool:
    return all(size == 1 for size in given.placeholder.spec.shape)


def _results(captured: Captured) -> list[tuple[int | str, Any]]:
    """Number and fake tensor of each result of the forward pass, updates left out."""
    inputs = joint_inputs(captured)
    output = next(iter(reversed(captured.joint.graph.nodes)))
    found = []
    for k, node in enumerate(output.args[0][: captured.forward_outputs]):
        kind, of = result_kind(captured, k, inputs)
        if node is not None and kind == "result":
            found.append((of, node.meta["val"]))
    return found


def form_of(captured: Captured) -> Form:
    """The form of the results of a joint graph."""
    return tuple((of, value.ndim, str(value.dtype)) for of, value in _results(captured))


def _result_bytes(captured: Captured) -> dict[int | str, int]:
    return {of: dense_bytes(value) for of, value in _results(captured)}
