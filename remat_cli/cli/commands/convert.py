"""``remat convert``: a graph, a plan or a model in another format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.errors import UsageError
from remat_cli.graph.document import Document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remat_cli.graph.model import Graph
    from remat_cli.plan.model import Plan

_EPILOG = """\b
Examples:
  remat convert graph.yaml -o graph.json
  remat convert graph.plan.json -o graph.plan.yaml
  remat convert nx.json --keys cost=weight,memory=size -o graph.yaml
  remat convert model.onnx --dim batch=32 -o graph.json
  remat convert model.onnx --dim batch=32 --backward operator -o step.json
  remat convert model.pt2 --dim s77=32 -o graph.json
  remat convert graph.json --costs trace.json -o measured.json
  remat convert graph.json --to dot | dot -Tsvg -o graph.svg"""

_BY_SUFFIX = {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".dot": "dot", ".gv": "dot"}
_SHOWN = 20
"""How many nodes without a measured cost are named; the rest are counted."""


@click.command("convert", epilog=_EPILOG)
@click.argument("file", metavar="GRAPH|PLAN|MODEL", type=params.READABLE)
@click.option("-o", "--output", type=click.Path(allow_dash=True), default="-", show_default=True, help="Where it goes.")
@click.option(
    "--to",
    type=click.Choice(["json", "yaml", "node-link", "dot"]),
    help="Format to write; default: by the suffix of -o, else json.",
)
@click.option("--costs", metavar="TRACE", type=params.READABLE, help="Trace of torch.profiler to take costs from.")
@click.option(
    "--scale-unmatched", is_flag=True, help="With --costs: scale the costs of nodes that are not in the trace to fit."
)
@click.option(
    "--dim",
    metavar="NAME=SIZE",
    multiple=True,
    help="For models: size of a symbolic dimension, as in batch=32.",
)
@click.option(
    "--backward",
    type=click.Choice(["none", "checkmate", "operator"]),
    default="none",
    show_default=True,
    help="For models of a forward pass: rule by which a loss and a backward pass are derived.",
)
@click.option(
    "--default-cost",
    metavar="FLOPS",
    type=int,
    help="For models: cost per element of operators without a rule for it, which are refused otherwise.",
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
    """Write a graph or a plan in another format, in its canonical form and the newest version of its schema.

    Reads graph and plan documents (JSON, YAML), node-link JSON of networkx, and GraphML; and models: ONNX (needs
    remat[onnx]), archives of torch.export (.pt2), and what print_readable() of torch.fx writes. Notes on standard error
    say which costs and sizes were read, which are derived or defaults, and what the other format cannot hold.

    With --costs, a node costs the mean time of the events named like it or else like its operation; device time where
    the trace has any, else time of the host.
    """
    from remat_cli.files import require_writable, write_text

    out = Output(color, quiet)
    if scale_unmatched and costs is None:
        raise UsageError("--scale-unmatched says what --costs is to do", hint="name a trace with --costs")
    if file == costs == "-":
        raise UsageError("graph and trace cannot both be standard input", hint="put one of them into a file")
    target = _target(to, output)
    require_writable(output)
    read = _read(file, keys, dim, backward, default_cost)
    if isinstance(read, Document):
        if costs is not None:
            raise UsageError("--costs is for graphs, and this is a plan", hint="convert the graph, and solve it again")
        text, notes = _plan_text(read, target, keys)
    else:
        graph, notes = read
        if costs is not None:
            graph, measured = _measured(graph, costs, scale_unmatched)
            notes += measured
        text, lost = _graph_text(graph, target)
        notes += lost
    write_text(output, text)
    if output != "-":
        out.note(f"wrote {output}")
    for note in notes:
        out.note(f"note: {note}")


def _target(to: str | None, output: str) -> str:
    """The format to write."""
    if to is not None:
        return to
    if output == "-":
        return "json"
    suffix = Path(output).suffix.lower()
    if suffix not in _BY_SUFFIX:
        raise UsageError(
            f"{output}: its suffix tells no format", hint="name it .json, .yaml or .dot, or say it with --to"
        )
    return _BY_SUFFIX[suffix]


def _read(
    file: str, keys: str | None, dims: Sequence[str], backward: str, default_cost: int | None
) -> Document | tuple[Graph, list[str]]:
    """The document of a plan; or a graph, and where its costs and sizes come from."""
    from remat_cli.frontends.imported import Wishes, dimensions
    from remat_cli.frontends.models import import_model, model_format
    from remat_cli.zoo.training import Backward

    wishes = Wishes(dimensions(dims), Backward(backward), default_cost)
    format = model_format(file)
    if format is None:
        from remat_cli.api.reading import read_source
        from remat_cli.graph.document import kind_of

        if wishes != Wishes():
            raise UsageError(
                "--dim, --backward and --default-cost are for models, and this is none",
                hint="leave them out, or give a .onnx or .pt2 file, or a text that print_readable() of torch.fx wrote",
            )
        document = read_source(file)
        return document if kind_of(document) == "plan" else _graph(document, keys)
    if keys is not None:
        raise UsageError("--keys is for node-link graphs, and this is a model", hint="leave it out")
    found = import_model(file, format, wishes)
    return found.graph, list(found.notes)


def _plan_text(document: Document, target: str, keys: str | None) -> tuple[str, list[str]]:
    from remat_cli.plan.io import plan_from_document, plan_to_document

    if keys is not None:
        raise UsageError("--keys is for node-link graphs, and this is a plan", hint="leave it out")
    plan = plan_from_document(document)
    if target == "dot":
        from remat_cli.reports.dot import dot_text

        return dot_text(plan.graph, _times(plan)), []
    if target == "node-link":
        raise UsageError("node-link JSON holds graphs, and this is a plan", hint="write it --to json, yaml or dot")
    return _document_text(plan_to_document(plan), target), []


def _graph(document: Document, keys: str | None) -> tuple[Graph, list[str]]:
    """The graph, and where its costs and sizes come from."""
    from remat_cli.api.reading import graph_of, node_link_keys
    from remat_cli.graph.provenance import origins

    graph = graph_of(document, keys)
    return graph, origins(document, graph, None if keys is None else node_link_keys(keys))


def _measured(graph: Graph, costs: str, scale: bool) -> tuple[Graph, list[str]]:
    """The graph with costs of a trace, and what was matched."""
    from remat_cli.files import read_text
    from remat_cli.frontends.kineto import measured_costs

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
        notes.append(f"{found.unlinked} pieces of device work name no event that launched them, and count nowhere")
    return found.graph, notes


def _graph_text(graph: Graph, target: str) -> tuple[str, list[str]]:
    """The text, and what of the graph it does not hold."""
    if target == "dot":
        from remat_cli.reports.dot import dot_text

        return dot_text(graph), []
    if target == "node-link":
        from remat_cli.graph.nodelink_out import graph_to_node_link

        text, lost = graph_to_node_link(graph)
        return text, [f"node-link JSON cannot hold {what}" for what in lost]
    from remat_cli.graph.io import graph_to_document

    return _document_text(graph_to_document(graph), target), []


def _document_text(document: Mapping[str, Any], target: str) -> str:
    if target == "json":
        from remat_cli.graph.io import dump_document

        return dump_document(document)
    from remat_cli.graph.yamltext import yaml_text

    return yaml_text(document)


def _times(plan: Plan) -> list[int]:
    """How often the plan computes each node."""
    from remat_cli.plan.model import Compute

    times = [0] * len(plan.graph.nodes)
    for statement in plan.statements:
        if isinstance(statement, Compute):
            times[statement.node] += 1
    return times
