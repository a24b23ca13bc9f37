"""Every figure that the page quotes from a paper, once, with the place in the paper where it stands: ``published.csv``.

Digits are those that the paper prints. Numbers that stand only in a picture, such as the points of a curve, are not
quoted. A remark says what a figure is of, where the name is not enough, or that the paper says otherwise elsewhere.
"""

import csv
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.frame import Row, Table, columns

CHECKMATE = "Checkmate"
PAPERS = {
    CHECKMATE: "Jain et al., Checkmate, MLSys 2020",
    "Checkmate, preprint": "Jain et al., Checkmate, first preprint, 2019",
    "Kumar et al.": "Kumar et al., Efficient Rematerialization for Deep Networks, NeurIPS 2019",
    "Rotor": "Beaumont et al., Optimal checkpointing for heterogeneous chains, INRIA RR-9302, 2019",
}
"""The papers, as the figures name them."""


class Figure(NamedTuple):
    """One published figure.

    Attributes:
        part: The part of the page that quotes it.
        subject: What it is of: a network, a form, a strategy.
        quantity: What it measures, with the unit in brackets where it has one.
        digits: The number as printed.
        paper: One of ``PAPERS``.
        place: Section, table, figure or appendix.
        remark: What a reader has to know besides.
    """

    part: str
    subject: str
    quantity: str
    digits: str
    paper: str
    place: str
    remark: str

    @property
    def value(self) -> float:
        """The number."""
        return float(self.digits.replace(",", ""))


with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as _file:
    _FIGURES = [Figure(**row) for row in csv.DictReader(_file)]
_KERAS_QUANTITIES = (
    *("cost over the optimum's, Chen sqrt(n)", "cost over the optimum's, Chen greedy", "speed-up at 16 GB (times)"),
    *("overhead at 16 GB, batch 32, below (%)", "memory without recomputation, batch 32 (GB)", "batch, Checkmate"),
    *("over keep-all (times)", "over the best baseline, greedy (times)", "over the best baseline (times)"),
)
"""Of budgets and batches: what stands beside the same networks as Keras writes them, too."""
FIGURES = [
    *_FIGURES,
    *(
        figure._replace(part="keras", remark="as above")
        for figure in _FIGURES
        if figure.part in {"budgets", "batches"}
        if figure.quantity in _KERAS_QUANTITIES and figure.paper == CHECKMATE
    ),
]
"""All of them; those of a part in the order of the page."""

METHODS = (
    ("Checkpoint all (ideal)", "checkpoint-all", "yes", "no", "no"),
    ("Griewank et al. log n", "revolve", "no", "no", "no"),
    ("Chen et al. sqrt(n)", "chen-sqrt", "no", "no", "no"),
    ("Chen et al. greedy", "chen-greedy", "no", "no", "partly"),
    ("AP sqrt(n)", "ap-sqrt", "partly", "no", "no"),
    ("AP greedy", "ap-greedy", "partly", "no", "partly"),
    ("Linearized sqrt(n)", "linearized-sqrt", "yes", "no", "no"),
    ("Linearized greedy", "linearized-greedy", "yes", "no", "partly"),
    ("Checkmate ILP", "checkmate-ilp", "yes", "yes", "yes"),
    ("Checkmate approx.", "checkmate-lp", "yes", "yes", "yes"),
)
"""Checkmate's table 1: a method, the strategy here; whether it takes general graphs, considers costs, and memory."""

QUOTES = Table(
    "quotes",
    "Published beside ours",
    (
        *columns("text", subject="of", quantity="figure", digits="published", ours="ours"),
        *columns("text", why="most likely why they differ", source="where", remark="remark"),
    ),
)
"""The table with the figures of one part."""

Ours = dict[tuple[str, str], tuple[Any, str]]
"""By subject and quantity: our value or words, and most likely why they differ."""


def quoted(part: str, ours: Ours) -> list[Row]:
    """The rows of ``QUOTES`` for one part, with ours beside the figures.

    Raises:
        ValueError: If something of ours stands beside no figure.
    """
    figures = [figure for figure in FIGURES if figure.part == part]
    unknown = set(ours) - {(figure.subject, figure.quantity) for figure in figures}
    if unknown:
        raise ValueError(f"{part}: nothing published for {sorted(unknown)}")
    rows = []
    for figure in figures:
        value, why = ours.get((figure.subject, figure.quantity), (None, ""))
        values = {
            "ours": "" if value is None else value if isinstance(value, str) else f"{value:,.10g}",
            "why": "" if value is None else why,
            "source": f"{figure.paper}, {figure.place}",
        }
        rows.append(QUOTES.row(figure._asdict(), values))
    return rows


def published(part: str, subject: str, quantity: str, paper: str | None = None) -> float | None:
    """The figure of this name; None if the papers state none.

    Raises:
        ValueError: If papers state several and ``paper`` does not choose one.
    """
    found = [
        figure.value
        for figure in FIGURES
        if (figure.part, figure.subject, figure.quantity) == (part, subject, quantity) and paper in {None, figure.paper}
    ]
    if len(found) > 1:
        raise ValueError(f"several published figures for {subject}, {quantity}")
    return found[0] if found else None
