"""Costs of operations that are not measured one by one: FLOPs, or time at the rates of a device.

No cost is 0: free operations lead to ties, and to plans that recompute them any number of times.

    time = launch + max(FLOPs of products / rate, bytes read and written / bandwidth)

What a group of equations computes in between is not written to memory, so only what it reads and makes counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.jax.capturing.flat import Equation, Flat
from remat_cli.frontends.jax.capturing.primitives import PRODUCTS, flops
from remat_cli.frontends.jax.costing.device import device_rates
from remat_cli.frontends.rates import DTYPES, PRODUCT, Rates, roofline

DEVICE, FLOPS = "device", "flops"
_US_DIGITS = 3
"""Digits after the point of a time in microseconds. Nothing is known that exactly, and documents stay readable."""


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


@dataclass(frozen=True, slots=True)
class CostModel:
    """How to cost operations.

    Attributes:
        unit: Unit of the costs.
        description: Entry of the graph's metadata.
        cost: Maps the work of an operation to its cost.
    """

    unit: str
    description: dict[str, Any]
    cost: Callable[[Work], float]


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


def cost_model(text: str, device: str, tell: Callable[[str], None]) -> CostModel:
    """The cost model that ``device``, ``flops`` or ``roofline:NAME`` names.

    Args:
        text: The name.
        device: The device whose rates ``device`` stands for: ``cpu`` or ``cuda``. It is here.
        tell: Told that the device is measured, if it is.

    Raises:
        UsageError: If there is no cost model of that name.
        InputError: If ``REMAT_RATES`` names a file that holds no rates.
    """
    if text == FLOPS:
        return CostModel("flops", {"model": "flops"}, lambda work: work.flops)
    if text == DEVICE:
        rates = device_rates(device, tell)
        return _timed(rates, {"model": "device"} | rates.document())
    kind, _, name = text.partition(":")
    if kind != "roofline":
        hint = "write device for times on the device at hand, flops, or roofline:a100"
        raise UsageError(f'"{text}" is not a cost model', hint=hint)
    return _timed(*roofline(name))


def _timed(rates: Rates, description: dict[str, Any]) -> CostModel:
    least = 10.0**-_US_DIGITS

    def cost(work: Work) -> float:
        products = math.fsum(rates.product_us(f"{PRODUCT} {DTYPES[0]}", dtype, own) for dtype, own in work.products)
        streamed = rates.us("stream", max(1, work.bytes)) or 0.0
        return max(least, round(rates.launch_us + max(products, streamed), _US_DIGITS))

    return CostModel("us", description, cost)
