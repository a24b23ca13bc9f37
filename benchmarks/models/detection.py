"""Detection, segmentation and optical flow."""

from __future__ import annotations

from typing import Any

from benchmarks.models import operators  # noqa: F401 - has to come before torchvision

# isort: split

import torch
import torchvision.models as tv
import transformers as hf

from benchmarks.models.common import classes, cross_entropy, image, supervised

_SIDE = 64


def _boxes(count: int = 3) -> Any:
    corner = torch.rand(count, 2) * (_SIDE / 2)
    return torch.cat([corner, corner + 8 + torch.rand(count, 2) * (_SIDE / 4)], 1)


def _detector(module: Any) -> tuple[Any, ...]:
    """Two images with boxes; in training, torchvision's detectors return a mapping of losses."""
    images = [torch.rand(3, _SIDE, _SIDE) for _ in range(2)]
    targets = [{"boxes": _boxes(), "labels": torch.randint(1, 5, (3,))} for _ in images]
    return module.train(), (images, targets), lambda losses: sum(losses.values())


def _pyramid() -> Any:
    return tv.detection.backbone_utils.resnet_fpn_backbone(backbone_name="resnet18", weights=None)


def faster_rcnn() -> tuple[Any, ...]:
    boxes = tv.detection.faster_rcnn
    head, predictor = boxes.TwoMLPHead(256 * 7 * 7, 64), boxes.FastRCNNPredictor(64, 5)
    sides = {"min_size": _SIDE, "max_size": _SIDE}
    return _detector(tv.detection.FasterRCNN(_pyramid(), box_head=head, box_predictor=predictor, **sides))


def retinanet() -> tuple[Any, ...]:
    return _detector(tv.detection.RetinaNet(_pyramid(), num_classes=5, min_size=_SIDE, max_size=_SIDE))


def _segmenter(module: Any, batch: int = 2, side: int = 64) -> tuple[Any, ...]:
    labels = torch.randint(0, 5, (batch, side, side))

    def loss(outputs: Any) -> Any:
        return sum(cross_entropy(logits, labels) for logits in outputs.values())

    return module.train(), (image(batch, side),), loss


def fcn_resnet18() -> tuple[Any, ...]:
    """With the further classifier at the third stage."""
    backbone = tv._utils.IntermediateLayerGetter(tv.resnet18(), {"layer3": "aux", "layer4": "out"})
    heads = [tv.segmentation.fcn.FCNHead(channels, 5) for channels in (512, 256)]
    return _segmenter(tv.segmentation.FCN(backbone, *heads), 4)


def deeplabv3() -> tuple[Any, ...]:
    module = tv.segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    return _segmenter(module, 4)


def raft_small() -> tuple[Any, ...]:
    module, flow = tv.optical_flow.raft_small(weights=None).train(), torch.randn(1, 2, 128, 128)
    return module, (image(1, 128), image(1, 128), 3), lambda flows: sum((f - flow).abs().mean() for f in flows)


def segformer() -> tuple[Any, ...]:
    sizes = {"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 4, 4]}
    config = hf.SegformerConfig(**sizes, decoder_hidden_size=64, num_labels=5)
    labels = torch.randint(0, 5, (2, 64, 64))
    return supervised(hf.SegformerForSemanticSegmentation(config), pixel_values=image(2), labels=labels)


def _objects(batch: int) -> list[dict[str, Any]]:
    """Labels for transformers' detectors: classes, and boxes as centre and size in shares of the image."""
    return [{"class_labels": classes(3, 4), "boxes": torch.rand(3, 4) * 0.4 + 0.1} for _ in range(batch)]


def detr() -> tuple[Any, ...]:
    config = hf.DetrConfig(
        backbone_config=hf.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], out_indices=[2]),
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        num_queries=20,
        num_labels=4,
        use_timm_backbone=False,
    )
    return supervised(hf.DetrForObjectDetection(config), pixel_values=image(2), labels=_objects(2))


def yolos() -> tuple[Any, ...]:
    config = hf.YolosConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        image_size=[64, 64],
        patch_size=8,
        num_detection_tokens=20,
        num_labels=4,
    )
    return supervised(hf.YolosForObjectDetection(config), pixel_values=image(2), labels=_objects(2))


def depth_anything() -> tuple[Any, ...]:
    backbone = hf.Dinov2Config(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        mlp_ratio=2,
        image_size=56,
        patch_size=14,
        out_indices=[1, 2, 3, 4],
        apply_layernorm=True,
        reshape_hidden_states=False,
    )
    config = hf.DepthAnythingConfig(
        backbone_config=backbone,
        reassemble_hidden_size=64,
        neck_hidden_sizes=[16, 32, 64, 64],
        fusion_hidden_size=32,
        head_hidden_size=16,
        patch_size=14,
    )
    target = torch.rand(2, 56, 56)
    module = hf.DepthAnythingForDepthEstimation(config).train()
    return module, {"pixel_values": image(2, 56)}, lambda out: (out.predicted_depth - target).abs().mean()
