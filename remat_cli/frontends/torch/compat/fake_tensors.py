"""Fake tensors, which have shapes and no data: their modes, and what PyTorch does with them."""

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from remat_cli.frontends.torch.types import Context, FakeMode, Tensor


def new_fake_mode() -> FakeMode:
    """A mode under which tensors have no data; real tensors may be mixed in. Its cache is off, see ``exact_sizes``.

    Captures and rehearsals under it take no memory, but for small tensors of constructors, which are real.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with exact_sizes():
        return FakeTensorMode(allow_non_fake_inputs=True)


def without_data(tensors: Iterable[Any]) -> tuple[Any, ...]:
    """``tensors``, fake ones in place of real ones; parameters stay parameters, and shared memory is shared.

    What describes the inputs of a compiled graph thus keeps no batch. ``from_tensor`` keeps parameters and sharing.
    """
    import torch

    mode = new_fake_mode()

    def fake(item: Any) -> Any:
        if not isinstance(item, torch.Tensor) or is_fake(item):
            return item
        # Without its history, which a fake tensor would have to have too.
        return mode.from_tensor(item if isinstance(item, torch.nn.Parameter) else item.detach())

    return tuple(map(fake, tensors))


def exact_sizes() -> Context:
    """A context in which fake modes have no cache.

    A cached result has the smallest memory for its strides, which may be less than the operator allocates, as
    ``aten.copy`` of a slice does. Sizes would then depend on earlier captures.
    """
    import torch

    return torch._dynamo.config.patch(fake_tensor_cache_enabled=False)


@contextlib.contextmanager
def silent_fakes() -> Iterator[None]:
    """Within this context, PyTorch does not log an operator that fails on fake tensors; it only raises.

    remat reports such an operator itself.
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@contextlib.contextmanager
def convertible(mode: FakeMode) -> Iterator[None]:
    """Within this context, modules with fake tensors of ``mode`` can be converted: ``module.to(torch.bfloat16)``.

    PyTorch then swaps old and new parameters, and refuses to swap tensors that weak references point to. The mode
    itself holds weak references to all tensors that it has made. Here they are removed before each swap, so that
    models that convert themselves are built without data.
    """
    import torch

    swap = torch.utils.swap_tensors
    memo = mode.fake_tensor_converter.tensor_memo

    def forgotten_and_swapped(first: Tensor, second: Tensor) -> None:
        for key in [key for key, held in memo.items() if held is first or held is second]:
            del memo[key]
        swap(first, second)

    torch.utils.swap_tensors = forgotten_and_swapped
    try:
        yield
    finally:
        torch.utils.swap_tensors = swap


def needs_numbers(error: BaseException) -> bool:
    """Whether a fake tensor raised ``error`` because only the data of a tensor could give the result.

    Steps that read numbers are refused with words of their own.
    """
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

    def initialized(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        return tensor if is_fake(tensor) or is_fake(tensor.data) else before(tensor, *args, **kwargs)

    setattr(init, name, initialized)
    try:
        yield
    finally:
        setattr(init, name, before)


def real_tensors() -> Context:
    """A context in which tensors are real, even inside a fake mode.

    Small tensors that constructors make are real, for example.
    """
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor is fake, and not of another subclass.

    Inputs of captured graphs that are of another subclass are refused.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    return type(tensor) is FakeTensor
