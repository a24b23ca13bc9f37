"""Inputs and losses of the models.

A builder is a function without arguments that returns what ``remat export torch:FILE.py:NAME`` expects: a module in
training mode, its inputs, and a loss if the module does not return one.
"""

from typing import Any

import torch
from torch.nn import functional

Built = tuple[Any, ...]
"""What a builder returns."""


def image(batch: int = 4, side: int = 64, channels: int = 3) -> Any:
    return torch.randn(batch, channels, side, side)


def words(batch: int = 4, length: int = 128, vocabulary: int = 500) -> Any:
    return torch.randint(5, vocabulary, (batch, length))


def classes(batch: int = 4, number: int = 10) -> Any:
    return torch.randint(0, number, (batch,))


def times(batch: int) -> Any:
    """Steps of a diffusion."""
    return torch.randint(0, 1000, (batch,))


def integers(least: int, end: int, *shape: int) -> Any:
    return torch.randint(least, end, shape)


def integer_values(*values: int) -> Any:
    return torch.tensor(values)


normal, shares, zeros = torch.randn, torch.rand, torch.zeros


def cross_entropy(logits: Any, labels: Any) -> Any:
    return functional.cross_entropy(logits, labels)


def classified(module: Any, *inputs: Any, number: int = 10) -> Built:
    """A classifier that returns logits, with a cross entropy."""
    labels = classes(len(inputs[0]), number)
    return module.train(), inputs, lambda logits: cross_entropy(logits, labels)


def classified_images(module: Any, batch: int, side: int = 64) -> Built:
    return classified(module, image(batch, side))


def seen(module: Any, side: int = 96, batch: int = 4) -> Built:
    """A classifier of images of transformers, without its own loss."""
    labels = classes(batch, 2)
    return module.train(), {"pixel_values": image(batch, side)}, lambda out: cross_entropy(out.logits, labels)


def squared(module: Any, *inputs: Any) -> Built:
    """A module whose output is to be small."""
    return module.train(), inputs, lambda output: output.float().square().mean()


def supervised(module: Any, **inputs: Any) -> Built:
    """A module that takes labels and returns an output with a ``loss``."""
    return module.train(), inputs


def segmented(module: Any, batch: int, side: int, number: int) -> Built:
    labels = torch.randint(0, number, (batch, side, side))
    return supervised(module, pixel_values=image(batch, side), labels=labels)


def detected(module: Any, batch: int) -> Built:
    """A detector of transformers. Labels are classes, and boxes as centre and size in shares of the image."""
    pixels = image(batch)
    labels = [{"class_labels": classes(3, 4), "boxes": torch.rand(3, 4) * 0.4 + 0.1} for _ in range(batch)]
    return supervised(module, pixel_values=pixels, labels=labels)


def causal(module: Any, batch: int = 4, length: int = 128) -> Built:
    """A language model that predicts the next word."""
    ids = words(batch, length)
    return supervised(module, input_ids=ids, labels=ids)


def masked(module: Any) -> Built:
    return supervised(module, input_ids=words(), labels=words())


def translated(module: Any) -> Built:
    return supervised(module, input_ids=words(), labels=words(4, 64))


def predicted(logits: Any, ids: Any) -> Any:
    """The cross entropy of each next word."""
    return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def next_word(module: Any, batch: int = 8, length: int = 96) -> Built:
    """A decoder, with the cross entropy of each next word."""
    ids = words(batch, length)
    return module.train(), {"input_ids": ids}, lambda out: predicted(out.logits, ids)


def every_word(module: Any, batch: int = 8, length: int = 96) -> Built:
    """An encoder, with the cross entropy of every word."""
    labels = words(batch, length)
    loss = lambda out: cross_entropy(out.logits.flatten(0, 1), labels.flatten())  # noqa: E731
    return module.train(), {"input_ids": words(batch, length)}, loss


def sentence(module: Any, **more: Any) -> Built:
    """An encoder that puts texts into one of three classes."""
    labels = classes(8, 3)
    return module.train(), {"input_ids": words(8, 96)} | more, lambda out: cross_entropy(out.logits, labels)


def translation(module: Any, batch: int = 8, **more: Any) -> Built:
    """An encoder with a decoder, which is given the words before the one that it is to say."""
    ids = words(batch, 64)
    inputs = {"input_ids": words(batch, 64), "decoder_input_ids": ids}
    return module.train(), inputs | more, lambda out: predicted(out.logits, ids)


def denoised(module: Any, noised: str, **inputs: Any) -> Built:
    """A module that predicts the noise in an input; the first half of the channels where it returns more."""
    noise = torch.randn_like(inputs[noised])
    return module.train(), inputs, lambda out: (out.sample[:, : noise.shape[1]] - noise).square().mean()


def cleaned(module: Any, **inputs: Any) -> Built:
    """A module that predicts the noise in ``sample``, in as many channels."""
    noise = torch.randn_like(inputs["sample"])
    return module.train(), inputs, lambda out: functional.mse_loss(out.sample, noise)


def reproduced(module: Any, distance: str, **inputs: Any) -> Built:
    """An autoencoder, with a loss of PyTorch's or ``square``."""
    wanted = inputs["sample"]
    square = lambda one, other: (one - other).square().mean()  # noqa: E731
    measure = square if distance == "square" else getattr(functional, distance)
    return module.train(), inputs, lambda out: measure(out.sample, wanted)


def likelihood(module: Any) -> Built:
    """A model of series that returns the parameters of a distribution."""
    batch, past, future = 32, module.config.context_length + 3, module.config.prediction_length
    values = torch.rand(batch, future)
    inputs = {
        "past_values": torch.rand(batch, past),
        "past_time_features": torch.randn(batch, past, 2),
        "past_observed_mask": torch.ones(batch, past),
        "future_values": values,
        "future_time_features": torch.randn(batch, future, 2),
    }

    def loss(output: Any) -> Any:
        degrees, place, scale = output.params
        return -torch.distributions.StudentT(degrees, place, scale).log_prob(values).mean()

    return module.train(), inputs, loss
