"""Random arrays in place of the user's: valid, and of the right type and shape.

Floating-point numbers are normal; those of weights are so small that sums over them stay around 1, and those of vectors
are positive, as scales and variances have to be. Whole numbers are below the limit that the graph states for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from remat_cli.frontends.jax.document import ArraySpec, PlaceSpec
from remat_cli.frontends.jax.installed import device_named

_FALLBACK_LIMIT = 2
"""Without a limit, whole numbers are 0 or 1: these are valid for most operations."""


def place_arrays(places: Sequence[PlaceSpec], device: str, seed: int) -> list[Any]:
    """An array for each of ``places``; the same for the same seed."""
    import numpy as np

    generator = np.random.default_rng(seed)
    return [random_array(place.spec, device, generator, place.below) for place in places]


def random_array(spec: ArraySpec, device: str, generator: Any, below: int | None = None) -> Any:
    """A random array on the device.

    Args:
        spec: Its type and shape.
        device: ``cpu`` or ``cuda``.
        generator: numpy's source of random numbers.
        below: Upper limit of whole numbers; None if none is known.
    """
    import jax
    import jax.numpy as jnp

    dtype = jnp.dtype(spec.dtype)
    if spec.key is not None:
        numbers = generator.integers(0, 1 << 32, spec.shape, dtype="uint32")
    elif spec.dtype == "bool":
        numbers = generator.integers(0, 2, spec.shape)
    elif jnp.issubdtype(dtype, jnp.integer):
        numbers = generator.integers(0, below or _FALLBACK_LIMIT, spec.shape)
    else:
        numbers = generator.standard_normal(spec.shape, dtype="float32")
        if len(spec.shape) == 1:
            numbers = abs(numbers) * 0.1 + 0.5
        elif spec.shape:
            numbers = numbers / math.sqrt(max(1, math.prod(spec.shape[:-1])))
    return jax.device_put(numbers.astype(dtype), device_named(device))
