"""All undocumented names of PyTorch that this frontend uses. No other module uses such names.

Each function here is small and has a test of its own (``tests/frontends/test_torch_private.py``). If a new version of
PyTorch moves or changes a name, the test says which, before any plan goes wrong.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import logging
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

Partition = Callable[..., tuple[Any, Any]]
"""``partition(joint, joint_inputs, *, num_fwd_outputs, **options)``: the forward and the backward graph module."""


def new_fake_mode() -> Any:
    """A mode under which tensors have no data; real tensors may be mixed in. Its cache is off, see ``exact_sizes``."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with exact_sizes():
        return FakeTensorMode(allow_non_fake_inputs=True)


def without_data(tensors: Iterable[Any]) -> tuple[Any, ...]:
    """``tensors``, fake ones in place of real ones; parameters stay parameters, and shared memory is shared."""
    import torch

    mode = new_fake_mode()

    def fake(item: Any) -> Any:
        if not isinstance(item, torch.Tensor) or is_fake(item):
            return item
        # Without its history, which a fake tensor would have to have too.
        return mode.from_tensor(item if isinstance(item, torch.nn.Parameter) else item.detach())

    return tuple(map(fake, tensors))


def exact_sizes() -> Any:
    """A context in which fake modes have no cache, because the cache makes some storages too small."""
    import torch

    return torch._dynamo.config.patch(fake_tensor_cache_enabled=False)


@contextlib.contextmanager
def silent_fakes() -> Iterator[None]:
    """Within this context, PyTorch does not log an operator that fails on fake tensors; it only raises."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@contextlib.contextmanager
def convertible(mode: Any) -> Iterator[None]:
    """Within this context, modules with fake tensors of ``mode`` can be converted: ``module.to(torch.bfloat16)``.

    PyTorch then swaps old and new parameters, and refuses to swap tensors that weak references point to. The mode
    itself holds weak references to all tensors that it has made. Here they are removed before each swap.
    """
    import torch

    swap = torch.utils.swap_tensors
    memo = mode.fake_tensor_converter.tensor_memo

    def forgotten_and_swapped(first: Any, second: Any) -> None:
        for key in [key for key, held in memo.items() if held is first or held is second]:
            del memo[key]
        swap(first, second)

    torch.utils.swap_tensors = forgotten_and_swapped
    try:
        yield
    finally:
        torch.utils.swap_tensors = swap


def refuses_second_gradient(error: BaseException) -> bool:
    """Whether PyTorch raised ``error`` because a compiled graph has no gradient of its gradient."""
    return "does not currently support double backward" in str(error)


def has_second_gradient(tensors: Iterable[Any]) -> bool:
    """Whether a gradient that a compiled graph computed has a part in ``tensors``; their own gradient would fail."""
    seen: set[Any] = set()
    left = [tensor.grad_fn for tensor in tensors]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            if node.name() == "CompiledFunctionBackwardBackward":
                return True
            seen.add(node)
            left += [before for before, _ in node.next_functions]
    return False


def needs_numbers(error: BaseException) -> bool:
    """Whether a fake tensor raised ``error`` because only the data of a tensor could give the result."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    return isinstance(error, DataDependentOutputException | DynamicOutputShapeException)


@contextlib.contextmanager
def uninitialized_fakes() -> Iterator[None]:
    """Within this context, ``torch.nn.init.trunc_normal_`` leaves fake tensors as they are.

    It draws until all numbers lie within the limits, which fake numbers never do; its result has no data either way.
    """
    from torch.nn import init

    name = "_no_grad_trunc_normal_"
    before = getattr(init, name)

    def initialized(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor if is_fake(tensor) or is_fake(tensor.data) else before(tensor, *args, **kwargs)

    setattr(init, name, initialized)
    try:
        yield
    finally:
        setattr(init, name, before)


def real_tensors() -> Any:
    """A context in which tensors are real, even inside a fake mode."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


def is_fake(tensor: Any) -> bool:
    """Whether a tensor is fake, and not of another subclass."""
    from torch._subclasses.fake_tensor import FakeTensor

    return type(tensor) is FakeTensor


def aot(graph_module: Any, inputs: Any, *, compiler: Callable[[Any, Any], Any], partition: Partition) -> Any:
    """The result of AOTAutograd: ``partition`` splits the joint graph, ``compiler`` compiles both parts."""
    import torch
    from torch._dynamo.backends.common import aot_autograd

    backend = aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        partition_fn=partition,
        decompositions={torch.ops.aten.native_dropout_backward.default: dropout_backward},
    )
    return backend(graph_module, inputs)


def dropout_backward(gradient: Any, mask: Any, scale: float) -> Any:
    """What PyTorch's kernel computes, product by product.

    Without data, PyTorch takes the result for contiguous, and a copy into that layout would change the order of later
    sums. And a plan sees the first product, which the kernel holds beside the second one.
    """
    return gradient * mask * scale


def partitioner_base() -> Any:
    """The base class of objects that partition joint graphs for Inductor."""
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
    graph_module: Any,
    inputs: Any,
    *,
    partitioner: Any,
    compiler: Callable[[Any, Any], Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    around: Callable[[Any], Around | None] = lambda _part: None,
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

    def compiled(part: Any, given: Any, **options: Any) -> Any:
        if compiler is not None:
            return compiler(part, given)
        found = around(part)
        if found is None:
            return compile_fx_inner(part, given, **options)
        kept = [k for k in range(len(given)) if k not in found.unused]
        for k, node in enumerate(part.graph.find_nodes(op="placeholder")):
            if k in found.unused:
                part.graph.erase_node(node)
        part.recompile()
        return takes_its_arguments(found.function(compile_fx_inner(part, [given[k] for k in kept], **options)))

    patches = {"custom_partitioner_fn": partitioner, **(settings or {})}
    # AOTAutograd's cache would serve what another plan has made, and not call the partitioner. Inductor's own goes by
    # the graphs that the partitioner returns.
    with torch._functorch.config.patch(enable_autograd_cache=False):
        return compile_fx(graph_module, list(inputs), inner_compile=compiled, config_patches=patches)


def stored(graph: Any, node: Any) -> Any:
    """A node after ``node`` in ``graph`` that stands for its result, which Inductor then stores, in any layout.

    Without this it may compute the result wherever it is read.
    """
    return _marked(graph, node, _mark("stored", _lower_stored))


def inlined(graph: Any, node: Any) -> Any:
    """A node after ``node`` in ``graph`` that stands for its result, which Inductor then computes where it is read.

    Without this it may store a result that is read several times, once for each copy of ``node``.
    """
    return _marked(graph, node, _mark("inlined", _lower_inlined))


def apart(graph: Any, node: Any) -> Any:
    """A node after ``node`` in ``graph`` that stands for its result, which Inductor then stores in memory of its own.

    Without this a concatenation may take that memory in: then the whole concatenation stays as long as the result.
    """
    return _marked(graph, node, _mark("apart", _lower_apart))


def laid_out(graph: Any, node: Any, layout: Any) -> Any:
    """A node after ``node`` in ``graph`` that stands for its result, which Inductor then stores in a certain layout.

    Args:
        graph: A graph of FX.
        node: A node of it.
        layout: ``torch.contiguous_format`` or ``torch.channels_last``.
    """
    import torch

    if layout is torch.channels_last:
        return _marked(graph, node, _mark("channels_last", _lower_channels_last))
    return _marked(graph, node, _mark("contiguous", _lower_contiguous))


def lay_out_joined(node: Any) -> None:
    """Let Inductor store the concatenation of images that ``node`` is with channels last; its parts are made in it.

    Without this it may store a concatenation contiguous, and copy it for the convolution that reads it.
    """
    node.target = _operator("joined", "(Tensor[] tensors, int dim=0) -> Tensor", _lower_joined, _join)


def leave_to_library(node: Any) -> None:
    """Let Inductor call the operator of ``node`` as it is: it then asks for no layouts of its own."""
    node.meta["should_fallback"] = True


def _marked(graph: Any, node: Any, operator: Any) -> Any:
    with graph.inserting_after(node):
        made = graph.call_function(operator, (node,))
    made.meta = dict(node.meta)
    return made


def _mark(name: str, lower: Callable[[Any], Any]) -> Any:
    """An operator that returns its argument; ``lower`` says what Inductor makes of it."""
    return _operator(name, "(Tensor(a) tensor) -> Tensor(a)", lower, _same)


def _same(tensor: Any) -> Any:
    return tensor


def _join(tensors: Any, dim: int = 0) -> Any:
    import torch

    return torch.cat(tensors, dim)


@functools.cache
def _operator(name: str, signature: str, lower: Callable[..., Any], run: Callable[..., Any]) -> Any:
    """An operator that does what ``run`` does; ``lower`` says what Inductor makes of it."""
    import torch
    from torch._inductor.lowering import register_lowering

    torch.library.define(f"remat::{name}", signature)
    torch.library.impl(f"remat::{name}", "CompositeExplicitAutograd", run)
    operator = getattr(torch.ops.remat, name).default
    register_lowering(operator, type_promotion_kind=None)(lower)
    return operator


def _lower_stored(tensor: Any) -> Any:
    tensor.realize()
    return tensor


def _lower_apart(tensor: Any) -> Any:
    tensor.realize()
    decide = getattr(getattr(tensor.data, "data", None), "decide_layout", None)
    if decide is not None:  # a concatenation takes in only what has no layout yet
        decide()
    return tensor


def _lower_channels_last(tensor: Any) -> Any:
    from torch._inductor.ir import ExternKernel

    tensor.realize()
    return ExternKernel.require_channels_last(tensor)


def _lower_joined(tensors: Any, dim: int = 0) -> Any:
    import torch
    from torch._inductor.ir import FlexibleLayout, make_channels_last_strides_for
    from torch._inductor.lowering import lowerings

    def strides(sizes: Any) -> Any:
        return make_channels_last_strides_for(sizes) if len(sizes) == 4 else full(sizes)

    full = FlexibleLayout.contiguous_strides  # Inductor's function for concatenations asks for no others
    with mock.patch.object(FlexibleLayout, "contiguous_strides", staticmethod(strides)):
        return lowerings[torch.ops.aten.cat.default](tensors, dim)


def _lower_contiguous(tensor: Any) -> Any:
    from torch._inductor.ir import ExternKernel

    tensor.realize()
    return ExternKernel.require_contiguous(tensor)


def _lower_inlined(tensor: Any) -> Any:
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


def saved_description(number: int) -> Any:
    """The description of a tensor that a forward graph saves."""
    return descriptors().SavedForBackwardsAOTOutput(number)


def loop_choices() -> Any:
    """The object that decides which operations Inductor makes one loop of."""
    from torch._inductor.virtualized import V

    return V.choices


def set_loop_choices(choices: Any) -> None:
    """Let ``choices`` decide which operations Inductor makes one loop of, in this thread."""
    from torch._inductor.virtualized import V

    V.set_choices_handler(choices)


def end_calls_where(ends: Callable[[Any], bool]) -> None:
    """From now on, Inductor's C++ functions also end after an operation if ``ends`` says so, given the scheduler."""
    from torch._inductor.codegen.cpp import CppScheduling

    full = CppScheduling.ready_to_flush
    if getattr(full, "ends", None) is ends:
        return

    def ready_to_flush(backend: Any) -> bool:
        return bool(full(backend)) or ends(backend.scheduler)

    ready_to_flush.ends = ends  # type: ignore[attr-defined]  # the mark
    CppScheduling.ready_to_flush = ready_to_flush


def channels_last_where(wants: Callable[[Any], bool]) -> None:
    """From now on, Inductor also lays out images with channels last in a graph module of which ``wants`` says so."""
    from torch._inductor.graph import GraphLowering

    full = GraphLowering.decide_layout_opt
    if getattr(full, "wants", None) is wants:
        return

    def decide(module: Any, *, is_inference: bool) -> bool:
        return bool(full(module, is_inference=is_inference)) or wants(module)

    decide.wants = wants  # type: ignore[attr-defined]  # the mark
    GraphLowering.decide_layout_opt = staticmethod(decide)


def channels_last_unless(keeps: Callable[[Any, Any], bool]) -> None:
    """From now on, Inductor does not copy a result into channels last if ``keeps`` says so, given graph and node."""
    from torch._inductor.graph import GraphLowering

    full = GraphLowering.find_nodes_prefer_channels_last
    if getattr(full, "keeps", None) is keeps:
        return

    def find(lowering: Any) -> Any:
        found = full(lowering)
        return type(found)(node for node in found if not keeps(lowering.module, node))

    find.keeps = keeps  # type: ignore[attr-defined]  # the mark
    GraphLowering.find_nodes_prefer_channels_last = find


def is_loop(operation: Any) -> bool:
    """Whether an operation is a loop that Inductor writes itself, which may share a C++ function with others."""
    return bool(operation.get_nodes()) and not operation.is_extern() and not operation.is_template()


def called_by(operation: Any) -> str:
    """The name of the node of FX for which an operation calls a library; empty for loops."""
    node = getattr(operation.node, "fx_node", None)
    return "" if node is None else str(node.name)


def makes_code(operation: Any) -> bool:
    """Whether Inductor makes code for an operation; for a concatenation whose parts are made in place, it does not."""
    from torch._inductor.scheduler import NopKernelSchedulerNode

    return not isinstance(operation, NopKernelSchedulerNode)


def compiled_meta() -> Any:
    """The ``meta`` of the graph module that Inductor is compiling."""
    from torch._inductor.virtualized import V

    return V.graph.orig_gm.meta


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

    def read_by(self, node: Any) -> list[str]:
        """The names of what an operation reads or writes into."""
        return [dependency.name for dependency in node.read_writes.reads]


def buffer_sizes(scheduler: Any) -> Buffers:
    """The buffers of the graph that Inductor is compiling."""
    from torch._inductor.ir import NonOwningLayout
    from torch._inductor.memory import compute_size_for_scheduler_buffer
    from torch._inductor.virtualized import V

    V.graph.scheduler = scheduler  # where the sizes are looked up; Inductor sets it once this is done
    sizes = compute_size_for_scheduler_buffer(scheduler.name_to_buf)
    layouts = ((name, getattr(buffer.node, "layout", None)) for name, buffer in scheduler.name_to_buf.items())
    parts = {name: layout.view.get_name() for name, layout in layouts if isinstance(layout, NonOwningLayout)}
    names = dict(scheduler.mutation_real_name) | parts
    return Buffers(dict(sizes), list(V.graph.get_output_names()), names, frozenset(parts.values()))


def last_call(function: Callable[[], Any]) -> tuple[Any, tuple[Any, ...]]:
    """The last operator that ``function`` calls, and its arguments by position."""
    seen: list[tuple[Any, tuple[Any, ...]]] = []

    class Watching(dispatch_mode()):  # type: ignore[misc]  # torch is Any to the type checker
        def __torch_dispatch__(self, operator: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen[:] = [(operator, args)]
            return operator(*args, **(kwargs or {}))

    with Watching():
        function()
    return seen.pop()  # the class is part of a cycle, and must not hold the arguments until that is collected


def min_cut(joint: Any, joint_inputs: Any, **options: Any) -> tuple[Any, Any]:
    """The split that Inductor makes by itself."""
    from functorch.compile import min_cut_rematerialization_partition

    forward, backward = min_cut_rematerialization_partition(joint, joint_inputs, **options)
    return forward, backward


def default_split(joint: Any, joint_inputs: Any, *, num_fwd_outputs: int, **options: Any) -> tuple[Any, Any]:
    """The split without recomputation, which saves everything that the backward pass reads."""
    from functorch.compile import default_partition

    forward, backward = default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)
    return forward, backward


def as_given(graph_module: Any, _inputs: Any) -> Any:
    """A compiler that compiles nothing."""
    from functorch.compile import make_boxed_func

    return make_boxed_func(graph_module.forward)


def takes_its_arguments(function: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """``function`` with the mark that tells AOTAutograd that it empties its argument list."""

    def boxed(args: list[Any]) -> list[Any]:
        return function(args)

    boxed._boxed_call = True  # type: ignore[attr-defined]  # the mark
    return boxed


def leave_out_logging() -> None:
    """From now on, PyTorch captures code that logs: what is compiled does not log, and else does the same.

    This holds for the methods of ``logging.Logger`` that return nothing, and for those that libraries add for messages
    that come once, such as ``warning_once``.
    """
    import torch

    names = {"debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log"}
    levels = ("debug_", "info_", "warning_", "error_", "critical_")
    methods = {method for name, method in vars(logging.Logger).items() if name in names or name.startswith(levels)}
    torch._dynamo.config.ignore_logging_functions = torch._dynamo.config.ignore_logging_functions | methods


@contextlib.contextmanager
def without_logging() -> Iterator[None]:
    """A context in which :func:`leave_out_logging` holds."""
    import torch

    before = torch._dynamo.config.ignore_logging_functions
    leave_out_logging()
    try:
        yield
    finally:
        torch._dynamo.config.ignore_logging_functions = before


def break_of(graph_module: Any) -> tuple[str, list[tuple[str, int, str]]] | None:
    """Why a graph ends before the function that is compiled: PyTorch's text and the frames of the code.

    None if it does not. The text may be in quotes, as ``repr`` makes them.
    """
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    text = str(reason.reason)
    with contextlib.suppress(ValueError, SyntaxError):
        text = str(ast.literal_eval(text))
    return text, [(frame.filename, frame.lineno or 0, frame.name) for frame in reason.user_stack]


def descriptors() -> Any:
    """The module with the classes that describe the inputs and outputs of a joint graph."""
    from torch._functorch._aot_autograd import descriptors as found

    return found


def compiled_node(tensor: Any) -> tuple[Any, int, bool] | None:
    """The node of autograd of the compiled graph that returned ``tensor``, and the position of the result there.

    The last item is false if AOTAutograd has made ``tensor`` as a view of that result. None if it has no such node.
    """
    import torch

    node, position, direct = getattr(tensor, "grad_fn", None), getattr(tensor, "output_nr", 0), True
    while node is not None and not isinstance(node, torch.autograd.function.BackwardCFunction):
        [(node, position), *_] = node.next_functions or ((None, 0),)
        direct = False
    return None if node is None else (node, position, direct)


def made_at(node: Any) -> int:
    """When a node of autograd was made: less than for all that were made later by the same thread."""
    return int(node._sequence_nr())


def kept_by(node: Any) -> list[Any]:
    """The tensors that a node of autograd keeps for the backward pass. Those changed in place since are left out."""
    import torch

    python = isinstance(node, torch.autograd.function.BackwardCFunction)
    names = ["saved_tensors"] if python else [name for name in dir(node) if name.startswith("_saved_")]
    found = []
    for name in names:
        try:
            saved = getattr(node, name)
        except RuntimeError:  # something was changed in place, so that its backward pass would fail too
            continue
        found += [t for t in (saved if isinstance(saved, list | tuple) else [saved]) if isinstance(t, torch.Tensor)]
    return found


def gradient_sizes(node: Any) -> tuple[int, int]:
    """Bytes of the gradients that a node of autograd reads, and of those that it makes."""
    behind = (other._input_metadata[at : at + 1] for other, at in node.next_functions if other is not None)
    made = [meta for metas in behind for meta in metas]
    return sum(map(_bytes_of, node._input_metadata)), sum(map(_bytes_of, made))


def gradient_bytes(node: Any, position: int) -> int:
    """Bytes of one of the gradients that a node of autograd reads."""
    return sum(_bytes_of(meta) for meta in node._input_metadata[position : position + 1])


def _bytes_of(meta: Any) -> int:
    return math.prod(map(int, meta.shape)) * int(meta.dtype.itemsize)


def gradients_for(node: Any) -> list[Any]:
    """A gradient of zeros for each result of the operation that a node of autograd belongs to.

    Their last dimensions do not lie in the usual order in memory, for which some operations make a copy.
    """
    import torch

    made = []
    for meta in node._input_metadata:
        *shape, last = tuple(meta.shape) or (1,)
        made.append(torch.zeros((last, *shape), dtype=meta.dtype, device=meta.device).movedim(0, -1).view(meta.shape))
    return made


def parameter_of(node: Any) -> Any:
    """The tensor whose gradient a node of autograd collects; None for all other nodes."""
    return getattr(node, "variable", None) if node.name().endswith("AccumulateGrad") else None


def frees_tangents() -> bool:
    """Whether autograd hands tangents over, so that a compiled step can free them; from PyTorch 2.13 on it does."""
    import torch

    return hasattr(torch.autograd.Function, "boxed_grads_call")


def is_operator(target: Any) -> bool:
    """Whether ``target`` is one overload of an operator of ``torch.ops``."""
    import torch

    return isinstance(target, torch._ops.OpOverload)


def schema(operator: Any) -> Any:
    """The schema of an operator: ``name``, ``arguments``, ``returns``, ``is_mutable``."""
    return operator._schema


def storage_identity(tensor: Any) -> int:
    """A number that identifies the memory of ``tensor``, fake or real; the same for all its views while it lives."""
    return int(tensor.untyped_storage()._cdata)


def weak_storage(tensor: Any) -> Any:
    """A weak reference to the memory of ``tensor``: hashable, and ``expired()`` once it is gone."""
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(tensor.untyped_storage())


def weak_reference(storage: Any) -> Any:
    """As :func:`weak_storage`, for a storage."""
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(storage)


_HOST: set[Any] = set()
"""Memory of a CPU that stands for host memory beside a device, which is the same CPU."""


def host_storage(size: int) -> Any:
    """A storage of ``size`` bytes that :func:`is_host` knows. No operator makes it, so no mode sees a new tensor."""
    import torch

    storage = torch.UntypedStorage(size)
    _HOST.difference_update([known for known in _HOST if known.expired()])
    _HOST.add(weak_reference(storage))
    return storage


def is_host(reference: Any) -> bool:
    """Whether a weak reference is to memory that :func:`host_storage` made."""
    return reference in _HOST


def dispatch_mode() -> Any:
    """The base class of modes whose ``__torch_dispatch__`` is called for every operator that runs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return TorchDispatchMode


def flop_formula(operator: Any) -> Any:
    """PyTorch's formula for the FLOPs of an operator; None if it has none. Call it with tensors and ``out_val``.

    The registry has no formula for attention on a CPU, so that of the same attention on a GPU is used.
    """
    import torch
    from torch.utils.flop_counter import flop_registry

    aten = torch.ops.aten
    same = {
        aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: aten._scaled_dot_product_flash_attention_backward,
    }
    packet = getattr(operator, "overloadpacket", None)
    return flop_registry.get(packet) or flop_registry.get(same.get(packet))


def profiler_events(session: Any) -> Any:
    """The raw events of a stopped ``torch.profiler.profile``, including changes of memory."""
    return session.profiler.kineto_results.events()


def call_of(module: Any) -> Any:
    """What runs in place of the module's own call: ``nn.Module.compile`` puts it there; None if nothing does."""
    return module._compiled_call_impl


def set_call(module: Any, call: Callable[..., Any] | None) -> None:
    """Let ``call`` run when ``module`` is called; None for its own call again. Copies and pickles leave it behind."""
    if call is None:
        module.__dict__.pop("_compiled_call_impl", None)
    else:
        module._compiled_call_impl = call


def plain_call(module: Any) -> Any:
    """The module's own call, with its hooks."""
    return module._call_impl


def is_compiled(module: Any) -> bool:
    """Whether ``module`` is what ``torch.compile`` returns for a module."""
    import torch

    return isinstance(module, torch._dynamo.OptimizedModule)


def own_code(function: Any) -> Any:
    """A copy of ``function`` with a code object of its own, since PyTorch counts compilations by code object."""
    return types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def not_traced(function: Callable[..., Any]) -> Any:
    """``function``, which a compiled function calls and does not trace into; what it compiles itself still runs."""
    import torch

    return torch.compiler.disable(function)


def recompile_limit() -> int:
    """How often PyTorch compiles a code object."""
    import torch

    return int(torch._dynamo.config.recompile_limit)


def undistributed(compilations: int) -> Any:
    """A context for calls of a compiled function: ``compilations`` of each code object, and whole graphs under DDP.

    ``DistributedDataParallel`` otherwise splits graphs at its buckets, and the plan is for the whole. Hooks that
    modules get between two calls compile another graph; otherwise they would not run.
    """
    import torch

    config = torch._dynamo.config
    return config.patch(
        optimize_ddp=False,
        skip_nnmodule_hook_guards=False,
        recompile_limit=max(config.recompile_limit, compilations),
        accumulated_recompile_limit=max(config.accumulated_recompile_limit, 4 * compilations),
    )
