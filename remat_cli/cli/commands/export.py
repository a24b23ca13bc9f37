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

_EPILOG = """\b
Examples:
  remat export zoo:vgg16 -o vgg16.json
  remat export 'zoo:vgg16{batch=64,backward=operator}' | remat show -
  remat export zoo:resnet50 --cost roofline:v100 -o resnet50.json
  remat export torch:train.py:build -o step.json
  remat export torch:train.py:build --world 256 --interconnect 50GB/s --cost roofline:h100 -o rank.json
  remat export jax:train.py:build -o step.json
  remat export tf:train.py:build -o step.json
  remat export 'zoo:torch/gpt2{batch=4}' -o gpt2.json

`remat export --list` names the architectures and their options."""


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


@click.command("export", epilog=_EPILOG)
@click.argument("source", required=False, shell_complete=_sources)
@params.output_option
@click.option("--list", "listing", is_flag=True, help="List the architectures and their options.")
@click.option("--device", type=params.DEVICE, help="torch, jax, tf: device for the step.  [default: cpu]")
@click.option(
    "--cost", metavar="MODEL", help="Costs: flops, roofline:a100, or device (torch, jax: the default; not zoo)."
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
    """Write the graph of a model.

    SOURCE names the model. zoo:NAME{option=value,...} is a known architecture. torch:FILE.py:NAME is your own model: a
    function that returns (module, inputs) or (module, inputs, loss). remat calls it with tensors that take
    no memory in place of large ones; if it reads their numbers, again with real ones, and says so if they take much
    memory. If PyTorch captures the step only in parts (it has graph breaks), -o step.json writes a graph for each part,
    step.0.json, step.1.json and so on, and prints what crosses between them. torch: needs the extra remat[torch]. With
    --compiler inductor the nodes are groups of operations that Inductor joins, and the plan is for torch.compile.
    With --world N the function is called as on rank 0 of N, in a process group without processes, so that it can shard
    the module with DTensors; --interconnect says what the collectives cost.

    jax:FILE.py:NAME is a function that returns (loss, arguments) or (loss, arguments, options): the step is
    jax.value_and_grad(loss, **options)(*arguments), with argnums or has_aux as options. Arguments are arrays or
    jax.ShapeDtypeStruct. jax: needs the extra remat[jax]. A jax.lax.scan of at most 64 steps is unrolled, so that the
    plan tells its steps apart, and a longer one is divided into blocks of steps; --scans does the same with all.

    tf:FILE.py:NAME is a model of Keras or TensorFlow: a function that returns (model, batch) for a model that is
    compiled, (model, batch, loss), or (step, inputs). It needs the extra remat[tensorflow].

    The costs of a step of PyTorch or JAX are times on the device at hand. Its speed is measured once, in two
    seconds, and kept; the graph records it. REMAT_RATES names a file with the rates of another device. The costs of a
    step of TensorFlow and of zoo:NAME are FLOPs: remat profile measures times, and --cost roofline:NAME computes those
    of a GPU from its data sheet.
    """
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
