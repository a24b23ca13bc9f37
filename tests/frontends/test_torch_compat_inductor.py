"""Inductor, as ``compat/inductor.py`` says they are."""

import functools
import types

import pytest
import torch
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.utils import run_and_get_code

from remat_cli.frontends.torch.compat import (
    aot_autograd,
    inductor,
)

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
"""PyTorch's own, where Inductor is imported first."""


def test_inductor_divides_a_joint_graph_and_stores_what_is_marked(fresh_compiler):
    """One compilation shows the partitioner, the mark, the choices of loops and the buffers."""
    seen = {}

    class Divide(inductor.partitioner_base()):
        def __call__(self, joint, joint_inputs, **options):
            forward, backward = aot_autograd.min_cut(joint, joint_inputs, **options)
            sums = [node for node in forward.graph.nodes if "add" in str(node.target)]
            with forward.graph.inserting_after(sums[0]):
                made = inductor.stored(forward.graph, sums[0])
            sums[0].replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
            forward.meta["mine"] = 1
            forward.recompile()
            return forward, backward

        def uuid(self):
            return "test"

        def __reduce__(self):
            return str, ("test",)

    kind = type(inductor.loop_choices())

    class Choices(kind):
        @staticmethod
        def can_fuse(scheduler, node1, node2, shared_data_score):
            if inductor.compiled_meta().get("mine"):
                found = inductor.buffer_sizes(scheduler)
                reads = {found.real(name) for node in scheduler.nodes for name in found.read_by(node)}
                seen.update(sizes=found.sizes, reads=reads, results=found.results)
            return kind.can_fuse(scheduler, node1, node2, shared_data_score)

        def uuid(self):
            return "test"

    def backend(graph_module, inputs):
        return inductor.inductor(graph_module, inputs, partitioner=Divide(), settings={"force_disable_caches": True})

    before = inductor.loop_choices()
    with inductor.choosing_loops(Choices()):
        x = torch.ones(64, 64, requires_grad=True)
        made = torch.compile(lambda x: ((x + 1).exp() * 2).sum(0), backend=backend, dynamic=False)(x)
    assert inductor.loop_choices() is before
    torch.testing.assert_close(made, ((x + 1).exp() * 2).sum(0))
    stored = {name for name, size in seen["sizes"].items() if size == (64 * 64 * 4, 64 * 64 * 4)}
    assert stored & seen["reads"]  # the sum that is marked; else all would be one loop
    assert set(seen["results"]) - stored
    assert aot_autograd.saved_description(3).expr() == "__saved_for_backwards_3"


def test_marks_return_their_argument_and_say_what_inductor_makes_of_it():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta = {"val": 1}
    stored, inlined, apart = inductor.stored(graph, x), inductor.inlined(graph, x), inductor.apart(graph, x)
    assert [node.args for node in (stored, inlined, apart)] == [(x,), (x,), (x,)]
    assert stored.meta == inlined.meta == apart.meta == x.meta
    assert apart.target is inductor._mark("apart", inductor._lower_apart) is torch.ops.remat.apart.default
    assert stored.target is inductor._mark("stored", inductor._lower_stored) is torch.ops.remat.stored.default
    assert inlined.target is inductor._mark("inlined", inductor._lower_inlined) is torch.ops.remat.inlined.default
    assert inductor._marked(graph, x, stored.target).target is stored.target
    value = torch.ones(2)
    assert stored.target(value) is value
    assert inlined.target(value) is value


def test_results_that_are_stored_or_inlined():
    class Tensor:
        realized = 0

        def realize(self):
            self.realized += 1

    tensor = Tensor()
    assert inductor._lower_stored(tensor) is tensor
    assert tensor.realized == 1
    tensor.data = None  # what something else has stored is no pointwise result
    assert inductor._lower_inlined(tensor) is tensor
    assert inductor._inlined_box() is inductor._inlined_box()
    assert inductor._inlined_box()(None).should_realize_on_reuse(100) is False
    assert inductor._lower_apart(tensor) is tensor
    assert tensor.realized == 2


@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_functions_of_loops_end_where_they_are_told_to(fresh_compiler):
    kinds = []

    def ends(scheduler):
        kinds.append(inductor.is_loop(scheduler.current_node))
        return ending

    def calls():
        torch._dynamo.reset()
        function = torch.compile(lambda x: (x.sum(0), x.sum(1)), dynamic=False)
        uncached = torch._functorch.config.patch(enable_autograd_cache=False)
        with uncached, torch._inductor.config.patch(fx_graph_cache=False):
            _, [code] = run_and_get_code(function, torch.ones(64, 32))
        return code.count("    cpp_fused_") + code.count("    cpp_ker")

    full = CppScheduling.ready_to_flush
    with inductor.ending_calls_where(ends):
        ending = False
        together = calls()
        assert kinds
        assert all(kinds)
        seen = len(kinds)
        ending = True
        assert calls() == together + 1 == 2
        assert len(kinds) == 2 * seen == 4
    assert CppScheduling.ready_to_flush is full


def test_a_rule_that_others_have_replaced_since_is_theirs():
    owner = type("Owner", (), {"rule": 1})
    with inductor._replaced(owner, "rule", 2):
        assert owner.rule == 2
    assert owner.rule == 1
    with inductor._replaced(owner, "rule", 2):
        owner.rule = 3
    assert owner.rule == 3


@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_concatenations_whose_parts_are_made_in_place_make_no_code():
    from torch._inductor import scheduler

    made = {
        kind: inductor.makes_code(object.__new__(kind))
        for kind in (scheduler.NopKernelSchedulerNode, scheduler.SchedulerNode)
    }
    assert list(made.values()) == [False, True]


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_images_with_channels_last_where_asked_for(wanted):
    from torch._inductor.graph import GraphLowering

    before = GraphLowering.decide_layout_opt
    module = torch.fx.symbolic_trace(torch.nn.ReLU())
    asked = []

    def wants(given):
        asked.append(given)
        return wanted

    with inductor.channels_last_where(wants):
        assert GraphLowering.decide_layout_opt(module, is_inference=False) is wanted
    assert asked == [module]
    assert GraphLowering.decide_layout_opt is before


@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_results_that_are_not_copied_into_channels_last():
    from torch._inductor.graph import GraphLowering

    name = "find_nodes_prefer_channels_last"
    before = getattr(GraphLowering, name)
    lowering = types.SimpleNamespace(module=torch.fx.Graph())
    image, weight = lowering.module.placeholder("image"), lowering.module.placeholder("weight")
    rest = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    made = lowering.module.call_function(torch.ops.aten.convolution.default, (image, weight, *rest))
    lowering.module.output(made)
    lowering.module = torch.fx.GraphModule({}, lowering.module)
    assert {image, weight, made} <= getattr(GraphLowering, name)(lowering)
    asked = []

    def keeps(module, node):
        asked.append(module)
        return node is weight

    with inductor.channels_last_unless(keeps):
        found = getattr(GraphLowering, name)(lowering)
    assert getattr(GraphLowering, name) is before
    assert {image, made} <= found
    assert weight not in found
    assert set(asked) == {lowering.module}
    assert len(asked) == len(found) + 1  # asked once for each


def _code(function, change, x):
    """What ``function`` returns for ``x``, and Inductor's code for its forward graph after ``change``."""

    class Divide(inductor.partitioner_base()):
        def __call__(self, joint, joint_inputs, **options):
            forward, backward = aot_autograd.min_cut(joint, joint_inputs, **options)
            [sines] = [node for node in forward.graph.nodes if "sin" in str(node.target)]
            change(forward.graph, sines)
            forward.recompile()
            return forward, backward

        def uuid(self):
            return "test"

    def backend(graph_module, inputs):
        return inductor.inductor(graph_module, inputs, partitioner=Divide(), settings={"force_disable_caches": True})

    result, [code, *_] = run_and_get_code(torch.compile(function, backend=backend, dynamic=False), x)
    return result, code


@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_operations_that_are_left_to_a_library(fresh_compiler):
    called = set()
    x = torch.randn(3, requires_grad=True)
    for change, expected in (
        (lambda _graph, _node: None, 0),
        (lambda _graph, node: inductor.leave_to_library(node), 1),
    ):
        torch._dynamo.reset()
        called.clear()
        with inductor.ending_calls_where(lambda scheduler: called.update(map(inductor.called_by, scheduler.nodes))):
            result, code = _code(lambda x: x.sin() + 1, change, x)
        torch.testing.assert_close(result, x.sin() + 1)
        assert code.count("torch.ops.aten.sin.default(") == expected
        assert called == ({"", "sin"} if expected else {""})


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_results_in_the_layout_that_is_asked_for(layout, fresh_compiler):
    other = {torch.contiguous_format: torch.channels_last, torch.channels_last: torch.contiguous_format}[layout]
    marks = []

    def change(graph, node):
        made = inductor.laid_out(graph, node, layout)
        node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
        marks.append((made.target, made.meta == node.meta))

    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=other).requires_grad_()
    result, code = _code(lambda x: x.sin().sort()[0].sum(), change, x)
    torch.testing.assert_close(result, x.sin().sum())
    strides = torch.empty(2, 3, 4, 5).contiguous(memory_format=layout).stride()
    assert f"empty_strided_cpu((2, 3, 4, 5), {strides}, torch.float32)" in code
    kinds = {torch.contiguous_format: "contiguous", torch.channels_last: "channels_last"}
    lower = {
        torch.contiguous_format: inductor._lower_contiguous,
        torch.channels_last: inductor._lower_channels_last,
    }
    assert marks == [(inductor._mark(kinds[layout], lower[layout]), True)]


@pytest.mark.filterwarnings("default:`torch.jit:DeprecationWarning")  # Inductor's own, where it is first imported
def test_concatenations_of_images_with_channels_last(fresh_compiler):
    def joined_twice(graph, node, lay_out):
        part = inductor.stored(graph, node)
        with graph.inserting_after(part):
            joined = graph.call_function(torch.ops.aten.cat.default, ([part, part], 1))
        joined.meta = {"val": torch.empty(2, 6, 4, 5)}
        node.replace_all_uses_with(joined, delete_user_cb=lambda user: user is not part)
        lay_out(joined)

    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    for lay_out, strides in ((id, (120, 20, 5, 1)), (lambda node: inductor.lay_out_joined(node), (120, 1, 30, 6))):
        torch._dynamo.reset()
        result, code = _code(lambda x: x.sin().sum(), functools.partial(joined_twice, lay_out=lay_out), x)
        torch.testing.assert_close(result, 2 * x.sin().sum())
        assert f"empty_strided_cpu((2, 6, 4, 5), {strides}, torch.float32)" in code
    found = inductor._operator(
        "joined", "(Tensor[] tensors, int dim=0) -> Tensor", inductor._lower_joined, inductor._join
    )
    assert found is torch.ops.remat.joined.default
    assert torch.equal(found([x, x], 1), inductor._join([x, x], 1))
    assert inductor._same(x) is x
