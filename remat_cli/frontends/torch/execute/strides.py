"""Layouts in memory that kernels on a CPU choose otherwise than PyTorch's capture expects.

PyTorch captures a step with tensors without data. For some operators they have other strides than what the kernel
returns. A captured step has views that rely on the strides, and fails where they are others, also in PyTorch's own
``aot_eager``. So a plan copies such a result into the layout in which the graph has it.
"""

from collections.abc import Iterable, Sequence

from remat_cli.frontends.torch.document import Operation, TensorSpec
from remat_cli.frontends.torch.types import Tensor

_OTHER_STRIDES = """
_log_softmax_backward_data _native_batch_norm_legit.no_stats _native_batch_norm_legit_functional
_native_batch_norm_legit_no_training binary_cross_entropy binary_cross_entropy_backward copysign.Tensor
div.Tensor_mode elu_backward floor_divide hardsigmoid_backward hardswish_backward hardtanh_backward
huber_loss_backward log_sigmoid_forward logit_backward mse_loss_backward native_batch_norm native_batch_norm_backward
native_dropout_backward native_layer_norm_backward normal.Tensor_Tensor pow.Scalar smooth_l1_loss_backward
softplus_backward xlogy.Tensor
"""

OTHER_STRIDES = frozenset(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in _OTHER_STRIDES.split())
"""Operators whose results may have other strides on a CPU than without data.

Found with PyTorch 2.13 by ``tests/frontends/record_strides.py``, which exchanges two axes of its samples in memory, in
all tensors or in some of them: a gradient often lies otherwise than what its operator reads besides. The variants of
batch norm without statistics, and in evaluation, are taken to be as the others.
"""


def copied_bytes(operation: Operation, device: str) -> int:
    """Bytes that the results of ``operation`` take a second time while they are copied into their layout; 0 for most.

    Args:
        operation: An operation of a captured step.
        device: Where it runs.
    """
    if operation.call not in OTHER_STRIDES or device != "cpu":
        return 0
    import torch

    specs: Iterable[TensorSpec] = (tensor.spec for tensors in operation.values for tensor in tensors)
    layouts = ((spec, torch.empty_strided(spec.shape, spec.stride, device="meta")) for spec in specs)
    return max((spec.bytes for spec, tensor in layouts if not is_usual(tensor)), default=0)


def is_usual(tensor: Tensor) -> bool:
    """Whether a tensor is contiguous, or in ``channels_last``: kernels return such a tensor for such inputs."""
    import torch

    other = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return bool(tensor.is_contiguous() or (other is not None and tensor.is_contiguous(memory_format=other)))


def in_layout(tensor: Tensor, stride: Sequence[int]) -> Tensor:
    """``tensor``, or a copy of it if it has other strides; None if an operator was not asked for it."""
    if tensor is None or tensor.stride() == stride:
        return tensor
    axes = zip(tensor.shape, tensor.stride(), stride, strict=True)
    if all(a == b for length, a, b in axes if length > 1):  # strides of axes of length 1 say nothing
        return tensor
    return tensor.new_empty_strided(tensor.shape, stride).copy_(tensor)
