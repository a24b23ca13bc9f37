"""One model, trained in several ways under torch.compile: the process that measures, and what it is told.

``python -m benchmarks.torch.compiled_ways MODEL DEVICE PLANS`` reads ways from its standard input, one a line, and
writes a row for each. Plain ``torch.compile`` is compiled once, and takes turns with every way. The line ``splits``
asks for the settings of PyTorch's own knob that divide the model differently.
"""

import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.frame import Row
from benchmarks.torch.devices import allocated_peak

KNOBS = tuple(k / 10 for k in range(11))
SOLVERS = ("dp", "ilp")
_TIMES = 15
_SOLVE_S = 10.0


class Subjects:
    """A model, and plain torch.compile of it, with which every way is compared."""

    def __init__(self, name: str, device: str, plans: str) -> None:
        import torch

        from benchmarks.torch.compiled_models import made

        # Passes that count are not called for what a cache serves. Compiled kernels are kept all the same.
        torch._inductor.config.fx_graph_cache = False
        torch._functorch.config.enable_autograd_cache = False
        torch.manual_seed(0)
        module, inputs = made(name, device)
        self.name, self.device, self.plans = name, device, plans
        self.module, self.inputs = module.to(device), tuple(tensor.to(device) for tensor in inputs)
        self.plain = _Subject(_copy(self.module), self.inputs, "plain", device)
        self.wanted = self.plain.gradients()
        self.flops = self.plain.flops  # it is compiled anew whenever remat captures a model

    def row(self, way: str, times: int = _TIMES) -> Row:
        """The row of one way."""
        ours = self.plain if way == "plain" else _Subject(_copy(self.module), self.inputs, way, self.device, self.plans)
        found = ours.gradients()
        ours.flops = self.flops if ours is self.plain else ours.flops
        steps = [(self.plain.seconds(), ours.seconds()) for _ in range(times + 2)][2:]
        plain_s, ours_s = (statistics.median(pair) for pair in zip(*steps, strict=True))
        # Of checkpointed blocks not all products are found in what Inductor compiles.
        counted = self.flops and ours.flops and not way.startswith("checkpoint")
        return {
            "model": self.name,
            "way": way,
            "peak_bytes": ours.peak_bytes(),
            "predicted_bytes": ours.predicted_bytes,
            "ratio": round(ours_s / plain_s, 3),
            "step_s": round(ours_s, 5),
            "extra_flops": round(100 * (ours.flops / self.flops - 1), 1) if counted else None,
            "gradients": same(found, self.wanted),
            "problem": None,
        }

    def splits(self) -> list[list[str]]:
        """The settings of PyTorch's knob, those together that divide the model alike; plain is at 1."""
        import torch

        from remat_cli.frontends.torch.compat.aot_autograd import as_given, default_split, min_cut
        from remat_cli.frontends.torch.compat.inductor import inductor, partitioner_base

        found: dict[str, list[str]] = {}

        class Divide(partitioner_base()):  # type: ignore[misc]  # torch is Any to the type checker
            def __call__(self, joint: Any, joint_inputs: Any, **options: Any) -> Any:
                for way, knobs in _knobs():
                    with torch._functorch.config.patch(knobs):
                        parts = min_cut(_copied(joint), joint_inputs, **options)
                    told = "".join(part.print_readable(print_output=False) for part in parts)
                    found.setdefault(hashlib.sha256(told.encode()).hexdigest(), []).append(way)
                options.pop("compiler", None)
                return default_split(joint, joint_inputs, **options)

            def uuid(self) -> Any:
                return None

        def backend(graph_module: Any, inputs: Any) -> Any:
            return inductor(graph_module, inputs, partitioner=Divide(), compiler=as_given)

        torch.compile(_own(_copy(self.module)), backend=backend, dynamic=False)(*self.inputs).backward()
        return list(found.values())


def _knobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for solver in SOLVERS:
        for budget in KNOBS:
            knobs = {"activation_memory_budget": budget, "activation_memory_budget_solver": solver}
            yield f"knob {solver} {budget:g}", knobs


def _copied(joint: Any) -> Any:
    """A joint graph that a partitioner may change, with the tensors of the given one."""
    import torch

    graph, made = torch.fx.Graph(), {}
    for node in joint.graph.nodes:
        made[node] = graph.node_copy(node, made.__getitem__)
    copy = torch.fx.GraphModule(joint, graph)
    copy.meta = dict(joint.meta)
    return copy


def _copy(module: Any) -> Any:
    import copy

    return copy.deepcopy(module)


def same(found: Sequence[Any], wanted: Sequence[Any]) -> str:
    import torch

    if all(map(torch.equal, found, wanted)):
        return "bit for bit"
    worst = max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) for a, b in zip(found, wanted, strict=True))
    return f"within {worst:.0e}"


class _Subject:
    """A module that trains in one way."""

    def __init__(self, module: Any, inputs: tuple[Any, ...], way: str, device: str, plans: str = "") -> None:
        self.module, self.inputs, self.device, self.plans = module, inputs, device, plans
        self.predicted_bytes: int | None = None
        self.flops = 0.0
        self.call = self._made(way)

    def _made(self, way: str) -> Callable[..., Any]:
        import torch

        kind, _, rest = way.partition(" ")
        if kind == "eager":
            return self.module
        if kind == "remat":
            return self._planned(rest)
        if kind == "checkpoint":
            checkpointed(self.module, selective=rest == "selective")
        knobs: dict[str, Any] = {}
        if kind == "knob":
            solver, _, budget = rest.partition(" ")
            knobs = {"activation_memory_budget": float(budget), "activation_memory_budget_solver": solver}
        compiled = torch.compile(
            _own(self.module), dynamic=False, options={"post_grad_custom_post_pass": _counter(self)}
        )

        def call(*inputs: Any) -> Any:
            with torch._functorch.config.patch(knobs):
                return compiled(*inputs)

        return call

    def _planned(self, budget: str) -> Callable[..., Any]:
        """Trained by plan: ``60%``, ``eager 60%``, ``least``, or bytes beside what is fixed: ``at 123``."""
        import torch

        import remat_cli as remat
        from remat_cli.plan.replay import replay

        eager = budget.startswith("eager ")
        asked = budget.removeprefix("eager ").rpartition(" ")[2]
        tensors = {*self.module.parameters(), *self.module.buffers(), *self.inputs}
        held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        options = remat.SolveOptions(time_limit_s=_SOLVE_S)
        compiler = "eager" if eager else "inductor"
        if asked == "least":
            whole = _copy(self.module)
            remat.fit(whole, self.inputs, "100%", options=options, compiler=compiler, cache=self.plans)
            smallest = remat.solve_smallest(remat.plans_of(whole)[0].graph, replace(options, time_limit_s=2 * _SOLVE_S))
            asked, options = str(smallest.plan.budget_bytes), replace(options, start=smallest.plan)
        elif not asked.endswith("%"):
            asked = str(int(asked) + held)
        with torch._inductor.config.patch(post_grad_custom_post_pass=None if eager else _counter(self)):
            remat.fit(self.module, self.inputs, asked, options=options, compiler=compiler, cache=self.plans)
            [plan] = remat.plans_of(self.module)
            torch.manual_seed(1)
            self.module(*self.inputs).backward()
        self.predicted_bytes = replay(plan.graph, plan.statements).peak_bytes - held
        return self.module

    def gradients(self) -> list[Any]:
        import torch

        self.module.zero_grad(set_to_none=True)
        torch.manual_seed(1)
        loss = self.call(*self.inputs)
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in self.module.parameters() if p.grad is not None)]

    def step(self) -> None:
        self.module.zero_grad(set_to_none=True)
        self.call(*self.inputs).backward()

    def seconds(self) -> float:
        started = time.perf_counter()
        self.step()
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
        return time.perf_counter() - started

    def peak_bytes(self) -> int:
        """Most bytes allocated during a step, beside those at its begin; gradients of the step before are gone."""
        self.module.zero_grad(set_to_none=True)
        return allocated_peak(self.step, self.device)


def _own(module: Any) -> Any:
    """A function of its own around ``module``: PyTorch shares compiled code between copies of a module."""
    scope = {"module": module}
    exec("def call(*inputs):\n    return module(*inputs)\n", scope)
    return scope["call"]


def _counter(subject: _Subject) -> Any:
    """A pass of Inductor that counts the FLOPs of products in what it compiles."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    from remat_cli.frontends.torch.compat.operators import flop_formula
    from remat_cli.frontends.torch.measure.costs import flops

    class Counter(CustomGraphPass):
        def __call__(self, graph: Any) -> None:
            calls = [node for node in graph.nodes if node.op == "call_function"]
            subject.flops += sum(flops(node) for node in calls if flop_formula(node.target))

        def uuid(self) -> Any:
            return "counts"

        def __reduce__(self) -> Any:
            return str, ("counts",)

    return Counter()


def checkpointed(module: Any, *, selective: bool) -> None:
    """Let every block of ``module`` be computed again in the backward pass; ``selective`` keeps products."""
    from functools import partial

    from torch.utils.checkpoint import checkpoint

    from benchmarks.torch.models import _contexts

    options = {"context_fn": _contexts} if selective else {}
    for blocks in [getattr(module, name) for name in ("blocks", "down", "up") if hasattr(module, name)]:
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)


def main(name: str, device: str, plans: str) -> None:
    """Answer the lines of the standard input."""
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print too
    subjects = Subjects(name, device, plans)
    for line in sys.stdin:
        way = line.strip()
        try:
            told: Any = subjects.splits() if way == "splits" else subjects.row(way)
        except Exception as error:  # whatever stops a way is what its row says
            told = {"problem": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
