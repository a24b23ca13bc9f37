"""ResNet-50 (He et al., CVPR 2016), with the stride on the 3x3 convolution as in current implementations."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, blocks and stride of every stage."""
_EXPANSION = 4


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * _EXPANSION
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += self.shortcut(x)
        return self.relu(y)


class ResNet50(nn.Module):
    """The network and its loss: images and labels to a scalar."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        channels, stages = 64, []
        for width, blocks, stride in _STAGES:
            layers = []
            for block in range(blocks):
                layers.append(_Bottleneck(channels, width, stride if block == 0 else 1))
                channels = width * _EXPANSION
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(channels, classes)

    def forward(self, images: Any, labels: Any) -> Any:
        """Cross entropy of the predicted classes."""
        x = self.pool(self.relu(self.bn1(self.conv1(images))))
        x = nn.functional.adaptive_avg_pool2d(self.stages(x), 1)
        return nn.functional.cross_entropy(self.fc(torch.flatten(x, 1)), labels)
