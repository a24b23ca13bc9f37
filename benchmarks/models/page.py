"""The page of the suite: totals, a row per model, and every refusal with its reason."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.frame import Column, Table, columns
from benchmarks.models.listing import LIMIT_S, MODELS, Listed
from benchmarks.page import measured_on, written, written_table

_HEAD = """\
# Real models of torchvision, timm, transformers and diffusers

Made by `make models` from `models.json`; do not edit. Small sizes, random weights, training mode, on a CPU.

*export*: nodes of the graph that `remat export torch:FILE.py:NAME` writes; where graph breaks divide the step, those
of all its parts, and plans are of the largest. *60%*, *80%*: `remat solve` with these shares of the peak without
recomputation. The limit of the last run was {limit}, and the longest search took {longest}. Recomputation is a share
of the cost, with `*` where the plan is not proven optimal, and "too small" where no plan can keep to the budget, since
parameters and their gradients take more. *run*: `remat run` of these plans: all results bit for bit those
without recomputation, and the measured peak the predicted one to the byte.
*fit*: three steps of AdamW by `fit` with `cost="measured"` and a budget of 80% of what eager mode needs (90% or 100%
where no plan can keep to less): the peak by the events of PyTorch's profiler against that budget, and with what
losses, gradients and buffers agree bit for bit. *checkpointing*: the library's own at its own peak against a plan for
that peak: recomputed FLOPs by PyTorch's formulas.
"""

_ROWS = Table(
    "models",
    "",
    (
        *columns("text", family="family", model="model", library="library", export="export", solve60="60%"),
        *columns("text", solve80="80%", run="run"),
        Column("eager", "eager needs", "bytes"),
        *columns("text", budget="fit: budget", over="peak over budget", same="same bits as"),
        *columns("text", checkpoint="checkpointing: FLOPs", plan="plan: FLOPs"),
    ),
)
_REFUSALS = Table(
    "refusals",
    "",
    columns("text", model="model", step="step", reason="reason", fullgraph="torch.compile(fullgraph=True)"),
)


def page(document: Mapping[str, Any]) -> str:
    """The page of all answers."""
    rows = {model: document["rows"][model.name] for model in MODELS if model.name in document["rows"]}
    longest_s = max(
        (row[step].get("seconds", 0) for row in rows.values() for step in ("solve60", "solve80") if step in row),
        default=0,
    )
    limit = f"{document.get('limit_s', LIMIT_S):g} s"
    parts = [_HEAD.format(limit=limit, longest=f"{longest_s:.0f} s"), "## Totals\n", _totals(list(rows.values()))]
    commits = sorted(
        {
            answer["commit"]
            for row in rows.values()
            for answer in row.values()
            if isinstance(answer, dict) and "commit" in answer
        }
    )
    parts.append(f"The answers were made at {len(commits)} commits: {', '.join(commits)}.\n")
    parts += ["## Models\n", written_table(_ROWS, [_row(model, row) for model, row in rows.items()])]
    refusals = [refusal for model, row in rows.items() for refusal in _refusals(model, row)]
    if refusals:
        parts += ["## Refusals and failures\n", written_table(_REFUSALS, refusals)]
    if "machine" in document:
        parts.append(f"{document['date']} at commit {document['versions']['commit']}.\n")
        parts.append(f"Measured on: {measured_on(document)}\n")
    return "\n".join(parts)


def _totals(rows: Sequence[Mapping[str, Any]]) -> str:
    def count(step: str, key: str = "ok") -> str:
        asked = [row[step] for row in rows if step in row]
        return f"{sum(bool(answer.get(key)) for answer in asked)} of {len(asked)}"

    refused = [row for row in rows if not row.get("export", {"ok": True})["ok"]]
    parted = [row for row in rows if row.get("export", {}).get("parts", 1) > 1]

    def both(some: Sequence[Mapping[str, Any]]) -> int:
        return sum(not row.get("fullgraph", {"ok": True})["ok"] for row in some)

    ran = [row[step] for row in rows for step in ("run60", "run80") if step in row]
    right = sum(bool(answer.get("identical") and answer.get("exact")) for answer in ran)
    lines = [
        f"- models measured: {len(rows)} of the {len(MODELS)} on the list; `make models` measures the others too",
        f"- exported: {count('export')}, {len(parted)} of them in parts",
        f"- `torch.compile(fullgraph=True)` refuses {both(refused)} of the {len(refused)} refused, "
        f"and {both(parted)} of the {len(parted)} in parts",
        f"- plans at 60%: {count('solve60')}; at 80%: {count('solve80')}",
        f"- runs bit-identical and predicted to the byte: {right} of {len(ran)}",
        f"- trained with the bits of eager mode or aot_eager: {count('fit')}, of eager: {count('fit', 'as_eager')}",
        f"- trained within the budget: {count('fit', 'within')}",
    ]
    pairs = [row["checkpoint"] for row in rows if "flops" in row.get("checkpoint", {})]
    if pairs:
        theirs, ours = (statistics.median(answer[key] for answer in pairs) for key in ("checkpoint_flops", "flops"))
        lines.append(
            f"- at the peak of gradient checkpointing ({len(pairs)} models): recomputed FLOPs {theirs:.1%} with it and "
            f"{ours:.1%} by plan (medians)"
        )
    return "\n".join(lines) + "\n"


def _row(model: Listed, row: Mapping[str, Any]) -> dict[str, Any]:
    fit, checkpoint = row.get("fit", {}), row.get("checkpoint", {})
    runs = [row[step] for step in ("run60", "run80") if step in row]
    right = all(answer.get("identical") and answer.get("exact") for answer in runs)
    budget = ""
    if "budget_bytes" in fit:
        budget = f"{written(fit['budget_bytes'], Column('', '', 'bytes'))} ({fit['share']:.0%})"
    return {
        "family": model.family,
        "model": model.name,
        "library": model.library,
        "export": _export(row.get("export")),
        "solve60": _solved(row.get("solve60")),
        "solve80": _solved(row.get("solve80")),
        "run": "" if not runs else "exact" if right else "**no**",
        "eager": fit.get("eager_bytes"),
        "budget": budget or ("" if fit.get("ok", True) else "**failed**"),
        "over": f"{fit['over']:+.2%}" if "over" in fit else "",
        "same": ("**none**" if fit["differs"] else fit["same_as"]) if "differs" in fit else "",
        "checkpoint": f"{checkpoint['checkpoint_flops']:.1%}" if "checkpoint_flops" in checkpoint else "",
        "plan": f"{checkpoint['flops']:.1%}" if "flops" in checkpoint else "",
    }


def _export(answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return ""
    parts = answer.get("parts", 1)
    return (f"{answer['nodes']:,}" + (f" in {parts} parts" if parts > 1 else "")) if answer["ok"] else "refused"


def _solved(answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return ""
    if not answer["ok"]:
        return "too small" if too_small(answer) else "**no plan**"
    return f"{answer['overhead']:.2%}" + ("" if answer["status"] == "optimal" else "*")


def too_small(answer: Mapping[str, Any]) -> bool:
    """Whether a budget was refused with a proof that no plan fits it."""
    return "no plan fits a budget" in answer["problem"]


def _refusals(model: Listed, row: Mapping[str, Any]) -> list[dict[str, str]]:
    found = []
    for step, answer in row.items():
        problem = answer.get("problem") or answer.get("differs") or ""
        if step == "fit" and answer["ok"] and not answer["within"]:
            unplanned = [text for text in answer["said"] if "without" in text] or answer["said"]
            problem = f"{answer['over']:+.1%} over the budget; {' '.join(unplanned)}"
            found.append({"model": model.name, "step": "fit", "reason": problem[:400], "fullgraph": ""})
        if step == "fullgraph" or answer["ok"] or (step.startswith("solve") and too_small(answer)):
            continue
        told = ""
        if step == "export" and "fullgraph" in row:
            theirs = row["fullgraph"]
            told = "takes it" if theirs["ok"] else f"{theirs.get('graphs', '?')} graphs: {theirs['problem'][:200]}"
        found.append({"model": model.name, "step": step, "reason": problem[:400], "fullgraph": told})
    return found
