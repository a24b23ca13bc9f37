"""Layouts of images and weights that Inductor's convolutions read: predicted in the joint graph, kept in its halves.

*Predicted:* On a CPU, Inductor lays out with channels last what convolutions read. It copies the inputs of the step
when the step begins, and keeps the copies for the backward pass. As operations of the joint graph, copies are made
where they are first read, freed after they are last read, and may be made again in the backward pass.

Gradients of depthwise convolutions with kernels above 3x3 are another case: if their images have channels last, oneDNN
adds up the gradient of the weight in many parts. If these take more than copies of the images, the gradient reads
contiguous copies.

The gradient of a weight has channels last, too. Autograd would copy it into the layout of its parameter after the
step, when all gradients are there. As an operation, it is copied where it is made.

*Kept:* Inductor lays out images with channels last in a graph that has a convolution. In a backward graph that computes
none again, it copies what the gradients of depthwise convolutions read into other layouts: the step takes three more
images, and oneDNN copies two more. With channels last it needs none of that, but for kernels above 3x3 oneDNN adds up
the gradient in many parts; then the plan has contiguous copies.

Inductor also copies the inputs of a step that the backward graph reads, if convolutions read them at all. A plan has
such copies where they are needed.
"""

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

from remat_cli.frontends.torch.compat.inductor import channels_last_unless, channels_last_where
from remat_cli.frontends.torch.inductor.loops import LIMIT
from remat_cli.frontends.torch.tensors import dense_bytes
from remat_cli.frontends.torch.types import FakeMode, FxGraph, FxNode, GraphModule

LAYOUT = "remat_layout"
"""Key of the layout of a copy in the ``meta`` of its node, which Inductor then gives it."""
_NAMING = ("nn_module_stack", "fwd_nn_module_stack", "stack_trace")
"""What the ``meta`` of a node says of its place in the model."""
_IMAGE_DIMS = 4
_SMALL, _PARTS = 9, 257
"""Elements of the largest kernel whose gradient oneDNN adds up as it is, but for images of a few pixels; and what it
takes for others, in gradients of the weight. Both were measured with PyTorch 2.13 on an AMD EPYC."""
_COPIES = 2
"""Images that a gradient takes besides if it reads contiguous ones: oneDNN copies one, a plan at most one more."""
_OTHER_COPIES = 5
"""Images that are copied for a depthwise gradient in other layouts: three by Inductor, two by oneDNN."""


def lay_out(joint: FxGraph, mode: FakeMode) -> list[FxNode]:
    """Add the copies that convolutions on a CPU read, and let them read these; returns the new nodes.

    The nodes of the joint graph have fake results of ``mode``.
    """
    import torch

    if not torch.backends.mkldnn.is_available():
        return []
    return [*_inputs_laid_out(joint, mode), *_read_by_gradients(joint, mode), *_results_laid_out(joint, mode)]


def _inputs_laid_out(joint: FxGraph, mode: FakeMode) -> list[FxNode]:
    """Copy inputs of the step with channels last, each before the first convolution that reads it."""
    import torch

    aten = torch.ops.aten
    first: dict[FxNode, FxNode] = {}
    for node in joint.find_nodes(op="call_function", target=aten.convolution.default):
        for read in node.args[:2]:
            if read.op == "placeholder" and is_image(read) and not _has_channels_last(read):
                first.setdefault(read, node)
    # Operation by operation, the step runs in the layouts that it was captured with: nothing is said of that here.
    copies = {read: _copied(joint, read, node, mode, torch.channels_last, {}) for read, node in first.items()}
    # Gradients read the same copies: a plan decides whether to keep one or to make it again.
    for target, positions in ((aten.convolution.default, (0, 1)), (aten.convolution_backward.default, (1, 2))):
        for node in joint.find_nodes(op="call_function", target=target):
            for k in positions:
                node.update_arg(k, copies.get(node.args[k], node.args[k]))
    return list(copies.values())


def _read_by_gradients(joint: FxGraph, mode: FakeMode) -> list[FxNode]:
    """Copy what gradients of depthwise convolutions read where that takes less than channels last."""
    import torch

    contiguous = {"memory_format": torch.contiguous_format}
    copies = []
    for node in joint.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default):
        if not _in_many_parts(node):
            continue
        for k in (0, 1):
            copy = _copied(joint, node.args[k], node, mode, torch.contiguous_format, contiguous)
            node.update_arg(k, copy)
            copies.append(copy)
    return copies


def _results_laid_out(joint: FxGraph, mode: FakeMode) -> list[FxNode]:
    """Copy gradients of weights that the step returns into the layout of the weights, where they are made."""
    import torch

    output = joint.output_node()
    contiguous = {"memory_format": torch.contiguous_format}
    copies = {}
    for node in joint.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default):
        weight = node.args[2] if LAYOUT not in node.args[2].meta else node.args[2].args[0]
        if not is_image(weight) or _has_channels_last(weight) or reads_contiguous_copies(node):
            continue
        for gradient in node.users:
            # Item 1 is the gradient of the weight.
            if gradient.target is operator.getitem and gradient.args[1] == 1 and set(gradient.users) == {output}:
                copies[gradient] = _copied(joint, gradient, gradient.next, mode, torch.contiguous_format, contiguous)
    output.args = ([copies.get(gradient, gradient) for gradient in output.args[0]],)
    return list(copies.values())


def _in_many_parts(node: FxNode) -> bool:
    """Whether the gradient of a convolution takes more with channels last than with contiguous copies."""
    gradient, image, weight = node.args[:3]
    return (
        is_depthwise(weight)
        and _PARTS * dense_bytes(weight.meta["val"])
        > _COPIES * max(dense_bytes(n.meta["val"]) for n in (gradient, image))
        and has_large_kernel(weight)
    )


def reads_contiguous_copies(node: FxNode) -> bool:
    """Whether a node is a gradient of a convolution that reads contiguous copies; that of its weight is contiguous."""
    import torch

    gradient = node.target is torch.ops.aten.convolution_backward.default
    return gradient and all(read.meta.get(LAYOUT) is torch.contiguous_format for read in node.args[:2])


def is_depthwise(weight: FxNode) -> bool:
    """Whether a node is the weight of a depthwise convolution of images on a CPU."""
    return is_image(weight) and bool(weight.meta["val"].shape[1] == 1)


def has_large_kernel(weight: FxNode) -> bool:
    """Whether oneDNN adds up the gradient of a depthwise weight in many parts if images have channels last."""
    return bool(weight.meta["val"][0, 0].numel() > _SMALL)


def is_image(node: FxNode) -> bool:
    """Whether a node is a batch of images on a CPU, or the weight of a convolution of such."""
    tensor = node.meta["val"]
    return bool(tensor.dim() == _IMAGE_DIMS and tensor.device.type == "cpu")


def _has_channels_last(node: FxNode) -> bool:
    import torch

    return bool(node.meta["val"].is_contiguous(memory_format=torch.channels_last))


def _copied(joint: FxGraph, read: FxNode, before: FxNode, mode: FakeMode, layout: Any, options: dict[str, Any]) -> Any:
    """A copy of ``read`` before the node ``before``.

    It belongs to the module of ``before``, which reads it; that of a gradient, to the module of the gradient.
    """
    import torch

    with joint.inserting_before(before):
        copy = joint.call_function(torch.ops.aten.clone.default, (read,), options)
    place = read.args[0] if read.target is operator.getitem else before
    copy.meta = {key: place.meta[key] for key in _NAMING if key in place.meta}
    with mode:
        copy.meta |= {"val": copy.target(read.meta["val"], **options), LAYOUT: layout}
    return copy


@contextlib.contextmanager
def layouts_kept() -> Iterator[None]:
    """Within this context, graphs made by plan have images with channels last, where the plan says nothing else."""
    with channels_last_where(_take_less), channels_last_unless(_is_told):
        yield


def _is_told(module: GraphModule, node: FxNode) -> bool:
    """Whether a plan has made a graph module and says in which layout a result is: as it is given, or copied."""
    if LIMIT not in module.meta:
        return False
    device = getattr(node.meta.get("val"), "device", None) if node.op == "placeholder" else None
    return LAYOUT in node.meta or (device is not None and device.type == "cpu")


def _take_less(module: GraphModule) -> bool:
    """Whether a plan has made a graph module whose depthwise gradients, all on a CPU, take less with channels last."""
    import torch

    if LIMIT not in module.meta or not torch.backends.mkldnn.is_available():
        return False
    gradients = module.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default)
    read = [node.args[:3] for node in gradients]
    depthwise = [nodes for nodes in read if is_depthwise(nodes[2])]
    if not depthwise or any(weight.meta["val"].device.type != "cpu" for _, _, weight in read):
        return False
    rest = [nodes[1:] for nodes in depthwise if any(LAYOUT not in node.meta for node in nodes[:2])]
    parts = [dense_bytes(weight.meta["val"]) * (_PARTS if has_large_kernel(weight) else 1) for _, weight in rest]
    return max(parts, default=0) <= _OTHER_COPIES * max(
        (dense_bytes(image.meta["val"]) for image, _ in rest), default=0
    )
