"""Operators of ATen: their schemas and formulas, the memory behind tensors, and modes that see operators run."""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from remat_cli.frontends.torch.compat.fake_tensors import is_fake
from remat_cli.frontends.torch.types import DispatchMode, Operator, Storage, Tensor


def is_operator(target: Any) -> bool:
    """Whether ``target`` is one overload of an operator of ``torch.ops``.

    Calls of ATen in graphs, and those that modes see, have overloads as targets.
    """
    import torch

    return isinstance(target, torch._ops.OpOverload)


def schema(operator: Operator) -> Any:
    """The schema of an operator: ``name``, ``arguments``, ``returns``, ``is_mutable``.

    It says what a call writes into and returns.
    """
    return operator._schema


def storage_identity(tensor: Tensor) -> int:
    """A number that identifies the memory of ``tensor``, fake or real; the same for all its views while it lives.

    The values of a captured step are storages: a view is no value of its own.
    """
    return int(tensor.untyped_storage()._cdata)


def weak_storage(tensor: Tensor) -> Any:
    """As :func:`weak_reference`, to the memory of ``tensor``."""
    return weak_reference(tensor.untyped_storage())


def weak_reference(storage: Storage) -> Any:
    """A weak reference to memory: hashable, and ``expired()`` once it is gone.

    Memory that is counted by it is not kept alive.
    """
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(storage)


_HOST: set[Any] = set()
"""Memory of a CPU that stands for host memory beside a device, which is the same CPU."""


def host_storage(size: int) -> Storage:
    """A storage of ``size`` bytes that :func:`is_host` knows. No operator makes it, so no mode sees a new tensor."""
    import torch

    storage = torch.UntypedStorage(size)
    _HOST.difference_update([reference for reference in _HOST if reference.expired()])
    _HOST.add(weak_reference(storage))
    return storage


def is_host(reference: Any) -> bool:
    """Whether a weak reference is to memory that :func:`host_storage` made.

    By it, copies to the host are counted apart where a CPU is the device.
    """
    return reference in _HOST


def dispatch_mode() -> DispatchMode:
    """The base class of modes whose ``__torch_dispatch__`` is called for every operator that runs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return TorchDispatchMode


def last_call(function: Callable[[], Any]) -> tuple[Operator, tuple[Any, ...]]:
    """The last operator that ``function`` calls, and its arguments by position."""
    seen: list[tuple[Operator, tuple[Any, ...]]] = []

    class Watching(dispatch_mode()):  # type: ignore[misc]  # torch is Any to the type checker
        def __torch_dispatch__(self, operator: Operator, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen[:] = [(operator, args)]
            return operator(*args, **(kwargs or {}))

    with Watching():
        function()
    return seen.pop()  # the class is part of a cycle, and must not hold the arguments until that is collected


@contextlib.contextmanager
def dropout_of_gpus() -> Iterator[None]:
    """A context in which dropout runs the operator that it runs on a GPU, and keeps a mask of booleans.

    On a CPU, eager mode keeps its input and a mask of floating-point numbers.
    """
    import torch

    def dropout(tensor: Tensor, probability: float, train: bool) -> Tensor:
        if not train or probability == 0:
            return tensor
        return torch.native_dropout(tensor, probability, train)[0]

    with _replaced("dropout", dropout):
        yield


@contextlib.contextmanager
def attention_of_gpus() -> Iterator[None]:
    """A context in which attention with dropout runs the fused operators of a GPU, on tensors without data.

    On a CPU it multiplies matrices, and keeps all weights. What GPUs have no fused operator for stays as it is: heads
    of queries that share one of keys, with a mask or in float32, and masks whose last dimension is repeated. On a
    CPU, these operators take fake tensors, too; ``decompose`` of the overload runs what runs without this context.
    """
    import torch

    aten = torch.ops.aten

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        half, shared = query.dtype in {torch.float16, torch.bfloat16}, query.shape[1] != key.shape[1]
        fused = dropout_p > 0 and is_fake(query) and query.dim() == 4
        if fused and attn_mask is None and half and query.shape[-1] <= _MOST_OF_FLASH:
            return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
        if fused and not shared and (attn_mask is None or attn_mask.stride(-1) == 1):
            bias = attn_mask
            if bias is not None and bias.dtype == torch.bool:
                bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(~bias, -math.inf)
            if bias is not None:
                bias = bias.expand(*query.shape[:-1], key.shape[-2])
            found = aten._scaled_dot_product_efficient_attention(
                query, key, value, bias, True, dropout_p, is_causal, scale=scale
            )
            return found[0]
        options = {"scale": scale, "enable_gqa": enable_gqa}
        whole = aten.scaled_dot_product_attention.default.decompose
        return whole(query, key, value, attn_mask, dropout_p, is_causal, **options)

    with _replaced("scaled_dot_product_attention", attention):
        yield


@contextlib.contextmanager
def _replaced(name: str, function: Callable[..., Tensor]) -> Iterator[None]:
    """A context in which ``function`` runs in place of an operator of ATen, wherever autograd is on and on a CPU.

    When it is traced, PyTorch remembers which kernel an operator has. What it remembers from within would later stand
    for a kernel without gradients, so ``_dispatch_cache`` is cleared.
    """
    import torch

    operator = getattr(torch.ops.aten, name).default
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            library.impl(name, function, "AutogradCPU", allow_override=True)
        operator._dispatch_cache.clear()
        yield
    finally:
        library._destroy()
        operator._dispatch_cache.clear()


_MOST_OF_FLASH = 256
"""Largest head of flash attention on a GPU."""


def flop_formula(operator: Operator) -> Any:
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
    formula = flop_registry.get(packet) or flop_registry.get(same.get(packet))
    if formula is None or "scaled_dot_product" not in str(packet):
        return formula

    def with_heads(argument: Any, heads: int) -> Any:
        if not isinstance(argument, torch.Tensor) or argument.dim() != 4 or argument.shape[1] == heads:
            return argument
        return argument.detach().repeat_interleave(heads // argument.shape[1], 1)

    def of_all_heads(*args: Any, **options: Any) -> Any:
        # Before 2.13, the formula knows only of keys and values with as many heads as queries have.
        heads = max(a.shape[1] for a in args if isinstance(a, torch.Tensor) and a.dim() == 4)
        return formula(*(with_heads(argument, heads) for argument in args), **options)

    return of_all_heads


def profiler_events(session: Any) -> Any:
    """The raw events of a stopped ``torch.profiler.profile``, including changes of memory.

    Those with the name ``[memory]`` are what the allocator hands out and gets back; from them, remat measures workspace
    on a CPU.
    """
    return session.profiler.kineto_results.events()
