"""``remat strategies``: list the strategies."""

from __future__ import annotations

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output

_EPILOG = """\b
Examples:
  remat strategies
  remat solve graph.json --budget 80% --strategy 'checkmate-ilp{stage_split=2}'"""


@click.command("strategies", epilog=_EPILOG)
@params.format_option("text", "json")
@params.color_option
def command(format: str, color: str) -> None:
    """List the strategies: what each does, which graphs it takes, and its options."""
    from remat_cli.spec import describe_options
    from remat_cli.strategies.base import IGNORABLE
    from remat_cli.strategies.registry import STRATEGIES

    out = Output(color)
    classes = [STRATEGIES.load(name) for name in STRATEGIES.names()]
    if format == "json":
        from remat_cli.reports.jsonform import document_json

        rows = [
            {
                "name": c.name,
                "summary": c.summary,
                "reference": c.reference,
                "needs": c.needs.value,
                "minds_budget": c.minds_budget,
                "ignores": [fact for fact in IGNORABLE if fact in c.ignores],
                "uses_solver": c.uses_solver,
                "options": [dict(zip(("name", "default", "help"), o, strict=True)) for o in describe_options(c)],
            }
            for c in classes
        ]
        out.report(document_json({"strategies": rows}))
        return
    from remat_cli.reports.listing import Entry, listing_text

    entries = []
    for c in classes:
        facts = [f"takes {c.needs.value}" if c.needs == "any DAG" else f"needs {c.needs.value}"]
        ignored = [fact for fact in IGNORABLE if fact in c.ignores]
        facts += [f"ignores {', '.join(ignored)}"] if ignored else []
        facts += ["uses a MIP solver"] if c.uses_solver else []
        notes = ["; ".join(facts), *([c.reference] if c.reference else [])]
        entries.append(Entry(c.name, c.summary, notes, describe_options(c)))
    out.report(listing_text(entries, out.style()))
