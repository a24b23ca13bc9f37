"""The best setting of a tool for training: the same choice in every layer, or in the layers that it can name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.errors import StrategyMismatch, UsageError
from remat_cli.graph.modules import module_of
from remat_cli.plan.liveness import cost_of, heights
from remat_cli.plan.model import Scope
from remat_cli.registry import suggestion
from remat_cli.strategies.base import Bound, Context, Found, Needs, NotFound, Schedule, Strategy, Task
from remat_cli.strategies.policies.layer_choices import CHOICES, Layers, Setting, schedule
from remat_cli.strategies.policies.whole_modules import chosen_from, layers_of

_BEST = "best"
_PLAIN = re.compile(r"[\w./+-]+")
"""Texts that can stand in the text form of a strategy."""
_SAMPLES = 32
"""Settings, spread over all costs, that are tried first, so that there is an answer when time runs out. Untuned."""


@dataclass(frozen=True, slots=True)
class LayerSettings(Strategy):
    """The cheapest setting of a tool that fits the budget.

    All settings are tried in the order of their costs, so the first that fits is the cheapest; the bound holds for the
    settings of :mod:`layer_choices`.

    Attributes:
        tool: The tool.
        setting: The setting; ``best`` chooses the cheapest.
    """

    tool: str = field(default="torch-remat", metadata={"help": f"whose settings: {', '.join(CHOICES)}"})
    setting: str = field(default=_BEST, metadata={"help": "the setting, such as full or every/2; best: the cheapest"})

    name: ClassVar[str] = "layer-settings"
    summary: ClassVar[str] = "recompute in every layer what a setting of a tool for training can say"
    reference: ClassVar[str] = "TRL, axolotl, torchtitan, Megatron-LM, torch_remat"
    needs: ClassVar[Needs] = Needs.PHASES

    def __post_init__(self) -> None:
        """Refuse an unknown tool."""
        if self.tool not in CHOICES:
            raise UsageError(
                f'layer-settings{{tool={self.tool}}}: there is no tool "{self.tool}"',
                hint=suggestion(self.tool, list(CHOICES)) or f"tools are {', '.join(CHOICES)}",
            )

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Try the settings from the cheapest on.

        Raises:
            StrategyMismatch: As :func:`layers_for`.
            UsageError: If the tool has no such setting for this graph.
            LimitReached, Interrupted: If it has to stop and has no schedule.
        """
        search = _Search(task, context, self.tool)
        if self.setting == _BEST:
            return search.best()
        settings = settings_for(task, self.tool)
        for setting in settings:
            if setting.text == self.setting:
                return search.found(setting) if search.fits(setting) else search.nothing("this setting does not fit")
        hint = suggestion(self.setting, [setting.text for setting in settings])
        raise UsageError(f'{self.tool} has no setting "{self.setting}" for this graph', hint=hint)


def settings_for(task: Task, tool: str) -> list[Setting]:
    """All settings of a tool for a graph, the first of those that run the same operations again, cheapest first.

    Without those that would run an operation again that must not, such as one that changes a buffer.

    Raises:
        StrategyMismatch: If there are no layers, or a node has no phase.
    """
    layers, graph = layers_for(task, tool), task.graph
    kinds: dict[object, tuple[float, Setting]] = {}
    for setting in CHOICES[tool](layers):
        again = [node for unit in setting.units for node in unit.again]
        kinds.setdefault(frozenset(setting.units), (cost_of(graph, again), setting))
    return [setting for _, setting in sorted(kinds.values(), key=lambda item: item[0])]


def layers_for(task: Task, tool: str) -> Layers:
    """The layers of a graph for the settings of ``tool``.

    Raises:
        StrategyMismatch: If there are none, an operation in them must not run twice, or a node has no phase.
    """
    choice = chosen_from(task, LayerSettings.name)
    numbered = layers_of(choice)
    if not numbered:
        raise StrategyMismatch(
            f"settings of {tool} are for layers, and no modules have names that differ in a number, such as layers.0",
            hint="module-checkpoint takes other modules",
        )
    families = {_number_cut(choice.modules[m].name) for m in numbered if m is not None}
    for node in task.graph.nodes:
        if not node.recompute and any(module_of(node.id).startswith(family) for family in families):
            raise StrategyMismatch(
                f"settings of {tool} recompute whole layers, and {node.id} must not run twice",
                hint="module-checkpoint and auto leave such operations alone",
            )
    return Layers(choice.training, tuple(None if m is None else choice.modules[m] for m in numbered))


def _number_cut(name: str) -> str:
    """``model.layers.`` of ``model.layers.3``."""
    return name.rstrip("0123456789")


@dataclass(slots=True)
class _Search:
    """The search among the settings of a tool.

    Attributes:
        task, context, tool: What it is for.
        lowest: The lowest peak so far, with its schedule.
    """

    task: Task
    context: Context
    tool: str
    lowest: tuple[int, tuple[int, ...]] | None = None

    def best(self) -> Found | NotFound:
        """The first setting that fits, by cost; before that, some of all costs are tried."""
        settings = settings_for(self.task, self.tool)
        for setting in settings[:: -max(1, len(settings) // _SAMPLES)]:  # those that recompute most fit soonest
            if self.fits(setting):
                self.context.publish(self.found(setting, bound=self.task.graph.total_cost))
        for setting in settings:
            if self.fits(setting):
                return self.found(setting)
        return self.nothing(f"no setting of {self.tool} fits")

    def fits(self, setting: Setting) -> bool:
        """Whether a setting keeps the budget."""
        self.context.control.check()
        computes = schedule(self.task.graph, setting.units)
        peak = max(heights(self.task.graph, computes), default=0)
        if self.lowest is None or peak < self.lowest[0]:
            self.lowest = peak, tuple(computes)
        return self.task.budget_bytes is None or peak <= self.task.budget_bytes

    def found(self, setting: Setting, bound: float | None = None) -> Found:
        """The answer: a setting that fits. The bound is its cost, if none is given."""
        computes = tuple(schedule(self.task.graph, setting.units))
        text = f"{LayerSettings.name}{{tool={self.tool},setting={setting.text}}}"
        bounds = (Bound(cost_of(self.task.graph, computes) if bound is None else bound, Scope.RESTRICTED),)
        return Found(Schedule(computes), bounds, maker=text if _PLAIN.fullmatch(setting.text) else "")

    def nothing(self, reason: str) -> NotFound:
        """The answer if nothing fits, with the lowest that was tried."""
        assert self.lowest is not None
        hint = "other strategies, such as auto, recompute single operations"
        return NotFound(reason, scope=Scope.RESTRICTED, best=Schedule(self.lowest[1]), hint=hint)
