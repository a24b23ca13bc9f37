"""``remat export``: write the graph of a model."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.output_files import document_format
from remat_cli.errors import UsageError
from remat_cli.files import require_writable
from remat_cli.frontends.frameworks import FRAMEWORKS, OFF_ON
from remat_cli.frontends.zoo import zoo_costs
from remat_cli.graph.io import document_text, graph_to_document
from remat_cli.graph.model import Graph
from remat_cli.reports.graph import parts_text
from remat_cli.reports.style import Entry, listing_text
from remat_cli.spec import describe_options
from remat_cli.zoo.base import Architecture
from remat_cli.zoo.registry import ARCHITECTURES, build_graph

_HELP = """Write the graph of a training step of a model.

SOURCE is one of these; on the right is what the function NAME returns:

\b
  zoo:NAME{option=value,...}  a known architecture: see --list
  torch:FILE.py:NAME          (module, inputs), (module, inputs, loss)
  jax:FILE.py:NAME            (loss, arguments), (loss, arguments, options)
  tf:FILE.py:NAME             (model, batch), (model, batch, loss), (step, inputs)

torch:, jax: and tf: need the extra remat[torch], remat[jax] or remat[tensorflow]. If PyTorch captures the step only in
parts, -o step.json writes step.0.json, step.1.json and so on. --cost device measures this machine once, or takes its
speed from the file that REMAT_RATES names."""
_EPILOG = """\b
Examples:
  remat export zoo:vgg16 -o vgg16.json
  remat export 'zoo:vgg16{batch=64,backward=operator}' | remat show -
  remat export 'zoo:torch/gpt2{batch=4}' -o gpt2.json
  remat export zoo:resnet50 --cost roofline:v100 -o resnet50.json
  remat export torch:train.py:build -o step.json
  remat export torch:train.py:build --world 256 --interconnect 50GB/s --cost roofline:h100 -o rank.json

More: docs/files.md, docs/costs.md, docs/splitting.md, docs/sharded.md, docs/inductor.md, docs/jax.md,
docs/tensorflow.md"""


def _sources(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The architectures of the zoo, which alone are known by name, and what begins the sources of models."""
    names = [*(f"zoo:{name}" for name in ARCHITECTURES.names()), *(f"{name}:" for name in FRAMEWORKS.names())]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _framework_options(command: params.F) -> params.F:
    """The options of exports that are a framework's own."""
    for name in FRAMEWORKS.names():
        framework = FRAMEWORKS.load(name)
        for option, words in framework.options.items():
            text = f"{name}: {framework.option_help[option]}."
            if words == OFF_ON:
                command = click.option(f"--{option}", flag_value="on", default=None, help=text)(command)
                continue
            default = f"  [default: {words[0]}]" if words else ""
            metavar = framework.option_metavar.get(option, "NAME")
            command = click.option(f"--{option}", metavar=metavar, help=f"{text}{default}")(command)
    return command


@click.command("export", help=_HELP, epilog=_EPILOG)
@click.argument("source", required=False, shell_complete=_sources)
@params.output_option
@click.option("--list", "listing", is_flag=True, help="List the architectures and their options.")
@click.option("--device", type=params.DEVICE, help="torch, jax: cpu or cuda; tf: cpu or gpu.  [default: cpu]")
@click.option(
    "--cost",
    metavar="MODEL",
    help="flops, roofline:a100 (times by data sheet), or for torch and jax device (times here).  "
    "[default: device, else flops]",
)
@_framework_options
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
    **of_frameworks: str | None,
) -> None:
    """Write the graph, or list the architectures."""
    if listing:
        out = Output(color, quiet, file=output)
        require_writable(output)
        out.report(_architectures(out))
        return
    out = Output(color, quiet)
    if source is None:
        raise UsageError("there is no SOURCE", hint="name one, such as zoo:vgg16; remat export --list names all")
    options = {name: word for name, word in of_frameworks.items() if word is not None}
    build = _builder(source, device, cost, options, lambda text: out.note(f"note: {text}"))
    format = document_format(output)
    require_writable(output)
    graphs = build()
    files = _files(output, len(graphs))
    for file, graph in zip(files, graphs, strict=True):
        more = f": {graph.name}, {len(graph.nodes)} nodes{_timed_on(graph)}"
        out.write(file, document_text(graph_to_document(graph), format), more)
    for note in [
        note for graph in graphs if isinstance(graph.metadata, dict) for note in graph.metadata.get("notes", [])
    ]:
        out.note(f"note: {note}")
    if len(graphs) > 1:
        if Path(output).exists():
            out.note(f"note: {output} was there before, and is not of this export")
        out.aside(parts_text(files, graphs, out.style(sys.stderr)))


def _timed_on(graph: Graph) -> str:
    """Where the costs are times, for the note; nothing if they come from no machine."""
    costs = graph.metadata.get("costs") if isinstance(graph.metadata, dict) else None
    if not isinstance(costs, dict) or "machine" not in costs:
        return ""
    threads = costs.get("threads")
    return f", times on {costs['machine']}" + (f" with {threads} thread{'s' * (threads != 1)}" if threads else "")


def _files(output: str, parts: int) -> list[str]:
    """The files of the parts of a step: ``step.0.json``, ``step.1.json`` for ``step.json``.

    Raises:
        UsageError: If there are several, and the output is a stream.
    """
    if parts == 1:
        return [output]
    if output == "-":
        raise UsageError(
            f"PyTorch divides the step into {parts} parts, and standard output takes one graph",
            hint="-o step.json writes step.0.json, step.1.json and so on",
        )
    path = Path(output)
    return [str(path.with_name(f"{path.stem}.{k}{path.suffix}")) for k in range(parts)]


def _builder(
    source: str, device: str | None, cost: str | None, options: Mapping[str, str], tell: Callable[[str], None]
) -> Callable[[], Sequence[Graph]]:
    """A function that makes the graphs of ``source``; names and options are checked now, before it is called."""
    scheme, separator, rest = source.partition(":")
    if separator and scheme in FRAMEWORKS.entries:
        framework = FRAMEWORKS.load(scheme)()
        device = device or framework.devices[0]
        framework.require_device(device)
        cost = cost or framework.default_cost
        framework.require_options(options)
        return lambda: framework.export(rest, device=device, cost=cost, tell=tell, **options)
    if scheme.endswith(".py"):
        name = rest or "NAME"
        raise UsageError(
            f'"{source}" does not say which framework it is for',
            hint=f"write torch:{scheme}:{name}, jax:{scheme}:{name} or tf:{scheme}:{name}; {name} is your function",
        )
    if not separator or scheme != "zoo":
        raise UsageError(
            f'"{source}" is not a source',
            hint="write zoo:NAME, as in zoo:vgg16, or torch:, jax: or tf:FILE.py:NAME; remat export --list names all",
        )
    family, slash, _ = rest.strip().partition("/")
    of_framework = bool(slash) and family in FRAMEWORKS.entries
    if device is not None or options or (cost is not None and of_framework):
        own = sorted(option for name in FRAMEWORKS.names() for option in FRAMEWORKS.load(name).options)
        *others, last = (f"--{option}" for option in ("device", "cost", *own))
        raise UsageError(
            f"{', '.join(others)} and {last} are for models of your own, such as torch:FILE.py:NAME",
            hint="models of the zoo take them as options, as in zoo:torch/resnet50{cost=roofline:a100}",
        )
    if of_framework:
        framework = FRAMEWORKS.load(family)()
        return lambda: [framework.export_architecture(rest.strip(), tell=tell)]

    costs = zoo_costs(cost or "flops")  # refused before anything is built
    return lambda: [build_graph(rest, costs)]


def _architectures(out: Output) -> str:

    tables = [ARCHITECTURES, *(FRAMEWORKS.load(name).architectures for name in FRAMEWORKS.names())]
    classes: list[type[Architecture]] = [table.load(name) for table in tables for name in table.names()]
    entries = [
        Entry(f"zoo:{c.name}", c.summary, [c.reference] if c.reference else [], describe_options(c)) for c in classes
    ]
    return listing_text(entries, out.style())
