"""``remat strategies``: list the strategies."""

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.output_files import report_format
from remat_cli.errors import UsageError
from remat_cli.reports.documents import document_json
from remat_cli.reports.stages import pipeline_document, pipeline_text
from remat_cli.reports.style import Entry, listing_text
from remat_cli.spec import describe_options

_FORMATS = ("text", "json")
_EPILOG = """\b
Examples:
  remat strategies auto
  remat solve graph.json --budget 80% --strategy 'checkmate-ilp{stage_split=2}'

More: docs/strategies.md"""


@click.command("strategies", epilog=_EPILOG)
@click.argument("strategy", required=False)
@params.output_option
@params.format_option(*_FORMATS, by_suffix=True)
@params.quiet_option
@params.color_option
def command(strategy: str | None, output: str, format: str, quiet: bool, color: str) -> None:
    """List the strategies: what each does, which graphs it takes, and its options.

    With the name of one that has stages, such as auto, list these: when each runs, for how long, and why.
    """
    from remat_cli.strategies.base import IGNORABLE
    from remat_cli.strategies.registry import STRATEGIES

    format = report_format(output, _FORMATS, format)
    out = Output(color, quiet, file=output)
    if strategy is not None:
        _stages(strategy, format, out)
        return
    classes = [STRATEGIES.load(name) for name in STRATEGIES.names()]
    if format == "json":
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

    entries = []
    for c in classes:
        facts = [f"takes {c.needs.value}" if c.needs == "any DAG" else f"needs {c.needs.value}"]
        ignored = [fact for fact in IGNORABLE if fact in c.ignores]
        facts += [f"ignores {', '.join(ignored)}"] if ignored else []
        facts += ["uses a MIP solver"] if c.uses_solver else []
        notes = ["; ".join(facts), *([c.reference] if c.reference else [])]
        entries.append(Entry(c.name, c.summary, notes, describe_options(c)))
    out.report(listing_text(entries, out.style()))


def _stages(spec: str, format: str, out: Output) -> None:
    """List the stages of one strategy."""
    from remat_cli.strategies.engine import Pipelined
    from remat_cli.strategies.registry import strategy_from_spec

    strategy = strategy_from_spec(spec)
    if not isinstance(strategy, Pipelined):
        raise UsageError(f"{strategy.name} is one method, without stages", hint="remat strategies lists its options")
    if format == "json":
        out.report(document_json({"strategy": strategy.name, "stages": pipeline_document(strategy.pipeline())}))
        return
    out.report(pipeline_text(strategy.name, strategy.pipeline(), out.style()))
