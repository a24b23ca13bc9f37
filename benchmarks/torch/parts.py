"""A part of the GPU benchmark: a language model whose loss runs in parts, by plan and by hand.

The loss reads logits of all words for all tokens, the largest tensors of a step. "by hand" computes it in a function of
autograd, for so many parts of the tokens. Memory is without an optimizer. Gradients are compared with those of eager
mode: the largest difference of a tensor, as a share of its largest number.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.frame import Row, Table, columns
from benchmarks.torch.devices import TURNS
from benchmarks.torch.subject import Subject

TABLE = Table(
    "parts",
    "The loss in parts",
    (
        *columns("text", model="model", method="method"),
        *columns("bytes", budget_bytes="budget", predicted_bytes="predicted"),
        *columns("bytes", allocated_bytes="allocated", reserved_bytes="reserved"),
        *columns("number", step_s="step, s", over="over eager, %", predicted_over="predicted, %"),
        *columns("text", gradients="gradients off by", regions="regions", problem="problem"),
    ),
)
_HAND = 16
_PERCENT, _QUICK = (30, 40, 50, 60, 70, 80, 90), (60, 90)
"""Budgets of which the least that works is taken, as shares of what a step takes without recomputation."""


class _Step(Subject):
    def step(self) -> Any:
        self.owner.zero_grad(set_to_none=True)
        loss = self.module(*self.inputs)
        loss.backward()
        return loss.detach()

    def gradients(self) -> list[Any]:
        with TURNS.turn():
            self.step()
            return [p.grad.double().cpu() for p in self.owner.parameters()]


def rows_of(device: Any, left_s: Callable[[], float], say: Callable[[str], None], *, quick: bool) -> Iterator[Row]:
    """The rows of both models: eager mode, by hand, and plans with and without parts."""
    import torch

    from benchmarks.splitting.models import Language

    sizes = {"GPT-2-like": (50257, 768, 6, False), "Llama-like": (128256, 1024, 4, True)}
    for name, (words, width, depth, gated) in list(sizes.items())[: 1 if quick else None]:
        torch.manual_seed(0)
        count, size, layers, batch = (1000, 32, 1, (2, 32)) if quick else (words, width, depth, (8, 1024))
        module = Language(count, size, layers, gated=gated).to(device.name)
        inputs = tuple(torch.randint(0, count, batch, device=device.name) for _ in range(2))
        title = f"{name}, {count:,} words, {batch[0]} x {batch[1]}"
        wanted: list[Any] = []
        rows: list[Row] = []
        for way in ("plain", f"hand:{_HAND}"):
            subject = _Step(copy.deepcopy(module), inputs, device, optimizer=False)
            subject.owner.way = way
            cells = _measured(subject, wanted)
            method = "eager" if way == "plain" else f"by hand, {_HAND} parts"
            rows.append({"model": title, "method": method, "problem": ""} | cells)
            yield rows[-1] | {"over": _over(rows[-1], rows[0])}
            del subject
        for split, budget in ((False, "least"), (True, rows[1]["allocated_bytes"]), (True, "least")):
            if left_s() < 0:
                return
            say(f"{title}: {'in parts' if split else 'whole'} in {budget}")
            subject = _Step(copy.deepcopy(module), inputs, device, optimizer=False)
            percent, limit_s = (_QUICK, 1.0) if quick else (_PERCENT, 3.0)
            tried = [f"{one}%" for one in percent] if budget == "least" else [budget]
            row = _planned(subject, tried, split, limit_s, wanted)
            yield {"model": title} | row | {"over": _over(row, rows[0])}
            del subject
            device.free()


def _planned(subject: _Step, tried: list[Any], split: bool, limit_s: float, wanted: list[Any]) -> Row:
    import torch

    from remat_cli.api import SolveOptions, fit, fitted, plans_of
    from remat_cli.errors import Infeasible, LimitReached

    torch.compiler.reset()
    row: Row = {"method": f"plan {'in parts' if split else 'of whole operations'}, in ", "problem": ""}
    row["method"] += "the least found" if len(tried) > 1 else "memory as by hand"
    try:
        options = SolveOptions(time_limit_s=limit_s)
        for one in tried:
            try:
                fit(subject.owner, subject.inputs, one, options=options, split=split, cache="")
                break
            except (Infeasible, LimitReached) as error:
                if one == tried[-1]:
                    raise
                row["problem"] = f"not in {one}: {type(error).__name__}"
        told, plans = fitted(subject.owner), plans_of(subject.owner)
        assert told is not None
        origins = [plan.graph.origin for plan in plans if plan.graph.origin is not None]
        row["regions"] = "; ".join(f"{region}: {k}" for one in origins for region, k in one.parts.items())
        row |= {"predicted_bytes": told.plan_bytes, "predicted_over": round(told.extra_cost, 2)}
        row["budget_bytes"] = told.budget_bytes
        row |= _measured(subject, wanted)
    except Exception as error:  # a failure is a result, so that the other rows are still made
        row["problem"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return row


def _measured(subject: _Step, wanted: list[Any]) -> Row:
    found = subject.gradients()
    wanted += [] if wanted else found
    worst = max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) for a, b in zip(found, wanted, strict=True))
    usage = subject.usage()
    return {
        "allocated_bytes": usage.allocated,
        "reserved_bytes": usage.reserved,
        "step_s": round(subject.seconds(5), 5),
        "gradients": f"{worst:.1g}" if worst else "nothing",
    }


def _over(row: Row, eager: Row) -> float | None:
    return round(100 * (row["step_s"] / eager["step_s"] - 1), 2) if row.get("step_s") else None
