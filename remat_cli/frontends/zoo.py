"""What nodes of the zoo cost: FLOPs, or time on a GPU by its data sheet."""

from remat_cli.errors import UsageError
from remat_cli.frontends.rates import DTYPES, PRODUCT, roofline
from remat_cli.zoo.training import FLOPS, CostModel, Work

_DTYPES = {2: "float16", 4: "float32", 8: "float64"}
"""The type whose products have numbers of so many bytes."""
_US_DIGITS = 3
"""Digits after the point of a time in microseconds."""


def zoo_costs(text: str) -> CostModel:
    """The cost model that ``flops`` or ``roofline:NAME`` names.

    Raises:
        UsageError: If there is no cost model of that name.
    """
    if text == "flops":
        return FLOPS
    kind, _, name = text.partition(":")
    if kind != "roofline":
        raise UsageError(
            f'"{text}" is not a cost model for architectures of the zoo',
            hint="write flops or roofline:v100; nothing of them runs, so no device can be measured",
        )
    rates, description = roofline(name)

    def cost(work: Work) -> float:
        """Launch + max(FLOPs of products / rate, bytes / bandwidth)."""
        dtype = _DTYPES.get(work.dtype_bytes, DTYPES[0])
        own = rates.product_us(PRODUCT, dtype, work.flops) if work.product else 0.0
        moving = rates.us("stream", work.moved_bytes) or 0.0
        return round(rates.launch_us + max(own, moving), _US_DIGITS)

    return CostModel("us", cost, description)
