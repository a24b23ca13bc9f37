"""Peaks of JAX's steps, before and after contraction and by plan: ``python -m benchmarks.jax [simulate|run]``.

Needs the extra ``remat[jax]``. Writes its tables to ``benchmarks/jax/results``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import remat_cli as remat
from benchmarks.jax.models import RUN, SIMULATED
from remat_cli.frontends.jax.capturing.capture import Loss, capture
from remat_cli.frontends.jax.capturing.export import export_built
from remat_cli.frontends.jax.capturing.functions import spec_of
from remat_cli.frontends.jax.capturing.lower import items_of
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.derive import peak

RESULTS = Path(__file__).parent / "results"


def _built(build: Callable[[], Any]) -> tuple[Loss, tuple[Any, ...]]:
    function, arguments, *options = build()
    return Loss(function, **(options[0] if options else {})), arguments


def op_by_op(loss: Loss, arguments: tuple[Any, ...]) -> tuple[int, int]:
    """Number of equations, and the peak of their values if each were an operation of its own."""
    flat = capture(loss, arguments).flat
    numbers: dict[int, int] = {}
    nodes = []
    for k, item in enumerate(items_of(flat, frozenset([*flat.places, *flat.constants]))):
        inputs = tuple(sorted(numbers[read] for read in item.reads))
        nodes.append(Node(f"n{k}", 1.0, inputs, tuple(spec_of(flat.avals[v]).bytes for v in item.makes)))
        for made in item.makes:
            numbers[made] = len(numbers)
    outputs = tuple(sorted({numbers[atom] for atom in flat.results if atom in numbers}))
    graph = Graph("raw", tuple(nodes), outputs)
    return len(nodes), peak(graph, range(len(nodes)))


def simulated(build: Callable[[], Any]) -> dict[str, Any]:
    """Peaks of values without fixed memory, in bytes."""
    loss, arguments = _built(build)
    equations, raw = op_by_op(loss, arguments)
    started = time.perf_counter()
    graph = export_built(build, "step", "benchmark", device="cpu", cost="flops", tell=print)
    exported_s = time.perf_counter() - started
    compiled = jax.jit(loss.step()).lower(*arguments).compile()
    memory = compiled.memory_analysis()
    return {
        "equations": equations,
        "operations": len(graph.nodes),
        "functions": len(graph.metadata["functions"]),
        "export_s": round(exported_s, 1),
        "op_by_op": raw,
        "contracted": peak(graph, range(len(graph.nodes))) - graph.fixed_memory,
        "xla": memory.temp_size_in_bytes + memory.output_size_in_bytes,
        "flops": graph.total_cost,
        "xla_flops": compiled.cost_analysis()["flops"],
    }


def planned(build: Callable[[], Any], budget: str) -> dict[str, Any]:
    """A plan within a budget, run: bits, peaks in bytes, seconds."""
    graph = export_built(build, "step", "benchmark", device="cpu", cost="flops", tell=print)
    try:
        solved = remat.solve(graph, budget, remat.SolveOptions(time_limit_s=20))
    except remat.RematError as error:
        return {"operations": len(graph.nodes), "error": error.message}
    ran = remat.run_plan(solved, steps=5)
    recomputed = solved.plan.claim.cost / graph.total_cost - 1
    return {
        "budget": budget,
        "operations": len(graph.nodes),
        "recomputations": ran.recomputations,
        "recomputed": recomputed,
        "identical": ran.identical,
        "no_remat": ran.reference_peak,
        "predicted": ran.memory.predicted,
        "measured": ran.memory.measured,
        "step_ms": round(ran.step_s * 1e3, 1),
        "no_remat_ms": round((ran.reference_step_s or 0) * 1e3, 1),
    }


def main(parts: list[str]) -> None:
    """Measure, and write the results."""
    RESULTS.mkdir(exist_ok=True)
    asked = {name: (build,) for name, build in SIMULATED.items()}
    for part, steps, measure in (("simulate", asked, simulated), ("run", RUN, planned)):
        if parts and part not in parts:
            continue
        found: dict[str, Any] = {}
        for name, given in steps.items():
            found[name] = measure(*given)
            print(part, name, found[name], flush=True)
        text = json.dumps({"jax": jax.__version__, "steps": found}, indent=1, sort_keys=True)
        (RESULTS / f"{part}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
