"""``remat profile``: measure the operations of a graph."""

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.output_files import document_format
from remat_cli.files import require_writable
from remat_cli.frontends.frameworks import framework_of
from remat_cli.graph.io import document_text, graph_to_document, load_graph

_EPILOG = """\b
Examples:
  remat profile step.json --device cuda -o measured.json
  remat export 'zoo:torch/unet{batch=1}' | remat profile - | remat solve - --budget 80%

More: docs/costs.md"""


@click.command("profile", epilog=_EPILOG)
@click.argument("graph", type=params.READABLE)
@click.option(
    "--device",
    type=params.DEVICE,
    default="cpu",
    show_default=True,
    help=params.DEVICE_HELP,
)
@click.option(
    "--repeats", metavar="N", type=click.IntRange(1, 1000), default=10, show_default=True, help="Samples per operation."
)
@click.option(
    "--warmup",
    metavar="N",
    type=click.IntRange(0, 1000),
    default=2,
    show_default=True,
    help="Calls before the samples.",
)
@click.option("--seed", metavar="N", type=int, default=0, show_default=True, help="Random seed.")
@click.option("--force", is_flag=True, help="Accept an export for another version or device.")
@params.library_option
@params.output_option
@params.quiet_option
@params.color_option
def command(
    graph: str,
    device: str,
    repeats: int,
    warmup: int,
    seed: int,
    force: bool,
    library: tuple[str, ...],
    output: str,
    quiet: bool,
    color: str,
) -> None:
    """Run every operation of GRAPH on random inputs on a device, and write the graph with measured costs and sizes.

    GRAPH comes from remat export with PyTorch, JAX or TensorFlow, of this minor version and for this device. Costs
    become the median time of a call in microseconds; outputs and workspace become the bytes allocated (JAX: stated by
    XLA).
    """
    out = Output(color, quiet)
    format = document_format(output)
    require_writable(output)
    loaded = load_graph(graph)
    framework = framework_of(loaded)
    measured = framework.profile(
        loaded,
        device=device,
        repeats=repeats,
        warmup=warmup,
        seed=seed,
        force=force,
        libraries=library,
        progress=None,
    )
    more = f": {len(measured.nodes)} nodes, {measured.metadata['profile']['kinds']} kinds of operations measured"
    out.write(output, document_text(graph_to_document(measured), format), more)
