"""The page of a comparison for several links: a chart and a table for each."""

from __future__ import annotations

from remat_cli.plan.linked import Linked
from remat_cli.reports.web.comparison import TABLE_NOTE, comparison_facts, overhead_chart, plans_table
from remat_cli.reports.web.page import Page, Section, render_page


def linked_page(linked: Linked, command: str, *, cdn: bool = False) -> str:
    """The page of ``linked`` as HTML.

    Args:
        linked: The comparisons.
        command: The command that makes the page.
        cdn: Whether plotly.js comes from its own network instead of from the file.
    """
    sections: list[Section] = []
    pairs = list(zip(linked.links, linked.comparisons, strict=True))
    for k, ((name, host), comparison) in enumerate(pairs):
        note = f"{host.words}. No plan can lie in the grey area: that is proven."
        sections.append(Section(f"Time against budget: {name}", note, (overhead_chart(comparison, f"link{k}", 400),)))
    for (name, _), comparison in pairs:
        sections.append(Section(f"All plans: {name}", TABLE_NOTE, table=plans_table(comparison)))
    first = linked.comparisons[0]
    facts = [fact for fact in comparison_facts(first) if fact[0] != "each cell"]
    limits = {name: value for name, value in first.limits.items() if name != "host" and value is not None}
    facts.append(("each cell", ", ".join(f"{name.removesuffix('_s')} {value}" for name, value in limits.items())))
    return render_page(
        Page(
            title=f"Links to a host on {first.graph.name or 'graph'}",
            verdict="interrupted" if linked.interrupted else "",
            good=None,
            facts=facts,
            sections=sections,
            command=command,
            problems=[problem for one in linked.comparisons for problem in one.contradictions()],
        ),
        cdn=cdn,
    )
