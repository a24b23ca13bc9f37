"""The steps that need the model: training by plan and with checkpoints, and ``torch.compile(fullgraph=True)``."""

import copy
import random
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.models.listing import Listed
from benchmarks.torch.devices import allocated_peak
from benchmarks.torch.peers import flop_counter, has_formula
from remat_cli.errors import Infeasible, LimitReached, RematError
from remat_cli.frontends.source import load_function
from remat_cli.plan.model import Compute

STEPS = 3
_SHARES = (0.8, 0.9, 1.0)
"""Budgets for training, as shares of what eager mode needs; the first that a plan fits."""


class Subject:
    """A model of the suite, with its inputs and its loss.

    Attributes:
        module: The module, as the builder made it; only copies of it are trained.
        inputs: Its inputs: a tuple or a mapping.
        loss: From its output to the loss.
    """

    def __init__(self, model: Listed) -> None:
        build = load_function(f"{model.file}:{model.name}", "torch")
        seeded()
        built = build()
        self.module, self.inputs = built[:2]
        self.outer_loss: Callable[[Any], Any] | None = built[2] if len(built) > 2 else None
        self.loss: Callable[[Any], Any] = self.outer_loss or _own_loss

    def copied(self) -> Any:
        return copy.deepcopy(self.module)

    def loss_of(self, module: Any) -> Any:
        """The loss of a module for the inputs."""
        named = isinstance(self.inputs, Mapping)
        return self.loss(module(**self.inputs) if named else module(*self.inputs))

    def step(self, owner: Any, module: Any) -> float:
        """A forward and a backward pass; the loss."""
        owner.zero_grad(set_to_none=True)
        loss = self.loss_of(module)
        loss.backward()
        return float(loss.detach())

    def trained(self, owner: Any, module: Any) -> dict[str, Any]:
        """Losses of some steps of AdamW, the gradients of the first and the last one, and the buffers after them."""
        seeded()
        optimizer = torch.optim.AdamW(owner.parameters(), lr=1e-4)
        losses, gradients = [], {}
        for number in range(STEPS):
            losses.append(self.step(owner, module))
            if number in (0, STEPS - 1):
                gradients |= {f"{number + 1}:{name}": _kept(p.grad) for name, p in owner.named_parameters()}
            optimizer.step()
        owner.zero_grad(set_to_none=True)
        buffers = {name: _kept(buffer) for name, buffer in owner.named_buffers()}
        return {"losses": losses, "gradients": gradients, "buffers": buffers}

    def fixed_bytes(self) -> int:
        """Bytes of parameters, buffers and inputs."""
        return storage_bytes([*self.module.parameters(), *self.module.buffers(), *tensors_of(self.inputs)])

    def peak_bytes(self, owner: Any, module: Any) -> int:
        """Most bytes that PyTorch hands out during a step, by the events of its profiler, and the fixed ones."""

        def step() -> None:
            seeded()  # the same shapes every time, where they are random
            self.step(owner, module)
            owner.zero_grad(set_to_none=True)

        step()  # what is made once is not counted
        return self.fixed_bytes() + allocated_peak(step)

    def flops(self, owner: Any) -> float:
        """FLOPs of a step in eager mode, by PyTorch's formulas."""
        with flop_counter() as counter:
            self.step(owner, owner)
        return float(counter.get_total_flops())


def seeded() -> None:
    """Start all random generators that models draw from."""
    import numpy as np

    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)


def _own_loss(output: Any) -> Any:
    return output if isinstance(output, torch.Tensor) else output.loss


def _kept(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().clone()


def storage_bytes(tensors: Sequence[Any]) -> int:
    """Bytes of the memory that tensors lie in, that of several counted once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def tensors_of(tree: Any) -> list[Any]:
    """All tensors in nested tuples, lists and mappings."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    items = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for item in items for tensor in tensors_of(item)]


def differing(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What differs between two trainings; empty if nothing does."""
    parts = []
    if found["losses"] != wanted["losses"]:
        parts.append(f"losses {found['losses']} against {wanted['losses']}")
    for what in (key for key in wanted if key != "losses"):
        pairs = [(found[what][name], value) for name, value in wanted[what].items()]
        bad = [(a, b) for a, b in pairs if not _same(a, b)]
        if bad:
            parts.append(f"{len(bad)} of {len(pairs)} {what}, at most by {max(_off(a, b) for a, b in bad):.2g}")
    return "; ".join(parts)


def _as_undefined(found: dict[str, Any], eager: Mapping[str, Any]) -> dict[str, Any]:
    """``found`` without the zeros that aot_eager makes where eager mode makes no gradient."""
    gradients = {
        name: None if eager["gradients"][name] is None and value is not None and not value.any() else value
        for name, value in found["gradients"].items()
    }
    return found | {"gradients": gradients}


def _same(a: Any, b: Any) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b) or _both_nan(a, b)


def _both_nan(a: Any, b: Any) -> bool:
    return bool(
        a.is_floating_point() and torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
    )


def _off(a: Any, b: Any) -> float:
    """The relative difference of two tensors; 1 where one of them is missing."""
    if a is None or b is None or a.shape != b.shape:
        return 1.0
    a, b = a.double(), b.double()
    return float((a - b).norm() / b.norm()) if b.norm() > 0 else float(a.norm())


class Fitted:
    """A copy of a module that trains by plan, with what ``fit`` said and the plans it made."""

    def __init__(self, subject: Subject, budget: int, limit_s: float) -> None:
        import remat_cli
        from remat_cli.api import fitting as api
        from remat_cli.frontends.torch.measure.costs import cost_model
        from remat_cli.frontends.torch.train import module_plans

        self.plans: list[Any] = []
        self.flops: dict[str, float] = {}
        self.owner = subject.copied()
        lower = module_plans.lower

        def solved(_given: Any, result: Any) -> None:
            self.plans.append(result.plan)

        def lowered(given: tuple[Any, ...], _result: Any) -> None:
            """The same graph with FLOPs as its costs, for those that recomputation takes."""
            graph = lower(given[0], cost_model("flops").cost, *given[2:])
            self.flops |= {node.id: node.cost for node in graph.nodes}

        started = time.perf_counter()
        with (
            _noted(api, "solve", solved),
            _noted(module_plans, "lower", lowered),
            warnings.catch_warnings(record=True) as said,
        ):
            warnings.simplefilter("always")
            options = remat_cli.SolveOptions(time_limit_s=limit_s)
            asked: dict[str, Any] = {"options": options, "cost": "measured", "cache": "", "loss": subject.outer_loss}
            self.module = remat_cli.fit(self.owner, subject.inputs, budget, **asked)
        self.seconds = time.perf_counter() - started
        self.said = told_by_remat(said)

    def extra_flops(self) -> float:
        """FLOPs that the plan spends on computing again, by PyTorch's formulas."""
        [plan] = self.plans
        counts = Counter(s.node for s in plan.statements if isinstance(s, Compute))
        again = [(plan.graph.nodes[node], times - 1) for node, times in counts.items() if times > 1]
        return sum(self.flops[node.id] * times for node, times in again if has_formula(node))


@contextmanager
def _noted(place: Any, name: str, note: Callable[[tuple[Any, ...], Any], None]) -> Iterator[None]:
    """Have ``note`` told of the arguments and the result of every call of a function."""
    function = getattr(place, name)

    def called(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        note(arguments, result)
        return result

    setattr(place, name, called)
    try:
        yield
    finally:
        setattr(place, name, function)


def told_by_remat(said: Sequence[Any]) -> list[str]:
    return sorted({str(w.message) for w in said if str(w.message).startswith("remat")})


def fit(subject: Subject, limit_s: float) -> dict[str, Any]:
    """Train by plan within a share of what eager mode needs, and compare with eager mode."""
    owner = subject.copied()
    wanted = subject.trained(owner, owner)
    owner = subject.copied()
    eager_bytes = subject.peak_bytes(owner, owner)
    answer: dict[str, Any] = {"eager_bytes": eager_bytes, "fixed_bytes": subject.fixed_bytes(), "refused": {}}
    fitted = None
    for share in _SHARES:
        budget = int(share * eager_bytes)
        try:
            fitted = Fitted(subject, budget, limit_s)
            break
        except (Infeasible, LimitReached) as error:
            answer["refused"][f"{share:.0%}"] = _told(error)
            torch.compiler.reset()
    if fitted is None:
        return answer | {"ok": False, "problem": f"not even with what eager mode needs: {answer['refused']['100%']}"}
    answer |= {"share": share, "budget_bytes": budget, "plans": len(fitted.plans), "fit_s": round(fitted.seconds, 1)}
    with warnings.catch_warnings(record=True) as later:
        warnings.simplefilter("always")
        found = subject.trained(fitted.owner, fitted.module)
        peak = subject.peak_bytes(fitted.owner, fitted.module)
    answer["said"] = fitted.said + told_by_remat(later)
    answer |= {"peak_bytes": peak, "within": peak <= budget, "over": round(peak / budget - 1, 5)}
    same_as, differs = "eager", differing(found, wanted)
    if differs:
        answer["differs_from_eager"] = differs
        torch.compiler.reset()
        owner = subject.copied()
        compiled = torch.compile(owner, backend="aot_eager", dynamic=False)
        same_as, differs = "aot_eager", differing(found, _as_undefined(subject.trained(owner, compiled), wanted))
    same = "" if differs else same_as
    return answer | {"same_as": same, "as_eager": same == "eager", "differs": differs, "ok": not differs}


def checkpoint(subject: Subject, limit_s: float) -> dict[str, Any]:
    """The library's own gradient checkpointing, and a plan for the memory that it needs."""
    owner = subject.copied()
    enabled = _checkpointed(owner)
    if not enabled:
        return {"ok": True, "supported": False}
    peak = subject.peak_bytes(owner, owner)
    plain = subject.copied()
    eager = subject.flops(plain)
    answer: dict[str, Any] = {
        "supported": True,
        "checkpoint_bytes": peak,
        "eager_bytes": subject.peak_bytes(plain, plain),
        "checkpoint_flops": round(subject.flops(owner) / eager - 1, 4),
    }
    try:
        fitted = Fitted(subject, peak, limit_s)
    except (Infeasible, LimitReached) as error:
        return answer | {"ok": False, "problem": _told(error)}
    measured = subject.peak_bytes(fitted.owner, fitted.module)
    answer |= {"peak_bytes": measured, "over": round(measured / peak - 1, 5), "plans": len(fitted.plans)}
    if len(fitted.plans) == 1:
        answer["flops"] = round(fitted.extra_flops() / eager, 4)
    return answer | {"ok": True}


def _checkpointed(module: Any) -> bool:
    """Turn on the library's gradient checkpointing; whether the module has it."""
    for name, arguments in (
        ("gradient_checkpointing_enable", ({"use_reentrant": False},)),
        ("enable_gradient_checkpointing", ()),
        ("set_grad_checkpointing", ()),
    ):
        if hasattr(module, name):
            try:
                getattr(module, name)(*arguments)
            except (ValueError, AssertionError):  # it has the method, and says that it does not support it
                return False
            return True
    return False


def fullgraph(subject: Subject) -> dict[str, Any]:
    """Whether ``torch.compile(fullgraph=True)`` takes the step, and what it says if not; and how many graphs it has."""
    graphs: list[Any] = []

    def backend(graph: Any, _inputs: Sequence[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    def step() -> Any:
        return subject.loss_of(subject.module)

    try:
        torch.compile(step, backend=backend, fullgraph=True, dynamic=False)()
        return {"ok": True}
    except Exception as error:  # that is the question
        said = re.sub(r"\S*/(site-packages|lib/python[0-9.]*)/", "", " ".join(str(error).split()))  # no paths
    torch.compiler.reset()
    graphs.clear()
    torch.compile(step, backend=backend, dynamic=False)()
    return {"ok": False, "problem": said[:400], "graphs": len(graphs)}


def _told(error: RematError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


def answer(step: str, model: Listed, limit_s: float) -> dict[str, Any]:
    """The answer of one of these steps for a model; a search for a plan gets ``limit_s`` seconds."""
    torch.set_num_threads(1)
    try:
        subject = Subject(model)
        if step == "fullgraph":
            return fullgraph(subject)
        return {"fit": fit, "checkpoint": checkpoint}[step](subject, limit_s)
    except RematError as error:
        return {"ok": False, "refused_by": type(error).__name__, "problem": _told(error)}
