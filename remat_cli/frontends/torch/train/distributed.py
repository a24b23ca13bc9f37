"""One plan for all processes of a distributed training.

While all processes fit the same module, they meet at every plan: process 0 makes it, the others receive it. If their
graphs differ (batches of several lengths, parts of a model), each makes its own. Plans that come later are each
process's own too, since the others may not need one then; results do not depend on plans.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial

from remat_cli.errors import UsageError
from remat_cli.frontends.torch.compat.distributed import is_present
from remat_cli.frontends.torch.compat.fully_sharded import units_of
from remat_cli.frontends.torch.train.module_plans import Planner
from remat_cli.frontends.torch.train.ranks import Meeting, decided_by_first, is_first
from remat_cli.frontends.torch.types import Module
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan


def inside(module: Module) -> Module:
    """The module in ``DistributedDataParallel``, which exchanges gradients by hooks of parameters; else ``module``."""
    import torch

    return module.module if isinstance(module, torch.nn.parallel.DistributedDataParallel) else module


def is_in_units(module: Module) -> bool:
    """Whether ``fully_shard`` divides a module into units, which have plans of their own."""
    return is_present() and bool(units_of(module))


def require_whole(module: Module) -> None:
    """Check that neither the module nor its parameters are split over devices or processes, but by ``fully_shard``.

    Raises:
        UsageError: If they are.
    """
    import torch

    if isinstance(module, torch.nn.DataParallel):
        raise UsageError(
            "DataParallel copies the module for every batch, and copies are not fitted",
            hint="use DistributedDataParallel: torchrun --nproc-per-node, one process for each device",
        )
    if not torch.distributed.is_available() or not isinstance(module, torch.nn.Module):
        return
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    if is_in_units(module):
        return
    split = any(isinstance(part, FullyShardedDataParallel) for part in module.modules())
    if split or any(isinstance(parameter, DTensor) for parameter in module.parameters()):
        raise UsageError(
            f"the parameters of this {type(module).__name__} are split over processes (FSDP, DTensor), and "
            "plans do not count what they take when they are gathered",
            hint="fully_shard and DistributedDataParallel work",
        )


class SharedPlanner:
    """Makes the plans of all processes in process 0, while they meet; otherwise it is ``planner``.

    Args:
        planner: Makes plans.
        received: Called with a plan that another process made.
        meeting: Of all processes that fit the module.
    """

    def __init__(self, planner: Planner, received: Callable[[Plan], None], meeting: Meeting) -> None:
        self._planner, self._received, self._meeting = planner, received, meeting

    @property
    def budget_bytes(self) -> int | None:
        """That of the planner."""
        return self._planner.budget_bytes

    @property
    def plans_ahead(self) -> bool:
        """That of the planner."""
        return self._planner.plans_ahead

    def settle(self, graphs: Sequence[Graph]) -> int | None:
        """That of the planner."""
        return self._planner.settle(graphs)

    def search(self, graph: Graph) -> Plan:
        """A plan of this process alone: the others need none now."""
        return self._planner.search(graph)

    def __call__(self, graph: Graph) -> Plan:
        """A plan of ``graph``, the same in all processes that ask for one now.

        Raises:
            RematError: From the planner, in all of them.
        """
        if not self._meeting.open:
            return self._planner(graph)
        digests = self._meeting.entries(_digest(graph))
        if any(digest != digests[0] for digest in digests):
            return self._planner(graph)
        plan = decided_by_first(partial(self._planner, graph))
        if not is_first():
            self._received(plan)
        return plan


def _digest(graph: Graph) -> str:
    """A digest of operations and sizes, without costs and workspaces, since these may be measured."""
    nodes = [[node.id, node.op, node.inputs, node.outputs, node.recompute] for node in graph.nodes]
    text = json.dumps([nodes, graph.outputs, graph.fixed_memory])
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
