"""What is known of the results of a module's graphs: assumed at first, and corrected by what steps do."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from remat_cli.frontends.torch.capturing.capture import Captured
from remat_cli.frontends.torch.capturing.placeholders import joint_inputs, result_kind
from remat_cli.frontends.torch.capturing.pruning import tangent_numbers
from remat_cli.frontends.torch.capturing.results import Use
from remat_cli.frontends.torch.tensors import dense_bytes, is_random
from remat_cli.frontends.torch.warning import warn

_WORTHWHILE = 0.01
"""Share of the budget that a result has to take for a plan without it to be worth the search. Untuned."""


@dataclass(frozen=True, slots=True)
class Form:
    """What tells graphs of a module apart, and is the same for all batch sizes and lengths.

    Attributes:
        results: Number, dimensions and type of each result.
        parameters: Shapes of the parameters that the graph reads: the parts of a module often return the same.
    """

    results: tuple[tuple[int | str, int, str], ...]
    parameters: tuple[tuple[int, ...], ...]

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of the results."""
        return frozenset(k for k, _, _ in self.results if isinstance(k, int))


Recomputes = Callable[[Captured, Use], bool]
"""Whether the plan of a graph recomputes anything, so that freed memory would help it."""


@dataclass(slots=True)
class Uses:
    """The use of each form of graph.

    Attributes:
        recomputes: Says whether freed memory would help a plan.
        budget: The budget in bytes, once it is known.
        known: The use assumed now.
        stated: Whether the user said which results take a gradient, so that a first step need not tell.
        assumed_gone: Whether results without a gradient are assumed to be gone in the backward pass.
        elsewhere: The results of each form that other parts hold, if they are there in the backward pass; they count
            there.
    """

    recomputes: Recomputes
    budget: Callable[[], int | None]
    known: dict[Form, Use] = field(default_factory=dict)
    stated: bool = False
    assumed_gone: bool = False
    elsewhere: dict[Form, frozenset[int]] = field(default_factory=dict)
    _watched: set[Form] = field(default_factory=set)

    def assume(self, captured: Captured, use: Use) -> None:
        """Assume ``use`` for graphs with results like ``captured``'s; also what was assumed for others of them."""
        form = form_of(captured)
        before = self.known.get(form, use)
        self.known[form] = Use(before.takes | use.takes, before.holds | use.holds)

    def count_elsewhere(self, captured: Captured, use: Use) -> None:
        """Take the results that are not in ``use`` for results that other parts hold."""
        form = form_of(captured)
        others = form.numbers - use.holds
        self.elsewhere[form] = self.elsewhere.get(form, others) & others

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
            known = Use(takes, form.numbers)
            known = self.known[form] = known.without_others() if self.assumed_gone else known
        return Use(known.takes & numbers or numbers, known.holds)

    def learn(self, captured: Captured, assumed: Use, seen: Use) -> bool:
        """Take note of what a step has done with the results. Whether the graph is to be planned again."""
        form = form_of(captured)
        first = form not in self._watched
        self._watched.add(form)
        known = self.known[form]
        there = form.numbers - self.elsewhere.get(form, frozenset())
        seen = Use(seen.takes, seen.holds & there)
        if not seen.takes <= known.takes:
            names = ", ".join(str(k) for k in sorted(seen.takes - known.takes, key=str))
            warn(
                f"remat: result {names} of the module takes a gradient, which was not assumed: this step computes its "
                "forward pass twice, and later steps have a plan that expects it (returns=[...] says so beforehand)"
            )
            self.known[form] = Use(known.takes | seen.takes, known.holds | seen.holds)
        elif not seen.holds <= known.holds and self.matter(captured, seen.holds - known.holds):
            kept = ", ".join(str(k) for k in sorted(seen.holds - known.holds))
            warn(
                f"remat: result {kept} of the module is still there in the backward pass, which was not assumed: this "
                "step may exceed the budget, and later steps have a plan that counts it"
            )
            self.known[form] = Use(known.takes, known.holds | seen.holds)
        elif first and not self.stated:
            fewer = Use(seen.takes or known.takes, seen.holds & known.holds)
            freed = (known.holds - fewer.holds) | (known.takes - fewer.takes)
            if self.recomputes(captured, known) and self.matter(captured, freed):
                self.known[form] = fewer
        return self.use_of(captured) != assumed

    def matter(self, captured: Captured, results: Collection[int | str]) -> bool:
        """Whether these results take a noticeable share of the budget, if there is one."""
        budget = self.budget()
        sizes = {of: dense_bytes(value) for of, value in _results(captured)}
        return budget is not None and sum(sizes.get(k, 0) for k in results) > _WORTHWHILE * budget


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
    """The form of a joint graph."""
    import torch

    return Form(
        tuple((of, value.ndim, str(value.dtype)) for of, value in _results(captured)),
        tuple(tuple(map(int, t.shape)) for t in captured.tensors if isinstance(t, torch.nn.Parameter)),
    )
