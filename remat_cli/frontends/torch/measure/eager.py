"""What a training step takes in eager mode, as a graph: one node per operator that makes memory, in the order of calls.

The joint graph of a compiled step takes more or less: autograd keeps tensors that no formula in the joint graph reads,
functions with a backward pass of their own keep what they choose, variables of Python hold results, and a model may ask
whether it is compiled, and compute otherwise. So the step runs on tensors without data, and it is observed when the
memory behind each of them goes. What lives longer than its last reader is read by a node without results.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.aten.program import TANGENTS
from remat_cli.frontends.torch.capture.capture import Model, in_eager_mode
from remat_cli.frontends.torch.codec import encode, spec_of
from remat_cli.frontends.torch.compat.autograd import running_node
from remat_cli.frontends.torch.compat.operators import dispatch_mode, dropout_of_gpus, weak_storage
from remat_cli.frontends.torch.document import (
    FRONTEND,
    Argument,
    Input,
    Named,
    Operation,
    Place,
    Placeholder,
    Result,
    Returned,
    TensorSpec,
    Value,
    View,
)
from remat_cli.frontends.torch.execute.strides import is_usual
from remat_cli.frontends.torch.measure.memory import kept_bytes
from remat_cli.frontends.torch.tensors import leaves, storage_bytes
from remat_cli.frontends.torch.types import AutogradNode, DispatchMode, FakeMode, Operator, Tensor
from remat_cli.graph.model import Graph, Node, Phase

_CONTIGUOUS = ("native_batch_norm", "native_batch_norm_backward")
"""Operators whose kernels, on CPUs and of cuDNN, return contiguous tensors, or ``channels_last`` for such inputs; those
without data have the strides of the input. A linear layer copies what is not contiguous."""
_GROUPED = "_grouped_mm"
HELD = "remat.held"
"""The operator of a node that reads what something else than an operator holds."""
_STRIDED = "aten.as_strided.default"
_SUM, _SUM_IN_PLACE = "aten.add.Tensor", "aten.add_.Tensor"


def eager_graph(model: Model, mode: FakeMode, name: str) -> Graph:
    """The graph of a training step of ``model`` in eager mode, with the dropout of a GPU.

    Gradients of parameters are its outputs. It is not for running: costs are 0, and what operators write into memory
    that is there is left out.

    Raises:
        CaptureFailed: If the step cannot be followed without data.
    """
    import torch

    try:
        with in_eager_mode(model, mode) as step, dropout_of_gpus():
            with _as_kernels():
                step()  # what is made once is not counted
            gc.collect()
            trace = _Trace(model)
            with _as_kernels(trace):
                results = step()
            trained = [tensor for _, tensor in leaves(results) if tensor.requires_grad]
            del results  # as by ``loss_of(model).backward()``: the loss alone is held
            gradients = [torch.ones_like(tensor) for tensor in trained]
            trace.forward_ends(trained, gradients)
            with _as_kernels(trace):
                torch.autograd.backward(trained, gradients)
            return trace.graph(name)
    except Exception as error:  # the user's code may do anything without data
        said = " ".join(str(error).split())[:200]
        raise CaptureFailed(f"eager mode cannot be followed without data: {type(error).__name__}: {said}") from error
    finally:
        model.module.zero_grad(set_to_none=True)


@dataclass(frozen=True, slots=True)
class _Made:
    """Memory that an operator made.

    Attributes:
        spec: The tensor that it returned there.
        item: The position of this tensor among its results; None for a single one.
        size: Bytes.
    """

    spec: TensorSpec
    item: int | None
    size: int


@dataclass(slots=True)
class _Call:
    """A call of an operator that made memory.

    Attributes:
        name: The operator.
        args: Its arguments by position; those that are results of others refer to ``reads``.
        kwargs: Its arguments by name, likewise.
        reads: The memory that it reads, by number.
        makes: The memory that it makes, by number.
        phase: Its part of the step.
        gone: The memory that went after it and before the next call, by number.
        sum_of: Of a sum of two tensors of one form, the number of the first, if it may be written there.
    """

    name: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    reads: list[int]
    makes: list[int]
    phase: Phase
    gone: list[int] = field(default_factory=list)
    sum_of: int | None = None


class _Trace:
    """The calls of a step, and the memory that they make."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.places: list[Placeholder] = []
        self.given: dict[Any, Place] = {}
        self.made: list[_Made] = []
        self.calls: list[_Call] = []
        self.live: dict[Any, int] = {}
        self.phase = Phase.FORWARD
        self.sums = _Sums()
        for kind, named in (
            ("parameter", model.module.named_parameters()),
            ("buffer", model.module.named_buffers()),
            ("input", leaves([model.inputs, model.keywords])),
        ):
            for name, tensor in named:
                self._give(kind, name, tensor)

    def _give(self, kind: str, name: str, tensor: Tensor) -> Place:
        reference = weak_storage(tensor)
        if reference not in self.given:
            self.given[reference] = Place(len(self.places))
            self.places.append(Placeholder(kind, name, spec_of(tensor), storage_bytes(tensor)))
        return self.given[reference]

    def forget(self) -> None:
        """Note which memory has gone since the last call."""
        for reference in [reference for reference in self.live if reference.expired()]:
            self.calls[-1].gone.append(self.live.pop(reference))

    def note(self, function: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """Note a call that has returned."""
        new: dict[Any, _Made] = {}
        for item, tensor in _tensors_of(result):
            reference = weak_storage(tensor)
            if not any(reference in known for known in (self.live, self.given, new)):
                size = max(storage_bytes(tensor), kept_bytes(function, args, kwargs))
                new[reference] = _Made(spec_of(tensor), item, size)
        if not new:
            return
        reads: list[int] = []
        expression = partial(self._expression, reads)
        written: tuple[Any, dict[str, Any]] = (), {}
        with contextlib.suppress(CaptureFailed):  # operators of higher order take functions; nothing runs them by this
            written = encode(args, expression), {key: encode(value, expression) for key, value in kwargs.items()}
        call = _Call(str(function), *written, reads, self._numbers(new), self.phase)
        self.calls.append(call)
        self.sums.note(call, args, self.live)

    def _numbers(self, new: Mapping[Any, _Made]) -> list[int]:
        """The numbers of new memory, which lives from now on."""
        numbers = list(range(len(self.made), len(self.made) + len(new)))
        self.made += new.values()
        self.live |= dict(zip(new, numbers, strict=True))
        return numbers

    def _expression(self, reads: list[int], tensor: Tensor) -> Argument:
        """The expression for a tensor that a call reads; ``reads`` are the numbers of what it reads so far."""
        reference = weak_storage(tensor)
        number = self.live.get(reference)
        source: Argument
        if number is None:  # also what the user's code made at the first call, and keeps
            source = self.given.get(reference) or self._give("captured", f"captured{len(self.places)}", tensor)
            whole = self.places[source.number].spec
        else:
            if number not in reads:
                reads.append(number)
            source, whole = Input(reads.index(number)), self.made[number].spec
        spec = spec_of(tensor)
        if spec == whole and tensor.storage_offset() == 0:
            return source
        if spec.dtype != whole.dtype:
            flat = storage_bytes(tensor) // whole.item_bytes
            source = View(_STRIDED, (source, (flat,), (1,), 0), {})
            source = View("aten.view.dtype", (source, Named("dtype", spec.dtype)), {})
        return View(_STRIDED, (source, spec.shape, spec.stride, 0), {})  # anywhere in it

    def forward_ends(self, trained: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Note that the backward pass begins, from ``gradients`` of ``trained``."""
        self.forget()
        losses = {self.live[reference] for tensor in trained if (reference := weak_storage(tensor)) in self.live}
        for call in self.calls:
            if not losses.isdisjoint(call.makes):
                call.phase = Phase.LOSS
        specs = [spec_of(tensor) for tensor in gradients]
        self.places += [Placeholder("tangent", f"tangent{k}", spec, spec.bytes) for k, spec in enumerate(specs)]
        made = [_Made(spec, k, spec.bytes) for k, spec in enumerate(specs)]
        new = dict(zip(map(weak_storage, gradients), made, strict=True))
        self.calls.append(_Call(TANGENTS, (), {}, sorted(losses), self._numbers(new), Phase.LOSS))
        self.phase = Phase.BACKWARD

    def graph(self, name: str) -> Graph:
        """The graph of all calls."""
        self.forget()
        self.sums.node_ends()
        nodes = _Nodes(self.made)
        for call in self.calls:
            nodes.add(call, self.sums.chosen)
        gradients = self._gradients(nodes.values)
        nodes.hold(self.calls[-1], [n for n in self.live.values() if nodes.values[n] not in gradients.values()])
        graph = Graph(
            name=name,
            nodes=tuple(nodes.nodes),
            outputs=tuple(sorted(gradients.values())),
            fixed_memory=sum(place.storage_bytes for place in self.places if place.kind != "tangent"),
        )
        results = [Result("gradient", place, Value(value)) for place, value in gradients.items()]
        metadata = FRONTEND.metadata(name, "cpu", {}) | {
            "places": [place.document() for place in self.places],
            "constants": [],
            "results": [result.document(graph.value_name) for result in results],
        }
        return replace(graph, metadata=metadata)

    def _gradients(self, values: Mapping[int, int]) -> dict[int, int]:
        """The values that are gradients, by the numbers of the places of their parameters."""
        found: dict[int, int] = {}
        for parameter in self.model.module.parameters():
            number = None if parameter.grad is None else self.live.get(weak_storage(parameter.grad))
            if number is not None and values[number] not in found.values():
                found[self.given[weak_storage(parameter)].number] = values[number]
        return found


@dataclass(slots=True)
class _Nodes:
    """Makes the nodes of calls.

    Attributes:
        made: The memory of all calls.
        nodes: The nodes so far.
        values: The value of the graph that memory is, by number.
        count: Number of values so far.
        named: Number of nodes so far, by operator.
    """

    made: Sequence[_Made]
    nodes: list[Node] = field(default_factory=list)
    values: dict[int, int] = field(default_factory=dict)
    count: int = 0
    named: Counter[str] = field(default_factory=Counter)

    def add(self, call: _Call, in_place: Sequence[_Call]) -> None:
        """The node of a call, and one for what goes after it and is not read by it."""
        operation, makes = call.name, call.makes
        if call.sum_of in call.gone and any(call is one for one in in_place):
            operation, makes = _SUM_IN_PLACE, []
            self.values[call.makes[0]] = self.values[call.sum_of]
            call.gone.remove(call.sum_of)
        self._node(call, operation, call.reads, makes)
        self.hold(call, [number for number in call.gone if number not in {*call.reads, *call.makes}])

    def hold(self, call: _Call, numbers: Sequence[int]) -> None:
        """A node that reads memory, and does nothing; in the phase of ``call``."""
        if numbers:
            self._node(replace(call, args=(), kwargs={}), HELD, numbers, [])

    def _node(self, call: _Call, operation: str, reads: Sequence[int], makes: Sequence[int]) -> None:
        self.values |= {number: self.count + k for k, number in enumerate(makes)}
        self.count += len(makes)
        made = [self.made[number] for number in makes]
        op = operation.split(".")[1] if "." in operation else operation
        number, self.named[op] = self.named[op], self.named[op] + 1
        returned = tuple((Returned(one.item, one.spec),) for one in made)
        node = Node(
            id=f"{op}.{number}" if number else op,
            cost=0.0,
            inputs=tuple(self.values[number] for number in reads),
            outputs=tuple(one.size for one in made),
            recompute=operation != TANGENTS,
            op=op,
            phase=call.phase,
            payload=Operation(operation, call.args, call.kwargs, returned).document(),
        )
        self.nodes.append(node)


class _Sums:
    """Finds the sums of gradients that autograd writes into their first term.

    A gradient that comes to a node where another one waits is added to it in place if nothing else holds that one, but
    out of place while a mode listens. These are the last sums under the node that the gradient comes from, one for
    each of its edges on which something waits. Source: ``torch/csrc/autograd/input_buffer.cpp``.
    """

    def __init__(self) -> None:
        self.chosen: list[_Call] = []
        self._node: AutogradNode | None = None
        self._sums: list[_Call] = []
        self._waiting = set[tuple[AutogradNode, int]]()

    def note(self, call: _Call, args: Sequence[Any], live: Mapping[Any, int]) -> None:
        """Note a call of the step."""
        node = running_node()
        if node is not self._node:
            self.node_ends()
            self._node = node
        if node is None or call.name != _SUM:
            return
        self._sums.append(call)
        first, second = args
        if _is_tensor(second) and first.shape == second.shape and first.dtype == second.dtype and _is_whole(first):
            call.sum_of = live.get(weak_storage(first))

    def node_ends(self) -> None:
        """Note that the node of autograd that ran until now has ended."""
        count = 0
        for edge in () if self._node is None else self._node.next_functions:
            if edge[0] is not None:
                count += edge in self._waiting
                self._waiting.add(edge)
        self.chosen += self._sums[len(self._sums) - count :] if count else []
        self._node, self._sums = None, []


def _as_kernels(trace: _Trace | None = None) -> DispatchMode:
    """A mode in which operators return what their kernels do; ``trace`` notes all calls."""

    class Listening(dispatch_mode()):  # type: ignore[misc]  # torch is Any to the type checker
        def __torch_dispatch__(self, function: Operator, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if trace is not None:
                trace.forget()
            result = _laid_out(function, _called(function, args, kwargs or {}))
            if trace is not None:
                trace.note(function, args, kwargs or {}, result)
            return result

    return Listening()


def _called(function: Operator, args: Any, kwargs: Any) -> Any:
    """What an operator returns, also where its rule for tensors without data takes fewer types than its kernel.

    Products of groups of rows (``_grouped_mm``, which layers of experts use) are refused there but in bfloat16. A row
    of their result begins at a multiple of 16 bytes.
    """
    if function.overloadpacket.__name__ != _GROUPED or str(args[0].dtype) == "torch.bfloat16":
        return function(*args, **kwargs)
    first, second = args[:2]
    groups = args[2] if len(args) > 2 else kwargs.get("offs")
    counted = () if first.dim() != second.dim() else (groups if first.dim() == 2 else first).shape[:1]
    rows, columns = first.shape[-2], second.shape[-1]
    padded = -(-columns * first.element_size() // 16) * 16 // first.element_size()
    return first.new_empty((*counted, rows, padded))[..., :columns]


def _laid_out(function: Operator, result: Any) -> Any:
    """What an operator returned, with the strides that its kernel gives it."""
    if function.overloadpacket.__name__ not in _CONTIGUOUS:
        return result
    return tuple(tensor if tensor is None or is_usual(tensor) else tensor.new_empty(tensor.shape) for tensor in result)


def _tensors_of(result: Any) -> Iterator[tuple[int | None, Tensor]]:
    """Position and tensor of all tensors in a result; the position of a single tensor is None."""
    if _is_tensor(result):
        yield None, result
    elif isinstance(result, list | tuple):
        for item, (_, tensor) in enumerate(leaves(result)):
            yield item, tensor


def _is_tensor(item: Any) -> bool:
    import torch

    return isinstance(item, torch.Tensor)


def _is_whole(tensor: Tensor) -> bool:
    """Whether each place in the memory between the first and the last element of a tensor is one element."""
    return bool(spec_of(tensor).bytes == tensor.numel() * tensor.dtype.itemsize)
