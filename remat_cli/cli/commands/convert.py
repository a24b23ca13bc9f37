"""``remat convert``: a graph, a plan or a model in another format."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, cast

import click

from remat_cli.api.documents import graph_or_plan, node_link_keys, read_source
from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.output_files import output_format
from remat_cli.errors import UsageError
from remat_cli.files import read_text, require_writable
from remat_cli.frontends.imported import Wishes, dimensions
from remat_cli.frontends.kineto import measured_costs
from remat_cli.frontends.models import import_model, model_format
from remat_cli.graph.io import document_text, graph_to_document, origins
from remat_cli.graph.model import Graph
from remat_cli.graph.nodelink import graph_to_node_link
from remat_cli.plan.io import plan_to_document
from remat_cli.plan.model import Compute, Plan
from remat_cli.reports.graph import dot_text
from remat_cli.zoo.training import Backward

_EPILOG = """\b
Examples:
  remat convert graph.yaml -o graph.json
  remat convert nx.json --keys cost=weight,memory=size -o graph.yaml
  remat convert model.onnx --dim batch=32 --backward operator -o step.json
  remat convert graph.json --costs trace.json -o measured.json
  remat convert graph.json --to dot | dot -Tsvg -o graph.svg

More: docs/imports.md"""

_Format = Literal["json", "yaml", "node-link", "dot"]
_FORMATS = ("json", "yaml", "node-link", "dot")
_SHOWN = 20
"""The number of nodes without a measured cost that are named; the others are counted."""


@click.command("convert", epilog=_EPILOG)
@click.argument("file", metavar="GRAPH|PLAN|MODEL", type=params.READABLE)
@params.output_option
@click.option(
    "--to",
    type=click.Choice(_FORMATS),
    help="Output format.  [default: by the suffix of -o, else json]",
)
@click.option("--costs", metavar="TRACE", type=params.READABLE, help="Take costs from this trace of torch.profiler.")
@click.option(
    "--scale-unmatched",
    is_flag=True,
    help="With --costs: rescale the costs of nodes that the trace lacks.",
)
@click.option(
    "--dim",
    metavar="NAME=SIZE",
    multiple=True,
    help="Models: size of a symbolic dimension, as in batch=32.",
)
@click.option(
    "--backward",
    type=click.Choice(["none", "checkmate", "operator"]),
    default="none",
    show_default=True,
    help="Models of a forward pass: rule for a loss and a backward pass.",
)
@click.option(
    "--default-cost",
    metavar="FLOPS",
    type=int,
    help="Models: cost per element of operators without a formula.  [default: refused]",
)
@params.node_link_option
@params.quiet_option
@params.color_option
def command(
    file: str,
    output: str,
    to: str | None,
    costs: str | None,
    scale_unmatched: bool,
    dim: tuple[str, ...],
    backward: str,
    default_cost: int | None,
    keys: str | None,
    quiet: bool,
    color: str,
) -> None:
    """Write a graph or a plan in another format, in the newest version of its schema.

    Reads graphs and plans (JSON, YAML), graphs of networkx (node-link JSON, GraphML), and models: ONNX (with the extra
    remat[onnx]), torch.export (.pt2), print_readable() of torch.fx, and HLO text. Notes on standard error say where
    costs and sizes come from.

    With --costs, the cost of a node is the mean time of the events with its id, or else of its operation: on the
    device, if the trace has such times.
    """
    out = Output(color, quiet)
    if scale_unmatched and costs is None:
        raise UsageError("--scale-unmatched needs --costs", hint="name a trace with --costs")
    if file == costs == "-":
        raise UsageError("the graph and the trace cannot both come from standard input", hint="give one as a file")
    target = cast("_Format", output_format(output, _FORMATS, to, option="to"))
    require_writable(output)
    read = _read(file, keys, dim, backward, default_cost)
    if isinstance(read, Plan):
        if costs is not None:
            raise UsageError("--costs is for graphs, but this is a plan", hint="convert the graph, and solve it again")
        text, notes = _plan_text(read, target)
    else:
        graph, notes = read
        if costs is not None:
            graph, measured = _measured(graph, costs, scale_unmatched)
            notes += measured
        text, lost = _graph_text(graph, target)
        notes += lost
    out.write(output, text)
    for note in notes:
        out.note(f"note: {note}")


def _read(
    file: str, keys: str | None, dims: Sequence[str], backward: str, default_cost: int | None
) -> Plan | tuple[Graph, list[str]]:
    """A plan; or a graph, and where its costs and sizes come from."""
    wishes = Wishes(dimensions(dims), Backward(backward), default_cost)
    format = model_format(file)
    if format is None:
        if wishes != Wishes():
            raise UsageError(
                "--dim, --backward and --default-cost are for models, but this is not a model",
                hint="leave them out, or give a .onnx or .pt2 file, a dump of torch.fx, or HLO text",
            )
        document = read_source(file)
        subject = graph_or_plan(document, keys)
        if isinstance(subject, Plan):
            return subject
        return subject, origins(document, subject, None if keys is None else node_link_keys(keys))
    if keys is not None:
        raise UsageError("--keys is for node-link graphs, but this is a model", hint="leave it out")
    found = import_model(file, format, wishes)
    return found.graph, list(found.notes)


def _plan_text(plan: Plan, target: _Format) -> tuple[str, list[str]]:
    if target == "dot":
        times = Counter(s.node for s in plan.statements if isinstance(s, Compute))
        return dot_text(plan.graph, [times[node] for node in range(len(plan.graph.nodes))]), []
    if target == "node-link":
        raise UsageError("node-link JSON is for graphs, but this is a plan", hint="use --to json, yaml or dot")
    return document_text(plan_to_document(plan), target), []


def _measured(graph: Graph, costs: str, scale: bool) -> tuple[Graph, list[str]]:
    """The graph with costs from a trace, and notes on the nodes that were matched."""
    text, source = read_text(costs)
    found = measured_costs(graph, text, source, scale=scale)
    where = "device" if found.on_device else "host"
    notes = [
        f"costs measured: {where} time in us, from {source}: {found.by_id} nodes by id, "
        f"{found.by_operation} by operation (the mean of all its calls), of {len(graph.nodes)}"
    ]
    if found.kept:
        how = "kept" if found.scale is None else f"multiplied by {found.scale:g} us/{graph.cost_unit}"
        more = ", ..." if len(found.kept) > _SHOWN else ""
        notes.append(f"costs not in the trace, {how}: {', '.join(found.kept[:_SHOWN])}{more} ({len(found.kept)} nodes)")
    if found.unlinked:
        notes.append(f"{found.unlinked} device events name no event that launched them, and are not counted")
    return found.graph, notes


def _graph_text(graph: Graph, target: _Format) -> tuple[str, list[str]]:
    """The text, and the facts of the graph that it leaves out."""
    if target == "dot":
        return dot_text(graph), []
    if target == "node-link":
        text, lost = graph_to_node_link(graph)
        return text, [f"node-link JSON cannot express {what}" for what in lost]

    return document_text(graph_to_document(graph), target), []
