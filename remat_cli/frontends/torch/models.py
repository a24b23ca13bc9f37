"""The zoo's models written in PyTorch, each with its loss; imported only when one is built."""

from typing import Any

import torch
from torch import nn


class _Gpt2Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU(approximate="tanh")
        self.fc2 = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, dim=2))
        p = self.dropout if self.training else 0.0
        y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.fc2(self.gelu(self.fc1(self.norm2(x)))))


class Gpt2(nn.Module):
    """GPT-2 (Radford et al., 2019) with PyTorch's fused attention: tokens and the ones after them to a loss.

    The head shares the embedding's weights.
    """

    def __init__(self, depth: int, heads: int, width: int, sequence: int, vocab: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(sequence, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Gpt2Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Any, targets: Any) -> Any:
        """Cross entropy of the next token."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


_RESNET_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, blocks and stride of every stage."""
_RESNET_EXPANSION = 4


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * _RESNET_EXPANSION
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
    """ResNet-50 (He et al., CVPR 2016), with the stride on the 3x3 convolution: images and labels to a loss."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        channels, stages = 64, []
        for width, blocks, stride in _RESNET_STAGES:
            layers = []
            for block in range(blocks):
                layers.append(_Bottleneck(channels, width, stride if block == 0 else 1))
                channels = width * _RESNET_EXPANSION
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(channels, classes)

    def forward(self, images: Any, labels: Any) -> Any:
        """Cross entropy of the predicted classes."""
        x = self.pool(self.relu(self.bn1(self.conv1(images))))
        x = nn.functional.adaptive_avg_pool2d(self.stages(x), 1)
        return nn.functional.cross_entropy(self.fc(torch.flatten(x, 1)), labels)


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
    """U-Net (Ronneberger et al., MICCAI 2015), padded: images and a class for every pixel to a loss."""

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


_VGG_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Width and convolutions of every block."""


class Vgg16(nn.Module):
    """VGG16 (Simonyan and Zisserman, ICLR 2015): images and labels to a loss."""

    def __init__(self, classes: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, convolutions in _VGG_BLOCKS:
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
