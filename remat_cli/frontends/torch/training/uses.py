"""What is known of the results of a module's graphs: assumed at first, and corrected by what steps do."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from remat_cli.frontends.messages import warn
from remat_cli.frontends.torch.capturing.capture import Captured
from remat_cli.frontends.torch.capturing.placeholders import joint_inputs, result_kind
from remat_cli.frontends.torch.capturing.results import Use, tangent_numbers
from remat_cli.frontends.torch.tensors import dense_bytes, is_random
from remat_cli.units import format_bytes


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


@dataclass(slots=True)
class Uses:
    """The use of each form of graph.

    Attributes:
        known: The use assumed now.
        elsewhere: The results of each form that other parts hold, if they are there in the backward pass; they count
            there.
    """

    known: dict[Form, Use] = field(default_factory=dict)
    elsewhere: dict[Form, frozenset[int]] = field(default_factory=dict)

    def assume(self, captured: Captured, use: Use, whole: Use) -> None:
        """Assume ``use`` for graphs with results like ``captured``'s; also what was assumed for others of them.

        Args:
            captured: A part of a module.
            use: What is assumed.
            whole: The same if all that the module returns stays: other parts hold the rest, if anything does.
        """
        form = form_of(captured)
        before = self.known.get(form, use)
        self.known[form] = Use(before.takes | use.takes, before.holds | use.holds)
        others = form.numbers - whole.holds
        self.elsewhere[form] = self.elsewhere.get(form, others) & others

    def use_of(self, captured: Captured) -> Use:
        """What to assume of the results of a joint graph.

        For results of a form not seen before: the first number takes a gradient, all do if there is no number, and all
        of them stay.
        """
        numbers = frozenset(tangent_numbers(captured))
        form = form_of(captured)
        if form not in self.known:
            scalars = [given.number for given in joint_inputs(captured) if given.is_tangent and _is_number(given)]
            self.known[form] = Use(frozenset(scalars[:1]) or numbers, form.numbers)
        known = self.known[form]
        return Use(known.takes & numbers or numbers, known.holds)

    def learn(self, captured: Captured, assumed: Use, seen: Use) -> bool:
        """Take note of what a step has done with the results. Whether the graph is to be planned again.

        A step that refutes an assumption is told of by a warning; the next one has another plan.
        """
        form = form_of(captured)
        known = self.known[form]
        takes = seen.takes - known.takes
        holds = (seen.holds & form.numbers) - known.holds - self.elsewhere.get(form, frozenset())
        if takes:
            warn(
                f"remat: result {_listed(takes)} of the module takes a gradient, which was not assumed: this step "
                "computes its forward pass twice, and the next one has a plan that expects it (returns=[...] says so "
                "beforehand)"
            )
        if holds:
            sizes = {of: dense_bytes(value) for of, value in _results(captured)}
            warn(
                f"remat: result {_listed(holds)} of the module is still there in the backward pass, and holds= says "
                f"that it is not: this step takes {format_bytes(sum(sizes[k] for k in holds))} more than its plan, and "
                "the next one has a plan that counts it"
            )
        self.known[form] = Use(known.takes | takes, known.holds | holds)
        return self.use_of(captured) != assumed


def _listed(results: Collection[int | str]) -> str:
    return ", ".join(map(str, sorted(results, key=str)))


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
