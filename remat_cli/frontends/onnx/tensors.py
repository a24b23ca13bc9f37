"""Types of tensors and calls of operators as plain data: rules on them need no ``onnx`` package."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remat_cli.frontends.imported import contents

_FLOATING = ("FLOAT", "DOUBLE", "BFLOAT16", "COMPLEX")
_BITS = {"FLOAT": 32, "DOUBLE": 64, "BOOL": 8}
_NUMBERED = re.compile("(?:B?FLOAT|COMPLEX|U?INT)([0-9]+)")


@dataclass(frozen=True, slots=True)
class TensorType:
    """Type and shape of a tensor.

    Attributes:
        element: Type of its elements, as ONNX calls it: ``FLOAT``.
        shape: Its shape.
    """

    element: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the shape.

        Raises:
            ValueError: If a size is negative, or there are more elements than 63 bits can count.
        """
        if min(self.shape, default=0) < 0 or self.elements >= 1 << 63:
            raise ValueError(f"a tensor cannot have the shape {list(self.shape)[:8]}")

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size, stored densely."""
        return contents(self.shape, element_bits(self.element))

    @property
    def floating(self) -> bool:
        """Whether its elements can have gradients."""
        return self.element.startswith(_FLOATING)


def element_bits(element: str) -> int:
    """Bits of an element: ``FLOAT8E4M3FN`` has 8, ``INT4`` has 4.

    Raises:
        KeyError: If elements have no fixed size, as text has none.
    """
    match = _NUMBERED.match(element)
    return int(match[1]) if match is not None else _BITS[element]


@dataclass(frozen=True, slots=True)
class Call:
    """An operator applied to tensors.

    Attributes:
        op: Name of the operator.
        inputs: Type of every input; None for an optional one that is left out.
        outputs: Type of every output, likewise.
        attributes: Numbers, texts and lists.
    """

    op: str
    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType | None, ...]
    attributes: Mapping[str, Any]

    def input(self, position: int) -> TensorType:
        """An input that the operator needs.

        Raises:
            IndexError: If it is left out.
        """
        found = self.inputs[position] if position < len(self.inputs) else None
        if found is None:
            raise IndexError(f"{self.op} has no input {position}")
        return found

    def output(self, position: int) -> TensorType:
        """An output that the operator always has.

        Raises:
            IndexError: If it is left out.
        """
        found = self.outputs[position] if position < len(self.outputs) else None
        if found is None:
            raise IndexError(f"{self.op} has no output {position}")
        return found

    @property
    def made(self) -> int:
        """Elements of its largest output."""
        return max((t.elements for t in self.outputs if t is not None), default=0)

    @property
    def read(self) -> int:
        """Elements of its largest input."""
        return max((t.elements for t in self.inputs if t is not None), default=0)
