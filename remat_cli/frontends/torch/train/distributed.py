"""One plan for all processes of a distributed training.

While all processes fit the same module, they meet at every plan: process 0 makes it, the others receive it. If their
graphs differ (batches of several lengths, parts of a model), each makes its own. Plans that come later are each
process's own too, since the others may not need one then; results do not depend on plans.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from remat_cli.errors import RematError, UsageError
from remat_cli.frontends.torch.train.module_plans import Planner
from remat_cli.frontends.torch.types import Module
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan

Entry = TypeVar("Entry")


def processes() -> int:
    """The number of processes that train together."""
    import torch

    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def is_first() -> bool:
    """Whether this is process 0, or the only one."""
    import torch

    return processes() == 1 or torch.distributed.get_rank() == 0


def least_of_all(number: int) -> int:
    """The least of a number that each process has."""
    return number if processes() == 1 else min(_gathered(number))


def inside(module: Module) -> Module:
    """The module in ``DistributedDataParallel``, which exchanges gradients by hooks of parameters; else ``module``."""
    import torch

    return module.module if isinstance(module, torch.nn.parallel.DistributedDataParallel) else module


def require_whole(module: Module) -> None:
    """Check that neither the module nor its parameters are split over devices or processes.

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
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    split = any(isinstance(part, FSDPModule | FullyShardedDataParallel) for part in module.modules())
    if split or any(isinstance(parameter, DTensor) for parameter in module.parameters()):
        raise UsageError(
            f"the parameters of this {type(module).__name__} are split over processes (FSDP, DTensor), and "
            "plans do not count what they take when they are gathered",
            hint="DistributedDataParallel works; with FSDP use torch.utils.checkpoint",
        )


class SharedPlanner:
    """Makes the plans of all processes in process 0, inside of :meth:`together`; outside it is ``planner``.

    Args:
        planner: Makes plans.
        received: Called with a plan that another process made.
    """

    def __init__(self, planner: Planner, received: Callable[[Plan], None]) -> None:
        self._planner, self._received = planner, received
        self._meeting = False

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
        if not self._meeting:
            return self._planner(graph)
        requests = _gathered(("plan", _digest(graph)))
        if any(request != requests[0] for request in requests):
            return self._planner(graph)
        import torch

        first = is_first()
        answer: list[Any] = [None]
        try:
            if first:
                answer = [_answer(self._planner, graph)]
        except BaseException as error:
            # The others wait for an answer.
            answer = [(None, (UsageError, f"process 0 could not plan: {type(error).__name__}: {error}", ""))]
            raise
        finally:
            torch.distributed.broadcast_object_list(answer, src=0)
        plan, problem = answer[0]
        if problem is not None:
            kind, message, hint = problem
            raise kind(message, hint=hint)
        if not first:
            self._received(plan)
        return plan  # type: ignore[no-any-return]  # broadcast as an object

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Within this context all processes plan together; it ends when all have reached its end.

        Raises:
            UsageError: If another process has failed.
        """
        self._meeting, failed = True, ""
        try:
            yield
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._meeting = False
            others = _until_all_are_done(failed)
            if others and not failed:
                raise UsageError(f"another process could not fit its module: {others}")


def _answer(planner: Callable[[Graph], Plan], graph: Graph) -> tuple[Plan | None, tuple[type, str, str] | None]:
    """A plan, or the error instead, in a form that can be sent."""
    try:
        return planner(graph), None
    except RematError as error:
        return None, (type(error), error.message, error.hint)


def _until_all_are_done(failed: str) -> str:
    """Wait for processes that still plan. Returns what the first of those that failed says."""
    while True:
        entries = _gathered(("done", failed))
        if all(kind == "done" for kind, _ in entries):
            return next((problem for _, problem in entries if problem), "")


def _gathered(entry: Entry) -> list[Entry]:
    """The entries of all processes, in their order."""
    import torch

    entries: list[Any] = [None] * processes()
    torch.distributed.all_gather_object(entries, entry)
    return entries


def _digest(graph: Graph) -> str:
    """A digest of operations and sizes, without costs and workspaces, since these may be measured."""
    nodes = [[node.id, node.op, node.inputs, node.outputs, node.recompute] for node in graph.nodes]
    text = json.dumps([nodes, graph.outputs, graph.fixed_memory])
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
