"""The object that Inductor calls to divide a joint graph: ``torch.compile(options={"custom_partitioner_fn": ...})``."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.torch.capture.capture import Captured, no_model
from remat_cli.frontends.torch.capture.lower import lowering
from remat_cli.frontends.torch.capture.placeholders import joint_inputs
from remat_cli.frontends.torch.capture.results import Use, whole_use, with_tangents
from remat_cli.frontends.torch.compat.aot_autograd import min_cut
from remat_cli.frontends.torch.compat.fake_tensors import real_tensors
from remat_cli.frontends.torch.compat.inductor import partitioner_base
from remat_cli.frontends.torch.inductor.division import divided
from remat_cli.frontends.torch.inductor.image_layouts import layouts_kept
from remat_cli.frontends.torch.inductor.joint import captured_joint
from remat_cli.frontends.torch.inductor.loops import (
    calls_end_within_limits,
    loops_are_limited,
    loops_join_within_limits,
)
from remat_cli.frontends.torch.installed import require_inductor, require_torch
from remat_cli.frontends.torch.tensors import tensors_in
from remat_cli.frontends.torch.types import GraphModule, Tensor
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan
from remat_cli.version import __version__

FindPlan = Callable[[Captured, Graph, Use], "Plan | None"]
"""Returns the plan for a joint graph, which was lowered with arbitrary costs; None to leave it to Inductor.

The joint graph has the tangents of the results that take a gradient only.
"""
UseOf = Callable[[Captured], Use]
"""What is assumed of the results of a joint graph."""
Planned = Callable[[Captured, Use], None]
"""Receives each joint graph that is divided by plan, with all tangents, and what was assumed of its results."""
Refuse = Callable[[Sequence[str]], None]
"""Receives the reasons why a graph has no plan. Inductor divides it, unless this raises."""
SETTINGS = {
    "allow_buffer_reuse": False,
    "reorder_for_peak_memory": False,
    "realize_opcount_threshold": 200,
    "realize_acc_reads_threshold": 32,
}
"""Settings of Inductor with which it keeps to the plan: it frees what the plan frees, and runs in the plan's order.
With its own it may keep freed memory for a later tensor of the same size, which can raise the peak by a fifth."""


class Rules:
    """Keeps Inductor to the plans of graphs while a partitioner that has divided one is alive.

    Inductor compiles a graph after it was divided, and the backward half as late as in the first backward pass. Until
    then it refers to the partitioner. Once the last one is gone, the rules of Inductor are what they were.
    """

    def __init__(self) -> None:
        self._holders = set[int]()
        self._hold = False
        self._undo = contextlib.ExitStack()

    def hold(self, holder: Any) -> None:
        """Have the rules of plans as long as ``holder`` lives, for what is compiled in this thread."""
        if id(holder) not in self._holders:  # first, or the end of another holder could end what begins here
            self._holders.add(id(holder))
            weakref.finalize(holder, self._let_go, id(holder)).atexit = False
        if not self._hold:
            self._hold = True
            self._undo.enter_context(calls_end_within_limits())
            self._undo.enter_context(layouts_kept())
        if not loops_are_limited():  # each thread has choices of its own
            self._undo.enter_context(loops_join_within_limits())

    def _let_go(self, holder: int) -> None:
        self._holders.discard(holder)
        if not self._holders:
            self._hold = False
            self._undo.close()


_RULES = Rules()


def _base() -> Any:
    require_torch()
    return partitioner_base()


class Partitioner(_base()):  # type: ignore[misc]  # torch is Any to the type checker
    """Divides joint graphs by plan.

    Args:
        find: Finds plans.
        refuse: Receives the reasons why there is none.
        identity: Says what the plans depend on, for the caches of compiled code.
        tensors: The inputs of the graph, in the order of the compiler; None for those that it describes.
        use_of: What is assumed of results; by default all take a gradient and stay, as Inductor assumes.
        planned: Is told of what is divided by plan.

    Raises:
        FrameworkUnavailable: If Inductor does not keep to plans with this PyTorch.
    """

    def __init__(
        self,
        find: FindPlan,
        refuse: Refuse,
        identity: str,
        tensors: Sequence[Tensor] | None = None,
        use_of: UseOf | None = None,
        planned: Planned | None = None,
    ) -> None:
        require_inductor()
        self._find, self._refuse, self._identity, self._tensors = find, refuse, identity, tensors
        self._use_of, self._planned = use_of or whole_use, planned

    def __call__(
        self, gm: GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **options: Any
    ) -> tuple[GraphModule, GraphModule]:
        """The forward and the backward graph module of ``gm``; Inductor's own if there is no plan."""
        with real_tensors():  # Inductor calls this under its own fake mode, and here is another
            try:
                halves = self._divided(gm, num_fwd_outputs)
            except CaptureFailed as error:
                self._refuse([error.message])
                halves = None
        if halves is not None:
            return halves
        forward, backward = min_cut(gm, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)
        return forward, backward

    def _divided(self, joint: GraphModule, forward_outputs: int) -> tuple[GraphModule, GraphModule] | None:
        tensors = _inputs(joint) if self._tensors is None else self._tensors
        captured = captured_joint(joint, forward_outputs, tensors, no_model())
        use = self._use_of(captured)
        # Results that take no gradient have no tangent: without these, the plan spends nothing on them.
        pruned = with_tangents(captured, use.takes)
        lowered = lowering(pruned, lambda _: 1.0, "compiled", use.holds)
        plan = self._find(pruned, lowered.graph, use)
        if plan is None:
            return None
        if plan.copies:
            self._refuse(["its plan copies values to the host and back, which compiled steps cannot do"])
            return None
        _RULES.hold(self)
        if self._planned is not None:
            self._planned(captured, use)
        places = zip(captured.joint.graph.find_nodes(op="placeholder"), joint_inputs(captured), strict=True)
        tangents = [node for node, place in places if place.is_tangent]
        return divided(pruned, lowered, plan, joint, tangents)

    def uuid(self) -> Any:
        """What identifies the plans, for PyTorch's caches of compiled code."""
        return f"remat {__version__} {_sources()} {self._identity}"

    def __reduce__(self) -> tuple[Any, ...]:
        """As its identity: the caches pickle it with all other settings, only to compare it."""
        return str, (self.uuid(),)


@functools.cache
def _sources() -> str:
    """A digest of the modules that decide what a plan becomes: a version under development has many."""
    here = Path(__file__).parent
    paths = [path for folder in ("capture", "compat", "inductor") for path in (here.parent / folder).glob("*.py")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()


def _inputs(joint: GraphModule) -> tuple[Tensor | None, ...]:
    """The fake tensors behind the inputs of a joint graph, in the order of the compiler."""
    tensors = {}
    for node in joint.graph.find_nodes(op="placeholder"):
        number = getattr(node.meta.get("desc"), "idx", None)
        if number is not None and tensors_in(node.meta.get("val")):
            tensors[number] = node.meta["val"]
    return tuple(tensors.get(k) for k in range(max(tensors, default=-1) + 1))
