"""Steps whose parameters are DTensors: gathered by parametrizations (SimpleFSDP), tensor parallel, and both."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.utils import parametrize

BLOCKS = 2
MATRICES, VECTORS = 2, 2
"""Parameters of a block."""


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.a = nn.Linear(width, 4 * width, bias=False)
        self.b = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.b(nn.functional.gelu(self.a(self.norm(x))))


class Gather(nn.Module):
    """A parameter as the module uses it: whole in the first dimension of its mesh, and gathered there."""

    def __init__(self, tp=None):
        super().__init__()
        self.tp = tp

    def forward(self, w):
        others = w.placements[1:]
        local = w.redistribute(placements=[Replicate(), *others]).to_local(grad_placements=[Partial(), *others])
        return DTensor.from_local(local, self.tp, others) if any(p.is_shard() for p in others) else local

    def right_inverse(self, w):
        return w


def sharded(module, mesh, whole, tp=None):
    """``module``, its parameters, ``whole`` by name, divided over the first dimension of ``mesh``, too."""
    for path, part in list(module.named_modules()):
        for name, parameter in list(part.named_parameters(recurse=False)):
            others = (Replicate(),) * (mesh.ndim - 1) if not isinstance(parameter, DTensor) else parameter.placements
            first = Shard(1 if Shard(0) in others else 0)
            full = whole[f"{path}.{name}" if path else name]
            setattr(part, name, nn.Parameter(distribute_tensor(full, mesh, [first, *others])))
            parametrize.register_parametrization(part, name, Gather(tp), unsafe=True)
    return module


def whole(module):
    return {name: parameter.data for name, parameter in module.named_parameters()}


def ranks():
    return torch.distributed.get_world_size()


WIDTH, ROWS, CLASSES = 64, 128, 512


def made():
    """A module with a head, a batch, and a loss; logits take most of the memory."""
    torch.manual_seed(0)
    module = nn.Sequential(*(Block(WIDTH) for _ in range(BLOCKS)), nn.Linear(WIDTH, CLASSES, bias=False))
    labels = torch.arange(ROWS) % CLASSES
    return module, (torch.randn(ROWS, WIDTH),), lambda y: nn.functional.cross_entropy(y, labels)


def parallel(module, mesh):
    """The first matrix of a block is divided along its columns, the second along its rows."""
    for block in module[:BLOCKS]:
        parallelize_module(block, mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})


def simple_fsdp():
    """Every parameter is divided, and gathered where it is used."""
    module, batch, loss = made()
    mesh = init_device_mesh("cpu", (ranks(),), mesh_dim_names=("fsdp",))
    return sharded(module, mesh, whole(module)), batch, loss


def tensor_parallel():
    module, batch, loss = made()
    parallel(module, init_device_mesh("cpu", (ranks(),), mesh_dim_names=("tp",)))
    return module, batch, loss


def both():
    """Two ranks share a matrix, as in ``tensor_parallel``; each half is divided over the others, and gathered."""
    module, batch, loss = made()
    mesh = init_device_mesh("cpu", (ranks() // 2, 2), mesh_dim_names=("fsdp", "tp"))
    full = whole(module)
    parallel(module, mesh["tp"])
    return sharded(module, mesh, full, mesh["tp"]), batch, loss
