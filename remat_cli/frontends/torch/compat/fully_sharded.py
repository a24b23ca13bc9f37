"""``fully_shard`` (FSDP2): the parameters of its units and their types, its settings, and copies without its hooks."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from remat_cli.frontends.torch.types import Module, Tensor


@dataclass(frozen=True, slots=True)
class ShardedParameter:
    """A parameter that a unit gathers.

    Attributes:
        sharded: The DTensor, with the part of this rank.
        shape: The shape of the whole parameter.
        stride: Its strides when it is gathered.
        gathered: The type in which it is gathered and computed with.
        reduced: The type in which its gradient is reduced.
        part: Elements of each rank's part, with padding.
        ranks: The number of ranks.
        dimension: The name of the dimension of the mesh that these are; empty if it has none.
    """

    sharded: Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    gathered: Any
    reduced: Any
    part: int
    ranks: int
    dimension: str

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the gathered parameter, with padding."""
        return self.part * self.ranks * int(self.gathered.itemsize)

    @property
    def reduced_elements(self) -> int:
        """Elements of its gradient where it is reduced, with padding."""
        rows = math.ceil(self.shape[0] / self.ranks) * self.ranks
        return rows * math.prod(self.shape[1:])


def is_unit(module: Module) -> bool:
    """Whether ``fully_shard`` was called with ``module``."""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def units_of(module: Module) -> list[tuple[str, Module]]:
    """The units in ``module`` with their names, itself included, in the order of modules."""
    return [(name, part) for name, part in module.named_modules() if is_unit(part)]


def joint_units(module: Module) -> list[list[str]]:
    """The names of the modules in ``module`` that are one unit together: ``fully_shard`` was called with a list.

    They have one state in common, and run as they are, without a plan.
    """
    found: dict[int, list[str]] = {}
    for name, unit in units_of(module):
        state = unit._get_fsdp_state()
        if len(state._modules) > 1:
            found.setdefault(id(state), []).append(name)
    return list(found.values())


def parameters_of(unit: Module) -> list[ShardedParameter]:
    """The parameters that a unit gathers.

    From them, and from the settings of units, it is known before a step what it gathers, holds and reduces.
    """
    found = []
    for group in unit._get_fsdp_state()._fsdp_param_groups:
        for one in group.fsdp_params:
            mesh = group.mesh_info.mesh
            own, policy = one.sharded_param.dtype, group.mp_policy
            cast = policy.param_dtype is not None and own.is_floating_point
            gathered = policy.param_dtype if cast else own
            reduced = gathered if policy.reduce_dtype in (None, policy.param_dtype) else policy.reduce_dtype
            found.append(
                ShardedParameter(
                    one.sharded_param,
                    tuple(one._orig_size),
                    tuple(one._contiguous_orig_stride),
                    gathered,
                    reduced,
                    int(one._sharded_param_data.numel()),
                    int(mesh.size()),
                    (mesh.mesh_dim_names or ("",))[0],
                )
            )
    return found


def casts(unit: Module) -> tuple[Any, Any]:
    """The types to which a unit casts floating-point inputs and results; None for as they are.

    Its own hooks cast them, which copies made in :func:`without_hooks` lack.
    """
    policy = unit._get_fsdp_state()._mp_policy
    return policy.param_dtype if policy.cast_forward_inputs else None, policy.output_dtype


def cast(tree: Any, dtype: Any) -> Any:
    """Nested containers with all floating-point tensors cast, as FSDP2 does it; as they are if ``dtype`` is None."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import _cast_fp_tensor
    from torch.distributed.utils import _apply_to_tensors

    return tree if dtype is None else _apply_to_tensors(partial(_cast_fp_tensor, dtype), tree)


def reshards(unit: Module) -> bool:
    """Whether a unit is set to free its gathered parameters behind its forward pass."""
    return any(group._reshard_after_forward for group in unit._get_fsdp_state()._fsdp_param_groups)


def keeps_as_root(root: Module) -> bool:
    """Whether a module around the units keeps its own gathered parameters up to the end of the step.

    FSDP2 keeps them if ``fully_shard`` was not told what to do: then ``_auto_reshard_after_forward`` is true.
    """
    return bool(root._get_fsdp_state()._auto_reshard_after_forward) or not reshards(root)


def unusual(unit: Module) -> str:
    """A setting of a unit that changes what it holds and when, in words; empty if all is as ``fully_shard`` sets it.

    ``fit`` refuses units with such a setting, since plans do not count what it takes.
    """
    from torch.distributed.fsdp import OffloadPolicy
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo

    state = unit._get_fsdp_state()
    if state._states_to_forward_prefetch or state._states_to_backward_prefetch:
        return "set_modules_to_forward_prefetch or set_modules_to_backward_prefetch"
    if len(state._fsdp_param_groups) > 1:
        return "parameters on several meshes"
    for group in state._fsdp_param_groups:
        reasons = {
            "sharding on some ranks and replication on others (HSDP)": isinstance(group.mesh_info, HSDPMeshInfo)
            or not isinstance(group.mesh_info, FSDPMeshInfo),
            "an offload policy": type(group.offload_policy) is not OffloadPolicy,
            "reshard_after_forward as a number": group._reshard_after_forward and group._use_post_forward_mesh,
            "shards along another dimension than the first": any(p.fsdp_placement.dim for p in group.fsdp_params),
            "tensor parallel parameters": any(p.is_dtensor for p in group.fsdp_params),
            "an extension of its gathers": any(hasattr(p._sharded_local_tensor, _HOOK) for p in group.fsdp_params),
            "a hook of its reductions": group._all_reduce_hook is not None,
            "collectives of its own": not isinstance(group._all_gather_comm, DefaultAllGather)
            or not isinstance(group._reduce_scatter_comm, DefaultReduceScatter),
            "gradients without reduction": not group.reduce_grads or not group.reshard_after_backward,
            "unshard_async_op": group.unshard_async_op,
            "set_unshard_in_backward": not group.unshard_in_backward,
            "set_reduce_scatter_max_input_buffers": group.reduce_scatter_max_input_buffers != 1,
            "set_reduce_scatter_unused_params": group.reduce_scatter_unused_params,
            "one rank": group.mesh_info.mesh.size() == 1,
        }
        found = next((words for words, holds in reasons.items() if holds), "")
        if found:
            return found
    return ""


_HOOK = "fsdp_pre_all_gather"


@contextlib.contextmanager
def without_hooks(module: Module) -> Iterator[None]:
    """Within this context, ``module`` and its parts are what they were before ``fully_shard``, but for parameters.

    ``copy.deepcopy`` of it works then, which FSDP2 forbids, and such copies are captured. ``fully_shard`` has made a
    class with the bases ``FSDPModule`` and the former class, which is therefore third in ``__mro__``; a handle has
    ``handles`` if several modules are one unit.
    """
    from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY

    hooks = ("_forward_pre_hooks", "_forward_hooks", "_forward_pre_hooks_with_kwargs")
    states = (STATE_KEY, REGISTRY_KEY)
    before = []
    for _, unit in units_of(module):
        state = unit._get_fsdp_state()
        handles = (state._pre_forward_hook_handle, state._post_forward_hook_handle)
        own = {one.id for handle in handles for one in getattr(handle, "handles", (handle,))}
        there = {name: unit.__dict__[name] for name in (*hooks, *states) if name in unit.__dict__}
        before.append((unit, type(unit), own, there))
    try:
        for unit, kind, own, there in before:
            for name in hooks:
                unit.__dict__[name] = OrderedDict((k, hook) for k, hook in there[name].items() if k not in own)
            for name in states:
                unit.__dict__.pop(name, None)
            unit.__class__ = kind.__mro__[2]
        yield
    finally:
        for unit, kind, _, there in before:
            unit.__class__ = kind
            unit.__dict__.update(there)
