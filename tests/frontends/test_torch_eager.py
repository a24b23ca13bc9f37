"""What a step takes in eager mode, as followed without data, against the allocator of real steps."""

import pytest
import torch
from torch import nn

from benchmarks.torch.devices import allocated_peak
from remat_cli.errors import CaptureFailed
from remat_cli.frontends.torch.capture.construction import build_model
from remat_cli.frontends.torch.compat.fake_tensors import new_fake_mode
from remat_cli.frontends.torch.compat.operators import dropout_of_gpus
from remat_cli.frontends.torch.measure.eager import eager_graph
from remat_cli.frontends.torch.measure.memory import with_workspaces
from remat_cli.frontends.torch.tensors import total_bytes
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.memory_parts import Part, parts_of_values
from remat_cli.graph.model import Phase

WIDTH = 64


class Step(nn.Module):
    """Two linear layers, and what each of the classes below does between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.last(self.between(self.first(given))).square().mean()


class Gathered(Step):
    """Autograd keeps what ``gather`` reads; its formula reads no more than the shape."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        scores = (x @ x.mT).exp()
        places = torch.arange(32, device=x.device).clamp(max=9).expand(*scores.shape[:-1], 32)
        return x * scores.gather(-1, places).sum(-1, keepdim=True)


class Powers(Step):
    """The gradient of a power takes temporary tensors."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean()) ** 2 + x**3


class Recomputing(torch.autograd.Function):
    """Keeps its input alone, and computes again what its gradient needs."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(x.exp())

    @staticmethod
    def backward(ctx, gradient):
        [x] = ctx.saved_tensors
        inner = torch.tanh(x.exp())
        return gradient + gradient * (inner + x * (1 - inner * inner) * x.exp())


class OwnBackward(Step):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return Recomputing.apply(Recomputing.apply(x))


class OtherwiseCompiled(Step):
    """Many small steps, but one large one in compiled code."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return (x.unsqueeze(-1) * torch.ones(16)).exp().sum(-1)
        state = torch.zeros_like(x[:, 0])
        states = []
        for k in range(x.shape[1]):
            state = state * x[:, k].sigmoid() + x[:, k]
            states.append(state)
        return torch.stack(states, 1)


class Sums(Step):
    """Gradients of several readers are added up; that of an expanded one cannot be written into."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.cat([x] * 8, -1)
        return x * (wide[:, 0].mean() + wide[:, 1].mean() + 2 * wide.sum())


class Holding(Step):
    """A variable holds what no gradient needs."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        self_ = [x + k for k in range(8)]
        return sum(self_) + 1


class Resized(Step):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        image = x.reshape(x.shape[0], 4, 16, -1)
        return nn.functional.interpolate(image, scale_factor=0.5, mode="bilinear").reshape(-1, WIDTH).mean(0) + x


class Transformed(Step):
    """Complex numbers, and a view of them in another type."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.fft.fft(x)).sum(-1) * x


class Dropped(Step):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.3).exp() + nn.functional.dropout(x, 0.5)


class Normalised(Step):
    """Batch norm returns a contiguous tensor whatever its input, so that linear layers copy its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return self.first(normed) * self.last(normed)


class Experts(Step):
    """Products of groups of rows, which PyTorch's own rule for tensors without data takes in bfloat16 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(4, WIDTH, 48) / WIDTH)
        self.register_buffer("ends", torch.tensor([20, 50, 90, 128], dtype=torch.int32))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        chosen = torch._grouped_mm(x.reshape(-1, WIDTH), self.experts, offs=self.ends)
        back = torch._grouped_mm(chosen * 2, self.experts.mT.contiguous(), offs=self.ends)
        return x + back.reshape(x.shape)


class Tied(Step):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu())


STEPS = (
    Gathered,
    Powers,
    OwnBackward,
    OtherwiseCompiled,
    Sums,
    Holding,
    Resized,
    Transformed,
    Dropped,
    Normalised,
    Tied,
)


def built(kind):
    return kind().train(), (torch.randn(4, 32, WIDTH),)


def followed(build):
    mode = new_fake_mode()
    return eager_graph(build_model(build, mode, "cpu"), mode, "step")


def measured(module, inputs):
    def step() -> None:
        module(*inputs).backward()
        module.zero_grad(set_to_none=True)

    with dropout_of_gpus():
        step()
        return total_bytes([*module.parameters(), *module.buffers(), *inputs]) + allocated_peak(step)


@pytest.mark.parametrize("kind", STEPS, ids=lambda kind: kind.__name__)
def test_eager_mode_takes_what_is_predicted(kind):
    graph = with_workspaces(followed(lambda: built(kind)))
    assert no_remat_peak(graph) == measured(*built(kind))


def test_products_of_experts_are_followed_but_for_what_their_kernel_takes():
    graph = followed(lambda: built(Experts))
    assert 0 <= measured(*built(Experts)) - no_remat_peak(graph) <= 64  # what it takes depends on where groups end


def test_gradients_of_parameters_stay_and_the_loss_has_a_part():
    graph = followed(lambda: built(Powers))
    parts = parts_of_values(graph)
    sizes = sorted(graph.size[v] for v in graph.outputs)
    assert sizes == [4 * WIDTH, 4 * WIDTH, 4 * WIDTH**2, 4 * WIDTH**2]
    assert {parts[v] for v in graph.outputs} == {Part.GRADIENTS}
    assert {node.phase for node in graph.nodes} == {Phase.FORWARD, Phase.LOSS, Phase.BACKWARD}
    assert Part.LOSS in parts


def test_a_step_that_reads_numbers_cannot_be_followed():
    class Reading(Step):
        def between(self, x):
            return x * 2 if x.sum() > 0 else x

    mode = new_fake_mode()
    model = build_model(lambda: built(Reading), mode, "cpu")
    with pytest.raises(CaptureFailed, match="eager mode cannot be followed without data: ") as caught:
        eager_graph(model, mode, "step")
    assert caught.value.__cause__ is not None
    assert all(parameter.grad is None for parameter in model.module.parameters())
