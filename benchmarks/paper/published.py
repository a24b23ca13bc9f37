"""Every figure that the page quotes from a paper, once, with the place in the paper where it stands.

Digits are those that the paper prints. Numbers that stand only in a picture, such as the points of a curve, are not
quoted. A remark says what a figure is of, where the name is not enough, or that the paper says otherwise elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.frame import Column, Row, Table

CHECKMATE = "Jain et al., Checkmate, MLSys 2020"
CHECKMATE_V1 = "Jain et al., Checkmate, first preprint, 2019"
KUMAR = "Kumar et al., Efficient Rematerialization for Deep Networks, NeurIPS 2019"
ROTOR = "Beaumont et al., Optimal checkpointing for heterogeneous chains, INRIA RR-9302, 2019"
PAPERS = (CHECKMATE, CHECKMATE_V1, KUMAR, ROTOR)
_SHORT = {CHECKMATE: "Checkmate", CHECKMATE_V1: "Checkmate, preprint", KUMAR: "Kumar et al.", ROTOR: "Rotor"}


@dataclass(frozen=True, slots=True)
class Figure:
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
    remark: str = ""

    @property
    def value(self) -> float:
        """The number."""
        return float(self.digits.replace(",", ""))


def _many(
    part: str, paper: str, place: str, quantity: str, digits: Iterable[tuple[str, str]], remark: str = ""
) -> tuple[Figure, ...]:
    """One figure for every (subject, digits)."""
    return tuple(Figure(part, subject, quantity, text, paper, place, remark) for subject, text in digits)


_NETWORKS = ("mobilenet-v1", "vgg16", "vgg19", "unet", "resnet50")
_TABLE_2 = {
    "Chen sqrt(n)": ("1.14", "1.28", "1.54", "1.27", "1.20"),
    "Chen greedy": ("1.07", "1.06", "1.39", "1.23", "1.25"),
    "Griewank log n": ("7.07", "1.44", "1.75"),
    "two-phase LP rounding": ("1.06", "1.01", "1.00", "1.03", "1.05"),
}
_COLUMNS = {
    "Chen sqrt(n)": "the table does not say which generalisation it used for U-Net and ResNet-50",
    "Chen greedy": "the table does not say which generalisation it used for U-Net and ResNet-50",
    "Griewank log n": "U-Net and ResNet-50, which are not linear, have a dash",
    "two-phase LP rounding": "section 6.5 calls the table number 6",
}
"""The remark on each column, at its first network."""

_CHECKMATE_MEMORY = (
    Figure("memory", "32 layers", "memory of keep-all (GB)", "30", CHECKMATE, "figure 1, caption"),
    Figure("memory", "32 layers", "memory saved (GB)", "21", CHECKMATE, "figure 1, caption"),
    Figure(
        *("memory", "vgg19", "orders of magnitude between the costs of layers", "7", CHECKMATE, "section 2"),
        "printed in words",
    ),
)
_CHECKMATE_GAPS = (
    Figure("gaps", "frontier-advancing", "integrality gap", "1.18", CHECKMATE, "appendix A"),
    Figure("gaps", "not partitioned", "integrality gap", "21.56", CHECKMATE, "appendix A"),
    Figure("gaps", "frontier-advancing", "time of Gurobi (s)", "0.23", CHECKMATE, "section 4.6"),
    Figure(
        *("gaps", "not partitioned", "time of Gurobi (h)", "9.4", CHECKMATE, "section 4.6"),
        "same optimum as with frontier-advancing stages; the appendix cites section 4.2 for the form of section 4.6",
    ),
)
_CHECKMATE_BUDGETS = (
    *(
        figure
        for column, digits in _TABLE_2.items()
        for network, text in zip(_NETWORKS, digits, strict=False)
        for figure in _many(
            *("budgets", CHECKMATE, "table 2", f"cost over the optimum's, {column}"),
            ((network, text),),
            _COLUMNS[column] if network == _NETWORKS[0] else "",
        )
    ),
    *_many(
        *("budgets", CHECKMATE, "figure 5, caption", "speed-up at 16 GB (times)"),
        (("unet, over linearized greedy", "1.20"), ("unet, over linearized sqrt(n)", "1.38")),
        "profiled on a V100; section 6.3 states over 1.2 times for the first",
    ),
    Figure("budgets", "unet", "overhead at 16 GB, batch 32, below (%)", "10", CHECKMATE, "section 6.3"),
    Figure(
        *("budgets", "unet", "memory without recomputation, batch 32 (GB)", "23", CHECKMATE, "section 6.3"),
        "the U-Net on VGG16 takes 21.2 GB here",
    ),
    Figure(
        "budgets", "all", "cost of rounding over the optimum's, largest mean (times)", "1.06", CHECKMATE, "section 6.5"
    ),
    Figure("budgets", "all", "time limit of the ILP (s)", "3600", CHECKMATE, "section 6.2"),
)
_CHECKMATE_BATCHES = (
    Figure("batches", "unet", "batch, Checkmate", "61", CHECKMATE, "section 6.4"),
    Figure(
        *("batches", "unet", "batch that is usual at most", "16", CHECKMATE, "section 6.4"),
        "for such tasks, depending on the resolution: not the batch of keep-all in figure 6. "
        "The 23 GB of section 6.3 for 32 images would give keep-all about 22 on 16 GB",
    ),
    Figure("batches", "unet", "61 over 16 (times)", "3.8", CHECKMATE, "section 6.4"),
    Figure("batches", "mobilenet-v1", "batch, Checkmate", "1105", CHECKMATE, "section 6.4"),
    Figure(
        *("batches", "mobilenet-v1", "over keep-all (times)", "5.1", CHECKMATE, "section 6.4; figure 6, caption"),
        "so keep-all has about 217. The abstract and the introduction call it larger input sizes, "
        "the introduction also larger than prior art",
    ),
    Figure(
        *("batches", "mobilenet-v1", "over the best baseline, greedy (times)", "1.73", CHECKMATE, "section 6.4"),
        "so greedy has about 639. **The paper contradicts itself**: the caption of figure 6 gives this to U-Net",
    ),
    Figure(
        *("batches", "unet", "over the best baseline (times)", "1.73", CHECKMATE, "figure 6, caption"),
        "**The paper contradicts itself**: section 6.4 gives this to MobileNet",
    ),
    Figure("batches", "unet", "batch, Checkmate", "57", CHECKMATE_V1, "section 5.3", "61 in the later version"),
    Figure(
        *("batches", "all", "over prior art, up to (times)", "2.6", CHECKMATE_V1, "introduction"),
        "1.73 in the later version",
    ),
    Figure(
        *("batches", "all", "larger input sizes, up to (times)", "5.1", CHECKMATE_V1, "abstract and introduction"),
        "its figure 6 gives the largest gain over keep-all to U-Net, that over the best baseline to MobileNet",
    ),
)
_CHECKMATE_LONG = (
    Figure(
        *("long", "densenet161", "days in which the ILP finds no schedule", "1", CHECKMATE, "section 5"),
        "printed in words",
    ),
)
_KERAS_QUANTITIES = (
    *("cost over the optimum's, Chen sqrt(n)", "cost over the optimum's, Chen greedy", "speed-up at 16 GB (times)"),
    *("overhead at 16 GB, batch 32, below (%)", "memory without recomputation, batch 32 (GB)", "batch, Checkmate"),
    *("over keep-all (times)", "over the best baseline, greedy (times)", "over the best baseline (times)"),
)
_CHECKMATE_KERAS = tuple(
    replace(figure, part="keras", remark="as above")
    for figure in (*_CHECKMATE_BUDGETS, *_CHECKMATE_BATCHES)
    if figure.quantity in _KERAS_QUANTITIES and figure.paper == CHECKMATE
)
"""Those of budgets and batches that stand beside the same networks as Keras writes them."""
_CHECKMATE_ROUNDING = (
    Figure("rounding", "two-phase rounding", "epsilon", "0.1", CHECKMATE, "section 5.3; appendix D"),
    Figure("rounding", "two-phase rounding", "threshold", "0.5", CHECKMATE, "algorithm 2"),
    Figure(
        *("rounding", "vgg16, direct rounding at random", "samples", "50,000", CHECKMATE, "section 5.1"),
        "none of them feasible",
    ),
    Figure(
        *("rounding", "vgg16, direct rounding at random", "default budget over the budget", "4", CHECKMATE),
        "section 5.1",
        "no plan of `vgg16{fused=true}`, on which direct rounding is tried here, takes less than 84.4% of its peak: so "
        "this budget has none here, and larger ones are tried",
    ),
    Figure("rounding", "all", "budget (GB)", "16", CHECKMATE, "appendix D"),
)
_KUMAR = (
    *_many(
        *("treewidth", KUMAR, "table 1", "n"),
        (("ResNet200", "17,705"), ("FFN (100 layers)", "3,217"), ("Transformer Base", "15,842")),
    ),
    *_many(
        *("treewidth", KUMAR, "table 1", "m"),
        (("ResNet200", "27,312"), ("FFN (100 layers)", "4,447"), ("Transformer Base", "21,771")),
    ),
    *_many(
        *("treewidth", KUMAR, "table 1", "tw"),
        (("ResNet200", "11"), ("FFN (100 layers)", "6"), ("Transformer Base", "18")),
    ),
    *_many(
        *("treewidth", KUMAR, "table 2", "peak of NoRemat (GiB)"),
        (("Transformer Base", "3.97"), ("Transformer Big", "13.25")),
    ),
    *_many(
        *("treewidth", KUMAR, "table 2", "peak of GreedyRemat (GiB)"),
        (("Transformer Base", "2.92"), ("Transformer Big", "10.12")),
    ),
    *_many(
        *("treewidth", KUMAR, "table 2", "length of GreedyRemat (times)"),
        (("Transformer Base", "1.21"), ("Transformer Big", "1.27")),
    ),
    *_many(
        *("treewidth", KUMAR, "table 2", "peak of TWRemat (GiB)"),
        (("Transformer Base", "1.14"), ("Transformer Big", "2.89")),
    ),
    *_many(
        *("treewidth", KUMAR, "table 2", "length of TWRemat (times)"),
        (("Transformer Base", "10.61"), ("Transformer Big", "10.64")),
        "the text says up to 10.6",
    ),
    *_many(
        *("treewidth", KUMAR, "section 4.1", "peak of NoRemat over TWRemat's (times)"),
        (("Transformer Base", "3.48"), ("Transformer Big", "4.59")),
    ),
    Figure(
        *("treewidth", "ResNet", "peak of NoRemat over GreedyRemat's, about (times)", "2", KUMAR, "section 4.1"),
        "very little on the FFN; both still grow linearly with the depth",
    ),
    Figure("treewidth", "ResNet and FFN", "peak of NoRemat over TWRemat's, up to (times)", "10", KUMAR, "section 4.1"),
    *_many(
        *("treewidth", KUMAR, "section 4.2", "length of TWRemat, about (times)"),
        (("ResNet and FFN, least", "3"), ("ResNet and FFN, most", "4")),
        "on figure 3; table 2 has more than ten for the Transformer. GreedyRemat is marginally longer than NoRemat",
    ),
    *_many(
        *("treewidth", KUMAR, "figure 1", "peak (values)"),
        (("A B C D E", "4"), ("A B C D A E", "3")),
    ),
)
_ROTOR = (
    Figure(
        *("chains", "all", "throughput over sequential's, mean (%)", "17.2", ROTOR, "sections 5.4 and 6"),
        "sequential's highest against Rotor's with the same memory, over all networks, image and batch sizes",
    ),
    Figure("chains", "resnet101, 1000x1000", "throughput over sequential's, mean (%)", "15", ROTOR, "section 5.4"),
    Figure("chains", "resnet101, 1000x1000, batch 1", "peak of keep-all (GiB)", "2.83", ROTOR, "section 5.4"),
    Figure(
        *("chains", "resnet101, 1000x1000, batch 8", "peak of sequential, 2 segments (GiB)", "13.91", ROTOR),
        "section 5.4",
    ),
    Figure(
        *("chains", "resnet101, 1000x1000, batch 8", "throughput of sequential, 2 segments (images/s)", "8.13", ROTOR),
        "section 5.4",
    ),
    Figure(
        *("chains", "resnet101, 1000x1000, batch 8", "largest throughput of Rotor (images/s)", "9.18", ROTOR),
        "section 5.4",
        "1.129 times sequential's",
    ),
    *_many(
        *("chains", ROTOR, "section 5.4", "fewest segments of sequential"),
        (("resnet1001, batch 1", "6"), ("resnet1001, batch 2", "10"), ("resnet1001, batch 4", "18")),
        "none at batch 8",
    ),
    Figure("chains", "resnet1001, batch 8", "peak of keep-all, predicted (GiB)", "225", ROTOR, "section 5.4"),
    Figure(
        "chains", "resnet1001, batch 8", "throughput of keep-all, predicted (images/s)", "1.1", ROTOR, "section 5.4"
    ),
    Figure(
        *("chains", "resnet1001", "throughput, printed as that of PyTorch (images/s)", "0.82", ROTOR, "section 5.4"),
        "**the paper contradicts itself**: PyTorch's strategy fails there at every batch size, so this must be Rotor's",
    ),
    Figure("chains", "resnet1001", "largest throughput of sequential (images/s)", "0.76", ROTOR, "section 5.4"),
    Figure("chains", "all", "error of predicted throughput, mean (%)", "7.8", ROTOR, "section 5.3"),
    Figure("chains", "all", "error of predicted peak, mean (%)", "3.7", ROTOR, "section 5.3"),
    Figure("chains", "all", "slots", "500", ROTOR, "section 5.2"),
    Figure("chains", "most networks", "time of the programme, below (s)", "1", ROTOR, "section 5.2"),
    Figure("chains", "resnet1001", "length of the chain", "339", ROTOR, "section 5.2"),
    Figure("chains", "resnet1001", "time of the programme, below (s)", "20", ROTOR, "section 5.2"),
)

FIGURES = (
    *_CHECKMATE_MEMORY,
    *_CHECKMATE_GAPS,
    *_CHECKMATE_BUDGETS,
    *_CHECKMATE_BATCHES,
    *_CHECKMATE_KERAS,
    *_CHECKMATE_ROUNDING,
    *_KUMAR,
    *_ROTOR,
    *_CHECKMATE_LONG,
)
"""All of them, in the order of the page."""

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
"""Checkmate's table 1: a method, the strategy here, and whether it takes general graphs, and minds costs and memory."""

QUOTES = Table(
    "quotes",
    "Published beside ours",
    (
        Column("subject", "of"),
        Column("quantity", "figure"),
        Column("digits", "published"),
        Column("ours", "ours"),
        Column("why", "most likely why they differ"),
        Column("source", "where"),
        Column("remark", "remark"),
    ),
)
"""The table with the figures of one part."""

Ours = dict[tuple[str, str], tuple[Any, str]]
"""By subject and quantity: our value or words, and most likely why they differ."""


def quoted(part: str, ours: Ours) -> list[Row]:
    """The rows of ``QUOTES`` for one part.

    Args:
        part: The part.
        ours: What stands beside the figures.

    Raises:
        ValueError: If something of ours stands beside no figure.
    """
    figures = [figure for figure in FIGURES if figure.part == part]
    unknown = set(ours) - {(figure.subject, figure.quantity) for figure in figures}
    if unknown:
        raise ValueError(f"{part}: nothing published for {sorted(unknown)}")
    made = []
    for figure in figures:
        value, why = ours.get((figure.subject, figure.quantity), (None, ""))
        made.append(
            {
                "table": QUOTES.key,
                "subject": figure.subject,
                "quantity": figure.quantity,
                "digits": figure.digits,
                "ours": "" if value is None else value if isinstance(value, str) else f"{value:,.10g}",
                "why": "" if value is None else why,
                "source": f"{_SHORT[figure.paper]}, {figure.place}",
                "remark": figure.remark,
            }
        )
    return made


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
