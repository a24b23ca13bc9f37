"""``remat export``: write the graph of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from remat_cli.cli import params
from remat_cli.cli.formats import document_format
from remat_cli.cli.output import Output
from remat_cli.errors import UsageError

if TYPE_CHECKING:
    from remat_cli.graph.model import Graph
    from remat_cli.zoo.base import Architecture

_EPILOG = """\b
Examples:
  remat export zoo:vgg16 -o vgg16.json
  remat export 'zoo:vgg16{batch=64,backward=operator}' | remat show -
  remat export torch:train.py:build -o step.json
  remat export 'zoo:torch/gpt2{batch=4}' -o gpt2.json

`remat export --list` names the architectures and their options."""


@click.command("export", epilog=_EPILOG)
@click.argument("source", required=False)
@params.output_option
@click.option("--list", "listing", is_flag=True, help="List the architectures and their options.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="torch: device for the step.  [default: cpu]")
@click.option("--cost", metavar="MODEL", help="torch: device, flops or roofline:a100.  [default: device]")
@params.quiet_option
@params.color_option
def command(
    source: str | None,
    output: str,
    listing: bool,
    device: str | None,
    cost: str | None,
    quiet: bool,
    color: str,
) -> None:
    """Write the graph of a model.

    SOURCE names the model. zoo:NAME{option=value,...} is a known architecture. torch:FILE.py:NAME is your own model: a
    function that returns (module, inputs) or (module, inputs, loss). remat calls it under fake tensors, which allocate
    no weights. torch: needs the extra remat[torch].

    The costs of a captured step are times on the device at hand. How fast it is, is measured once, in two seconds, and
    kept; the graph says it. REMAT_RATES names a file with the rates of another device.
    """
    out = Output(color, quiet)
    if listing:
        out.report(_architectures(out))
        return
    if source is None:
        raise UsageError("there is no SOURCE", hint="name one, such as zoo:vgg16; remat export --list names all")
    from remat_cli.files import require_writable, write_text
    from remat_cli.graph.io import document_text, graph_to_document

    build = _builder(source, device, cost, out.note)
    format = document_format(output)
    require_writable(output)
    graph = build()
    write_text(output, document_text(graph_to_document(graph), format))
    if output != "-":
        out.note(f"wrote {output}: {graph.name}, {len(graph.nodes)} nodes{_timed_on(graph)}")
    for note in graph.metadata.get("notes", []) if isinstance(graph.metadata, dict) else []:
        out.note(f"note: {note}")


def _timed_on(graph: Graph) -> str:
    """Where the costs are times, for the note; nothing if they come from no machine."""
    costs = graph.metadata.get("costs") if isinstance(graph.metadata, dict) else None
    if not isinstance(costs, dict) or "machine" not in costs:
        return ""
    threads = costs.get("threads")
    return f", times on {costs['machine']}" + (f" with {threads} thread{'s' * (threads != 1)}" if threads else "")


def _builder(source: str, device: str | None, cost: str | None, tell: Callable[[str], None]) -> Callable[[], Graph]:
    """A function that makes the graph of ``source``; names and options are checked now, before it is called."""
    scheme, separator, rest = source.partition(":")
    if not separator or scheme not in {"zoo", "torch"}:
        raise UsageError(
            f'"{source}" is not a source',
            hint="write zoo:NAME, as in zoo:vgg16, or torch:FILE.py:NAME; remat export --list names all",
        )
    if scheme == "torch":
        from remat_cli.frontends.torch.capturing.export import export_torch

        return lambda: export_torch(rest, device=device or "cpu", cost=cost or "device", tell=tell)
    if device is not None or cost is not None:
        raise UsageError(
            "--device and --cost are for torch:FILE.py:NAME",
            hint="models of the zoo take them as options, as in zoo:torch/resnet50{cost=roofline:a100}",
        )
    if rest.lstrip().startswith("torch/"):
        from remat_cli.frontends.torch.architectures import build_torch_graph

        return lambda: build_torch_graph(rest, tell)
    from remat_cli.zoo.registry import build_graph

    return lambda: build_graph(rest)


def _architectures(out: Output) -> str:
    from remat_cli.frontends.torch.architectures import TORCH_ARCHITECTURES
    from remat_cli.reports.listing import Entry, listing_text
    from remat_cli.spec import describe_options
    from remat_cli.zoo.registry import ARCHITECTURES

    classes: list[type[Architecture]] = [ARCHITECTURES.load(name) for name in ARCHITECTURES.names()]
    classes += [TORCH_ARCHITECTURES.load(name) for name in TORCH_ARCHITECTURES.names()]
    entries = [
        Entry(f"zoo:{c.name}", c.summary, [c.reference] if c.reference else [], describe_options(c)) for c in classes
    ]
    return listing_text(entries, out.style())
