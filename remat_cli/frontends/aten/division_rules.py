"""What operators do with rows: if some inputs of a call are divided along rows, how do its results come about?

*Rows* are one or several neighbouring dimensions, such as batch and tokens of ``(B, T, C)``, counted as one of
``B * T``. A part of a tensor has some of the rows, in shape ``(1, r, C)``. A call that is given parts returns

* parts of its results, if every row of them is computed from the same row of its inputs;
* parts of a sum: the results of all parts add up to the whole, as those of a gradient of weights.

Of every other call nothing is known here, and it is not divided. The tests run each operator of the table whole and in
parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Rows:
    """A tensor is divided: its ``count`` dimensions from ``at`` on are the rows."""

    at: int
    count: int = 1

    @property
    def end(self) -> int:
        """The dimension behind them."""
        return self.at + self.count

    def moved(self, by: int) -> Rows:
        """The same, ``by`` dimensions further to the right."""
        return Rows(self.at + by, self.count)


@dataclass(frozen=True, slots=True)
class Whole:
    """A tensor is the same for every part."""


@dataclass(frozen=True, slots=True)
class Summed:
    """A tensor is a sum over the parts.

    Attributes:
        divisor: What the sum is divided by at the end.
        by: The result of the same call, summed as well, by which it is divided at the end; None for none.
    """

    divisor: int = 1
    by: int | None = None


State = Rows | Whole | Summed
WHOLE = Whole()


@dataclass(frozen=True, slots=True, repr=False)
class RowCount:
    """In the place of a number among the arguments: the number of rows of a part."""

    def __repr__(self) -> str:
        return "r"


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor among the arguments of a call: its whole shape, and how it is divided."""

    shape: tuple[int, ...]
    state: State


@dataclass(frozen=True, slots=True)
class Divided:
    """A call that can be divided.

    Attributes:
        results: How its results are divided; one for each tensor that it returns.
        arguments: Arguments that are other ones for a part, by position.
        call: The operator for a part; None for the same.
    """

    results: tuple[State, ...]
    arguments: Mapping[int, Any] = field(default_factory=dict)
    call: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A call of an operator, of which some operands are divided.

    Attributes:
        args: Its arguments by position: operands for tensors, also in lists.
        kwargs: Its arguments by name.
        shapes: The shapes of its whole results.
        rows: Number of all rows.
    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    shapes: Sequence[tuple[int, ...]]
    rows: int

    def operands(self) -> list[Operand]:
        """All tensors among the arguments."""
        return list(_operands([*self.args, *self.kwargs.values()]))

    def tensor(self, at: int) -> Operand:
        """The tensor at a position; a whole one without dimensions where there is none."""
        found = self.args[at] if at < len(self.args) else None
        return found if isinstance(found, Operand) else Operand((), WHOLE)

    def given(self, at: int, name: str, default: Any) -> Any:
        """The argument at a position, or with a name."""
        return self.args[at] if at < len(self.args) else self.kwargs.get(name, default)


Rule = Callable[[Asked], "Divided | None"]


def divided(name: str, asked: Asked, *, pointwise: bool) -> Divided | None:
    """How the results of a call are divided, of which an operand is; None if that is not known, or cannot be.

    Args:
        name: The operator: ``mm``; or with its overload, ``sum.dim_IntList``.
        asked: The call.
        pointwise: Whether the operator computes each element from those at the same place.
    """
    if any(isinstance(operand.state, Summed) for operand in asked.operands()):
        return None
    rule = RULES.get(name) or RULES.get(name.partition(".")[0])
    if rule is None and pointwise:
        rule = _pointwise
    return None if rule is None else rule(asked)


def linear(name: str, positions: Sequence[int]) -> bool:
    """Whether the results of a call are linear in its arguments at ``positions`` together; False if it is not known.

    The gradients that operators for backward passes return are linear in the gradient that they are given first.
    """
    name = name.partition(".")[0]
    if name in {"mm", "bmm", "mul"}:
        return len(positions) == 1
    if name in {"add", "sub"}:
        return list(positions) == [0, 1]
    if name in {"index_put", "_unsafe_index_put"}:
        return list(positions) == [0, 2]
    first = name in {"neg", "div", "sum", "clone", "_to_copy", "cat", "new_zeros"} or name.endswith(
        ("_backward", "_backward_data")
    )
    return first and list(positions) == [0]


def leading_rows(shape: Sequence[int], rows: int) -> Rows | None:
    """The first dimensions, as far as their product is the number of rows; None if it never is."""
    for count in range(1, len(shape) + 1):
        if math.prod(shape[:count]) == rows:
            return Rows(0, count)
    return None


def part_shape(shape: Sequence[int], state: State) -> list[Any]:
    """The shape of a part of a tensor: of several dimensions of rows all but the last are 1."""
    if not isinstance(state, Rows):
        return list(shape)
    return [*shape[: state.at], *[1] * (state.count - 1), RowCount(), *shape[state.end :]]


def _operands(arguments: Sequence[Any]) -> list[Operand]:
    found = []
    for argument in arguments:
        if isinstance(argument, Operand):
            found.append(argument)
        elif isinstance(argument, list | tuple):
            found += _operands(argument)
    return found


def _rows(state: State) -> Rows | None:
    return state if isinstance(state, Rows) else None


def _pointwise(asked: Asked) -> Divided | None:
    """Operands are broadcast from the right. Whole ones must not tell rows apart."""
    if len({*asked.shapes}) != 1:
        return None
    out = asked.shapes[0]
    places = {
        operand.state.moved(len(out) - len(operand.shape))
        for operand in asked.operands()
        if isinstance(operand.state, Rows)
    }
    if len(places) != 1:
        return None
    [place] = places
    for operand in asked.operands():
        own = (1,) * (len(out) - len(operand.shape)) + tuple(operand.shape)
        wanted = out[place.at : place.end] if isinstance(operand.state, Rows) else (1,) * place.count
        if own[place.at : place.end] != tuple(wanted):
            return None
    return Divided((place,) * len(asked.shapes))


def _viewed(asked: Asked) -> Divided | None:
    """Another shape, whose dimensions before the rows and of the rows have the same products."""
    source, shape = asked.tensor(0), asked.shapes[0]
    state = source.state
    if not isinstance(state, Rows):
        return None
    before = math.prod(source.shape[: state.at])
    for at in range(len(shape)):
        if math.prod(shape[:at]) == before:
            for count in range(1, len(shape) - at + 1):
                if math.prod(shape[at : at + count]) == asked.rows:
                    place = Rows(at, count)
                    return Divided((place,), {1: part_shape(shape, place)})
    return None


def _expanded(asked: Asked) -> Divided | None:
    """Rows stay where they are. A whole tensor may be repeated for every row, and then is for the rows of a part."""
    source, shape = asked.tensor(0), asked.shapes[0]
    place: Rows | None = None
    if isinstance(source.state, Rows):
        place = source.state.moved(len(shape) - len(source.shape))
        if shape[place.at : place.end] != source.shape[source.state.at : source.state.end]:
            return None
    elif source.state == WHOLE:
        place = leading_rows(shape, asked.rows)
        own = (1,) * (len(shape) - len(source.shape)) + tuple(source.shape)
        if place is not None and any(size != 1 for size in own[: place.end]):
            return None
    return None if place is None else Divided((place,), {1: part_shape(shape, place)})


def _permuted(asked: Asked) -> Divided | None:
    source = asked.tensor(0)
    rows, rank = _rows(source.state), len(source.shape)
    if rows is None:
        return None
    order = [axis % rank for axis in asked.args[1]]
    places = [order.index(axis) for axis in range(rows.at, rows.end)]
    if places != list(range(places[0], places[0] + rows.count)):
        return None
    return Divided((Rows(places[0], rows.count),))


def _transposed(asked: Asked) -> Divided | None:
    rank = len(asked.tensor(0).shape)
    order = list(range(rank))
    if len(asked.args) > 1:
        one, other = (axis % rank for axis in asked.args[1:3])
        order[one], order[other] = other, one
    else:
        order.reverse()
    return _permuted(Asked([asked.args[0], order], {}, asked.shapes, asked.rows))


def _unsqueezed(asked: Asked) -> Divided | None:
    source = asked.tensor(0)
    rows, at = _rows(source.state), asked.args[1] % (len(source.shape) + 1)
    if rows is None or rows.at < at < rows.end:
        return None
    return Divided((rows.moved(at <= rows.at),))


def _squeezed(asked: Asked) -> Divided | None:
    source = asked.tensor(0)
    rows, axes = _rows(source.state), asked.args[1]
    if rows is None:
        return None
    gone = {axis % len(source.shape) for axis in (axes if isinstance(axes, list | tuple) else [axes])}
    gone = {axis for axis in gone if source.shape[axis] == 1}
    if gone & set(range(rows.at, rows.end)):
        return None
    return Divided((rows.moved(-sum(axis < rows.at for axis in gone)),))


def _along(at: int, name: str, default: int, *, drops: bool = False, grows: bool = False) -> Rule:
    """A rule for a call that works along one dimension, which must not be of the rows; it may end without it."""

    def rule(asked: Asked) -> Divided | None:
        shape = asked.tensor(0).shape
        places = {o.state for o in asked.operands()}
        if len(places) != 1 or not shape:
            return None
        [rows] = places
        axis = asked.given(at, name, default) % len(shape)
        if not isinstance(rows, Rows) or rows.at <= axis < rows.end:
            return None
        same = {(len(o.shape), tuple(o.shape[rows.at : rows.end])) for o in asked.operands()}
        if len(same) != 1:
            return None
        return Divided((rows.moved(-(drops and axis < rows.at)),) * len(asked.shapes))

    return rule


def _put_back(asked: Asked) -> Divided | None:
    """The gradient of a slice or selection, ``(gradient, sizes, dimension, ...)``, along another dimension."""
    source, shape = asked.tensor(0), asked.shapes[0]
    rows, axis = _rows(source.state), asked.args[2] % len(shape)
    if rows is None:
        return None
    place = rows.moved(len(shape) > len(source.shape) and axis <= rows.at)
    if place.at <= axis < place.end:
        return None
    return Divided((place,), {1: part_shape(shape, place)})


def _product(asked: Asked) -> Divided | None:
    """``(m, k) @ (k, n)``."""
    match asked.tensor(0).state, asked.tensor(1).state:
        case Rows(0, 1), Whole():
            return Divided((Rows(0),))
        case Whole(), Rows(1, 1):
            return Divided((Rows(1),))
        case Rows(1, 1), Rows(0, 1):
            return Divided((Summed(),))
    return None


def _product_and_bias(asked: Asked) -> Divided | None:
    bias = asked.tensor(0)
    found = _product(Asked(asked.args[1:3], {}, asked.shapes, asked.rows))
    if found is None or not isinstance(found.results[0], Rows) or isinstance(bias.state, Summed):
        return None
    rows, own = found.results[0], (1,) * (2 - len(bias.shape)) + tuple(bias.shape)
    if isinstance(bias.state, Rows):
        return found if bias.state.moved(2 - len(bias.shape)) == rows else None
    return found if own[rows.at] == 1 else None


def _batched_product(asked: Asked) -> Divided | None:
    """``(b, m, k) @ (b, k, n)``."""
    match asked.tensor(0).state, asked.tensor(1).state:
        case Rows(0, 1), Rows(0, 1):
            return Divided((Rows(0),))
        case Rows(1, 1), Whole():
            return Divided((Rows(1),))
        case Whole(), Rows(2, 1):
            return Divided((Rows(2),))
        case Rows(2, 1), Rows(1, 1):
            return Divided((Summed(),))
    return None


def _reduced(*, sums: bool = False, mean: bool = False, axes_at: int = 1, keep_at: int = 2) -> Rule:
    """A rule for a reduction along ``dim``: of all rows, if it is a sum or a mean, or of none."""

    def rule(asked: Asked) -> Divided | None:
        source = asked.tensor(0)
        rows, rank = _rows(source.state), len(source.shape)
        axes = asked.given(axes_at, "dim", None)
        if rows is None:
            return None
        axes = [axes] if isinstance(axes, int) else (axes or range(rank))
        gone = {axis % rank for axis in axes}
        own = set(range(rows.at, rows.end))
        if own <= gone:
            if mean:
                divisor = math.prod(source.shape[axis] for axis in gone)
                keep = asked.given(keep_at, "keepdim", False)
                return Divided((Summed(divisor),), {1: sorted(gone), 2: keep}, "aten.sum.dim_IntList")
            return Divided((Summed(),)) if sums else None
        if own & gone:
            return None
        kept = asked.given(keep_at, "keepdim", False)
        place = rows if kept else rows.moved(-sum(axis < rows.at for axis in gone))
        return Divided((place,) * len(asked.shapes))

    return rule


def _normalised(sizes_at: int, gradients: int) -> Rule:
    """A rule for a normalisation over the last dimensions, ``sizes``; the last ``gradients`` results are of weights."""

    def rule(asked: Asked) -> Divided | None:
        shape, sizes = asked.tensor(0).shape, asked.args[sizes_at]
        places = {operand.state for operand in asked.operands() if len(operand.shape) == len(shape)}
        others = {operand.state for operand in asked.operands() if len(operand.shape) != len(shape)}
        if len(places) != 1 or not others <= {WHOLE}:
            return None
        [rows] = places
        if not isinstance(rows, Rows) or rows.end > len(shape) - len(sizes):
            return None
        return Divided((rows,) * (len(asked.shapes) - gradients) + (Summed(),) * gradients)

    return rule


def _likelihood(asked: Asked) -> Divided | None:
    """``nll_loss_forward(logs, target, weight, reduction, ignored)``: the loss and the weight of all targets.

    A mean is a sum in parts, and is divided by the weight of all targets at the end.
    """
    logs, target, weight = asked.tensor(0), asked.tensor(1), asked.tensor(2)
    reduction = asked.args[3]
    if (logs.state, target.state, weight.state) != (Rows(0), Rows(0), WHOLE) or reduction not in {1, 2}:
        return None
    return Divided((Summed(by=1 if reduction == 1 else None), Summed()), {3: 2})


def _likelihood_gradient(asked: Asked) -> Divided | None:
    """``nll_loss_backward(gradient, logs, target, weight, reduction, ignored, total weight)``, of a sum or a mean."""
    states = [asked.tensor(at).state for at in (0, 1, 2, 3, 6)]
    if states != [WHOLE, Rows(0), Rows(0), WHOLE, WHOLE] or asked.args[4] not in {1, 2}:
        return None
    return Divided((Rows(0),))


def _embedding(asked: Asked) -> Divided | None:
    rows = _rows(asked.tensor(1).state)
    return None if rows is None or asked.tensor(0).state != WHOLE else Divided((rows,))


def _embedding_gradient(asked: Asked) -> Divided | None:
    """``embedding_dense_backward(gradient, indices, words, padding, by frequency)``."""
    rows = _rows(asked.tensor(0).state)
    return None if rows is None or rows != asked.tensor(1).state or asked.args[4] else Divided((Summed(),))


def _convolution(asked: Asked) -> Divided | None:
    """``convolution(images, weight, bias, ...)``, in which images are the rows."""
    states = [asked.tensor(at).state for at in (0, 1, 2)]
    return Divided((Rows(0),)) if states == [Rows(0), WHOLE, WHOLE] else None


def _convolution_gradient(asked: Asked) -> Divided | None:
    """``convolution_backward(gradient, images, weight, ..., mask)``, which returns what the mask asks for."""
    if [asked.tensor(at).state for at in (0, 1, 2)] != [Rows(0), Rows(0), WHOLE]:
        return None
    states: tuple[State, ...] = (Rows(0), Summed(), Summed())
    return Divided(tuple(state for state, wanted in zip(states, asked.args[10], strict=True) if wanted))


def _interpolated(asked: Asked) -> Divided | None:
    """``upsample...(images, sizes, ...)``, in which images, or images and channels, are the rows."""
    rows = _rows(asked.tensor(0).state)
    return None if rows is None or rows.end > 2 else Divided((rows,))


def _interpolated_gradient(asked: Asked) -> Divided | None:
    """``upsample..._backward(gradient, sizes, sizes of the images, ...)``."""
    found = _interpolated(asked)
    return None if found is None else Divided(found.results, {2: part_shape(asked.args[2], found.results[0])})


def _indexed(asked: Asked) -> Divided | None:
    """``index(tensor, indices)`` and ``index_put(tensor, indices, values)``: none for rows, nor before them."""
    source, indices = asked.tensor(0), asked.args[1]
    rows, free = _rows(source.state), sum(index is None for index in indices)
    given = indices[free:]
    if rows is None or rows.end > free or any(index is None or index.state != WHOLE for index in given):
        return None
    if len(asked.args) > 2:
        values = asked.tensor(2)
        rank = free + max(len(index.shape) for index in given) + len(source.shape) - len(indices)
        same = values.shape[rows.at : rows.end] == source.shape[rows.at : rows.end]
        if values.state != rows or len(values.shape) != rank or not same:
            return None
    return Divided((rows,))


def _new(asked: Asked) -> Divided | None:
    """``new_zeros(tensor, sizes)``, where sizes are as many rows as the tensor has, at the same place."""
    source, sizes = asked.tensor(0), asked.args[1]
    rows = _rows(source.state)
    if rows is None or tuple(sizes[rows.at : rows.end]) != tuple(source.shape[rows.at : rows.end]):
        return None
    return Divided((rows,), {1: part_shape(sizes, rows)})


def _joined(asked: Asked) -> Divided | None:
    tensors, axis = asked.args[0], asked.given(1, "dim", 0)
    places = {operand.state for operand in tensors}
    if len(places) != 1:
        return None
    [rows] = places
    if not isinstance(rows, Rows) or rows.at <= axis % len(asked.shapes[0]) < rows.end:
        return None
    return Divided((rows,))


INTERPOLATIONS = (
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *(f"{name}{size}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for size in (1, 2, 3)),
)
"""Operators that enlarge images, or make them smaller."""
LIKELIHOODS = frozenset({"aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"})
"""Operators whose second result, the weight of all targets, follows from the targets, weights and number to ignore at
positions 1, 2 and 4."""
_SAME = _along(1, "dim", -1)
_GRADIENT_OF_SAME = _along(2, "dim", -1)
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(INTERPOLATIONS, _interpolated),
    **{f"{name}_backward": _interpolated_gradient for name in INTERPOLATIONS},
    "view.default": _viewed,
    "_unsafe_view.default": _viewed,
    "expand": _expanded,
    "permute": _permuted,
    "transpose.int": _transposed,
    "t": _transposed,
    "unsqueeze": _unsqueezed,
    "squeeze.dim": _squeezed,
    "squeeze.dims": _squeezed,
    "slice.Tensor": _along(1, "dim", 0),
    "select.int": _along(1, "dim", 0, drops=True),
    "split.Tensor": _along(2, "dim", 0),
    "split_with_sizes": _along(2, "dim", 0),
    "cat": _joined,
    "slice_backward": _put_back,
    "select_backward": _put_back,
    "mm.default": _product,
    "addmm.default": _product_and_bias,
    "bmm.default": _batched_product,
    "_softmax": _SAME,
    "_log_softmax": _SAME,
    "_softmax_backward_data": _GRADIENT_OF_SAME,
    "_log_softmax_backward_data": _GRADIENT_OF_SAME,
    "glu": _SAME,
    "glu_backward": _along(2, "dim", -1),
    "gather": _SAME,
    "sum.default": _reduced(sums=True),
    "sum.dim_IntList": _reduced(sums=True),
    "mean.default": _reduced(mean=True),
    "mean.dim": _reduced(mean=True),
    "amax": _reduced(),
    "amin": _reduced(),
    "logsumexp": _reduced(),
    "native_layer_norm": _normalised(1, 0),
    "native_layer_norm_backward": _normalised(2, 2),
    "nll_loss_forward": _likelihood,
    "nll_loss_backward": _likelihood_gradient,
    "nll_loss2d_forward": _likelihood,
    "nll_loss2d_backward": _likelihood_gradient,
    "convolution": _convolution,
    "convolution_backward": _convolution_gradient,
    "_unsafe_index": _indexed,
    "_unsafe_index_put": _indexed,
    "index": _indexed,
    "index_put": _indexed,
    "new_zeros": _new,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_gradient,
    "clone": _pointwise,
    "_to_copy": _pointwise,
    "native_dropout_backward": _pointwise,
    "zeros_like": _pointwise,
    "ones_like": _pointwise,
    "full_like": _pointwise,
}
"""By the name of an operator, or of one of its overloads. Operators that PyTorch calls pointwise need no entry."""
