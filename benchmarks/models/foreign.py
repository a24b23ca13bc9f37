"""``make foreign``: ``fit`` on a hundred models that are not in the suite, with a loss that the loop computes.

Each trains three steps of AdamW, by plan and in eager mode: ``out = model(batch)``, ``loss = criterion(out)``,
``loss.backward()``. The budget is 60, 70 or 80% of eager mode's measured peak, or the least that ``fit`` names instead.
"""

import re
import traceback
import warnings
from typing import Any

import torch

from benchmarks.models.listing import FOREIGN, Listed
from benchmarks.models.training import Subject, differing, seeded, told_by_remat
from remat_cli.errors import Infeasible, LimitReached, RematError

STEPS = 3
_SHARES = (0.6, 0.7, 0.8)
"""Budgets as shares of eager mode's peak: those of the first, second and third model, and so on."""
_TRIES = 4
"""Most budgets to ask for: the first one, and those that hints name."""


class Foreign(Subject):
    """A foreign model: the loop keeps what the module returns until the step ends, as loops do."""

    def step(self, owner: Any, module: Any) -> float:
        owner.zero_grad(set_to_none=True)
        out = module(**self.inputs) if isinstance(self.inputs, dict) else module(*self.inputs)
        loss = self.loss(out)
        loss.backward()
        return float(loss.detach())

    def trained(self, owner: Any, module: Any) -> dict[str, Any]:
        """Losses of some steps of AdamW, and parameters and buffers after them."""
        seeded()
        optimizer = torch.optim.AdamW(owner.parameters(), lr=1e-4)
        losses = []
        for _ in range(STEPS):
            losses.append(self.step(owner, module))
            optimizer.step()
        owner.zero_grad(set_to_none=True)
        kept = {"parameters": owner.named_parameters(), "buffers": owner.named_buffers()}
        return {"losses": losses} | {what: {n: t.detach().clone() for n, t in named} for what, named in kept.items()}


def answer(step: str, model: Listed, limit_s: float) -> dict[str, Any]:
    """What became of a model: ``told`` of its loss (``loss=``), or ``untold``.

    ``outcome`` is ``trained``, ``announced`` (over the budget, and something was said), ``silent`` (over, and nothing
    was), ``refused``, or ``failed``.
    """
    torch.set_num_threads(1)
    subject = Foreign(model)
    owner = subject.copied()
    wanted = subject.trained(owner, owner)
    owner = subject.copied()
    eager_bytes = subject.peak_bytes(owner, owner)
    share = _SHARES[FOREIGN.index(model) % len(_SHARES)]
    found: dict[str, Any] = {"eager_bytes": eager_bytes, "fixed_bytes": subject.fixed_bytes(), "share": share}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            _by_plan(subject, found, int(share * eager_bytes), wanted, told=step == "told", limit_s=limit_s)
        except RematError as error:
            found |= {"outcome": "refused", "problem": _told(error), "error": type(error).__name__}
        except Exception as error:  # whatever it is, a user would have met it
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
            text = " ".join(str(error).split())[:400]
            found |= {"outcome": "failed", "problem": f"{type(error).__name__} at {place}: {text}"}
    found["said"] = told_by_remat(said)
    if "peak_bytes" in found:
        found |= _judged(found)
    return found | {"ok": found["outcome"] == "trained"}


def _by_plan(subject: Foreign, found: dict[str, Any], budget: int, wanted: Any, *, told: bool, limit_s: float) -> None:
    """Fit a copy, train it, and write into ``found`` what came of it."""
    import remat_cli

    options = remat_cli.SolveOptions(time_limit_s=limit_s)
    found["tried"], named = [], set()
    while True:
        owner = subject.copied()
        found["tried"].append(budget)
        try:
            module = remat_cli.fit(
                owner, subject.inputs, budget, options=options, cache="", loss=subject.outer_loss if told else None
            )
            break
        except (Infeasible, LimitReached) as error:
            found.setdefault("hints", []).append(_told(error))
            named |= {int(number) for number in re.findall(r"(\d+) bytes\b", (error.hint or "").replace(",", ""))}
            more = [number for number in named if number > budget]
            if not more or len(found["tried"]) == _TRIES:
                raise
            budget = min(more)
        torch.compiler.reset()
    found["budget_bytes"] = budget
    trained = subject.trained(owner, module)
    found["differs"] = differing(trained, wanted)
    found["same_as"] = "" if found["differs"] else "eager"
    found["peak_bytes"] = subject.peak_bytes(owner, module)
    report = remat_cli.fitted(module)
    if report is not None:
        found |= {"predicted_bytes": report.plan_bytes, "report": str(report), "parts": report.parts}
        found["assumed"] = report.assumed
    if found["differs"]:
        torch.compiler.reset()
        owner = subject.copied()
        compiled = torch.compile(owner, backend="aot_eager", dynamic=False)
        against = differing(trained, subject.trained(owner, compiled))
        found["same_as"] = "" if against else "aot_eager"


def _judged(found: dict[str, Any]) -> dict[str, Any]:
    """How far the peak is from the budget, and what that makes of the run."""
    over = found["peak_bytes"] / found["budget_bytes"] - 1
    if not found["same_as"]:
        return {"over": over, "outcome": "failed", "problem": f"other bits than eager mode: {found['differs']}"}
    said = found["said"] or found.get("assumed")
    return {"over": over, "outcome": "trained" if over <= 0 else "announced" if said else "silent"}


def _told(error: RematError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message
