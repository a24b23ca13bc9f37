"""Names for types of PyTorch, which is imported where it is needed and not before.

To the type checker they are ``Any``, as all of PyTorch is (see ``pyproject.toml``); to the reader they say what a thing
is. Where a thing may be anything, such as what a user's module returns, the annotation is ``Any`` itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

Tensor: TypeAlias = "torch.Tensor"
Storage: TypeAlias = "torch.UntypedStorage"
Module: TypeAlias = "torch.nn.Module"
Device: TypeAlias = "torch.device"
Generator: TypeAlias = "torch.Generator"
FxGraph: TypeAlias = "torch.fx.Graph"
FxNode: TypeAlias = "torch.fx.Node"
GraphModule: TypeAlias = "torch.fx.GraphModule"
AutogradNode: TypeAlias = "torch.autograd.graph.Node"
FakeMode: TypeAlias = Any
"""A ``FakeTensorMode``, under which tensors have no data."""
DispatchMode: TypeAlias = Any
"""A ``TorchDispatchMode``, or a class of such modes."""
Context: TypeAlias = Any
"""A context manager of PyTorch."""
Operator: TypeAlias = Any
"""An ``OpOverload``, which is one overload of an operator of ``torch.ops``."""
Scheduler: TypeAlias = Any
"""Inductor's scheduler of one graph."""
SchedulerNode: TypeAlias = Any
"""One or several operations that Inductor's scheduler runs as one."""
InductorTensor: TypeAlias = Any
"""A ``TensorBox`` of Inductor: a result while a graph is lowered."""
