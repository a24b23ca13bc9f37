"""Inductor: compilation of divided graphs, marks in them, and its own rules for loops, C++ functions and layouts.

Its rules are replaced within contexts. Operators that mark nodes are defined once, under ``torch.ops.remat``; they mean
nothing in graphs that no plan has made.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from remat_cli.frontends.torch.compat.aot_autograd import takes_its_arguments
from remat_cli.frontends.torch.types import (
    FxGraph,
    FxNode,
    GraphModule,
    InductorTensor,
    Operator,
    Scheduler,
    SchedulerNode,
    Tensor,
)


def partitioner_base() -> Any:
    """The base class of objects that partition joint graphs for Inductor.

    By such an object, a plan divides the joint graph, see :func:`inductor`.
    """
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    return CustomPartitionerFn


@dataclass(frozen=True, slots=True)
class Around:
    """What is done around a compiled function.

    Attributes:
        unused: The positions of the inputs that the function does not get.
        function: From the compiled function to the one that runs, which gets all inputs in a list.
    """

    unused: tuple[int, ...]
    function: Callable[[Callable[[list[Any]], Any]], Callable[[list[Any]], Any]]


def inductor(
    graph_module: GraphModule,
    inputs: Any,
    *,
    partitioner: Any,
    compiler: Callable[[GraphModule, Any], Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    around: Callable[[GraphModule], Around | None] = lambda _part: None,
) -> Any:
    """The result of Inductor, whose joint graph ``partitioner`` divides.

    Args:
        graph_module: What to compile.
        inputs: Its inputs.
        partitioner: An object of a class with :func:`partitioner_base`; None for Inductor's own way.
        compiler: Takes Inductor's place for both parts; None for Inductor.
        settings: Other settings of Inductor.
        around: What is done around the compiled function of a part; None for nothing.
    """
    import torch
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def compiled(part: GraphModule, example_inputs: Any, **options: Any) -> Any:
        if compiler is not None:
            return compiler(part, example_inputs)
        surroundings = around(part)
        if surroundings is None:
            return compile_fx_inner(part, example_inputs, **options)
        positions = [k for k in range(len(example_inputs)) if k not in surroundings.unused]
        for k, node in enumerate(part.graph.find_nodes(op="placeholder")):
            if k in surroundings.unused:
                part.graph.erase_node(node)
        part.recompile()
        return takes_its_arguments(
            surroundings.function(compile_fx_inner(part, [example_inputs[k] for k in positions], **options))
        )

    patches = {"custom_partitioner_fn": partitioner, **(settings or {})}
    # AOTAutograd's cache would serve what another plan has made, and not call the partitioner. Inductor's own goes by
    # the graphs that the partitioner returns.
    with torch._functorch.config.patch(enable_autograd_cache=False):
        return compile_fx(graph_module, list(inputs), inner_compile=compiled, config_patches=patches)


def stored(graph: FxGraph, node: FxNode) -> FxNode:
    """A node after ``node`` in ``graph`` that stands for its result, which Inductor then stores, in any layout.

    Without this it may compute the result wherever it is read.
    """
    return _marked(graph, node, _mark("stored", _lower_stored))


def inlined(graph: FxGraph, node: FxNode) -> FxNode:
    """A node after ``node`` in ``graph`` that stands for its result, which Inductor then computes where it is read.

    Without this it may store a result that is read several times, once for each copy of ``node``.
    """
    return _marked(graph, node, _mark("inlined", _lower_inlined))


def apart(graph: FxGraph, node: FxNode) -> FxNode:
    """A node after ``node`` in ``graph`` that stands for its result, which Inductor then stores in memory of its own.

    Without this a concatenation may take that memory in: then the whole concatenation stays as long as the result.
    """
    return _marked(graph, node, _mark("apart", _lower_apart))


def laid_out(graph: FxGraph, node: FxNode, layout: Any) -> FxNode:
    """A node after ``node`` in ``graph`` that stands for its result, which Inductor then stores in a certain layout.

    That is ``torch.contiguous_format`` or ``torch.channels_last``.
    """
    import torch

    if layout is torch.channels_last:
        return _marked(graph, node, _mark("channels_last", _lower_channels_last))
    return _marked(graph, node, _mark("contiguous", _lower_contiguous))


def lay_out_joined(node: FxNode) -> None:
    """Let Inductor store the concatenation of images that ``node`` is with channels last; its parts are made in it.

    Without this it may store a concatenation contiguous, and copy it for the convolution that reads it.
    """
    node.target = _operator("joined", "(Tensor[] tensors, int dim=0) -> Tensor", _lower_joined, _join)


def leave_to_library(node: FxNode) -> None:
    """Let Inductor call the operator of ``node`` as it is: it then asks for no layouts of its own.

    So oneDNN computes gradients of convolutions that read contiguous copies.
    """
    node.meta["should_fallback"] = True


def _marked(graph: FxGraph, node: FxNode, operator: Operator) -> FxNode:
    """A node after ``node`` that applies the mark ``operator`` to its result."""
    with graph.inserting_after(node):
        mark = graph.call_function(operator, (node,))
    mark.meta = dict(node.meta)
    return mark


def _mark(name: str, lower: Callable[[InductorTensor], InductorTensor]) -> Operator:
    """An operator that returns its argument; ``lower`` says what Inductor makes of it."""
    return _operator(name, "(Tensor(a) tensor) -> Tensor(a)", lower, _same)


def _same(tensor: Tensor) -> Tensor:
    """What a mark computes: its argument."""
    return tensor


def _join(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """What the operator of :func:`lay_out_joined` computes: a concatenation."""
    import torch

    return torch.cat(tensors, dim)


@functools.cache
def _operator(name: str, signature: str, lower: Callable[..., Any], run: Callable[..., Any]) -> Operator:
    """An operator that does what ``run`` does; ``lower`` says what Inductor makes of it."""
    import torch
    from torch._inductor.lowering import register_lowering

    torch.library.define(f"remat::{name}", signature)
    torch.library.impl(f"remat::{name}", "CompositeExplicitAutograd", run)
    operator = getattr(torch.ops.remat, name).default
    register_lowering(operator, type_promotion_kind=None)(lower)
    return operator


def _lower_stored(tensor: InductorTensor) -> InductorTensor:
    """See :func:`stored`; ``realize`` gives a result a buffer."""
    tensor.realize()
    return tensor


def _lower_apart(tensor: InductorTensor) -> InductorTensor:
    """See :func:`apart`."""
    tensor.realize()
    decide = getattr(getattr(tensor.data, "data", None), "decide_layout", None)
    if decide is not None:  # a concatenation takes in only what has no layout yet
        decide()
    return tensor


def _lower_channels_last(tensor: InductorTensor) -> InductorTensor:
    """See :func:`laid_out`."""
    from torch._inductor.ir import ExternKernel

    tensor.realize()
    return ExternKernel.require_channels_last(tensor)


def _lower_joined(tensors: Sequence[InductorTensor], dim: int = 0) -> InductorTensor:
    """See :func:`lay_out_joined`."""
    import torch
    from torch._inductor.ir import FlexibleLayout, make_channels_last_strides_for
    from torch._inductor.lowering import lowerings

    def strides(sizes: Any) -> Any:
        return make_channels_last_strides_for(sizes) if len(sizes) == 4 else full(sizes)

    full = FlexibleLayout.contiguous_strides  # Inductor's function for concatenations asks for no others
    with mock.patch.object(FlexibleLayout, "contiguous_strides", staticmethod(strides)):
        return lowerings[torch.ops.aten.cat.default](tensors, dim)


def _lower_contiguous(tensor: InductorTensor) -> InductorTensor:
    """See :func:`laid_out`."""
    from torch._inductor.ir import ExternKernel

    tensor.realize()
    return ExternKernel.require_contiguous(tensor)


def _lower_inlined(tensor: InductorTensor) -> InductorTensor:
    """See :func:`inlined`."""
    from torch._inductor.ir import Pointwise, StorageBox, TensorBox

    box = tensor.data
    if isinstance(box, StorageBox) and isinstance(box.data, Pointwise):
        return TensorBox(_inlined_box()(box.data))
    return tensor  # something else has stored it already


@functools.cache
def _inlined_box() -> Any:
    """What holds a result of Inductor that is not stored because it is read several times."""
    from torch._inductor.ir import StorageBox

    class Inlined(StorageBox):  # type: ignore[misc]  # torch is Any to the type checker
        def should_realize_on_reuse(self, users: int, **_options: Any) -> bool:
            return False

    return Inlined


def loop_choices() -> Any:
    """The object that decides which operations Inductor makes one loop of.

    Inductor asks its method ``can_fuse`` about two operations or loops before it joins them.
    """
    from torch._inductor.virtualized import V

    return V.choices


@contextlib.contextmanager
def choosing_loops(choices: Any) -> Iterator[None]:
    """Within this context, ``choices`` decides which operations Inductor makes one loop of, in this thread.

    So loops are joined only within the peak of a plan. The choices of ``V`` are those of a thread.
    """
    from torch._inductor.virtualized import V

    before = V.choices
    V.set_choices_handler(choices)
    try:
        yield
    finally:
        if V.choices is choices:  # not if the context ends in another thread, which has a handler of its own
            V.set_choices_handler(before)


@contextlib.contextmanager
def ending_calls_where(ends: Callable[[Scheduler], bool]) -> Iterator[None]:
    """Within this context, a C++ function of Inductor also ends after an operation if ``ends`` says so.

    So it ends before it exceeds the peak of a plan. Inductor asks ``ready_to_flush`` after each operation with code.
    """
    from torch._inductor.codegen.cpp import CppScheduling

    full = CppScheduling.ready_to_flush

    def ready_to_flush(backend: Any) -> bool:
        return bool(full(backend)) or ends(backend.scheduler)

    with _replaced(CppScheduling, "ready_to_flush", ready_to_flush):
        yield


@contextlib.contextmanager
def channels_last_where(wants: Callable[[GraphModule], bool]) -> Iterator[None]:
    """Within this context, Inductor also lays out images with channels last in a graph of which ``wants`` says so.

    remat wants it for graphs whose depthwise gradients take less memory so.
    """
    from torch._inductor.graph import GraphLowering

    full = GraphLowering.decide_layout_opt

    def decide(module: GraphModule, *, is_inference: bool) -> bool:
        return bool(full(module, is_inference=is_inference)) or wants(module)

    with _replaced(GraphLowering, "decide_layout_opt", staticmethod(decide)):
        yield


@contextlib.contextmanager
def channels_last_unless(keeps: Callable[[GraphModule, FxNode], bool]) -> Iterator[None]:
    """Within this context, Inductor does not copy a result into channels last if ``keeps`` says so.

    So in graphs of a plan, only the plan copies images.
    """
    from torch._inductor.graph import GraphLowering

    full = GraphLowering.find_nodes_prefer_channels_last

    def find(lowering: Any) -> Any:
        nodes = full(lowering)
        return type(nodes)(node for node in nodes if not keeps(lowering.module, node))

    with _replaced(GraphLowering, "find_nodes_prefer_channels_last", find):
        yield


@contextlib.contextmanager
def _replaced(owner: type, name: str, replacement: Any) -> Iterator[None]:
    """Within this context, the class ``owner`` has ``replacement`` as ``name``.

    If someone else has replaced that since, it stays as they have left it.
    """
    before = vars(owner)[name]
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if vars(owner)[name] is replacement:
            setattr(owner, name, before)


def is_loop(operation: SchedulerNode) -> bool:
    """Whether an operation is a loop that Inductor writes itself, which may share a C++ function with others."""
    return bool(operation.get_nodes()) and not operation.is_extern() and not operation.is_template()


def called_by(operation: SchedulerNode) -> str:
    """The name of the node of FX for which an operation calls a library; empty for loops."""
    node = getattr(operation.node, "fx_node", None)
    return "" if node is None else str(node.name)


def makes_code(operation: SchedulerNode) -> bool:
    """Whether Inductor makes code for an operation; for a concatenation whose parts are made in place, it does not."""
    from torch._inductor.scheduler import NopKernelSchedulerNode

    return not isinstance(operation, NopKernelSchedulerNode)


def compiled_meta() -> dict[str, Any]:
    """The ``meta`` of the graph module that Inductor is compiling.

    It is that of the graph module that the partitioner returned, so that rules of a plan hold for its own graphs alone.
    """
    from torch._inductor.virtualized import V

    meta: dict[str, Any] = V.graph.orig_gm.meta
    return meta


@dataclass(frozen=True, slots=True)
class Buffers:
    """The buffers of a graph that Inductor is compiling.

    Attributes:
        sizes: Bytes that each takes when it is made, and gives back after its last use.
        results: The names of those that are results.
        names: For a buffer that is another one after a write, or a part of another one, the name of that.
        joined: The names of buffers that have parts: concatenations.
    """

    sizes: dict[str, tuple[int, int]]
    results: list[str]
    names: dict[str, str]
    joined: frozenset[str]

    def real(self, name: str) -> str:
        """The name of the buffer whose memory ``name`` is."""
        while name in self.names:
            name = self.names[name]
        return name

    def read_by(self, node: FxNode) -> list[str]:
        """The names of what an operation reads or writes into."""
        return [dependency.name for dependency in node.read_writes.reads]


def buffer_sizes(scheduler: Scheduler) -> Buffers:
    """The buffers of the graph that Inductor is compiling.

    With them, the peak of its order is simulated. Parts of concatenations have a ``NonOwningLayout``.
    """
    from torch._inductor.ir import NonOwningLayout
    from torch._inductor.memory import compute_size_for_scheduler_buffer
    from torch._inductor.virtualized import V

    V.graph.scheduler = scheduler  # where the sizes are looked up; Inductor sets it once this is done
    sizes = compute_size_for_scheduler_buffer(scheduler.name_to_buf)
    layouts = ((name, getattr(buffer.node, "layout", None)) for name, buffer in scheduler.name_to_buf.items())
    parts = {name: layout.view.get_name() for name, layout in layouts if isinstance(layout, NonOwningLayout)}
    names = dict(scheduler.mutation_real_name) | parts
    return Buffers(dict(sizes), list(V.graph.get_output_names()), names, frozenset(parts.values()))
