"""Recompute whole modules, as torch.utils.checkpoint and keras.RematScope do: the cheapest choice of modules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from remat_cli.errors import LimitReached, StrategyMismatch, UsageError
from remat_cli.graph.modules import Module, lies_in, modules_of
from remat_cli.graph.phases import Training
from remat_cli.milp.module_choice import ModuleChoice
from remat_cli.plan.liveness import cost_of, heights
from remat_cli.plan.model import Scope
from remat_cli.registry import suggestion
from remat_cli.solvers.base import Outcome, Termination
from remat_cli.strategies.base import Bound, Context, Found, Needs, NotFound, Schedule, Strategy, Task
from remat_cli.strategies.objective import objective_for
from remat_cli.strategies.policies.saved_values import highest_steps

_BEST = "best"
_PLAIN = re.compile(r"[\w./+-]+")
"""Names that can stand in the text form of a strategy."""
_NUMBERED = re.compile(r"(.+)[./_](\d+)")


@dataclass(frozen=True, slots=True)
class ModuleCheckpoint(Strategy):
    """The cheapest set of modules, each recomputed as a whole, that fits the budget.

    A MILP over the modules, whose rows for memory are added where a choice exceeds the budget. The bound holds for all
    sets of modules.

    Attributes:
        modules: Names of the modules to recompute, joined by +; ``best`` chooses the cheapest set.
    """

    modules: str = field(default=_BEST, metadata={"help": "modules to recompute, joined by +; best: the cheapest set"})

    name: ClassVar[str] = "module-checkpoint"
    summary: ClassVar[str] = "recompute the cheapest set of whole modules, as torch.utils.checkpoint can"
    reference: ClassVar[str] = "PyTorch, torch.utils.checkpoint"
    needs: ClassVar[Needs] = Needs.PHASES
    uses_solver: ClassVar[bool] = True
    whole: ClassVar[bool] = False
    """Whether all operations of a module run again, and not only those whose results are needed."""

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Choose, look where that exceeds the budget, and choose again.

        Raises:
            StrategyMismatch: If the names of nodes tell no modules, or a node has no phase.
            LimitReached, Interrupted: If it has to stop and has no schedule.
        """
        choice = chosen_from(task, self.name, whole=self.whole)
        if self.modules != _BEST:
            return _given(choice, named(choice.modules, self.modules), task.budget_bytes)
        budget = sum(task.graph.size) + task.graph.fixed_memory if task.budget_bytes is None else task.budget_bytes
        bound = task.graph.total_cost
        while True:
            context.control.check()
            solved = context.solver.solve(context.request(choice.model(budget), context.control, gap=0.0))
            if solved.termination is Termination.INFEASIBLE:
                return _nothing_fits(choice, budget)
            if solved.bound is not None:
                bound = max(bound, task.graph.total_cost + solved.bound)
            if solved.values is None:
                raise LimitReached("the search for a set of modules was stopped before it found one")
            chosen = _chosen(choice, solved)
            computes, steps = choice.schedule(chosen)
            over = highest_steps(steps, heights(task.graph, computes), budget)
            if not over:
                names = "+".join(choice.modules[m].name for m in sorted(chosen))
                maker = f"{self.name}{{modules={names}}}" if _PLAIN.fullmatch(names) else ""
                bounds = (Bound(bound, Scope.RESTRICTED),)
                return Found(Schedule(tuple(computes)), bounds, used_solver=True, maker=maker)
            if choice.rows.issuperset(over):
                choice.refused.append(chosen)
            choice.rows.update(over)


@dataclass(frozen=True, slots=True)
class KerasLayers(ModuleCheckpoint):
    """The cheapest set of layers that keras.RematScope recomputes.

    As :class:`ModuleCheckpoint`, but all operations of a layer run again, and as soon as its gradients begin.
    """

    name: ClassVar[str] = "keras-layers"
    summary: ClassVar[str] = "recompute the cheapest set of whole layers, as keras.RematScope can"
    reference: ClassVar[str] = "Keras, keras.RematScope"
    whole: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class EveryNLayers(Strategy):
    """Every n-th of the network's layers recomputed as a whole, for the n that costs least within the budget.

    The layers are those that Transformers counts, if it is a model of its own, and else the largest family of modules
    whose names differ in a number, such as ``model.layers.0``.

    Attributes:
        n: Distance of the layers, of which the first is recomputed; none tries all.
    """

    n: int | None = field(default=None, metadata={"help": "recompute every n-th layer; none: the best n"})

    name: ClassVar[str] = "every-n-layers"
    summary: ClassVar[str] = "recompute every n-th layer as a whole, for the best n"
    reference: ClassVar[str] = "Hugging Face Transformers, GradientCheckpointingLayer"
    needs: ClassVar[Needs] = Needs.PHASES
    overlaps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a distance below 1."""
        if self.n is not None and self.n < 1:
            raise UsageError(f"every-n-layers{{n={self.n}}}: a distance is 1 or more")

    def solve(self, task: Task, context: Context) -> Found | NotFound:
        """Try every n.

        Raises:
            StrategyMismatch: If there are no layers, or a node has no phase.
        """
        choice = chosen_from(task, self.name)
        layers = layers_of(choice)
        if not layers:
            raise StrategyMismatch(
                f"{self.name} needs modules whose names differ in a number, such as layers.0 and layers.1",
                hint="module-checkpoint takes other modules",
            )
        graph, objective = task.graph, objective_for(task)
        found: list[tuple[float, int, list[int]]] = []
        lowest: tuple[int, list[int]] | None = None
        for n in range(1, len(layers) + 1) if self.n is None else (self.n,):
            computes, _ = choice.schedule(every(layers, n))
            peak = max(heights(graph, computes))
            if lowest is None or peak < lowest[0]:
                lowest = peak, computes
            if task.budget_bytes is None or peak <= task.budget_bytes:
                found.append((objective.cost(Schedule(tuple(computes))), n, computes))
        if not found:
            assert lowest is not None
            return NotFound(
                "no schedule that recomputes every n-th layer as a whole fits",
                scope=Scope.RESTRICTED,
                best=Schedule(tuple(lowest[1])),
            )
        cost, n, computes = min(found)
        bound = Bound(cost, Scope.RESTRICTED, overlaps=graph.overlaps)
        return Found(Schedule(tuple(computes)), (bound,), maker=f"{self.name}{{n={n}}}")


def chosen_from(task: Task, strategy: str, *, whole: bool = False) -> ModuleChoice:
    """The modules of a graph to choose from.

    Raises:
        StrategyMismatch: If there are none, or a node has no phase.
    """
    training = Training.of(task.graph, strategy)
    modules = modules_of(training, whole=whole)
    if not modules and isinstance(task.graph.metadata, dict) and "frontend" in task.graph.metadata:
        raise StrategyMismatch(
            f"{strategy} finds no module whose recomputation as a whole frees memory",
            hint="put several layers into a module of their own, such as an nn.Sequential inside the nn.Sequential",
        )
    if not modules:
        raise StrategyMismatch(
            f"{strategy} needs modules in the names of nodes, as in blocks.0/mm and grad/blocks.0/mm",
            hint="graphs of remat export torch:... and tf:... have them",
        )
    return ModuleChoice(training, modules)


def named(modules: Sequence[Module], names: str) -> list[int]:
    """The positions of the modules with these names, joined by +.

    Raises:
        UsageError: If there is no such module, or one lies in another.
    """
    places = {module.name: position for position, module in enumerate(modules)}
    wanted = names.split("+")
    for name in wanted:
        if name not in places:
            raise UsageError(
                f'there is no module "{name}" whose recomputation frees memory', hint=suggestion(name, list(places))
            )
        for other in wanted:
            if other != name and lies_in(name, other):
                raise UsageError(f'the module "{name}" lies in "{other}"', hint="name one of them")
    return [places[name] for name in dict.fromkeys(wanted)]


def _given(choice: ModuleChoice, chosen: Sequence[int], budget_bytes: int | None) -> Found | NotFound:
    """The answer if the modules are given."""
    graph = choice.training.graph
    computes, _ = choice.schedule(chosen)
    if budget_bytes is not None and max(heights(graph, computes)) > budget_bytes:
        reason = "the recomputation of these modules does not fit"
        return NotFound(reason, scope=Scope.RESTRICTED, best=Schedule(tuple(computes)))
    return Found(Schedule(tuple(computes)), (Bound(cost_of(graph, computes), Scope.RESTRICTED),))


def layers_of(choice: ModuleChoice) -> list[int | None]:
    """The positions of the layers among the modules, in the order in which they are counted.

    The graph's metadata lists the layers that Transformers counts, if the model is one of its own; None stands for one
    whose recomputation frees nothing. Otherwise they are the family of modules with names that differ only in a last
    number whose recomputation costs most, in the order of their numbers.
    """
    metadata = choice.training.graph.metadata
    listed = metadata.get("layers") if isinstance(metadata, dict) else None
    if isinstance(listed, list) and listed:
        places = {module.name: position for position, module in enumerate(choice.modules)}
        return [places.get(name) if isinstance(name, str) else None for name in listed]
    families: dict[str, list[tuple[int, int, float]]] = {}
    for position, module in enumerate(choice.modules):
        if (match := _NUMBERED.fullmatch(module.name)) is not None:
            families.setdefault(match[1], []).append((int(match[2]), position, module.cost))
    several = [family for family in families.values() if len(family) > 1]
    largest = max(several, key=lambda family: sum(cost for *_, cost in family), default=[])
    return [position for _, position, _ in sorted(largest)]


def every(layers: Sequence[int | None], n: int) -> list[int]:
    """Every ``n``-th of ``layers``, the first among them, as Transformers counts; without those that free nothing."""
    return [layer for layer in layers[::n] if layer is not None]


def _chosen(choice: ModuleChoice, solved: Outcome) -> frozenset[int]:
    assert solved.values is not None
    return frozenset(m for m in range(len(choice.modules)) if solved.values[m] > 0.5)


def _nothing_fits(choice: ModuleChoice, budget: int) -> NotFound:
    """The answer if no set of modules fits, with the lowest of some natural ones."""
    graph = choice.training.graph
    layers = every(layers_of(choice), 1)
    outermost = [
        m
        for m, module in enumerate(choice.modules)
        if not any(other.name != module.name and lies_in(module.name, other.name) for other in choice.modules)
    ]
    tried = [choice.schedule(one)[0] for one in (layers, outermost, ())]
    best = min(tried, key=lambda computes: max(heights(graph, computes)))
    return NotFound(
        "no set of modules, each recomputed as a whole, fits",
        scope=Scope.RESTRICTED,
        best=Schedule(tuple(best)),
        hint="other strategies, such as auto, recompute single operations",
    )
