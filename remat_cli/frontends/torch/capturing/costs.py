"""Costs of operations without measurement: FLOPs, or time on a named device by the roofline model.

No cost is 0: free operations lead to ties, and to plans that recompute them any number of times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.torch.private import flop_formula
from remat_cli.registry import suggestion

LAUNCH_US = 3.0
"""Least microseconds of an operation in the roofline model: the time to launch a kernel, on the host. Untuned."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Peak rates of a device, from its vendor's data sheet; dense, without sparsity.

    Attributes:
        title: Its name.
        flops: Floating-point operations per second by type; missing types run at the rate of ``float32``.
        bytes_per_s: Memory bandwidth.
    """

    title: str
    flops: dict[str, float]
    bytes_per_s: float


MACHINES = {
    "v100": Machine("NVIDIA V100 SXM2", {"float32": 15.7e12, "float64": 7.8e12, "float16": 125e12}, 900e9),
    "a100": Machine(
        "NVIDIA A100 SXM4 80GB",
        {"float32": 19.5e12, "float64": 9.7e12, "float16": 312e12, "bfloat16": 312e12},
        2039e9,
    ),
    "h100": Machine(
        "NVIDIA H100 SXM5 80GB",
        {"float32": 67e12, "float64": 34e12, "float16": 989.4e12, "bfloat16": 989.4e12},
        3350e9,
    ),
    "h200": Machine(
        "NVIDIA H200 SXM 141GB",
        {"float32": 67e12, "float64": 34e12, "float16": 989.4e12, "bfloat16": 989.4e12},
        4800e9,
    ),
    "t4": Machine("NVIDIA T4", {"float32": 8.1e12, "float16": 65e12}, 320e9),
    "a10": Machine("NVIDIA A10", {"float32": 31.2e12, "float16": 125e12, "bfloat16": 125e12}, 600e9),
    "l4": Machine("NVIDIA L4", {"float32": 30.3e12, "float16": 121e12, "bfloat16": 121e12}, 300e9),
    "l40s": Machine("NVIDIA L40S", {"float32": 91.6e12, "float16": 362e12, "bfloat16": 362e12}, 864e9),
    "rtx4090": Machine(
        "NVIDIA GeForce RTX 4090", {"float32": 82.6e12, "float16": 165.2e12, "bfloat16": 165.2e12}, 1008e9
    ),
}
"""Devices that the roofline model knows. TF32 is not assumed for float32: PyTorch leaves it off."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """How to cost operations.

    Attributes:
        text: Its text form: ``flops`` or ``roofline:a100``.
        unit: Unit of the costs.
        description: Entry of the graph's metadata.
        cost: Maps an FX node to its cost.
    """

    text: str
    unit: str
    description: dict[str, Any]
    cost: Callable[[Any], float]


def cost_model(text: str) -> CostModel:
    """The cost model that ``flops`` or ``roofline:NAME`` names.

    Raises:
        UsageError: If there is no cost model of that name.
    """
    if text == "flops":
        return CostModel(text, "flops", {"model": "flops"}, flops)
    kind, _, name = text.partition(":")
    if kind != "roofline":
        raise UsageError(f'"{text}" is not a cost model', hint="write flops, or roofline:a100")
    if name not in MACHINES:
        known = list(MACHINES)
        raise UsageError(
            f'the roofline model knows no device "{name}"',
            hint=suggestion(name, known) or f"known: {', '.join(known)}; remat profile measures on any device",
        )
    machine = MACHINES[name]
    description = {
        "model": "roofline",
        "device": machine.title,
        "flops_per_s": machine.flops,
        "bytes_per_s": machine.bytes_per_s,
        "launch_us": LAUNCH_US,
    }
    return CostModel(text, "us", description, lambda node: roofline_us(node, machine))


def flops(node: Any) -> float:
    """FLOPs of an operation: PyTorch's formula if it has one (matrix products, convolutions, attention).

    Every other operation costs one per element of its largest tensor, read or written.
    """
    counted = _formula(node)
    if counted > 0:
        return counted
    return float(max([1, *map(_count, _read(node)), *map(_count, _made(node))]))


def roofline_us(node: Any, machine: Machine) -> float:
    """Microseconds of an operation: the longer of arithmetic and memory traffic, plus the launch.

    Args:
        node: The FX node.
        machine: Where it runs.
    """
    made, read = _made(node), _read(node)
    dtype = str(made[0].dtype).removeprefix("torch.") if made else "float32"
    rate = machine.flops.get(dtype, machine.flops["float32"])
    traffic = sum(_count(tensor) * tensor.element_size() for tensor in (*read, *made))
    return float(1e6 * max(flops(node) / rate, traffic / machine.bytes_per_s) + LAUNCH_US)


def _formula(node: Any) -> float:
    formula = flop_formula(node.target)
    if formula is None:
        return 0.0
    values = _values(node.args), _values(node.kwargs)
    return float(formula(*values[0], **values[1], out_val=node.meta["val"]))


def _values(arguments: Any) -> Any:
    """Arguments with the fake tensors in place of the FX nodes."""
    import torch

    return torch.fx.map_arg(arguments, lambda node: node.meta["val"])


def _read(node: Any) -> list[Any]:
    return [tensor for argument in node.all_input_nodes for tensor in _flat(argument.meta.get("val"))]


def _made(node: Any) -> list[Any]:
    return _flat(node.meta.get("val"))


def _flat(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    return [item for item in value if isinstance(item, torch.Tensor)] if isinstance(value, list | tuple) else []


def _count(tensor: Any) -> int:
    """Number of elements in memory: an axis of stride 0 repeats the same ones, and counts once."""
    elements = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= length if stride else 1
    return elements
