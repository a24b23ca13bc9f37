"""Random tensors in place of the user's: valid, and of the right type, shape and strides.

Floating-point numbers are normal, or uniform from 0 to the limit if the graph states one (targets of a binary cross
entropy). Integers are below the limit that the graph states for an index. If an operation makes them (the indices of a
pooling layer), that operation is run on random inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from remat_cli.frontends.torch.codec import dtype_named
from remat_cli.frontends.torch.document import Placeholder, TensorSpec

_FALLBACK_LIMIT = 2
"""Without a limit, integers are 0 or 1: these are valid for most operators."""


def new_tensor(spec: TensorSpec, device: str, generator: Any, *, below: int | None = None, scale: float = 1.0) -> Any:
    """A random tensor.

    Args:
        spec: Its type and layout.
        device: Device of the tensor.
        generator: Source of random numbers, on that device.
        below: Upper limit of its numbers; None for no limit.
        scale: Standard deviation of floating-point numbers without a limit.
    """
    return _filled(_empty(spec, device), below, generator, scale)


def place_tensor(place: Placeholder, device: str, generator: Any) -> Any:
    """A valid tensor for a place: weights of usual magnitude, positive vectors and buffers, inputs around 0."""
    return _filled_place(_empty(place.spec, device), place, generator)


def place_tensors(places: Sequence[Placeholder], device: str, seed: int) -> list[Any]:
    """A tensor for each of ``places``; the same for the same seed, device and version of torch.

    All are allocated before any is filled. Otherwise the temporary memory of filling would lie between them, and a
    caching allocator could never return it to the device.

    Args:
        places: Placeholders that are not tangents.
        device: Device of the tensors.
        seed: Seed of the random numbers.
    """
    source = seeded(device, seed)
    empty = [_empty(place.spec, device) for place in places]
    return [_filled_place(tensor, place, source) for tensor, place in zip(empty, places, strict=True)]


def _empty(spec: TensorSpec, device: str) -> Any:
    import torch

    return torch.empty_strided(spec.shape, spec.stride, dtype=dtype_named(spec.dtype), device=device)


def _whole(tensor: Any) -> Any:
    """All memory of ``tensor``'s storage as a flat tensor, in which no two elements overlap."""
    import torch

    return torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.dtype.itemsize,), (1,))


def _filled(tensor: Any, limit: int | None, generator: Any, scale: float) -> Any:
    """``tensor``, filled with random numbers in place: a second tensor would disturb measurements of memory."""
    import torch

    dtype = tensor.dtype
    flat = _whole(tensor)
    flat = torch.view_as_real(flat) if dtype.is_complex else flat
    if flat.dtype in {torch.float16, torch.bfloat16, torch.float32, torch.float64}:
        if limit is None:
            flat.normal_(0, scale, generator=generator)
        else:
            flat.uniform_(0, limit, generator=generator)
    elif dtype.is_floating_point:  # ``normal_`` does not support types of 8 bits or less
        flat.copy_(torch.randn(flat.shape, device=flat.device, generator=generator) * scale)
    else:
        below = 2 if dtype == torch.bool else limit or _FALLBACK_LIMIT
        below = min(below, 128) if dtype.itemsize == 1 else below
        flat.copy_(torch.randint(0, below, flat.shape, device=flat.device, generator=generator))
    return tensor


def _filled_place(tensor: Any, place: Placeholder, generator: Any) -> Any:
    shape = place.spec.shape
    weight = place.kind == "parameter" and len(shape) > 1
    scale = 1 / math.sqrt(max(1, math.prod(shape[1:]))) if weight else 1.0
    _filled(tensor, place.below, generator, scale)
    if weight or place.kind not in {"parameter", "buffer"} or not tensor.is_floating_point():
        return tensor
    _whole(tensor).abs_().clamp_(0.1, 2.0)
    return tensor


def seeded(device: str, seed: int) -> Any:
    """A generator of random numbers on ``device``."""
    import torch

    return torch.Generator(device=device).manual_seed(seed)
