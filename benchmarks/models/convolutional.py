"""Convolutional classifiers of torchvision and timm."""

from __future__ import annotations

from typing import Any

from benchmarks.models import operators  # noqa: F401 - has to come before torchvision

# isort: split

import timm
import torchvision.models as tv

from benchmarks.models.common import classes, classified, cross_entropy, image


def resnet18() -> tuple[Any, ...]:
    return classified(tv.resnet18(num_classes=10), image(16))


def resnet50() -> tuple[Any, ...]:
    return classified(tv.ResNet(tv.resnet.Bottleneck, [3, 4, 6, 3], 10, groups=1, width_per_group=16), image())


def densenet() -> tuple[Any, ...]:
    return classified(tv.DenseNet(12, (3, 6, 6, 4), 32, drop_rate=0.1, num_classes=10), image(8))


def efficientnet_b0() -> tuple[Any, ...]:
    return classified(tv.efficientnet_b0(num_classes=10), image(8))


def mobilenet_v3_large() -> tuple[Any, ...]:
    return classified(tv.mobilenet_v3_large(num_classes=10), image(8))


def shufflenet_v2() -> tuple[Any, ...]:
    return classified(tv.shufflenet_v2_x0_5(num_classes=10), image(16))


def regnet_y_400mf() -> tuple[Any, ...]:
    return classified(tv.regnet_y_400mf(num_classes=10), image(8))


def convnext() -> tuple[Any, ...]:
    block = tv.convnext.CNBlockConfig
    blocks = [block(32, 64, 2), block(64, 128, 2), block(128, None, 2)]
    return classified(tv.ConvNeXt(blocks, stochastic_depth_prob=0.1, num_classes=10), image(8))


def googlenet() -> tuple[Any, ...]:
    """With its two further classifiers, which are part of the loss."""
    labels = classes(4)

    def loss(outputs: Any) -> Any:
        return sum(cross_entropy(logits, labels) for logits in outputs)

    return tv.googlenet(num_classes=10, init_weights=False).train(), (image(4, 96),), loss


def mobilenetv4() -> tuple[Any, ...]:
    return classified(timm.create_model("mobilenetv4_conv_small_050", num_classes=10, drop_path_rate=0.1), image(16))


def convnextv2_atto() -> tuple[Any, ...]:
    return classified(timm.create_model("convnextv2_atto", num_classes=10, drop_path_rate=0.1), image(8))


def nf_regnet() -> tuple[Any, ...]:
    """Without normalisation; its weights are standardised before every pass."""
    return classified(timm.create_model("nf_regnet_b0", num_classes=10, drop_path_rate=0.1), image(4))


def ghostnet() -> tuple[Any, ...]:
    return classified(timm.create_model("ghostnet_050", num_classes=10), image(8))


def fastvit() -> tuple[Any, ...]:
    return classified(timm.create_model("fastvit_t8", num_classes=10), image(4))
