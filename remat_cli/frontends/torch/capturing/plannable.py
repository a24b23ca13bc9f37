"""Refuses captured operations that no plan supports, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.torch.tensors import is_dense, is_fixed

_LSTM = "aten.mkldnn_rnn_layer"
_UNIQUE = "aten._unique.default"
"""Before 2.13, PyTorch invents a size for its result."""
_WRONG = "multilabel_margin_loss"
"""PyTorch compiles this wrongly: labels after the first -1 count as if they were 0 (2.13.0)."""


def require_plannable(node: Any, tensors: Sequence[tuple[int | None, Any]]) -> None:
    """Check that the results of an FX node are correct, and that a plan can count, keep and pass them on.

    Args:
        node: A node that calls an operator.
        tensors: Position and fake tensor of each of its results.

    Raises:
        CaptureFailed: If they are not, or it cannot.
    """
    if str(node.target).startswith(_LSTM):
        raise CaptureFailed(
            "nn.LSTM on a CPU keeps memory for its backward pass that PyTorch hands to no compiled step",
            hint="build the layer from nn.LSTMCell",
        )
    if any(getattr(function, "__name__", "") == _WRONG for _, function in node.meta.get("source_fn_stack", ())):
        raise CaptureFailed(
            f"PyTorch computes {_WRONG} wrongly when it is compiled: what follows the first -1 is counted too",
            hint="leave that loss outside of what is compiled",
        )
    if any(not is_dense(tensor) for _, tensor in tensors):
        raise CaptureFailed(
            f"{node.target} makes a sparse tensor, and a plan counts the bytes of dense ones",
            hint="embeddings have sparse gradients only if they are made with sparse=True",
        )
    if str(node.target) == _UNIQUE or any(not is_fixed(tensor) for _, tensor in tensors):
        raise CaptureFailed(
            f"the size of what {node.target} makes depends on the numbers in a tensor",
            hint="torch.where and masked_fill keep sizes fixed, where a mask as an index does not",
        )
