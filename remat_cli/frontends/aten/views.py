"""Recognises ATen operators that make views of existing memory.

Whether ``reshape`` and similar operators copy depends on the layout of their input. If strides are known, the rule is
PyTorch's own. If not, a tensor that was transposed or sliced before is assumed to be copied.
"""

from collections.abc import Mapping, Sequence

from remat_cli.frontends.aten.program import Call, Ref, TensorType

_VIEWS = """
_reshape_alias _unsafe_view alias as_strided detach diagonal expand expand_as imag lift_fresh mH mT matrix_H movedim
moveaxis narrow numpy_T permute positive real select slice split split_with_sizes squeeze swapaxes swapdims t
tensor_split transpose unbind unflatten unfold unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze view
view_as view_as_complex view_as_real chunk hsplit vsplit dsplit adjoint resolve_conj resolve_neg
"""
VIEWS = frozenset(f"aten.{name}" for name in _VIEWS.split()) | {"prims.view_of", "prims.transpose", "prims.split_dim"}
_RESHAPES = frozenset(["aten.reshape", "aten.reshape_as", "aten.flatten", "aten.ravel", "aten.unflatten"])
_REORDERING = """
as_strided adjoint diagonal expand expand_as mH mT matrix_H movedim moveaxis narrow numpy_T permute select slice
split split_with_sizes swapaxes swapdims t tensor_split transpose unbind unfold chunk hsplit vsplit dsplit
"""
REORDERING = frozenset(f"aten.{name}" for name in _REORDERING.split())
"""Views whose elements may no longer lie in order, without gaps."""
_CASTS = frozenset(
    ["aten.to", "aten.type_as", "aten._autocast_to_full_precision", "aten._autocast_to_reduced_precision"]
)
_DROPOUTS = frozenset(["aten.dropout", "aten.alpha_dropout", "aten.feature_dropout", "aten.feature_alpha_dropout"])


def is_view(call: Call, types: Mapping[str, TensorType], reordered: bool) -> bool:
    """Whether the results of a call lie in the memory of its first argument.

    Args:
        call: The call.
        types: Type of every tensor.
        reordered: Whether the first argument was transposed or sliced before; used if strides are unknown.
    """
    first = call.argument(0, "self", call.argument(0, "input"))
    if not isinstance(first, Ref) or first.name not in types:
        return False
    before, made = types[first.name], next((m[1] for m in call.outputs if m is not None), None)
    if made is None:
        return False
    if call.op in VIEWS:
        return True
    if call.op in _RESHAPES:
        return not reordered if before.stride is None else viewable(before.shape, before.stride, made.shape)
    if call.op == "aten.contiguous":
        return not reordered if before.contiguous is None else before.contiguous
    if call.op in _CASTS:
        return (before.itemsize, before.floating) == (made.itemsize, made.floating)
    if call.op in _DROPOUTS:
        return not call.argument(2, "train", True) or call.argument(1, "p", 0.5) == 0
    return False


def viewable(shape: Sequence[int], stride: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether a tensor can get another shape without a copy.

    Adjacent axes that lie in memory without gaps form a group. Each group must be a product of axes of the new shape.

    Args:
        shape: Its shape.
        stride: Its strides in elements.
        wanted: The new shape, of as many elements.
    """
    if 0 in shape:
        return True
    axes = [(n, step) for n, step in zip(shape, stride, strict=True) if n != 1]
    groups: list[int] = []
    for k, (n, step) in enumerate(axes):
        if k and axes[k - 1][1] == n * step:
            groups[-1] *= n
        else:
            groups.append(n)
    new = [n for n in wanted if n != 1]
    for group in groups:
        left = group
        while left > 1:
            if not new or left % new[0]:
                return False
            left //= new.pop(0)
    return not new
