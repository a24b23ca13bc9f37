"""Predicted and measured time of recomputation: plans for small models of transformers and diffusers, on a CPU.

Four models of four layers, in training mode with dropout, return their loss. The budget of the first two plans of each
is what checkpointing every layer needs; one plan is made for costs in FLOPs and one for times by the rates of the
device, which are measured before each model. The third gets less. "by FLOPs" is the recomputed share of the FLOPs of a
step. "predicted" is the time of all recomputation by the rates. "measured" is how much longer a step by plan takes, as
`remat run` runs it, than the one without recomputation in the same round, as the median of several rounds; with one
thread in processor time, so that other programs count less. The last row of each model is checkpointing itself, beside
eager mode.

The memory that a step frees stays with the process here (`MALLOC_TRIM_THRESHOLD_`). Otherwise glibc returns it to the
system, and the next step has to get it again, page by page: then a step that needs more memory takes longer for that
alone, and recomputation seems to cost less than it does.

Needs transformers and diffusers, which remat does not.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns, dump
from benchmarks.lanes import Cell, rows_of
from benchmarks.measure import call_or_fail
from benchmarks.torch.devices import allocated_peak

_NAMES = ("Llama", "BERT", "DiT", "ViT")
_SOLVE_S = 10.0
_MOST_S = 1200.0
"""Seconds after which the process of one model is killed. Untuned."""
_ROUNDS = 30
_LESS = 0.75
"""Share of the memory of checkpointing that the third plan gets."""
_KEEPING = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}
"""Settings of glibc with which a process keeps the memory that it frees, up to 4 GB."""

_FOUND = ("flops", "predicted", "measured", "ratio", "share", "step_ms")
"""The columns that a row has no value for if there is no plan."""

TABLES = (
    Table(
        "times",
        "",
        (
            *columns("text", model="model", planned="planned for"),
            Column("budget_bytes", "budget", "bytes"),
            *columns("number", flops="by FLOPs, %", predicted="predicted, ms", measured="measured, ms"),
            *columns("number", ratio="predicted/measured", share="measured, % of a step", step_ms="step without, ms"),
        ),
        named_by=("model", "planned", "budget_bytes"),
    ),
)


def models() -> dict[str, Callable[[], tuple[Any, dict[str, Any]]]]:
    """A model that returns its loss, and its inputs, by name."""
    import torch

    from benchmarks.models import operators  # noqa: F401 - has to come before torchvision, which transformers imports

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

        def gradient_checkpointing_disable(self) -> None:
            self.model.disable_gradient_checkpointing()

    return Denoising()


def run(session: Session) -> list[Row]:
    asked = {
        "folder": str(session.folder),
        "rounds": session.times(_ROUNDS),
        "solve_s": 1.0 if session.quick else _SOLVE_S,
    }

    def rows(name: str) -> list[Row]:
        place = "benchmarks.torch.times:measured"
        measured: list[Row] = call_or_fail(place, limit_s=_MOST_S, variables=_KEEPING, name=name, **asked).values
        return measured

    names = _NAMES[: session.times(len(_NAMES))]
    return rows_of(session, [Cell(name, partial(rows, name)) for name in names])


def measured(name: str, folder: str, rounds: int, solve_s: float) -> list[Row]:
    """The rows of one model."""
    import torch

    from remat_cli.frontends.torch.measure.rates import RATES

    os.environ[RATES] = _rates(Path(folder))
    torch.manual_seed(0)
    module, inputs = models()[name]()
    return _rows(name, _loss_only(module.train()), inputs, rounds, solve_s)


def _rates(folder: Path) -> str:
    """A file with the rates of this moment: the same machine may be a tenth slower on another day."""
    from remat_cli.frontends.rates import Rates, processor
    from remat_cli.frontends.torch.measure.rates import measure

    path = folder / "rates.json"
    path.write_text(dump(Rates(processor(), *measure("cpu")).document()), encoding="utf-8")
    return str(path)


def _rows(name: str, module: Any, inputs: dict[str, Any], rounds: int, limit_s: float) -> list[Row]:
    """The rows of a model, each plan from a search of ``limit_s`` seconds."""
    from remat_cli.plan.derive import derive

    def eager() -> None:
        module.zero_grad(set_to_none=True)
        module(**inputs).backward()

    def checkpointed() -> None:
        module.module.gradient_checkpointing_enable()
        eager()
        module.module.gradient_checkpointing_disable()

    times, flops = _graphs(module, inputs)
    checkpointed()
    activations = allocated_peak(checkpointed)
    like = times.fixed_memory + activations
    plans = [("FLOPs", like, _order(flops, like, limit_s)), ("times", like, _order(times, like, limit_s))]
    for share in (_LESS, 0.85, 0.95):
        budget = times.fixed_memory + int(share * activations)
        order = _order(times, budget, limit_s)
        if order is not None:
            plans.append(("times", budget, order))
            break
    steps: dict[str, Callable[[], Any]] = {"eager": eager, "checkpoint": checkpointed}
    for key, order in {
        "keep": range(len(times.nodes)),
        **{str(k): order for k, (*_, order) in enumerate(plans)},
    }.items():
        if order is not None:
            steps[key] = _step(times, derive(times, order))
    took = _timed(steps, rounds)
    rows = []
    for k, (what, budget, order) in enumerate(plans):
        row: Row = {"table": "times", "model": name, "planned": what, "budget_bytes": budget} | dict.fromkeys(_FOUND)
        if order is not None:
            predicted_ms = (sum(times.nodes[node].cost for node in order) - times.total_cost) / 1e3
            row |= {"flops": _share(flops, order), "predicted": round(predicted_ms, 2)}
            row |= _longer(took[str(k)], took["keep"])
            row["ratio"] = round(predicted_ms / row["measured"], 2) if row["measured"] else None
        rows.append(row)
    last: Row = {"table": "times", "model": name, "planned": "checkpointing", "budget_bytes": like}
    return [*rows, last | dict.fromkeys(_FOUND) | _longer(took["checkpoint"], took["eager"])]


def _longer(step_s: list[float], without_s: list[float]) -> Row:
    """How much longer a step takes than one without recomputation, by the rounds of both."""
    again_s = median(one - other for one, other in zip(step_s, without_s, strict=True))
    plain_s = median(without_s)
    return {
        "measured": round(1e3 * again_s, 2),
        "share": _percent(again_s / plain_s),
        "step_ms": round(1e3 * plain_s, 2),
    }


def _graphs(module: Any, inputs: dict[str, Any]) -> tuple[Any, Any]:
    """The captured step with costs in time, and in FLOPs; one capture."""
    import torch

    from remat_cli.api import SolveOptions, solve, unfit
    from remat_cli.frontends.aten.program import TANGENTS
    from remat_cli.frontends.torch.measure import costs
    from remat_cli.frontends.torch.train import fitting

    found, counted = [], []
    model = costs.cost_model("device")

    def cost(node: Any) -> float:
        counted.append(costs.flops(node))
        return model.cost(node)

    def planner(graph: Any) -> Any:
        found.append(graph)
        return solve(graph, None, SolveOptions(strategy="keep-all")).plan

    kept, fitting.cost_model = fitting.cost_model, lambda *given: replace(model, cost=cost)
    try:
        torch.compiler.reset()
        unfit(fitting.fit_module(module, inputs, planner))
    finally:
        fitting.cost_model = kept
    [graph] = found
    left = iter(counted)
    nodes = [replace(node, cost=1.0 if node.payload["call"] == TANGENTS else next(left)) for node in graph.nodes]
    assert next(left, None) is None
    return graph, replace(graph, nodes=tuple(nodes), cost_unit="flops")


def _order(graph: Any, budget: int, limit_s: float) -> list[int] | None:
    """The computations of a plan within the budget; None if none is found."""
    from remat_cli.api import SolveOptions, solve
    from remat_cli.errors import RematError
    from remat_cli.plan.model import Compute

    try:
        plan = solve(graph, budget, SolveOptions(strategy="search", time_limit_s=limit_s)).plan
    except RematError:
        return None
    return [statement.node for statement in plan.statements if isinstance(statement, Compute)]


def _step(graph: Any, statements: Any) -> Callable[[], Any]:
    """A step by plan, as ``remat run`` runs it: with random weights and inputs."""
    import torch

    from remat_cli.frontends.torch.document import read_step
    from remat_cli.frontends.torch.execute.program import program
    from remat_cli.frontends.torch.measure.operations import place_tensor, seeded

    function = program(graph, statements, "cpu")
    generator = seeded("cpu", 0)
    places = [place_tensor(place, "cpu", generator) for place in read_step(graph).given]
    return lambda: function.run(places, lambda _: torch.ones(()))


def _share(graph: Any, order: list[int]) -> float:
    return _percent(sum(graph.nodes[k].cost for k in order) / graph.total_cost - 1)


def _percent(share: float) -> float:
    return round(100 * share, 2)


def _timed(steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """The times of each step, one in each round."""
    import torch

    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    found: dict[str, list[float]] = {key: [] for key in steps}
    for _ in range(rounds):
        for key, step in steps.items():
            started = clock()
            step()
            found[key].append(clock() - started)
    return found
