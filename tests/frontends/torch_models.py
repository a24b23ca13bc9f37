"""Small models, each with something that is easily got wrong, as ``build`` functions for export and for eager runs."""

import torch
from torch import nn


class Mlp(nn.Module):
    """Plain: the loss is outside."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))

    def forward(self, x):
        return self.layers(x)


class ConvNorm(nn.Module):
    """Batch norm, in-place ReLU, pooling with indices, dropout, a constant, a frozen and an unused parameter."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8 * 16, 5)
        self.head.bias.requires_grad_(False)
        self.unused = nn.Linear(3, 3)

    def forward(self, x, labels):
        x = torch.relu_(self.norm(self.conv1(x)))
        x = nn.functional.max_pool2d(self.drop(x), 2)
        x = x + self.conv2(x) * torch.tensor(0.5)
        x = nn.functional.adaptive_avg_pool2d(x, 4)
        return {"loss": nn.functional.cross_entropy(self.head(x.flatten(1)), labels), "other": 1}


class Tied(nn.Module):
    """A small language model: tied weights, attention, dropout, keyword inputs."""

    def __init__(self, dropout=0.1):
        super().__init__()
        self.tokens = nn.Embedding(50, 32)
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
        self.norm = nn.LayerNorm(32)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets):
        x = self.drop(self.tokens(tokens))
        b, t, c = x.shape
        q, k, v = (p.view(b, t, 4, 8).transpose(1, 2) for p in self.qkv(self.norm(x)).split(32, dim=2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.drop(self.out(y))
        logits = self.head(self.norm(x))
        return nn.functional.cross_entropy(logits.view(-1, 50), targets.view(-1))


class InPlace(nn.Module):
    """Writes into views of its own values, and updates a buffer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.second = nn.Linear(16, 4)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps.add_(1)
        y = self.first(x)
        y[:, :4].mul_(2)
        y[:, 4:].add_(x)
        a, b = y.chunk(2, dim=1)
        y = torch.cat([b.sigmoid(), a.sin()], dim=1)
        return (self.second(y) ** 2).mean()


def mlp():
    x, y = torch.randn(32, 16), torch.randn(32, 8)
    return Mlp(), (x,), lambda out: ((out - y) ** 2).mean()


def conv():
    return ConvNorm(), (torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,)))


def tied():
    return Tied(), {"tokens": torch.randint(0, 50, (2, 12)), "targets": torch.randint(0, 50, (2, 12))}


def in_place():
    return InPlace(), torch.randn(6, 12)


def attention():
    return Tied(0.0), tied()[1]


def frozen():
    model, inputs, loss = mlp()
    return model.requires_grad_(False), inputs, loss


def breaks():
    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            y = self.layer(x)
            return y.sum() if y.sum().item() > 0 else y.mean()

    return Breaks(), torch.randn(2, 4)


class Exchanged(nn.Module):
    """Series with time and features exchanged: kernels on a CPU answer in another layout than tensors without data."""

    def __init__(self):
        super().__init__()
        self.norm, self.inner, self.head = nn.BatchNorm1d(16), nn.Linear(16, 16), nn.Linear(16, 6)

    def forward(self, series, future):
        normed = self.norm(series.transpose(1, 2)).transpose(1, 2)
        steps, features = normed.shape[1:]
        hidden = torch.relu(self.inner(normed.reshape(-1, features)).view(-1, steps, features))
        return nn.functional.mse_loss(self.head(hidden).transpose(1, 2), future)


def exchanged():
    return Exchanged(), (torch.randn(4, 10, 16), torch.randn(4, 6, 10))


def squared():
    y = torch.randn(64, 32)
    return nn.Linear(8, 32), (torch.randn(64, 8),), lambda out: nn.functional.mse_loss(out, y)
