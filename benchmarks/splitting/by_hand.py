"""Wide parts of models in several parts, written by hand as users write them: with gradients of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


class _Loss(torch.autograd.Function):
    """A head and its cross entropy: gradients are computed in the forward pass, for some rows at a time."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, targets: Any, parts: int) -> Any:
        count = len(targets)
        loss, d_weight, d_x = x.new_zeros(()), torch.zeros_like(weight), torch.empty_like(x)
        for rows, own, out in zip(x.chunk(parts), targets.chunk(parts), d_x.chunk(parts), strict=True):
            logits = rows @ weight.t()
            logs = torch.log_softmax(logits, 1)
            del logits
            picked = own[:, None]
            loss -= logs.gather(1, picked).sum()
            gradient = logs.exp_()
            gradient.scatter_add_(1, picked, gradient.new_full((1, 1), -1.0).expand(len(own), 1))
            gradient /= count
            torch.mm(gradient, weight, out=out)
            d_weight.addmm_(gradient.t(), rows)
        ctx.save_for_backward(d_x, d_weight)
        return loss / count

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        d_x, d_weight = ctx.saved_tensors
        if gradient != 1:
            d_x, d_weight = d_x * gradient, d_weight * gradient
        return d_x, d_weight, None, None


class _Recomputed(torch.autograd.Function):
    """A function of some rows at a time, which the backward pass computes again."""

    @staticmethod
    def forward(ctx: Any, function: Any, parameters: Any, parts: int, x: Any, *_: Any) -> Any:
        ctx.function, ctx.parameters, ctx.parts = function, parameters, parts
        ctx.save_for_backward(x)
        out = torch.empty_like(x)
        for rows, into in zip(x.chunk(parts), out.chunk(parts), strict=True):
            into.copy_(function(rows))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        sums = [torch.zeros_like(parameter) for parameter in ctx.parameters]
        d_x = torch.empty_like(x)
        for rows, own, into in zip(x.chunk(ctx.parts), gradient.chunk(ctx.parts), d_x.chunk(ctx.parts), strict=True):
            with torch.enable_grad():
                rows = rows.detach().requires_grad_()
                made = ctx.function(rows)
            first, *others = torch.autograd.grad(made, (rows, *ctx.parameters), own)
            into.copy_(first)
            for total, one in zip(sums, others, strict=True):
                total += one
        return None, None, None, d_x, *sums


def chunked_loss(x: Any, weight: Any, targets: Any, parts: int) -> Any:
    """The mean cross entropy of ``x @ weight.T``."""
    return _Loss.apply(x, weight, targets, parts)


def chunked_mean(up: Any, down: Any, x: Any, parts: int) -> Any:
    """``down(gelu(up(x)))`` of two linear layers."""
    parameters = [up.weight, up.bias, down.weight, down.bias]
    return _Recomputed.apply(lambda rows: down(functional.gelu(up(rows))), parameters, parts, x, *parameters)


class _Pixels(torch.autograd.Function):
    """Classes of pixels and their cross entropy in full resolution, for some images at a time."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, targets: Any, parts: int) -> Any:
        total, d_x, sums = x.new_zeros(()), torch.empty_like(x), [torch.zeros_like(weight), torch.zeros_like(bias)]
        for images, own, into in zip(x.chunk(parts), targets.chunk(parts), d_x.chunk(parts), strict=True):
            with torch.enable_grad():
                images = images.detach().requires_grad_()
                classes = functional.conv2d(images, weight, bias)
                full = functional.interpolate(classes, scale_factor=4, mode="bilinear", align_corners=False)
                loss = functional.cross_entropy(full, own, reduction="sum") / targets.numel()
            del classes, full
            first, *others = torch.autograd.grad(loss, (images, weight, bias))
            total += loss.detach()
            into.copy_(first)
            for one, own_sum in zip(others, sums, strict=True):
                own_sum += one
        ctx.save_for_backward(d_x, *sums)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        made = ctx.saved_tensors
        return *(one if gradient == 1 else one * gradient for one in made), None, None


def chunked_pixels(x: Any, weight: Any, bias: Any, targets: Any, parts: int) -> Any:
    """The mean cross entropy of a convolution of size 1, four times enlarged."""
    return _Pixels.apply(x, weight, bias, targets, parts)
