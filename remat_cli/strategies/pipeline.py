"""The order of things: what ``auto``, ``optimal``, ``search``, ``lns`` and ``anneal`` try, as tuples of stages.

Read a pipeline from top to bottom: each stage improves the same incumbent, for a share of the time that is left then.
Thresholds stand here, beside the stages that they steer. Each names the benchmark that measured it, or is "untuned".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from remat_cli.graph.model import Graph
from remat_cli.milp.cover_running import least_peak
from remat_cli.plan.model import Scope
from remat_cli.strategies.base import Context, Found, NotFound, Task
from remat_cli.strategies.chains.opener import chain_first
from remat_cli.strategies.engine import Stage, pursue
from remat_cli.strategies.incumbent import Incumbent, Verdict
from remat_cli.strategies.shape import is_dense

_ROOM = "remat_cli.strategies"
_KNOWN, _BOUND = f"{_ROOM}.openers.known:KnownMethods", f"{_ROOM}.bounding"
_CROWDED = f"{_ROOM}.openers.crowded:CrowdedStages"
_CHAIN = f"{_ROOM}.chains.opener:ChainStructure"
_GROWING = f"{_ROOM}.retention.growing:Growing"
_EVENTS, _INSIDE = f"{_ROOM}.retention.proving:EventProof", f"{_ROOM}.retention.proving:InStageProofs"
_ANNEALING, _TURNS = f"{_ROOM}.annealing.workers:Annealing", f"{_ROOM}.turns:Turns"

SMALL, MEDIUM, LARGE = 120, 300, 3_000
"""Numbers of nodes. Up to SMALL a proof may look inside stages (``targets``). Below MEDIUM a solver is done before
prices are worth their time, and from LARGE on a model takes seconds to state (``scaling``)."""
_TINY = 60
"""Up to so many nodes the paper's MILP can look beyond one pass through each stage. Untuned."""
_FEW = 30
"""Up to so many nodes a solver needs no help. Untuned."""
_FULL_PAIRS = 40_000
"""Largest number of (stage, node) pairs for which the model over the full support is tried. Untuned."""
_EAGER_PAIRS, _PROOF_PAIRS = 10_000, 60_000
"""Up to so many pairs a proof comes before deeper supports, which are about as large; and at all. Untuned."""


def nodes(least: int = 0, most: float = math.inf) -> Callable[[Incumbent], bool]:
    """Whether the graph has from ``least`` to ``most`` nodes."""
    return lambda incumbent: least <= len(incumbent.graph.nodes) <= most


def both(*conditions: Callable[[Incumbent], bool]) -> Callable[[Incumbent], bool]:
    """Whether all conditions hold; asked in this order."""
    return lambda incumbent: all(condition(incumbent) for condition in conditions)


def fresh(incumbent: Incumbent) -> bool:
    """Whether the search began without a schedule from earlier work on the task."""
    return not incumbent.informed


def no_schedule(incumbent: Incumbent) -> bool:
    """Whether nothing within the budget has been found."""
    return incumbent.computes is None


def dense(incumbent: Incumbent) -> bool:
    """Whether windows of a model find less than annealing, and a model of the near support is slow to state."""
    return is_dense(incumbent.graph)


def sparse(incumbent: Incumbent) -> bool:
    """The opposite of :func:`dense`."""
    return not is_dense(incumbent.graph)


def looks_like_a_chain(incumbent: Incumbent) -> bool:
    """Whether to ask the structure of a chain before anything else."""
    return chain_first(incumbent.graph)


def small_support(incumbent: Incumbent) -> bool:
    """Whether a model over the full support is small enough."""
    return len(incumbent.graph.nodes) ** 2 / 2 <= _FULL_PAIRS


_CHAIN_FIRST = Stage(
    "chain, at once",
    _CHAIN,
    "all of the answer where all sizes are equal",
    when=looks_like_a_chain,
    until=Verdict.EXACT,
    share=0.2,
    most_s=4.0,
    maker="optimal",
)

OPENERS = (
    Stage(
        "quick methods",
        _KNOWN,
        "a plan within a fraction of a second",
        options={"methods": ("dtr", "twremat", "xla-greedy{cost_aware=true}")},
        share=0.6,
        most_s=10.0,
    ),
    _CHAIN_FIRST,
    Stage(
        "checkpointing",
        _KNOWN,
        "fits where memory is tightest",
        options={"methods": ("ap-greedy", "linearized-greedy", "xla-greedy")},
        share=0.3,
        most_s=5.0,
    ),
    Stage(
        "minimum cuts",
        _KNOWN,
        "good where the forward pass has narrow places",
        options={"methods": ("min-cut",)},
        share=0.3,
        most_s=5.0,
        kernels=("flow",),
    ),
)
"""What takes milliseconds. The best plan of these is published before anything else begins."""

_STARTS = (
    Stage("quick bound", f"{_BOUND}:QuickBound", "a bound in a second, however large the graph", share=0.1, most_s=3.0),
    Stage(
        "crowded stages, small graph",
        _CROWDED,
        "often optimal at once on training steps",
        when=nodes(most=MEDIUM - 1),
        share=0.1,
        most_s=20.0,
        unlimited_s=3.0,
        least_s=1.0,
    ),
    Stage(
        "crowded stages, first",
        _CROWDED,
        "has a schedule within two seconds, or prices are sooner with one",
        when=nodes(MEDIUM, LARGE - 1),
        share=0.1,
        most_s=2.0,
        least_s=3.0,
    ),
    Stage(
        "clearing",
        f"{_ROOM}.openers.clearing:Clearings",
        "drops many values at once where none is worth it alone, and bounds the cost",
        options={"ways": 0},
        when=both(nodes(MEDIUM, LARGE - 1), fresh),
        share=0.15,
        most_s=20.0,
        kernels=("flow",),
    ),
    Stage(
        "clearing, large graph",
        f"{_ROOM}.openers.clearing:Clearings",
        "has a schedule while prices are still being found",
        options={"ways": 2},
        when=both(nodes(LARGE), fresh),
        share=0.2,
        most_s=20.0,
        kernels=("flow",),
    ),
    Stage(
        "prices",
        f"{_ROOM}.openers.prices:Prices",
        "schedules by the price of a byte in each stage (Lagrangian relaxation)",
        when=both(nodes(MEDIUM), fresh),
        share=0.3,
        most_s=60.0,
        kernels=("pricing",),
    ),
    Stage(
        "polish",
        f"{_ROOM}.annealing.polish:Polish",
        "takes back what need not be recomputed",
        when=both(nodes(MEDIUM), fresh),
        kernels=("annealing",),
    ),
    Stage(
        "crowded stages",
        _CROWDED,
        "a bound that often meets the schedule",
        when=nodes(MEDIUM),
        until=Verdict.EXACT,
        share=0.1,
        most_s=20.0,
        unlimited_s=3.0,
        least_s=5.0,
    ),
    Stage(
        "cover bound",
        f"{_BOUND}:CoverBound",
        "what must be recomputed at least to free enough at every stage",
        until=Verdict.SETTLED,
        share=0.15,
        most_s=20.0,
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
            f"support of depth {depth:g}",
            _GROWING,
            "schedules that recompute a node only near its uses",
            options={"depth": depth, "first": first},
            when=sparse if len(depths) > 1 else nodes(),
            until=Verdict.SETTLED if first else None,
        )
        if first:
            yield Stage(
                "chain",
                _CHAIN,
                "schedules and bounds from the structure of a chain",
                when=sparse,
                until=Verdict.EXACT,
                share=0.2,
                most_s=4.0,
                kernels=("segments",),
            )
            yield Stage(
                "annealing, first runs",
                _ANNEALING,
                "all that follows is faster with a better schedule",
                options={"rounds": 3},
                when=lambda i: sparse(i) and (no_schedule(i) or _FEW < len(i.graph.nodes) <= SMALL),
                kernels=("annealing",),
            )
        yield Stage(
            f"proof after depth {depth:g}",
            _EVENTS,
            "a bound over all schedules that could be cheaper",
            options={"most_pairs": _EAGER_PAIRS},
            when=sparse,
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
            "annealing and merging",
            _TURNS,
            "what windows miss where reading is dense",
            options={"members": ("annealing", "merging"), "patience": 4, "persistent": False},
            when=dense,
            share=0.3,
            most_s=120.0,
            kernels=("annealing",),
        ),
        *_growth((depth,) if depth else _DEPTHS),
        Stage(
            "proof inside stages",
            _INSIDE,
            "sees memory between two first computations too",
            when=both(nodes(most=SMALL), sparse),
            share=0.25,
            most_s=120.0,
        ),
        Stage(
            "last proof",
            _EVENTS,
            "a bound from a larger support than before",
            options={"most_pairs": _PROOF_PAIRS},
            when=both(nodes(SMALL + 1), sparse),
            share=0.5,
            most_s=120.0,
        ),
        Stage(
            "full support",
            f"{_ROOM}.retention.growing:FullSupport",
            "the optimum, or that nothing fits, of all frontier-advancing schedules",
            when=small_support,
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

    def stage(name: str, when: Callable[[Incumbent], bool], left_out: tuple[str, ...]) -> Stage:
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
        stage("turns", both(nodes(most=LARGE), sparse), ()),
        stage("turns, dense graph", both(nodes(most=LARGE), dense), ("windows",) if len(members) > 1 else ()),
        stage("turns, large graph", nodes(LARGE + 1), ("windows", "merging")),
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
        "exact, small graph",
        exact(),
        "the optimum; part of the time, since a proof inside stages may need the rest",
        when=nodes(most=SMALL),
        until=Verdict.SETTLED,
        share=0.3,
        maker="optimal",
    ),
    Stage(
        "search, small graph",
        turns(_SEARCHED),
        "the proof that follows is the faster, the better the schedule",
        when=both(nodes(most=SMALL), lambda i: not no_schedule(i)),
        share=0.2,
        maker="search",
    ),
    Stage(
        "proof inside stages",
        _INSIDE,
        "sees memory between two first computations too",
        when=both(nodes(most=SMALL), lambda i: not no_schedule(i)),
        most_s=300.0,
        maker="optimal",
    ),
    Stage(
        "exact",
        exact(),
        "the optimum, or a bound close to it",
        when=nodes(SMALL + 1),
        until=Verdict.SETTLED,
        maker="optimal",
    ),
    Stage("search", turns(_SEARCHED), "what exact methods leave open", maker="search"),
    Stage(
        "beyond one pass",
        _KNOWN,
        "a few graphs have a plan only if stages are gone through twice",
        options={"methods": ("checkmate-ilp{stage_split=2}",), "last_word": True},
        when=both(nodes(most=_TINY), no_schedule),
    ),
)
"""What ``auto`` tries."""


def solve_by(pipeline: tuple[Stage, ...], task: Task, context: Context, goal: Verdict) -> Found | NotFound:
    """The answer of a pipeline: the incumbent at its end, or why there is none.

    Args:
        pipeline: The stages.
        task: Graph, budget, and what is known.
        context: What engines may use.
        goal: The verdict at which to stop.
    """
    incumbent = Incumbent.of(task, context, goal=goal)
    pursue(pipeline, incumbent)
    if incumbent.computes is not None:
        return incumbent.found(exhausted=incumbent.exhausted())
    if incumbent.verdict is Verdict.IMPOSSIBLE:
        least = _least_peak(task.graph)
        return incumbent.not_found("no schedule in document order fits", Scope.DOCUMENT_ORDER, peak_bound_bytes=least)
    if incumbent.refusal is not None:
        return incumbent.refusal
    if incumbent.verdict is Verdict.CLASS:
        return incumbent.not_found("no frontier-advancing schedule fits", Scope.FRONTIER)
    return incumbent.not_found("no schedule within the budget was found")


def _least_peak(graph: Graph) -> int:
    """A bound on the peak of every schedule in document order."""
    return least_peak(graph)
