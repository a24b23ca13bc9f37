"""Tensors to run with where the user's are not at hand: random, of the right type, shape and strides, and valid.

Floating-point numbers are random. Integers are what may be in their place: below the limit that the graph states for
an index, or whatever the operation that makes them makes of random inputs (the indices of a pooling layer).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_FALLBACK_LIMIT = 2
"""Integers of which nothing is known are 0 or 1."""


def new_tensor(description: Mapping[str, Any], device: str, generator: Any, *, scale: float = 1.0) -> Any:
    """A random tensor.

    Args:
        description: ``dtype``, ``shape``, ``stride``, and for integers ``below``.
        device: Where to make it.
        generator: Source of random numbers, on that device.
        scale: Standard deviation of floating-point numbers.
    """
    import torch

    dtype = getattr(torch, description["dtype"])
    tensor = torch.empty_strided(tuple(description["shape"]), tuple(description["stride"]), dtype=dtype, device=device)
    if dtype.is_floating_point or dtype.is_complex:
        # Not every type can be filled with normal numbers; all can be copied into.
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return tensor.copy_(torch.randn(tensor.shape, dtype=wide, device=device, generator=generator) * scale)
    below = 2 if dtype == torch.bool else description.get("below") or _FALLBACK_LIMIT
    below = min(below, 128) if dtype.itemsize == 1 else below
    return tensor.copy_(torch.randint(0, below, tensor.shape, device=device, generator=generator))


def place_tensor(place: Mapping[str, Any], device: str, generator: Any) -> Any:
    """What may be in a place of a graph: weights of a usual size, positive vectors and buffers, inputs around 0."""
    shape = place["shape"]
    if place["kind"] == "parameter" and len(shape) > 1:
        return new_tensor(place, device, generator, scale=1 / math.sqrt(max(1, math.prod(shape[1:]))))
    tensor = new_tensor(place, device, generator)
    if place["kind"] in {"parameter", "buffer"} and (tensor.is_floating_point() or tensor.is_complex()):
        return tensor.abs_().clamp_(0.1, 2.0) if tensor.is_floating_point() else tensor
    return tensor


def place_tensors(places: Sequence[Mapping[str, Any]], device: str, seed: int) -> list[Any]:
    """A tensor for each place that is not a tangent; the same for the same seed, device and version of torch."""
    source = seeded(device, seed)
    return [place_tensor(place, device, source) for place in places if place["kind"] != "tangent"]


def seeded(device: str, seed: int) -> Any:
    """A generator of random numbers on ``device``."""
    import torch

    return torch.Generator(device=device).manual_seed(seed)
