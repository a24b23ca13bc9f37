"""TorchDynamo and modules: graph breaks, what is captured, how often code is compiled, and what runs for a call."""

import ast
import contextlib
import logging
import types
from collections.abc import Callable, Iterator
from typing import Any

from remat_cli.frontends.torch.types import Context, GraphModule, Module


def break_of(graph_module: GraphModule) -> tuple[str, list[tuple[str, int, str]]] | None:
    """Why a graph ends before the function that is compiled: PyTorch's text and the frames of the code.

    None if it does not. The text may be in quotes, as ``repr`` makes them. remat tells users why parts of a divided
    step end.
    """
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    text = str(reason.reason)
    with contextlib.suppress(ValueError, SyntaxError):
        text = str(ast.literal_eval(text))
    return text, [(frame.filename, frame.lineno or 0, frame.name) for frame in reason.user_stack]


def leave_out_logging() -> Callable[[], None]:
    """From now on, PyTorch captures code that logs: what is compiled does not log, and else does the same.

    This holds for the methods of ``logging.Logger`` that return nothing, and for those that libraries add for messages
    that come once, such as ``warning_once``.

    Returns:
        What ends it: PyTorch's setting is then what it was.
    """
    import torch

    before = torch._dynamo.config.ignore_logging_functions
    names = {"debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log"}
    levels = ("debug_", "info_", "warning_", "error_", "critical_")
    methods = {method for name, method in vars(logging.Logger).items() if name in names or name.startswith(levels)}
    torch._dynamo.config.ignore_logging_functions = before | methods
    metrics = logging.getLogger("torch._dynamo.metrics_context")

    def is_of_use(record: logging.LogRecord) -> bool:
        # PyTorch 2.11 cannot write functions down among its settings, and tells so, with a traceback.
        return record.exc_info is None or not isinstance(record.exc_info[1], TypeError)

    metrics.addFilter(is_of_use)

    def end() -> None:
        torch._dynamo.config.ignore_logging_functions = before
        metrics.removeFilter(is_of_use)

    return end


@contextlib.contextmanager
def without_logging() -> Iterator[None]:
    """A context in which :func:`leave_out_logging` holds."""
    end = leave_out_logging()
    try:
        yield
    finally:
        end()


def undistributed(compilations: int) -> Context:
    """A context for calls of a compiled function: ``compilations`` of each code object, and whole graphs under DDP.

    ``DistributedDataParallel`` otherwise splits graphs at its buckets, and the plan is for the whole. Hooks that
    modules get between two calls compile another graph; otherwise they would not run.
    """
    import torch

    config = torch._dynamo.config
    return config.patch(
        optimize_ddp=False,
        skip_nnmodule_hook_guards=False,
        recompile_limit=max(config.recompile_limit, compilations),
        accumulated_recompile_limit=max(config.accumulated_recompile_limit, 4 * compilations),
    )


def own_code(function: Any) -> Callable[..., Any]:
    """A copy of ``function`` with a code object of its own, since PyTorch counts compilations by code object.

    Each fitted module thus has a limit of its own.
    """
    return types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def not_traced(function: Callable[..., Any]) -> Any:
    """``function``, which a compiled function calls and does not trace into; what it compiles itself still runs.

    So code around a fitted module may be compiled: if it were traced into, the plan would be lost.
    """
    import torch

    return torch.compiler.disable(function)


def recompile_limit() -> int:
    """How often PyTorch compiles a code object.

    A fitted module may have as many forms of arguments at least.
    """
    import torch

    return int(torch._dynamo.config.recompile_limit)


def is_compiled(module: Module) -> bool:
    """Whether ``module`` is what ``torch.compile`` returns for a module.

    ``fit`` refuses such modules.
    """
    import torch

    return isinstance(module, torch._dynamo.OptimizedModule)


def call_of(module: Module) -> Any:
    """What runs in place of the module's own call: ``nn.Module.compile`` puts it there; None if nothing does."""
    return module._compiled_call_impl


def set_call(module: Module, call: Callable[..., Any] | None) -> None:
    """Let ``call`` run when ``module`` is called; None for its own call again.

    ``fit`` changes nothing else of a module. Copies and pickles leave ``_compiled_call_impl`` behind.
    """
    if call is None:
        module.__dict__.pop("_compiled_call_impl", None)
    else:
        module._compiled_call_impl = call


def plain_call(module: Module) -> Any:
    """The module's own call, with its hooks."""
    return module._call_impl
