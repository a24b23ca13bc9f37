"""Operators of a backward pass that trust what they are given, and the operators of the forward pass that make it.

Some backward operators check neither that their arguments fit each other nor that indices are in range, since autograd
calls them only with what the forward operator was given and returned. On other arguments they read or write outside of
memory. They were found on a CPU with PyTorch 2.13 by calling the operators of the list with arguments of other sizes,
which lay in memory next to a page that cannot be read, and with indices that are too large.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.frontends.torch.private import schema, storage_identity
from remat_cli.frontends.torch.tensors import tensors_in


@dataclass(frozen=True, slots=True)
class Pair:
    """A backward operator's partner.

    The first argument of the backward operator is the gradient of the partner's first result, so it has its shape.
    Arguments of the same name have to be the same in both calls.

    Attributes:
        forward: The operator of the forward pass.
        results: For arguments that are results of that, their positions there.
        renamed: For arguments that have another name there, that name.
        rows: For an argument that is the first size of an argument there, the name of that.
    """

    forward: str
    results: Mapping[str, int] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, str] = field(default_factory=dict)


_BAG = "aten._embedding_bag.default"
_ROWS = {"num_weights": "weight"}
_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"
PAIRS = {
    "aten._adaptive_avg_pool2d_backward.default": Pair("aten._adaptive_avg_pool2d.default"),
    "aten._adaptive_avg_pool3d_backward.default": Pair("aten._adaptive_avg_pool3d.default"),
    "aten._embedding_bag_backward.default": Pair(
        _BAG, {"offset2bag": 1, "bag_size": 2, "maximum_indices": 3}, rows=_ROWS
    ),
    "aten._embedding_bag_dense_backward.default": Pair(
        _BAG, {"offset2bag": 1, "bag_size": 2, "maximum_indices": 3}, rows=_ROWS
    ),
    "aten._embedding_bag_per_sample_weights_backward.default": Pair(_BAG, {"offset2bag": 1}),
    "aten._log_softmax_backward_data.default": Pair("aten._log_softmax.default", {"output": 0}),
    "aten._pdist_backward.default": Pair("aten._pdist_forward.default", {"pdist": 0}),
    f"{_ATTENTION}_backward.default": Pair(f"{_ATTENTION}.default", {"out": 0, "logsumexp": 1}),
    "aten._weight_norm_interface_backward.default": Pair(
        "aten._weight_norm_interface.default", {"saved_norms": 1}, {"saved_v": "v", "saved_g": "g"}
    ),
    "aten.adaptive_max_pool2d_backward.default": Pair("aten.adaptive_max_pool2d.default", {"indices": 1}),
    "aten.adaptive_max_pool3d_backward.default": Pair("aten.adaptive_max_pool3d.default", {"indices": 1}),
    "aten.avg_pool3d_backward.default": Pair("aten.avg_pool3d.default"),
    "aten.embedding_dense_backward.default": Pair("aten.embedding.default", rows=_ROWS),
    "aten.fractional_max_pool2d_backward.default": Pair("aten.fractional_max_pool2d.default", {"indices": 1}),
    "aten.fractional_max_pool3d_backward.default": Pair("aten.fractional_max_pool3d.default", {"indices": 1}),
    "aten.grid_sampler_2d_backward.default": Pair("aten.grid_sampler_2d.default"),
    "aten.grid_sampler_3d_backward.default": Pair("aten.grid_sampler_3d.default"),
    "aten.max_pool2d_with_indices_backward.default": Pair("aten.max_pool2d_with_indices.default", {"indices": 1}),
    "aten.max_pool3d_with_indices_backward.default": Pair("aten.max_pool3d_with_indices.default", {"indices": 1}),
    "aten.native_layer_norm_backward.default": Pair("aten.native_layer_norm.default", {"mean": 1, "rstd": 2}),
}
_FORWARD = frozenset(pair.forward for pair in PAIRS.values())


@dataclass(slots=True)
class Calls:
    """The calls of a step so far.

    Attributes:
        forward: Arguments by name and results of the calls that have partners, by operator.
        same: The storage that another one stands for.
    """

    forward: dict[str, list[tuple[dict[str, Any], list[Any]]]] = field(default_factory=lambda: defaultdict(list))
    same: dict[int, int] = field(default_factory=dict)

    def stands_for(self, new: Any, old: Any) -> None:
        """Take ``new`` for ``old`` from here on."""
        self.same[storage_identity(new)] = storage_identity(old)

    def fits(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether arguments belong together, for operators that do not check that themselves."""
        pair, rule = PAIRS.get(str(function)), _RULES.get(str(function))
        if pair is None and rule is None:
            return True
        given = _by_name(function, args, kwargs)
        if rule is not None:
            return rule(given)
        return pair is None or any(self._same_as(pair, given, *call) for call in self.forward[pair.forward])

    def add(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Keep a call that has returned."""
        if str(function) in _FORWARD:
            tensors = [tensor for _, tensor in tensors_in(result)]
            self.forward[str(function)].append((_by_name(function, args, kwargs), tensors))

    def _same_as(self, pair: Pair, given: dict[str, Any], there: dict[str, Any], results: list[Any]) -> bool:
        gradient, *others = given
        if given[gradient].shape != results[0].shape:
            return False
        for name in others:
            if name in pair.results:
                wanted = results[pair.results[name]]
            elif name in pair.rows:
                wanted = there[pair.rows[name]].shape[0]
            elif pair.renamed.get(name, name) in there:
                wanted = there[pair.renamed.get(name, name)]
            else:
                continue
            if not self._same(given[name], wanted):
                return False
        return True

    def _same(self, one: Any, other: Any) -> bool:
        """Whether two arguments are the same numbers, or tensors of the same form in the same memory."""
        import torch

        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            return type(one) is type(other) and one == other
        return self._memory(one) == self._memory(other)

    def _memory(self, tensor: Any) -> tuple[Any, ...]:
        storage = storage_identity(tensor)
        return self.same.get(storage, storage), tensor.storage_offset(), tensor.shape, tensor.stride()


def _by_name(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, in the order of the schema; those left out have their defaults."""
    stated = schema(function).arguments
    given = dict(zip((argument.name for argument in stated), args, strict=False)) | dict(kwargs)
    return {argument.name: given.get(argument.name, argument.default_value) for argument in stated}


def _channels_agree(given: Mapping[str, Any]) -> bool:
    """Whether a batch normalisation has a number for each channel, or none, and a gradient like its input."""
    shape = given["input"].shape
    trains = given.get("train", given.get("training", True))
    gradients = [tensor for name, tensor in given.items() if name in {"grad_out", "grad_output"}]
    read = ("weight", "bias", "running_mean", "running_var") + (
        ("save_mean", "save_invstd", "save_var") if trains else ()
    )
    tensors = [given[name] for name in read if given.get(name) is not None]
    return len(shape) > 1 and all(t.shape == shape for t in gradients) and all(t.numel() == shape[1] for t in tensors)


def _keys_agree(given: Mapping[str, Any]) -> bool:
    """Whether attention has a value for each key."""
    return bool(given["key"].shape[:-1] == given["value"].shape[:-1])


def _distances_agree(given: Mapping[str, Any]) -> bool:
    """Whether there is a distance for each pair of points, and its gradient."""
    gradient = next(iter(given.values()))  # "grad", and "grad_output" since PyTorch 2.14 or 2.15
    first, second, shape = given["x1"].shape, given["x2"].shape, gradient.shape
    pairs = first[:-2] == second[:-2] and first[-1:] == second[-1:] and shape == (*first[:-1], second[-2])
    return bool(pairs and given["cdist"].shape == shape)


def _pivots_agree(given: Mapping[str, Any]) -> bool:
    """Whether there is a pivot for each step of a factorisation."""
    shape = given["LU_data"].shape
    return bool(given["LU_pivots"].shape == (*shape[:-2], min(shape[-2:])))


_RULES: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    f"aten.{name}": rule
    for rule, names in (
        (_channels_agree, ("_native_batch_norm_legit.no_stats", "_native_batch_norm_legit_functional.default")),
        (_channels_agree, ("_native_batch_norm_legit_no_training.default", "cudnn_batch_norm.default")),
        (_channels_agree, ("cudnn_batch_norm_backward.default", "native_batch_norm.default")),
        (_channels_agree, ("native_batch_norm_backward.default",)),
        (_keys_agree, ("_scaled_dot_product_flash_attention_for_cpu.default",)),
        (_distances_agree, ("_cdist_backward.default",)),
        (_pivots_agree, ("lu_unpack.default",)),
    )
    for name in names
}
"""Conditions on the arguments of other operators that trust them."""
