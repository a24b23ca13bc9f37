"""``remat schema``: print a JSON Schema."""

from __future__ import annotations

import click

_KINDS = ("batch", "checks", "comparison", "curve", "diff", "explanation", "graph", "graph-summary", "plan", "report")
"""The kinds of ``graph.document``, repeated here because importing that module would slow down ``--help``."""


@click.command("schema", epilog="Example: remat schema graph > graph-v1.json")
@click.argument("document", type=click.Choice(_KINDS))
def command(document: str) -> None:
    """Print the JSON Schema (2020-12) of a kind of document."""
    from remat_cli.graph.document import schema_text

    click.echo(schema_text(document), nl=False)
