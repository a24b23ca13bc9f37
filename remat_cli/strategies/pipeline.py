"""The order of things: what ``auto``, ``optimal``, ``search``, ``lns`` and ``anneal`` try, as tuples of stages.

Read a pipeline from top to bottom: each stage improves the same incumbent, for a share of the time that is left then.
Thresholds stand here, beside the stages that they steer. Each names the benchmark that measured it, or is "untuned".
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from remat_cli.strategies.chains.opener import chain_first, chain_later
from remat_cli.strategies.engine import ALWAYS, Stage, When
from remat_cli.strategies.incumbent import Verdict
from remat_cli.strategies.shape import is_dense

_ROOM = "remat_cli.strategies"
_KNOWN, _BOUND = f"{_ROOM}.openers.known:KnownMethods", f"{_ROOM}.bounding"
_CROWDED = f"{_ROOM}.openers.crowded:CrowdedStages"
_CHAIN = f"{_ROOM}.chains.opener:ChainStructure"
_GROWING = f"{_ROOM}.retention.growing:Growing"
_EVENTS, _INSIDE = f"{_ROOM}.retention.proof:EventProof", f"{_ROOM}.retention.proof:InStageProofs"
_ANNEALING, _TURNS = f"{_ROOM}.annealing.workers:Annealing", f"{_ROOM}.turns:Turns"

SMALL, MEDIUM, LARGE = 120, 300, 3_000
"""Numbers of nodes. Up to SMALL a proof may look inside stages (``targets``). Below MEDIUM a solver is done before
prices are worth their time, and from LARGE on a model takes seconds to state (``scaling``)."""
_TINY = 60
"""Up to so many nodes the paper's MILP can look beyond-one-pass through each stage. Untuned."""
_FEW = 30
"""Up to so many nodes a solver needs no help. Untuned."""
_FULL_PAIRS = 40_000
"""Largest number of (stage, node) pairs for which the model over the full support is tried. Untuned."""
_EAGER_PAIRS, _PROOF_PAIRS = 10_000, 60_000
"""Up to so many pairs a proof comes before deeper supports, which are about as large; and at all. Untuned."""


def nodes(least: int = 0, most: float = math.inf) -> When:
    """The graph has from ``least`` to ``most`` nodes."""
    text = f"{least:,} to {most:,} nodes" if least and math.isfinite(most) else f"up to {most:,} nodes"
    return When(
        f"{least:,} nodes or more" if math.isinf(most) else text,
        lambda incumbent: least <= len(incumbent.graph.nodes) <= most,
    )


FRESH = When("no schedule was known before", lambda incumbent: not incumbent.informed)
NO_SCHEDULE = When("nothing fits so far", lambda incumbent: incumbent.computes is None)
SCHEDULE = When("something fits", lambda incumbent: incumbent.computes is not None)
DENSE = When("reading is dense", lambda incumbent: is_dense(incumbent.graph))
"""Windows of a model find less than annealing there, and a model of the near support is slow to state."""
SPARSE = When("reading is not dense", lambda incumbent: not is_dense(incumbent.graph))
CHAIN = When("it is a short chain or one of equal sizes", lambda incumbent: chain_first(incumbent.graph))
FULL = When("the full support is small", lambda incumbent: len(incumbent.graph.nodes) ** 2 / 2 <= _FULL_PAIRS)
LONG_CHAIN = When("it is a long chain of unequal sizes", lambda incumbent: chain_later(incumbent.graph))
STUCK = When(
    f"nothing fits so far, or up to {SMALL} nodes",
    lambda incumbent: incumbent.computes is None or len(incumbent.graph.nodes) <= SMALL,
)


_CHAIN_FIRST = Stage(
    "chain-first",
    _CHAIN,
    "all of the answer where all sizes are equal",
    when=CHAIN,
    until=Verdict.EXACT,
    share=0.2,
    most_s=4.0,
    maker="optimal",
)

_LOOPS = f"{_ROOM}.openers.compiled:CompiledLoops"

QUICK_METHODS = ("dtr", "twremat", "xla-greedy{cost_aware=true}")
"""Published methods that take any graph, and whose plans are the cheapest of those (``anytime``); the fastest first."""
_CHECKPOINTING, _MIN_CUTS = ("ap-greedy", "linearized-greedy", "xla-greedy"), ("min-cut",)
OPENING_METHODS = (*QUICK_METHODS, *_CHECKPOINTING, *_MIN_CUTS)
"""All methods with which searches begin, for searches over budgets."""

OPENERS = (
    Stage(
        "quick-methods",
        _KNOWN,
        "a plan within a fraction of a second",
        options={"methods": QUICK_METHODS},
        when=nodes(most=LARGE - 1),
        share=0.6,
        most_s=10.0,
    ),
    Stage(
        "quick-method-large",
        _KNOWN,
        "the one of them that takes a second or two on a large graph",
        options={"methods": QUICK_METHODS[:1]},
        when=nodes(LARGE),
        share=0.6,
        most_s=15.0,
    ),
    _CHAIN_FIRST,
)
"""The first plan is published here, before anything else begins."""

_STARTS = (
    Stage("quick-bound", f"{_BOUND}:QuickBound", "a bound in a second, however large the graph", share=0.1, most_s=3.0),
    Stage(
        "crowded-small",
        _CROWDED,
        "often optimal at once on training steps",
        when=nodes(most=MEDIUM - 1),
        share=0.1,
        most_s=20.0,
        unlimited_s=3.0,
        least_s=1.0,
    ),
    Stage(
        "crowded-first",
        _CROWDED,
        "optimal within two seconds, or other methods are sooner",
        when=nodes(MEDIUM, LARGE - 1),
        share=0.1,
        most_s=2.0,
        least_s=3.0,
    ),
    Stage(
        "compile",
        _LOOPS,
        "inner loops are compiled beside what follows, in the first run after an installation",
        options={"groups": ("flow", "pricing", "annealing")},
        when=nodes(_FEW + 1),
    ),
    Stage(
        "checkpointing",
        _KNOWN,
        "fits where memory is tightest",
        options={"methods": _CHECKPOINTING},
        when=nodes(most=LARGE - 1),
        share=0.3,
        most_s=5.0,
    ),
    Stage(
        "min-cuts",
        _KNOWN,
        "good where the forward pass has narrow places",
        options={"methods": _MIN_CUTS},
        when=nodes(_FEW + 1, LARGE - 1),
        share=0.3,
        most_s=5.0,
        kernels=("flow",),
    ),
    Stage(
        "clearing",
        f"{_ROOM}.openers.clearing:Clearings",
        "drops many values at once where none is worth it alone, and bounds the cost",
        options={"ways": 0},
        when=nodes(MEDIUM, LARGE - 1) & FRESH,
        share=0.15,
        most_s=20.0,
        kernels=("flow",),
    ),
    Stage(
        "clearing-large",
        f"{_ROOM}.openers.clearing:Clearings",
        "has a schedule while prices are still being found",
        options={"ways": 2},
        when=nodes(LARGE) & FRESH,
        share=0.2,
        most_s=20.0,
        kernels=("flow",),
    ),
    Stage(
        "prices",
        f"{_ROOM}.openers.prices:Prices",
        "schedules by the price of a byte in each stage (Lagrangian relaxation)",
        when=nodes(MEDIUM) & FRESH,
        until=Verdict.SETTLED,
        share=0.3,
        most_s=60.0,
        kernels=("pricing",),
    ),
    Stage(
        "polish",
        f"{_ROOM}.annealing.polish:Polish",
        "takes back what need not be recomputed",
        when=nodes(MEDIUM) & FRESH,
        until=Verdict.SETTLED,
        kernels=("annealing",),
    ),
    Stage(
        "crowded",
        _CROWDED,
        "a bound that often meets the schedule",
        when=nodes(MEDIUM),
        share=0.1,
        most_s=20.0,
        unlimited_s=3.0,
        least_s=5.0,
    ),
    Stage(
        "cover-bound",
        f"{_BOUND}:CoverBound",
        "what must be recomputed at least to free enough at every stage",
        until=Verdict.SETTLED,
        share=0.15,
        most_s=20.0,
    ),
    Stage(
        "slow-methods-large",
        _KNOWN,
        "the methods that take seconds on a large graph",
        options={"methods": (*QUICK_METHODS[1:], *_CHECKPOINTING, *_MIN_CUTS)},
        when=nodes(LARGE),
        share=0.3,
        most_s=30.0,
        kernels=("flow",),
    ),
)
"""Schedules and bounds in time that grows with the edges of the graph, not with its square."""

_DEPTHS = (1.0, 1.5, 2.0, 3.0, 6.0)
"""How far from its uses a node may be recomputed, in the order of growth. Untuned."""


def _growth(depths: tuple[float, ...]) -> Iterator[Stage]:
    """One support after the other, with a proof after each that made the schedule cheaper."""
    for depth in depths:
        first = depth == depths[0]
        yield Stage(
            f"support-{depth:g}",
            _GROWING,
            "schedules that recompute a node only near its uses",
            options={"depth": depth, "first": first},
            when=SPARSE if len(depths) > 1 else ALWAYS,
            until=Verdict.SETTLED if first else None,
            writes_model=first,
        )
        if first:
            yield Stage(
                "chain",
                _CHAIN,
                "schedules and bounds from the structure of a chain",
                when=SPARSE & LONG_CHAIN,
                share=0.2,
                most_s=4.0,
                kernels=("segments",),
            )
            yield Stage(
                "annealing-first",
                _ANNEALING,
                "all that follows is faster with a better schedule",
                options={"rounds": 3},
                when=SPARSE & nodes(_FEW + 1) & STUCK,
                kernels=("annealing",),
            )
        yield Stage(
            f"proof-{depth:g}",
            _EVENTS,
            "a bound over all schedules that could be cheaper",
            options={"most_pairs": _EAGER_PAIRS},
            when=SPARSE,
            share=0.4,
            most_s=120.0,
        )


def exact(depth: float = 0.0) -> tuple[Stage, ...]:
    """The retention MILP: schedules over growing supports, and proofs.

    Args:
        depth: The only support to use; 0 lets it grow.
    """
    return (
        Stage(
            "annealing-merging",
            _TURNS,
            "what windows miss where reading is dense",
            options={"members": ("annealing", "merging"), "patience": 4, "persistent": False},
            when=DENSE,
            share=0.3,
            most_s=120.0,
            kernels=("annealing",),
        ),
        *_growth((depth,) if depth else _DEPTHS),
        Stage(
            "in-stage-proof",
            _INSIDE,
            "sees memory between two first computations too",
            when=SPARSE & nodes(most=SMALL),
            share=0.25,
            most_s=120.0,
        ),
        Stage(
            "last-proof",
            _EVENTS,
            "a bound from a larger support than before",
            options={"most_pairs": _PROOF_PAIRS},
            when=SPARSE & nodes(SMALL + 1),
            share=0.5,
            most_s=120.0,
        ),
        Stage(
            "full-support",
            f"{_ROOM}.retention.growing:FullSupport",
            "the optimum, or that nothing fits, of all frontier-advancing schedules",
            when=FULL,
            share=0.3,
            most_s=120.0,
        ),
    )


def turns(members: tuple[str, ...], *, depth: float = 2.0, patience: int = 8) -> tuple[Stage, ...]:
    """Engines that take turns until time or patience is out; those of ``members`` that suit the graph.

    Args:
        members: Of ``annealing``, ``merging`` and ``windows``.
        depth: Support of the model that windows are taken from.
        patience: Idle rounds to bear.
    """

    def stage(name: str, when: When, left_out: tuple[str, ...]) -> Stage:
        playing = tuple(member for member in members if member not in left_out)
        return Stage(
            name,
            _TURNS,
            f"{' and '.join(playing) or 'nothing'}, for as long as there is time",
            options={"members": playing, "depth": depth, "patience": patience},
            when=when,
            kernels=("annealing",) if "annealing" in playing else (),
        )

    # Where reading is dense, windows find less than annealing. From LARGE on a model takes seconds to state.
    return (
        stage("turns", nodes(most=LARGE) & SPARSE, ()),
        stage("turns-dense", nodes(most=LARGE) & DENSE, ("windows",) if len(members) > 1 else ()),
        stage("turns-large", nodes(LARGE + 1), ("windows", "merging")),
    )


def optimal(depth: float = 0.0) -> tuple[Stage, ...]:
    """What ``optimal`` tries."""
    return (*OPENERS, *_STARTS, *exact(depth))


def search(members: tuple[str, ...], depth: float, patience: int) -> tuple[Stage, ...]:
    """What ``search``, ``lns`` and ``anneal`` try: they differ in who takes turns."""
    return (*OPENERS, *_STARTS, *turns(members, depth=depth, patience=patience))


_SEARCHED = ("annealing", "merging", "windows")

AUTO = (
    *OPENERS,
    Stage("starts", _STARTS, "good schedules and bounds before any large model", maker="optimal"),
    Stage(
        "exact-small",
        exact(),
        "the optimum; part of the time, since a in-stage-proof may need the rest",
        when=nodes(most=SMALL),
        until=Verdict.SETTLED,
        writes_model=True,
        share=0.3,
        maker="optimal",
    ),
    Stage(
        "search-small",
        turns(_SEARCHED),
        "the proof that follows is the faster, the better the schedule",
        when=nodes(most=SMALL) & SCHEDULE,
        share=0.2,
        maker="search",
    ),
    Stage(
        "in-stage-proof",
        _INSIDE,
        "sees memory between two first computations too",
        when=nodes(most=SMALL) & SCHEDULE,
        most_s=300.0,
        maker="optimal",
    ),
    Stage(
        "exact",
        exact(),
        "the optimum, or a bound close to it",
        when=nodes(SMALL + 1),
        until=Verdict.SETTLED,
        writes_model=True,
        maker="optimal",
    ),
    Stage("search", turns(_SEARCHED), "what exact methods leave open", maker="search"),
    Stage(
        "beyond-one-pass",
        _KNOWN,
        "a few graphs have a plan only if stages are gone through twice",
        options={"methods": ("checkmate-ilp{stage_split=2}",), "last_word": True},
        when=nodes(most=_TINY) & NO_SCHEDULE,
    ),
)
"""What ``auto`` tries."""
