"""One plan for all processes of a distributed training.

While all processes fit the same module, they meet at every plan: process 0 makes it, the others receive it. If their
graphs differ (batches of several lengths, parts of a model), each makes its own. Plans that come later are each
process's own too, since the others may not need one then; results do not depend on plans.

Where a graph communicates, all processes have to run its collectives in one order, now and later.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from remat_cli.errors import Infeasible, LimitReached, UsageError
from remat_cli.frontends.rates import FLOPS
from remat_cli.frontends.torch.compat.distributed import (
    COMMUNICATING,
    has_dtensors,
    is_fake,
    is_present,
)
from remat_cli.frontends.torch.compat.fully_sharded import units_of
from remat_cli.frontends.torch.document import read_step
from remat_cli.frontends.torch.train.module_plans import Planner
from remat_cli.frontends.torch.train.ranks import Meeting, decided_by_first, is_first
from remat_cli.frontends.torch.types import Module
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan
from remat_cli.plan.replay import replay
from remat_cli.units import format_bytes

_TRIES = 6
"""Most plans to make, each with more memory kept free, until padding fits in all processes. Untuned."""


def inside(module: Module) -> Module:
    """The module in ``DistributedDataParallel``, which exchanges gradients by hooks of parameters; else ``module``."""
    import torch

    return module.module if isinstance(module, torch.nn.parallel.DistributedDataParallel) else module


def is_in_units(module: Module) -> bool:
    """Whether ``fully_shard`` divides a module into units, which have plans of their own."""
    return is_present() and bool(units_of(module))


def require_whole(module: Module) -> None:
    """Check that the module is not copied for several devices, nor divided by FSDP1.

    Raises:
        UsageError: If so.
    """
    import torch

    if isinstance(module, torch.nn.DataParallel):
        raise UsageError(
            "DataParallel copies the module for every batch, and copies are not fitted",
            hint="use DistributedDataParallel: torchrun --nproc-per-node, one process for each device",
        )
    if not is_present() or not isinstance(module, torch.nn.Module):
        return
    from torch.distributed.fsdp import FullyShardedDataParallel

    if any(isinstance(part, FullyShardedDataParallel) for part in module.modules()):
        raise UsageError(
            f"the parameters of this {type(module).__name__} are split over processes by FSDP1, and plans do not count "
            "what they take when they are gathered",
            hint="fully_shard (FSDP2), DTensors and DistributedDataParallel work",
        )


def require_links(module: Module, *, links: bool, unknown: str, cost: str, compiler: str) -> None:
    """Check that a module whose parameters are DTensors can be planned.

    Args:
        module: The module.
        links: Whether something is known of the links between ranks.
        unknown: See ``fit``, like the others.
        cost: See there.
        compiler: See there.

    Raises:
        UsageError: If it cannot.
    """
    if not has_dtensors([*module.parameters(), *module.buffers()]):
        return
    what = f"parameters of this {type(module).__name__} are DTensors"
    if not links:
        raise UsageError(
            f"{what}, so that a step communicates, and the bandwidth between ranks is not given",
            hint='interconnect="50GB/s" is what a rank sends in one direction; interconnect="measure" measures it',
        )
    if is_fake():
        raise UsageError(
            f"{what}, and its process group has no processes, so that nothing can be trained",
            hint="export the step of one rank instead",
        )
    if unknown == "warn":
        raise UsageError(
            f"{what}, and all ranks have to communicate in one order, which a step without a plan does not keep",
            hint='take unknown="plan" or "error"',
        )
    if compiler != "eager":
        raise UsageError(f"{what}, and steps that communicate are not planned for Inductor", hint="leave compiler out")
    if cost in {"measured", FLOPS}:
        raise UsageError(
            f"{what}, and collectives have no costs that are {cost}", hint="take costs that are times: device"
        )


class SharedPlanner:
    """Makes the plans of all processes in process 0, while they meet; otherwise it is ``planner``.

    Graphs that communicate run in one order in all processes, also those that come later: in that of an earlier plan
    of the same operations, if there is one, and otherwise in that of a plan for which all processes meet again.

    Args:
        planner: Makes plans.
        received: Called with a plan that another process made.
        meeting: Of all processes that fit the module.
        in_order_of: Makes a plan of a graph that computes as another one does; None if it has other operations.
    """

    def __init__(
        self,
        planner: Planner,
        received: Callable[[Plan], None],
        meeting: Meeting,
        in_order_of: Callable[[Plan, Graph], Plan | None],
    ) -> None:
        self._planner, self._received, self._meeting = planner, received, meeting
        self._in_order_of = in_order_of
        self._common: list[Plan] = []

    @property
    def budget_bytes(self) -> int | None:
        """That of the planner."""
        return self._planner.budget_bytes

    @property
    def plans_ahead(self) -> bool:
        """That of the planner."""
        return self._planner.plans_ahead

    def settle(self, graphs: Sequence[Graph], agree: Callable[[int], int] = int) -> int | None:
        """That of the planner; if they communicate, the largest of all processes."""
        if self._meeting.open and any(map(communicates, graphs)):
            return self._planner.settle(graphs, lambda own: agree(max(self._meeting.all_entries(own))))
        return self._planner.settle(graphs, agree)

    def search(self, graph: Graph) -> Plan:
        """A plan of this process alone, since the others need none now, unless the graph communicates."""
        return self._one_order(graph, self._planner.search) if communicates(graph) else self._planner.search(graph)

    def __call__(self, graph: Graph) -> Plan:
        """A plan of ``graph``, the same in all processes that ask for one now.

        Raises:
            RematError: From the planner, in all of them.
            UsageError: If the graph communicates, and is not the same in all of them.
        """
        if communicates(graph):
            return self._one_order(graph, self._planner)
        if not self._meeting.open:
            return self._planner(graph)
        digests = self._meeting.entries(_digest(graph))
        if any(digest != digests[0] for digest in digests):
            return self._planner(graph)
        plan = decided_by_first(partial(self._planner, graph))
        if not is_first():
            self._received(plan)
        return plan

    def _one_order(self, graph: Graph, make: Callable[[Graph], Plan]) -> Plan:
        """A plan of a graph that communicates: all processes have its collectives in one order."""
        for earlier in self._common:
            same = len(earlier.graph.nodes) == len(graph.nodes)
            if same and (plan := self._in_order_of(earlier, graph)) is not None:
                return self._within_budget(plan)
        with contextlib.nullcontext() if self._meeting.open else self._meeting.later():
            plan = self._agreed(graph, make)
        self._meeting.meet_later()
        self._common.append(plan)
        return plan

    def _within_budget(self, plan: Plan) -> Plan:
        """A plan in the order of an earlier one.

        Raises:
            Infeasible: If it is over the budget.
        """
        budget, peak = self._planner.budget_bytes, _peak(plan)
        if budget is not None and peak > budget:
            raise Infeasible(
                f"in the order of the plan that all processes have, this batch needs {format_bytes(peak)}, and the "
                f"budget is {format_bytes(budget)}",
                hint="give fit the largest batch, or a larger budget",
            )
        self._received(plan)
        return plan

    def _agreed(self, graph: Graph, make: Callable[[Graph], Plan]) -> Plan:
        """The plan of process 0, or one in its order where the parts of other processes are padded.

        Process 0 has the largest parts, but padding takes memory, too: what that is beyond the budget is kept free.
        """
        met = self._meeting
        if len(set(met.all_entries(_digest(graph, whole=True)))) == 1:
            plan = met.decided(partial(make, graph))
            if not is_first():
                self._received(plan)
            return plan
        budget, free = self._planner.budget_bytes, 0
        for _ in range(_TRIES):
            kept = replace(graph, fixed_memory=graph.fixed_memory + free)
            first = met.decided(partial(make, kept))
            own = first if is_first() else self._in_order_of(first, graph)
            peaks = met.all_entries(-1 if own is None else _peak(own))
            if -1 in peaks:
                raise UsageError(
                    f"process {peaks.index(-1)} has another graph than process 0, with more differences than padding",
                    hint="all processes fit the same module, called in the same way",
                )
            if budget is None or max(peaks) <= budget:
                assert own is not None
                if not is_first():
                    self._received(own)
                return own
            free += max(peaks) - budget
        raise LimitReached(
            f"{_TRIES} plans were made, and with padding none fits {format_bytes(budget or 0)} in all processes",
            hint="take a larger budget",
        )


def _peak(plan: Plan) -> int:
    return replay(plan.graph, plan.statements, any_order=True).peak_bytes


def communicates(graph: Graph) -> bool:
    """Whether operations of ``graph`` communicate with other processes."""
    return any(str((node.payload or {}).get("call")).partition(".")[0] in COMMUNICATING for node in graph.nodes)


def _digest(graph: Graph, *, whole: bool = False) -> str:
    """A digest of operations and sizes, without costs and workspaces, since these may be measured.

    If ``whole``, arguments of the operations count, too.
    """
    nodes = [[node.id, node.op, node.inputs, node.outputs, node.recompute] for node in graph.nodes]
    step = read_step(graph) if whole else None
    arguments = [] if step is None else [repr(step.in_dimensions(k)) for k in range(len(graph.nodes))]
    text = json.dumps([nodes, graph.outputs, graph.fixed_memory, arguments])
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
