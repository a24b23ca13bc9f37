"""The rates of the device at hand: measured when they are first needed, and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from typing import Any

from remat_cli.files import cache_folder, read_text
from remat_cli.frontends.jax.installed import device_named
from remat_cli.frontends.rates import DTYPES, PRODUCT, Curve, Rates, kept_rates, processor, read_rates
from remat_cli.running import usable_cores

RATES = "REMAT_RATES"
"""Environment variable with a file of rates, which are taken instead of those of the device at hand."""
_METHOD = 1
"""Number of the way to measure; rates that were measured in another way are not read."""
_SIZES = (64, 256, 1024)
"""Sides of the matrices whose product is measured."""
_STREAMED = (1 << 14, 1 << 18, 1 << 22)
"""Elements of the arrays that are added to."""
_SAMPLES = 5
_SAMPLE_S = 0.01


def device_rates(device: str, tell: Callable[[str], None]) -> Rates:
    """The rates of a device that is here.

    In this order: the file that ``REMAT_RATES`` names; the rates that an earlier process has kept for the same
    processor, number of cores and version of JAX; those that are now measured, in a second.

    Args:
        device: ``cpu`` or ``cuda``.
        tell: Called before a measurement, and if its result cannot be kept.

    Raises:
        InputError: If the file that the environment names cannot be read, or holds no rates.
    """
    named = os.environ.get(RATES, "")
    if named:
        return read_rates(*read_text(named))
    import jax

    place: Any = device_named(device)
    machine = processor() if device == "cpu" else str(place.device_kind)
    cores = usable_cores() if device == "cpu" else 0
    facts = {"device": device, "jax": str(jax.__version__)} | ({"threads": cores} if cores else {})
    key = json.dumps([machine, facts, _METHOD], sort_keys=True)
    path = cache_folder("rates") / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"

    def measured() -> Rates:
        tell(f"measuring how fast {machine} is, for a second; kept in {path}")
        launch_us, per_s = _measure(place)
        return Rates(machine, launch_us, 0.0, per_s, facts)

    return kept_rates(path, measured, tell)


def _measure(place: Any) -> tuple[float, dict[str, Curve]]:
    """Microseconds of a call that does nothing, and rates of products and of streaming."""
    import jax
    import jax.numpy as jnp

    def array(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.device_put(jnp.ones(shape, dtype), place)

    launch_s = _seconds(jax.jit(lambda x: x + 1), array((), jnp.float32))
    per_s: dict[str, Curve] = {}
    for dtype in DTYPES[:3]:
        product = jax.jit(lambda a, b: a @ b)
        points = []
        for side in _SIZES:
            matrix = array((side, side), jnp.dtype(dtype))
            points.append((2.0 * side**3, _rate(2.0 * side**3, _seconds(product, matrix, matrix), launch_s)))
        per_s[f"{PRODUCT} {dtype}"] = tuple(points)
    stream = jax.jit(lambda x: x * 2 + 1)
    points = []
    for elements in _STREAMED:
        moved = 8.0 * elements
        points.append((moved, _rate(moved, _seconds(stream, array((elements,), jnp.float32)), launch_s)))
    return launch_s * 1e6, per_s | {"stream": tuple(points)}


def _rate(amount: float, taken_s: float, launch_s: float) -> float:
    """Work per second without the launch, which is at most half of the time."""
    return amount / max(taken_s - launch_s, taken_s / 2)


def _seconds(function: Any, *arrays: Any) -> float:
    """Least seconds of a call, of several samples."""
    import jax

    jax.block_until_ready(function(*arrays))
    best = float("inf")
    for _ in range(_SAMPLES):
        calls, started, taken = 0, time.perf_counter(), 0.0
        while taken < _SAMPLE_S:
            jax.block_until_ready(function(*arrays))
            calls += 1
            taken = time.perf_counter() - started
        best = min(best, taken / calls)
    return best
