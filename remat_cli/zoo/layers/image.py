"""Layers on images: (batch, channels, height, width)."""

from typing import Literal

from remat_cli.errors import UsageError
from remat_cli.zoo.layers import common
from remat_cli.zoo.network import Derivative, Tensor

Padding = Literal["same", "valid"]
Window = int | tuple[int, int]


def conv2d(
    name: str,
    x: Tensor,
    filters: int,
    kernel: Window,
    *,
    stride: int = 1,
    padding: Padding = "same",
    groups: int = 1,
    bias: bool = True,
    relu: bool = False,
) -> Tensor:
    """Convolution; ``relu`` puts the activation inside, ``groups`` as many as channels makes it depthwise."""
    batch, channels, _, _ = x.shape
    kernel_height, kernel_width = _pair(kernel)
    height, width = _slide(name, x, kernel, stride, padding)
    if channels % groups or filters % groups:
        raise ValueError(f"{x.network.name}: {name} splits {channels} channels, {filters} filters into {groups} groups")
    weights = filters * (channels // groups) * kernel_height * kernel_width
    op = "conv2d" if groups == 1 else "depthwise_conv2d" if groups == channels else "grouped_conv2d"
    return x.network.add(
        name,
        f"{op}_relu" if relu else op,
        [x],
        (batch, filters, height, width),
        macs=batch * height * width * weights,
        parameters=weights + (filters if bias else 0),
        derivative=Derivative(inputs=(0,), outputs=(0,) if relu else (), weights=True),
    )


def conv2d_relu(
    name: str,
    activation_name: str,
    x: Tensor,
    filters: int,
    kernel: Window,
    *,
    fused: bool,
    padding: Padding = "same",
) -> Tensor:
    """Convolution and ReLU: two layers, or, if ``fused``, one with the name of the convolution."""
    x = conv2d(name, x, filters, kernel, relu=fused, padding=padding)
    return x if fused else common.relu(activation_name, x)


def depthwise_conv2d(name: str, x: Tensor, kernel: Window, *, stride: int = 1, bias: bool = True) -> Tensor:
    """Convolution of every channel by itself."""
    return conv2d(name, x, x.shape[1], kernel, stride=stride, groups=x.shape[1], bias=bias)


def conv2d_transpose(name: str, x: Tensor, filters: int, kernel: int, *, stride: int, bias: bool = True) -> Tensor:
    """Transposed convolution; enlarges height and width by ``stride``."""
    batch, channels, height, width = x.shape
    weights = channels * filters * kernel * kernel
    return x.network.add(
        name,
        "conv2d_transpose",
        [x],
        (batch, filters, height * stride, width * stride),
        macs=batch * height * width * weights,
        parameters=weights + (filters if bias else 0),
        derivative=Derivative(inputs=(0,), weights=True),
    )


def batch_norm(name: str, x: Tensor) -> Tensor:
    """Batch normalisation; leaves mean and reciprocal deviation of every channel for its derivative."""
    channels = x.shape[1]
    per_channel = channels * x.network.dtype_bytes
    return x.network.add(
        name,
        "batch_norm",
        [x],
        x.shape,
        flops=common.NORMALISATION_FLOPS * x.elements,
        parameters=2 * channels,
        derivative=Derivative(inputs=(0,), outputs=(1, 2), saved=(per_channel, per_channel), weights=True),
    )


def max_pool(name: str, x: Tensor, window: int, *, stride: int, padding: Padding = "valid") -> Tensor:
    """Maximum of every window; the derivative finds its place by comparing input and output."""
    return _pool(name, "max_pool", x, window, stride, padding, Derivative(inputs=(0,), outputs=(0,)))


def avg_pool(name: str, x: Tensor, window: int, *, stride: int, padding: Padding = "valid") -> Tensor:
    """Mean of every window."""
    return _pool(name, "avg_pool", x, window, stride, padding, common.READS_GRADIENT_ALONE)


def global_avg_pool(name: str, x: Tensor) -> Tensor:
    """Mean of every channel: (batch, channels)."""
    derivative = common.READS_GRADIENT_ALONE
    return x.network.add(name, "global_avg_pool", [x], x.shape[:2], flops=x.elements, derivative=derivative)


def max_pool_indices(name: str, x: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Maximum of every window, and its place in the window as a second output of one byte per window."""
    batch, channels, _, _ = x.shape
    height, width = _slide(name, x, window, window, "valid")
    shape = (batch, channels, height, width)
    pooled = x.network.add(
        name,
        "max_pool_indices",
        [x],
        shape,
        flops=window * window * batch * channels * height * width,
        further_outputs=[batch * channels * height * width],
        derivative=Derivative(outputs=(1,)),
    )
    return pooled, Tensor(x.network, shape, pooled.layer, slot=1)


def max_unpool(name: str, x: Tensor, indices: Tensor, window: int) -> Tensor:
    """Every value at its place in its window, with zeros around it."""
    batch, channels, height, width = x.shape
    if x.shape != indices.shape:
        raise ValueError(f"{x.network.name}: {name} has values {x.shape} and places {indices.shape}")
    shape = (batch, channels, height * window, width * window)
    flops = x.elements * window * window
    return x.network.add(name, "max_unpool", [x, indices], shape, flops=flops, derivative=Derivative(inputs=(1,)))


def zero_padding(name: str, x: Tensor) -> Tensor:
    """A border of one zero around every image, as a copy."""
    batch, channels, height, width = x.shape
    shape = (batch, channels, height + 2, width + 2)
    derivative = common.READS_GRADIENT_ALONE
    return x.network.add(name, "zero_padding", [x], shape, flops=x.elements, derivative=derivative)


def upsample(name: str, x: Tensor, factor: int) -> Tensor:
    """Every pixel repeated ``factor`` times in both directions."""
    batch, channels, height, width = x.shape
    shape = (batch, channels, height * factor, width * factor)
    flops = x.elements * factor * factor
    return x.network.add(name, "upsample", [x], shape, flops=flops, derivative=common.READS_GRADIENT_ALONE)


def conv_bn_relu(
    name: str,
    x: Tensor,
    filters: int,
    kernel: Window,
    *,
    stride: int = 1,
    padding: Padding = "same",
    bias: bool = False,
    activation: Literal["relu", "relu6"] | None = "relu",
) -> Tensor:
    """Convolution, batch normalisation and activation as ``name/conv``, ``name/bn``, ``name/relu``."""
    x = conv2d(f"{name}/conv", x, filters, kernel, stride=stride, padding=padding, bias=bias)
    x = batch_norm(f"{name}/bn", x)
    if activation is None:
        return x
    return (common.relu if activation == "relu" else common.relu6)(f"{name}/{activation}", x)


def _pool(name: str, op: str, x: Tensor, window: int, stride: int, padding: Padding, derivative: Derivative) -> Tensor:
    height, width = _slide(name, x, window, stride, padding)
    batch, channels, _, _ = x.shape
    flops = window * window * batch * channels * height * width
    return x.network.add(name, op, [x], (batch, channels, height, width), flops=flops, derivative=derivative)


def _pair(window: Window) -> tuple[int, int]:
    return window if isinstance(window, tuple) else (window, window)


def _slide(name: str, x: Tensor, window: Window, stride: int, padding: Padding) -> tuple[int, int]:
    """Height and width after a window slid over ``x``.

    Raises:
        UsageError: If the window does not fit: the network's input is too small.
    """
    height, width = x.shape[2:]
    if padding == "same":
        return -(-height // stride), -(-width // stride)
    kernel_height, kernel_width = _pair(window)
    if height < kernel_height or width < kernel_width:
        raise UsageError(
            f"{x.network.name}: {name} slides a window of {kernel_height}x{kernel_width} over only {height}x{width}",
            hint="choose a larger resolution",
        )
    return (height - kernel_height) // stride + 1, (width - kernel_width) // stride + 1
