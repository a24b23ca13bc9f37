"""Runs a planned step that may assume too little of its results, and computes it again if it did.

A plan may assume that some results of a graph take no gradient (logits beside a loss), or that the loop lets them go
before the backward pass. Autograd tells in each backward pass what is true: it hands over an undefined gradient for a
result that takes none. If a gradient comes that the plan does not expect, the step is computed once more, as a whole,
from its inputs and with the same random numbers, so that the gradients are right. Later steps have a plan that expects
it. Eager mode and Inductor differ in how they run a step and how they run it again, and in nothing else here.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.errors import ExecutionFailed
from remat_cli.frontends.torch.capture.capture import Captured
from remat_cli.frontends.torch.capture.placeholders import joint_inputs, result_kind
from remat_cli.frontends.torch.capture.results import Number, Use, gradient_sources
from remat_cli.frontends.torch.codec import empty_tensor
from remat_cli.frontends.torch.compat.autograd import compiled_node, was_changed_in_place
from remat_cli.frontends.torch.compat.fake_tensors import exact_sizes
from remat_cli.frontends.torch.document import TensorSpec
from remat_cli.frontends.torch.execute.program import generator_state
from remat_cli.frontends.torch.tensors import is_random
from remat_cli.frontends.torch.types import AutogradNode, Tensor

CompiledGraph = Callable[..., Sequence[Tensor]]
"""A graph that a backend of ``torch.compile`` has compiled."""
Gradients = list["Tensor | None"]
"""The gradient of each input of a graph; None where it has none."""
Backward = Callable[[list[Tensor]], Gradients]
"""The backward pass of a plan, from what it reads and the tangents that it expects. It may empty its argument."""
Rerun = Callable[[Sequence[Tensor], frozenset[Number], list[Tensor], Callable[[], None]], Gradients]
"""Runs a step again: from its inputs, the results that take a gradient, and the tangents of these in order. It calls
the last argument, which rewinds the random generator, right before its forward pass."""
Learn = Callable[[Use], bool]
"""Receives what a step has really done with the results. Whether the graph is to be planned again."""


@dataclass(frozen=True, slots=True)
class Interface:
    """The inputs and results of a joint graph, and what a plan assumes of the results.

    Attributes:
        use: What it assumes.
        tangents: The results that all tangents of the graph belong to, in order.
        specs: Type and layout of these tangents.
        sources: For each input, the tangents that its gradient depends on; empty if it has none.
        updated: The inputs that the step updates.
        draws: Whether the step draws random numbers.
        device: Where it runs.
    """

    use: Use
    tangents: tuple[Number, ...]
    specs: tuple[TensorSpec, ...]
    sources: tuple[frozenset[Number], ...]
    updated: frozenset[int]
    draws: bool
    device: str

    @classmethod
    def of(cls, captured: Captured, use: Use, device: str) -> Interface:
        """That of a joint graph with all tangents, for a plan that assumes ``use``."""
        inputs = joint_inputs(captured)
        kinds = [result_kind(captured, k, inputs) for k in range(captured.forward_outputs)]
        tangents = [one for one in inputs if one.is_tangent]
        return cls(
            use=use,
            tangents=tuple(one.number for one in tangents),
            specs=tuple(one.placeholder.spec for one in tangents),
            sources=tuple(gradient_sources(captured)),
            updated=frozenset(of for kind, of in kinds if kind == "update" and isinstance(of, int)),
            draws=any(is_random(node) for node in captured.joint.graph.nodes),
            device=device,
        )

    @property
    def may_run_again(self) -> bool:
        """Whether a gradient may come that the plan does not expect."""
        return not self.use.takes.issuperset(self.tangents)


@dataclass(slots=True)
class _Call:
    """One call of the step, as far as its backward pass needs it.

    Attributes:
        inputs: Weak references to the inputs, for messages.
        input_versions: How often each of them had been written to when the call returned.
        results: Weak references to the results that the caller got.
        kept: The inputs, copies of those that the step updates. Empty if the step never runs again.
        kept_versions: How often each of them had been written to.
        random: State of the random generator before the call; None if nothing is drawn, or the step never runs again.
    """

    inputs: list[weakref.ref[Tensor] | None]
    input_versions: list[int] = field(default_factory=list)
    results: list[weakref.ref[Tensor] | None] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)
    kept_versions: list[int] = field(default_factory=list)
    random: Any = None

    def changed(self) -> list[Tensor]:
        """The inputs that have been written to since the call returned."""
        pairs = zip(self.inputs, self.input_versions, strict=True)
        alive = ((None if ref is None else ref(), version) for ref, version in pairs)
        return [tensor for tensor, version in alive if tensor is not None and tensor._version != version]


class WatchedStep:
    """A step that runs by a plan, and again, as a whole, if a gradient comes that the plan does not expect.

    A call takes this way: ``begin`` with the inputs, the forward pass, ``watch`` with the results, and in the backward
    pass ``backward``.

    Args:
        interface: Of its graph.
        rerun: Runs it again.
        learn: Receives what steps do with the results.
        name_of: The name of an input in the module; empty if it has none.
    """

    def __init__(
        self, interface: Interface, rerun: Rerun, learn: Learn, name_of: Callable[[Tensor], str] = lambda _: ""
    ) -> None:
        self.interface = interface
        self.stale = False
        """Whether a step has shown that the graph is to be planned again."""
        self._rerun, self._learn, self._name_of = rerun, learn, name_of
        self._seen: list[Use] = []
        # Backward passes run in threads of autograd, one for each device.
        self._now = threading.local()

    def begin(self, inputs: Sequence[Tensor]) -> None:
        """Keep what the backward pass of the call that now begins may need."""
        call = _Call([weakref.ref(one) if hasattr(one, "_version") else None for one in inputs])
        if self.interface.may_run_again:
            # The step writes into what it updates, and a second run has to read what was there before.
            call.kept = [one.clone() if k in self.interface.updated else one for k, one in enumerate(inputs)]
            call.kept_versions = [one._version for one in call.kept]
            call.random = generator_state(self.interface.device)[0]() if self.interface.draws else None
        self._now.call = call

    def watch(self, results: Sequence[Tensor]) -> None:
        """Prepare the backward pass of the call that has returned ``results``."""
        call, self._now.call = getattr(self._now, "call", None), None
        node = self._node(results)
        if call is None or node is None:  # no backward pass will follow
            return
        call.results = [weakref.ref(result) if hasattr(result, "grad_fn") else None for result in results]
        inputs = (None if ref is None else ref() for ref in call.inputs)
        call.input_versions = [0 if one is None else one._version for one in inputs]
        # Autograd would else make zeros for results without a gradient, and they would look like gradients.
        node.set_materialize_grads(False)
        reference = weakref.ref(node)  # the hook belongs to the node: a strong reference would be a cycle
        node.register_prehook(lambda _tangents: self._enter(call, reference()))

    def _node(self, results: Sequence[Tensor]) -> AutogradNode | None:
        """The node of autograd behind ``results``."""
        for number in self.interface.tangents:
            node = compiled_node(results[int(str(number).partition(".")[0])])
            if node is not None:
                return node[0]
        return None

    def _enter(self, call: _Call, node: AutogradNode | None) -> None:
        """The backward pass of ``call`` begins."""
        self._now.call = call
        changed = call.changed()
        if node is None or not changed:  # looking at all that is saved takes time
            return
        try:
            _ = node.saved_tensors
        except RuntimeError as error:
            if not was_changed_in_place(error):  # autograd itself tells of what else may be wrong
                return
            names = ", ".join(self._name_of(one) or f"a tensor of shape {list(one.shape)}" for one in changed)
            raise ExecutionFailed(
                f"{names} was changed in place between the forward and the backward pass, which reads what was there "
                "before",
                hint="change it after loss.backward(), or put another tensor in its place",
            ) from error

    def backward(self, run: Backward, args: list[Tensor]) -> Gradients:
        """The gradients of the step: by ``run`` if the plan expects all tangents that come.

        Args:
            run: The backward pass of the plan.
            args: What it reads, then all tangents of the graph, None for results without a gradient. Emptied.
        """
        call, self._now.call = getattr(self._now, "call", None), None
        use, numbers = self.interface.use, self.interface.tangents
        first = len(args) - len(numbers)
        tangents = args[first:]
        del args[first:]
        present = frozenset(number for number, one in zip(numbers, tangents, strict=True) if one is not None)
        if call is not None:
            self._note(call, present)
        if present <= use.takes:
            # No loop, whose variable would keep the last tangent alive while the plan runs.
            args += [
                empty_tensor(spec, self.interface.device).zero_() if one is None else one
                for number, one, spec in zip(numbers, tangents, self.interface.specs, strict=True)
                if number in use.takes
            ]
            tangents.clear()
            gradients = run(args)
        else:
            args.clear()
            gradients = self._again(call, present, [one for one in tangents if one is not None])
        # What depends only on undefined gradients is undefined in eager mode, and an optimizer then skips it.
        pairs = zip(gradients, self.interface.sources, strict=True)
        return [None if source and source.isdisjoint(present) else one for one, source in pairs]

    def _note(self, call: _Call, present: frozenset[Number]) -> None:
        """Tell ``learn`` what the loop has done with the results of ``call``."""
        held = frozenset(k for k, result in enumerate(call.results) if result is not None and result() is not None)
        seen = Use(present, held)
        if seen not in self._seen:  # nearly every step is as the one before, and looking at the graph takes time
            self._seen.append(seen)
            self.stale = self._learn(seen) or self.stale

    def _again(self, call: _Call | None, present: frozenset[Number], tangents: list[Tensor]) -> Gradients:
        """The gradients after a second run, which draws the same random numbers and leaves the generator as it was."""
        if call is None or [one._version for one in call.kept] != call.kept_versions:
            raise ExecutionFailed(
                "a result takes a gradient that was assumed to take none, and an input of the step has been changed "
                "since, so that the step cannot be computed again",
                hint='name all results that take a gradient: fit(..., returns=["loss", ...])',
            )
        get_state, set_state = generator_state(self.interface.device)

        def rewind() -> None:
            if call.random is not None:
                set_state(call.random)

        # Also where the step itself draws nothing: compiling it again may draw, and later steps must not notice.
        now = get_state()
        try:
            return self._rerun(call.kept, present, tangents, rewind)
        finally:
            set_state(now)


class ReplannedGraph:
    """A compiled graph that is compiled again once a step has used its results in another way than assumed.

    Args:
        compiled: Compiles it for its inputs. Returns it and its step; None for the step if it has no plan.
        inputs: Its first inputs.
    """

    def __init__(
        self, compiled: Callable[[Sequence[Tensor]], tuple[CompiledGraph, WatchedStep | None]], inputs: Sequence[Tensor]
    ) -> None:
        self._compiled = compiled
        self._run, self._step = compiled(inputs)

    def __call__(self, *args: Tensor) -> Sequence[Tensor]:
        """The results of the graph."""
        import torch

        if self._step is not None and self._step.stale:
            with exact_sizes(), torch.enable_grad():
                run, step = self._compiled(args)
            self._step.stale = False
            if step is not None:  # else no plan was found, and a warning said so: the one that there is stays
                self._run, self._step = run, step
        results = self._run(*args)
        if self._step is not None:
            self._step.watch(results)
        return results
