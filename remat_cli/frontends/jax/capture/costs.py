"""Costs of operations that are not measured one by one: FLOPs, or time at the rates of a device.

What a group of equations computes in between is not written to memory, so only what it reads and makes counts. The
rates of the device at hand are measured when they are first needed, and kept in the user's cache folder.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from remat_cli.files import cache_folder, read_text
from remat_cli.frontends.jax.capture.flat import Equation, Flat
from remat_cli.frontends.jax.capture.primitives import PRODUCTS, flops
from remat_cli.frontends.jax.installed import device_named
from remat_cli.frontends.messages import Tell
from remat_cli.frontends.rates import (
    DTYPES,
    PRODUCT,
    CostModel,
    Curve,
    Rates,
    kept_rates,
    named_costs,
    processor,
    read_rates,
)
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


@dataclass(frozen=True, slots=True)
class Work:
    """What a group has to do.

    Attributes:
        flops: All FLOPs.
        products: FLOPs of products and convolutions, with the type of their numbers, for each.
        bytes: Bytes that it reads and makes.
    """

    flops: float
    products: tuple[tuple[str, float], ...]
    bytes: int


def work_of(flat: Flat, equations: Sequence[Equation], moved_bytes: int) -> Work:
    """The work of a group; ``moved_bytes`` are those that it reads and makes."""
    total, products = [], []
    for equation in equations:
        reads = [flat.aval_of(atom) for atom in equation.reads]
        makes = [flat.avals[variable].shape for variable in equation.makes]
        own = flops(equation.name, equation.params, [aval.shape for aval in reads], makes)
        total.append(own)
        if equation.name in PRODUCTS:
            products.append((str(reads[0].dtype), own))
    return Work(max(1.0, math.fsum(total)), tuple(products), moved_bytes)


def cost_model(text: str, device: str, tell: Tell) -> CostModel[Work]:
    """The cost model that ``device``, ``flops`` or ``roofline:NAME`` names.

    Args:
        text: The name.
        device: The device whose rates ``device`` stands for: ``cpu`` or ``cuda``. It is here.
        tell: Told that the device is measured, if it is.

    Raises:
        UsageError, InputError: See :func:`remat_cli.frontends.rates.named_costs`.
    """
    return named_costs(text, lambda work: work.flops, microseconds, partial(device_rates, device, tell), "JAX")


def microseconds(work: Work, rates: Rates) -> float:
    """Launch + max(FLOPs of products / rate, bytes read and written / bandwidth)."""
    products = math.fsum(rates.product_us(f"{PRODUCT} {DTYPES[0]}", dtype, own) for dtype, own in work.products)
    return rates.launch_us + max(products, rates.us("stream", max(1, work.bytes)) or 0.0)


def device_rates(device: str, tell: Tell) -> Rates:
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
