"""The page of the foreign models: totals, a row per model, and whatever is not as it should be."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.frame import Column, Table, columns
from benchmarks.models.listing import FOREIGN, Listed
from benchmarks.page import measured_on, written_table

_HEAD = """\
# A hundred models that are not in the suite

Made by `make foreign` from `foreign.json`; do not edit. Small sizes, random weights, training mode, one core of a CPU.

Three steps of AdamW as loops are written: `out = model(batch)`, `loss = criterion(out)`, `loss.backward()`. `fit` has
its default costs; the limit of the last run was {limit} for each search, and that of older rows at most 60 s. The
budget is 60, 70 or 80% of eager mode's measured peak in turn; where
no plan fits that, the least number of bytes that the refusal names (`*`). *predicted*: the peak of the plan, with
parameters and inputs. *peak*: the largest sum of what PyTorch's allocator handed out in a step, by the events of the
profiler, with parameters and inputs. *bits*: whose losses, parameters and buffers after the third step are the same.
*told*: `fit` knows the loss (`loss=`); *untold*: it does not, and counts what a usual one takes.

Outcomes: *trained*, within the budget; *announced*, over the budget after a warning or an assumption in the report;
*silent*, over the budget and nothing was said; *refused*, with an error before training; *failed* otherwise.
"""
STEPS = ("told", "untold")
_ROWS = Table(
    "foreign",
    "",
    (
        *columns("text", family="family", model="model", library="library"),
        Column("eager", "eager needs", "bytes"),
        Column("budget", "budget"),
        Column("predicted", "predicted", "bytes"),
        *columns("text", over="peak over budget", bits="bits", told="told", untold_over="untold: over"),
        *columns("text", untold="untold"),
    ),
)
_NOTES = Table(
    "notes",
    "",
    columns("text", model="model", step="loss", outcome="outcome", reason="what was said"),
)


def page(document: Mapping[str, Any]) -> str:
    """The page of all answers."""
    rows = {model: document["rows"][model.name] for model in FOREIGN if model.name in document["rows"]}
    parts = [_HEAD.format(limit=f"{document.get('limit_s', 60):g} s"), "## Totals\n"]
    parts += [_totals(list(rows.values())), "## Models\n"]
    known = any("untold" in row for row in rows.values())
    columns = tuple(column for column in _ROWS.columns if known or not column.key.startswith("untold"))
    parts.append(written_table(replace(_ROWS, columns=columns), [_row(model, row) for model, row in rows.items()]))
    notes = [note for model, row in rows.items() for note in _notes(model, row)]
    if notes:
        parts += ["## What did not stay within its budget\n", written_table(_NOTES, notes)]
    commits = sorted({answer["commit"] for row in rows.values() for answer in row.values() if "commit" in answer})
    parts.append(f"The answers were made at {len(commits)} commits: {', '.join(commits)}.\n")
    if "machine" in document:
        parts.append(f"{document['date']} at commit {document['versions']['commit']}.\n")
        parts.append(f"Measured on: {measured_on(document)}\n")
    return "\n".join(parts)


def _outcome(answer: Mapping[str, Any]) -> str:
    return str(answer.get("outcome", "failed"))


def _totals(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"- models measured: {len(rows)} of {len(FOREIGN)}"]
    for step in STEPS:
        answers = [row[step] for row in rows if step in row]
        if not answers:
            continue
        counts = Counter(map(_outcome, answers))
        told = ", ".join(f"{outcome} {counts[outcome]}" for outcome in _OUTCOMES if counts[outcome])
        bits = Counter(answer["same_as"] for answer in answers if "same_as" in answer)
        over = [answer["over"] for answer in answers if answer.get("over", 0) > 0]
        lines.append(
            f"- loss {step}: {told}; bits of eager mode {bits['eager']}, of aot_eager {bits['aot_eager']}, "
            f"others {bits['']}; largest excess {max(over, default=0):.1%}"
        )
    return "\n".join(lines) + "\n"


_OUTCOMES = ("trained", "announced", "silent", "refused", "failed")


def _row(model: Listed, row: Mapping[str, Any]) -> dict[str, Any]:
    told, untold = row.get("told", {}), row.get("untold", {})
    return {
        "family": model.family,
        "model": model.name,
        "library": model.library,
        "eager": told.get("eager_bytes"),
        "budget": f"{told['budget_bytes'] / told['eager_bytes']:.0%}" + "*" * (len(told["tried"]) > 1)
        if "budget_bytes" in told
        else "",
        "predicted": told.get("predicted_bytes"),
        "over": _over(told),
        "bits": told.get("same_as", "") or ("**none**" if told.get("differs") else ""),
        "told": _marked(told),
        "untold_over": _over(untold),
        "untold": _marked(untold),
    }


def _over(answer: Mapping[str, Any]) -> str:
    return f"{answer['over']:+.2%}" if "over" in answer else ""


def _marked(answer: Mapping[str, Any]) -> str:
    if not answer:
        return ""
    outcome = _outcome(answer)
    return outcome if outcome == "trained" else f"**{outcome}**"


def _notes(model: Listed, row: Mapping[str, Any]) -> list[dict[str, str]]:
    notes = []
    for step in STEPS:
        answer = row.get(step, {"outcome": "trained"})
        outcome = _outcome(answer)
        if outcome == "trained":
            continue
        over = f"{answer['over']:+.1%} over the budget" if "over" in answer else ""
        said = [answer.get("problem", ""), over, *answer.get("said", []), answer.get("assumed", "")]
        reason = "; ".join(part for part in said if part)
        notes.append({"model": model.name, "step": step, "outcome": outcome, "reason": reason[:400]})
    return notes
