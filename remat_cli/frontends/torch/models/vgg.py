"""VGG16 (Simonyan and Zisserman, ICLR 2015)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Width and convolutions of every block."""


class Vgg16(nn.Module):
    """The network and its loss: images and labels to a scalar."""

    def __init__(self, classes: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, convolutions in _BLOCKS:
            for _ in range(convolutions):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(channels * 49, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, classes),
        )

    def forward(self, images: Any, labels: Any) -> Any:
        """Cross entropy of the predicted classes."""
        x = self.classifier(torch.flatten(self.pool(self.features(images)), 1))
        return nn.functional.cross_entropy(x, labels)
