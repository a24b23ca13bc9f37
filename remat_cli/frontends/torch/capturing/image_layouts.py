"""Copies of images and weights into the layouts in which convolutions read them, as operations of the joint graph.

On a CPU, Inductor lays out with channels last what convolutions read. It copies the inputs of the step when the step
begins, and keeps the copies for the backward pass. As operations, copies are made where they are first read, freed
after they are last read, and may be made again in the backward pass.

Gradients of depthwise convolutions with kernels above 3x3 are another case: if their images have channels last, oneDNN
adds up the gradient of the weight in many parts. If these take more than copies of the images, the gradient reads
contiguous copies.
"""

from __future__ import annotations

from typing import Any

from remat_cli.frontends.torch.tensors import dense_bytes

LAYOUT = "remat_layout"
"""Key of the layout of a copy in the ``meta`` of its node, which Inductor then gives it."""
_NAMING = ("nn_module_stack", "fwd_nn_module_stack", "stack_trace")
"""What the ``meta`` of a node says of its place in the model."""
_IMAGE_DIMS = 4
_SMALL, PARTS = 9, 257
"""Elements of the largest kernel whose gradient oneDNN adds up as it is, but for images of a few pixels; and what it
takes for others, in gradients of the weight. Both were measured with PyTorch 2.13 on an AMD EPYC."""
_COPIES = 2
"""Images that a gradient takes besides if it reads contiguous ones: oneDNN copies one, a plan at most one more."""


def lay_out(joint: Any, mode: Any) -> list[Any]:
    """Add the copies that convolutions on a CPU read, and let them read these.

    Args:
        joint: The joint graph of FX; its nodes have fake results.
        mode: The mode of these.

    Returns:
        The new nodes.
    """
    import torch

    if not torch.backends.mkldnn.is_available():
        return []
    return [*_inputs_laid_out(joint, mode), *_gradients_laid_out(joint, mode)]


def _inputs_laid_out(joint: Any, mode: Any) -> list[Any]:
    """Copy inputs of the step with channels last, each before the first convolution that reads it."""
    import torch

    aten = torch.ops.aten
    first: dict[Any, Any] = {}
    for node in joint.find_nodes(op="call_function", target=aten.convolution.default):
        for read in node.args[:2]:
            if read.op == "placeholder" and _is_image(read) and not _has_channels_last(read):
                first.setdefault(read, node)
    # Operation by operation, the step runs in the layouts that it was captured with: nothing is said of that here.
    copies = {read: _copied(joint, read, node, mode, torch.channels_last, {}) for read, node in first.items()}
    for target, positions in ((aten.convolution.default, (0, 1)), (aten.convolution_backward.default, (1, 2))):
        for node in joint.find_nodes(op="call_function", target=target):
            for k in positions:
                node.update_arg(k, copies.get(node.args[k], node.args[k]))
    return list(copies.values())


def _gradients_laid_out(joint: Any, mode: Any) -> list[Any]:
    """Copy what gradients of depthwise convolutions read where that takes less than channels last."""
    import torch

    contiguous = {"memory_format": torch.contiguous_format}
    found = []
    for node in joint.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default):
        if not _in_many_parts(node):
            continue
        for k in (0, 1):
            copy = _copied(joint, node.args[k], node, mode, torch.contiguous_format, contiguous)
            node.update_arg(k, copy)
            found.append(copy)
    return found


def _in_many_parts(node: Any) -> bool:
    """Whether the gradient of a convolution takes more with channels last than with contiguous copies."""
    gradient, image, weight = node.args[:3]
    return (
        is_depthwise(weight)
        and PARTS * dense_bytes(weight.meta["val"])
        > _COPIES * max(dense_bytes(n.meta["val"]) for n in (gradient, image))
        and has_large_kernel(weight)
    )


def is_depthwise(weight: Any) -> bool:
    """Whether a node is the weight of a depthwise convolution of images on a CPU."""
    return _is_image(weight) and bool(weight.meta["val"].shape[1] == 1)


def has_large_kernel(weight: Any) -> bool:
    """Whether oneDNN adds up the gradient of a depthwise weight in many parts if images have channels last."""
    return bool(weight.meta["val"][0, 0].numel() > _SMALL)


def _is_image(node: Any) -> bool:
    tensor = node.meta["val"]
    return bool(tensor.dim() == _IMAGE_DIMS and tensor.device.type == "cpu")


def _has_channels_last(node: Any) -> bool:
    import torch

    return bool(node.meta["val"].is_contiguous(memory_format=torch.channels_last))


def _copied(joint: Any, read: Any, reader: Any, mode: Any, layout: Any, told: dict[str, Any]) -> Any:
    """A copy of ``read`` before ``reader``, which belongs to the same module."""
    import torch

    with joint.inserting_before(reader):
        copy = joint.call_function(torch.ops.aten.clone.default, (read,), told)
    copy.meta = {key: reader.meta[key] for key in _NAMING if key in reader.meta}
    with mode:
        copy.meta |= {"val": copy.target(read.meta["val"], **told), LAYOUT: layout}
    return copy
