"""What an optimizer keeps between steps, and what it takes during one, by name and from the shapes of parameters.

Sizes are those of ``torch.optim`` with its defaults on a GPU, where ``foreach`` implementations update all parameters
of a type at once: their temporary tensors are as large as all of them. The tests measure every one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from remat_cli.errors import UsageError
from remat_cli.registry import suggestion

STEP_BYTES = 4
"""The counter of steps that most optimizers keep for every parameter, a float32. PyTorch keeps it on the CPU."""
_BLOCK, _SMALLEST = 256, 4096
"""8-bit optimizers of bitsandbytes quantise blocks of 256 elements, each with a float32 of its own, and keep parameters
of fewer than 4096 elements in 32 bits."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a model.

    Attributes:
        shape: Its shape.
        item_bytes: Bytes of an element.
        trained: Whether it has a gradient.
    """

    shape: tuple[int, ...]
    item_bytes: int
    trained: bool = True

    @property
    def elements(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.elements * self.item_bytes


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer.

    Attributes:
        title: Its name and setting, for reports.
        state: Bytes that it keeps for a parameter.
        workspace: Temporary bytes of a step, for all parameters of one type.
    """

    title: str
    state: Callable[[Parameter], int]
    workspace: Callable[[Sequence[Parameter]], int]

    def state_bytes(self, parameters: Sequence[Parameter]) -> int:
        """Bytes kept between steps for the parameters that are trained."""
        return sum(self.state(p) for p in parameters if p.trained)

    def workspace_bytes(self, parameters: Sequence[Parameter]) -> int:
        """Most temporary bytes of a step: types are updated one after another."""
        trained = [p for p in parameters if p.trained]
        sizes = {p.item_bytes for p in trained}
        return max((self.workspace([p for p in trained if p.item_bytes == size]) for size in sizes), default=0)


def _copies(number: int) -> Callable[[Parameter], int]:
    return lambda parameter: number * parameter.size


def _all(number: int) -> Callable[[Sequence[Parameter]], int]:
    return lambda parameters: number * sum(p.size for p in parameters)


def _adafactor(parameter: Parameter) -> int:
    """A variance for every row and every column of the last two dimensions; of a vector, for every element."""
    if len(parameter.shape) < 2:
        return parameter.size
    *others, rows, columns = parameter.shape
    return math.prod(others) * (rows + columns) * parameter.item_bytes


def _eight_bits(parameter: Parameter) -> int:
    if parameter.elements < _SMALLEST:
        return 2 * 4 * parameter.elements
    return 2 * (parameter.elements + 4 * -(-parameter.elements // _BLOCK))


OPTIMIZERS = {
    "adamw": Optimizer("AdamW", _copies(2), _all(1)),
    "adamw-fused": Optimizer("AdamW, fused", _copies(2), _all(0)),
    "adam": Optimizer("Adam", _copies(2), _all(1)),
    "adam-fused": Optimizer("Adam, fused", _copies(2), _all(0)),
    "adamw-8bit": Optimizer("AdamW in 8 bits, of bitsandbytes", _eight_bits, _all(0)),
    "sgd": Optimizer("SGD without momentum", _copies(0), _all(0)),
    "sgd-momentum": Optimizer("SGD with momentum", _copies(1), _all(0)),
    "rmsprop": Optimizer("RMSprop", _copies(1), _all(1)),
    "adagrad": Optimizer("Adagrad", _copies(1), _all(2)),
    "adafactor": Optimizer("Adafactor", _adafactor, _all(1)),
    "none": Optimizer("no optimizer", _copies(0), _all(0)),
}
"""Optimizers by name."""


def optimizer(name: str) -> Optimizer:
    """The optimizer of that name.

    Raises:
        UsageError: If its memory is not known here.
    """
    if name not in OPTIMIZERS:
        raise UsageError(
            f'the memory of an optimizer "{name}" is not known',
            hint=suggestion(name, list(OPTIMIZERS)) or f"known: {', '.join(OPTIMIZERS)}",
        )
    return OPTIMIZERS[name]
