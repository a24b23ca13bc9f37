"""Runs a step whose plan leaves out results that take no gradient, and notices when one of them does take one.

A plan may assume that some results of a graph take no gradient (logits beside a loss), or that the loop lets them go
before the backward pass. Autograd says in each backward pass what is true: it hands over an undefined gradient for a
result that takes none. If a gradient comes that the plan does not expect, the step is computed once more, as a whole,
from its inputs and with the same random numbers, and the gradients are those of eager mode bit for bit. Later steps
have a plan that expects it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.errors import ExecutionFailed
from remat_cli.frontends.torch.capturing.results import Number, Use
from remat_cli.frontends.torch.codec import dtype_named
from remat_cli.frontends.torch.compat.autograd import compiled_node
from remat_cli.frontends.torch.document import TensorSpec
from remat_cli.frontends.torch.executing.forward_backward import ForwardBackward
from remat_cli.frontends.torch.executing.program import generator_state

Learned = Callable[[Use], None]
"""Receives what a step has really done with the results."""


@dataclass(slots=True)
class _Call:
    """One call of the forward function, as far as the backward function needs it.

    Attributes:
        results: Weak references to the results that the caller got.
        places: The tensors given; copies of those that the step updates. Empty if every tangent is expected.
        versions: How often each of them had been written to.
        random: State of the random generator before the call; None if nothing is drawn.
    """

    results: list[Any] = field(default_factory=list)
    places: list[Any] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    random: Any = None


@dataclass(slots=True)
class Watch:
    """The functions of a plan for one graph, and what it assumes of the graph's results.

    Attributes:
        planned: The functions of the plan; its tangents are those of ``use.takes``.
        use: What it assumes.
        numbers: The results of all tangents of the graph, in order.
        specs: Type and layout of these tangents.
        sources: For each place, the tangents that its gradient depends on; empty if it has none.
        updated: The places that the step updates.
        draws: Whether the step draws random numbers.
        device: Where it runs.
        other: Makes the functions of a plan that expects the tangents of these results.
        learned: Receives what each step has done.
    """

    planned: ForwardBackward
    use: Use
    numbers: Sequence[Number]
    specs: Sequence[TensorSpec]
    sources: Sequence[frozenset[Number]]
    updated: frozenset[int]
    draws: bool
    device: str
    other: Callable[[frozenset[Number]], ForwardBackward]
    learned: Learned
    _now: Any = field(default_factory=threading.local)

    @property
    def _partial(self) -> bool:
        return not self.use.takes.issuperset(self.numbers)

    def forward(self, args: list[Any]) -> list[Any]:
        """As ``planned.forward``."""
        call = _Call()
        if self._partial:
            # Updated places are written to after this function, so the copies are what a second run has to read.
            call.places = [place.clone() if k in self.updated else place for k, place in enumerate(args)]
            call.versions = [place._version for place in call.places]
            call.random = generator_state(self.device)[0]() if self.draws else None
        self._now.call = call
        made = self.planned.forward(args)
        # Another tensor object for what is saved tells whether the caller still has the result.
        results = {id(tensor) for tensor in made[: len(made) - len(self.planned.saved)]}
        for k in range(len(made) - len(self.planned.saved), len(made)):
            if id(made[k]) in results:
                made[k] = made[k].detach()
        return made

    def begun(self, results: Sequence[Any]) -> None:
        """Prepare the backward pass of a call that has just returned ``results``."""
        call, self._now.call = getattr(self._now, "call", None), None
        node = self._node(results)
        if call is None or node is None:  # no backward pass will follow
            return
        call.results = [weakref.ref(result) if hasattr(result, "grad_fn") else None for result in results]
        node.set_materialize_grads(False)
        node.register_prehook(lambda _tangents: self._enter(call))

    def _node(self, results: Sequence[Any]) -> Any:
        """The node of autograd behind ``results``."""
        for number in self.numbers:
            found = compiled_node(results[int(str(number).partition(".")[0])])
            if found is not None:
                return found[0]
        return None

    def _enter(self, call: _Call) -> None:
        self._now.call = call

    def backward(self, args: list[Any]) -> list[Any]:
        """As ``planned.backward``, for all tangents of the graph; those of results without a gradient are None."""
        call, self._now.call = getattr(self._now, "call", None), None
        first = len(args) - len(self.numbers)
        tangents = args[first:]
        given = frozenset(number for number, t in zip(self.numbers, tangents, strict=True) if t is not None)
        expected = given <= self.use.takes
        if call is not None:
            held = frozenset(k for k, result in enumerate(call.results) if result is not None and result() is not None)
            self.learned(Use(given, held))
        takes = [number in (self.use.takes if expected else given) for number in self.numbers]
        filled = [
            (t if t is not None else self._zeros(spec))
            for t, spec, takes_one in zip(tangents, self.specs, takes, strict=True)
            if takes_one
        ]
        del args[first:], tangents
        if expected:
            args += filled
            filled.clear()
            made = self.planned.backward(args)
        else:
            args.clear()
            made = self._again(call, given, filled)
        # What depends only on undefined gradients is undefined in eager mode, and an optimizer then skips it.
        return [
            None if source and source.isdisjoint(given) else one for one, source in zip(made, self.sources, strict=True)
        ]

    def _zeros(self, spec: TensorSpec) -> Any:
        import torch

        form = {"dtype": dtype_named(spec.dtype), "device": self.device}
        return torch.empty_strided(spec.shape, spec.stride, **form).zero_()

    def _again(self, call: _Call | None, given: frozenset[Number], tangents: list[Any]) -> list[Any]:
        """The gradients by another plan, which expects these tangents, after a second forward pass."""
        import torch

        if call is None or any(p._version != v for p, v in zip(call.places, call.versions, strict=True)):
            raise ExecutionFailed(
                "a result takes a gradient that was assumed to take none, and an input of the step has been changed "
                "since, so that the step cannot be computed again",
                hint='name all results that take a gradient: fit(..., returns=["loss", ...])',
            )
        functions = self.other(given)
        get_state, set_state = generator_state(self.device)
        now = get_state() if call.random is not None else None
        with torch.no_grad():
            if call.random is not None:
                set_state(call.random)
            made = functions.forward(list(call.places))
            if now is not None:
                set_state(now)
            return functions.backward(made[len(made) - len(functions.saved) :] + tangents)
