"""A copy of a module and its batch whose tensors have no data: what runs under them computes nothing."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from remat_cli.frontends.torch.capturing.capture import Model, fake_mode
from remat_cli.frontends.torch.training.real_forward import uncopied


def fake_copy(model: Model) -> tuple[Model, Any]:
    """``model`` with fake tensors, and their mode. Everything else in it is copied."""
    mode = fake_mode()
    given = [*model.module.parameters(), *model.module.buffers()]
    copies = {id(tensor): mode.from_tensor(tensor) for tensor in given}
    copies |= {id(tensor): mode.from_tensor(tensor.detach()) for tensor in _computed(model.module)}
    try:
        module = copy.deepcopy(model.module, copies)
    except Exception as error:  # the user's module may hold anything
        raise uncopied(error) from error
    inputs = tuple(_fake_leaves(item, mode) for item in model.inputs)
    keywords = {key: _fake_leaves(item, mode) for key, item in model.keywords.items()}
    return Model(module, inputs, keywords, None), mode


def _computed(module: Any) -> list[Any]:
    """Tensors in a module that a computation made, as the old ``weight_norm`` does; ``deepcopy`` refuses them."""
    import torch

    held = [item for part in module.modules() for item in vars(part).values()]
    return [item for item in held if isinstance(item, torch.Tensor) and not item.is_leaf]


def _fake_leaves(tree: Any, mode: Any) -> Any:
    """Nested tuples, lists and mappings with a fake tensor in place of every tensor."""
    import torch

    if isinstance(tree, torch.Tensor):
        return mode.from_tensor(tree)
    if isinstance(tree, Mapping):
        return {key: _fake_leaves(item, mode) for key, item in tree.items()}
    if type(tree) in {list, tuple}:
        return type(tree)(_fake_leaves(item, mode) for item in tree)
    return tree
