"""U-Net (Ronneberger et al., MICCAI 2015), padded and with batch normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def _convolutions(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """The network and its loss: images and a class for every pixel to a scalar."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(_convolutions(a, b) for a, b in zip([3, *widths[:-2]], widths[:-1], strict=True))
        self.pool = nn.MaxPool2d(2)
        self.bottom = _convolutions(widths[-2], widths[-1])
        upward = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in upward)
        self.up = nn.ModuleList(_convolutions(2 * b, b) for _, b in upward)
        self.score = nn.Conv2d(width, classes, 1)

    def forward(self, images: Any, labels: Any) -> Any:
        """Cross entropy of the predicted class of every pixel."""
        x, skips = images, []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for grow, block, skip in zip(self.grow, self.up, reversed(skips), strict=True):
            x = block(torch.cat([skip, grow(x)], 1))
        return nn.functional.cross_entropy(self.score(x), labels)
