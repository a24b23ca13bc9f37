"""The pipelines of ``auto``, ``optimal``, ``search``, ``lns`` and ``anneal``, as tuples of stages.

Read a pipeline from top to bottom: each stage improves the same incumbent, for a share of the time left when it starts.
The benchmark ``ablation`` says what each stage gains. Their shares and seconds are judged together, by the benchmarks
``targets`` and ``anytime``.
"""

from __future__ import annotations

from dataclasses import replace

from remat_cli.strategies.conditions import (
    ADDING,
    BLOCKS_FIRST,
    CHAIN,
    COLD,
    COPYING,
    DENSE,
    EXPENSIVE,
    FEW,
    FRESH,
    FULL,
    HANDFUL,
    LARGE,
    LIMITED,
    MANY,
    MEDIUM,
    NO_SCHEDULE,
    OTHERS_FIRST,
    OVERLAPPING,
    REPAIRABLE,
    SCHEDULE,
    SMALL,
    SPARSE,
    TIGHT,
    TINY,
    UNOPENED,
    VAST,
    nodes,
)
from remat_cli.strategies.copying.offload import offload
from remat_cli.strategies.engine import ALWAYS, Stage, When
from remat_cli.strategies.incumbent import Verdict
from remat_cli.strategies.overlapping.overlap import overlap
from remat_cli.strategies.published.opener import OPENING_METHODS, QUICK_METHODS

_ROOM = "remat_cli.strategies"
_METHODS, _BOUND = f"{_ROOM}.published.opener:PublishedMethods", f"{_ROOM}.openers.cover_bounds"
_PRICES = f"{_ROOM}.openers.prices:Prices"
_STAGE_CUTS = f"{_ROOM}.openers.stage_cuts:StageCuts"
_CHAIN = f"{_ROOM}.chains.visits:ChainStructure"
_INSIDE = f"{_ROOM}.retention.proof:InStageProofs"
_ANNEALING, _ROUND_ROBIN = f"{_ROOM}.annealing.engines:Annealing", f"{_ROOM}.round_robin:RoundRobin"

_BLOCKS, _LOOPS = f"{_ROOM}.repeated.search:Repetition", f"{_ROOM}.engine:CompiledLoops"

_QUICK_METHODS = Stage(
    "quick-methods",
    _METHODS,
    "give a plan where the stages before find none, or wait for their loops",
    options={"methods": QUICK_METHODS},
    when=nodes(most=LARGE - 1) & UNOPENED & (NO_SCHEDULE | COLD),
    share=0.6,
    most_s=10.0,
)

OPENERS = (
    Stage(
        "quick-method",
        _METHODS,
        "gives a plan within a twentieth of a second, if it finds one",
        options={"methods": QUICK_METHODS[:1]},
        when=nodes(most=LARGE - 1) & UNOPENED,
        share=0.3,
        most_s=5.0,
    ),
    Stage(
        "prices-first",
        _PRICES,
        "give a plan in a fifth of a second where the quickest method finds none, as on random graphs",
        when=nodes(FEW + 1, LARGE - 1) & FRESH & NO_SCHEDULE,
        share=0.1,
        most_s=5.0,
        kernels=("pricing",),
        maker="optimal",
    ),
    replace(
        _QUICK_METHODS,
        name="quick-methods-small",
        why="make the first plan cheaper within a tenth of a second, which often ends the search sooner",
        when=nodes(most=MEDIUM - 1) & UNOPENED & SCHEDULE,  # else `resnet34` at 60% takes 1.5 s instead of .5 (by hand)
    ),
    Stage(
        "chain-first",
        _CHAIN,
        "gives the optimum if all sizes are equal",
        when=CHAIN,
        until=Verdict.EXACT,
        share=0.2,
        most_s=4.0,
        maker="optimal",
    ),
    Stage(
        "blocks-first",
        _BLOCKS,
        "gives a plan of a very large training step, or where memory is tight, by solving equal blocks once",
        when=BLOCKS_FIRST & FRESH,
        share=0.5,
        most_s=60.0,
        kernels=("repeated", "flow"),
    ),
    Stage(
        "quick-method-large",
        _METHODS,
        "gives a plan within a second or two on a large graph",
        options={"methods": QUICK_METHODS[:1]},
        when=nodes(LARGE) & UNOPENED & (OTHERS_FIRST | NO_SCHEDULE),
        share=0.6,
        most_s=3.0,  # on a random graph of 10,000 nodes at 90% it would take 10 and find nothing (by hand)
    ),
)
"""The first plan is published here, before anything else begins."""

_ANNEALING_SMALL = Stage(
    "annealing-small",
    _ANNEALING,
    "often finds a first schedule in a tenth of a second, before seconds of bottleneck stages",
    options={"rounds": 3},
    when=nodes(FEW + 1, MEDIUM - 1) & SPARSE & NO_SCHEDULE,
    until=Verdict.SETTLED,
    share=0.1,
    most_s=0.15,  # with .8 s `checkmate/unet_mini` at 50% is proven after 1.1 s, not .6 (by hand)
    kernels=("annealing",),
)

_SQUEEZE = Stage(
    "squeeze",
    f"{_ROOM}.annealing.squeeze:Squeezing",
    "looks for any schedule that fits, at any cost",
    when=nodes(FEW + 1, LARGE - 1) & NO_SCHEDULE,
    until=Verdict.SETTLED,
    share=0.3,
    most_s=20.0,
    kernels=("annealing",),
)
"""Fits `segnet` into its largest working set, where annealing for the cost finds nothing in a minute (``tight``). It
comes before `unreachable`, which takes 16 of 120 s there without an answer (by hand)."""

_REPAIR = Stage(
    "repair",
    f"{_ROOM}.annealing.repair:Repair",
    "makes a schedule fit that costs little more than a bound",
    when=nodes(FEW + 1, LARGE - 1),
    share=0.25,
    most_s=30.0,
    kernels=("annealing",),
)
"""`resnet50` at 1.1 times its least peak: from 24.5% to 19.4% over no-remat; `segnet`: from 66 to 59% (``tight``)."""

_STAGE_CUTS_LATER = Stage(
    "stage-cuts",
    _STAGE_CUTS,
    "gives a bound that often meets the incumbent",
    when=nodes(MEDIUM),
    share=0.1,
    most_s=20.0,
    unlimited_s=3.0,
    least_s=5.0,
)

_SERVED_LEVELS = Stage(
    "served-levels",
    f"{_ROOM}.repeated.bound:ServedLevels",
    "bounds the cost where blocks must be recomputed from recomputed blocks",
    share=0.2,  # a tenth of 30 s does not reach all forms of levels of a ResNet of 299 layers (by hand)
    most_s=20.0,
    kernels=("repeated", "flow"),
)

_TAIL = Stage(
    "tail",
    f"{_ROOM}.openers.tails:Tails",
    "searches all states of the end of a training step, which bottleneck stages underrate",
    when=nodes(most=MANY) & TIGHT,
    share=0.35,  # a quarter of 120 s is too little for `checkmate/ResNet50` if both cores are busy (by hand)
    most_s=60.0,
    least_s=60.0,  # what it finds takes as long to use; with 30 s the gaps of `inception-v3` and `unet` were larger
    kernels=("states",),
)
_TAIL_END = replace(
    _TAIL,
    name="tail-end",
    why="gives the incumbent a cheaper end",
    options={"search": False},
    when=_TAIL.when & SCHEDULE,
    least_s=0.0,
    kernels=(),
)

_UNREACHABLE = Stage(
    "unreachable",
    f"{_ROOM}.repeated.reachability:Unreachable",
    "proves that nothing fits, from a part of the graph",
    when=nodes(FEW + 1, VAST - 1) & NO_SCHEDULE,
    until=Verdict.IMPOSSIBLE,
    share=0.15,
    most_s=20.0,
    kernels=("annealing", "reaching"),  # squeezing comes before it, also if it has to wait for its loops
)

_PREFIX = Stage(
    "prefix",
    f"{_ROOM}.openers.prefixes:Prefixes",
    "looks for a cheaper beginning before the cheapest end",
    when=_TAIL.when & SCHEDULE,
    share=0.25,  # with .4 plans of `checkmate/ResNet50` near its least peak were no cheaper (by hand)
    most_s=30.0,
    kernels=("annealing",),
)

_STARTS = (
    Stage(
        "blocks-tight",
        _BLOCKS,
        "gives a schedule where little more than the least memory is left, which other methods take long to find",
        when=nodes(2 * MEDIUM, LARGE - 1) & TIGHT & NO_SCHEDULE,  # the 349 of `resnet50` are in too few equal blocks
        share=0.4,
        most_s=20.0,
        kernels=("repeated", "flow"),
    ),
    replace(
        _UNREACHABLE,
        name="unreachable-first",
        why="proves within half a second that nothing fits, from a part of the graph",
        share=0.02,  # a whole turn takes 17 of 120 s of `checkmate/ResNet50`, where squeezing finds a schedule in one
        most_s=0.5,  # `checkmate/unet_mini` at 50% is proven .2 s after it
        kernels=("reaching",),
    ),
    Stage("quick-bound", f"{_BOUND}:QuickBound", "a bound in a second, however large the graph", share=0.1, most_s=3.0),
    _ANNEALING_SMALL,
    replace(
        _STAGE_CUTS_LATER,
        name="stage-cuts-small",
        why="is often optimal on training steps after a few solves",
        when=nodes(most=MEDIUM - 1),
        share=0.2,  # with half of it `llama2` at 70% is not proven in 8 s, though the solve takes 2 (by hand)
        until=Verdict.SETTLED,
        goal=Verdict.SETTLED,
        most_s=5.0,
        least_s=1.0,
    ),
    replace(
        _STAGE_CUTS_LATER,
        name="stage-cuts-first",
        why="finds the optimum within half a second, or leaves it to other methods",
        when=nodes(MEDIUM, LARGE - 1),
        until=Verdict.SETTLED,
        goal=Verdict.SETTLED,
        most_s=0.5,  # with 2 s `resnet50` takes up to 2.4 s at 40 to 60%, though repair closes it in .1 s (by hand)
        unlimited_s=None,
        least_s=3.0,
    ),
    Stage(
        "compile",
        _LOOPS,
        "compiles inner loops beside the search, in the first run after an installation",
        options={"groups": ("flow", "pricing", "annealing", "repeated", "states")},
        when=nodes(FEW + 1),
    ),
    _SQUEEZE,
    replace(
        _SQUEEZE,
        name="squeeze-large",
        when=nodes(LARGE, VAST - 1) & NO_SCHEDULE,
        share=0.2,
        most_s=2.0,  # a second is enough for sparse graphs of 20,000 nodes; dense ones of 10,000 get none (by hand)
    ),
    _QUICK_METHODS,
    replace(_SERVED_LEVELS, name="served-levels-tight", when=nodes(LARGE) & FRESH & TIGHT, share=0.6),
    Stage(
        "chains-large",
        _METHODS,
        "fit a long chain of blocks into a few working sets, which recursion does",
        options={"methods": ("revolve", "rotor")},
        when=nodes(LARGE) & NO_SCHEDULE,
        share=0.4,
        most_s=30.0,
        kernels=("segments",),
    ),
    Stage(
        "clearing",
        f"{_ROOM}.openers.clearing:Clearings",
        "gives a bound, and a schedule if there is none: drops values together where none pays off alone",
        when=nodes(MEDIUM) & FRESH,
        share=0.2,
        most_s=20.0,
        kernels=("flow",),
    ),
    Stage(
        "prices",
        _PRICES,
        "give schedules by the price of a byte in each stage (Lagrangian relaxation)",
        when=nodes(MEDIUM) & FRESH,
        until=Verdict.SETTLED,
        goal=Verdict.SETTLED,
        share=0.3,
        most_s=60.0,
        kernels=("pricing",),
    ),
    _UNREACHABLE,
    Stage(
        "polish",
        f"{_ROOM}.annealing.engines:Polish",
        "removes recomputations that are not needed",
        when=nodes(MEDIUM) & FRESH,
        until=Verdict.SETTLED,
        goal=Verdict.SETTLED,
        kernels=("annealing",),
    ),
    replace(
        _REPAIR,
        name="repair-first",
        why="often ends the search at once where a bound is close",
        when=nodes(FEW + 1, LARGE - 1) & SCHEDULE,
        most_s=0.3,  # both ResNet-50 at 40% take .1 s (by hand)
    ),
    Stage(
        "blocks",
        _BLOCKS,
        "solves equal blocks of a training step once, and chooses for all of them together",
        when=nodes(MEDIUM) & FRESH,
        share=0.5,
        most_s=60.0,
        kernels=("repeated", "flow"),
    ),
    _TAIL,
    _STAGE_CUTS_LATER,
    replace(_REPAIR, when=nodes(SMALL + 1, REPAIRABLE)),
    replace(_REPAIR, name="repair-small", when=nodes(FEW + 1, SMALL), share=0.1),  # cuts need the time
    _TAIL_END,
    _PREFIX,
    Stage(
        "cover-bound",
        f"{_BOUND}:CoverBound",
        "bounds the recomputation that frees enough memory at every stage",
        share=0.15,
        most_s=20.0,
    ),
    replace(_SERVED_LEVELS, when=nodes(MEDIUM) & FRESH & EXPENSIVE),
    Stage(
        "other-methods",
        _METHODS,
        "never found anything cheaper than the stages before (``ablation``), but no plan costs more than theirs",
        options={"methods": OPENING_METHODS},
        when=UNOPENED,
        share=0.3,
        most_s=30.0,
        kernels=("flow",),
    ),
    replace(
        _ANNEALING_SMALL,
        name="annealing-short",
        why="improves the incumbent before a large model takes most of the time",
        when=nodes(SMALL + 1, LARGE - 1) & SPARSE & SCHEDULE,
        until=None,
        most_s=1.0,
    ),
)
"""Schedules and bounds in time that grows with the edges of the graph, not with its square."""

_ENUMERATION = f"{_ROOM}.openers.enumeration:Enumeration"
_ALL_STATES = Stage("enumeration", _ENUMERATION, "proves the optimum, whatever the sizes", when=nodes(most=HANDFUL))
_DEPTH = 1.0
"""How far from its uses a node may be recomputed; 1.5, 2, 3 and 6 found nothing more (``ablation``)."""

_INSIDE_STAGE_CUTS = Stage(
    "stage-cuts-inside",
    _STAGE_CUTS,
    "looks into the stages that need the most memory alone",
    when=nodes(most=MANY),
    share=0.75,
    most_s=240.0,
    unlimited_s=30.0,
)
"""Closes `checkmate/unet` and `checkmate/vgg_unet` at the least budgets that work (``tight``)."""


def exact(depth: float = 0.0) -> tuple[Stage, ...]:
    """The retention MILP: schedules over a support, and proofs.

    Args:
        depth: The support to use; 0 for the usual one.
    """
    return (
        Stage(
            "round-robin-short",
            _ROUND_ROBIN,
            "improves the incumbent before larger models take most of the time",
            options={"members": ("annealing", "merging"), "patience": 2, "persistent": False},
            when=nodes(SMALL + 1, LARGE - 1) & SPARSE & SCHEDULE,
            share=0.85,
            most_s=5.0,
            kernels=("annealing",),
        ),
        Stage(
            f"support-{depth or _DEPTH:g}",
            f"{_ROOM}.retention.search:NearSupport",
            "gives schedules that recompute a node only near its uses",
            options={"depth": depth or _DEPTH},
            when=ALWAYS if depth else SPARSE,
            writes_model=True,
        ),
        _INSIDE_STAGE_CUTS,
        Stage(
            "in-stage-proof",
            _INSIDE,
            "counts memory between two first computations too",
            when=SPARSE & nodes(most=SMALL),
            share=0.25,
            most_s=300.0,
        ),
        _ALL_STATES,
    )


def round_robin(
    members: tuple[str, ...], *, depth: float = 2.0, patience: int = 8, suffix: str = ""
) -> tuple[Stage, ...]:
    """Engines that take turns until time or patience is out: those of ``members`` that suit the graph.

    Args:
        members: Of ``annealing``, ``merging`` and ``windows``.
        depth: Support of the model that windows are taken from.
        patience: Idle rounds in a row after which they end.
        suffix: End of the names of the stages.
    """

    def stage(name: str, when: When, left_out: tuple[str, ...]) -> Stage:
        playing = tuple(member for member in members if member not in left_out)
        return Stage(
            name,
            _ROUND_ROBIN,
            f"{' and '.join(playing) or 'nothing'}, while there is time",
            options={"members": playing, "depth": depth, "patience": patience},
            when=when,
            kernels=("annealing",) if "annealing" in playing else (),
        )

    # On dense graphs windows find less than annealing. From LARGE on a model takes seconds to state.
    return (
        stage(f"round-robin{suffix}", nodes(most=LARGE) & SPARSE, ()),
        stage(f"round-robin-dense{suffix}", nodes(most=LARGE) & DENSE, ("windows",) if len(members) > 1 else ()),
        stage(f"round-robin-large{suffix}", nodes(LARGE + 1), ("windows", "merging")),
    )


_SEARCHED = ("annealing", "merging", "windows")

_LAST = (
    Stage(
        "stage-cuts-last",
        _STAGE_CUTS,
        "goes on where bottleneck stages ran out of their time",
        when=LIMITED & nodes(most=MANY),
        share=0.5,
    ),
    Stage(
        "in-stage-last",
        _INSIDE,
        "counts memory between two first computations on larger graphs too",
        when=LIMITED & SPARSE & nodes(most=MEDIUM) & SCHEDULE,
        share=0.5,
    ),
    Stage(
        "full-support",
        f"{_ROOM}.retention.search:FullSupport",
        "proves the optimum of all frontier-advancing schedules, or that none fits",
        when=FULL,
        share=0.5,
    ),
    *(replace(stage, when=LIMITED & stage.when) for stage in round_robin(_SEARCHED, suffix="-last")),
)
"""No search ends by itself with a gap open before these were tried: stages before them leave parts of the time."""


def optimal(depth: float = 0.0) -> tuple[Stage, ...]:
    """The stages of ``optimal``; with ``depth`` those of this support alone."""
    return (*OPENERS, *_STARTS, *exact(depth), *(() if depth else _LAST))


def search(members: tuple[str, ...], depth: float, patience: int) -> tuple[Stage, ...]:
    """The stages of ``search``, ``lns`` and ``anneal``, which differ in the engines that take turns."""
    last = _LAST if len(members) > 1 else ()  # the others are one engine alone
    return (*OPENERS, *_STARTS, *round_robin(members, depth=depth, patience=patience), *last)


SECOND_SEARCH = (
    Stage("second-search", round_robin(_SEARCHED), "finds plans while another thread proves bounds", maker="search"),
)
"""The stages of the second thread (see ``parallel_search``)."""

_RECOMPUTING = (
    *OPENERS,
    Stage(
        "starts",
        _STARTS,
        "give good schedules and bounds before any large model",
        until=Verdict.SETTLED,
        maker="optimal",
    ),
    Stage(
        "exact",
        exact(),
        "finds the optimum, or a bound close to it",
        writes_model=True,
        maker="optimal",
    ),
    Stage("search", round_robin(_SEARCHED), "closes the gap that exact methods leave", maker="search"),
    Stage(
        "beyond-one-pass",
        _METHODS,
        "finds plans that go through a stage twice, which a few graphs need",
        options={"methods": ("checkmate-ilp{stage_split=2}",), "last_word": True},
        when=nodes(most=TINY) & NO_SCHEDULE,
    ),
    Stage(
        "last",
        _LAST,
        "closes the gap where stages before left part of the time",
        maker="search",
    ),
)
AUTO = (
    *(replace(stage, when=ADDING & stage.when) for stage in _RECOMPUTING),
    Stage(
        "offload",
        offload(),
        "recomputes or copies, by time, in place of all other stages",
        when=COPYING,
        maker="offload",
    ),
    Stage(
        "overlap",
        overlap(),
        "recomputes and gathers again, by time, in place of all other stages",
        when=OVERLAPPING,
        maker="overlap",
    ),
)
"""The stages of ``auto``."""
