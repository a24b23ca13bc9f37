"""Predicted and measured time of recomputation: plans for small models of transformers and diffusers, on a CPU.

Four models of four layers, in training mode with dropout, return their loss. The budget of the first two plans of each
is what checkpointing every layer needs; one plan is made for costs in FLOPs and one for times by the rates of the
device. The third gets a quarter less, or as little as a search of some seconds can reach. "by FLOPs" and "by rates" are
the recomputed share of a step as either count predicts it. "measured" is the shortest step by plan beside the shortest
of the same graph without recomputation, in turn, over several rounds; with one thread in processor time, so that other
programs count less. "off" is the difference of prediction by rates and measurement, as a share of the measured one.
The last row of each model is checkpointing itself, beside eager mode.

Needs transformers and diffusers, which remat does not: ``python -m benchmarks.torch.times`` in an environment with
them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.frame import Benchmark, Column, Row, Session, Table, dump, perform
from benchmarks.page import section

HERE = Path(__file__).resolve().parent
_SOLVE_S = 10.0
_ROUNDS = 30
_LESS = 0.75
"""Share of the memory of checkpointing that the third plan gets."""

TABLES = (
    Table(
        "times",
        "",
        (
            Column("model", "model"),
            Column("planned", "planned for"),
            Column("budget_bytes", "budget", "bytes"),
            Column("flops", "by FLOPs, %", "number"),
            Column("rates", "by rates, %", "number"),
            Column("measured", "measured, %", "number"),
            Column("off", "off, %", "number"),
            Column("step_ms", "step without, ms", "number"),
        ),
    ),
)


_DECLARED: list[Any] = []


def _declare() -> None:
    """Declare two operators of torchvision, which transformers imports: a build for CUDA does not load on a CPU."""
    import torch

    try:
        torch.ops.torchvision.nms  # noqa: B018
    except AttributeError:
        _DECLARED.append(torch.library.Library("torchvision", "DEF"))
        _DECLARED[0].define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED[0].define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def models() -> dict[str, Callable[[], tuple[Any, dict[str, Any]]]]:
    """A model that returns its loss, and its inputs, by name."""
    import torch

    _declare()
    ids = torch.randint(0, 1000, (4, 128))

    def llama() -> tuple[Any, dict[str, Any]]:
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4}
        config = LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=1000, use_cache=False)
        return LlamaForCausalLM(config), {"input_ids": ids, "labels": ids}

    def bert() -> tuple[Any, dict[str, Any]]:
        from transformers import BertConfig, BertForMaskedLM

        sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
        config = BertConfig(**sizes, vocab_size=1000)
        return BertForMaskedLM(config), {"input_ids": ids, "labels": ids}

    def vit() -> tuple[Any, dict[str, Any]]:
        from transformers import ViTConfig, ViTForImageClassification

        sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
        config = ViTConfig(
            **sizes, image_size=64, patch_size=8, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1
        )
        config.num_labels = 100
        images = torch.randn(8, 3, 64, 64)
        return ViTForImageClassification(config), {"pixel_values": images, "labels": torch.randint(0, 100, (8,))}

    def dit() -> tuple[Any, dict[str, Any]]:
        from diffusers import DiTTransformer2DModel

        model = DiTTransformer2DModel(
            num_attention_heads=4, attention_head_dim=32, in_channels=4, num_layers=4, sample_size=32, patch_size=2
        )
        x = torch.randn(4, 4, 32, 32)
        given = {"hidden_states": x, "timestep": torch.randint(0, 1000, (4,)), "class_labels": torch.arange(4)}
        return _Denoising(model), given | {"noise": torch.randn_like(x)}

    return {"Llama": llama, "BERT": bert, "DiT": dit, "ViT": vit}


def _loss_only(module: Any) -> Any:
    """A module that returns the loss of ``module`` alone."""
    import torch

    class LossOnly(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, **inputs: Any) -> Any:
            out = self.module(**inputs)
            return out if isinstance(out, torch.Tensor) else out.loss

    return LossOnly()


def _Denoising(model: Any) -> Any:  # noqa: N802 - a module, made where torch is known
    """A diffusion model with its loss."""
    import torch

    class Denoising(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, noise: Any, **inputs: Any) -> Any:
            guess = self.model(**inputs).sample[:, : noise.shape[1]]
            return torch.nn.functional.mse_loss(guess, noise)

        def gradient_checkpointing_enable(self) -> None:
            self.model.enable_gradient_checkpointing()

    return Denoising()


@dataclass
class Subject:
    """A model in training.

    Attributes:
        make: Makes it anew, with the same weights.
        inputs: Its inputs.
    """

    make: Callable[[], Any]
    inputs: dict[str, Any]

    def step(self, module: Any) -> Callable[[], None]:
        """A training step without an optimizer."""

        def run() -> None:
            module.zero_grad(set_to_none=True)
            module(**self.inputs).backward()

        return run

    def graph(self, cost: str) -> Any:
        """The captured step."""
        import torch

        from remat_cli.api import SolveOptions, solve
        from remat_cli.frontends.torch.training.fitting import fit_module

        found = []

        def planner(graph: Any) -> Any:
            found.append(graph)
            return solve(graph, None, SolveOptions(strategy="keep-all")).plan

        torch.compiler.reset()
        fit_module(self.make(), self.inputs, planner, cost=cost)
        [graph] = found
        return graph

    def planned(self, statements: Any) -> Callable[[], None]:
        """A step by plan, compiled."""
        from remat_cli.frontends.torch.training.fitting import fit_module
        from remat_cli.plan.model import Plan

        def planner(graph: Any) -> Plan:
            from remat_cli.api import SolveOptions, solve

            return replace(solve(graph, None, SolveOptions(strategy="keep-all")).plan, statements=statements)

        step = self.step(fit_module(self.make(), self.inputs, planner, unknown="error"))
        step()
        return step


def run(session: Session) -> list[Row]:
    import torch

    rows: list[Row] = []
    for name, make in models().items():
        if session.quick and name != "Llama":
            continue
        session.say(name)
        torch.manual_seed(0)
        made, inputs = make()
        state = made.state_dict()

        def again(make: Any = make, state: Any = state) -> Any:
            module, _ = make()
            module.load_state_dict(state)
            return _loss_only(module.train())

        rows += _rows(name, Subject(again, inputs), session)
        session.keep(rows)
    return rows


def _rows(name: str, subject: Subject, session: Session) -> list[Row]:
    """The rows of a model."""
    from remat_cli.api import SolveOptions, solve
    from remat_cli.errors import RematError
    from remat_cli.plan.derive import derive
    from remat_cli.plan.model import Compute

    times, flops = subject.graph("device"), subject.graph("flops")  # before others compile: these reset the compiler
    fixed = sum(p.numel() * p.element_size() for p in [*subject.make().parameters(), *subject.inputs.values()])
    ordinary, checkpointed = subject.make(), subject.make()
    checkpointed.module.gradient_checkpointing_enable()
    like = fixed + _peak(subject.step(checkpointed))
    keep = derive(times, range(len(times.nodes)))
    plans: list[tuple[str, int, Any]] = []
    limit_s = 1.0 if session.quick else _SOLVE_S

    def plan(graph: Any, budget: int, what: str) -> bool:
        try:
            solved = solve(graph, budget, SolveOptions(strategy="search", time_limit_s=limit_s))
        except RematError as error:
            session.say(f"{name}: {error.message}")
            return False
        order = [s.node for s in solved.plan.statements if isinstance(s, Compute)]
        plans.append((what, budget, order))
        return True

    plan(flops, like, "FLOPs")
    plan(times, like, "times")
    shares = (_LESS, 0.8, 0.85, 0.9, 0.95)
    next((s for s in shares if plan(times, fixed + int(s * (like - fixed)), "times")), None)
    steps = {"eager": subject.step(ordinary), "checkpoint": subject.step(checkpointed)}
    steps["keep"] = subject.planned(keep)
    for k, (_, _, order) in enumerate(plans):
        steps[str(k)] = subject.planned(derive(times, order))
    best = _timed(steps, session.times(_ROUNDS))
    rows = [_row(name, what, budget, order, times, flops) for what, budget, order in plans]
    for k, row in enumerate(rows):
        row["measured"] = _percent(best[str(k)] / best["keep"] - 1)
        row["off"] = _percent(row["rates"] / row["measured"] - 1) if row["measured"] > 0 else None
        row["step_ms"] = round(1e3 * best["keep"], 2)
    last = dict.fromkeys((c.key for c in TABLES[0].columns), None)
    last |= {"table": "times", "model": name, "planned": "checkpointing", "budget_bytes": like}
    last |= {"measured": _percent(best["checkpoint"] / best["eager"] - 1), "step_ms": round(1e3 * best["eager"], 2)}
    return [*rows, last]


def _row(name: str, what: str, budget: int, order: Any, times: Any, flops: Any) -> Row:
    def share(graph: Any) -> float:
        return _percent(sum(graph.nodes[k].cost for k in order) / graph.total_cost - 1)

    return {"table": "times", "model": name, "planned": what, "budget_bytes": budget} | {
        "flops": share(flops),
        "rates": share(times),
    }


def _percent(share: float) -> float:
    return round(100 * share, 2)


def _timed(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """The shortest time of each step, in turn."""
    import torch

    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds):
        for key, step in steps.items():
            started = clock()
            step()
            best[key] = min(best[key], clock() - started)
    return best


def _peak(step: Callable[[], None]) -> int:
    """Most bytes that a step allocates."""
    from itertools import accumulate

    from torch.profiler import ProfilerActivity, profile

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as session:
        step()
    events = session.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), k, e.nbytes()) for k, e in enumerate(events) if e.name() == "[memory]")
    return max(accumulate((size for _, _, size in changes), initial=0))


def main(arguments: list[str] | None = None) -> int:
    quick = "--quick" in (sys.argv[1:] if arguments is None else arguments)
    title, _, about = (__doc__ or "").strip().partition("\n")
    measured = Benchmark("times", title.rstrip("."), about.strip(), TABLES, run)
    result = perform(measured, quick=quick)
    from importlib.metadata import version

    more = {name: version(name) for name in ("torch", "transformers", "diffusers")}
    result["versions"]["packages"] = result["versions"]["packages"] | more
    text = section(measured, result)
    print(text)
    if not quick:
        (HERE / "results" / "times.json").write_text(dump(result), encoding="utf-8")
        (HERE / "results" / "times.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
