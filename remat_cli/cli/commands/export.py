"""``remat export``: write the graph of a model."""

from __future__ import annotations

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.errors import UsageError

_EPILOG = """\b
Examples:
  remat export zoo:vgg16 -o vgg16.json
  remat export 'zoo:vgg16{batch=64,backward=operator}' | remat show -

`remat export --list` names the architectures and their options."""


@click.command("export", epilog=_EPILOG)
@click.argument("source", required=False)
@click.option("-o", "--output", type=click.Path(allow_dash=True), default="-", show_default=True, help="Where it goes.")
@click.option("--list", "listing", is_flag=True, help="List what can be exported.")
@params.quiet_option
@params.color_option
def command(source: str | None, output: str, listing: bool, quiet: bool, color: str) -> None:
    """Write the graph of a model.

    SOURCE says where it comes from: zoo:NAME{option=value,...} is an architecture that remat knows.
    """
    out = Output(color, quiet)
    if listing:
        out.report(_architectures(out))
        return
    if source is None:
        raise UsageError("say what to export", hint="for example zoo:vgg16; remat export --list names all")
    scheme, separator, rest = source.partition(":")
    if not separator or scheme != "zoo":
        raise UsageError(
            f'"{source}" is not a source', hint="write zoo:NAME, as in zoo:vgg16; remat export --list names all"
        )
    from remat_cli.files import require_writable, write_text
    from remat_cli.graph.io import dump_document, graph_to_document
    from remat_cli.zoo.registry import build_graph

    require_writable(output)
    graph = build_graph(rest)
    write_text(output, dump_document(graph_to_document(graph)))
    if output != "-":
        out.note(f"wrote {output}: {graph.name}, {len(graph.nodes)} nodes")


def _architectures(out: Output) -> str:
    from remat_cli.reports.listing import Entry, listing_text
    from remat_cli.spec import describe_options
    from remat_cli.zoo.registry import ARCHITECTURES

    classes = [ARCHITECTURES.load(name) for name in ARCHITECTURES.names()]
    entries = [
        Entry(f"zoo:{c.name}", c.summary, [c.reference] if c.reference else [], describe_options(c)) for c in classes
    ]
    return listing_text(entries, out.style())
