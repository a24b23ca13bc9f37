"""Comparison with PyTorch's own tools: memory, time and gradients of one training step.

One transformer, one device, one run. Peak is the memory that PyTorch's allocator handed out, without parameters and
inputs: on a CPU by the events of its profiler, on CUDA by its statistics. "same gradients" compares every gradient with
eager mode's for the same random numbers. `activation_memory_budget` runs through AOTAutograd's min-cut partitioner
without a code generator. Recomputed FLOPs are those of products and attention by PyTorch's formulas, in every row. "by
elements too" is the cost of remat's plan in its own count, with one FLOP per element for every other operation. The
budget of a remat row is the peak of the row named in "budget like", plus parameters and inputs. Its graph has the sizes
and workspaces that `remat profile` measures.
"""

import copy
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.measure import BenchmarkError
from benchmarks.torch.devices import TURNS, allocated_peak, device_named

ON = ("cpu", "cuda")
_SIZES = {"cpu": (8, 256, 8, 8, 128), "cuda": (24, 1024, 16, 8, 1024)}
"""Depth, width, heads, batch, sequence."""
_QUICK = (2, 16, 2, 2, 8)
_BUDGETS = (0.0, 0.25, 0.5, 0.75, 1.0)
_WAYS = {"blocks": "checkpoint, each block", "sequential": "checkpoint_sequential", "selective": "selective checkpoint"}
_DROPOUT = 0.1
_SOLVE_S = 15.0

TABLES = (
    Table(
        "peers",
        "",
        (
            *columns("text", device="device", method="method", like="budget like"),
            Column("peak_bytes", "peak", "bytes"),
            *columns("number", step_s="step, s", extra_flops="recomputed FLOPs, %", extra_cost="by elements too, %"),
            *columns("text", gradients="same gradients", problem="problem"),
        ),
    ),
)


def run(session: Session, left_s: Callable[[], float] = lambda: math.inf) -> list[Row]:
    from remat_cli.errors import RematError
    from remat_cli.frontends.torch.installed import require_present

    device = session.on or ON[0]
    try:
        require_present(device)
    except RematError as error:
        raise BenchmarkError(f"{error.message}: {error.hint}") from error
    import torch

    depth, width, heads, batch, length = _QUICK if session.quick else _SIZES[device]
    from benchmarks.torch.models import Model

    torch.manual_seed(0)
    model = Model(depth, width, heads, _DROPOUT).to(device)
    x = torch.randn(batch, length, width, device=device)
    bench = Bench(model, x, device, session.times(5))
    rows = [bench.row("eager", lambda module: module, flops=bench.flops("plain"))]
    for way, title in _WAYS.items():
        session.say(title)
        rows.append(bench.row(title, lambda module, way=way: _in_way(module, way), flops=bench.flops(way)))
    for budget in _BUDGETS[:: 4 if session.quick else 1]:
        session.say(f"activation_memory_budget {budget}")
        counted = Counted(budget)
        row = bench.row(f"activation_memory_budget {budget:g}", counted.compiled)
        rows.append(row | {"extra_flops": bench.extra(counted.flops)})
        session.keep(rows)
    fixed = sum(p.numel() * p.element_size() for p in [*model.parameters(), x])
    for peer in rows[:2] if session.quick else list(rows):
        if peer["peak_bytes"] is not None and left_s() > 0:
            session.say(f"remat like {peer['method']}")
            limit_s = 1.0 if session.quick else max(2.0, min(_SOLVE_S, left_s() / 10))
            rows.append(bench.remat(peer, fixed, limit_s))
            session.keep(rows)
    return rows


def _in_way(module: Any, way: str) -> Any:
    module.way = way
    return module


class Counted:
    """torch.compile with an ``activation_memory_budget``; ``flops`` are those of both graphs."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.flops = 0.0

    def compiled(self, module: Any) -> Any:
        import torch
        from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch import config

        from remat_cli.frontends.torch.compat.operators import flop_formula
        from remat_cli.frontends.torch.measure.costs import flops

        def compiler(graph: Any, _inputs: Any) -> Any:
            calls = [node for node in graph.graph.nodes if node.op == "call_function"]
            self.flops += sum(flops(node) for node in calls if flop_formula(node.target) is not None)
            return make_boxed_func(graph.forward)

        def partition(*args: Any, **options: Any) -> Any:
            with config.patch(activation_memory_budget=self.budget):
                return min_cut_rematerialization_partition(*args, **options)

        backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition)
        return torch.compile(module, backend=backend, dynamic=False)


def measured_sizes(graph: Any, device: str) -> Any:
    """``graph`` with the sizes and workspaces that its operations have on ``device``, at the costs it had."""
    from dataclasses import replace

    from remat_cli.api import profile

    with TURNS.measuring():
        profiled = profile(graph, device=device, repeats=1, warmup=1)
    nodes = tuple(replace(node, cost=old.cost) for node, old in zip(profiled.nodes, graph.nodes, strict=True))
    return replace(profiled, nodes=nodes, cost_unit=graph.cost_unit)


def flop_counter() -> Any:
    """PyTorch's counter, with the formula of graphs for attention on a CPU, which it lacks."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from remat_cli.frontends.torch.compat.operators import flop_formula

    def counted(packet: Any) -> Any:
        formula = flop_formula(packet.default)

        def raw(*args: Any, out_val: Any = None, **options: Any) -> Any:
            return formula(*args, out_val=out_val, **options)

        raw._get_raw = True  # type: ignore[attr-defined] - the counter's mark for one that takes tensors, not shapes
        return raw

    aten = torch.ops.aten
    packets = (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    )
    return FlopCounterMode(display=False, custom_mapping={packet: counted(packet) for packet in packets})


def has_formula(node: Any) -> bool:
    """Whether PyTorch counts the FLOPs of a graph's node: products, convolutions and attention."""
    from remat_cli.frontends.aten.program import TANGENTS
    from remat_cli.frontends.torch.codec import operator_named
    from remat_cli.frontends.torch.compat.operators import flop_formula

    call = node.payload["call"]
    return call != TANGENTS and flop_formula(operator_named(call)) is not None


def formula_flops(plan: Any) -> float:
    """FLOPs of a step by plan as :func:`flop_counter` counts them: only operations with a formula, at that cost."""
    from remat_cli.plan.model import Compute

    nodes = [plan.graph.nodes[s.node] for s in plan.statements if isinstance(s, Compute)]
    return float(sum(node.cost for node in nodes if has_formula(node)))


class Bench:
    """A model, its inputs, and eager's gradients."""

    def __init__(self, model: Any, x: Any, device: str, times: int) -> None:
        self.model, self.x, self.device, self.times = model, x, device, times
        self.device_wait = device_named(device).wait
        self.sized: Any = None
        self.wanted = self.gradients(model, model)
        self.eager_flops = self.flops("plain")

    def step(self, owner: Any, module: Any) -> None:
        owner.zero_grad(set_to_none=True)
        module(self.x).backward()

    def gradients(self, owner: Any, module: Any) -> list[Any]:
        import torch

        torch.manual_seed(1)
        self.step(owner, module)
        found = [p.grad.detach().clone() for p in owner.parameters()]
        owner.zero_grad(set_to_none=True)
        return found

    def flops(self, way: str) -> float:
        """FLOPs of a step without a compiler."""
        module = _in_way(copy.deepcopy(self.model), way)
        with flop_counter() as counter:
            self.step(module, module)
        return float(counter.get_total_flops())

    def extra(self, flops: float | None) -> float | None:
        return None if flops is None else round(100 * (flops / self.eager_flops - 1), 2)

    def row(self, method: str, prepare: Callable[[Any], Any], *, flops: float | None = None, like: str = "") -> Row:
        import torch

        row: Row = {"table": "peers", "device": self.device, "method": method, "like": like}
        row |= dict.fromkeys(("peak_bytes", "step_s", "gradients"))
        row |= {"extra_flops": self.extra(flops), "extra_cost": None, "problem": ""}
        torch.compiler.reset()
        owner = copy.deepcopy(self.model)
        try:
            module = prepare(owner)
            found = self.gradients(owner, module)
            with TURNS.turn():
                peak = self.peak(owner, module)
                seconds = [self.timed(owner, module) for _ in range(self.times)]
        except Exception as error:  # peers fail in many ways, and that is a result
            said = " ".join(str(error).split())[:120]
            return row | {"problem": f"{type(error).__name__}: {said}"}
        same = all(torch.equal(a, b) for a, b in zip(found, self.wanted, strict=True))
        worst = max(float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in zip(found, self.wanted, strict=True))
        gradients = "bit for bit" if same else "to rounding" if worst < 1e-4 else f"no, {worst:.2g} off"
        return row | {"peak_bytes": peak, "step_s": round(statistics.median(seconds), 6), "gradients": gradients}

    def remat(self, peer: Row, fixed: int, limit_s: float) -> Row:
        from remat_cli.api import SolveOptions
        from remat_cli.api.fitting import CachedPlanner
        from remat_cli.frontends.torch.train.fitting import fit_module
        from remat_cli.units import parse_budget

        plans: list[Any] = []
        budget = peer["peak_bytes"] + fixed
        planner = CachedPlanner(parse_budget(str(budget)), SolveOptions(strategy="search", time_limit_s=limit_s), None)

        def planned(graph: Any) -> Any:
            if self.sized is None:  # the same graph in every row
                self.sized = measured_sizes(graph, self.device)
            plans.append(planner.planned(self.sized, budget))
            return plans[-1]

        row = self.row("remat", lambda m: fit_module(m, self.x, planned, unknown="error"), like=peer["method"])
        if not plans:
            return row
        [plan] = plans
        share = plan.claim.cost / plan.graph.total_cost - 1
        return row | {"extra_flops": self.extra(formula_flops(plan)), "extra_cost": round(100 * share, 2)}

    def timed(self, owner: Any, module: Any) -> float:
        self.device_wait()
        started = time.perf_counter()
        self.step(owner, module)
        self.device_wait()
        return time.perf_counter() - started

    def peak(self, owner: Any, module: Any) -> int:
        """Most bytes that the allocator handed out during a step, without those that existed before."""
        owner.zero_grad(set_to_none=True)
        return allocated_peak(lambda: self.step(owner, module), self.device)
