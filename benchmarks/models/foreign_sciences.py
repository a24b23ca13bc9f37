"""Foreign models written by hand: equations, graphs, densities, points, signals and retrieval.

Every builder returns a module that does not know its loss: the loop computes it from what the module returns.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.tasks import Built, classified, cross_entropy, image, squared, words


def complex_layers() -> Built:
    """Products of complex numbers in the frequencies of an image."""

    class Frequencies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filters = nn.ParameterList(torch.randn(8, 64, 33, dtype=torch.cfloat) * 0.1 for _ in range(4))
            self.phases = nn.ParameterList(torch.randn(8, 1, 1) for _ in range(4))
            self.head = nn.Linear(8, 10)

        def forward(self, x: Any) -> Any:
            f = torch.fft.rfft2(x).expand(-1, 8, -1, -1)
            for weights, phase in zip(self.filters, self.phases, strict=True):
                f = f * weights * torch.polar(torch.ones_like(phase), phase)
                f = torch.view_as_complex(torch.tanh(torch.view_as_real(f)))
            return self.head(torch.fft.irfft2(f).square().mean((2, 3)))

    return classified(Frequencies(), image(16, 64, 1))


def fourier_operator() -> Built:
    """Spectral convolutions that write into a part of the frequencies."""

    class Spectral(nn.Module):
        def __init__(self, width: int = 24) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.randn(width, width, 8, 8, dtype=torch.cfloat) / width**2)
            self.pointwise = nn.Conv2d(width, width, 1)

        def forward(self, x: Any) -> Any:
            f = torch.fft.rfft2(x)
            kept = torch.zeros_like(f)
            kept[:, :, :8, :8] = torch.einsum("bixy,ioxy->boxy", f[:, :, :8, :8], self.weights)
            return functional.gelu(torch.fft.irfft2(kept, s=x.shape[-2:]) + self.pointwise(x))

    layers = nn.Conv2d(3, 24, 1), *(Spectral() for _ in range(4)), nn.Conv2d(24, 1, 1)
    wanted = image(8, 48, 1)
    return nn.Sequential(*layers).train(), (image(8, 48),), lambda out: (out - wanted).flatten(1).norm(dim=1).mean()


def euler_steps() -> Built:
    """A differential equation, in sixteen steps of Euler's method by one field."""

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = nn.Sequential(nn.Linear(65, 256), nn.Tanh(), nn.Linear(256, 64))
            self.head = nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            for k in range(16):
                time = x.new_full((len(x), 1), k / 16)
                x = x + self.field(torch.cat([x, time], 1)) / 16
            return self.head(x)

    return classified(Flow(), torch.randn(1024, 64))


def physics_informed() -> Built:
    """Derivatives by place and time, by ``torch.autograd.grad`` within the forward pass."""

    class Burgers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(),
                nn.Linear(128, 1),
            )  # fmt: skip

        def forward(self, place: Any, time: Any) -> Any:
            place, time = place.detach().requires_grad_(), time.detach().requires_grad_()
            u = self.net(torch.cat([place, time], 1))
            by_place, by_time = torch.autograd.grad(u.sum(), (place, time), create_graph=True)
            (twice,) = torch.autograd.grad(by_place.sum(), place, create_graph=True)
            return by_time + u * by_place - 0.003 * twice

    return squared(Burgers(), torch.rand(1024, 1), torch.rand(1024, 1))


def _graph(nodes: int = 2000, edges: int = 16000) -> tuple[Any, Any, Any]:
    features, (source, target) = torch.randn(nodes, 64), torch.randint(0, nodes, (2, edges))
    return features, source, target


class _Mean(nn.Module):
    """The mean of what neighbours say, by ``index_add``."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(i, o), nn.Linear(i, o)

    def forward(self, x: Any, source: Any, target: Any) -> Any:
        said = torch.zeros_like(x).index_add(0, target, x[source])
        count = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target))).clamp(min=1)
        return functional.relu(self.own(x) + self.others(said / count[:, None]))


def graph_means() -> Built:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.head = nn.ModuleList(_Mean(64, 64) for _ in range(3)), nn.Linear(64, 7)

        def forward(self, x: Any, source: Any, target: Any) -> Any:
            for layer in self.layers:
                x = functional.dropout(layer(x, source, target), 0.2, self.training)
            return self.head(x)

    return classified(Graph(), *_graph(), number=7)


def graph_attention() -> Built:
    """Weights of edges by a softmax over those that end in one node."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lifts = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
            self.scores, self.head = nn.ParameterList(torch.randn(128) * 0.1 for _ in range(3)), nn.Linear(64, 7)

        def forward(self, x: Any, source: Any, target: Any) -> Any:
            for lift, score in zip(self.lifts, self.scores, strict=True):
                h = lift(x)
                weights = functional.leaky_relu(torch.cat([h[source], h[target]], 1) @ score, 0.2)
                top = torch.full((len(x),), -1e9).scatter_reduce(0, target, weights, "amax")
                weights = (weights - top[target]).exp()
                total = torch.zeros(len(x)).index_add(0, target, weights)[target] + 1e-9
                x = functional.elu(torch.zeros_like(h).index_add(0, target, h[source] * (weights / total)[:, None]))
            return self.head(x)

    return classified(Attention(), *_graph(2000, 8000), number=7)


def coupling_flow() -> Built:
    """A density by coupled halves, with its logarithmic determinant as the second result."""

    class Coupled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nets = nn.ModuleList(
                nn.Sequential(nn.Linear(32, 256), nn.LeakyReLU(), nn.Linear(256, 64)) for _ in range(8)
            )

        def forward(self, x: Any) -> Any:
            volume = torch.zeros(len(x))
            for net in self.nets:
                a, b = x.chunk(2, 1)
                shift, scale = net(a).chunk(2, 1)
                scale = torch.tanh(scale)
                x, volume = torch.cat([b * scale.exp() + shift, a], 1), volume + scale.sum(1)
            return x, volume

    def loss(found: Any) -> Any:
        x, volume = found
        return (x.square().sum(1) / 2 - volume).mean()

    return Coupled().train(), (torch.randn(2048, 64),), loss


def variational_autoencoder() -> Built:
    """Draws random numbers; returns picture, mean and variance."""

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Sequential(nn.Conv2d(1, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU())
            self.mean, self.spread, self.lift = (nn.Linear(64 * 49, 16), nn.Linear(64 * 49, 16), nn.Linear(16, 64 * 49))
            self.decode = nn.Sequential(
                nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1)
            )

        def forward(self, x: Any) -> Any:
            h = self.encode(x).flatten(1)
            mean, spread = self.mean(h), self.spread(h)
            z = mean + torch.randn_like(mean) * (spread / 2).exp()
            return self.decode(self.lift(z).unflatten(1, (64, 7, 7))), mean, spread

    x = torch.rand(128, 1, 28, 28)

    def loss(found: Any) -> Any:
        picture, mean, spread = found
        fit = functional.binary_cross_entropy_with_logits(picture, x, reduction="sum") / len(x)
        return fit - (1 + spread - mean.square() - spread.exp()).sum(1).mean() / 2

    return Autoencoder().train(), (x,), loss


def codebook() -> Built:
    """Nearest entries of a codebook, with a gradient straight through."""

    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Sequential(nn.Conv2d(3, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))
            self.entries, self.decode = nn.Embedding(128, 32), nn.ConvTranspose2d(32, 3, 4, 2, 1)

        def forward(self, x: Any) -> Any:
            z = self.encode(x).permute(0, 2, 3, 1)
            nearest = torch.cdist(z.flatten(0, 2), self.entries.weight).argmin(1)
            q = self.entries(nearest).view_as(z)
            gap = functional.mse_loss(q, z.detach()) + 0.25 * functional.mse_loss(z, q.detach())
            return self.decode((z + (q - z).detach()).permute(0, 3, 1, 2)), gap

    x = image(16, 64)
    return Quantized().train(), (x,), lambda found: functional.mse_loss(found[0], x) + found[1]


def radiance_field() -> Built:
    """Points along rays, and what is seen of them."""

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(63, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))

        def forward(self, origins: Any, ways: Any) -> Any:
            depth = torch.linspace(2, 6, 32) + torch.rand(len(origins), 32) * 0.1
            points = origins[:, None] + ways[:, None] * depth[..., None]
            waves = [f(2.0**k * points) for k in range(10) for f in (torch.sin, torch.cos)]
            seen = self.net(torch.cat([points, *waves], -1))
            dense = 1 - torch.exp(-functional.relu(seen[..., 3]) * 0.125)
            passed = torch.cumprod(1 - dense + 1e-10, 1)
            return ((dense * passed)[..., None] * torch.sigmoid(seen[..., :3])).sum(1)

    return squared(Field(), torch.randn(256, 3), functional.normalize(torch.randn(256, 3), dim=1))


def recommender() -> Built:
    """Bags of embeddings, and products of all pairs."""

    class Recommender(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(2000, 32, mode="sum") for _ in range(6))
            self.dense = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 32))
            self.top = nn.Sequential(nn.Linear(32 + 21, 256), nn.ReLU(), nn.Linear(256, 1))

        def forward(self, numbers: Any, ids: Any) -> Any:
            first = self.dense(numbers)
            all_ = torch.stack([first, *(bag(part) for bag, part in zip(self.bags, ids, strict=True))], 1)
            i, j = torch.tril_indices(7, 7, -1)
            pairs = torch.bmm(all_, all_.transpose(1, 2))[:, i, j]
            return self.top(torch.cat([first, pairs], 1)).squeeze(1)

    labels = torch.rand(2048).round()
    inputs = torch.randn(2048, 13), torch.randint(0, 2000, (6, 2048, 4))
    return Recommender().train(), inputs, lambda out: functional.binary_cross_entropy_with_logits(out, labels)


def splines_on_edges() -> Built:
    """A network whose edges are sums of bumps."""

    class Splines(nn.Module):
        def __init__(self, i: int, o: int) -> None:
            super().__init__()
            self.places = nn.Buffer(torch.linspace(-2, 2, 8))
            self.weights, self.base = nn.Parameter(torch.randn(o, i, 8) * 0.05), nn.Linear(i, o)

        def forward(self, x: Any) -> Any:
            bumps = torch.exp(-((x[..., None] - self.places) ** 2) * 4)
            return self.base(functional.silu(x)) + torch.einsum("bik,oik->bo", bumps, self.weights)

    return classified(nn.Sequential(Splines(64, 64), Splines(64, 64), Splines(64, 10)), torch.randn(1024, 64))


def long_convolution() -> Built:
    """Convolutions as long as the text, by Fourier transforms."""

    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.into, self.out = nn.LayerNorm(96), nn.Linear(96, 192), nn.Linear(96, 96)
            self.kernel = nn.Parameter(torch.randn(96, 128) * 0.02)

        def forward(self, x: Any) -> Any:
            gate, value = self.into(self.norm(x)).transpose(1, 2).chunk(2, 1)
            f = torch.fft.rfft(value, n=256) * torch.fft.rfft(self.kernel, n=256)
            return x + self.out((functional.silu(gate) * torch.fft.irfft(f, n=256)[..., :128]).transpose(1, 2))

    ids = words(8, 128)
    module = nn.Sequential(nn.Embedding(500, 96), *(Long() for _ in range(4)), nn.Linear(96, 500))
    return module.train(), (ids,), lambda out: cross_entropy(out[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def decaying_memory() -> Built:
    """Linear attention by sums over the past, with decay."""

    class Decaying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(96), nn.Linear(96, 288), nn.Linear(96, 96)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
            step = torch.arange(x.shape[1])
            decay = torch.exp(-0.02 * (step[:, None] - step).clamp(min=0)).tril()
            y = ((functional.elu(q) + 1) @ (functional.elu(k) + 1).transpose(1, 2) * decay) @ v / x.shape[1]
            return x + self.out(y) + 0.1 * torch.cumsum(v, 1) / (step[:, None] + 1)

    ids = words(8, 128)
    module = nn.Sequential(nn.Embedding(500, 96), *(Decaying() for _ in range(4)), nn.Linear(96, 500))
    return module.train(), (ids,), lambda out: cross_entropy(out.flatten(0, 1), ids.roll(-1, 1).flatten())


def point_cloud() -> Built:
    """Nearest neighbours of points, and the largest of what they say."""

    class Cloud(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.edge = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64))
            self.head = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

        def forward(self, points: Any) -> Any:
            near = torch.cdist(points, points).topk(8, largest=False).indices
            others = torch.gather(points[:, None].expand(-1, 256, -1, -1), 2, near[..., None].expand(-1, -1, -1, 3))
            own = points[:, :, None].expand_as(others)
            return self.head(self.edge(torch.cat([own, others - own], -1)).amax(2).amax(1))

    return classified(Cloud(), torch.randn(8, 256, 3))


def warped_image() -> Built:
    """Turns its image before it looks at it."""

    class Warped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place = nn.Sequential(
                nn.Conv2d(1, 8, 7, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(72, 6)
            )
            self.look = nn.Sequential(
                nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 32, 3)
            )
            self.head = nn.Linear(32, 10)

        def forward(self, x: Any) -> Any:
            grid = functional.affine_grid(self.place(x).view(-1, 2, 3), x.shape, align_corners=False)
            seen = functional.grid_sample(x, grid, padding_mode="border", align_corners=False)
            return self.head(self.look(seen).relu().mean((2, 3)))

    return classified(Warped(), image(16, 48, 1))


def transcriber() -> Built:
    """Frames to letters, with the loss over all alignments outside."""
    layers = [
        nn.Sequential(nn.Conv1d(40 if k == 0 else 96, 96, 5, padding=2), nn.BatchNorm1d(96), nn.GELU())
        for k in range(4)
    ]
    labels = torch.randint(1, 30, (16, 20))

    def loss(out: Any) -> Any:
        lengths = torch.full((16,), out.shape[-1]), torch.full((16,), 20)
        return functional.ctc_loss(out.permute(2, 0, 1).log_softmax(-1), labels, *lengths)

    return nn.Sequential(*layers, nn.Conv1d(96, 30, 1)).train(), (torch.randn(16, 40, 256),), loss


def contrastive() -> Built:
    """Two views of each image; the loss compares all of them."""
    module = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 64),
    )  # fmt: skip

    def loss(z: Any) -> Any:
        z = functional.normalize(z, dim=1)
        alike = z @ z.t() / 0.1 - 1e9 * torch.eye(len(z))
        return cross_entropy(alike, torch.arange(len(z)).roll(len(z) // 2))

    return module.train(), (image(128, 32),), loss


def optimal_transport() -> Built:
    """Assigns by rows and columns that are normed in turn."""

    class Transport(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 64))

        def forward(self, a: Any, b: Any) -> Any:
            cost = torch.cdist(self.encode(a), self.encode(b)).square() / 64
            plan = -cost
            for _ in range(10):
                plan = plan - plan.logsumexp(2, keepdim=True)
                plan = plan - plan.logsumexp(1, keepdim=True)
            return (plan.exp() * cost).sum((1, 2))

    return squared(Transport(), torch.randn(8, 128, 32), torch.randn(8, 128, 32))


def upscaler() -> Built:
    """Four times as many pixels, out of channels."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(True), nn.Conv2d(32, 32, 3, padding=1))

        def forward(self, x: Any) -> Any:
            return x + 0.1 * self.layers(x)

    module = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        *(Residual() for _ in range(4)),
        nn.Conv2d(32, 48, 3, padding=1),
        nn.PixelShuffle(4),
    )
    wanted = image(8, 128)
    return module.train(), (image(8, 32),), lambda out: functional.smooth_l1_loss(out, wanted)


def weights_from_weights() -> Built:
    """A network that writes the weights of another one for each sample."""

    class Hyper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.write = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 32 * 32))
            self.first, self.head = nn.Linear(8, 32), nn.Linear(32, 10)

        def forward(self, task: Any, x: Any) -> Any:
            weights = self.write(task).view(-1, 32, 32) / math.sqrt(32)
            h = self.first(x)
            for _ in range(4):
                h = torch.tanh(torch.bmm(h, weights)) + h
            return self.head(h.mean(1))

    return classified(Hyper(), torch.randn(64, 16), torch.randn(64, 128, 8))
