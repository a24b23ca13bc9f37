"""Trains by plan inside Inductor: joint graphs are divided by plan, and Inductor compiles both parts.

A plan may assume that some results take no gradient, or are let go before the backward pass, as in
:mod:`remat_cli.frontends.torch.training.watching`. If a gradient comes that it does not expect, the step is computed
once more, from its inputs and with the same random numbers, by plain Inductor. Later steps have a plan that expects it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.errors import ExecutionFailed
from remat_cli.frontends.torch.capturing.capture import Captured
from remat_cli.frontends.torch.capturing.costs import CostModel
from remat_cli.frontends.torch.capturing.lower import lower
from remat_cli.frontends.torch.capturing.placeholders import joint_inputs, result_kind
from remat_cli.frontends.torch.capturing.results import Number, Use, gradient_sources, tangent_numbers
from remat_cli.frontends.torch.codec import dtype_named
from remat_cli.frontends.torch.compat.autograd import compiled_node
from remat_cli.frontends.torch.compat.dynamo import leave_out_logging
from remat_cli.frontends.torch.compat.fake_tensors import exact_sizes, without_data
from remat_cli.frontends.torch.compat.inductor import Around, inductor
from remat_cli.frontends.torch.executing.program import generator_state
from remat_cli.frontends.torch.export import described
from remat_cli.frontends.torch.inductor.division import UNUSED
from remat_cli.frontends.torch.inductor.library_calls import with_library_workspaces
from remat_cli.frontends.torch.inductor.partitioner import SETTINGS, FindPlan, Partitioner, held, whole_use
from remat_cli.frontends.torch.tensors import is_random
from remat_cli.frontends.torch.training.backend import Compiled, Find, Refuse, Results, devices
from remat_cli.frontends.torch.training.uses import copied_bytes
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan


def inductor_backend(find: Find, refuse: Refuse, results: Results | None = None) -> Callable[[Any, list[Any]], Any]:
    """A backend for ``torch.compile`` as ``backend_of`` makes them, but Inductor compiles what is planned.

    If ``results`` is None, all results are assumed to take a gradient and to stay until the backward pass, as Inductor
    assumes.
    """

    def backend(graph_module: Any, example_inputs: list[Any]) -> Any:
        if results is not None:
            return _Watched(graph_module, example_inputs, find, refuse, results)
        partitioner = Partitioner(finder(find), refuse, "backend", without_data(example_inputs))
        return inductor(graph_module, example_inputs, partitioner=partitioner, settings=SETTINGS)

    leave_out_logging()
    return backend


def finder(find: Find) -> FindPlan:
    """``find`` for a partitioner."""

    def found(captured: Captured, graph: Graph, use: Use) -> Plan | None:
        return find(Compiled(captured, graph, devices(captured.tensors)[1], use))

    return found


def costed(compiled: Compiled, costs: CostModel, reserve_bytes: int) -> Graph:
    """The graph of what Inductor compiles, with costs and, on a CPU, with the workspace of calls of libraries.

    Its fixed memory is that of its inputs and the reserve.
    """
    captured = compiled.captured
    graph = lower(captured, costs.cost, "compiled", held(captured))
    graph = described(graph, captured, costs, source="torch:compile", device=compiled.device)
    graph = with_library_workspaces(graph) if compiled.device == "cpu" else graph
    return replace(graph, fixed_memory=graph.fixed_memory + reserve_bytes)


def device_of(tensors: Sequence[Any]) -> str:
    """The device of a graph, for rates."""
    return devices(tensors)[0]


@dataclass(frozen=True, slots=True)
class _Assumed:
    """What a compiled graph assumes of its results.

    Attributes:
        captured: The joint graph, with all tangents.
        use: What is assumed.
        numbers: The results of all tangents, in order.
        specs: Type and layout of these tangents.
        sources: For each gradient, the tangents that it depends on; empty if there is none.
        updated: The inputs that the step updates.
        draws: Whether it draws random numbers.
        device: Where it runs.
    """

    captured: Captured
    use: Use
    numbers: tuple[Number, ...]
    specs: tuple[Any, ...]
    sources: tuple[frozenset[Number], ...]
    updated: frozenset[int]
    draws: bool
    device: str

    @classmethod
    def of(cls, captured: Captured, use: Use) -> _Assumed:
        """What ``use`` means for a joint graph."""
        inputs = joint_inputs(captured)
        kinds = [result_kind(captured, k, inputs) for k in range(captured.forward_outputs)]
        tangents = [given for given in inputs if given.is_tangent]
        return cls(
            captured=captured,
            use=use,
            numbers=tuple(given.number for given in tangents),
            specs=tuple(given.placeholder.spec for given in tangents),
            sources=tuple(gradient_sources(captured)),
            updated=frozenset(of for kind, of in kinds if kind == "update" and isinstance(of, int)),
            draws=any(is_random(node) for node in captured.joint.graph.nodes),
            device=devices(captured.tensors)[0],
        )

    @property
    def partial(self) -> bool:
        """Whether some tangents are not expected."""
        return not self.use.takes.issuperset(self.numbers)


@dataclass(slots=True)
class _Call:
    """One call of the compiled graph: what is needed to run it again, and weak references to its results."""

    places: list[Any] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    random: Any = None
    results: list[Any] = field(default_factory=list)


class _Watched:
    """A compiled graph that is compiled again once its results turn out to be used in another way than assumed."""

    def __init__(self, graph_module: Any, inputs: Sequence[Any], find: Find, refuse: Refuse, results: Results) -> None:
        self._graph_module, self._find, self._refuse, self._results = graph_module, find, refuse, results
        self._assumed: _Assumed | None = None
        self._stale = False
        self._plan: Plan | None = None
        self._told: list[Use] = []
        self._now = threading.local()
        self._run = self._compiled(inputs)

    def __call__(self, *args: Any) -> Any:
        import torch

        if self._stale:
            with exact_sizes(), torch.enable_grad():
                self._run = self._compiled(args)
            self._stale = False
        assumed = self._assumed
        if assumed is None:
            return self._run(*args)
        call = _begun(assumed, args)
        results = self._run(*args)
        self._watch(assumed, call, results)
        return results

    def _compiled(self, inputs: Sequence[Any]) -> Any:
        """The graph, compiled by plan."""
        found: list[_Assumed] = []

        def find(captured: Captured, graph: Graph, use: Use) -> Plan | None:
            copied = copied_bytes(captured, use)
            plan = self._find(Compiled(captured, graph, devices(captured.tensors)[1], use, self._plan, copied))
            self._plan = plan or self._plan
            return plan

        def planned(captured: Captured, use: Use) -> None:
            if tangent_numbers(captured):
                found.append(_Assumed.of(captured, use))

        def use_of(captured: Captured) -> Use:
            numbers = tangent_numbers(captured)
            if any(isinstance(number, str) for number in numbers):  # memory that results are views of
                return whole_use(captured)
            return self._results.use_of(captured)

        def around(part: Any) -> Around | None:
            if UNUSED not in part.meta or not found:
                return None
            assumed = found[-1]
            return Around(part.meta[UNUSED], lambda function: self._backward(assumed, function))

        # What is kept of a compilation must not keep a batch.
        partitioner = Partitioner(find, self._refuse, "backend", without_data(inputs), use_of, planned)
        made = inductor(self._graph_module, list(inputs), partitioner=partitioner, settings=SETTINGS, around=around)
        if self._stale and not found:  # no plan was found, and a warning said so: the one that there is stays
            return self._run
        self._told.clear()
        self._assumed = found[-1] if found else None
        return made

    def _watch(self, assumed: _Assumed, call: _Call, results: Any) -> None:
        """Prepare the backward pass of a call that has returned ``results``."""
        nodes = (compiled_node(results[number]) for number in assumed.numbers if isinstance(number, int))
        node = next((found[0] for found in nodes if found is not None), None)
        if node is None:  # no backward pass will follow
            return
        call.results = [weakref.ref(result) if hasattr(result, "grad_fn") else None for result in results]
        node.set_materialize_grads(False)
        node.register_prehook(lambda _tangents: setattr(self._now, "call", call))

    def _backward(self, assumed: _Assumed, function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """The backward function: it gets all tangents, and passes on those that the plan expects."""

        def backward(args: list[Any]) -> list[Any]:
            call, self._now.call = getattr(self._now, "call", None), None
            first = len(args) - len(assumed.numbers)
            tangents = args[first:]
            del args[first:]
            given = frozenset(k for k, tangent in zip(assumed.numbers, tangents, strict=True) if tangent is not None)
            if call is not None:
                self._learn(assumed, call, given)
            if given <= assumed.use.takes:
                for number, tangent, spec in zip(assumed.numbers, tangents, assumed.specs, strict=True):
                    if number in assumed.use.takes:
                        args.append(_zeros(spec, assumed.device) if tangent is None else tangent)
                tangents.clear()
                made = function(args)
            else:
                args.clear()
                made = self._computed_again(call, assumed, given, [t for t in tangents if t is not None])
            # What depends only on undefined gradients is undefined in eager mode, and an optimizer then skips it.
            pairs = zip(made, assumed.sources, strict=True)
            return [None if source and source.isdisjoint(given) else one for one, source in pairs]

        return backward

    def _learn(self, assumed: _Assumed, call: _Call, given: frozenset[Number]) -> None:
        there = frozenset(k for k, result in enumerate(call.results) if result is not None and result() is not None)
        seen = Use(given, there)
        if seen not in self._told:  # nearly every step is as the one before
            self._told.append(seen)
            self._stale = self._results.learn(assumed.captured, assumed.use, seen) or self._stale

    def _computed_again(
        self, call: _Call | None, assumed: _Assumed, given: frozenset[Number], tangents: list[Any]
    ) -> list[Any]:
        """The gradients, after a second forward pass by plain Inductor."""
        import torch

        if call is None or [place._version for place in call.places] != call.versions:
            raise ExecutionFailed(
                "a result takes a gradient that was assumed to take none, and an input of the step has been changed "
                "since, so that the step cannot be computed again",
                hint='name all results that take a gradient: fit(..., returns=["loss", ...])',
            )
        get_state, set_state = generator_state(assumed.device)
        with exact_sizes(), torch.enable_grad():
            places = [place.detach().requires_grad_(place.requires_grad) for place in call.places]
            whole = inductor(self._graph_module, places, partitioner=None)
            now = get_state()
            if call.random is not None:
                set_state(call.random)
            results = whole(*places)
            set_state(now)
        wanted = [place for place in places if place.requires_grad]
        roots = [results[number] for number in assumed.numbers if number in given and isinstance(number, int)]
        found = iter(torch.autograd.grad(roots, wanted, tangents, allow_unused=True))
        return [next(found) if place.requires_grad else None for place in places]


def _begun(assumed: _Assumed, args: Sequence[Any]) -> _Call:
    """What is needed to run a call again."""
    call = _Call()
    if assumed.partial:
        # The forward graph writes into what it updates.
        call.places = [place.clone() if k in assumed.updated else place for k, place in enumerate(args)]
        call.versions = [place._version for place in call.places]
        call.random = generator_state(assumed.device)[0]() if assumed.draws else None
    return call


def _zeros(spec: Any, device: str) -> Any:
    import torch

    return torch.empty_strided(spec.shape, spec.stride, dtype=dtype_named(spec.dtype), device=device).zero_()
