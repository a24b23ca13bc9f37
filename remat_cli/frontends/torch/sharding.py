"""Divides the parameters of a module over the ranks of a world: over those that share matrices, then over the others.

A parameter that is divided over ranks with batches of their own is a DTensor, and its module is of a class that gathers
it where it is read, as SimpleFSDP does. Matrices are shared by the tensor-parallel plan that a model of Transformers
has. No data moves: rank 0 is at hand, whose parts are the largest, and takes its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, cast

from remat_cli.errors import UsageError
from remat_cli.frontends.ranks import FSDP, FULL, TP, Ranks
from remat_cli.frontends.torch.compat.distributed import is_divided, local_tensor
from remat_cli.frontends.torch.types import Module, Tensor

_PARTIAL = "replicated_with_grad_allreduce"
"""A parameter that every rank has whole, and reads for its own part of a result."""
_WHOLE = ("replicate", _PARTIAL)
_EXPERTS = "a router decides which expert takes which tokens, so that sizes depend on numbers"


def divided(module: Module, ranks: Ranks) -> Module:
    """``module`` with its parameters divided, within a world of ``ranks``.

    Raises:
        UsageError: If it is divided already, or has no plan for ranks that share matrices.
    """
    from torch.distributed.device_mesh import init_device_mesh

    if any(map(is_divided, module.parameters())):
        raise UsageError(
            "the parameters of this module are divided over ranks already (DTensors)",
            hint="leave ranks out, export the step of a rank, and ask for its graph",
        )
    mesh = init_device_mesh("cpu", (ranks.replicas, ranks.tp), mesh_dim_names=(FSDP, TP))
    summed = _shared(module, mesh[TP], ranks.tp) if ranks.tp > 1 else set()
    over = mesh[FSDP] if ranks.shard == FULL and ranks.replicas > 1 else None
    if summed or over is not None:
        _gathered_when_read(module, over, mesh[TP], summed)
    return module


def _gathered_when_read(module: Module, over: Any, tp: Any, summed: set[int]) -> None:
    """Divide all parameters over the mesh ``over``, if it is not None; modules gather them when they read them."""
    import torch

    done: dict[int, tuple[Tensor, _Reading]] = {}
    for part in list(module.modules()):
        readings = []
        for name, parameter in list(part._parameters.items()):
            if parameter is None or (over is None and id(parameter) not in summed):
                continue
            if id(parameter) not in done:  # tied parameters stay tied
                placements = parameter.placements if is_divided(parameter) else None
                kept = (
                    parameter if over is None else torch.nn.Parameter(_part(parameter, over), parameter.requires_grad)
                )
                done[id(parameter)] = kept, (over is not None, placements, id(parameter) in summed)
            part._parameters[name], reading = done[id(parameter)]
            readings.append((name, reading))
        if readings:
            part.__class__ = _gathering(cast(Hashable, type(part)), tuple(readings), tp)


_Reading = tuple[bool, tuple[Any, ...] | None, bool]
"""How a parameter is read: whether it is gathered, how ranks share it (None if they do not), and whether these sum up
its gradient."""


def _part(parameter: Tensor, mesh: Any) -> Tensor:
    """What rank 0 has of a parameter, as a DTensor; all of it if it has no dimensions."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    whole = local_tensor(parameter).detach()
    if not whole.ndim:
        return DTensor.from_local(whole, mesh, [Replicate()], run_check=False)
    own = whole.chunk(mesh.size())[0].clone()
    return DTensor.from_local(own, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())


@cache
def _gathering(kind: Any, readings: tuple[tuple[str, _Reading], ...], tp: Any) -> type:
    """A class of modules like ``kind``, with other ways to read some parameters."""
    return type(kind.__name__, (kind,), {name: property(_reader(name, *reading, tp)) for name, reading in readings})


def _reader(
    name: str, gathers: bool, placements: tuple[Any, ...] | None, summed: bool, tp: Any
) -> Callable[[Module], Tensor]:
    from torch.distributed.tensor import DTensor, Partial, Replicate

    def read(module: Module) -> Tensor:
        parameter = module._parameters[name]
        if gathers:
            parameter = parameter.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
            if placements is not None:
                return DTensor.from_local(parameter, tp, placements, run_check=False)
        if summed:
            shared = DTensor.from_local(parameter, tp, [Replicate()], run_check=False)
            return shared.to_local(grad_placements=[Partial()])
        return parameter

    return read


def _shared(module: Module, mesh: Any, tp: int) -> set[int]:
    """Share matrices by the model's own plan; the parameters whose gradients are sums over the ranks, by identity.

    Raises:
        UsageError: If it has no plan, or one that cannot be followed here.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    kind = type(module).__name__
    plan: Mapping[str, str] = getattr(module, "tp_plan", None) or {}
    planned = [(path, part, style) for path, part in module.named_modules() if (style := plan.get(_pattern(path)))]
    if not planned:
        raise UsageError(
            f"{kind} has no plan for ranks that share matrices (tensor parallel)",
            hint="leave tp out; configurations of Transformers have one, as base_model_tp_plan",
        )
    _require_heads(module, tp)
    named = [(path, style) for path, _ in module.named_parameters() if (style := plan.get(_pattern(path)))]
    styles = _styles()
    for path, style in [*named, *((path, style) for path, _, style in planned)]:
        if (path, style) in named or style not in {*styles, *_WHOLE}:
            reason = f": {_EXPERTS}" if "expert" in path else ""
            raise UsageError(
                f'the tensor-parallel plan of {kind} says "{style}" of {path}, which is not planned{reason}',
                hint="leave tp out",
            )
    tied: dict[int, Tensor] = {}
    for path, part, style in planned:
        before = dict(part._parameters)
        if style in styles:
            parallelize_module(part, mesh, styles[style]())
        for name in (name for name, parameter in before.items() if style in styles and parameter is not None):
            now = part._parameters[name]
            part._parameters[name] = first = tied.setdefault(id(before[name]), now)
            if first.placements != now.placements:
                raise UsageError(
                    f"the tensor-parallel plan of {kind} divides {path}.{name} and what it is tied to in two ways",
                    hint="leave tp out",
                )
    return {id(p) for _, part, style in planned if style == _PARTIAL for p in part.parameters(recurse=False)}


def _pattern(path: str) -> str:
    """A path as plans name it, for all layers."""
    return re.sub(r"\d+", "*", path)


def _styles() -> dict[str, Callable[[], Any]]:
    """What the words of plans mean. Of packed matrices, each is divided: as many columns as of one matrix."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    return {
        "colwise": ColwiseParallel,
        "packed_colwise": ColwiseParallel,
        "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
        "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
        "rowwise": RowwiseParallel,
        "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
        "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    }


def _require_heads(module: Module, tp: int) -> None:
    """Refuse a number of ranks that does not divide the heads of attention."""
    config = module.config.get_text_config()
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads % tp:
            raise UsageError(f"{tp} ranks cannot share {heads} heads ({name})", hint="choose a tp that divides them")
