"""Models of images and videos that take more than a name and sizes: of torchvision, timm and transformers."""

from typing import Any

from benchmarks.models import operators  # noqa: F401 - has to come before torchvision

# isort: split

import timm
import torch
import torchvision.models as tv
import transformers as hf
from torch.nn import functional

from benchmarks.models.tasks import Built, classes, classified, cross_entropy, image, words

_SIDE = 64


def resnet50() -> Built:
    return classified(tv.ResNet(tv.resnet.Bottleneck, [3, 4, 6, 3], 10, groups=1, width_per_group=16), image())


def convnext() -> Built:
    block = tv.convnext.CNBlockConfig
    blocks = [block(32, 64, 2), block(64, 128, 2), block(128, None, 2)]
    return classified(tv.ConvNeXt(blocks, stochastic_depth_prob=0.1, num_classes=10), image(8))


def googlenet() -> Built:
    """With its two further classifiers, which are part of the loss."""
    labels = classes(4)

    def loss(outputs: Any) -> Any:
        return sum(cross_entropy(logits, labels) for logits in outputs)

    return tv.googlenet(num_classes=10, init_weights=False).train(), (image(4, 96),), loss


def gated_mlp() -> Built:
    """Gates over places instead of attention."""
    parts = {"block_layer": timm.models.mlp_mixer.SpatialGatingBlock, "mlp_layer": timm.layers.GatedMlp}
    module = timm.models.mlp_mixer.MlpMixer(
        num_classes=10, img_size=64, patch_size=4, num_blocks=4, embed_dim=128, mlp_ratio=4, **parts
    )
    return classified(module, image(8))


def _boxes(count: int = 3) -> Any:
    corner = torch.rand(count, 2) * (_SIDE / 2)
    return torch.cat([corner, corner + 8 + torch.rand(count, 2) * (_SIDE / 4)], 1)


def _detector(module: Any) -> Built:
    """Two images with boxes; in training, torchvision's detectors return a mapping of losses."""
    images = [torch.rand(3, _SIDE, _SIDE) for _ in range(2)]
    targets = [{"boxes": _boxes(), "labels": torch.randint(1, 5, (3,))} for _ in images]
    return module.train(), (images, targets), lambda losses: sum(losses.values())


def _pyramid() -> Any:
    return tv.detection.backbone_utils.resnet_fpn_backbone(backbone_name="resnet18", weights=None)


def faster_rcnn() -> Built:
    boxes = tv.detection.faster_rcnn
    head, predictor = boxes.TwoMLPHead(256 * 7 * 7, 64), boxes.FastRCNNPredictor(64, 5)
    sides = {"min_size": _SIDE, "max_size": _SIDE}
    return _detector(tv.detection.FasterRCNN(_pyramid(), box_head=head, box_predictor=predictor, **sides))


def retinanet() -> Built:
    return _detector(tv.detection.RetinaNet(_pyramid(), num_classes=5, min_size=_SIDE, max_size=_SIDE))


def _segmenter(module: Any) -> Built:
    labels = torch.randint(0, 5, (4, _SIDE, _SIDE))

    def loss(outputs: Any) -> Any:
        return sum(cross_entropy(logits, labels) for logits in outputs.values())

    return module.train(), (image(4, _SIDE),), loss


def fcn_resnet18() -> Built:
    """With the further classifier at the third stage."""
    backbone = tv._utils.IntermediateLayerGetter(tv.resnet18(), {"layer3": "aux", "layer4": "out"})
    heads = [tv.segmentation.fcn.FCNHead(channels, 5) for channels in (512, 256)]
    return _segmenter(tv.segmentation.FCN(backbone, *heads))


def deeplabv3() -> Built:
    segmentation = tv.segmentation
    return _segmenter(segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5))


def raft_small() -> Built:
    module, flow = tv.optical_flow.raft_small(weights=None).train(), torch.randn(1, 2, 128, 128)
    return module, (image(1, 128), image(1, 128), 3), lambda flows: sum((f - flow).abs().mean() for f in flows)


def depth_anything() -> Built:
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "mlp_ratio": 2, "image_size": 56}
    stages = {"out_indices": [1, 2, 3, 4], "apply_layernorm": True, "reshape_hidden_states": False}
    config = hf.DepthAnythingConfig(
        backbone_config=hf.Dinov2Config(**sizes, **stages, patch_size=14),
        reassemble_hidden_size=64,
        neck_hidden_sizes=[16, 32, 64, 64],
        fusion_hidden_size=32,
        head_hidden_size=16,
        patch_size=14,
    )
    target = torch.rand(2, 56, 56)
    module = hf.DepthAnythingForDepthEstimation(config).train()
    return module, {"pixel_values": image(2, 56)}, lambda out: (out.predicted_depth - target).abs().mean()


def upernet() -> Built:
    """Segmentation, with an auxiliary head that the loss leaves out."""
    stages = ["stage1", "stage2", "stage3", "stage4"]
    backbone = hf.ConvNextConfig(hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 2, 1], out_features=stages)
    config = hf.UperNetConfig(backbone_config=backbone, hidden_size=32, num_labels=5, auxiliary_in_channels=32)
    labels = torch.randint(0, 5, (4, 128, 128))
    module = hf.UperNetForSemanticSegmentation(config)
    return module.train(), {"pixel_values": image(4, 128)}, lambda output: cross_entropy(output.logits, labels)


def vilt() -> Built:
    """Words and patches in one encoder."""
    sizes = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 384}
    config = hf.ViltConfig(**sizes, vocab_size=500, image_size=64, patch_size=8, num_labels=10)
    labels = torch.rand(4, 10)
    inputs = {
        "input_ids": words(4, 32),
        "pixel_values": image(4),
        "pixel_mask": torch.ones(4, 64, 64, dtype=torch.long),
    }
    module = hf.ViltForQuestionAnswering(config)
    return module.train(), inputs, lambda out: functional.binary_cross_entropy_with_logits(out.logits, labels)


def r3d_10() -> Built:
    """A residual network of three dimensions, with one block per stage instead of two."""
    video = tv.video.resnet
    convolutions = [video.Conv3DSimple] * 4
    module = video.VideoResNet(video.BasicBlock, convolutions, [1, 1, 1, 1], video.BasicStem, num_classes=10)
    return classified(module, torch.randn(4, 3, 8, 56, 56))


def mvit() -> Built:
    block = tv.video.mvit.MSBlockConfig
    blocks = [
        block(1, 32, 64, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2]),
        block(2, 64, 64, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 1, 1]),
    ]
    module = tv.video.MViT((64, 64), 8, blocks, residual_pool=True, residual_with_cls_embed=False, rel_pos_embed=True,
                           proj_after_attn=True, stochastic_depth_prob=0.1, num_classes=10)  # fmt: skip
    return classified(module, torch.randn(2, 3, 8, 64, 64))
