"""Plans inside Inductor beside PyTorch's own tools under torch.compile: memory, time and gradients of a training step.

``python -m benchmarks.torch.compiled --models gpt,llama --ways plain,knob,remat`` measures each way in a process of its
own, and keeps ``results/compiled-cpu.json`` and the page beside it; a model that is measured again replaces its rows.

Peak is what is allocated during a step beside parameters and inputs: by the events of PyTorch's profiler on a CPU, by
the allocator's statistics on CUDA. "over plain" is the ratio of the medians of a step and of one of plain
``torch.compile`` in the same process; the two take turns. Gradients are compared with those of plain ``torch.compile``
for the same random numbers. Recomputed FLOPs are those of products and attention by PyTorch's formulas. The budget of a
row of remat is a share of what its own graph takes without recomputation, or the peak of the row that it names.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.frame import Benchmark, Column, Row, Session, Table, dump, perform
from benchmarks.page import section

HERE = Path(__file__).resolve().parent
KNOBS = tuple(k / 10 for k in range(11))
SHARES = (90, 80, 70, 60, 50, 40, 30, 20)
WAYS: dict[str, tuple[str, ...]] = {
    "eager": ("eager",),
    "plain": ("plain",),
    "knob": tuple(f"knob {solver} {budget:g}" for solver in ("dp", "ilp") for budget in KNOBS),
    "blocks": ("checkpoint blocks", "checkpoint selective"),
    "remat-eager": tuple(f"remat eager {share}%" for share in SHARES),
    "remat": tuple(f"remat {share}%" for share in SHARES),
}
"""Groups of ways, by name; any other text is a way itself, such as ``knob dp 0.35``. With ``like``, remat also gets the
peak of every way of PyTorch as its budget."""
_TIMES = 9
_SOLVE_S = 30.0
_LIMIT_S = 1200.0

TABLES = (
    Table(
        "compiled",
        "",
        (
            Column("model", "model"),
            Column("way", "way"),
            Column("peak_bytes", "peak", "bytes"),
            Column("predicted_bytes", "predicted", "bytes"),
            Column("ratio", "over plain", "number"),
            Column("step_s", "step, s", "number"),
            Column("extra_flops", "recomputed FLOPs, %", "number"),
            Column("gradients", "same gradients"),
            Column("problem", "problem"),
        ),
        named_by=("model", "way"),
    ),
)


def measured(name: str, way: str, device: str, times: int = _TIMES) -> Row:
    """One row: a model in one way, beside plain torch.compile. This is for a process of its own."""
    import torch

    from benchmarks.torch.compiled_models import MODELS

    # Passes that count are not called for what a cache serves. Compiled kernels are kept all the same.
    torch._inductor.config.fx_graph_cache = False
    torch._functorch.config.enable_autograd_cache = False
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    module.to(device)
    inputs = tuple(tensor.to(device) for tensor in inputs)
    plain = _Subject(module, inputs, "plain", device)
    ours = plain if way == "plain" else _Subject(_copy(module), inputs, way, device)
    wanted, found = plain.gradients(), ours.gradients()
    steps: list[tuple[float, float]] = []
    for _ in range(times + 2):
        steps.append((plain.seconds(), ours.seconds()))
    medians = [statistics.median(pair) for pair in zip(*steps[2:], strict=True)]
    return {
        "model": name,
        "way": way,
        "peak_bytes": ours.peak_bytes(),
        "predicted_bytes": ours.predicted_bytes,
        "ratio": medians[1] / medians[0],
        "step_s": medians[1],
        "extra_flops": 100 * (ours.flops / plain.flops - 1) if plain.flops and ours.flops else None,
        "gradients": _same(found, wanted),
        "problem": None,
    }


def _copy(module: Any) -> Any:
    import copy

    return copy.deepcopy(module)


def _same(found: Sequence[Any], wanted: Sequence[Any]) -> str:
    import torch

    if all(map(torch.equal, found, wanted)):
        return "bit for bit"
    worst = max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) for a, b in zip(found, wanted, strict=True))
    return f"within {worst:.0e}"


class _Subject:
    """A module that trains in one way."""

    def __init__(self, module: Any, inputs: tuple[Any, ...], way: str, device: str) -> None:
        self.module, self.inputs, self.device = module, inputs, device
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
            _checkpointed(self.module, selective=rest == "selective")
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
        """Trained by plan: ``60%``, ``eager 60%`` or bytes beside what is fixed: ``like ... 123``."""
        import torch

        import remat_cli as remat
        from remat_cli.plan.replay import replay

        eager = budget.startswith("eager ")
        asked = budget.removeprefix("eager ").rpartition(" ")[2]
        tensors = {*self.module.parameters(), *self.module.buffers(), *self.inputs}
        held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if not asked.endswith("%"):
            asked = str(int(asked) + held)
        options = remat.SolveOptions(time_limit_s=_SOLVE_S)
        compiler = "eager" if eager else "inductor"
        with torch._inductor.config.patch(post_grad_custom_post_pass=None if eager else _counter(self)):
            remat.fit(self.module, self.inputs, asked, options=options, compiler=compiler, cache="")
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
        import torch
        from torch.profiler import ProfilerActivity, profile

        self.module.zero_grad(set_to_none=True)
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self.step()
            torch.cuda.synchronize()
            return int(torch.cuda.max_memory_allocated() - before)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as session:
            self.step()
        live = top = 0
        for event in session.profiler.kineto_results.events():
            if event.name() == "[memory]":
                live += event.nbytes()
                top = max(top, live)
        return top


def _own(module: Any) -> Any:
    """A function of its own around ``module``: PyTorch shares compiled code between copies of a module."""
    scope = {"module": module}
    exec("def call(*inputs):\n    return module(*inputs)\n", scope)
    return scope["call"]


def _counter(subject: _Subject) -> Any:
    """A pass of Inductor that counts the FLOPs of products in what it compiles."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    from remat_cli.frontends.torch.costing.work import flops
    from remat_cli.frontends.torch.private import flop_formula

    class Counter(CustomGraphPass):
        def __call__(self, graph: Any) -> None:
            calls = [node for node in graph.nodes if node.op == "call_function"]
            subject.flops += sum(flops(node) for node in calls if flop_formula(node.target))

        def uuid(self) -> Any:
            return "counts"

        def __reduce__(self) -> Any:
            return str, ("counts",)

    return Counter()


def _checkpointed(module: Any, *, selective: bool) -> None:
    """Let every block of ``module`` be computed again in the backward pass; ``selective`` keeps products."""
    from functools import partial

    from torch.utils.checkpoint import checkpoint

    from benchmarks.torch.models import _contexts

    options = {"context_fn": _contexts} if selective else {}
    for blocks in [getattr(module, name) for name in ("blocks", "down", "up") if hasattr(module, name)]:
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)


def rows_of(
    name: str, groups: Sequence[str], device: str, say: Callable[[str], None], cache: str, limit_s: float
) -> list[Row]:
    """The rows of one model."""
    ways = [way for group in groups if group != "like" for way in WAYS.get(group, (group,))]
    rows = [_apart(name, way, device, say, cache, limit_s) for way in ways]
    if "like" in groups:
        peers = [row for row in rows if row["peak_bytes"] and not row["way"].startswith("remat")]
        for row in peers:
            way = f"remat like {row['way']} {row['peak_bytes']}"
            rows.append(_apart(name, way, device, say, cache, limit_s))
    return rows


def _apart(name: str, way: str, device: str, say: Callable[[str], None], cache: str, limit_s: float) -> Row:
    """A row that is measured in a process of its own; all share compiled kernels."""
    say(f"{name}: {way}")
    told = json.dumps([name, way, device])
    command = [sys.executable, "-m", "benchmarks.torch.compiled", "--one", told]
    failed: Row = dict.fromkeys(column.key for column in TABLES[0].columns) | {"model": name, "way": way}
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return failed | {"problem": f"not done after {limit_s:g} s"}
    if done.returncode:
        return failed | {"problem": done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else "it died"}
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def benchmark(
    names: Sequence[str], groups: Sequence[str], device: str, before: list[Row], limit_s: float, kernels: str
) -> Benchmark:
    title, _, about = (__doc__ or "").strip().partition("\n")

    def run(session: Session) -> list[Row]:
        rows = list(before)
        for name in names:
            found = rows_of(name, groups, device, session.say, kernels or str(session.folder / "kernels"), limit_s)
            told = {(row["model"], row["way"]) for row in found}
            rows = [row for row in rows if (row["model"], row["way"]) not in told]
            rows += [{"table": "compiled"} | row for row in found]
            session.keep(rows)
        return rows

    return Benchmark(f"compiled-{device}", title.rstrip("."), about.strip(), TABLES, run)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch.compiled", description=__doc__)
    parser.add_argument("--models", help="names, with commas; all if left out")
    parser.add_argument("--ways", default=",".join([*WAYS, "like"]), help="groups of ways, with commas")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--limit", type=float, default=_LIMIT_S, help="seconds for each row")
    parser.add_argument("--kernels", default="", help="folder of compiled kernels, to keep them from run to run")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.one:
        print(json.dumps(measured(*json.loads(asked.one))))
        return 0
    from benchmarks.torch.compiled_models import MODELS

    kept = HERE / "results" / f"compiled-{asked.device}.json"
    before = json.loads(kept.read_text(encoding="utf-8"))["rows"] if kept.exists() else []
    names = asked.models.split(",") if asked.models else list(MODELS)
    made = benchmark(names, asked.ways.split(","), asked.device, before, asked.limit, asked.kernels)
    result = perform(made, quick=False)
    kept.write_text(dump(result), encoding="utf-8")
    text = section(made, result)
    kept.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
