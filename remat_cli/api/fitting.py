"""``fit``: a PyTorch module that trains within a memory budget, in one call. Plans are cached in a folder."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat_cli.api.announcing import Announcer
from remat_cli.api.arguments import as_path, as_text, as_training_budget, as_whole, options_of, require_order
from remat_cli.errors import Infeasible, LimitReached, UsageError, in_fit, wrong_type
from remat_cli.frontends.interconnect import Interconnect
from remat_cli.frontends.messages import warn
from remat_cli.frontends.rates import FLOPS
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.model import Graph
from remat_cli.plan.derive import derive
from remat_cli.plan.host import Host
from remat_cli.plan.model import Plan, Statement
from remat_cli.planning.cache import PlanCache, user_folder
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solving import solve
from remat_cli.planning.warm_start import carried, in_order_of
from remat_cli.tracebacks import door
from remat_cli.units import Budget, as_size

if TYPE_CHECKING:
    from remat_cli.frontends.torch.train.module_call import ModuleCall
    from remat_cli.frontends.torch.train.module_plans import Unknown
    from remat_cli.frontends.torch.train.ranks import Meeting
    from remat_cli.frontends.torch.train.report import Fitted
    from remat_cli.frontends.torch.train.sharded_units import Chosen
    from remat_cli.plan.sharded_units import ShardedStep

AUTO = "auto"
"""The budget that is all the memory there is."""
MEASURE = "measure"
"""The interconnect that is measured on the running process group."""
TIME_LIMIT_S = 60.0
"""Seconds that ``fit`` searches for each plan by default. Untuned."""
_FOR_SPEED = 3
"""Plans to make after one that fits only if every step returns memory to the device, which takes time. Untuned."""
_RETURNS = (
    "remat: within this budget, PyTorch's allocator returns memory to the device in every step, which takes time; "
    "with a larger one it need not"
)
_LEAST_STEP, _MOST_STEP = 0.01, 0.04
"""Least and most step from one of these plans to the next, after the first, as a share of the budget. Untuned."""
_TRIES = 6
"""Most plans to make, each with a smaller budget than the one before, until one fits with its gaps. Untuned."""


@door
def fit(
    module: Any,
    batch: Any,
    budget: Budget | str | float | None = None,
    *,
    options: SolveOptions | None = None,
    cost: str = "device",
    reserve: str | float = 0,
    cache: str | Path | None = None,
    unknown: Unknown = "plan",
    returns: str | int | Sequence[str | int] | None = None,
    holds: str | int | Sequence[str | int] | None = None,
    loss: Callable[[Any], Any] | None = None,
    buckets: Sequence[int] = (),
    host: Host | str | None = None,
    compiler: str = "eager",
    split: bool = False,
    interconnect: str | None = None,
) -> Any:
    """``module`` itself, compiled in place: a training step stays within ``budget``, with the same results bit for bit.

    With ``split`` results are the same up to rounding.

    Class, signature, parameters, ``state_dict`` and methods of the module stay its own. Without gradients (evaluation,
    ``generate``) it runs as it is. Copies and pickles of it are not fitted. A module that is fitted already gets new
    plans; ``unfit`` takes them away.

    Loop, loss, optimizer, autocast, clipping and accumulation of gradients do not change. Only the module is planned;
    ``loss`` tells of a loss outside of it, so that its memory is counted. If training runs under ``torch.autocast``,
    call this under it too.

    Args:
        module: The module, on its device and in the mode in which it trains. Only its call changes.
        batch: Its inputs: a tensor, a tuple, or a mapping of keyword arguments. None: what it is first called with in
            training; errors are raised by that call then.
        budget: ``"8GB"``, ``"80%"`` of the peak without recomputation, or bytes; for parameters, inputs, gradients and
            everything in between. ``"auto"`` is what the device has left when this is called (on a CPU what the system
            calls available), and what the module and its batch take already; ``reserve`` is for what comes later. A
            percentage is of what the given batch needs; other batches and modes have the same bytes. If PyTorch divides
            the module into several graphs, all of them share the budget. On CUDA it limits all memory that PyTorch's
            allocator takes from the device, including the gaps between its blocks and the memory that cuBLAS keeps.
        options: How to solve; by default ``auto``, for at most ``TIME_LIMIT_S`` seconds per plan. One plan is made for
            each graph; on CUDA up to six, until one fits with its gaps.
        cost: What recomputation should spare. ``device``: time on the module's device, by rates that are measured once,
            in two seconds, and kept in the user's cache folder; the file that ``REMAT_RATES`` names replaces them.
            ``measured``: time of every operation, measured now. ``flops``, or time by the model ``roofline:a100``.
            Plans for a CPU count the workspace of operations in any case. On CUDA only ``measured`` does, so take it
            there for a budget that must not be exceeded.
        reserve: Memory to leave for things outside the graph, such as the optimizer's state or accumulated gradients.
        cache: Folder for plans, made if missing; None for the user's cache folder, ``""`` for none. Plans for measured
            costs are not cached.
        unknown: What to do with other graphs that come later (new shapes, another mode): ``plan`` them too, which is an
            error if no plan fits; ``warn``: plan them, and run them without a plan after a warning if none fits, as a
            module of which nothing can be planned; or ``error``.
        returns: The results that take a gradient, by key, attribute or position: ``"loss"``, ``["loss", "logits"]``. By
            default the ``loss``; else the first number; else all. Other results cost nothing in the backward pass. If
            one takes a gradient after all, that step computes its forward pass twice, the next one has another plan,
            and a warning says so.
        holds: The results that the loop still has when the backward pass begins, named in the same way; numbers always
            count. By default all of them, as in ``out = model(x); loss = criterion(out)``: ``out`` is there until it
            gets another value. ``()`` is for a loop that has only its loss by then, as that of a trainer. If another
            result is still there, a warning says so, and the next step has a plan that counts it.
        loss: From what the module returns to the loss, as the loop computes it: ``lambda logits: cross_entropy(logits,
            labels)``. It is called to learn how much memory it takes and which results take a gradient: on a CPU on
            results with random numbers, else without numbers. The loop goes on to compute its own. Without it, a loss
            outside of the module is assumed to take three times what it reads, as cross entropy does.
        buckets: Lengths, such as ``[128, 256, 512]``, for which plans are made beforehand. The length of a batch is its
            second dimension. A batch between two of them runs by the plan of the next larger one, or a cheaper one that
            fits, so no search interrupts the training.
        host: Host memory to which values may be copied meanwhile: ``"25GB/s"``, ``"25GB/s:20GB/s"`` to the host and
            back, or a :class:`Host`, which may have a limit of memory. The plan then takes least time, by costs that
            are times: ``device``, ``measured`` or a roofline. On a CPU the copies are real, and save nothing. On CUDA
            host memory is pinned. If PyTorch divides the module into several graphs, each may use an equal part of it.
        compiler: What runs the step: ``eager``, operation by operation; or ``inductor``, as ``torch.compile`` does,
            with the results of that, and without a ``host``. All results of the module then count as taking a gradient.
            It needs PyTorch 2.13.
        split: Whether regions of the step, such as the loss and the inside of wide layers, may run in parts, so that a
            step fits below what its largest operation needs. Sums over the parts are then added in another order: equal
            to 1e-12 in float64, and to some units in the last place of a tensor's largest number in float32. The loss
            has to be in the module, and what the module returns is whole. For one process, and costs that are
            not measured.
        interconnect: For a module whose parameters are DTensors: what a rank sends to others in one direction,
            ``"50GB/s"``, with a latency ``"50GB/s+20us"``, or by the names of the dimensions of the mesh
            ``"fsdp=50GB/s,tp=400GB/s"``; ``"measure"`` measures both on the running process group, in seconds. All
            ranks have to call this, and run by one plan. Units of ``fully_shard`` may go without: gathers in their
            backward passes then count as free.

    Returns:
        The module. ``fitted(module)`` says what eager mode, the plan and any plan need.

    Raises:
        Infeasible: If no plan of the module with this batch fits.
        LimitReached, Interrupted: If the search has to stop before it has found a plan.
        CaptureFailed: If the module cannot be captured, or nothing of it can be planned.
        FrameworkUnavailable: If PyTorch is missing.
        UsageError: If an argument is wrong, or the module cannot be called with the batch.
    """
    require_order(batch, budget)
    options = options_of(options, SolveOptions(time_limit_s=TIME_LIMIT_S))
    if options.reorder:
        raise UsageError("fit keeps the order of operations", hint="another order draws other random numbers")
    if host is not None:
        if compiler != "eager":
            raise UsageError(
                "compiled steps cannot copy values to the host", hint='leave out host, or compiler="inductor"'
            )
        options = replace(options, host=Host.of(host) if isinstance(host, str) else host)
    if loss is not None:
        _require_loss(loss, returns, buckets)
    auto = isinstance(budget, str) and budget.strip().lower() == AUTO
    named_budget = None if auto else as_training_budget(budget)
    reserve_bytes = as_size(reserve, "reserve")
    if not isinstance(buckets, Iterable):
        raise wrong_type("buckets", buckets, "lengths such as [128, 256]")
    lengths = sorted({as_whole(length, "buckets") for length in buckets}, reverse=True)
    as_text(cost, "cost")
    as_text(compiler, "compiler")
    links = _links(interconnect)
    if not isinstance(split, bool):
        raise wrong_type("split", split, "True or False")
    if split:
        _require_splittable(cost, buckets)
    from remat_cli.frontends.torch.installed import require_torch

    require_torch()
    from remat_cli.frontends.torch.train.arguments import require_batch, require_module, require_results
    from remat_cli.frontends.torch.train.distributed import inside, is_in_units, require_links, require_whole
    from remat_cli.frontends.torch.train.fitting import MEASURED
    from remat_cli.frontends.torch.train.module_call import fit_first_call

    require_module(module, batch)
    require_results(returns)
    part = inside(module)
    require_whole(part)
    if is_in_units(part):
        _require_units(part, lengths, options, links, cost, unknown=unknown, compiler=compiler, split=split)
    else:
        require_links(part, links=links is not None, unknown=unknown, cost=cost, compiler=compiler)
    request = _Request(
        budget=named_budget,
        options=options,
        folder=None if cost == MEASURED else plan_folder(cache),  # no two measurements are the same
        lengths=lengths,
        links=links,
        arguments={
            "cost": cost,
            "reserve_bytes": reserve_bytes,
            "unknown": unknown,
            "returns": returns,
            "holds": holds,
            "loss": loss,
            "compiler": compiler,
            "split": bool(split),
        },
    )
    if batch is None:
        fit_first_call(part, door(partial(request.fit, part)))
    else:
        require_batch(batch)
        request.fit(part, batch)
    return module


@dataclass(frozen=True, slots=True)
class _Request:
    """What a call of ``fit`` asks for, checked.

    Attributes:
        budget: The budget; None for ``auto``.
        options: How to solve.
        folder: Folder of plans; None for none.
        lengths: Lengths of batches for which plans are made beforehand, the longest first.
        links: The links between ranks; ``MEASURE`` to measure them, None if nothing is known of them.
        arguments: The options of ``fit_module``.
    """

    budget: Budget | None
    options: SolveOptions
    folder: Path | None
    lengths: Sequence[int]
    links: Interconnect | str | None
    arguments: Mapping[str, Any]

    def fit(self, module: Any, batch: Any) -> None:
        """Fit ``module``, and say what came of it."""
        from remat_cli.frontends.torch.train.arguments import free_budget
        from remat_cli.frontends.torch.train.module_call import unchanged_on_error
        from remat_cli.frontends.torch.train.ranks import Meeting, is_first

        announcer = Announcer.of(module, quiet=not is_first())
        meeting, budget = Meeting(), self.budget
        with unchanged_on_error(module), meeting.together(), announcer.until_done():
            if budget is None:
                budget, announcer.note = free_budget(module, batch, meeting.least)
            reserve_bytes = self.arguments["reserve_bytes"]
            planner = CachedPlanner(budget, self.options, self.folder, reserve_bytes, announcer=announcer)
            links = self.links
            if isinstance(links, str):
                links, said = _measured_links(module, meeting)
                announcer.note = "; ".join(filter(None, (announcer.note, said)))
            _fit_all(module, batch, planner, meeting, self.lengths, {**self.arguments, "interconnect": links})
        # Errors that were caught on the way may be in cycles, and their tracebacks hold the variables of all callers.
        # In a first call these are what a loop has of its results, which is to be gone by the backward pass.
        gc.collect()
        announcer.fitted(fitted(module))
        planner.announces_each = True


def _links(text: str | None) -> Interconnect | str | None:
    """The links between ranks that the argument ``interconnect`` states; ``MEASURE`` if they are to be measured."""
    if text is None or as_text(text, "interconnect").strip().lower() == MEASURE:
        return None if text is None else MEASURE
    return Interconnect.of(text)


def _measured_links(module: Any, meeting: Meeting) -> tuple[Interconnect, str]:
    """The links between the ranks that fit ``module``, measured now, and the same in words."""
    from remat_cli.frontends.torch.measure.links import measured_links
    from remat_cli.frontends.torch.train.arguments import device_of_module

    found = measured_links(module, device_of_module(module), meeting.all_entries)
    return found.interconnect, found.line()


def _require_splittable(cost: str, buckets: Sequence[int]) -> None:
    """Refuse what does not go together with regions in parts."""
    from remat_cli.frontends.torch.installed import require_torch

    require_torch()
    from remat_cli.frontends.torch.train.fitting import MEASURED
    from remat_cli.frontends.torch.train.ranks import processes

    if cost == MEASURED:
        raise UsageError("costs of regions in parts are not measured", hint="leave cost or split out")
    if buckets:
        raise UsageError("plans in parts are for batches of one length", hint="leave buckets or split out")
    if processes() > 1:
        raise UsageError("regions in parts are for training in one process", hint="leave split out")


def _require_units(
    module: Any,
    lengths: Sequence[int],
    options: SolveOptions,
    links: Interconnect | str | None,
    cost: str,
    **others: Any,
) -> None:
    """Check that a module is divided into units, by ``fully_shard``, in a way that can be planned."""
    if links is not None and cost == FLOPS:
        raise UsageError(
            "the time on a link is compared with costs, and FLOPs are no times",
            hint="take costs that are times: device; or leave interconnect out",
        )
    from remat_cli.frontends.torch.train.sharded_units import require_units

    require_units(module, {"buckets": lengths, "host": options.host, **others})


def _require_loss(loss: Any, returns: Any, buckets: Sequence[int]) -> None:
    """Check that ``loss`` is a function, and that it goes together with the other arguments."""
    if not callable(loss):
        raise UsageError(
            f"loss is a function of what the module returns, and not {type(loss).__name__}",
            hint="loss=lambda output: criterion(output, labels)",
        )
    if returns is not None:
        raise UsageError("loss tells which results take a gradient, and returns does, too", hint="leave out returns")
    if buckets:
        raise UsageError(
            "a loss is of results of one length, and buckets are of several",
            hint="put the loss into the module, or leave out loss and set reserve",
        )


def _fit_all(
    module: Any,
    batch: Any,
    planner: CachedPlanner,
    meeting: Meeting,
    lengths: Sequence[int],
    arguments: Mapping[str, Any],
) -> None:
    """Fit ``module`` in all processes of a meeting: for batches of ``lengths``, the longest first, then for its own."""
    from remat_cli.frontends.torch.train.arguments import stretched
    from remat_cli.frontends.torch.train.distributed import SharedPlanner, is_in_units
    from remat_cli.frontends.torch.train.fitting import fit_module

    if is_in_units(module):
        from remat_cli.frontends.torch.train.sharded_units import fit_units

        fit_units(module, batch, partial(_choose, planner), meeting, **arguments)
        return
    shared = SharedPlanner(planner, planner.plans.append, meeting, in_order_of)
    # Graphs that come in training count buffers twice, since there these cannot be distinguished from inputs.
    buffer_bytes = sum(buffer.nbytes for buffer in module.buffers())
    ahead = dict(arguments) | {"reserve_bytes": arguments["reserve_bytes"] + buffer_bytes}
    # The longest first: a percentage is of what the first batch needs.
    for other in stretched(batch, lengths):
        fit_module(module, other, shared, **ahead)
    planner.reuses = bool(lengths)
    fit_module(module, batch, shared, **arguments)
    planner.reuses, planner.plans_ahead = True, bool(lengths)
    planner.searches = arguments["unknown"] != "error"


def _choose(planner: CachedPlanner, step: ShardedStep) -> Chosen:
    """The plans of the units of a step, within the budget of ``planner``."""
    from remat_cli.frontends.torch.train.sharded_units import Chosen
    from remat_cli.planning.unit_choice import UnitPlanner

    listener = None
    if planner.announcer is not None:
        planner.announcer.unit = step.graphs[0].graph.cost_unit
        listener = partial(planner.announcer.progress, step.graphs[0].graph)
    search = UnitPlanner(step, planner.options, listener)
    keep_all = step.peak_bytes(search.keep_all())
    planner.budget_bytes = planner.budget.bytes_for(keep_all)
    choices = search.within(planner.budget_bytes)
    return Chosen(
        tuple((choice.run.computes, choice.reshard) for choice in choices),
        planner.budget_bytes,
        keep_all,
        search.least_bound(),
        search.least_cost(planner.budget_bytes),
    )


@door
def fitted(module: Any) -> Fitted | None:
    """What a training step of a fitted ``module`` needs, by plan, in eager mode, and at least.

    Returns:
        The figures; None if the module has no plan yet, because fake tensors cannot follow it.

    Raises:
        UsageError: If it is not fitted.
        FrameworkUnavailable: If PyTorch is missing.
    """
    report: Fitted | None = _call_of(module).report()
    return report


@door
def unfit(module: Any) -> Any:
    """``module`` itself, which runs again as it did before ``fit``.

    Raises:
        UsageError: If it is not fitted.
        FrameworkUnavailable: If PyTorch is missing.
    """
    _call_of(module).remove()
    return module


@door
def plans_of(module: Any) -> tuple[Plan, ...]:
    """The plans that a fitted module has so far: one for each graph of each form in which it was called.

    Raises:
        UsageError: If it is not fitted.
        FrameworkUnavailable: If PyTorch is missing.
    """
    return tuple(_call_of(module).plans)


def _call_of(module: Any) -> ModuleCall:
    from remat_cli.frontends.torch.installed import require_torch

    require_torch()
    from remat_cli.frontends.torch.train.distributed import inside
    from remat_cli.frontends.torch.train.module_call import fitted_call

    return fitted_call(inside(module))


def plan_folder(cache: str | Path | None) -> Path | None:
    """The folder for plans that ``cache`` names; None for no folder."""
    if cache is None:
        return user_folder()
    return Path(as_path(cache, "cache")) if str(cache) else None


@dataclass(slots=True)
class CachedPlanner:
    """Solves graphs, and caches their plans in files.

    Attributes:
        budget: The budget of every graph; a percentage is of each graph's own peak until ``settle``.
        options: How to solve.
        folder: Folder of the plans; None for no cache.
        state_bytes: Bytes of the graphs' fixed memory that are allocated only after the first step.
        budget_bytes: The budget in bytes, once it is settled.
        reuses: Whether a plan for a larger form of a graph is taken, if it fits, instead of searching for one.
        searches: Whether to search for a plan if there is none.
        plans_ahead: Whether plans have been made for graphs that come later.
        plans: The plans made so far.
        announcer: Tells the user of searches; None for nobody.
        announces_each: Whether plans are announced one by one.
    """

    budget: Budget
    options: SolveOptions
    folder: Path | None
    state_bytes: int = 0
    budget_bytes: int | None = None
    reuses: bool = False
    searches: bool = True
    plans_ahead: bool = False
    plans: list[Plan] = field(default_factory=list, repr=False)
    announcer: Announcer | None = field(default=None, repr=False)
    announces_each: bool = False

    def settle(self, graphs: Sequence[Graph], agree: Callable[[int], int] = int) -> int:
        """Turn the budget into bytes, for all graphs from now on: a percentage is of the largest peak of ``graphs``.

        ``agree`` makes one budget of those of several processes. Only the first call decides. Each graph gets an equal
        part of the host's memory, if that is limited. On CUDA the peak is of the memory that PyTorch's allocator takes.
        """
        if self.budget_bytes is None:
            whole = max(map(self._whole, graphs)) if self.budget.relative else 0
            self.budget_bytes = agree(self.budget.bytes_for(whole))
            host = self.options.host
            if host is not None and host.memory_bytes is not None:
                host = replace(host, memory_bytes=host.memory_bytes // len(graphs))
                self.options = replace(self.options, host=host)
        return self.budget_bytes

    def _whole(self, graph: Graph) -> int:
        """What a graph takes without recomputation."""
        if graph.metadata.get("device") == "cuda":
            return self._taken(graph, derive(graph, range(len(graph.nodes))))
        return no_remat_peak(graph)

    def _taken(self, graph: Graph, statements: Sequence[Statement]) -> int:
        """What PyTorch's allocator takes for a plan on CUDA."""
        from remat_cli.frontends.torch.measure.allocator import least_limit

        return least_limit(graph, statements, state_bytes=self.state_bytes)

    def __call__(self, graph: Graph) -> Plan:
        """A plan of ``graph``: a cached one that replays within the budget, or a new one.

        On CUDA the budget limits the memory that PyTorch's allocator takes, cuBLAS included; a percentage is of what it
        takes without recomputation. If the peak of a plan is within the budget but its allocations are not, because of
        the gaps that they leave, another plan is made for a smaller budget.

        Raises:
            RematError: As :func:`remat_cli.api.solve`.
        """
        if self.announcer is None:
            return self._within(graph)
        with self.announcer.planning(graph, again=self.announces_each):
            plan = self._within(graph)
        if self.announces_each and not self.plans_ahead:
            self.announcer.planned(graph, plan)
        return plan

    def _within(self, graph: Graph) -> Plan:
        if graph.metadata.get("device") == "cuda":
            return self._with_gaps(graph)
        return self.planned(graph, self._bytes_for(graph))

    def _bytes_for(self, graph: Graph) -> int:
        if self.budget_bytes is not None:
            return self.budget_bytes
        return self.budget.bytes_for(self._whole(graph) if self.budget.relative else 0)

    def _with_gaps(self, graph: Graph) -> Plan:
        """A plan whose allocations PyTorch's CUDA allocator can serve within the budget."""
        wanted = room = self._bytes_for(graph)
        tried, refused, slow, last = wanted, None, None, _TRIES
        for k in range(_TRIES):
            if k == last:
                break
            try:
                plan = self.planned(graph, wanted)
            except Infeasible as error:
                if wanted == room:
                    raise
                wanted, refused = (wanted + tried) // 2, error
                continue
            need = self._taken(plan.graph, plan.statements)
            returns = None if need > room else self._returns(plan, room)
            if returns == 0:
                return plan
            if returns is not None and slow is None:
                slow, last = plan, k + _FOR_SPEED
            # Gaps change from plan to plan by about as much as they are too large: ever smaller steps do not end.
            step = (need - room) / room if k == 0 else min((1 + k / 2) * (need - room) / room, _MOST_STEP)
            tried, wanted = wanted, max(1, wanted - int(max(step, _LEAST_STEP) * room))
        if slow is not None:
            warn(_RETURNS)
            return slow
        if refused is not None:
            raise Infeasible(
                f"plans fit a budget of {self.budget.text}, but none was found that fits with the gaps that PyTorch's "
                "allocator leaves",
                hint="take a larger budget",
            ) from refused
        raise LimitReached(
            f"{_TRIES} plans were made, and none fits {self.budget.text} with the gaps that PyTorch's allocator leaves",
            hint="take a larger budget",
        )

    def _returns(self, plan: Plan, limit_bytes: int) -> int | None:
        """How often a step by plan returns memory to the device within a limit; None if it does not fit."""
        from remat_cli.frontends.torch.measure.allocator import returns_within

        return returns_within(plan.graph, plan.statements, limit_bytes, state_bytes=self.state_bytes)

    def search(self, graph: Graph) -> Plan:
        """A plan of ``graph``, if necessary by a search."""
        before, self.searches = self.searches, True
        try:
            return self(graph)
        finally:
            self.searches = before

    def planned(self, graph: Graph, budget_bytes: int) -> Plan:
        """A plan of ``graph`` that peaks at ``budget_bytes`` at most: a cached one, a carried one, or a new one."""
        plan = self._kept_or_new(graph, budget_bytes)
        self.plans.append(plan)
        return plan

    def _kept_or_new(self, graph: Graph, budget_bytes: int) -> Plan:
        larger = carried(graph, self.plans, budget_bytes) if self.reuses else None
        if larger is not None:
            return larger
        if not self.searches:
            raise UsageError("no plan that was made beforehand is for a graph of this form, or fits")
        cache = None if self.folder is None else PlanCache(self.folder, final=True)
        listener = None if self.announcer is None else partial(self.announcer.progress, graph)
        try:
            return solve(graph, budget_bytes, self.options, cache=cache, listener=listener).plan
        except (Infeasible, LimitReached) as error:
            raise type(error)(in_fit(error.message), hint=in_fit(error.hint)) from None
