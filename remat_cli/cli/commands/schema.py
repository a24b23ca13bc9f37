"""``remat schema``: print a JSON Schema."""

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.output_files import report_format
from remat_cli.errors import UsageError
from remat_cli.graph.document import KINDS, newest, schema_text


@click.command("schema", epilog="Example: remat schema graph -o graph-v1.json\n\nMore: docs/graph-format.md")
@click.argument("document", type=click.Choice(KINDS))
@click.option(
    "--version",
    "version",
    metavar="N",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Its version: plans with copies are remat-plan/2.",
)
@params.output_option
@params.quiet_option
def command(document: str, version: int, output: str, quiet: bool) -> None:
    """Print the JSON Schema (2020-12) of a kind of document."""
    if version > newest(document):
        raise UsageError(f"there is no remat-{document}/{version}", hint=f"the newest is {newest(document)}")
    report_format(output, ("json",), "json")
    Output(quiet=quiet, file=output).report(schema_text(document, version))
