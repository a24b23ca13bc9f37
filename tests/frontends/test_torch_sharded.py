"""The step of one rank of many: captured in one process, and compared with processes that train together."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import sharded_models
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch_processes import least_peak, together

import remat_cli as remat
from remat_cli.errors import CaptureFailed, ExecutionFailed, UsageError
from remat_cli.frontends.interconnect import ONE_QUEUE, Interconnect
from remat_cli.frontends.torch.compat.distributed import fake_group, has_group, local_tensor
from remat_cli.frontends.torch.document import read_step
from remat_cli.frontends.torch.execute.program import program
from remat_cli.frontends.torch.export import export_model, export_parts
from remat_cli.frontends.torch.train.padding import followed
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.document import parse_document
from remat_cli.graph.io import dump_document, graph_from_document, graph_to_document
from remat_cli.graph.model import NodeQueue
from remat_cli.plan.derive import derive
from remat_cli.plan.model import Compute
from remat_cli.plan.replay import replay

LINKS = Interconnect.of("50GB/s")
LAUNCH_US = 3.0
GATHER, SCATTER, REDUCE = "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"
_graphs = {}


def exported(name, ranks=2, interconnect=LINKS):
    build = getattr(sharded_models, name)
    return export_model(build, name, "test", cost="roofline:h100", world=ranks, interconnect=interconnect)


def graph_of(name, ranks=2):
    if (name, ranks) not in _graphs:
        _graphs[name, ranks] = exported(name, ranks)
    return _graphs[name, ranks]


def collectives(graph):
    return [node for node in graph.nodes if node.op in {GATHER, SCATTER, REDUCE}]


def counts(graph):
    return Counter(node.op for node in collectives(graph))


def places(graph):
    return {place["name"]: place for place in graph.metadata["places"] if place["kind"] == "parameter"}


# What stands in graphs.

PARAMETERS = 1 + sharded_models.BLOCKS * (sharded_models.MATRICES + sharded_models.VECTORS)
EXPECTED = {
    "simple_fsdp": {GATHER: PARAMETERS, SCATTER: PARAMETERS},
    "tensor_parallel": {REDUCE: 2 * sharded_models.BLOCKS},
    "both": {GATHER: PARAMETERS, SCATTER: PARAMETERS, REDUCE: 2 * sharded_models.BLOCKS},
}


@pytest.mark.parametrize("ranks", [2, 8, 256])
@pytest.mark.parametrize("name", ["simple_fsdp", "tensor_parallel"])
def test_collectives_are_nodes_of_their_own_queue(name, ranks):
    graph = graph_of(name, ranks)
    assert counts(graph) == EXPECTED[name]
    assert {node.id for node in graph.nodes if node.queue is NodeQueue.COMMUNICATION} == {
        node.id for node in collectives(graph)
    }
    assert not [node for node in graph.nodes if "wait" in node.id]
    assert all(node.recompute for node in collectives(graph))
    assert graph.metadata["world"] == {"ranks": ranks, "rank": 0}
    assert graph_from_document(parse_document(dump_document(graph_to_document(graph)), "graph.json")) == graph


def test_both_on_a_mesh_of_two_dimensions():
    assert counts(graph_of("both", 8)) == EXPECTED["both"]
    assert ONE_QUEUE in graph_of("both", 8).metadata["notes"]
    assert ONE_QUEUE not in graph_of("simple_fsdp", 8).metadata["notes"]


def test_inputs_are_the_parts_of_this_rank():
    whole = dict(sharded_models.made()[0].named_parameters())
    for name, place in places(graph_of("simple_fsdp", 8)).items():
        full = whole[name.replace(".parametrizations", "").removesuffix(".original")]
        assert place["shape"] == [len(full) // 8, *full.shape[1:]]
        assert place["bytes"] == full.nbytes // 8
    columns = places(graph_of("tensor_parallel", 8))
    assert columns["0.a.weight"]["shape"] == [32, 64]
    assert columns["0.b.weight"]["shape"] == [64, 32]
    assert columns["0.norm.weight"]["shape"] == [64]


def test_memory_outside_of_the_graph_is_that_of_this_rank():
    graph = graph_of("simple_fsdp", 8)
    parameters = sum(place["bytes"] for place in places(graph).values())
    batch = 4 * sharded_models.ROWS * sharded_models.WIDTH + 8 * sharded_models.ROWS
    assert graph.fixed_memory == parameters + batch
    assert graph.metadata["parameters"] == parameters // 4
    kinds = [result["kind"] for result in graph.metadata["results"]]
    assert kinds == ["result"] + ["gradient"] * PARAMETERS
    gradients = sum(graph.size[value] for value in graph.outputs)
    assert gradients == parameters + 4, "gradients, and the loss"


@pytest.mark.parametrize(("rows", "ranks"), [(10, 3), (10, 4), (3, 8), (64, 7), (5, 5)])
def test_rank_0_has_the_largest_part(rows, ranks):
    """PyTorch divides as ``torch.chunk`` does."""
    parts = [len(part) for part in torch.arange(rows).chunk(ranks)]
    with fake_group(ranks):
        mesh = init_device_mesh("cpu", (ranks,))
        own = len(distribute_tensor(torch.zeros(rows, 2), mesh, [Shard(0)]).to_local())
    assert own == parts[0] == max(parts)


def test_uneven_parts():
    graph = graph_of("simple_fsdp", 3)
    assert places(graph)["0.a.parametrizations.weight.original"]["shape"] == [86, 64], "of 256 rows"
    gathered = next(node for node in graph.nodes if node.op == GATHER and "0.a" in node.id)
    assert gathered.outputs == (4 * 3 * 86 * 64,), "with what pads the last part"
    assert gathered.workspace == gathered.outputs[0] + 4 * 86 * 64, "gloo's buffer, and the copy of a rank that pads"


def test_times_are_those_of_a_ring():
    for ranks in (2, 8, 256):
        graph = graph_of("simple_fsdp", ranks)
        for node in collectives(graph):
            whole = max([*node.outputs, *(graph.size[v] for v in node.inputs)])
            assert node.cost == pytest.approx(LAUNCH_US + 1e6 * (ranks - 1) / ranks * whole / 50e9, abs=1e-3)
    graph = graph_of("tensor_parallel", 8)
    activations = 4 * sharded_models.ROWS * sharded_models.WIDTH
    for node in collectives(graph):
        assert node.cost == pytest.approx(LAUNCH_US + 1e6 * 2 * 7 / 8 * activations / 50e9, abs=1e-3)
    assert graph.metadata["costs"]["interconnect"] == LINKS.document()


def test_links_of_dimensions():
    """Groups count, not the world: four ranks share a parameter, and two a matrix."""
    graph = exported("both", 8, Interconnect.of("fsdp=50GB/s,tp=400GB/s"))
    activations = 4 * sharded_models.ROWS * sharded_models.WIDTH
    for node in collectives(graph):
        whole = max([*node.outputs, *(graph.size[v] for v in node.inputs)])
        took = activations / 400e9 if node.op == REDUCE else 3 / 4 * whole / 50e9
        assert node.cost == pytest.approx(LAUNCH_US + 1e6 * took, abs=1e-3)
    with pytest.raises(UsageError, match='no dimension "pp": its dimensions are fsdp, tp'):
        exported("both", 4, Interconnect.of("pp=50GB/s"))
    with pytest.raises(UsageError, match='over the dimension "tp" of the mesh, and no bandwidth is given'):
        exported("both", 4, Interconnect.of("fsdp=50GB/s"))


def test_optimizers_keep_state_for_the_part_of_this_rank():
    answer = remat.fits(sequential(graph_of("simple_fsdp", 8)), gpu="1GB", context="1MB", optimizer="adamw").fits
    parameters = sum(place["bytes"] for place in places(graph_of("simple_fsdp", 8)).values())
    assert answer.need.fixed["parameters"] == parameters
    assert answer.need.fixed["state of AdamW"] == 2 * parameters


# What is refused.


def refused(build, kind=CaptureFailed, **options):
    options = {"cost": "roofline:h100", "world": 2, "interconnect": LINKS} | options
    with pytest.raises(kind) as caught:
        export_parts(build, "model", "test", **options)
    assert caught.value.hint
    assert not has_group(), "the group is gone"
    return caught.value


def test_worlds_without_times():
    never = sharded_models.simple_fsdp
    assert refused(never, UsageError, interconnect=None).message == (
        "ranks communicate, and the bandwidth between them is not given"
    )
    assert refused(never, UsageError, cost="flops").message == "ranks communicate, which takes time and no FLOPs"
    assert "are not planned for Inductor" in refused(never, UsageError, compiler="inductor").message


def test_a_process_with_a_group():
    with fake_group(2):
        with pytest.raises(UsageError, match="belongs to a process group already"):
            exported("simple_fsdp")
        assert has_group()
        build = sharded_models.tensor_parallel
        with pytest.raises(UsageError, match="the bandwidth between ranks is not given"):
            export_model(build, "model", "test", cost="roofline:h100")
        with pytest.raises(UsageError, match="takes time, and its costs are flops"):
            export_model(build, "model", "test", cost="flops", interconnect=LINKS)
        inside = export_model(build, "tensor_parallel", "test", cost="roofline:h100", interconnect=LINKS)
    assert inside.nodes == graph_of("tensor_parallel").nodes


def test_a_mesh_beyond_the_world():
    def build():
        init_device_mesh("cpu", (4,))

    error = refused(build)
    assert "test_torch_sharded.py" in error.message
    assert "Mesh should not be bigger than default world size 2" in error.message


def test_hooks_that_gather():
    def build():
        module = nn.Linear(8, 8)
        fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
        return module, (torch.randn(4, 8),), torch.sum

    error = refused(build)
    assert "hooks gather the parameters of this FSDPLinear (fully_shard, FSDP)" in error.message
    assert "parametrization" in error.hint


class Communicating(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.linear, self.call = nn.Linear(8, 8), call

    def forward(self, x):
        return self.call(self.linear(x))


def communicating(call):
    return lambda: (Communicating(call), (torch.randn(4, 8),), torch.sum)


def sends(x):
    ops = torch.ops._c10d_functional
    return x * ops.wait_tensor(ops.irecv(x.detach(), 1, 0, "0"))


def by_numbers(x):
    sizes = (x.detach()[0, :2] > 0).to(torch.int64).tolist()
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_to_all_single(x, sizes, sizes, "0"))


def test_what_two_ranks_say_to_each_other():
    assert "communicates with _c10d_functional.irecv.default" in refused(communicating(sends)).message


def test_sizes_that_depend_on_numbers():
    assert "depends on the numbers in a tensor" in refused(communicating(by_numbers)).message


def coalesced(x):
    ops = torch.ops._c10d_functional
    first, second = ops.all_reduce_coalesced([x, x[:2]], "sum", "0")
    return ops.wait_tensor(first)[:2] + ops.wait_tensor(second)


def test_collectives_of_several_tensors():
    graph = export_model(communicating(coalesced), "model", "test", cost="roofline:h100", world=4, interconnect=LINKS)
    forward, backward = (node for node in graph.nodes if node.op == "all_reduce_coalesced")
    assert forward.outputs == (128, 64)
    assert forward.cost == pytest.approx(LAUNCH_US + 1e6 * 2 * 3 / 4 * 192 / 50e9, abs=1e-3)
    assert forward.queue is backward.queue is NodeQueue.COMMUNICATION


def test_one_process_does_not_run_it():
    graph = graph_of("tensor_parallel")
    plan = remat.solve(sequential(graph), "100%", options=remat.SolveOptions(strategy="keep-all")).plan
    for run in (lambda: remat.profile(graph, repeats=1), lambda: remat.run_plan(plan, steps=1)):
        with pytest.raises(ExecutionFailed, match=r"all_reduce.default\", which waits for other processes") as caught:
            run()
        assert "export the step of one process" in caught.value.hint


# What processes do that train together.


def sequential(graph):
    """The same graph, in which nothing overlaps: the memory of its plans is the same."""
    return replace(graph, nodes=tuple(replace(node, queue=NodeQueue.COMPUTE) for node in graph.nodes))


def run_step(rank, name, plans, predicted):
    """Of eager mode the peak; for each plan of the captured step the peak, and whether gradients are those of eager."""
    build = getattr(sharded_models, name)
    ours = export_model(build, name, "test", cost="roofline:h100", interconnect=LINKS)
    module, batch, loss = build()

    def step():
        loss(module(*batch)).backward()

    def peak(function, enough):
        function()
        return least_peak(function, module.zero_grad, enough)

    eager = peak(step, 1.01 * predicted[0])
    wanted = {key: local_tensor(parameter.grad) for key, parameter in module.named_parameters()}
    given = {key: local_tensor(parameter).detach() for key, parameter in module.named_parameters()}
    given |= {"0": batch[0], "captured": loss.__closure__[0].cell_contents}
    kept = [place for place in ours.metadata["places"] if place["kind"] != "tangent"]
    inputs = [given["captured" if place["kind"] == "captured" else place["name"]] for place in kept]
    found = []
    for statements, most in zip(plans, predicted, strict=True):
        runnable = program(ours, statements, "cpu")
        run = partial(runnable.run, inputs, lambda _: torch.ones(()))
        measured = peak(run, most + 64)
        made = {
            kept[result["of"]]["name"]: tensor
            for result, tensor in zip(ours.metadata["results"], run(), strict=True)
            if result["kind"] == "gradient"
        }
        equal = made.keys() == wanted.keys() and all(torch.equal(made[key], wanted[key]) for key in wanted)
        found.append((measured, equal))
    return ours, eager, found


@pytest.mark.parametrize(("name", "ranks"), [("simple_fsdp", 2), ("tensor_parallel", 2), ("both", 4)])
def test_processes_that_train_together(name, ranks):
    """What a fake group captures is what real ones capture; plans keep their bytes and make the gradients of eager."""
    graph = graph_of(name, ranks)
    keeping = derive(graph, list(range(len(graph.nodes))))
    options = remat.SolveOptions(time_limit_s=5)
    tight = remat.solve(sequential(graph), "90%", options=options).plan.statements
    predicted = [replay(graph, statements).peak_bytes - graph.fixed_memory for statements in (keeping, tight)]
    assert predicted[0] == no_remat_peak(graph) - graph.fixed_memory
    assert predicted[1] < 0.95 * predicted[0]
    for ours, eager, found in together(run_step, name, (keeping, tight), predicted, count=ranks):
        assert [(n.id, n.inputs, n.outputs, n.workspace, n.cost, n.queue) for n in ours.nodes] == [
            (n.id, n.inputs, n.outputs, n.workspace, n.cost, n.queue) for n in graph.nodes
        ]
        assert ours.fixed_memory == graph.fixed_memory
        assert eager == pytest.approx(predicted[0], rel=0.01)
        assert [measured for measured, _ in found] == pytest.approx(predicted, abs=64)
        assert all(equal for _, equal in found)


def run_compiled(rank, name, plan):
    """Peaks of a step in eager mode and by plan, and whether gradients are the same, in DTensors where they were."""
    module, batch, loss = getattr(sharded_models, name)()

    def plain(module, x):
        return loss(module(x))

    def peak(function, enough=None):
        def step():
            function(module, *batch).backward()

        step(), step()
        return least_peak(step, module.zero_grad, enough), [parameter.grad for parameter in module.parameters()]

    eager, wanted = peak(plain)
    module.zero_grad()
    enough = replay(plan.graph, plan.statements).peak_bytes - plan.graph.fixed_memory + 64
    planned, found = peak(torch.compile(plain, backend=remat.remat_backend(plan), dynamic=False), enough)
    same = [
        type(one) is type(other) and torch.equal(local_tensor(one), local_tensor(other))
        for one, other in zip(wanted, found, strict=True)
    ]
    return eager, planned, same


@pytest.mark.parametrize(
    ("name", "ranks", "strategy", "budget"),
    [("simple_fsdp", 2, "fsdp", "90%"), ("tensor_parallel", 2, "min-cut", "95%"), ("both", 4, "min-cut", "95%")],
)
def test_processes_that_train_by_the_plan_of_a_rank(name, ranks, strategy, budget):
    graph = graph_of(name, ranks)
    plan = remat.solve(graph, budget, options=remat.SolveOptions(strategy=strategy)).plan
    predicted = replay(graph, plan.statements).peak_bytes - graph.fixed_memory
    for eager, planned, same in together(run_compiled, name, plan, count=ranks):
        assert planned == pytest.approx(predicted, abs=64)
        assert planned < 0.85 * eager
        assert all(same)


@pytest.mark.parametrize(("strategy", "budget"), [("fsdp", "90%"), ("auto", "75%")])
def test_ranks_that_pad_their_parts_follow_the_plan_of_the_first(strategy, budget):
    """Of 256 rows three ranks have 86, 86 and 84: one pads, and its graph has copies that the others have not."""
    graph = graph_of("simple_fsdp", 3)
    options = remat.SolveOptions(strategy=strategy, time_limit_s=5, threads=1)
    plan = remat.solve(graph, budget, options=options).plan
    predicted = replay(graph, plan.statements).peak_bytes - graph.fixed_memory
    found = together(run_compiled, "simple_fsdp", plan, count=3)
    for eager, planned, same in found:
        assert planned <= predicted + 64
        assert planned < 0.95 * eager
        assert all(same)


def test_a_rank_that_pads_has_room_for_it():
    graph = graph_of("simple_fsdp", 3)
    plan = remat.solve(graph, "85%", options=remat.SolveOptions(time_limit_s=3, threads=1)).plan
    with fake_group(3, rank=2):
        build = sharded_models.simple_fsdp
        last = export_model(build, "simple_fsdp", "test", cost="roofline:h100", interconnect=LINKS)
    assert len(last.nodes) == len(graph.nodes) + PARAMETERS
    own, reason = followed(plan, read_step(last), read_step(graph))
    assert not reason
    seen = replay(last, own.statements, any_order=True)
    assert seen.findings == ()
    assert seen.peak_bytes <= plan.budget_bytes
    issued = [[g.nodes[s.node].id for s in p.statements if isinstance(s, Compute) and g.nodes[s.node].op == GATHER]
              for g, p in ((graph, plan), (last, own))]  # fmt: skip
    assert issued[0] == issued[1], "all ranks issue their collectives in one order"
    tight = replace(plan, budget_bytes=seen.peak_bytes - 1)
    assert followed(tight, read_step(last), read_step(graph)) == (
        None,
        "this rank pads its part, and needs 1 B more than the budget of the plan",
    )
    assert followed(plan, read_step(graph_of("tensor_parallel")), read_step(graph)) == (None, "")
