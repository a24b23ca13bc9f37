"""Puts a planned call into a module, in place, so that the module stays what it is: its class, names and signature.

Without gradients (evaluation, ``generate``) the module runs as it is: there is no backward pass to plan, and every new
length would be compiled for nothing. Copies, ``pickle`` and ``torch.save`` leave the planned call behind, as those of
``nn.Module.compile`` do: a copy runs as it is, and may be fitted where it trains.

A module may also be fitted when training first calls it, on the arguments, the mode and the autocast of that call.
Frameworks make the first batch themselves, and often change it on its way: they drop columns, add arguments, move it to
another device, or run the module under autocast. What the module is called with is known only then.
"""

import contextlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from remat_cli.errors import RematError, UsageError
from remat_cli.frontends.messages import warn
from remat_cli.frontends.torch.compat.dynamo import (
    call_of,
    is_compiled,
    not_traced,
    own_code,
    plain_call,
    recompile_limit,
    set_call,
    undistributed,
)
from remat_cli.frontends.torch.train.arguments import Arguments, require_module
from remat_cli.frontends.torch.train.backend import Backend
from remat_cli.frontends.torch.train.ranks import processes
from remat_cli.frontends.torch.train.report import Fitted
from remat_cli.frontends.torch.train.watched_step import CompiledGraph
from remat_cli.frontends.torch.types import GraphModule, Module, Tensor
from remat_cli.plan.model import Plan
from remat_cli.printable import printable
from remat_cli.tracebacks import shortened

MOST_FORMS = 64
"""Forms of arguments, modes and autocast in which a module is compiled; PyTorch's limit, if that is larger. Untuned."""


class ModuleCall(ABC):
    """What runs when a module is called that remat has fitted, or will fit."""

    plans: Sequence[Plan] = ()
    """The plans made so far; more may come."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def install(self) -> None:
        """Let this run when the module is called."""
        set_call(self._module, self)

    def remove(self) -> None:
        """Let the module run as it did before it was fitted."""
        set_call(self._module, None)

    def report(self) -> Fitted | None:
        """What a step needs by the plans that there are now; None if there is none."""
        return None

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's results."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Nothing: some modules copy and pickle all that they hold, and a copy has no call but its own."""
        return (type(None), ())


class UnplannedCall(ModuleCall):
    """What runs when a module is called of which nothing could be planned: the module as it is."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's results."""
        return plain_call(self._module)(*args, **kwargs)


class PlannedCall(ModuleCall):
    """What runs when a fitted module is called.

    Args:
        module: The fitted module.
        backend: The backend for ``torch.compile`` that runs each graph by its plan.
        parts: Number of graphs in which the module is compiled for one form of its arguments.
        strict: Whether one form too many is an error; else it runs as it is, after one warning.
        plans: The plans, for whoever asks; more may come.
        report: Says what a step needs by them.
    """

    def __init__(
        self,
        module: Module,
        backend: Backend,
        parts: int,
        *,
        strict: bool,
        plans: list[Plan],
        report: Callable[[], Fitted],
    ) -> None:
        import torch

        super().__init__(module)
        self.plans, self._report = plans, report
        self._parts, self._strict = max(1, parts), strict
        self._kind = type(module)
        self._parameter = next(map(weakref.ref, module.parameters()), None)
        self._graphs = 0
        self._said = False

        def counted(graph_module: GraphModule, inputs: list[Tensor]) -> CompiledGraph:
            self._graphs += 1
            return backend(graph_module, inputs)

        # A code object of its own: PyTorch counts compilations by code object, and stops at its limit for all of them.
        self._run = torch.compile(own_code(_call), backend=counted, dynamic=False)
        # Inside another compiled function the call is not traced into: it would lose the plan there.
        self._planned = not_traced(self._with_plan)

    def report(self) -> Fitted:
        """What a step needs by the plans that there are now."""
        return self._report()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's results; with gradients by plan."""
        import torch

        if not torch.is_grad_enabled() or torch.jit.is_tracing():
            return plain_call(self._module)(*args, **kwargs)
        self._require_unchanged()
        return self._planned(*args, **kwargs)

    def _require_unchanged(self) -> None:
        """Check that the module is not sharded, by itself or as a part of another, since it was fitted."""
        if type(self._module) is not self._kind:
            now = printable(type(self._module).__name__)
            raise UsageError(
                f"the class of the fitted module was {self._kind.__name__} and is now {now}, as fully_shard "
                "and parametrize do, and its plans are for the module before that",
                hint="take the plans away with remat_cli.unfit(module); fit it after that",
            )
        if self._parameter is None or processes() == 1:
            return
        if next(self._module.parameters(), None) is not self._parameter():
            raise UsageError(
                f"{self._kind.__name__} has other parameters than when it was fitted, as fully_shard of a module "
                "around it gives it, and plans do not count what they take when they are gathered",
                hint="take the plans away with remat_cli.unfit(module); call fully_shard before fit, and fit the whole",
            )

    def _with_plan(self, *args: Any, **kwargs: Any) -> Any:
        if self._graphs >= self._parts * max(MOST_FORMS, recompile_limit()):
            return self._without_more(*args, **kwargs)
        with undistributed(self._parts * MOST_FORMS), unwrapped_errors():
            return self._run(self._module, *args, **kwargs)

    def _without_more(self, *args: Any, **kwargs: Any) -> Any:
        """Forms that are compiled run by plan; new ones run as they are, or are errors."""
        import torch

        forms = self._graphs // self._parts
        name = printable(type(self._module).__name__)
        hint = "pad batches to a few lengths, and give them to fit as buckets"
        if self._strict:
            with torch.compiler.set_stance("fail_on_recompile"):
                try:
                    return self._run(self._module, *args, **kwargs)
                except RuntimeError as error:
                    if "fail_on_recompile" not in str(error):
                        raise
                    message = f"{name} was called in more than {forms} forms, the most that are compiled"
                    raise UsageError(message, hint=hint) from error
        if not self._said:
            self._said = True
            warn(
                f"remat: {name} was called in {forms} forms (shapes, modes, numbers), the most that are compiled; "
                f"these keep their plans, and new ones run without one: {hint}"
            )
        with torch.compiler.set_stance("eager_on_recompile"):
            return self._run(self._module, *args, **kwargs)


@contextlib.contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Within this context, what a backend raises for users comes without what PyTorch wraps around it."""
    try:
        yield
    except Exception as error:  # PyTorch has several types that wrap others
        wrapped = getattr(error, "inner_exception", None)
        if isinstance(wrapped, RematError):
            raise shortened(wrapped)  # noqa: B904 - its cause is what ``shortened`` leaves
        raise


def install(module: Module, call: ModuleCall) -> Module:
    """``module`` itself, which ``call`` runs from now on."""
    call.install()
    return module


@contextlib.contextmanager
def unchanged_on_error(module: Module) -> Iterator[None]:
    """Within this context an exception leaves ``module`` with the call that it had before."""
    before = call_of(module)
    try:
        yield
    except BaseException:
        now = call_of(module)
        if isinstance(now, ModuleCall) and now is not before:
            now.remove()
        if isinstance(before, ModuleCall):
            before.install()
        else:
            set_call(module, before)
        raise


def fitted_call(module: Module) -> ModuleCall:
    """What runs when a fitted ``module`` is called.

    Raises:
        UsageError: If it is not fitted.
    """
    import torch

    call = call_of(module) if isinstance(module, torch.nn.Module) else None
    if not isinstance(call, ModuleCall):
        raise UsageError(f"this {type(module).__name__} is not fitted")
    return call


def require_uncompiled(module: Module) -> None:
    """Check that neither ``module`` nor a part of it is compiled; the module itself may be fitted.

    Raises:
        UsageError: If something is.
    """
    if is_compiled(module):
        raise UsageError(
            "the module is compiled by torch.compile already, and fit compiles it by plan",
            hint="give fit the module itself, before torch.compile",
        )
    for name, part in module.named_modules():
        call = call_of(part)
        if is_compiled(part) or (call is not None and not isinstance(call, ModuleCall)):
            what = f"its part {printable(name)}" if name else "the module"
            raise UsageError(f"{what} is compiled already, and fit compiles it by plan", hint="leave out compile()")
        if name and call is not None:
            raise UsageError(
                f"its part {name} is fitted already",
                hint="fit the whole or its parts; remat_cli.unfit(part) takes the plan from a part",
            )


def _call(module: Module, /, *args: Any, **kwargs: Any) -> Any:
    """The module's own call, hooks included; compiled with a code object of its own."""
    return plain_call(module)(*args, **kwargs)


class FirstCall(ModuleCall):
    """Runs a module as it is until it is called in training; then fits it, and leaves the place to its planned call.

    Args:
        module: The module to fit.
        fitted: Fits it on the arguments of the call.
    """

    def __init__(self, module: Module, fitted: Callable[[Arguments], Any]) -> None:
        super().__init__(module)
        self._fitted = not_traced(fitted)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's results; with gradients and in training by plan."""
        import torch

        module = self._module
        if not module.training or not torch.is_grad_enabled() or torch.jit.is_tracing():
            return plain_call(module)(*args, **kwargs)
        with undistributed(recompile_limit()):  # the module in DDP is captured as a whole
            self._fitted(Arguments(args, kwargs))
        call = call_of(module)
        if call is self:
            raise UsageError(f"{type(module).__name__} was not fitted by its first call")
        return call(*args, **kwargs)


def fit_first_call(module: Module, fitted: Callable[[Arguments], Any]) -> None:
    """Have ``module`` fitted by ``fitted`` when it is first called in training.

    Raises:
        UsageError: If it is not a module, or compiled already.
    """
    require_module(module)
    require_uncompiled(module)
    set_call(module, FirstCall(module, fitted))
