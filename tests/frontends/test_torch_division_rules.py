"""The table of what operators do with rows, against the operators themselves: every way to divide their operands."""

import itertools
import math

import pytest
import torch

from remat_cli.frontends.aten.division_rules import (
    INTERPOLATIONS,
    RULES,
    WHOLE,
    Asked,
    Operand,
    RowCount,
    Rows,
    Summed,
    divided,
    linear,
)
from remat_cli.frontends.torch.codec import operator_named
from remat_cli.frontends.torch.execute.division import part_of
from remat_cli.frontends.torch.tensors import tensors_in

ROWS = 6
"""Rows of all samples; other dimensions are as many, too, so that they might be taken for rows."""


def numbers(*shape):
    return torch.randn(shape, dtype=torch.float64)


def indices(below, *shape):
    return torch.randint(0, below, shape)


LAYER_NORM = torch.ops.aten.native_layer_norm(numbers(2, 3, 4), [4], None, None, 1e-5)
CONVOLUTION = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
SAMPLES = [
    ("view.default", (numbers(2, 3, 4), [6, 4])),
    ("view.default", (numbers(6, 4), [2, 3, 4])),
    ("view.default", (numbers(6, 6), [2, 3, 2, 3])),
    ("view.default", (numbers(4, 6), [4, 2, 3])),
    ("view.default", (numbers(6, 4), [24])),
    ("view.default", (numbers(4, 6), [2, 12])),
    ("_unsafe_view.default", (numbers(2, 3, 4), [-1, 4])),
    ("expand.default", (numbers(6, 1), [6, 5])),
    ("expand.default", (numbers(1, 4), [6, 4])),
    ("expand.default", (numbers(6, 4), [5, 6, 4])),
    ("expand.default", (numbers(6, 4), [6, 6, 4])),
    ("expand.default", (numbers(), [2, 3, 4])),
    ("permute.default", (numbers(2, 3, 4), [2, 0, 1])),
    ("permute.default", (numbers(2, 3, 4), [1, 2, 0])),
    ("transpose.int", (numbers(6, 4, 6), 0, -1)),
    ("t.default", (numbers(6, 6),)),
    ("unsqueeze.default", (numbers(2, 3), 1)),
    ("unsqueeze.default", (numbers(2, 3), -1)),
    ("unsqueeze.default", (numbers(2, 3), 0)),
    ("squeeze.dim", (numbers(1, 6, 1), 0)),
    ("squeeze.dims", (numbers(1, 6, 1), [0, 2])),
    ("slice.Tensor", (numbers(6, 6), 1, 1, 4)),
    ("select.int", (numbers(6, 6, 4), 0, 2)),
    ("select.int", (numbers(2, 3, 4), -1, 2)),
    ("split.Tensor", (numbers(6, 6), 2, 1)),
    ("split_with_sizes.default", (numbers(6, 6), [2, 4], -1)),
    ("cat.default", ([numbers(6, 4), numbers(6, 6)], 1)),
    ("cat.default", ([numbers(3, 6), numbers(3, 6)],)),
    ("slice_backward.default", (numbers(6, 3), [6, 6], 1, 1, 4, 1)),
    ("select_backward.default", (numbers(6, 4), [6, 6, 4], 1, 2)),
    ("select_backward.default", (numbers(6, 4), [6, 6, 4], 0, 2)),
    ("mm.default", (numbers(6, 6), numbers(6, 6))),
    ("mm.default", (numbers(4, 6), numbers(6, 5))),
    ("addmm.default", (numbers(6), numbers(6, 6), numbers(6, 6))),
    ("addmm.default", (numbers(6, 1), numbers(6, 6), numbers(6, 6))),
    ("addmm.default", (numbers(6, 6), numbers(6, 6), numbers(6, 6))),
    ("bmm.default", (numbers(6, 6, 6), numbers(6, 6, 6))),
    ("_softmax.default", (numbers(2, 3, 6), -1, False)),
    ("_log_softmax.default", (numbers(6, 6), 1, False)),
    ("_softmax_backward_data.default", (numbers(6, 6), numbers(6, 6), 1, torch.float64)),
    ("_log_softmax_backward_data.default", (numbers(2, 3, 6), numbers(2, 3, 6), -1, torch.float64)),
    ("glu.default", (numbers(6, 6), 1)),
    ("glu_backward.default", (numbers(6, 3), numbers(6, 6), 1)),
    ("gather.default", (numbers(6, 6), 1, indices(6, 6, 6))),
    ("gather.default", (numbers(6, 6), 1, indices(6, 3, 2))),
    ("sum.default", (numbers(2, 3, 4),)),
    ("sum.dim_IntList", (numbers(2, 3, 6), [0, 1], True)),
    ("sum.dim_IntList", (numbers(2, 3, 6), [-1])),
    ("sum.dim_IntList", (numbers(2, 3, 6), [0])),
    ("mean.default", (numbers(2, 3, 4),)),
    ("mean.dim", (numbers(6, 6), [0], True)),
    ("mean.dim", (numbers(4, 6, 6), [0, 1])),
    ("amax.default", (numbers(6, 6), [0])),
    ("amin.default", (numbers(6, 6), [-1], True)),
    ("logsumexp.default", (numbers(6, 6), [1])),
    ("native_layer_norm.default", (numbers(2, 3, 6), [6], numbers(6), numbers(6), 1e-5)),
    ("native_layer_norm.default", (numbers(6, 2, 3), [2, 3], numbers(2, 3), None, 1e-5)),
    (
        "native_layer_norm_backward.default",
        (numbers(2, 3, 4), numbers(2, 3, 4), [4], *LAYER_NORM[1:], numbers(4), numbers(4), [True, True, True]),
    ),
    ("nll_loss_forward.default", (numbers(6, 6), indices(6, 6), None, 1, -100)),
    ("nll_loss_forward.default", (numbers(6, 6), indices(6, 6), numbers(6).abs(), 1, 2)),
    ("nll_loss_forward.default", (numbers(6, 6), indices(6, 6), None, 2, 2)),
    ("nll_loss_forward.default", (numbers(6, 6), indices(6, 6), None, 0, -100)),
    ("nll_loss_backward.default", (numbers(), numbers(6, 6), indices(6, 6), None, 1, 2, numbers().abs())),
    ("nll_loss_backward.default", (numbers(), numbers(6, 6), indices(6, 6), numbers(6), 2, -100, numbers().abs())),
    ("nll_loss2d_forward.default", (numbers(6, 5, 6, 2), indices(5, 6, 6, 2), None, 1, 2)),
    ("nll_loss2d_forward.default", (numbers(6, 5, 2, 2), indices(5, 6, 2, 2), numbers(5).abs(), 2, -100)),
    ("nll_loss2d_backward.default", (numbers(), numbers(6, 5, 6, 2), indices(5, 6, 6, 2), None, 1, 2, numbers().abs())),
    ("convolution.default", (numbers(6, 6, 6, 5), numbers(6, 6, 3, 3), numbers(6), *CONVOLUTION)),
    (
        "convolution_backward.default",
        (numbers(6, 6, 6, 5), numbers(6, 6, 6, 5), numbers(6, 6, 3, 3), [6], *CONVOLUTION, [True, True, True]),
    ),
    (
        "convolution_backward.default",
        (numbers(6, 6, 6, 5), numbers(6, 6, 6, 5), numbers(6, 6, 3, 3), None, *CONVOLUTION, [False, True, False]),
    ),
    ("index.Tensor", (numbers(6, 6, 4), [None, indices(6, 3, 1), indices(4, 2)])),
    ("index.Tensor", (numbers(6, 6, 4), [indices(6, 6)])),
    ("index.Tensor", (numbers(6, 6, 4), [indices(6, 3), None, indices(4, 3)])),
    ("_unsafe_index.Tensor", (numbers(6, 6, 4), [None, None, indices(4, 6)])),
    ("index_put.default", (numbers(6, 6, 4), [None, indices(6, 3)], numbers(6, 3, 4), True)),
    ("index_put.default", (numbers(6, 6, 4), [None, indices(6, 6)], numbers(6, 4), True)),
    ("_unsafe_index_put.default", (numbers(6, 6, 4), [None, None, indices(4, 6)], numbers(6, 6, 6), True)),
    ("new_zeros.default", (numbers(2, 3, 4), [2, 3, 6])),
    ("new_zeros.default", (numbers(6, 6), [6, 6])),
    ("embedding.default", (numbers(6, 4), indices(6, 2, 3))),
    ("embedding_dense_backward.default", (numbers(2, 3, 4), indices(6, 2, 3), 6, -1, False)),
    ("embedding_dense_backward.default", (numbers(6, 4), indices(6, 6), 6, 2, True)),
    ("clone.default", (numbers(6, 4),)),
    ("_to_copy.default", (numbers(2, 3, 4),)),
    ("native_dropout_backward.default", (numbers(6, 6), numbers(6, 6) > 0, 2.0)),
    ("zeros_like.default", (numbers(6, 6),)),
    ("ones_like.default", (numbers(6, 6),)),
    ("full_like.default", (numbers(6, 6), 3)),
    ("add.Tensor", (numbers(2, 3, 4), numbers(3, 4))),
    ("add.Tensor", (numbers(2, 3, 4), numbers(2, 3, 1))),
    ("add.Tensor", (numbers(6, 6), numbers(6))),
    ("add.Tensor", (numbers(2, 3, 6), numbers(6, 1, 1, 6))),
    ("mul.Tensor", (numbers(6, 6), numbers(6, 1))),
    ("gelu.default", (numbers(2, 3, 4),)),
    ("gelu_backward.default", (numbers(2, 3, 4), numbers(2, 3, 4))),
    ("where.self", (numbers(6, 1) > 0, numbers(6, 6), numbers())),
]
for _name in INTERPOLATIONS:
    _sizes = [2] * int(next(letter for letter in _name if letter.isdigit()))
    _corners = () if "nearest" in _name else (False,)
    for _images in ([6, 6], [2, 3]):
        _sample = numbers(*_images, *_sizes), [3] * len(_sizes), *_corners
        _made = getattr(torch.ops.aten, _name).default(*_sample)
        SAMPLES += [
            (f"{_name}.default", _sample),
            (f"{_name}_backward.default", (_made, _sample[1], [*_images, *_sizes], *_corners)),
        ]
POINTWISE = {"add.Tensor", "mul.Tensor", "gelu.default", "gelu_backward.default", "where.self"}


def tensors_among(arguments):
    for argument in arguments:
        if isinstance(argument, list):
            yield from tensors_among(argument)
        elif isinstance(argument, torch.Tensor):
            yield argument


def places(tensor):
    """Whole, and every way in which neighbouring dimensions of a tensor are all the rows."""
    yield WHOLE
    shape = tensor.shape
    for at in range(len(shape)):
        for count in range(1, len(shape) - at + 1):
            if math.prod(shape[at : at + count]) == ROWS:
                yield Rows(at, count)


def exchanged(argument, by):
    if isinstance(argument, list):
        return [exchanged(item, by) for item in argument]
    return by(argument)


def ways(name, args):
    """Every way to divide the tensors of a sample that the table allows, and what it says of the results."""
    tensors = list(tensors_among(args))
    whole = [tensor for _, tensor in tensors_in(operator_named(f"aten.{name}")(*args))]
    for states in itertools.product(*map(places, tensors)):
        of = dict(zip(map(id, tensors), states, strict=True))

        def operand(argument, of=of):
            return Operand(tuple(argument.shape), of[id(argument)]) if id(argument) in of else argument

        asked = Asked([exchanged(a, operand) for a in args], {}, [tuple(t.shape) for t in whole], ROWS)
        found = divided(name, asked, pointwise=name in POINTWISE)
        if found is not None:
            yield of, found, whole


@pytest.mark.parametrize(("name", "args"), SAMPLES, ids=lambda one: one if isinstance(one, str) else "")
@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_the_table_allows_gives_the_results_of_the_whole_call(name, args, size):
    for of, found, whole in ways(name, args):
        sums = {}
        for start in range(0, ROWS, size):
            count = min(size, ROWS - start)

            def cut(argument, of=of, start=start, count=count):
                state = of.get(id(argument))
                if isinstance(argument, RowCount):
                    return count
                return part_of(argument, state, start, count) if isinstance(state, Rows) else argument

            own = list(args)
            for at, argument in found.arguments.items():
                own += [None] * (at + 1 - len(own))
                own[at] = argument
            call = operator_named(found.call or f"aten.{name}")
            part = [tensor for _, tensor in tensors_in(call(*(exchanged(argument, cut) for argument in own)))]
            for k, (state, one, all_) in enumerate(zip(found.results, part, whole, strict=True)):
                if isinstance(state, Rows):
                    torch.testing.assert_close(one, part_of(all_.contiguous(), state, start, count))
                else:
                    sums[k] = one.clone() if k not in sums else sums[k] + one
        for k, total in sums.items():
            state = found.results[k]
            assert isinstance(state, Summed)
            total = total / state.divisor if state.by is None else total / sums[state.by]
            torch.testing.assert_close(total, whole[k])


def test_every_operator_of_the_table_can_be_divided_in_a_sample():
    """The test above would say yes to a table that allows nothing."""
    seen = {name for name, args in SAMPLES if any(True for _ in ways(name, args))}
    missing = [key for key in RULES if not any(name == key or name.partition(".")[0] == key for name in seen)]
    assert missing == []


def test_ways_that_are_known_are_found():
    def results(name, *args):
        return {tuple(found.results) for _, found, _ in ways(name, args)}

    assert results("mm.default", numbers(6, 6), numbers(6, 6)) == {(Rows(0),), (Rows(1),), (Summed(),)}
    assert (Summed(),) in results("sum.default", numbers(2, 3, 4))
    assert results("nll_loss_forward.default", numbers(6, 6), indices(6, 6), None, 0, -100) == set()
    assert results("embedding_dense_backward.default", numbers(6, 4), indices(6, 6), 6, 2, True) == set()


@pytest.mark.parametrize(("name", "args"), SAMPLES, ids=lambda one: one if isinstance(one, str) else "")
def test_calls_that_are_linear_in_arguments_return_three_times_as_much_for_three_times_them(name, args):
    for positions in ([0], [1], [0, 1], [0, 2]):
        tensors = [args[at] for at in positions if at < len(args) and isinstance(args[at], torch.Tensor)]
        if linear(name, positions) and len(tensors) == len(positions):
            tripled = [3 * argument if at in positions else argument for at, argument in enumerate(args)]
            more, made = (dict(tensors_in(operator_named(f"aten.{name}")(*given))) for given in (tripled, args))
            for item, tensor in made.items():
                torch.testing.assert_close(more[item], 3 * tensor)


def test_what_is_linear_is_known_for_the_gradients_of_a_head():
    assert all(linear(f"{name}.default", [0]) for name in ("nll_loss_backward", "_log_softmax_backward_data", "mm"))
    assert not any(linear(name, [0]) for name in ("exp.default", "add.Tensor", "pow.Tensor_Scalar", "nll_loss_forward"))
    assert not linear("mul.Tensor", [0, 1])
    assert not linear("gelu_backward.default", [1])
