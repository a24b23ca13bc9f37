"""The random generators while the user's code runs for a capture.

Their states are what they were when remat is done, and the same code gets the same numbers every time.

A module may take its path at random, as where layers are skipped in training (LayerDrop). Such code draws a number
between 0 and 1 and compares it with a share. The generators are started so that what they draw next is high, or low,
and this is done anew after every compiled graph, since a graph draws numbers as well (dropout). So one pass skips
nothing, and it is a pass that the module could have taken itself.
"""

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from remat_cli.frontends.torch.compat.fake_tensors import real_tensors

_EXTREME = 0.1
"""How far from 0 or 1 the next draws are at most. Shares of skipped layers are smaller than 1 less this. Untuned."""
_DRAWS = 2
"""How many draws after a start are so: some code draws for the step before it draws for a layer."""
_MOST_STARTS = 100_000
"""Where the search for a start ends; it takes about a hundred trials."""


@contextlib.contextmanager
def undisturbed(device: str = "cpu") -> Iterator[None]:
    """Give the code inside the same random numbers every time, and restore all generators afterwards.

    Args:
        device: ``cuda`` if the code may draw numbers there.
    """
    import torch

    numpy = sys.modules.get("numpy")
    python, numbers = random.getstate(), None if numpy is None else numpy.random.get_state()
    devices = list(range(torch.cuda.device_count())) if device == "cuda" or torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.random.default_generator.manual_seed(0)
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(0)
        random.seed(0)
        if numpy is not None:
            numpy.random.seed(0)
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(numbers)


@dataclass(frozen=True, slots=True)
class Start:
    """Seeds of the generators.

    Attributes:
        python: Of ``random``.
        numpy: Of ``numpy.random``.
        torch: Of PyTorch on the CPU.
        repeated: Whether the generators start again after every compiled graph.
    """

    python: int = 0
    numpy: int = 0
    torch: int = 0
    repeated: bool = False

    def set(self) -> None:
        """Start the generators."""
        import torch

        random.seed(self.python)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(self.numpy)
        torch.random.default_generator.manual_seed(self.torch)


AS_DRAWN = Start()
"""As every capture starts."""


@cache
def starts() -> tuple[Start, ...]:
    """The starts to try: as drawn, with high draws from two starts, and with low ones."""
    high, low = _seeds(high=True), _seeds(high=False)
    return AS_DRAWN, high[0], high[1], low[0]


def _seeds(*, high: bool) -> list[Start]:
    """Two starts after which all generators draw high, or low, numbers at first."""
    import torch

    def python(seed: int) -> list[float]:
        drawing = random.Random(seed)
        return [drawing.random() for _ in range(_DRAWS)]

    def numpy(seed: int) -> list[float]:
        module = sys.modules.get("numpy")
        return [] if module is None else list(module.random.RandomState(seed).random_sample(_DRAWS))

    def torch_(seed: int) -> list[float]:
        with real_tensors():
            return list(map(float, torch.rand(_DRAWS, generator=torch.Generator().manual_seed(seed))))

    def two(drawn: Callable[[int], list[float]]) -> list[int]:
        fits = (s for s in range(1, _MOST_STARTS) if all((1 - d if high else d) < _EXTREME for d in drawn(s)))
        return [next(fits), next(fits)]

    triples = zip(two(python), two(numpy), two(torch_), strict=True)
    return [Start(first, second, third, repeated=True) for first, second, third in triples]


@dataclass(slots=True)
class RandomPaths:
    """The paths that a module takes by what it draws.

    Attributes:
        drew: Whether it has drawn what may decide on its path: between its compiled graphs, in a graph that computes no
            gradients, or in one that returns a number.
        sizes: What the passes so far hold at their ends, in bytes.
        start: How the present pass has started.
    """

    drew: bool = False
    sizes: dict[Start, int] = field(default_factory=dict)
    start: Start = AS_DRAWN
    _before: Any = None

    def begin(self) -> None:
        """Start a pass."""
        self.start.set()
        self._before = _states()

    def enter(self) -> None:
        """A compiled graph with a backward pass begins."""
        self.drew = self.drew or _states() != self._before

    def leave(self, results: Sequence[Any]) -> None:
        """A compiled graph has ended with these results."""
        numbers = [one for one in results if hasattr(one, "numel") and one.numel() == 1 and not one.requires_grad]
        if numbers:
            self.enter()
        if self.start.repeated:
            self.start.set()
        self._before = _states()

    def following(self, held_bytes: int) -> bool:
        """Whether another pass follows one that holds this at its end: another path, or once more the largest one."""
        self.drew = self.drew or _states() != self._before
        if not self.drew or len(self.sizes) == len(starts()):
            return False
        self.sizes[self.start] = held_bytes
        left = [start for start in starts() if start not in self.sizes]
        largest = max(self.sizes, key=lambda start: self.sizes[start])
        if not left and largest == self.start:
            return False
        self.start = left[0] if left else largest
        return True

    @property
    def differ(self) -> bool:
        """Whether the paths that were taken do not hold the same."""
        return len(set(self.sizes.values())) > 1


def _states() -> tuple[Any, ...]:
    """The states of the generators, to be compared."""
    import torch

    numpy = sys.modules.get("numpy")
    state = None if numpy is None else numpy.random.get_state()
    with real_tensors():
        drawn = bytes(torch.random.default_generator.get_state().numpy())
    return random.getstate(), state and (state[1].tobytes(), *state[2:]), drawn
