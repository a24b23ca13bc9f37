"""Prints the operators whose results have other strides on a CPU than without data, for ``OTHER_STRIDES``.

Run it by hand for a new PyTorch: ``python tests/frontends/record_strides.py``. It needs the package expecttest, without
which PyTorch's samples of operators cannot be imported. It takes all samples, with the last two axes of each tensor, or
of some, exchanged in memory, forward and backward, and compares each kernel with the same call on fake tensors.
"""

import warnings
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from remat_cli.frontends.torch.execute.strides import OTHER_STRIDES
from remat_cli.frontends.torch.operators import OPERATORS

SAMPLES = 6
"""Samples of each operator. Untuned."""
EXCHANGED = ((True, True, True), (True, False, False), (False, True, False), (False, False, True))
"""Which tensors have their axes exchanged: the first input, the others, the tangents."""


class Compared(TorchDispatchMode):
    """Adds to ``found`` each operator whose result lies elsewhere than that on fake tensors."""

    def __init__(self, found: set[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = call(*args, **(kwargs or {}))
        if str(call) in OPERATORS:
            mode = FakeTensorMode()
            try:
                given = tree_map(lambda item: mode.from_tensor(item.detach()) if tensor(item) else item, (args, kwargs))
                with mode:
                    fake = call(*given[0], **(given[1] or {}))
            except Exception:  # what depends on numbers has no fake result
                return result
            pairs = zip(filter(tensor, tree_leaves(result)), filter(tensor, tree_leaves(fake)), strict=False)
            if any(one.shape == other.shape and differ(one, other) for one, other in pairs):
                self.found.add(str(call))
        return result


def tensor(item: Any) -> bool:
    return isinstance(item, torch.Tensor)


def differ(one: Any, other: Any) -> bool:
    axes = zip(one.shape, one.stride(), other.stride(), strict=True)
    return one.numel() > 1 and any(a != b for length, a, b in axes if length > 1)


def exchanged(item: Any) -> Any:
    """A tensor with its last two axes exchanged in memory; anything else as it is."""
    if not tensor(item) or item.layout != torch.strided or item.dim() < 2 or not item.is_floating_point():
        return item
    return item.detach().transpose(-1, -2).contiguous().transpose(-1, -2).requires_grad_(item.requires_grad)


def compute(operator: Any, sample: Any, first: bool, others: bool, tangents: bool) -> None:
    """Run an operator on a sample, forward and backward."""
    item = tree_map(exchanged, sample.input) if first else sample.input
    args, kwargs = (sample.args, sample.kwargs) if not others else tree_map(exchanged, (sample.args, sample.kwargs))
    made = [t for t in tree_leaves(operator(item, *args, **kwargs)) if tensor(t) and t.requires_grad]
    wanted = [t for t in tree_leaves((item, args, kwargs)) if tensor(t) and t.requires_grad]
    if made and wanted:
        given = [exchanged(torch.randn_like(t)) if tangents else torch.randn_like(t) for t in made]
        torch.autograd.grad(made, wanted, given, allow_unused=True)


def main() -> None:
    warnings.simplefilter("ignore")
    found: set[str] = set()
    for operator in op_db:
        if not operator.supports_dtype(torch.float32, "cpu"):
            continue
        try:
            samples = list(operator.sample_inputs("cpu", torch.float32, requires_grad=operator.supports_autograd))
        except Exception:  # some need libraries that are not here
            continue
        for sample in samples[:SAMPLES]:
            for which in EXCHANGED:
                try:
                    with Compared(found):
                        compute(operator, sample, *which)
                except Exception:  # samples that do not take the exchanged layout
                    continue
    for name in sorted(found | OTHER_STRIDES):
        print(name, "" if name in OTHER_STRIDES else "NEW")  # noqa: T201 - a report


if __name__ == "__main__":
    main()
