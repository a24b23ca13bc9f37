"""The first page: every published figure that has one of ours beside it, the contents, and what is not reproduced."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.frame import Column, Row, Table
from benchmarks.page import written_table

_HEAD = """\
# The papers' tables

What the papers state that remat reproduces, beside ours. Made by `make paper` (`python -m benchmarks.paper --help` for
parts of it) and `make paper-long` from the results in `results/`; do not edit. Every published number is in
`published.py` with its place in the paper; numbers that stand only in pictures are not quoted. Costs are FLOPs where
the paper's are, and times on a V100 by its data sheet where the paper's are measured on one; digits of times cannot be
compared. The pages have what is proven of the optimum beside the heuristics, and pictures.
"""
_MISSING = (
    (
        "runs on a GPU: throughput in figures 3 to 13 of Rotor, its errors of predictions (7.8% of times, "
        "3.7% of peaks), Checkmate's steps on a V100",
        "measured on a CPU only so far; `make gpu` measures on a CUDA device. Curves have the same axes with "
        "times by a data sheet",
    ),
    (
        "Checkmate's costs profiled on a V100 and a TPU",
        "rates of a V100 and of eight more GPUs by their data sheets, none of a TPU; `remat profile` measures "
        "on the device at hand",
    ),
    (
        "Checkmate, section 5.1: 50,000 samples on VGG16 at a quarter of the memory",
        "no plan of this graph takes less than 84.4%, so larger budgets are tried",
    ),
    (
        "RP-DEC (Checkmate, appendix C): with unit costs and sizes, is there a plan within b bytes that "
        "computes every node once?",
        "it is there for the proof of hardness, and has no command of its own. `remat solve --budget` decides "
        "it: yes if its plan has no overhead, no if the bound that it proves for any order is above the cost "
        "of computing every node once",
    ),
    (
        "Gruslys et al., Memory-efficient backpropagation through time, 2016",
        "its appendix C, on heterogeneous chains, is `revolve-bytes`, as in Rotor; the rest is for equal "
        "steps of a recurrent network",
    ),
    (
        "Feng and Huang, Cutting down training memory by re-forwarding, 2018",
        "chooses checkpoints that split a graph, and minds neither costs nor sizes (Checkmate, section 2). "
        "Each segment is made again at most once: `auto` and `optimal` search such plans among others, and "
        "prove how far from the optimum they are",
    ),
    (
        "Beaumont et al., Optimal memory-aware backpropagation of deep join networks, 2019",
        "optimal for several chains of equal stages that meet in one loss. None of the networks of the papers "
        "is one, and `auto` takes any graph",
    ),
    (
        "Siskind and Pearlmutter, Divide-and-conquer checkpointing, 2018",
        "splits the run of any program at arbitrary instructions, without a graph. On a graph that is a chain "
        "such plans are those of `revolve` and `chen-recursive`",
    ),
    (
        "Kusumoto et al., A graph theoretic framework of recomputation algorithms, 2019",
        "a dynamic programme over sets of nodes closed under predecessors, of which a graph may have "
        "exponentially many; each part between two sets is made again once. `auto` and `optimal` search such "
        "plans among others",
    ),
)
"""What the papers have and the pages do not, and why."""

_TABLE = Table(
    "summary",
    "",
    (
        Column("source", "where"),
        Column("quantity", "figure"),
        Column("subject", "of"),
        Column("digits", "published"),
        Column("ours", "ours"),
        Column("why", "most likely why they differ"),
    ),
)
_NOT_HERE = Table("missing", "What is not here", (Column("what", "of the papers"), Column("why", "why")))


def summary(quotes: Mapping[str, Sequence[Row]], pages: Iterable[tuple[str, str, Sequence[str]]]) -> str:
    """The first page.

    Args:
        quotes: By part the rows of its published figures.
        pages: File, title and titles of sections of every other page.
    """
    contents = ["## Pages\n"]
    for file, title, sections in pages:
        contents.append(f"- [{title}]({file})")
        contents += [f"  - [{section}]({file}#{anchor(section)})" for section in sections]
    rows = [row for part, mine in quotes.items() if part != "keras" for row in joined(mine)]
    missing = [{"what": what, "why": why} for what, why in _MISSING]
    return "\n".join([_HEAD, written_table(_TABLE, rows), *contents, "", written_table(_NOT_HERE, missing)])


def joined(rows: Iterable[Row]) -> list[Row]:
    """One row for all figures of a quantity and a place that have something of ours beside them."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["ours"]:
            groups.setdefault((row["source"], row["quantity"]), []).append(row)
    return [
        {
            "table": _TABLE.key,
            "source": source,
            "quantity": quantity,
            **{key: "<br>".join(str(row[key]) for row in mine) for key in ("subject", "digits", "ours")},
            "why": "; ".join(dict.fromkeys(row["why"] for row in mine if row["why"])),
        }
        for (source, quantity), mine in groups.items()
    ]


def anchor(title: str) -> str:
    """The fragment by which a page is linked to at the heading ``title``."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
