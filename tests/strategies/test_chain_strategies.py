"""Revolve, Rotor and periodic segments: published counts, a search of all persistent schedules, and each other."""

from __future__ import annotations

import functools
import itertools
import random

import pytest
from chain_cases import cheapest_persistent, figure_2, random_rotor_chain
from families import computes_of

from remat_cli.errors import Infeasible, StrategyMismatch, UsageError
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.plan.derive import peak
from remat_cli.plan.model import ClaimStatus, Scope
from remat_cli.planning.solving import Solved, SolveOptions, solve
from remat_cli.strategies.chains.binomial import advances, binomial
from remat_cli.strategies.chains.checkpointed import periodic, recursive
from remat_cli.strategies.chains.extract import Chain
from remat_cli.strategies.chains.griewank import Hetero, reversal
from remat_cli.strategies.chains.rotor import Program
from remat_cli.strategies.registry import strategy_from_spec
from remat_cli.zoo.registry import build_graph

OTHERS = ("chen-recursive", "revolve", "revolve-bytes", "revolve-hetero", "sequential")


def found(graph: Graph, budget: int | str, strategy: str) -> Solved | None:
    try:
        return solve(graph, budget, SolveOptions(strategy=strategy))
    except (Infeasible, StrategyMismatch):
        return None


# Griewank


def test_published_counts() -> None:
    assert [advances(10, s) for s in range(1, 10)] == [45, 20, 15, 14, 13, 12, 11, 10, 9]
    assert advances(0, 3) == 0
    assert advances(1, 1) == 0
    with pytest.raises(ValueError, match="takes a slot"):
        advances(3, 0)


@functools.cache
def least_advances(length: int, slots: int) -> int:
    """The recursion that the closed form solves."""
    if length == 1:
        return 0
    if slots == 1:
        return length * (length - 1) // 2
    return min(k + least_advances(length - k, slots - 1) + least_advances(k, slots) for k in range(1, length))


def replayed(length: int, runs: list[int], costs: list[int]) -> int:
    """Cost of the plain advances of ``runs``, with every recorded step run right before its adjoint."""
    recorded, cost, loss = 0, 0, False
    for at, run in enumerate(runs):
        if run >= 0:
            cost += costs[run]
        elif ~run == length:
            loss = True
        else:
            assert loss
            assert ~run == length - 1 - recorded, "steps are reversed from the last to the first"
            before = runs[at - 1] if runs[at - 1] >= 0 else runs[at - 2]
            assert before == ~run, "a step is recorded right before its adjoint"
            cost -= costs[~run]
            recorded += 1
    assert recorded == length
    return cost


@pytest.mark.parametrize("length", [1, 2, 3, 7, 10, 30, 61])
def test_binomial_schedules_take_what_the_formula_says(length: int) -> None:
    for slots in range(1, length + 1):
        runs = reversal(length, binomial(length, slots))
        assert replayed(length, runs, [1] * length) == advances(length, slots) == least_advances(length, slots)


def test_unequal_costs_by_the_recursion() -> None:
    rng = random.Random(5)
    for _ in range(20):
        length = rng.randint(1, 12)
        costs = [rng.randint(0, 9) for _ in range(length)]

        @functools.cache
        def least(i: int, j: int, s: int, costs: tuple[int, ...] = tuple(costs)) -> int:
            if j - i <= 1:
                return 0
            ways = [sum(sum(costs[i:e]) for e in range(i, j))]
            if s > 1:
                ways += [sum(costs[i:k]) + least(k, j, s - 1) + least(i, k, s) for k in range(i + 1, j)]
            return min(ways)

        program = Hetero.of([float(c) for c in costs], length)
        for slots in range(1, length + 1):
            runs = reversal(length, program.splits(slots))
            assert replayed(length, runs, costs) == program.advances(slots) == least(0, length, slots)


def test_slots_bound_what_is_stored() -> None:
    """On a chain whose gradients take no memory, s slots are s states beside the two of a step."""
    length = 12
    nodes = [Node(f"f{i}", 1.0, (i - 1,) if i else (), (1,), phase=Phase.FORWARD) for i in range(length + 1)]
    nodes.append(Node("loss", 1.0, (length,), (0,), phase=Phase.LOSS))
    for i in reversed(range(length)):
        nodes.append(Node(f"b{i}", 1.0, (i, i + 1, len(nodes) - 1), (0,), phase=Phase.BACKWARD))
    graph = Graph("states", tuple(nodes), (len(nodes) - 1,))
    chain = Chain.of(graph, "revolve")
    assert chain.length == length + 1
    for slots in range(1, length + 1):
        assert peak(graph, chain.computes(reversal(chain.length, binomial(chain.length, slots)))) <= slots + 2


# Rotor


@pytest.mark.parametrize("workspace", [False, True])
def test_rotor_equals_a_search_of_all_persistent_schedules(workspace: bool) -> None:
    rng = random.Random(6 + workspace)
    compared = 0
    for _ in range(60):
        chain = random_rotor_chain(rng, rng.randint(2, 4), workspace=workspace)
        graph = chain.graph()
        for budget in range(peak_bound(graph).bytes, no_remat_peak(graph)):
            truth = cheapest_persistent(chain, budget)
            solved = found(graph, budget, "rotor")
            if truth is None:
                # Freeing as early as possible may make a plan fit that the model of a chain has no room for.
                assert solved is None or solved.plan.claim.scope is not Scope.CHAIN_PERSISTENT
                continue
            assert solved is not None
            claim = solved.plan.claim
            assert claim.cost <= truth
            if claim.scope is Scope.CHAIN_PERSISTENT:
                assert claim.cost == claim.lower_bound == truth
                assert claim.status is ClaimStatus.OPTIMAL
                compared += 1
    assert compared > 100


@pytest.mark.parametrize("workspace", [False, True])
def test_revolve_in_bytes_equals_a_search_in_which_no_tape_waits(workspace: bool) -> None:
    rng = random.Random(16 + workspace)
    equal = worse = cheaper = 0
    for _ in range(40):
        chain = random_rotor_chain(rng, rng.randint(2, 5), workspace=workspace)
        graph = chain.graph()
        for budget in range(peak_bound(graph).bytes, no_remat_peak(graph)):
            truth = cheapest_persistent(chain, budget, early=False)
            solved, rotor = found(graph, budget, "revolve-bytes"), found(graph, budget, "rotor")
            if truth is None:
                continue
            assert solved is not None
            assert rotor is not None
            assert rotor.plan.claim.cost <= solved.plan.claim.cost <= truth
            assert solved.plan.claim.scope is not Scope.CHAIN_PERSISTENT
            equal += solved.plan.claim.cost == truth
            cheaper += solved.plan.claim.cost < truth
            worse += rotor.plan.claim.cost < solved.plan.claim.cost
    assert equal > 100
    assert worse > 50
    assert cheaper < 0.05 * equal, "only where the chain of the graph admits more than the paper's"


@pytest.mark.parametrize("n", [2, 4])
def test_persistence_costs_what_figure_2_says(n: int) -> None:
    chain, budget = figure_2(n)
    graph = chain.graph()
    persistent = solve(graph, budget, SolveOptions(strategy="rotor")).plan.claim
    assert (persistent.cost, persistent.scope) == (3 * n + 1, Scope.CHAIN_PERSISTENT)
    assert cheapest_persistent(chain, budget) == 3 * n + 1
    for strategy in ("optimal", "auto"):
        assert solve(graph, budget, SolveOptions(strategy=strategy)).plan.claim.cost == 2 * n + 2


def test_rotor_is_no_worse_than_the_others() -> None:
    rng = random.Random(8)
    better = 0
    for _ in range(25):
        graph = random_rotor_chain(rng, rng.randint(3, 9), workspace=False).graph()
        for budget in range(peak_bound(graph).bytes, no_remat_peak(graph), 3):
            rotor = found(graph, budget, "rotor")
            for other in OTHERS:
                solved = found(graph, budget, other)
                if solved is not None:
                    assert rotor is not None
                    assert rotor.plan.claim.cost <= solved.plan.claim.cost
                    better += rotor.plan.claim.cost < solved.plan.claim.cost
    assert better > 50


def test_unit_training_chain_is_solved_like_published() -> None:
    graph = build_graph("unit-chain{n=17}")
    costs = [solve(graph, b, SolveOptions(strategy="rotor")).plan.claim.cost for b in range(3, 11)]
    assert costs == [45, 26, 22, 21, 20, 19, 18, 17]


def test_coarse_units_give_plans_that_fit() -> None:
    rng = random.Random(9)
    sizes = ":".join(str(rng.randint(10**9, 3 * 10**9)) for _ in range(40))
    graph = build_graph(f"linear{{n=40,sizes={sizes}}}")
    costs = []
    for slots in (20, 100, 500):
        program = Program.of(Chain.of(graph, "rotor"), no_remat_peak(graph) // 2, slots)
        assert program is not None
        assert program.bound(no_remat_peak(graph) // 2) is None, "what is rounded proves nothing"
    for budget in ("60%", "40%"):
        solved = solve(graph, budget, SolveOptions(strategy="rotor"))
        assert solved.plan.claim.scope is not Scope.CHAIN_PERSISTENT
        costs.append(solved.plan.claim.cost)
    assert costs[0] < costs[1]


def test_what_may_run_only_once_is_kept() -> None:
    """Rotor plans for it; the others keep it beside what they store."""
    rng = random.Random(10)
    tried = 0
    for _ in range(40):
        chain = random_rotor_chain(rng, 5, workspace=False).graph()
        frozen = {rng.randint(1, 5), rng.randint(1, 5)}
        nodes = [
            Node(n.id, n.cost, n.inputs, n.outputs, n.workspace, i not in frozen and n.recompute, phase=n.phase)
            for i, n in enumerate(chain.nodes)
        ]
        graph = Graph("frozen", tuple(nodes), chain.outputs)
        for budget in range(peak_bound(graph).bytes, no_remat_peak(graph), 2):
            for strategy in ("rotor", *OTHERS):
                solved = found(graph, budget, strategy)
                if solved is not None:
                    runs = computes_of(solved.plan)
                    assert all(runs.count(i) == 1 for i in frozen)
                    tried += len(runs) > len(graph.nodes)
    assert tried > 20


# Long chains


@pytest.mark.parametrize("strategy", ["revolve", "revolve-hetero"])
def test_few_numbers_of_slots_are_enough(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    costs, sizes = ":".join(["3", "1"] * 20), ":".join(["2", "7"] * 20)
    graph = build_graph(f"linear{{n=40,costs={costs},sizes={sizes}}}")
    for percent in (70, 45, 30):
        every = solve(graph, f"{percent}%", SolveOptions(strategy=strategy)).plan.claim.cost
        with monkeypatch.context() as patched:
            patched.setattr("remat_cli.strategies.chains.griewank._ALL_TRIED", 0)
            assert solve(graph, f"{percent}%", SolveOptions(strategy=strategy)).plan.claim.cost == every


def test_long_chains_are_grouped_and_then_nothing_is_proven() -> None:
    graph = build_graph("linear{n=60}")
    whole = Chain.of(graph, "rotor")
    grouped = Chain.of(graph, "rotor", 12)
    assert (whole.length, grouped.length) == (60, 12)
    assert [i for stage in grouped.stages for i in stage.block] == list(range(60))
    assert max(len(stage.block) for stage in grouped.stages) == 5
    exact = solve(graph, "40%", SolveOptions(strategy="rotor")).plan.claim
    rough = solve(graph, "40%", SolveOptions(strategy="rotor{blocks=12}"))
    assert exact.scope is Scope.CHAIN_PERSISTENT
    assert rough.plan.claim.scope is not Scope.CHAIN_PERSISTENT
    assert rough.plan.claim.status is ClaimStatus.FEASIBLE
    assert exact.cost <= rough.plan.claim.cost < 1.2 * exact.cost
    assert rough.report.ok


def test_groups_share_costs_and_bytes() -> None:
    costs = ":".join(["1000"] + ["1"] * 39)
    sizes = ":".join(["1"] * 39 + ["1000"])
    chain = Chain.of(build_graph(f"linear{{n=40,costs={costs},sizes={sizes}}}"), "rotor", 10)
    lengths = [len(stage.block) for stage in chain.stages[:-1]]
    assert sum(lengths) == 40
    assert lengths[0] == 1, "the dear one is alone"
    assert 2 <= chain.length <= 10


# Chains of blocks


def test_networks_are_chains_of_blocks() -> None:
    lengths = {
        "unit-chain{n=17}": 8,
        "linear{n=32}": 32,
        "mobilenet-v1": 84,
        "resnet50{backward=operator}": 38,
        "gpt2{backward=operator}": 29,
    }
    for spec, length in lengths.items():
        graph = build_graph(spec)
        assert Chain.of(graph, "rotor").length == length
        for strategy in ("rotor", *OTHERS):
            solved = found(graph, "70%", strategy)
            assert solved is None or solved.report.ok


def test_values_that_only_the_backward_pass_reads_are_tape() -> None:
    graph = Graph(
        "norm",
        (
            Node("f0", 1.0, (), (8,), phase=Phase.FORWARD),
            Node("norm", 1.0, (0,), (8, 2, 1), phase=Phase.FORWARD),
            Node("f2", 1.0, (1,), (4,), phase=Phase.FORWARD),
            Node("loss", 1.0, (4,), (1,), phase=Phase.LOSS),
            Node("b2", 1.0, (1, 5), (8,), phase=Phase.BACKWARD),
            Node("bnorm", 1.0, (0, 2, 6), (8,), phase=Phase.BACKWARD),
            Node("b0", 1.0, (7,), (3,), phase=Phase.BACKWARD),
        ),
        (8,),
    )
    stages = Chain.of(graph, "rotor").stages
    assert [(s.block, s.rest) for s in stages] == [((0,), ()), ((1,), (5, 6)), ((2,), (4,)), ((), (3,))]
    norm = stages[1]
    assert (norm.output, norm.tape, norm.taped) == (8, 10, True), "the value of 1 byte is read by nobody"
    assert (norm.plain_peak, norm.taped_peak, norm.rest_peak, norm.waiting) == (11, 11, 18, 8)
    assert not stages[2].taped, "b2 reads the input of its block and the gradient"


def test_blocks_that_the_backward_pass_reads_together_are_one() -> None:
    forward = [Node(f"f{i}", 1.0, (i - 1,) if i else (), (1,), phase=Phase.FORWARD) for i in range(6)]
    loss = Node("loss", 1.0, (5,), (1,), phase=Phase.LOSS)
    skipping = Node("b", 1.0, (1, 3, 6), (1,), phase=Phase.BACKWARD)
    chain = Chain.of(Graph("skip", (*forward, loss, skipping), (7,)), "rotor")
    assert [s.block for s in chain.stages] == [(0,), (1,), (2, 3), (4,), (5,), ()]
    assert not chain.simple


def test_what_is_no_chain_is_refused_with_the_reason() -> None:
    forward = [Node("f0", 1.0, (), (1, 1), phase=Phase.FORWARD), Node("f1", 1.0, (0,), (1,), phase=Phase.FORWARD)]
    loss = Node("loss", 1.0, (2,), (1,), phase=Phase.LOSS)
    late = Node("late", 1.0, (1, 2, 3), (1,), phase=Phase.BACKWARD)
    with pytest.raises(StrategyMismatch, match="the turn of node late comes amid what it reads, between f0 and f1"):
        solve(Graph("g", (*forward, loss, late), (4,)), None, SolveOptions(strategy="rotor"))
    fan = [Node("a", 1.0, (), (1,), phase=Phase.FORWARD), Node("b", 1.0, (), (1,), phase=Phase.FORWARD)]
    join = Node("c", 1.0, (0, 1), (1,), phase=Phase.FORWARD)
    with pytest.raises(StrategyMismatch, match="one block: node c still reads what node a makes"):
        solve(Graph("g", (*fan, join), (2,)), None, SolveOptions(strategy="revolve"))
    with pytest.raises(StrategyMismatch, match="has no phase"):
        solve(Graph("g", (Node("n", 1.0, (), (1,)),), (0,)), None, SolveOptions(strategy="sequential"))


class Machine:
    """Reverses a chain by calls of itself, as the paper puts it: a segment is one large layer to the level above."""

    def __init__(self, length: int, k: int) -> None:
        self.length, self.k = length, k
        self.states = {0}
        self.most, self.forwards, self.reversed = 1, 0, 0

    def advance(self, start: int, end: int, *, keep: bool) -> None:
        """Run blocks from a state that is there; keep the state after the last."""
        assert start in self.states
        self.forwards += end - start
        if keep:
            self.states.add(end)
            self.most = max(self.most, len(self.states))

    def backward(self, start: int, end: int) -> None:
        """The gradients of a segment whose input is there."""
        assert start in self.states
        if end - start == 1:
            self.advance(start, end, keep=False)
            assert end == self.length - self.reversed
            self.reversed += 1
            return
        kept = sorted({start + (end - start) * j // (self.k + 1) for j in range(self.k + 1)} - {end})
        for low, high in itertools.pairwise(kept):
            self.advance(low, high, keep=True)
        for low, high in zip(reversed(kept), [end, *reversed(kept[1:])], strict=False):
            self.backward(low, high)
            self.states -= {low} - {start}


@pytest.mark.parametrize("k", [1, 2, 3, 7, 40])
def test_chens_recursion_is_that_of_a_machine_that_calls_itself(k: int) -> None:
    for length in (2, 3, 5, 8, 21, 32, 81):
        machine = Machine(length, k)
        machine.backward(0, length)
        runs = recursive(length, k)
        assert replayed(length, runs, [1] * length) == machine.forwards - length
        assert machine.reversed == length
        # States are the outputs of blocks; a plan also holds the block that runs and gradients, and not the input.
        graph = build_graph(f"linear{{n={length},backward=operator}}")
        taken = peak(graph, Chain.of(graph, "test").computes(runs))
        assert machine.most - 1 <= taken <= machine.most + 3


@pytest.mark.parametrize(("k", "levels"), [(1, 6), (2, 4), (3, 3)])
def test_chens_recursion_takes_what_its_paper_says(k: int, levels: int) -> None:
    """g(n) = k + g(n / (k + 1)) values, and n k / (k + 1) further forward steps on every level."""
    peaks = []
    for level in range(1, levels + 1):
        length = (k + 1) ** level
        runs = recursive(length, k)
        assert replayed(length, runs, [1] * length) == level * length * k // (k + 1)
        graph = build_graph(f"linear{{n={length},backward=operator}}")
        peaks.append(peak(graph, Chain.of(graph, "test").computes(runs)))
    assert {high - low for low, high in itertools.pairwise(peaks[1:])} <= {k}


def test_periodic_segments_are_those_of_pytorch() -> None:
    assert periodic(7, 3) == [*range(7), ~7, ~6, ~5, ~4, 2, 3, ~3, ~2, 0, 1, ~1, ~0]
    assert periodic(3, 1) == [0, 1, 2, ~3, ~2, ~1, ~0]
    assert periodic(2, 9) == [0, 1, ~2, ~1, 0, ~0]


@pytest.mark.parametrize(
    "spec",
    ["rotor{slots=0}", "rotor{blocks=1}", "revolve-hetero{blocks=1}", "revolve{slots=-1}", "sequential{segments=-2}"],
)
def test_options_are_checked(spec: str) -> None:
    with pytest.raises(UsageError):
        strategy_from_spec(spec)


def test_a_plan_that_does_not_fit_tells_its_peak() -> None:
    graph = build_graph("linear{n=32}")
    for strategy in ("revolve{slots=30}", "sequential{segments=2}"):
        with pytest.raises(Infeasible, match="makes fits a budget of 9 bytes") as caught:
            solve(graph, 9, SolveOptions(strategy=strategy))
        assert "the smallest budget known to work is" in caught.value.hint


def test_where_no_budget_helps_the_node_is_named_that_may_be_computed_only_once() -> None:
    nodes = (
        Node("once", 1.0, (), (4,), recompute=False, phase=Phase.FORWARD),
        Node("other", 1.0, (), (4,), phase=Phase.FORWARD),
        Node("loss", 1.0, (), (4,), phase=Phase.LOSS),
        Node("back1", 1.0, (), (4,), phase=Phase.BACKWARD),
        Node("back2", 1.0, (0,), (4,), phase=Phase.BACKWARD),
    )
    graph = Graph("chain", nodes, (4,))
    for budget in ("100%", None):
        with pytest.raises(StrategyMismatch, match="no plan of this graph at any budget, since once may be"):
            solve(graph, budget, SolveOptions(strategy="revolve-bytes"))
    assert solve(graph, "100%", SolveOptions(strategy="rotor")).plan.claim.cost == 5
