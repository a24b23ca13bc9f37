"""Costs of operations that are not measured one by one: FLOPs, or time at the rates of a device.

    time = launch + views + max(work of its kind / rate, bytes / bandwidth) + runs / rate

Matrix products, convolutions and attention have PyTorch's formulas for their FLOPs. Of the rest, most operations do
little more than read and write memory. Those that do more (exponentials, random numbers, normalisations) have kinds of
their own, by the name of the operator. A pointwise operation does its work in contiguous runs: one for dense tensors,
and one for each row if an input is broadcast, sliced or permuted.

A group of operations that a compiler makes one loop of is launched once, and reads and writes only what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from remat_cli.frontends.messages import Tell, tell_stderr
from remat_cli.frontends.rates import CostModel as CostModelOf
from remat_cli.frontends.rates import Rates, named_costs
from remat_cli.frontends.torch.capture.capture import Group
from remat_cli.frontends.torch.compat.operators import flop_formula, is_operator
from remat_cli.frontends.torch.execute.cross_entropy import cross_entropy
from remat_cli.frontends.torch.measure.rates import device_rates
from remat_cli.frontends.torch.tensors import tensors_in
from remat_cli.frontends.torch.types import Device, FxNode, Tensor

CostModel = CostModelOf[FxNode]

_BY_KIND = {
    "batched product": "bmm baddbmm",
    "exp": """exp exp2 expm1 log log2 log10 log1p sigmoid logit silu silu_backward sigmoid_backward log_sigmoid_forward
        log_sigmoid_backward softplus softplus_backward elu elu_backward logaddexp hardswish celu selu""",
    "erf": "erf erfc erfinv gelu gelu_backward",
    "tanh": """tanh mish mish_backward sin cos tan sinh cosh asin acos atan atan2 asinh acosh atanh pow lgamma digamma
        fmod remainder""",
    "random": """native_dropout bernoulli bernoulli_ rand rand_like randn randn_like randint randint_like randperm
        uniform uniform_ normal normal_ exponential exponential_ multinomial poisson rrelu_with_noise inductor_random
        inductor_randint""",
    "softmax": "_softmax _log_softmax logsumexp",
    "safe softmax": "_safe_softmax",
    "layer norm": "native_layer_norm native_group_norm _fused_rms_norm",
    "layer norm backward": "native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward",
    "batch norm": """native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional cudnn_batch_norm
        _batch_norm_with_update _batch_norm_with_update_functional miopen_batch_norm""",
    "batch norm backward": "native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward",
    "pool": """max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices avg_pool2d
        max_pool3d_with_indices_backward avg_pool2d_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool2d
        _adaptive_avg_pool2d_backward adaptive_max_pool2d upsample_nearest2d upsample_nearest2d_backward
        upsample_bilinear2d upsample_bilinear2d_backward upsample_bicubic2d upsample_bicubic2d_backward
        grid_sampler_2d grid_sampler_2d_backward""",
    "index": """index gather scatter scatter_add index_put _index_put_impl index_add index_select take scatter_reduce
        embedding_dense_backward cumsum cumprod logcumsumexp _unsafe_index _unsafe_index_put index_copy""",
    "select": "where masked_fill masked_scatter nonzero",
    "sort": "sort topk argsort kthvalue median mode unique_dim _unique2",
}
_KIND = {name: kind for kind, names in _BY_KIND.items() for name in names.split()}
_PICKED_FROM = {
    **dict.fromkeys(("embedding", "index", "gather", "index_select", "take", "nll_loss_forward"), 0),
    "nll_loss_backward": 1,
}
"""Operators that read no more of an input than they return, whatever its size, and the position of that input."""
_BY_ROWS = ("softmax", "safe softmax", "layer norm", "layer norm backward")
"""Kinds whose operators first copy an input that is not dense."""
_STREAMED = (None, "select", "sort")
"""Kinds whose operations take no longer than their traffic if a compiler writes the loop."""
_POINTWISE_TOO = frozenset({"clone", "_to_copy", "copy", "native_dropout_backward", "native_dropout"})
"""Operators that do pointwise work and do not say so."""
LOSS_KERNELS, GRADIENT_KERNELS = 16, 24
"""Kernels that a cross entropy in one buffer launches, without and with the gradient, if no class has a weight."""


def cost_model(text: str, device: Device | str = "cpu", tell: Tell = tell_stderr) -> CostModel:
    """The cost model that ``device``, ``flops`` or ``roofline:NAME`` names.

    Args:
        text: The name.
        device: The device whose rates ``device`` stands for: ``cpu``, ``cuda``, or a device of PyTorch. It is here.
        tell: Told that the device is measured, if it is.

    Raises:
        UsageError, InputError: See :func:`remat_cli.frontends.rates.named_costs`.
    """
    return named_costs(text, flops, microseconds, partial(device_rates, device, tell), "PyTorch")


def flops(node: FxNode) -> float:
    """FLOPs of an operation: PyTorch's formula if it has one (matrix products, convolutions, attention).

    Every other operation costs one per element of its largest tensor, read or written. A group costs the sum, and a
    cross entropy in one buffer what the operators cost that it stands for: two, and two for the gradient.
    """
    if isinstance(node, Group):
        return sum(map(flops, node.members))
    if node.target is cross_entropy:
        return float((4 if _has_gradient(node) else 2) * _count(_read(node)[0]))
    counted = _formula(node)
    if counted > 0:
        return counted
    return float(max([1, *map(_count, _read(node)), *map(_count, _made(node))]))


def microseconds(node: FxNode, rates: Rates) -> float:
    """Microseconds of an operation, or a group, at the rates of a device; above 0."""
    if isinstance(node, Group):
        return _group_us(node, rates)
    if node.target is cross_entropy:
        return _cross_entropy_us(node, rates)
    own = _own_us(node, rates)
    streamed = rates.us("stream", _traffic(node)) or 0.0
    views = sum(1 for argument in node.all_input_nodes for _ in _chain(argument))
    return rates.launch_us + rates.view_us * views + max(own, streamed) + _walk_us(node, rates)


def _group_us(group: Group, rates: Rates) -> float:
    """Microseconds of a group: one launch, and the longer of its work and its traffic."""
    if len(group.members) == 1 and not _is_pointwise(group.root):
        return microseconds(group.root, rates)
    own = sum(_own_us(member, rates) for member in group.members if _KIND.get(_name(member)) not in _STREAMED)
    picked = [member for member in group.members if _name(member) in _PICKED_FROM]
    read = {argument: _bytes_of(argument) for argument in group.reads}
    for member in picked:
        for argument in member.all_input_nodes:
            if argument in read:
                read[argument] = min(read[argument], _bytes_of(member))
    streamed = rates.us("stream", sum(read.values()) + _bytes_of(group.root)) or 0.0
    return rates.launch_us + max(own, streamed)


def _cross_entropy_us(node: FxNode, rates: Rates) -> float:
    """Microseconds of :func:`cross_entropy`: it walks over the logits several times; the rest is small."""
    logits, gradient = _read(node)[0], _has_gradient(node)
    exponentials = max(rates.us("exp", _count(logits)) or 0.0, rates.us("stream", 2 * _bytes(logits)) or 0.0)
    walks = (1, 2, 1, 2) if gradient else (1, 2, 1)  # largest, difference, sum, and the product for the gradient
    walked = sum(rates.us("stream", tensors * _bytes(logits)) or 0.0 for tensors in walks)
    return (GRADIENT_KERNELS if gradient else LOSS_KERNELS) * rates.launch_us + exponentials + walked


def _has_gradient(node: FxNode) -> bool:
    """Whether a cross entropy makes the gradient, too."""
    return len(_made(node)) == 3


def _own_us(node: FxNode, rates: Rates) -> float:
    """Microseconds of the work that is of the operation's own kind."""
    name, results = _name(node), _made(node)
    counted = _formula(node)
    if counted > 0:
        dtype = str(results[0].dtype).removeprefix("torch.") if results else ""
        return rates.product_us(_product_kind(name, node), dtype, counted)
    kind = _KIND.get(name)
    if name == "pow" and node.args[1] in {2, 3, 0.5, -0.5, -1, -2}:  # these are products, roots and quotients
        kind = None
    if name in {"gelu", "gelu_backward"} and node.kwargs.get("approximate") == "tanh":
        kind = "tanh"
    if kind is None and _is_pointwise(node) and len({t.dtype for t in (*_read(node), *results) if t.dim()}) > 1:
        kind = "mixed"
    if kind is None:
        return 0.0
    tensors = results if name in _PICKED_FROM else [*_read(node), *results]
    own = rates.us(kind, max(map(_count, tensors), default=0)) or 0.0
    return own + (sum(_copy_us(tensor, rates) for tensor in _read(node)) if kind in _BY_ROWS else 0.0)


def _product_kind(name: str, node: FxNode) -> str:
    """The kind of an operation that has a formula for its FLOPs."""
    if "attention" in name:
        return "attention backward" if name.endswith("backward") else "attention"
    if "conv" not in name:
        return _KIND.get(name, "product")
    backward = name == "convolution_backward"
    groups = node.args[9 if backward else 8] if len(node.args) > 8 else 1
    return f"{'grouped ' if groups != 1 else ''}convolution{' backward' if backward else ''}"


def _traffic(node: FxNode) -> int:
    """Bytes that an operation reads and writes."""
    written = sum(_bytes(tensor) for tensor in _made(node))
    read = [_bytes(tensor) for tensor in _read(node)]
    picked = _PICKED_FROM.get(_name(node))
    if picked is not None and picked < len(read):
        read[picked] = min(read[picked], written)
    return written + sum(read)


def _walk_us(node: FxNode, rates: Rates) -> float:
    """Microseconds that a pointwise operation takes longer because its tensors do not lie in memory alike."""
    if not _is_pointwise(node) or not _made(node):
        return 0.0
    out = _made(node)[0]
    operands = [tensor for tensor in _read(node) if tensor.dim()]
    inner, beside = _inner_loop(out, operands)
    elements = out.numel()
    if not elements or inner == elements:
        return 0.0
    apart = 0.0 if beside else rates.us("scatter", elements) or 0.0
    return apart + (rates.us("run", elements / inner) or 0.0)


def _copy_us(tensor: Tensor, rates: Rates) -> float:
    """Microseconds to make a tensor dense, if it is not."""
    if tensor.is_contiguous():
        return 0.0
    return (rates.us("stream", 2 * _bytes(tensor)) or 0.0) + (rates.us("scatter", tensor.numel()) or 0.0)


def _inner_loop(out: Tensor, operands: Sequence[Tensor]) -> tuple[int, bool]:
    """Length of the innermost loop over ``out``, and whether it reads elements that lie side by side, or just one.

    Dimensions are walked in the order in which ``out`` lies in memory. Two are one loop if all tensors allow it.
    """
    strides = [_strides_as(tensor, out) for tensor in operands]
    dims = sorted((d for d in range(out.dim()) if out.shape[d] > 1), key=lambda d: out.stride(d))
    if not dims:
        return 1, True
    first, *rest = dims
    length = out.shape[first]
    for d in rest:
        if out.stride(d) != out.stride(first) * length or any(s[d] != s[first] * length for s in strides):
            break
        length *= out.shape[d]
    return int(length), all(s[first] in {0, 1} for s in strides)


def _strides_as(tensor: Tensor, out: Tensor) -> list[int]:
    """The strides of ``tensor`` after it is broadcast to the shape of ``out``; of other shapes, those of ``out``."""
    missing = out.dim() - tensor.dim()
    if missing < 0 or any(n not in {1, m} for n, m in zip(tensor.shape, out.shape[missing:], strict=True)):
        return list(out.stride())
    own = [0 if n == 1 else s for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    return [0] * missing + own


def _is_pointwise(node: FxNode) -> bool:
    import torch

    return is_operator(node.target) and (torch.Tag.pointwise in node.target.tags or _name(node) in _POINTWISE_TOO)


def _chain(node: FxNode) -> Iterator[FxNode]:
    """The views between memory and a tensor that is read."""
    while is_operator(node.target) and node.target.is_view and node.all_input_nodes:
        if _name(node) != "detach":
            yield node
        node = node.all_input_nodes[0]


def _name(node: FxNode) -> str:
    """The operator's name without its namespace and overload: ``mm``."""
    target = node.target
    return str(target.overloadpacket.__name__) if is_operator(target) else str(getattr(target, "__name__", target))


def _formula(node: FxNode) -> float:
    formula = flop_formula(node.target)
    if formula is None:
        return 0.0
    import torch

    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    return float(formula(*args, **kwargs, out_val=node.meta["val"]))


def _read(node: FxNode) -> list[Tensor]:
    return [tensor for argument in node.all_input_nodes for _, tensor in tensors_in(argument.meta.get("val"))]


def _made(node: FxNode) -> list[Tensor]:
    return [tensor for _, tensor in tensors_in(node.meta.get("val"))]


def _bytes_of(node: FxNode) -> int:
    """Bytes of the tensors that an FX node makes."""
    return sum(map(_bytes, _made(node)))


def _bytes(tensor: Tensor) -> int:
    return _count(tensor) * int(tensor.element_size())


def _count(tensor: Tensor) -> int:
    """Number of elements in memory: an axis of stride 0 repeats the same ones, and counts once."""
    elements = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= length if stride else 1
    return elements
