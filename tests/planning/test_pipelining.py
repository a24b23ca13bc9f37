"""Pipelines: chosen plans and bounds against all plans of tiny stages, with memory counted pass by pass."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import remat_cli as remat
from remat_cli.errors import Infeasible, InputError, LimitReached, UsageError
from remat_cli.graph.model import Graph, Node, NodeQueue, Operation, Phase, Region
from remat_cli.graph.passes import StageGraph
from remat_cli.milp.pipeline_times import makespan_model
from remat_cli.plan.derive import derive
from remat_cli.plan.pipeline_memory import run_of
from remat_cli.plan.pipelines import Schedule, Times, schedule_of, timeline
from remat_cli.planning.pipelining import pipeline
from remat_cli.reports.pipelines import pipeline_document
from remat_cli.solvers.base import Request
from remat_cli.solvers.registry import usable_solver

EXACT = remat.SolveOptions(gap=0.0, time_limit_s=100)


@dataclass(frozen=True)
class Label:
    """What a plan takes: the peak and the cost of each pass, and what is held after each but the last."""

    peaks: tuple[int, ...]
    held: tuple[int, ...]
    costs: tuple[float, ...]

    def beats(self, other: "Label") -> bool:
        mine, theirs = self.peaks + self.held + self.costs, other.peaks + other.held + other.costs
        return self != other and all(a <= b for a, b in zip(mine, theirs, strict=True))


def all_labels(graph: Graph, cuts: tuple[int, ...]) -> list[Label]:
    """Of all plans in document order, those that no other beats, by searching all states of memory.

    A state is the pass, the next node that was never computed, and the values in memory. Every value may be dropped at
    any time, and every earlier node computed again.
    """
    last = len(cuts)
    start = (0, 0, frozenset[int]())
    found = {start: {Label((0,) * (last + 1), (0,) * last, (0,) * (last + 1))}}
    todo = [(start, label) for label in found[start]]
    while todo:
        state, label = todo.pop()
        if label not in found[state]:
            continue
        for after, new in _steps(graph, cuts, state, label):
            pool = found.setdefault(after, set())
            if new not in pool and not any(other.beats(new) for other in pool):
                pool -= {other for other in pool if new.beats(other)}
                pool.add(new)
                todo.append((after, new))
    ended = {
        label
        for (part, front, there), pool in found.items()
        if part == last and front == len(graph.nodes) and set(graph.outputs) <= there
        for label in pool
    }
    return [label for label in ended if not any(other.beats(label) for other in ended)]


def _steps(graph, cuts, state, label) -> Iterator[tuple[tuple[int, int, frozenset[int]], Label]]:
    part, front, there = state
    if part < len(cuts) and front == cuts[part]:
        held = (*label.held[:part], sum(graph.size[v] for v in there), *label.held[part + 1 :])
        yield (part + 1, front, there), replace(label, held=held)
    for value in there:
        yield (part, front, there - {value}), label
    for k in range(min(front + 1, len(graph.nodes))):
        node, made = graph.nodes[k], set(graph.values_of(k))
        if k == front and part < len(cuts) and k >= cuts[part]:
            continue
        if (k < front and (not node.recompute or made <= there)) or not set(node.inputs) <= there:
            continue
        peak = sum(graph.size[v] for v in there | made) + node.workspace
        peaks = tuple(max(p, peak) if i == part else p for i, p in enumerate(label.peaks))
        costs = tuple(c + node.cost if i == part else c for i, c in enumerate(label.costs))
        yield (part, max(front, k + 1), there | made), replace(label, peaks=peaks, costs=costs)


def fits(schedule: Schedule, device: int, fixed: int, plans: dict[int, Label], memory: int) -> bool:
    """Whether a device has enough memory, by going through its passes and counting every microbatch."""
    between: dict[tuple[int, int], int] = {}
    for kind, stage, microbatch in schedule.orders[device]:
        part = schedule.kinds.index(kind)
        between.pop((stage, microbatch), None)
        if fixed + sum(between.values()) + plans[stage].peaks[part] > memory:
            return False
        if part < len(schedule.kinds) - 1:
            between[stage, microbatch] = plans[stage].held[part]
    return True


def tiny(rng: random.Random, forward: int, backward: int, name: str = "tiny") -> Graph:
    nodes: list[Node] = []
    for k in range(forward + backward):
        inputs = set(rng.sample(range(k), min(k, rng.randint(0, 2)))) | ({k - 1} if k else set())
        phase = Phase.FORWARD if k < forward else Phase.BACKWARD
        nodes.append(
            Node(
                f"n{k}",
                rng.randint(1, 5),
                tuple(sorted(inputs)),
                (rng.randint(1, 6),),
                rng.choice([0, 0, 1, 3]),
                recompute=rng.random() < 0.9,
                phase=phase,
            )
        )
    return Graph(name, tuple(nodes), (len(nodes) - 1,), fixed_memory=rng.randint(0, 5))


def brute(schedule: Schedule, graphs, labels, memory, transfer) -> tuple[float | None, list[float | None]]:
    """The least makespan of all plans that fit, and for each device the least time of a microbatch."""
    options, least = [], []
    for device in range(schedule.devices):
        mine = schedule.stages_of(device)
        fixed = sum(graphs[s].fixed_memory for s in mine)
        every = (dict(zip(mine, combo, strict=True)) for combo in itertools.product(*(labels[s] for s in mine)))
        fitting = [plans for plans in every if fits(schedule, device, fixed, plans, memory[device])]
        options.append(unbeaten({tuple(cost for s in mine for cost in plans[s].costs) for plans in fitting}))
        least.append(min((sum(sum(p.costs) for p in plans.values()) for plans in fitting), default=None))
    if None in least:
        return None, least
    spans = []
    parts = len(schedule.kinds)
    for chosen in itertools.product(*options):
        times = {}
        for device, costs in enumerate(chosen):
            for k, stage in enumerate(schedule.stages_of(device)):
                times[stage] = Times(*costs[k * parts : (k + 1) * parts])
        spans.append(timeline(schedule, [times[s] for s in range(len(graphs))], transfer).makespan)
    return min(spans), least


def unbeaten(costs: set[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Without those that another one is nowhere above: the makespan rises with every time."""

    def beaten(one):
        return any(other != one and all(a <= b for a, b in zip(other, one, strict=True)) for other in costs)

    return [one for one in costs if not beaten(one)]


def random_cases(seed: int, number: int):
    rng = random.Random(seed)
    for _ in range(number):
        name, devices = rng.choice([("1f1b", 2), ("1f1b", 3), ("gpipe", 2), ("interleaved", 2), ("1f1b", 1)])
        chunks = 2 if name == "interleaved" else 1
        graphs = [tiny(rng, rng.randint(1, 3), rng.randint(1, 2)) for _ in range(devices * chunks)]
        if rng.random() < 0.3:
            graphs = graphs[:1] * len(graphs)
        schedule = schedule_of(name, len(graphs), rng.choice([1, 2, 4]) * (devices if chunks > 1 else 1))
        yield rng, schedule, graphs


@pytest.mark.parametrize("seed", range(8))
def test_against_all_plans_of_tiny_stages(seed):
    feasible = infeasible = best = 0
    for rng, schedule, graphs in random_cases(seed, 12):
        cuts = [sum(node.phase is Phase.FORWARD for node in graph.nodes) for graph in graphs]
        labels = [all_labels(graph, (cut,)) for graph, cut in zip(graphs, cuts, strict=True)]
        memory = []
        for device in range(schedule.devices):
            mine = schedule.stages_of(device)
            most = schedule.in_flight()
            all_kept = sum(graphs[s].fixed_memory + most[s] * sum(graphs[s].size[: cuts[s]]) for s in mine)
            memory.append(int(all_kept * rng.uniform(0.5, 1.1)) + 8)
        transfer = rng.choice([0, 0, 2])
        optimum, least = brute(schedule, graphs, labels, memory, transfer)
        asked = {"schedule": schedule.name, "microbatches": schedule.microbatches, "transfer": transfer}
        if optimum is None:
            infeasible += 1
            with pytest.raises(Infeasible, match="no plans of device"):
                pipeline(graphs, memory, **asked, options=EXACT)
            continue
        answer = pipeline(graphs, memory, **asked, options=EXACT)
        feasible += 1
        assert answer.lower_bound <= optimum * (1 + 1e-9)
        assert answer.makespan >= optimum * (1 - 1e-9)
        best += answer.makespan <= optimum * (1 + 1e-9)
        for device, facts in enumerate(answer.facts.devices):
            assert facts.cost == least[device]
            assert facts.lower_bound == pytest.approx(least[device], rel=1e-5)
            assert facts.needed_bytes <= memory[device]
        assert all(report.ok for report in answer.reports)
    # The least time of every device need not be the least makespan: passes divide it in several ways.
    assert feasible >= 3
    assert best >= 0.8 * feasible
    assert infeasible + feasible == 12


def test_some_tiny_stages_fit_and_some_do_not():
    """So that the test above tests both."""
    answers = []
    for _rng, schedule, graphs in random_cases(0, 6):
        cuts = [sum(node.phase is Phase.FORWARD for node in graph.nodes) for graph in graphs]
        labels = [all_labels(graph, (cut,)) for graph, cut in zip(graphs, cuts, strict=True)]
        for memory in (12, 400):
            answers.append(brute(schedule, graphs, labels, [memory] * schedule.devices, 0)[0] is None)
    assert 0 < sum(answers) < len(answers)


def captured(rng: random.Random) -> Graph:
    """A stage with the gradient of a parameter before that of its input, as a frontend says it."""
    nodes = (
        Node("x0", rng.randint(1, 4), (), (rng.randint(1, 5),), phase=Phase.FORWARD),
        Node("x1", rng.randint(1, 4), (0,), (rng.randint(1, 5),), phase=Phase.FORWARD),
        Node("dw", rng.randint(1, 4), (0, 1), (2,), rng.choice([0, 3]), phase=Phase.BACKWARD),
        Node("dx", rng.randint(1, 4), (1,), (rng.randint(1, 4),), rng.choice([0, 3]), phase=Phase.BACKWARD),
    )
    places = [{"kind": "parameter", "bytes": 4}, {"kind": "input", "bytes": 3}]
    results = [
        {"kind": "gradient", "of": 0, "tensor": {"call": "t", "args": [{"value": "dw:0"}]}},
        {"kind": "gradient", "of": 1, "tensor": {"value": "dx:0"}},
    ]
    metadata = {"frontend": "torch", "places": places, "results": results}
    return Graph("captured", nodes, (2, 3), fixed_memory=7, metadata=metadata)


@pytest.mark.parametrize("name", ["zb-h1", "zb-h2", "zb-v", "1f1b"])
def test_gradients_of_parameters_inputs_and_sums_of_gradients(name):
    """Of captured stages, the graph says what runs late, what each microbatch has for itself, and what is added up."""
    rng = random.Random(name)
    fitting = 0
    for memory in (30, 44, 60) if name == "zb-v" else (24, 30, 36, 44, 60):
        graphs = [captured(rng) for _ in range(4 if name == "zb-v" else 2)]
        schedule = schedule_of(name, len(graphs), 4)
        stages = [StageGraph.of(graph, split=schedule.split) for graph in graphs]
        for stage in stages:
            assert (stage.input_bytes, stage.gradient_bytes) == (3, 2)
            order = [node.id for node in stage.graph.nodes]
            assert order == ["x0", "x1", *(["dx", "dw"] if schedule.split else ["dw", "dx"])]
            assert stage.cuts == ((2, 3) if schedule.split else (2,))
        # Inputs are not fixed: a microbatch has its own from its first to its last pass. Two sums of gradients are.
        own = [replace(stage.graph, fixed_memory=7 - 3 + 2) for stage in stages]
        labels = [[raised(label) for label in all_labels(stage.graph, stage.cuts)] for stage in stages]
        optimum, least = brute(schedule, own, labels, [memory] * 2, 0)
        asked = {"schedule": name, "microbatches": 4, "options": EXACT}
        if optimum is None:
            with pytest.raises((Infeasible, LimitReached)):
                pipeline(graphs, [memory], **asked)
            continue
        answer = pipeline(graphs, [memory], **asked)
        fitting += 1
        assert answer.lower_bound <= optimum * (1 + 1e-9) <= answer.makespan * (1 + 2e-9)
        for device, facts in enumerate(answer.facts.devices):
            assert facts.cost == least[device]
        assert all(report.ok for report in answer.reports)
        assert (answer.facts.stages[0].weights_held_bytes is None) == (not schedule.split)
    assert fitting >= 2


@pytest.mark.parametrize("joined", [True, False])
def test_passes_without_nodes(joined):
    """One operation makes both gradients, so that nothing is left for weights; or no gradient leaves the stage."""
    stage = captured(random.Random(1))
    last = (replace(stage.nodes[3], inputs=(0, 1), outputs=(2, 3)),) if joined else ()
    nodes = (*stage.nodes[:2], *(last or stage.nodes[2:3]))
    results = [
        {"kind": "gradient", "of": 0, "tensor": {"value": f"{nodes[-1].id}:0"}},
        {"kind": "gradient", "of": 1, "tensor": {"value": f"{nodes[-1].id}:1"}},
    ]
    graph = replace(
        stage, nodes=nodes, outputs=(2, 3) if joined else (2,), metadata={**stage.metadata, "results": results}
    )
    assert StageGraph.of(graph, split=True).cuts == ((2, 3) if joined else (2, 2))
    made = StageGraph.of(graph, split=True)
    labels = [[raised(label) for label in all_labels(graph, made.cuts)]] * 2
    own = replace(graph, fixed_memory=7 - 3 + 2)
    schedule = schedule_of("zb-h1", 2, 4)
    fitting = 0
    for memory in (24, 28, 32, 40, 60):
        optimum, least = brute(schedule, [own] * 2, labels, [memory] * 2, 0)
        if optimum is not None:
            answer = pipeline([graph] * 2, [memory], schedule="zb-h1", microbatches=4, options=EXACT)
            fitting += 1
            assert [facts.cost for facts in answer.facts.devices] == least
            assert answer.lower_bound <= optimum * (1 + 1e-9) <= answer.makespan * (1 + 2e-9)
    assert fitting >= 2


def raised(label: Label) -> Label:
    """With the inputs of the microbatch, 3 bytes."""
    return replace(label, peaks=tuple(p + 3 for p in label.peaks), held=tuple(h + 3 for h in label.held))


def test_the_bound_on_the_makespan_is_the_least_over_divisions_of_the_time():
    """The linear programme against all ways to divide whole numbers of extra time among passes."""
    rng = random.Random(3)
    for name, stages, m in [("1f1b", 2, 2), ("gpipe", 2, 3), ("1f1b", 3, 3), ("zb-h1", 2, 3)]:
        schedule = schedule_of(name, stages, m)
        least = [Times(*(rng.randint(1, 4) for _ in schedule.kinds)) for _ in range(stages)]
        extra = [rng.randint(0, 3) for _ in range(stages)]
        work = [t.total + e for t, e in zip(least, extra, strict=True)]
        model = makespan_model(schedule, least, work, 1.0, 2.0)
        bound = usable_solver("highs").solve(Request(model)).bound * 2.0
        steps = 4
        ways = []
        for shares in itertools.product(range(steps + 1), repeat=stages):
            times = [
                Times(t.forward + e * k / steps, t.backward + e * (steps - k) / steps, t.weights)
                for t, e, k in zip(least, extra, shares, strict=True)
            ]
            ways.append(timeline(schedule, times, 1.0).makespan)
        assert bound <= min(ways) * (1 + 1e-9)
        assert bound >= timeline(schedule, least, 1.0).makespan * (1 - 1e-9)
        if not schedule.split:
            assert bound >= 0.9 * min(ways)


def test_what_is_held_between_passes_does_not_count_workspace():
    nodes = (
        Node("a", 1.0, (), (5,), workspace=100, phase=Phase.FORWARD),
        Node("b", 1.0, (0,), (1,), phase=Phase.BACKWARD),
    )
    stage = StageGraph.of(Graph("two", nodes, (1,), fixed_memory=10), split=False)
    run = run_of(stage, derive(stage.graph, [0, 1]))
    assert (run.peaks, run.held, run.costs) == ((105, 6), (5,), (1.0, 1.0))


def gpt2_stage() -> Graph:
    return remat.build_graph("gpt2{depth=1,batch=1,sequence=128,width=64,heads=2,vocab=512}")


def test_the_report_compares_with_common_choices():
    stage = gpt2_stage()
    kept = pipeline([stage] * 4, [10**9], schedule="1f1b", microbatches=8)
    assert [one.strategy for one in kept.facts.stages] == ["keep-all"] * 4
    assert kept.makespan == kept.facts.others[0].makespan == pytest.approx(11 * stage.total_cost)
    assert kept.lower_bound == pytest.approx(kept.makespan, rel=1e-5)
    most = kept.facts.devices[0].needed_bytes
    answer = pipeline([stage] * 4, [int(0.7 * most)], schedule="1f1b", microbatches=8)
    nothing, everything, alike = answer.facts.others
    assert not nothing.fits
    assert alike.fits
    assert answer.lower_bound <= answer.makespan <= alike.makespan
    assert answer.makespan < everything.makespan == pytest.approx(timeline_of_full(stage))
    assert [one.in_flight for one in answer.facts.stages] == [4, 3, 2, 1]
    document = pipeline_document(answer.facts)
    assert document["makespan"] == answer.makespan
    assert "stages" in repr(answer)


def timeline_of_full(stage: Graph) -> float:
    """Eleven times a forward pass, a backward pass, and what of the forward pass the backward pass reads."""
    run = run_of(
        StageGraph.of(stage, split=False),
        derive(
            stage, [k for k in range(len(stage.nodes)) if stage.nodes[k].phase is not Phase.BACKWARD] + again(stage)
        ),
    )
    return 11 * run.cost


def again(stage: Graph) -> list[int]:
    cut = next(k for k, node in enumerate(stage.nodes) if node.phase is Phase.BACKWARD)
    needed: set[int] = set()
    waiting = [stage.producer[v] for k in range(cut, len(stage.nodes)) for v in stage.nodes[k].inputs]
    while waiting:
        k = waiting.pop()
        if k < cut and k not in needed:
            needed.add(k)
            waiting += [stage.producer[v] for v in stage.nodes[k].inputs]
    return [*sorted(needed), *range(cut, len(stage.nodes))]


def test_without_time_there_are_the_plans_that_need_no_search():
    stage = gpt2_stage()
    kept = pipeline([stage] * 2, [10**9], schedule="1f1b", microbatches=4).facts.devices[0].needed_bytes
    asked = {"schedule": "1f1b", "microbatches": 4, "options": remat.SolveOptions(time_limit_s=1e-6)}
    answer = pipeline([stage] * 2, [kept], **asked)
    assert answer.makespan == answer.facts.others[0].makespan
    below = pipeline([stage] * 2, [kept - 1], **asked)
    assert below.facts.outcome == "time limit"
    assert below.facts.stages[0].overhead > 0.3
    assert below.facts.stages[1].overhead == 0
    assert stage.total_cost <= below.facts.devices[0].lower_bound < below.facts.devices[0].cost
    with pytest.raises(LimitReached, match="no plans of device 0"):
        pipeline([stage] * 2, [answer.facts.others[1].needed_bytes[0] - 1], **asked)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"memory_bytes": [10**9, 10**9, 10**9]}, UsageError, "3 memories for 2 devices"),
        ({"transfer": -1.0}, UsageError, "transfer time of -1 is impossible"),
        ({"transfer": float("nan")}, UsageError, "transfer time of nan is impossible"),
        ({"options": remat.SolveOptions(reorder=True)}, UsageError, "reorder is an option of one search"),
        ({"schedule": "zb-h1"}, InputError, "which of its outputs are gradients of parameters"),
        ({"memory_bytes": [1000]}, Infeasible, "no plans of device 0 \\(stage 0\\) fit into 1 kB with 2 microbatches"),
        ({"microbatches": 0}, UsageError, "at least one microbatch"),
    ],
)
def test_refusals(change, error, message):
    asked = {"memory_bytes": [10**9], "schedule": "1f1b", "microbatches": 2, **change}
    with pytest.raises(error, match=message):
        pipeline([gpt2_stage()] * 2, **asked)


def test_costs_in_different_units_are_refused():
    other = replace(gpt2_stage(), cost_unit="us")
    with pytest.raises(UsageError, match="different units: flops, us"):
        pipeline([gpt2_stage(), other], [10**9], schedule="1f1b", microbatches=2)


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ((Phase.FORWARD, None), "node n1 has no phase"),
        ((Phase.FORWARD, Phase.UPDATE), "node n1 updates parameters"),
        ((Phase.BACKWARD, Phase.FORWARD), "forward node n1 comes after backward node n0"),
        ((Phase.FORWARD, Phase.FORWARD), "no backward nodes"),
        ((Phase.BACKWARD, Phase.BACKWARD), "no forward nodes"),
    ],
)
def test_graphs_that_are_no_stages(phases, message):
    nodes = tuple(Node(f"n{k}", 1.0, (k - 1,) if k else (), (1,), phase=phase) for k, phase in enumerate(phases))
    with pytest.raises(InputError, match=message):
        StageGraph.of(Graph("g", nodes, (1,)), split=False, source="g.json")


def test_collectives_are_refused_and_parts_are_left_out():
    stage = gpt2_stage()
    nodes = (replace(stage.nodes[0], queue=NodeQueue.COMMUNICATION), *stage.nodes[1:])
    with pytest.raises(InputError, match="communication queue"):
        pipeline([replace(stage, nodes=nodes, cost_unit="us")], [10**9], schedule="1f1b", microbatches=1)
    region = Region("loss", (2,), (Operation("loss/parts", (1,), (), (1.0,), (0,)),))
    answer = pipeline([replace(stage, splits=(region,))], [10**9], schedule="1f1b", microbatches=1)
    assert not answer.plans[0].graph.splits
    assert "regions that may run in parts run whole" in answer.facts.assumptions


def test_python(tmp_path: Path):
    path = tmp_path / "stage.json"
    remat.save_graph(gpt2_stage(), path)
    answer = remat.pipeline([path, str(path)], "10MB", microbatches=2)
    assert answer.facts.schedule == "1f1b"
    for arguments, message in [
        (([], "1GB"), "a list of graphs"),
        (([path], "1G"), "G"),
        ((path, "1GB"), "a list of graphs"),
    ]:
        with pytest.raises(UsageError, match=message):
            remat.pipeline(*arguments, microbatches=2)
