"""The parts into which PyTorch divides a training step, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remat_cli.graph.model import Graph
from remat_cli.reports.style import Style, fields, render
from remat_cli.reports.table import Table, text_columns
from remat_cli.units import format_bytes


def parts_text(files: Sequence[str], graphs: Sequence[Graph], style: Style) -> str:
    """The parts of a step, the files of their graphs, what crosses between them, and why each ends.

    Args:
        files: The file of each graph.
        graphs: The graphs, with ``metadata["part"]``.
        style: The layout.
    """
    from rich.text import Text

    parts = [graph.metadata["part"] for graph in graphs]
    rows = [
        (file, f"{len(graph.nodes):,}", str(part["runs"]), _inputs(part))
        for file, graph, part in zip(files, graphs, parts, strict=True)
    ]
    reasons = [(f"part {part['number']} ends", str(part["ends"])) for part in parts if part["ends"]]
    return render(
        style,
        Text(f"PyTorch divides the step into {len(graphs)} parts, and each is a graph:"),
        Table(text_columns("file", "nodes", "runs", "takes from others"), rows).text(style),
        fields(
            [
                *reasons,
                ("to train", "solve every part, and pass all plans to remat_backend"),
                ("memory", "a plan knows its own part; what other parts hold meanwhile is not in it, so leave room"),
            ],
            style,
        ),
    )


def _inputs(part: Mapping[str, Any]) -> str:
    """``1.05 MB of part 0``: the bytes that a part reads from each other part, and from code between the parts."""
    sizes: dict[int | None, int] = {}
    for taken in part["takes"]:
        sizes[taken["from"]] = sizes.get(taken["from"], 0) + int(taken["bytes"])
    by_source = sorted(sizes.items(), key=lambda item: -1 if item[0] is None else item[0])
    return (
        ", ".join(
            f"{format_bytes(size)} of {'code between' if source is None else f'part {source}'}"
            for source, size in by_source
        )
        or "-"
    )
