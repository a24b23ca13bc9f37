"""AOTAutograd: joint graphs, their splits, and the descriptions of their inputs and outputs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from remat_cli.frontends.aten.division_rules import INTERPOLATIONS
from remat_cli.frontends.torch.types import GraphModule, Tensor

Partition = Callable[..., tuple[GraphModule, GraphModule]]
"""``partition(joint, joint_inputs, *, num_fwd_outputs, **options)``: the forward and the backward graph module."""


def aot(
    graph_module: GraphModule, inputs: Any, *, compiler: Callable[[GraphModule, Any], Any], partition: Partition
) -> Any:
    """The result of AOTAutograd: ``partition`` splits the joint graph, ``compiler`` compiles both parts.

    So a plan divides the joint graph. Before that, some operations become what runs in eager mode, see the functions
    below.
    """
    import torch
    from torch._dynamo.backends.common import aot_autograd

    backend = aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        partition_fn=partition,
        decompositions={
            torch.ops.aten.native_dropout_backward.default: dropout_backward,
            torch.ops.aten.native_layer_norm_backward.default: layer_norm_backward,
        },
    )
    leave_out_idle_dropout(graph_module)
    with whole_interpolation():
        return backend(graph_module, inputs)


@contextmanager
def whole_interpolation() -> Iterator[None]:
    """A context in which interpolation stays one operator, which eager mode runs.

    PyTorch would capture its Python implementation: many operators with more memory, whose last bits differ. Overloads
    have it in ``py_kernels``, and remember in ``_dispatch_cache`` what they run.
    """
    import torch

    keys = torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd
    packets = (getattr(torch.ops.aten, name) for name in INTERPOLATIONS)
    operators = [getattr(packet, overload) for packet in packets for overload in ("default", "vec")]
    removed = [(one, key, one.py_kernels.pop(key)) for one in operators for key in keys if key in one.py_kernels]
    for one in operators:
        one._dispatch_cache.clear()
    try:
        yield
    finally:
        for one, key, kernel in removed:
            one.py_kernels[key] = kernel
        for one in operators:
            one._dispatch_cache.clear()


def leave_out_idle_dropout(graph_module: GraphModule) -> None:
    """Have what reads the result of a dropout that drops nothing read its input, which eager mode returns.

    AOTAutograd would copy the input.
    """
    import torch

    names = ("input", "p", "training")
    changed = False
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.nn.functional.dropout):
        given = {"p": 0.5, "training": True} | dict(zip(names, node.args, strict=False)) | node.kwargs
        if given["p"] == 0 or given["training"] is False:
            node.replace_all_uses_with(given["input"])
            graph_module.graph.erase_node(node)
            changed = True
    if changed:
        graph_module.recompile()


def dropout_backward(gradient: Tensor, mask: Tensor, scale: float) -> Tensor:
    """What PyTorch's kernel computes, product by product.

    Without data, PyTorch takes the result for contiguous, and a copy into that layout would change the order of later
    sums. And a plan sees the first product, which the kernel holds beside the second one.
    """
    return gradient * mask * scale


def layer_norm_backward(gradient: Tensor, normalized: Tensor, *rest: Any) -> Any:
    """The gradients of a layer norm from a contiguous copy of ``gradient``, as PyTorch's kernel makes it.

    The kernel's results are contiguous. Without data, PyTorch takes them to lie as ``gradient`` does, and a copy into
    that layout would change the order of later sums. And a plan sees the copy, which the kernel holds while it runs.
    """
    import torch

    if gradient.is_contiguous() or not normalized.is_contiguous():
        # Nothing to copy; or the input, too, and a backward operator has to get what its forward operator got.
        return NotImplemented
    return torch.ops.aten.native_layer_norm_backward.default(gradient.contiguous(), normalized, *rest)


def min_cut(joint: GraphModule, joint_inputs: Any, **options: Any) -> tuple[GraphModule, GraphModule]:
    """The split that Inductor makes by itself.

    Graphs for which there is no plan get it.
    """
    from functorch.compile import min_cut_rematerialization_partition

    forward, backward = min_cut_rematerialization_partition(joint, joint_inputs, **options)
    return forward, backward


def default_split(
    joint: GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **options: Any
) -> tuple[GraphModule, GraphModule]:
    """The split without recomputation, which saves everything that the backward pass reads.

    Without Inductor, graphs for which there is no plan get it.
    """
    from functorch.compile import default_partition

    forward, backward = default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)
    return forward, backward


def as_given(graph_module: GraphModule, _inputs: Any) -> Any:
    """A compiler that compiles nothing."""
    from functorch.compile import make_boxed_func

    return make_boxed_func(graph_module.forward)


def takes_its_arguments(function: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """``function`` with the mark that tells AOTAutograd that it empties its argument list.

    It then gets AOTAutograd's own list, so that inputs are freed where the plan says.
    """

    def boxed(args: list[Any]) -> list[Any]:
        return function(args)

    boxed._boxed_call = True  # type: ignore[attr-defined]  # the mark
    return boxed


def descriptors() -> Any:
    """The module with the classes that describe the inputs and outputs of a joint graph.

    Placeholders have such descriptions as ``meta["desc"]``, and the output node a list of them. They tell parameters,
    tangents and updates of inputs apart.
    """
    from torch._functorch._aot_autograd import descriptors as found

    return found


def saved_description(number: int) -> Any:
    """The description of a tensor that a forward graph saves."""
    return descriptors().SavedForBackwardsAOTOutput(number)


def renumbered(description: Any, places: Mapping[int, int]) -> Any:
    """The description of an input or output if the inputs have other places, by their old ones.

    This is so where numbers have taken the place of inputs that are sizes.
    """
    known = descriptors()
    if isinstance(description, known.PlainAOTInput):
        return replace(description, idx=places[description.idx])
    if isinstance(description, known.InputMutationAOTOutput):
        return replace(description, mutated_input=renumbered(description.mutated_input, places))
    return description
