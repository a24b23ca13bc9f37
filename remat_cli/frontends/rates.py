"""How fast a device is: a few rates, from which the time of every operation follows; and the cost models.

The rates of the device at hand are measured once by its framework and kept in a file. Those of some GPUs stand here, as
their vendors state them.
"""

import json
import math
import platform
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

from remat_cli.errors import InputError, Problem, UsageError, Worded
from remat_cli.files import read_text, write_text
from remat_cli.registry import suggestion

SCHEMA = "remat-rates/1"
LAUNCH_US = 3.0
"""Microseconds to launch a kernel, assumed for devices that were not measured. Untuned."""

DEVICE, FLOPS = "device", "flops"
_US_DIGITS = 3
"""Digits after the point of a time in microseconds. Nothing is known that exactly, and documents stay readable."""
Curve = tuple[tuple[float, float], ...]
"""Points (amount of work, rate in units of that work per second), by rising amount; at least one."""

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""Types whose products are measured. Others count as ``float32``."""
PRODUCT = "product"
REQUIRED = ("stream", f"{PRODUCT} {DTYPES[0]}")
"""The kinds that every device has a rate for."""
KINDS = {
    **{f"{PRODUCT} {dtype}": "FLOPs of a matrix product" for dtype in DTYPES},
    "batched product": "FLOPs of many small products in one call",
    "convolution": "FLOPs",
    "convolution backward": "FLOPs",
    "grouped convolution": "FLOPs; of one channel per group",
    "grouped convolution backward": "FLOPs",
    "attention": "FLOPs",
    "attention backward": "FLOPs",
    "stream": "bytes read and written by an operation that does little else",
    "run": "contiguous runs into which broadcasting, slices and permutations split a pointwise operation",
    "scatter": "elements of a pointwise operation, one after another not side by side in memory",
    "mixed": "elements of a pointwise operation on several types",
    "select": "elements chosen by a mask",
    "exp": "elements",
    "erf": "elements",
    "tanh": "elements",
    "random": "random numbers",
    "softmax": "elements",
    "safe softmax": "elements",
    "layer norm": "elements",
    "layer norm backward": "elements",
    "batch norm": "elements",
    "batch norm backward": "elements",
    "pool": "elements read by a window",
    "index": "elements read or written by index",
    "sort": "elements",
}
"""What is measured, with the unit of its amount. Every operation counts as one of these; see :mod:`.work`."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a device.

    Attributes:
        machine: The processor's or GPU's name.
        launch_us: Microseconds of an operation that does nothing.
        view_us: Microseconds of making a view.
        per_s: Rates by kind, see :data:`KINDS`; those of :data:`REQUIRED` are always there.
        facts: What else is known of the measurement, such as threads and the version of PyTorch.
    """

    machine: str
    launch_us: float
    view_us: float
    per_s: Mapping[str, Curve]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def us(self, kind: str, amount: float) -> float | None:
        """Microseconds for this amount of work, without the launch; None if the kind has no rate."""
        curve = self.per_s.get(kind)
        return None if curve is None else 1e6 * amount / rate_at(curve, amount)

    def product_us(self, kind: str, dtype: str, amount: float) -> float:
        """Microseconds for FLOPs of products in a type.

        Only ``product`` is measured in every type. Other kinds are as much faster or slower than in ``float32`` as
        that is; a kind without a rate runs at that of products.
        """
        dtype = dtype if f"{PRODUCT} {dtype}" in self.per_s else DTYPES[0]
        plain = self.us(f"{PRODUCT} {dtype}", amount)
        single = self.us(f"{PRODUCT} {DTYPES[0]}", amount)
        own = self.us(kind, amount)
        assert plain is not None and single is not None  # noqa: PT018 - always there
        return plain if own is None else own * plain / single if single else own

    def document(self) -> dict[str, Any]:
        """The rates as they are kept in files and in the metadata of graphs."""
        return {
            "schema": SCHEMA,
            "machine": self.machine,
            **self.facts,
            "launch_us": self.launch_us,
            "view_us": self.view_us,
            "per_s": {kind: [list(point) for point in curve] for kind, curve in sorted(self.per_s.items())},
        }


def rate_at(curve: Curve, amount: float) -> float:
    """The rate for an amount: between two points along a straight line over the logarithm, else that of the end."""
    at = bisect_left(curve, amount, key=lambda point: point[0])
    if at == 0 or at == len(curve):
        return curve[min(at, len(curve) - 1)][1]
    (low, first), (high, second) = curve[at - 1], curve[at]
    share = math.log(amount / low) / math.log(high / low)
    return first + share * (second - first)


def read_rates(text: str, name: str) -> Rates:
    """The rates in a document; ``name`` is that of its file, for messages.

    Raises:
        InputError: If it is not a document of rates.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError.of(name, f"is not JSON: {error}") from None
    problems = _problems(document)
    if problems:
        hint = Worded(
            'cost="device" writes such a file when it measures; see docs/costs.md',
            "remat export --cost device writes such a file when it measures; see docs/costs.md",
        )
        raise InputError(name, [Problem(problem, hint=hint) for problem in problems[:3]])
    known = {"schema", "machine", "launch_us", "view_us", "per_s"}
    return Rates(
        machine=document["machine"],
        launch_us=float(document["launch_us"]),
        view_us=float(document["view_us"]),
        per_s={
            kind: tuple((float(amount), float(rate)) for amount, rate in curve)
            for kind, curve in document["per_s"].items()
        },
        facts={key: document[key] for key in document if key not in known},
    )


def _problems(document: Any) -> list[str]:
    """What is wrong with a document of rates."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        return [f'has no "schema": "{SCHEMA}"']
    found = [] if isinstance(document.get("machine"), str) else ["has no text machine"]
    found += [f"{key} is not a number, 0 or more" for key in ("launch_us", "view_us") if not _number(document.get(key))]
    per_s = document.get("per_s")
    if not isinstance(per_s, dict):
        return [*found, "has no object per_s"]
    found += [f'per_s: there is no kind "{kind}"' for kind in per_s if kind not in KINDS]
    found += [f'per_s: "{kind}" is missing' for kind in REQUIRED if kind not in per_s]
    found += [
        f"per_s: {kind}: is not a list of [amount, rate], both above 0, by rising amount"
        for kind, curve in per_s.items()
        if not _is_curve(curve)
    ]
    return found


def _is_curve(curve: Any) -> bool:
    if not isinstance(curve, list) or not curve:
        return False
    if not all(isinstance(point, list) and len(point) == 2 and all(_number(x, 0.0) for x in point) for point in curve):
        return False
    amounts = [amount for amount, _ in curve]
    return all(low < high for low, high in pairwise(amounts))


def _number(value: Any, above: float = -1.0) -> bool:
    """Whether this is a finite number that is not negative, and above a bound."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and 0 <= value <= sys.float_info.max and value > above


def _stated(machine: str, flops: Mapping[str, float], bytes_per_s: float) -> Rates:
    per_s: dict[str, Curve] = {f"{PRODUCT} {dtype}": ((1.0, rate),) for dtype, rate in flops.items()}
    return Rates(machine, LAUNCH_US, 0.0, per_s | {"stream": ((1.0, bytes_per_s),)})


MACHINES = {
    "v100": _stated("NVIDIA V100 SXM2", {"float32": 15.7e12, "float64": 7.8e12, "float16": 125e12}, 900e9),
    "a100": _stated(
        "NVIDIA A100 SXM4 80GB",
        {"float32": 19.5e12, "float64": 9.7e12, "float16": 312e12, "bfloat16": 312e12},
        2039e9,
    ),
    "h100": _stated(
        "NVIDIA H100 SXM5 80GB",
        {"float32": 67e12, "float64": 34e12, "float16": 989.4e12, "bfloat16": 989.4e12},
        3350e9,
    ),
    "h200": _stated(
        "NVIDIA H200 SXM 141GB",
        {"float32": 67e12, "float64": 34e12, "float16": 989.4e12, "bfloat16": 989.4e12},
        4800e9,
    ),
    "a100-40gb": _stated(
        "NVIDIA A100 SXM4 40GB",
        {"float32": 19.5e12, "float64": 9.7e12, "float16": 312e12, "bfloat16": 312e12},
        1555e9,
    ),
    "b200": _stated(
        "NVIDIA B200 SXM 180GB",
        {"float32": 75e12, "float64": 37e12, "float16": 2250e12, "bfloat16": 2250e12},
        7700e9,
    ),
    "t4": _stated("NVIDIA T4", {"float32": 8.1e12, "float16": 65e12}, 320e9),
    "a10": _stated("NVIDIA A10", {"float32": 31.2e12, "float16": 125e12, "bfloat16": 125e12}, 600e9),
    "l4": _stated("NVIDIA L4", {"float32": 30.3e12, "float16": 121e12, "bfloat16": 121e12}, 300e9),
    "a6000": _stated("NVIDIA RTX A6000", {"float32": 38.7e12, "float16": 154.8e12, "bfloat16": 154.8e12}, 768e9),
    "l40s": _stated("NVIDIA L40S", {"float32": 91.6e12, "float16": 362e12, "bfloat16": 362e12}, 864e9),
    "rtx3090": _stated("NVIDIA GeForce RTX 3090", {"float32": 35.6e12, "float16": 71e12, "bfloat16": 71e12}, 936e9),
    "rtx5090": _stated(
        "NVIDIA GeForce RTX 5090", {"float32": 104.8e12, "float16": 209.5e12, "bfloat16": 209.5e12}, 1792e9
    ),
    "rtx4090": _stated(
        "NVIDIA GeForce RTX 4090", {"float32": 82.6e12, "float16": 165.2e12, "bfloat16": 165.2e12}, 1008e9
    ),
}
"""Devices by their data sheets: dense, without sparsity. TF32 is not assumed for float32: PyTorch leaves it off."""


def roofline(name: str) -> tuple[Rates, dict[str, Any]]:
    """The rates of a device by its data sheet, and what the metadata of graphs say of them.

    Raises:
        UsageError: If its data sheet is not known here.
    """
    if name not in MACHINES:
        known = list(MACHINES)
        raise UsageError(
            f'the roofline model knows no device "{name}"',
            hint=suggestion(name, known)
            or Worded(
                f"known: {', '.join(known)}; the cost device measures the device at hand",
                f"known: {', '.join(known)}; --cost device measures the device at hand",
            ),
        )
    machine = MACHINES[name]
    peaks = {dtype: machine.per_s.get(f"{PRODUCT} {dtype}") for dtype in DTYPES}
    return machine, {
        "model": "roofline",
        "device": machine.machine,
        "flops_per_s": {dtype: curve[0][1] for dtype, curve in peaks.items() if curve is not None},
        "bytes_per_s": machine.per_s["stream"][0][1],
        "launch_us": machine.launch_us,
    }


Work = TypeVar("Work")


@dataclass(frozen=True, slots=True)
class CostModel(Generic[Work]):
    """How to cost operations.

    Attributes:
        unit: Unit of the costs.
        description: Entry of the graph's metadata.
        cost: Maps what a framework knows of an operation to its cost.
    """

    unit: str
    description: dict[str, Any]
    cost: Callable[[Work], float]


def named_costs(
    text: str,
    flops: Callable[[Work], float],
    microseconds: Callable[[Work, Rates], float],
    device_rates: Callable[[], Rates] | None,
    title: str,
) -> CostModel[Work]:
    """The cost model that ``flops``, ``roofline:NAME`` or ``device`` names.

    No cost is 0: free operations lead to ties, and to plans that recompute them any number of times.

    Args:
        text: The name.
        flops: FLOPs of an operation, at least 1.
        microseconds: Its time at the rates of a device.
        device_rates: The rates of the device at hand; None where ``device`` is no cost model.
        title: The framework as people write it.

    Raises:
        UsageError: If there is no cost model of that name.
        InputError: If ``REMAT_RATES`` names a file that holds no rates.
    """
    if text == FLOPS:
        return CostModel("flops", {"model": "flops"}, flops)
    if text == DEVICE and device_rates is not None:
        rates = device_rates()
        description = {"model": DEVICE} | rates.document()
    else:
        kind, _, name = text.partition(":")
        if kind != "roofline":
            measured = "write device for times on the device at hand, flops, or roofline:a100"
            unmeasured = "write flops or roofline:a100; remat profile measures the device at hand"
            hint = unmeasured if device_rates is None else measured
            raise UsageError(f'"{text}" is not a cost model for {title}', hint=hint)
        rates, description = roofline(name)
    least = 10.0**-_US_DIGITS
    return CostModel("us", description, lambda work: max(least, round(microseconds(work, rates), _US_DIGITS)))


def kept_rates(path: Path, measured: Callable[[], Rates], tell: Callable[[str], None]) -> Rates:
    """The rates that are kept in a file; if there is none, they are measured and kept, or ``tell`` is told why not."""
    try:
        return read_rates(*read_text(str(path)))
    except InputError:  # not there yet, or damaged: it is written anew
        pass
    rates = measured()
    try:
        write_text(str(path), json.dumps(rates.document(), indent=1, sort_keys=True) + "\n")
    except UsageError as error:  # the next process measures again
        tell(f"the rates are not kept: {error.message}")
    return rates


def processor() -> str:
    """The model of the CPU, as Linux names it; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(models), "") or platform.processor() or platform.machine() or "CPU"
