"""Tensors to run with where the user's are not at hand: random, of the right type, shape and strides, and valid.

Floating-point numbers are random, from 0 to the limit where the graph states one (targets of a binary cross entropy).
Integers are what may be in their place: below the limit that the graph states for an index, or whatever the operation
that makes them makes of random inputs (the indices of a pooling layer).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from remat_cli.frontends.torch.codec import dtype_named
from remat_cli.frontends.torch.document import Placeholder, TensorSpec

_FALLBACK_LIMIT = 2
"""Integers of which nothing is known are 0 or 1."""


def new_tensor(spec: TensorSpec, device: str, generator: Any, *, below: int | None = None, scale: float = 1.0) -> Any:
    """A random tensor.

    Args:
        spec: Its type and layout.
        device: Where to make it.
        generator: Source of random numbers, on that device.
        below: What its numbers have to be below; None for anything.
        scale: Standard deviation of floating-point numbers.
    """
    return _filled(_empty(spec, device), below, generator, scale)


def place_tensor(place: Placeholder, device: str, generator: Any) -> Any:
    """What may be in a place of a graph: weights of a usual size, positive vectors and buffers, inputs around 0."""
    return _filled_place(_empty(place.spec, device), place, generator)


def place_tensors(places: Sequence[Placeholder], device: str, seed: int) -> list[Any]:
    """A tensor for each of ``places``; the same for the same seed, device and version of torch.

    All are made before any is filled: what filling needs for a while must not lie between them, where an allocator
    that keeps what it has could never give it back.

    Args:
        places: Placeholders that are not tangents.
        device: Where to make them.
        seed: Of the random numbers.
    """
    source = seeded(device, seed)
    empty = [_empty(place.spec, device) for place in places]
    return [_filled_place(tensor, place, source) for tensor, place in zip(empty, places, strict=True)]


def _empty(spec: TensorSpec, device: str) -> Any:
    import torch

    return torch.empty_strided(spec.shape, spec.stride, dtype=dtype_named(spec.dtype), device=device)


def _whole(tensor: Any) -> Any:
    """All of the memory in which ``tensor`` lies, where no two elements share any."""
    import torch

    return torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.dtype.itemsize,), (1,))


def _filled(tensor: Any, limit: int | None, generator: Any, scale: float) -> Any:
    """``tensor`` with random numbers in it.

    In place, since others count what is alive meanwhile.
    """
    import torch

    dtype = tensor.dtype
    flat = _whole(tensor)
    flat = torch.view_as_real(flat) if dtype.is_complex else flat
    if flat.dtype in {torch.float16, torch.bfloat16, torch.float32, torch.float64}:
        if limit is None:
            flat.normal_(0, scale, generator=generator)
        else:
            flat.uniform_(0, limit, generator=generator)
    elif dtype.is_floating_point:  # these cannot be filled with normal numbers
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
