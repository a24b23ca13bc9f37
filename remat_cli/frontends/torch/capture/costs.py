"""Costs of operations that are not measured one by one: FLOPs, or time at the rates of a device."""

from __future__ import annotations

from functools import partial
from typing import Any

from remat_cli.frontends import rates
from remat_cli.frontends.messages import Tell, tell_stderr
from remat_cli.frontends.torch.costing.device import device_rates
from remat_cli.frontends.torch.costing.work import flops, microseconds
from remat_cli.frontends.torch.types import FxNode

CostModel = rates.CostModel[FxNode]


def cost_model(text: str, device: Any = "cpu", tell: Tell = tell_stderr) -> CostModel:
    """The cost model that ``device``, ``flops`` or ``roofline:NAME`` names.

    Args:
        text: The name.
        device: The device whose rates ``device`` stands for: ``cpu``, ``cuda``, or a device of PyTorch. It is here.
        tell: Told that the device is measured, if it is.

    Raises:
        UsageError, InputError: See :func:`remat_cli.frontends.rates.named_costs`.
    """
    return rates.named_costs(text, flops, microseconds, partial(device_rates, device, tell), "PyTorch")
