"""Converts arguments of operators between PyTorch and documents; floating-point numbers keep every bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from remat_cli.errors import CaptureFailed, ExecutionFailed
from remat_cli.frontends.torch import types
from remat_cli.frontends.torch.compat.distributed import COMMUNICATING
from remat_cli.frontends.torch.compat.operators import is_operator, schema
from remat_cli.frontends.torch.document import (
    ITEM_BYTES,
    NAMED,
    Argument,
    Complex,
    Data,
    Float,
    Named,
    Tensor,
    TensorSpec,
)
from remat_cli.graph.quoting import quote

_REACHES_OUT = ("aten::from_file",)
"""Operators that return tensors and open files."""


def encode(value: Any, tensor: Callable[[Any], Argument]) -> Argument:
    """``value`` as an argument for a document.

    Args:
        value: An argument of an operator, as FX has it, or as the operator gets it.
        tensor: Makes the expression for an FX node, or for a tensor.

    Raises:
        CaptureFailed: If a document cannot represent it.
    """
    import torch

    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, torch.fx.Node | torch.Tensor):
        return tensor(value)
    if isinstance(value, list | tuple):
        return tuple(encode(item, tensor) for item in value)
    if isinstance(value, float):
        return Float(value.hex())
    if isinstance(value, complex):
        return Complex(value.real.hex(), value.imag.hex())
    if isinstance(value, torch.device):
        return Named("device", value.type)
    for kind in NAMED:
        if isinstance(value, getattr(torch, kind)):
            return Named(kind, str(value).removeprefix("torch."))
    raise CaptureFailed(f"an operator has an argument that cannot be written down: {type(value).__name__} {value!r}")


def decode(value: Argument, tensor: Callable[[Tensor], Any], devices: Mapping[str, str] = MappingProxyType({})) -> Any:
    """The inverse of :func:`encode`.

    Args:
        value: An argument of a document.
        tensor: Makes the object that an expression stands for.
        devices: Replacements for kinds of devices among the arguments; other devices stay.

    Raises:
        ExecutionFailed: If this torch lacks a name.
    """
    match value:
        case Float(text):
            return float.fromhex(text)
        case Complex(real, imag):
            return complex(float.fromhex(real), float.fromhex(imag))
        case Named("device", name):
            return _device(devices.get(name, name))
        case Named(kind, name):
            return _named(kind, name)
        case tuple():
            return [decode(item, tensor, devices) for item in value]
        case None | bool() | int() | str():
            return value
        case _:
            return tensor(value)


def _device(name: str) -> Any:
    import torch

    try:
        return torch.device(name)
    except RuntimeError:
        raise ExecutionFailed(f"torch {torch.__version__} has no device {quote(name)}") from None


def _named(kind: str, name: str) -> Any:
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, getattr(torch, kind)):
        raise ExecutionFailed(f"torch {torch.__version__} has no {kind} {quote(name)}")
    return found


def dtype_named(name: str) -> Any:
    """``torch.float32`` for ``float32``.

    Raises:
        ExecutionFailed: If this torch has no such type.
    """
    return _named("dtype", name)


def dtype_name(dtype: Any) -> str:
    """``float32`` for ``torch.float32``.

    Raises:
        CaptureFailed: If documents hold no tensors of that type.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise CaptureFailed(f"there is a tensor of type {name}, which no plan supports", hint="use another type")
    return name


def spec_of(tensor: types.Tensor) -> TensorSpec:
    """Type and layout of a tensor."""
    return TensorSpec(dtype_name(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()))


def empty_tensor(spec: TensorSpec, device: types.Device | str) -> types.Tensor:
    """A tensor of that type and layout, whose numbers may be anything."""
    import torch

    return torch.empty_strided(spec.shape, spec.stride, dtype=dtype_named(spec.dtype), device=device)


def operator_named(name: str) -> types.Operator:
    """The operator of ``aten.add.Tensor``.

    Only operators that compute tensors from their arguments are allowed, since captured graphs hold no others. A
    document from a stranger must not be able to open files or to write into weights.

    Raises:
        ExecutionFailed: If this torch has no such operator (one from a library has to be imported first), or it does
            more than compute.
    """
    import torch

    found: Any = torch.ops
    try:
        for part in _parts(name):
            found = getattr(found, part)
    except (AttributeError, RuntimeError):  # torch.ops raises either
        found = None
    if not is_operator(found):
        raise ExecutionFailed(
            f"torch {torch.__version__} has no operator {quote(name)}",
            hint="it may belong to another version, or to a library that has to be imported first",
        )
    stated = schema(found)
    if stated.is_mutable or stated.name in _REACHES_OUT or not any("Tensor" in str(r.type) for r in stated.returns):
        raise ExecutionFailed(
            f"the operator {quote(name)} does more than compute tensors, and no graph of remat holds it",
            hint="do not trust this document: export the graph again",
        )
    return found


def _parts(name: Any) -> list[str]:
    """Namespace, name and overload; if ``name`` is not an operator's, parts that no operator has."""
    parts = name.split(".") if isinstance(name, str) else []
    hidden = len(parts) != 3 or (parts[0].startswith("_") and parts[0] not in COMMUNICATING)
    if hidden or not all(part.isidentifier() for part in parts):
        return ["no_such_operator", "default", "default"]
    return parts


def encode_data(tensor: types.Tensor) -> Data:
    """The document of a small tensor, with its data in row-major order."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return Data(dtype_name(tensor.dtype), tuple(tensor.shape), bytes(flat.tolist()))


def decode_data(value: Data, device: str) -> types.Tensor:
    """The tensor that :func:`encode_data` wrote, on ``device``."""
    import torch

    dtype = dtype_named(value.dtype)
    if not value.data:
        return torch.empty(value.shape, dtype=dtype, device=device)
    return torch.frombuffer(bytearray(value.data), dtype=dtype).reshape(value.shape).to(device)
