"""Captured PyTorch training steps.

Training steps of `remat export zoo:torch/...` (ResNet-50 at batch 32, U-Net at batch 8 and 256x256, VGG16 at batch 32,
GPT-2 small at batch 8 and 512 tokens), compared with the best known result of PyTorch's own recomputation on them: a
peak of values, and the ratio of the FLOPs to those without recomputation. remat gets that peak as its budget. The peak
does not include the graph's fixed memory (parameters and inputs). A row runs on each core, at most two at a time, one
thread each.

PyTorch's ratios count attention on a CPU at one FLOP per element, like other operations without a formula. So do these
graphs, although `remat export` counts the products of attention.

Graphs given with `--graphs` are read and not exported: `torch-resnet50.json`, `torch-unet.json`, `torch-vgg16.json` and
`torch-gpt2.json`. Exporting the others needs `remat[torch]`.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.lanes import Cell, lanes_here, rows_of
from benchmarks.measure import MissingInput, call_or_fail
from benchmarks.solving import OUTCOME, solved_apart

LIMIT_S = 60.0
_QUICK_LIMIT_S = 10.0
_POINTS: dict[str, tuple[tuple[int, float | None], ...]] = {
    "resnet50": ((1437, 1.0137), (1309, 1.2062), (1121, 1.3267)),
    "unet": ((1427, 1.0241), (1661, 1.0045)),
    "vgg16": ((1889, 1.0218), (1910, 1.0019)),
    "gpt2": ((2646, 1.1528), (3024, 1.1035), (3364, 1.0605), (3703, 1.0175)),
}
"""For each model: a budget in MB of values, and the ratio that PyTorch reaches there."""
_SPECS = {
    "resnet50": "torch/resnet50{batch=32}",
    "unet": "torch/unet{batch=8,resolution=256}",
    "vgg16": "torch/vgg16{batch=32}",
    "gpt2": "torch/gpt2{batch=8}",
}
_ELEMENT_BYTES = 4
_QUICK_POINTS: dict[str, tuple[tuple[int, float | None], ...]] = {"unet": ((2, None),)}
_QUICK_SPECS = {"unet": "torch/unet{batch=1,resolution=64,depth=2,width=8}"}

TABLES = (
    Table(
        "points",
        "",
        (
            Column("graph", "graph"),
            Column("nodes", "nodes", "count"),
            Column("fixed", "fixed memory", "bytes"),
            *columns("number", budget_mb="budget, MB of values", pytorch="PyTorch's ratio", ratio="remat's ratio"),
            *columns("number", bound="proven bound"),
            *OUTCOME,
        ),
        f"One run each, {LIMIT_S:g} s at most, strategy auto, seed 0.",
        named_by=("graph", "budget_mb"),
    ),
    Table(
        "least",
        "Without recomputation, in another order",
        (
            Column("graph", "graph"),
            *columns("number", document_mb="order of the document, MB of values"),
            *columns("number", reordered_mb="--reorder, MB of values", less="less, %"),
            Column("order", "order found by"),
            Column("wall_s", "time, s", "number"),
            Column("ending", "ended"),
        ),
        f"`remat solve --budget none --reorder`: the least peak among the orders tried, every node computed once; at"
        f" most {LIMIT_S:g} s.",
        named_by=("graph",),
    ),
)


def run(session: Session) -> list[Row]:
    points, specs = (_QUICK_POINTS, _QUICK_SPECS) if session.quick else (_POINTS, _SPECS)
    limit_s = session.limited(LIMIT_S, _QUICK_LIMIT_S)
    graphs: dict[str, dict[str, Any]] = {}
    cells = {name: list(_cells(name, points[name], graphs, limit_s)) for name in points}
    wanted = [name for name in points if any(session.wants(cell.label) for cell in cells[name])]
    graphs.update(_graphs(session, {name: specs[name] for name in wanted}))
    return rows_of(session, [cell for of in cells.values() for cell in of], lanes=lanes_here())


def _cells(
    name: str, points: tuple[tuple[int, float | None], ...], graphs: dict[str, dict[str, Any]], limit_s: float
) -> Iterator[Cell]:
    """The cells of one model; ``graphs`` holds it by the time they are measured."""
    for budget_mb, pytorch in points:
        yield Cell(f"{name} at {budget_mb} MB", partial(_point, name, graphs, budget_mb, pytorch, limit_s))
    yield Cell(f"{name} in another order", partial(_least, name, graphs, limit_s))


def _graphs(session: Session, specs: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The results of :func:`exported` for each model.

    Raises:
        MissingInput: If PyTorch is missing and a graph is not given.
    """
    given = {path.stem.removeprefix("torch-"): path.resolve() for path in session.graphs if path.stem[:6] == "torch-"}
    missing = sorted(set(specs) - set(given))
    if missing and find_spec("torch") is None:
        raise MissingInput(
            f"PyTorch is missing: pip install 'remat[torch]', or give torch-{missing[0]}.json and so on with --graphs"
        )

    def made(name: str) -> dict[str, Any]:
        path = given.get(name, session.folder / f"torch-{name}.json")
        spec = None if name in given else specs[name]
        session.say(f"exporting {name}" if spec else f"reading {name}")
        facts: dict[str, Any] = call_or_fail("benchmarks.captured:exported", path=str(path), spec=spec).values
        return facts

    with ThreadPoolExecutor(lanes_here()) as pool:
        return dict(zip(specs, pool.map(made, specs), strict=True))


def exported(path: str, spec: str | None) -> dict[str, Any]:
    """Export ``spec`` to ``path``, or read what is there if it is None; the path, fixed memory and peak of values."""
    from remat_cli.graph.analysis import no_remat_peak
    from remat_cli.graph.io import dump_document, graph_to_document, load_graph

    if spec is not None:
        from remat_cli.frontends.torch.framework import Torch

        document = graph_to_document(
            Torch().export_architecture(spec.replace("{", "{cost=flops,"))
        )  # the same everywhere
        for node in document["nodes"]:
            if "flash_attention_for_cpu" in node["op"]:
                node["cost"] = max(node["outputs"]) // _ELEMENT_BYTES
        Path(path).write_text(dump_document(document), encoding="utf-8")
    graph = load_graph(path)
    return {"path": path, "fixed": graph.fixed_memory, "values": no_remat_peak(graph) - graph.fixed_memory}


def _point(name: str, graphs: dict[str, dict[str, Any]], budget_mb: int, pytorch: float | None, limit_s: float) -> Row:
    graph = graphs[name]
    budget = budget_mb * 10**6 + graph["fixed"]
    values = solved_apart(time_limit_s=limit_s, spec=graph["path"], budget=budget)
    case: Row = {
        "graph": name,
        "fixed": graph["fixed"],
        "budget_mb": budget_mb,
        "pytorch": pytorch,
        "ratio": _ratio(values.get("overhead")),
        "bound": _ratio(values.get("bound")),
    }
    return TABLES[0].row(case, values)


def _least(name: str, graphs: dict[str, dict[str, Any]], limit_s: float) -> Row:
    graph = graphs[name]
    values = solved_apart(time_limit_s=limit_s, spec=graph["path"], budget=None, reorder=True)
    reordered = values.get("values_bytes")
    case: Row = {
        "graph": name,
        "document_mb": _mb(graph["values"]),
        "reordered_mb": _mb(reordered),
        "less": None if reordered is None else round(100 * (1 - reordered / graph["values"]), 2),
    }
    return TABLES[1].row(case, values)


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else round(1 + percent / 100, 5)


def _mb(count: int | None) -> float | None:
    return None if count is None else round(count / 1e6, 1)
