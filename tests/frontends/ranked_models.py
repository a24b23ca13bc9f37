"""A small model like Llama, as its user writes it, and the three ways to divide it over processes."""

import time

import torch
from sharded_models import sharded, whole
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

WIDTH, HEADS, BLOCKS = 128, 4, 2
ODD, EVEN = (345, 601), (344, 600)
"""Features inside of a block, and words. Odd numbers of rows are padded."""
BATCH, LENGTH = 4, 64

_LET_GO = 0.001
"""Seconds in which a thread of gloo lets go of a gradient. Without the wait a rank may keep one in every step."""


class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, inner, bias=False), nn.Linear(WIDTH, inner, bias=False)
        self.down = nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, inner, words):
        super().__init__()
        self.words = nn.Embedding(words, WIDTH)
        self.layers = nn.ModuleList(Block(inner) for _ in range(BLOCKS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, words, bias=False)

    def forward(self, tokens, targets):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def build(batch=BATCH, length=LENGTH, sizes=ODD):
    torch.manual_seed(0)
    tokens, targets = torch.randint(0, sizes[-1], (2, batch, length))
    return Llama(*sizes), (tokens, targets)


def build_few():
    """So few words that gradients of parameters take the most."""
    return build(1, 8, EVEN)


def full(module):
    """Every parameter is divided, and gathered by a parametrization."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=("fsdp",))
    return sharded(module, mesh, whole(module))


def grad(module):
    """As soon as a gradient is there, it is reduced and scattered, and only this rank's part of it is kept."""
    ranks = torch.distributed.get_world_size()
    module.parts = {}

    def scatter(parameter):
        flat = parameter.grad.flatten()
        if flat.numel() % ranks:
            flat = nn.functional.pad(flat, (0, -flat.numel() % ranks))
        part = flat.new_empty(flat.numel() // ranks)
        parameter.grad = None
        torch.distributed.reduce_scatter_tensor(part, flat)
        time.sleep(_LET_GO)
        module.parts[id(parameter)] = part

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(scatter)
    return module


def none(module):
    return nn.parallel.DistributedDataParallel(module)
