"""Shapes, costs and refusals of single layers."""

import pytest

from remat_cli.errors import UsageError
from remat_cli.zoo.layers import common, image, sequence
from remat_cli.zoo.network import Derivative, Network
from remat_cli.zoo.registry import architecture
from remat_cli.zoo.training import Backward, to_graph


def picture(channels=6, height=9, width=7, batch=2):
    return Network("test").input(batch, channels, height, width)


def tokens(length=5, batch=2):
    return Network("test").input(batch, length, element_bytes=8)


def added(tensor):
    """The layer that made ``tensor``."""
    return tensor.network.layers[tensor.layer]


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "size"),
    [
        (3, 1, "same", (9, 7)),
        (3, 2, "same", (5, 4)),
        (3, 1, "valid", (7, 5)),
        (3, 2, "valid", (4, 3)),
        ((1, 7), 1, "valid", (9, 1)),
        (1, 2, "same", (5, 4)),
    ],
)
def test_convolution_shapes_and_costs(kernel, stride, padding, size):
    y = image.conv2d("c", picture(), 8, kernel, stride=stride, padding=padding)
    window = kernel[0] * kernel[1] if isinstance(kernel, tuple) else kernel**2
    assert y.shape == (2, 8, *size)
    assert added(y).macs == 2 * size[0] * size[1] * 8 * 6 * window
    assert added(y).parameters == 8 * 6 * window + 8
    assert added(y).outputs == (2 * 8 * size[0] * size[1] * 4,)


def test_groups_divide_weights_and_costs():
    whole = image.conv2d("c", picture(), 12, 3, bias=False)
    grouped = image.conv2d("c", picture(), 12, 3, groups=3, bias=False)
    depthwise = image.depthwise_conv2d("c", picture(), 3, bias=False)
    assert added(grouped).parameters * 3 == added(whole).parameters
    assert added(grouped).macs * 3 == added(whole).macs
    assert (added(grouped).op, added(depthwise).op) == ("grouped_conv2d", "depthwise_conv2d")
    assert added(depthwise).parameters == 6 * 9
    assert added(depthwise).macs == depthwise.elements * 9


def test_groups_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="c splits 6 channels, 8 filters into 4 groups"):
        image.conv2d("c", picture(), 8, 3, groups=4)


def test_transposed_convolution_enlarges():
    y = image.conv2d_transpose("u", picture(), 4, 2, stride=2)
    assert y.shape == (2, 4, 18, 14)
    assert added(y).macs == 2 * 9 * 7 * 6 * 4 * 4
    assert added(y).parameters == 6 * 4 * 4 + 4


def test_pools():
    assert image.max_pool("p", picture(), 2, stride=2).shape == (2, 6, 4, 3)
    assert image.avg_pool("p", picture(), 3, stride=2, padding="same").shape == (2, 6, 5, 4)
    pooled = image.max_pool("p", picture(), 3, stride=1)
    assert added(pooled).flops == 9 * pooled.elements
    mean = image.global_avg_pool("p", picture())
    assert mean.shape == (2, 6)
    assert added(mean).flops == 2 * 6 * 9 * 7


def test_pool_indices_are_a_second_value_of_one_byte_per_window():
    pooled, indices = image.max_pool_indices("p", picture(height=8, width=6), 2)
    assert pooled.shape == indices.shape == (2, 6, 4, 3)
    assert added(pooled).outputs == (pooled.elements * 4, pooled.elements)
    restored = image.max_unpool("u", pooled, indices, 2)
    assert restored.shape == (2, 6, 8, 6)
    with pytest.raises(ValueError, match="has values"):
        image.max_unpool("v", restored, indices, 2)


@pytest.mark.parametrize(
    "layer",
    [lambda x: image.conv2d("w", x, 4, 8, padding="valid"), lambda x: image.max_pool("w", x, 8, stride=1)],
    ids=["convolution", "pool"],
)
def test_a_window_larger_than_the_image_is_a_usage_error(layer):
    with pytest.raises(UsageError, match="test: w slides a window of 8x8 over only 9x7") as caught:
        layer(picture())
    assert caught.value.hint == "choose a larger resolution"


def test_normalisations_leave_mean_and_deviation():
    bn = added(image.batch_norm("bn", picture()))
    assert (bn.parameters, bn.derivative.saved) == (12, (24, 24))
    x = sequence.embedding("e", tokens(), 50, 16)
    norm = added(sequence.layer_norm("n", x))
    assert (norm.parameters, norm.derivative.saved) == (32, (40, 40))


def test_joins_and_sums_check_shapes():
    x = picture()
    y = image.conv2d("c", x, 4, 3)
    joined = common.concat("j", [y, y, x])
    assert joined.shape == (2, 14, 9, 7)
    assert added(joined).flops == joined.elements
    with pytest.raises(ValueError, match="s adds"):
        common.add("s", y, joined)
    with pytest.raises(ValueError, match="k joins"):
        common.concat("k", [y, image.max_pool("p", y, 2, stride=2)])


def test_dense_and_flatten():
    flat = common.flatten("f", picture())
    assert flat.shape == (2, 6 * 9 * 7)
    y = common.dense("d", flat, 10)
    assert y.shape == (2, 10)
    assert added(y).parameters == 6 * 9 * 7 * 10 + 10
    assert added(y).macs == 2 * 6 * 9 * 7 * 10


def test_attention_pieces():
    x = sequence.embedding("e", tokens(), 50, 16)
    assert added(x).parameters == 800
    qkv = common.dense("qkv", x, 48)
    q, k, v = (sequence.split_heads(f"s{i}", qkv, 4, part=i, parts=3) for i in range(3))
    assert q.shape == k.shape == v.shape == (2, 4, 5, 4)
    assert added(q).flops == q.elements
    scores = sequence.attention_scores("qk", q, k)
    assert scores.shape == (2, 4, 5, 5)
    assert added(scores).macs == 2 * 4 * 5 * 5 * 4
    context = sequence.attention_context("c", common.softmax("sm", scores), v)
    assert context.shape == (2, 4, 5, 4)
    assert added(context).macs == 2 * 4 * 5 * 5 * 4
    merged = sequence.merge_heads("m", context)
    assert merged.shape == (2, 5, 16)
    head = sequence.tied_head("h", merged, 50)
    assert (head.shape, added(head).parameters, added(head).macs) == ((2, 5, 50), 0, 2 * 5 * 16 * 50)
    positions = sequence.add_positions("p", merged)
    assert added(positions).parameters == 5 * 16
    with pytest.raises(ValueError, match="takes part 3 of 3"):
        sequence.split_heads("s3", qkv, 4, part=3, parts=3)


def test_defects_of_an_architecture_are_refused():
    x = picture()
    y = common.relu("r", x)
    with pytest.raises(ValueError, match="two layers are called r"):
        common.relu("r", y)
    with pytest.raises(ValueError, match="reads a tensor of another network"):
        common.add("a", y, common.relu("r", picture()))
    with pytest.raises(ValueError, match="must cost something"):
        x.network.add("free", "op", [x], x.shape, flops=0, derivative=Derivative())
    with pytest.raises(ValueError, match="test has no loss"):
        to_graph(x.network, Backward.NONE)
    image.conv2d("unread", x, 2, 1)
    common.cross_entropy(common.dense("d", common.flatten("f", y), 3))
    with pytest.raises(ValueError, match="nothing reads unread"):
        to_graph(x.network, Backward.CHECKMATE)


@pytest.mark.parametrize(
    ("spec", "layer", "size"),
    [
        ("vgg16", "pool5", 512 * 7 * 7),
        ("resnet50", "conv5_3/relu", 2048 * 7 * 7),
        ("mobilenet-v2", "last/relu6", 1280 * 7 * 7),
        ("densenet121", "last/relu", 1024 * 7 * 7),
        ("densenet161", "last/relu", 2208 * 7 * 7),
        ("inception-v3", "c4/concat", 768 * 17 * 17),
        ("inception-v3", "e2/concat", 2048 * 8 * 8),
        ("unet", "bottom/relu2", 1024 * 26 * 38),
        ("unet", "score", 21 * 416 * 608),
        ("fcn8", "upscore8", 21 * 416 * 608),
        ("segnet", "pool5", 512 * 13 * 19),
        ("segnet", "score", 21 * 416 * 608),
        ("bert", "block12/attention/scores", 12 * 512 * 512),
        ("gpt2", "head/logits", 1024 * 50257),
    ],
)
def test_shapes_deep_inside_the_networks(spec, layer, size):
    network = architecture(f"{spec}{{batch=3,dtype_bytes=2}}").network()
    found = {item.id: item for item in network.layers}
    assert found[layer].outputs[0] == 3 * size * 2
