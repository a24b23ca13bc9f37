"""Makes a graph of HLO text, with notes on the origin of every number."""

from dataclasses import replace
from pathlib import Path

from remat_cli.errors import UsageError, Worded
from remat_cli.files import read_text
from remat_cli.frontends.hlo.flops import Costs
from remat_cli.frontends.hlo.lower import Given, Lowered, lower
from remat_cli.frontends.hlo.read import Module, read_module
from remat_cli.frontends.imported import DefaultCosts, Imported, Model, Wishes, count, model_graph, some
from remat_cli.printable import printable
from remat_cli.zoo.training import Backward


def import_hlo(path: str, wishes: Wishes) -> Imported:
    """The graph of a module that XLA dumped as text.

    Args:
        path: The file.
        wishes: How to import it; its default cost is for calls of libraries without a formula.

    Raises:
        InputError: If the file cannot be read, or is damaged, or costs cannot be determined, with the line.
        UsageError: If sizes or a backward rule are given: the file states all sizes, and a step its gradients.
    """
    if wishes.backward is not Backward.NONE:
        raise UsageError(
            f"{path}: an HLO module is a whole program, with its gradients if it has any",
            hint=Worded("leave backward out", "leave --backward out"),
        )
    if wishes.sizes:
        raise UsageError(f"{path}: all sizes are in the file", hint=Worded("leave sizes out", "leave --dim out"))
    module = read_module(*read_text(path))
    costs = Costs(module, DefaultCosts(path, wishes.default_cost))
    lowered = lower(module, costs)
    outputs = tuple(dict.fromkeys(leaf for leaf in lowered.outputs if not isinstance(leaf, Given)))
    model = Model(
        name=module.name or Path(path).stem,
        operations=tuple(lowered.operations),
        outputs=outputs,
        fixed_memory=lowered.given_bytes,
        metadata={"format": "hlo", "costs": costs.defaults.description(), "sizes": {"by": "shapes in the file"}},
    )
    graph = model_graph(model, Backward.NONE, path)
    pairs = zip(graph.nodes, lowered.workspaces, strict=True)
    nodes = tuple(replace(node, workspace=workspace) for node, workspace in pairs)
    notes = tuple(map(printable, _notes(module, lowered, costs)))
    return Imported(replace(graph, nodes=nodes, metadata=dict(model.metadata) | wishes.facts(notes)), notes)


def _notes(module: Module, lowered: Lowered, costs: Costs) -> list[str]:
    scheduled = module.attributes.get("is_scheduled") == "true"
    notes = [
        "costs: derived, FLOPs by formulas for products, convolutions and reductions, else 1 per element of the result",
        "sizes: read, from shapes in the file; padding by the compiler is not in it",
        f"fixed memory: read, {lowered.given_bytes} bytes of parameters and constants",
        "order: read, the schedule of the compiler"
        if scheduled
        else "order: that of the text; it is not scheduled yet",
    ]
    if lowered.loops:
        notes.append(
            f"whole, as one operation each: {count(len(lowered.loops), 'loop or condition')}; workspace: derived, what "
            "lives inside. XLA may update a loop's arrays in place, which is not counted as a saving"
        )
    if costs.guessed:
        notes.append(f"costs of one turn, because the file does not tell how often they run: {some(costs.guessed)}")
    notes += costs.defaults.notes()
    if lowered.views:
        notes.append(f"left out: {count(lowered.views, 'view')} (tuples, their items, bitcasts and reshapes)")
    if once := [operation.id for operation in lowered.operations if not operation.recompute]:
        notes.append(f"computed at most once, because of side effects: {some(once)}")
    return notes
