"""Costs of operations that are not measured one by one: FLOPs, or time at the rates of a device.

No cost is 0: free operations lead to ties, and to plans that recompute them any number of times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.messages import Tell, tell_stderr
from remat_cli.frontends.rates import Rates, roofline
from remat_cli.frontends.torch.costing.device import device_rates
from remat_cli.frontends.torch.costing.work import flops, microseconds
from remat_cli.frontends.torch.types import FxNode

DEVICE, FLOPS = "device", "flops"
_US_DIGITS = 3
"""Digits after the point of a time in microseconds. Nothing is known that exactly, and documents stay readable."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """How to cost operations.

    Attributes:
        text: Its text form: ``device``, ``flops`` or ``roofline:a100``.
        unit: Unit of the costs.
        description: Entry of the graph's metadata.
        cost: Maps an FX node to its cost.
    """

    text: str
    unit: str
    description: dict[str, Any]
    cost: Callable[[FxNode], float]


def cost_model(text: str, device: Any = "cpu", tell: Tell = tell_stderr) -> CostModel:
    """The cost model that ``device``, ``flops`` or ``roofline:NAME`` names.

    Args:
        text: The name.
        device: The device whose rates ``device`` stands for: ``cpu``, ``cuda``, or a device of PyTorch. It is here.
        tell: Told that the device is measured, if it is.

    Raises:
        UsageError: If there is no cost model of that name.
        InputError: If ``REMAT_RATES`` names a file that holds no rates.
    """
    if text == FLOPS:
        return CostModel(text, "flops", {"model": "flops"}, flops)
    if text == DEVICE:
        rates = device_rates(device, tell)
        return _timed(text, rates, {"model": "device"} | rates.document())
    kind, _, name = text.partition(":")
    if kind != "roofline":
        hint = "write device for times on the device at hand, flops, or roofline:a100"
        raise UsageError(f'"{text}" is not a cost model', hint=hint)
    return _timed(text, *roofline(name))


def _timed(text: str, rates: Rates, description: dict[str, Any]) -> CostModel:
    least = 10.0**-_US_DIGITS
    return CostModel(text, "us", description, lambda node: max(least, round(microseconds(node, rates), _US_DIGITS)))
