"""Foreign models written by hand: the ways in which people write layers of words, images and sounds.

Every builder returns a module that does not know its loss: the loop computes it from what the module returns.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.tasks import Built, classes, classified, cross_entropy, image, squared, words


class _Experts(nn.Module):
    """The two best experts of each word, found by ``torch.where``."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(128, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(4)
        )

    def forward(self, x: Any) -> Any:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == number)
            y.index_add_(0, row, expert(x[row]) * weights[row, slot, None])
        return x + y


def experts_by_where() -> Built:
    return classified(nn.Sequential(_Experts(), _Experts(), nn.Linear(128, 10)), torch.randn(2048, 128))


def volume_unet() -> Built:
    """Three dimensions, with instance norms and one skip."""

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = _volume(1, 16), _volume(16, 32), _volume(32, 16)
            self.up, self.head = nn.ConvTranspose3d(32, 16, 2, 2), nn.Conv3d(16, 3, 1)

        def forward(self, x: Any) -> Any:
            skip = self.first(x)
            low = self.second(functional.max_pool3d(skip, 2))
            return self.head(self.last(torch.cat([skip, self.up(low)], 1)))

    labels = torch.randint(0, 3, (1, 24, 24, 24))
    return UNet().train(), (torch.randn(1, 1, 24, 24, 24),), lambda out: cross_entropy(out, labels)


def _volume(i: int, o: int) -> Any:
    return nn.Sequential(nn.Conv3d(i, o, 3, padding=1), nn.InstanceNorm3d(o), nn.LeakyReLU())


def wave_net() -> Built:
    """Dilated convolutions with gates, normed weights and skips."""
    normed = nn.utils.parametrizations.weight_norm

    class WaveNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Conv1d(1, 32, 1), nn.Conv1d(32, 64, 1)
            self.gates = nn.ModuleList(normed(nn.Conv1d(32, 64, 2, dilation=2**k)) for k in range(6))
            self.mixes = nn.ModuleList(normed(nn.Conv1d(32, 32, 1)) for _ in range(6))

        def forward(self, x: Any) -> Any:
            h, skips = self.first(x), torch.zeros(())
            for gate, mix in zip(self.gates, self.mixes, strict=True):
                signal, open_ = gate(functional.pad(h, (gate.dilation[0], 0))).chunk(2, 1)
                passed = torch.tanh(signal) * torch.sigmoid(open_)
                h, skips = h + mix(passed), skips + passed
            return self.head(functional.relu(skips))

    labels = torch.randint(0, 64, (4, 2000))
    return WaveNet().train(), (torch.randn(4, 1, 2000),), lambda out: cross_entropy(out, labels)


def dropout_mlp() -> Built:
    """Mostly dropout."""
    layers = [
        nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.1 + 0.05 * k)) for k in range(6)
    ]
    return classified(nn.Sequential(*layers, nn.Linear(256, 10)), torch.randn(1024, 256))


def scattered_writes() -> Built:
    """Writes by index, accumulating, into a grid that convolutions read."""

    class Grid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))
            self.read = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 1, 3, padding=1))

        def forward(self, points: Any, rows: Any, columns: Any) -> Any:
            grid = torch.zeros(64, 64, 32)
            grid.index_put_((rows, columns), self.encode(points), accumulate=True)
            grid[0, :] = 0.0
            return self.read(grid.permute(2, 0, 1)[None])

    places = torch.randint(0, 64, (2, 16384))
    return squared(Grid(), torch.randn(16384, 8), places[0], places[1])


def pyramid_pooling() -> Built:
    """Poolings of all kinds, over one map."""

    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
            self.head = nn.Linear(32 * (1 + 4 + 9 + 16), 10)

        def forward(self, x: Any) -> Any:
            h = functional.lp_pool2d(self.stem(x).abs() + 0.01, 2, 2)
            h, _ = functional.max_pool2d(h, 3, 1, 1, return_indices=True)
            h = functional.avg_pool2d(h, 3, 1, 1, count_include_pad=False)
            some = [functional.adaptive_max_pool2d(h, n).flatten(1) for n in (1, 2)]
            some += [functional.adaptive_avg_pool2d(h, n).flatten(1) for n in (3, 4)]
            return self.head(torch.cat(some, 1))

    return classified(Pyramid(), image(16))


def capsules() -> Built:
    """Routing by agreement, three times."""

    def squash(v: Any) -> Any:
        size = v.square().sum(-1, keepdim=True)
        return v * size / (1 + size) / (size + 1e-8).sqrt()

    class Capsules(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.primary = nn.Conv2d(1, 32, 9), nn.Conv2d(32, 32, 9, 2)
            self.votes = nn.Parameter(torch.randn(10, 144, 16, 8) * 0.05)

        def forward(self, x: Any) -> Any:
            parts = squash(self.primary(self.stem(x).relu()).view(len(x), 8, -1).transpose(1, 2))
            votes = torch.einsum("omdk,bmk->bomd", self.votes, parts)
            logits = votes.new_zeros(len(x), 10, 144, 1)
            for _ in range(3):
                whole = squash((logits.softmax(1) * votes).sum(2, keepdim=True))
                logits = logits + (votes * whole).sum(-1, keepdim=True)
            return whole.squeeze(2).norm(dim=-1)

    labels = classes(16)
    return Capsules().train(), (image(16, 28, 1),), lambda lengths: functional.multi_margin_loss(lengths, labels)


def unet_of_sounds() -> Built:
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = (1, 16, 32, 64)
            pairs = list(pairwise(widths))
            self.down = nn.ModuleList(nn.Conv1d(i, o, 5, 2, 2) for i, o in pairs)
            self.norms = nn.ModuleList(nn.GroupNorm(4, o) for o in widths[1:])
            self.up = nn.ModuleList(nn.ConvTranspose1d(o, i, 4, 2, 1) for i, o in reversed(pairs))

        def forward(self, x: Any) -> Any:
            kept = []
            for convolution, norm in zip(self.down, self.norms, strict=True):
                kept.append(x)
                x = functional.silu(norm(convolution(x)))
            for convolution in self.up:
                x = convolution(x) + kept.pop()
                x = functional.silu(x) if kept else x
            return x

    clean = torch.randn(8, 1, 8192)
    return UNet().train(), (clean + 0.1 * torch.randn_like(clean),), lambda out: functional.l1_loss(out, clean)


def siamese() -> Built:
    """One encoder, called three times."""

    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Sequential(
                nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.PReLU(), nn.Conv2d(32, 64, 3, 2, 1),
                nn.BatchNorm2d(64), nn.PReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 32),
            )  # fmt: skip

        def forward(self, anchor: Any, same: Any, other: Any) -> Any:
            return self.encode(anchor), self.encode(same), self.encode(other)

    inputs = image(16), image(16), image(16)
    return Siamese().train(), inputs, lambda found: functional.triplet_margin_loss(*found)


def packed_gru() -> Built:
    """Sequences of many lengths, packed."""

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.gru = nn.Embedding(500, 64), nn.GRU(64, 128, batch_first=True)
            self.head = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 500))

        def forward(self, ids: Any, lengths: Any) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
            padded, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True)
            return self.head(padded)

    ids, lengths = words(16, 64), torch.randint(20, 65, (16,))
    lengths[0] = 64
    return Packed().train(), (ids, lengths), lambda out: cross_entropy(out.flatten(0, 1), ids.flatten())


def adaptive_softmax() -> Built:
    """Clusters of rare words, as a layer that returns its loss among others."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mix = (
                nn.Embedding(2000, 128),
                nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)),
            )
            self.softmax = nn.AdaptiveLogSoftmaxWithLoss(128, 2000, [100, 500])

        def forward(self, ids: Any, labels: Any) -> Any:
            return self.softmax(self.mix(self.embed(ids)).flatten(0, 1), labels.flatten())

    ids = words(8, 128, 2000)
    return Words().train(), (ids, ids), lambda found: -found.output.mean()


def spectral_critic() -> Built:
    """A critic whose weights are normed by power iteration."""
    normed = nn.utils.parametrizations.spectral_norm
    widths = (3, 32, 64, 64)
    layers = [nn.Sequential(normed(nn.Conv2d(i, o, 4, 2, 1)), nn.LeakyReLU(0.2)) for i, o in pairwise(widths)]
    module = nn.Sequential(*layers, nn.Flatten(), normed(nn.Linear(64 * 64, 1)))
    return module.train(), (image(16),), lambda scores: functional.relu(1 - scores).mean()


class _Block(nn.Module):
    """A block of a transformer, with products of its own."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up, self.down = nn.Linear(width, 256), nn.Linear(width, 256), nn.Linear(256, width)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        x = x + self.out((scores.masked_fill(later, float("-inf")).softmax(-1) @ v).transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


def tied_words() -> Built:
    """A decoder whose head is its embedding; it returns logits and all hidden states."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.blocks = nn.Embedding(500, 128), nn.ModuleList(_Block() for _ in range(4))
            self.head = nn.Linear(128, 500, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Any) -> Any:
            hidden = [self.embed(ids)]
            for block in self.blocks:
                hidden.append(block(hidden[-1]))
            return self.head(hidden[-1]), tuple(hidden)

    ids = words(8, 96)
    return Tied().train(), (ids,), lambda out: cross_entropy(out[0][:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def dictionary_of_results() -> Built:
    """Logits, features and a penalty, by name; the loss takes two of them."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(_Block(), _Block(), _Block())
            self.first, self.head = nn.Linear(32, 128), nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            h = self.blocks(self.first(x))
            return {"logits": self.head(h.mean(1)), "features": h, "penalty": h.square().mean()}

    labels = classes(16)
    loss = lambda out: cross_entropy(out["logits"], labels) + 0.01 * out["penalty"]  # noqa: E731
    return Named().train(), {"x": torch.randn(16, 64, 32)}, loss


def cells_by_hand() -> Built:
    """A recurrence of LSTM cells; logits and the last state are returned."""

    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.cell, self.head = nn.Embedding(500, 64), nn.LSTMCell(64, 128), nn.Linear(128, 500)

        def forward(self, ids: Any) -> Any:
            h = c = torch.zeros(len(ids), 128)
            outputs = []
            for x in self.embed(ids).unbind(1):
                h, c = self.cell(x, (h, c))
                outputs.append(h)
            return self.head(torch.stack(outputs, 1)), (h, c)

    ids = words(64, 24)
    return Cells().train(), (ids,), lambda out: cross_entropy(out[0][:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def transformer_of_torch() -> Built:
    """``nn.Transformer``, with masks."""

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(500, 96), nn.Linear(96, 500)
            self.inner = nn.Transformer(96, 4, 2, 2, 192, dropout=0.1, batch_first=True)

        def forward(self, source: Any, target: Any, padding: Any) -> Any:
            mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
            y = self.inner(self.embed(source), self.embed(target), tgt_mask=mask, src_key_padding_mask=padding)
            return self.head(y)

    target, padding = words(8, 48), torch.zeros(8, 64, dtype=torch.bool)
    padding[4:, 50:] = True
    inputs = {"source": words(8, 64), "target": target, "padding": padding}
    return Translator().train(), inputs, lambda out: cross_entropy(out[:, :-1].flatten(0, 1), target[:, 1:].flatten())


def checkpointed_inside() -> Built:
    """Blocks that PyTorch's own checkpoints compute again."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks, self.head = nn.ModuleList(_Block() for _ in range(4)), nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            for number, block in enumerate(self.blocks):
                x = checkpoint(block, x, use_reentrant=False) if number % 2 else block(x)
            return self.head(x.mean(1))

    return classified(Checkpointed(), torch.randn(8, 96, 128))
