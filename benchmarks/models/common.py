"""What the builders of models share.

A builder is a function without arguments that returns what ``remat export torch:FILE.py:NAME`` expects: a module in
training mode, its inputs, and a loss if the module does not return one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


def image(batch: int = 4, side: int = 64, channels: int = 3) -> Any:
    return torch.randn(batch, channels, side, side)


def words(batch: int = 4, length: int = 128, vocabulary: int = 500) -> Any:
    return torch.randint(5, vocabulary, (batch, length))


def classes(batch: int = 4, number: int = 10) -> Any:
    return torch.randint(0, number, (batch,))


def cross_entropy(logits: Any, labels: Any) -> Any:
    return functional.cross_entropy(logits, labels)


def classified(module: Any, *inputs: Any, number: int = 10) -> tuple[Any, ...]:
    """A classifier that returns logits, with a cross entropy."""
    labels = classes(len(inputs[0]), number)
    return module.train(), inputs, lambda logits: cross_entropy(logits, labels)


def squared(module: Any, *inputs: Any, **keywords: Any) -> tuple[Any, ...]:
    """A module whose output, or the first one of several, is to be small."""

    def loss(output: Any) -> Any:
        tensor = output if isinstance(output, torch.Tensor) else output[0]
        return tensor.float().square().mean()

    return module.train(), keywords or inputs, loss


def supervised(module: Any, **inputs: Any) -> tuple[Any, ...]:
    """A module that takes labels and returns an output with a ``loss``."""
    return module.train(), inputs


def causal(module: Any, batch: int = 4, length: int = 128, **more: Any) -> tuple[Any, ...]:
    """A language model that predicts the next word."""
    ids = words(batch, length)
    return supervised(module, input_ids=ids, labels=ids, **more)
