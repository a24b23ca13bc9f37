"""Small models of the kinds that libraries have: what is particular about each kind, at sizes that train in no time."""

import torch
from torch import nn
from torch.nn import functional


class StateSpace(nn.Module):
    """A selective scan as Mamba's: a causal convolution, steps that depend on the input, and a recurrence in a loop."""

    def __init__(self, width=8, state=4):
        super().__init__()
        self.into, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.conv = nn.Conv1d(width, width, 3, padding=2, groups=width)
        self.chosen, self.step = nn.Linear(width, 2 * state), nn.Linear(width, width)
        self.decay = nn.Parameter(torch.arange(1, state + 1).float().log().repeat(width, 1))
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, x):
        length = x.shape[1]
        inner, gate = self.into(x).chunk(2, -1)
        inner = functional.silu(self.conv(inner.transpose(1, 2))[..., :length].transpose(1, 2))
        write, read = self.chosen(inner).chunk(2, -1)
        step = functional.softplus(self.step(inner))
        kept = torch.exp(step[..., None] * -self.decay.exp())
        written = (step * inner)[..., None] * write[:, :, None]
        state, outputs = written[:, 0] * 0, []
        for k in range(length):
            state = kept[:, k] * state + written[:, k]
            outputs.append((state * read[:, k, None]).sum(-1))
        return self.out((torch.stack(outputs, 1) + inner * self.skip) * functional.silu(gate))


def state_space():
    x = torch.randn(2, 5, 8)
    return StateSpace(), (x,), lambda y: (y - x.roll(-1, 1)).square().mean()


class Experts(nn.Module):
    """The two best of four experts for each word, and a loss that keeps them equally busy, as Mixtral's."""

    def __init__(self, width=8, experts=4, chosen=2):
        super().__init__()
        self.embed, self.router, self.chosen = nn.Embedding(20, width), nn.Linear(width, experts), chosen
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.3)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.3)
        self.head = nn.Linear(width, 20)

    def forward(self, words, labels):
        x = self.embed(words).flatten(0, 1)
        shares = self.router(x).softmax(-1)
        best, which = shares.topk(self.chosen, -1)
        best = best / best.sum(-1, keepdim=True)
        weights = torch.zeros_like(shares).scatter(1, which, best)
        hidden = functional.silu(torch.einsum("nd,edf->enf", x, self.up))
        y = x + torch.einsum("enf,efd,ne->nd", hidden, self.down, weights)
        busy = functional.one_hot(which, shares.shape[1]).float().mean((0, 1))
        loss = functional.cross_entropy(self.head(y), labels.flatten())
        return {"loss": loss + 0.02 * len(busy) * (busy * shares.mean(0)).sum(), "router": shares}


def experts():
    words = torch.randint(0, 20, (2, 6))
    return Experts(), {"words": words, "labels": words}


class Detector(nn.Module):
    """Boxes at anchors of two scales, and a loss over those that overlap a target, as RetinaNet's."""

    def __init__(self):
        super().__init__()
        self.near, self.far = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.lateral, self.classes, self.boxes = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 3, 3, 1, 1), nn.Conv2d(8, 4, 3, 1, 1)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, images, targets):
        near = functional.relu(self.norm(self.near(images)))
        far = functional.relu(self.far(near))
        near = near + functional.interpolate(self.lateral(far), scale_factor=2.0, mode="nearest")
        levels = [(self.classes(level), self.boxes(level)) for level in (near, far)]
        classes, boxes = (torch.cat([part.flatten(2) for part in parts], 2).mT for parts in zip(*levels, strict=True))
        boxes = torch.cat([boxes[..., :2].sigmoid(), boxes[..., 2:].exp()], -1)
        distance = torch.cdist(boxes.detach()[..., :2], targets[..., :2])
        matched, found = distance.min(-1).indices, distance.min(-1).values < 0.4
        wanted = targets.gather(1, matched[..., None].expand(-1, -1, 4))
        share = classes.sigmoid()
        hits = functional.one_hot(torch.where(found, 1 + matched % 2, 0), 3).float()
        focal = -hits * (1 - share) ** 2 * share.log() - (1 - hits) * share**2 * (1 - share).log()
        off = torch.where(found[..., None], functional.smooth_l1_loss(boxes, wanted, reduction="none"), 0.0)
        return {"classification": focal.mean(), "boxes": off.sum() / found.sum().clamp(min=1)}


def detector():
    return Detector(), (torch.randn(2, 3, 8, 8), torch.rand(2, 2, 4)), lambda losses: sum(losses.values())


class Speech(nn.Module):
    """Waves through convolutions, features masked, and places as a grouped convolution with normalised weights."""

    def __init__(self, width=8):
        super().__init__()
        self.first, self.second = nn.Conv1d(1, width, 5, 3, bias=False), nn.Conv1d(width, width, 3, 2)
        self.norm = nn.GroupNorm(width, width)
        self.places = nn.utils.parametrizations.weight_norm(nn.Conv1d(width, width, 4, padding=2, groups=2), dim=2)
        self.masked, self.layer = nn.Parameter(torch.rand(width)), nn.TransformerEncoderLayer(width, 2, 16, 0.1)
        self.head = nn.Linear(width, 5)

    def forward(self, waves, mask, labels):
        x = functional.gelu(self.second(functional.gelu(self.norm(self.first(waves[:, None])))))
        x = torch.where(mask[..., None], self.masked, x.transpose(1, 2))
        x = x + functional.gelu(self.places(x.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        return functional.cross_entropy(self.head(self.layer(x)).flatten(0, 1), labels.flatten(), label_smoothing=0.1)


def speech():
    return Speech(), (torch.randn(2, 60), torch.rand(2, 9) < 0.3, torch.randint(0, 5, (2, 9)))


class Video(nn.Module):
    """Convolutions over space and time apart, and attention over frames, as R(2+1)D's and TimeSformer's."""

    def __init__(self, width=8):
        super().__init__()
        self.space = nn.Conv3d(3, width, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False)
        self.time = nn.Conv3d(width, width, (3, 1, 1), padding=(1, 0, 0), bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm3d(width), nn.BatchNorm3d(width)])
        self.frames, self.head = nn.MultiheadAttention(width, 2, 0.1, batch_first=True), nn.Linear(width, 3)

    def forward(self, clips):
        x = functional.relu(self.norms[0](self.space(clips)))
        x = functional.relu(self.norms[1](self.time(x)) + x)
        x = x.permute(0, 3, 4, 2, 1).flatten(0, 2)
        x = x + self.frames(x, x, x, need_weights=False)[0]
        return self.head(x.mean(1).unflatten(0, (len(clips), -1)).amax(1))


def video():
    labels = torch.tensor([0, 2])
    return Video(), (torch.randn(2, 3, 4, 6, 6),), lambda logits: functional.cross_entropy(logits, labels)


class Denoiser(nn.Module):
    """A U-Net that is told the time and the class: sines of time, scaled and shifted norms, attention in the middle."""

    def __init__(self, width=8):
        super().__init__()
        self.times, self.kinds = nn.Linear(width, 2 * width), nn.Embedding(4, width)
        self.down, self.middle, self.up = (nn.Conv2d(k, width, 3, padding=1) for k in (3, width, 2 * width))
        self.norm, self.attend = nn.GroupNorm(2, width, affine=False), nn.MultiheadAttention(width, 2, batch_first=True)
        self.dropped, self.out = nn.Dropout(0.1), nn.Conv2d(width, 3, 1)

    def forward(self, noised, times, kinds):
        waves = times[:, None] * torch.exp(-torch.arange(4.0, device=times.device))
        told = functional.silu(torch.cat([waves.sin(), waves.cos()], 1) + self.kinds(kinds))
        scale, shift = self.times(told)[..., None, None].chunk(2, 1)
        high = functional.silu(self.norm(self.down(noised)) * (1 + scale) + shift)
        low = functional.silu(self.middle(functional.avg_pool2d(high, 2)))
        flat = low.flatten(2).transpose(1, 2)
        low = low + self.attend(flat, flat, flat, need_weights=False)[0].transpose(1, 2).unflatten(2, low.shape[2:])
        joined = torch.cat([functional.interpolate(low, scale_factor=2.0), high], 1)
        return self.out(self.dropped(functional.silu(self.up(joined))))


def denoiser():
    noise = torch.randn(2, 3, 8, 8)
    inputs = (torch.randn(2, 3, 8, 8), torch.rand(2) * 999, torch.tensor([1, 3]))
    return Denoiser(), inputs, lambda found: (found - noise).square().mean()


class Codebook(nn.Module):
    """Chooses the nearest of a few codes, and passes gradients straight through, as VQ-VAE's."""

    def __init__(self, width=4):
        super().__init__()
        self.encode, self.decode = nn.Conv2d(3, width, 2, 2), nn.ConvTranspose2d(width, 3, 2, 2)
        self.codes = nn.Embedding(6, width)

    def forward(self, images):
        z = self.encode(images).permute(0, 2, 3, 1)
        chosen = self.codes(torch.cdist(z.flatten(0, 2), self.codes.weight).argmin(1)).view_as(z)
        commitment = (z - chosen.detach()).square().mean() + (z.detach() - chosen).square().mean()
        straight = z + (chosen - z).detach()
        return (self.decode(straight.permute(0, 3, 1, 2)) - images).square().mean() + commitment


def codebook():
    return Codebook(), (torch.randn(2, 3, 6, 6),)


class Retrieval(nn.Module):
    """Two towers, a learned temperature, and each word with its best one of the other text, as CLIP's and ColBERT's."""

    def __init__(self, width=8):
        super().__init__()
        self.towers = nn.ModuleList([nn.Embedding(20, width), nn.Embedding(20, width)])
        self.shared, self.scale = nn.Linear(width, width, bias=False), nn.Parameter(torch.tensor(1.0))

    def forward(self, questions, passages):
        pairs = zip(self.towers, (questions, passages), strict=True)
        q, p = (functional.normalize(self.shared(tower(words).tanh()), dim=-1) for tower, words in pairs)
        scores = self.scale.exp() * torch.einsum("qik,pjk->qpij", q, p).amax(3).sum(2)
        right = torch.arange(len(scores), device=scores.device)
        return (functional.cross_entropy(scores, right) + functional.cross_entropy(scores.t(), right)) / 2


def retrieval():
    return Retrieval(), (torch.randint(0, 20, (3, 4)), torch.randint(0, 20, (3, 7)))


class Translator(nn.Module):
    """An encoder and a decoder with one embedding for both and for the logits, and shared relative places, as T5's."""

    def __init__(self, width=8):
        super().__init__()
        self.embed, self.places = nn.Embedding(20, width), nn.Embedding(9, 2)
        self.encoder, self.decoder, self.cross = (nn.Linear(width, 3 * width) for _ in range(3))
        self.dropped = nn.Dropout(0.1)

    def attend(self, layer, x, y, mask):
        q, _, _ = layer(x).unflatten(-1, (3, 2, -1)).unbind(-3)
        _, k, v = layer(y).unflatten(-1, (3, 2, -1)).unbind(-3)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) + mask
        return x + torch.einsum("bhqk,bkhd->bqhd", self.dropped(scores.softmax(-1)), v).flatten(2)

    def forward(self, words, labels):
        def bias(length):
            place = torch.arange(length, device=words.device)
            return self.places((place[:, None] - place).clamp(-4, 4) + 4).permute(2, 0, 1)

        before = functional.pad(labels[:, :-1], (1, 0))
        later = torch.full((labels.shape[1],) * 2, float("-inf"), device=words.device).triu(1)
        x = self.embed(words)
        x = self.attend(self.encoder, x, x, bias(words.shape[1]))
        y = self.embed(before)
        y = self.attend(self.decoder, y, y, bias(labels.shape[1]) + later)
        logits = self.attend(self.cross, y, x, 0.0) @ self.embed.weight.t()
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits, "encoded": x}


def translator():
    return Translator(), {"words": torch.randint(0, 20, (2, 6)), "labels": torch.randint(0, 20, (2, 5))}


class Adapted(nn.Module):
    """A frozen layer and two small ones beside it, with dropout of their own, as LoRA's."""

    def __init__(self, width=8, rank=2):
        super().__init__()
        self.base = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)).requires_grad_(False)
        self.low, self.high = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
        self.dropped, self.head = nn.Dropout(0.1), nn.Linear(width, 3)

    def forward(self, x):
        return self.head(functional.gelu(self.base(x) + 2.0 * self.high(self.low(self.dropped(x)))))


def adapted():
    labels = torch.tensor([0, 1, 2, 0])
    return Adapted(), (torch.randn(4, 8),), lambda logits: functional.cross_entropy(logits, labels)


FAMILIES = (state_space, experts, detector, speech, video, denoiser, codebook, retrieval, translator, adapted)
