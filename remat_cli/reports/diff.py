"""The report on the difference of two plans: as text, as Markdown, as annotations, and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from remat_cli.plan.check import Report
from remat_cli.plan.difference import Difference, Recomputation
from remat_cli.plan.replay import Finding
from remat_cli.reports.checks import command
from remat_cli.reports.style import Style, render, title
from remat_cli.reports.table import Column, Table, markdown_escaped, text_columns
from remat_cli.reports.words import cost_words, count, percent_change, verdict
from remat_cli.units import format_bytes, format_percent

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN_ROWS = 8
"""Nodes of each kind that are listed; the others are counted."""


def headline(difference: Difference) -> str:
    """The main changes in one line: ``peak -11.0%, cost +1.2%, 3 nodes newly recomputed``."""
    same = {"="} == {percent_change(difference.peak_increase), percent_change(difference.cost_increase)}
    if same and not _kinds(difference):
        return "peak, cost and recomputed nodes are the same"
    parts = [f"peak {_change_words(difference.peak_increase)}"]
    if difference.same_unit:
        parts.append(f"cost {_change_words(difference.cost_increase)}")
    parts += [f"{count(len(nodes), 'node')} {kind}" for kind, nodes in _kinds(difference)]
    return ", ".join(parts)


def diff_text(difference: Difference, findings: Sequence[Finding], style: Style, *, tolerant: bool = True) -> str:
    """The two plans side by side, the nodes with another number of computations, and why the new plan fails.

    Without any tolerance (``tolerant``), a plan that got worse passes, but without a tick.
    """
    from rich.text import Text

    mark, colour = style.verdict(not findings), "bold red" if findings else "bold green"
    if not findings and difference.worse and not tolerant:
        mark, colour = "!", "bold yellow"
    parts: list[RenderableType] = [Text.assemble((f"{mark} {headline(difference)}", colour))]
    parts += [Text(f"  {finding.message}", style="red") for finding in findings]
    if difference.other_graph is not None:
        parts.append(Text(style.clean(f"  the plans are for different graphs: {difference.other_graph}")))
    parts += ["", _facts_table(difference, "old", "new").text(style)]
    columns = text_columns("node", "times computed", "extra cost")
    for kind, nodes in _kinds(difference):
        parts.append(title(f"{kind.capitalize()}", f": {count(len(nodes), 'node')}"))
        rows = [_node_row(r, difference, style) for r in nodes[:SHOWN_ROWS]]
        parts.append(Table(columns, rows).text(style, head=False))
        if rest := nodes[SHOWN_ROWS:]:
            parts.append(Text(f"  and {len(rest):,} more"))
    return render(style, *parts)


def diff_markdown(
    difference: Difference, findings: Sequence[Finding], *, old_path: str, new_path: str, tolerant: bool = True
) -> str:
    """The same as GitHub-flavoured Markdown, to paste into a pull request or a job summary."""
    mark = "❌" if findings else "⚠️" if difference.worse and not tolerant else "✅"
    lines = [f"### {mark} {markdown_escaped(new_path)}: {headline(difference)}", ""]
    lines += [f"- {markdown_escaped(finding.message)}" for finding in findings]
    if difference.other_graph is not None:
        lines.append(f"- the plans are for different graphs: {markdown_escaped(difference.other_graph)}")
    if lines[-1]:
        lines.append("")
    text = "\n".join(lines) + "\n" + _facts_table(difference, old_path, new_path).markdown()
    for kind, nodes in _kinds(difference):
        text += f"\n<details><summary>{count(len(nodes), 'node')} {kind}</summary>\n\n"
        text += _nodes_table(nodes, difference).markdown() + "\n</details>\n"
    return text


def diff_github(difference: Difference, findings: Sequence[Finding], *, new_path: str) -> str:
    """An error annotation for every reason why the new plan fails, or a notice that it passes."""
    lines = [command("error", f.message, file=new_path, title=f"remat diff: {f.code}") for f in findings]
    if difference.other_graph is not None:
        words = f"the plans are for different graphs: {difference.other_graph}"
        lines.append(command("warning", words, file=new_path, title="remat diff"))
    lines.append(command("notice", headline(difference), file=new_path, title="remat diff"))
    return "".join(f"{line}\n" for line in lines)


def diff_document(
    difference: Difference, findings: Sequence[Finding], *, old_path: str, new_path: str
) -> dict[str, Any]:
    """The ``remat-diff/1`` document (schemas/diff-v1.json)."""
    kinds = {"added": difference.added, "removed": difference.removed, "changed": difference.changed}
    return {
        "schema": "remat-diff/1",
        "ok": not findings,
        "beyond": [{"code": f.code, "message": f.message} for f in findings],
        "same_graph": difference.other_graph is None,
        "other_graph": difference.other_graph,
        "cost_unit": difference.new.graph.cost_unit if difference.same_unit else None,
        "old": _side(difference.old, old_path),
        "new": _side(difference.new, new_path),
        "peak_increase": difference.peak_increase,
        "cost_increase": difference.cost_increase,
        "recomputed": {
            kind: [
                {"node": r.node, "old_times": r.old_times, "new_times": r.new_times, "extra_cost": r.extra_cost}
                for r in nodes
            ]
            for kind, nodes in kinds.items()
        },
    }


def _side(report: Report, path: str) -> dict[str, Any]:
    claim = report.claim
    return {
        "path": path,
        "valid": report.valid,
        "within_budget": None if report.budget_bytes is None else report.within_budget,
        "budget": report.budget_bytes,
        "peak_memory": report.replay.peak_bytes,
        "cost": report.replay.time,
        "overhead": report.overhead if report.graph.no_remat_cost > 0 else None,
        "computes": sum(report.replay.times),
        "strategy": report.strategy,
        "claim": {"status": claim.status.value, "lower_bound": claim.lower_bound, "scope": claim.scope.value},
    }


def _facts_table(difference: Difference, old_title: str, new_title: str) -> Table[Sequence[str]]:
    """The compared facts: name, old, new, and the change if it is a number."""
    old, new = difference.old, difference.new
    rows: list[tuple[str, ...]] = []
    sides = (old, new)
    if old.graph.name != new.graph.name:
        rows.append(("graph", old.graph.name, new.graph.name, ""))
    rows.append(("verdict", verdict(old), verdict(new), ""))
    rows.append(("budget", *("none" if r.budget_bytes is None else format_bytes(r.budget_bytes) for r in sides), ""))
    rows.append(("peak", *(format_bytes(r.replay.peak_bytes) for r in sides), percent_change(difference.peak_increase)))
    costs = [cost_words(r.replay.time, r.graph.cost_unit) for r in sides]
    rows.append(("cost", *costs, percent_change(difference.cost_increase) if difference.same_unit else ""))
    rows.append(("overhead", *(format_percent(r.overhead if r.recomputed else 0.0) for r in sides), ""))
    times = [sum(r.replay.times) for r in sides]
    more = times[1] - times[0]
    rows.append(("computations", *(f"{n:,}" for n in times), f"{more:+,}" if more else "="))
    rows.append(("made by", old.strategy, new.strategy, ""))
    rows.append(("claim", *(f"{r.claim.status.value}, {r.claim.scope.value}" for r in sides), ""))
    bounds = [(r.claim.lower_bound, r.graph.cost_unit) for r in sides]
    rows.append(("lower bound", *(cost_words(bound, unit) if bound > 0 else "none" for bound, unit in bounds), ""))
    return Table(text_columns("", old_title, new_title, "change"), rows)


def _nodes_table(nodes: Sequence[Recomputation], difference: Difference) -> Table[Recomputation]:
    """How often each node is computed in both plans, and what that costs."""
    columns: list[Column[Recomputation]] = [
        Column("node", attrgetter("node"), numeric=False),
        Column("old", attrgetter("old_times")),
        Column("new", attrgetter("new_times")),
        Column("cost", lambda r: _extra(r, difference)),
    ]
    return Table(columns, nodes)


def _kinds(difference: Difference) -> list[tuple[str, tuple[Recomputation, ...]]]:
    kinds = (
        ("newly recomputed", difference.added),
        ("no longer recomputed", difference.removed),
        ("recomputed more or less often", difference.changed),
    )
    return [(kind, nodes) for kind, nodes in kinds if nodes]


def _node_row(r: Recomputation, difference: Difference, style: Style) -> tuple[str, ...]:
    arrow = style.glyph("→", "->")
    # A valid plan computes every node of its graph: no computation means that the graph has no such node.
    before = f"{r.old_times} {arrow} " if r.old_times else "new: "
    after = f"{r.new_times} times" if r.new_times else "gone"
    return (r.node, before + after, _extra(r, difference))


def _extra(r: Recomputation, difference: Difference) -> str:
    """The extra cost, if both plans have the same unit."""
    if not difference.same_unit:
        return ""
    sign = "+" if r.extra_cost >= 0 else "-"
    return sign + cost_words(abs(r.extra_cost), difference.new.graph.cost_unit)


def _change_words(ratio: float | None) -> str:
    return {"=": "the same", "": "from nothing"}.get(words := percent_change(ratio), words)
