"""Captures a step of a model with many equal blocks from the same model with few of them.

Tracing takes most of the time of large models, whose layers are the same again and again. The blocks are members of a
``ModuleList`` or ``Sequential`` with modules and parameters of the same classes and shapes, or every second, third ...
of them is. The step is captured with three numbers of blocks, and the rule of :mod:`remat_cli.frontends.repetition` has
to give the third graph from the first two. Also, the forward pass of the whole model, in eager mode, has to call
exactly the operators, on the same memory, that follow from those with few blocks. If anything is otherwise, the whole
model is captured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.errors import CaptureFailed, RematError
from remat_cli.frontends.interconnect import Interconnect
from remat_cli.frontends.messages import Tell, tell_stderr
from remat_cli.frontends.repetition import extrapolated, extrapolated_texts, period
from remat_cli.frontends.torch.capture.capture import Model, called_once, capture
from remat_cli.frontends.torch.capture.construction import build_model
from remat_cli.frontends.torch.compat.fake_tensors import new_fake_mode
from remat_cli.frontends.torch.compat.operators import attention_of_gpus, dispatch_mode
from remat_cli.frontends.torch.export import export_model, lowered_graph
from remat_cli.frontends.torch.installed import require_present
from remat_cli.frontends.torch.measure.collectives import with_collectives
from remat_cli.frontends.torch.measure.costs import cost_model
from remat_cli.frontends.torch.measure.eager import eager_graph
from remat_cli.frontends.torch.tensors import mapped, storage
from remat_cli.frontends.torch.types import Context, FakeMode, Module, Operator, Tensor
from remat_cli.frontends.torch.world import require_links, world_of
from remat_cli.graph.model import Graph

LARGEST_SHARE = 0.6
"""Most blocks that are captured in all three graphs, as a share of those of the model: else one graph takes no longer.
Untuned."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Equal blocks of a module.

    Attributes:
        container: The ``ModuleList`` or ``Sequential`` that holds them.
        count: How many there are.
        period: Every ``period``-th is the same.
    """

    container: Any
    count: int
    period: int

    @property
    def fewest(self) -> int:
        """The smallest number of blocks to capture: whole periods less, with one block before and behind a period."""
        least = self.period + 2
        return least + (self.count - least) % self.period

    @property
    def captured(self) -> tuple[int, int, int]:
        """The numbers of blocks to capture."""
        return self.fewest, self.fewest + self.period, self.fewest + 2 * self.period

    @property
    def repetitions(self) -> int:
        """How many periods the model has, where the smallest number of blocks counts as one."""
        return 1 + (self.count - self.fewest) // self.period

    @property
    def few(self) -> bool:
        """Whether the blocks of all three graphs are few beside those of the model."""
        return sum(self.captured) <= LARGEST_SHARE * self.count

    @contextlib.contextmanager
    def only(self, count: int) -> Iterator[None]:
        """A context in which the module has the first ``count`` blocks alone."""
        others = list(self.container)[count:]
        del self.container[count:]
        try:
            yield
        finally:
            self.container.extend(others)


def repeated_blocks(module: Module) -> Blocks | None:
    """The blocks of a module to capture once; None if it has none, or too few to save time."""
    import torch

    found = []
    for part in module.modules():
        if isinstance(part, torch.nn.ModuleList | torch.nn.Sequential) and len(part) > 1:
            blocks = Blocks(part, len(part), period([_signature(member) for member in part]))
            if blocks.few:
                found.append(blocks)
    return max(found, key=lambda blocks: sum(1 for _ in blocks.container.modules()), default=None)


def _signature(module: Module) -> list[Any]:
    """What two blocks have to agree in: classes, and types and shapes of parameters and buffers."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    forms = [(name, tuple(t.shape), t.dtype, t.device.type, t.requires_grad) for name, t in tensors]
    return [[(name, type(part)) for name, part in module.named_modules()], forms, module.training]


_ONE_RANK = CaptureFailed("eager mode is followed on one rank alone")


@dataclass(frozen=True, slots=True)
class Exported:
    """A training step.

    Attributes:
        graph: As :func:`remat_cli.frontends.torch.export.export_model` gives it.
        eager: The step in eager mode; or why it cannot be followed.
        few: How few blocks were captured; empty if all were.
    """

    graph: Graph
    eager: Graph | CaptureFailed
    few: str


def as_on_cards() -> Context:
    """A context in which steps are captured with operators of GPUs, where those of a CPU keep more memory."""
    return attention_of_gpus()


def export_by_blocks(
    build: Callable[[], Any],
    name: str,
    source: str,
    *,
    cost: str = "flops",
    world: int | None = None,
    interconnect: Interconnect | None = None,
    eager: bool = True,
    tell: Tell = tell_stderr,
) -> Exported:
    """The training step of what ``build()`` returns, and in eager mode if that is asked for.

    Raises:
        NotOneGraph, UsageError, FrameworkUnavailable, CaptureFailed: As for one captured as a whole.
    """
    require_present("cpu")
    require_links(world, interconnect, cost, "eager")
    costs, mode = cost_model(cost, "cpu", tell), new_fake_mode()
    with world_of(world):
        model = build_model(build, mode, "cpu", tell)

        def captured() -> Graph:
            found = capture(model, mode)
            own = with_collectives(costs, interconnect, found)
            return lowered_graph(found, name, own, source=source, device="cpu", world=world)

        alike = repeated_blocks(model.module)
        blocks = None if alike is None else _called_alike(alike, model, mode)
        graph, few = None if blocks is None else _from_few(blocks, captured), ""
        if graph is None and alike is None:
            graph = captured()
        followed = _eager(model, mode, name, blocks) if eager else _ONE_RANK
    if graph is None:  # from a new model: calls may have changed this one
        graph = export_model(build, name, source, cost=cost, world=world, interconnect=interconnect, tell=tell)
    elif blocks is not None:
        first, second, third = blocks.captured
        few = f"the graph of {blocks.count} blocks follows from those of {first}, {second} and {third} of them"
    return Exported(graph, followed, few)


def eager_by_blocks(build: Callable[[], Any], name: str, *, tell: Tell = tell_stderr) -> Graph | CaptureFailed:
    """The training step of what ``build()`` returns in eager mode; or why it cannot be followed."""
    mode = new_fake_mode()
    model = build_model(build, mode, "cpu", tell)
    alike = repeated_blocks(model.module)
    return _eager(model, mode, name, None if alike is None else _called_alike(alike, model, mode))


def _eager(model: Model, mode: FakeMode, name: str, blocks: Blocks | None) -> Graph | CaptureFailed:
    def followed() -> Graph:
        return eager_graph(model, mode, name)

    graph = None if blocks is None else _from_few(blocks, followed)
    try:
        return followed() if graph is None else graph
    except CaptureFailed as error:
        return error


def _called_alike(found: Blocks, model: Model, mode: FakeMode) -> Blocks | None:
    """The blocks, with the period in which the model calls them: layers of one class may get masks of several kinds.

    None if the calls of few blocks do not say what the whole model calls, or if there are too few blocks for that.
    """
    whole = _called(model, mode)
    blocks = found
    while whole and blocks.few:
        called = []
        for count in blocks.captured:
            with blocks.only(count):
                called.append({"": _called(model, mode)})
        if extrapolated_texts(called, blocks.repetitions) == {"": whole}:
            return blocks
        blocks = replace(blocks, period=blocks.period + found.period)
    return None


def _from_few(blocks: Blocks, captured: Callable[[], Graph]) -> Graph | None:
    """The graph of the whole model; None if it does not follow from few blocks."""
    graphs = []
    for count in blocks.captured:
        with blocks.only(count):
            try:
                graphs.append(captured())
            except RematError:  # the whole model has the error, too, or does not
                return None
    return extrapolated(graphs, blocks.repetitions)


def _called(model: Model, mode: FakeMode) -> list[str]:
    """The operators that a forward pass in eager mode calls, with the memory they read; empty if it fails."""
    calls: list[str] = []
    numbers: dict[int, int] = {}
    alive = []  # so that memory is not used again

    def told(tensor: Tensor) -> str:
        alive.append(tensor)
        return f"{tensor.dtype}{list(tensor.shape)}@{numbers.setdefault(storage(tensor), len(numbers))}"

    class Listening(dispatch_mode()):  # type: ignore[misc]  # torch is Any to the type checker
        def __torch_dispatch__(self, function: Operator, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if not str(function).startswith(
                "prim."
            ):  # questions about tensors, which fake ones remember the answers to
                calls.append(f"{function} {mapped([args, kwargs or {}, result], told)}")
            return result

    return calls if called_once(model, mode, Listening()) else []
