"""Arguments of operators to JSON values and back, exactly: what goes out comes in again bit for bit.

Plain JSON stands for None, booleans, integers, text and lists. Everything else is an object with one key that says
what it is: ``{"float": "0x1.8p+1"}``, ``{"dtype": "float32"}``. Tensors are expressions, see
:mod:`remat_cli.frontends.torch.capturing.lower`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from remat_cli.errors import CaptureFailed, ExecutionFailed
from remat_cli.frontends.torch.private import is_operator, schema

_NAMED = ("dtype", "layout", "memory_format")
_REACHES_OUT = ("aten::from_file",)
"""Operators with tensors as results that open files."""


def encode(value: Any, tensor: Callable[[Any], Any]) -> Any:
    """``value`` as a JSON value.

    Args:
        value: An argument of an operator, as FX has it.
        tensor: Makes the JSON value of an FX node.

    Raises:
        CaptureFailed: If it is something that cannot be written down.
    """
    import torch

    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, torch.fx.Node):
        return tensor(value)
    if isinstance(value, list | tuple):
        return [encode(item, tensor) for item in value]
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    for kind in _NAMED:
        if isinstance(value, getattr(torch, kind)):
            return {kind: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": value.type}
    raise CaptureFailed(f"an operator has an argument that cannot be written down: {type(value).__name__} {value!r}")


def decode(
    value: Any, tensor: Callable[[Mapping[str, Any]], Any], devices: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """What :func:`encode` wrote down.

    Args:
        value: The JSON value.
        tensor: Makes what an expression stands for.
        devices: What stands in for devices of a kind among the arguments; others stay.

    Raises:
        ExecutionFailed: If it is not something that :func:`encode` writes.
    """
    import torch

    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, list):
        return [decode(item, tensor, devices) for item in value]
    if not isinstance(value, Mapping):
        raise ExecutionFailed(f"a payload holds {value!r}, which is nothing that remat writes")
    if "float" in value:
        return float.fromhex(value["float"])  # what is not a number in this form is a ValueError
    if "complex" in value:
        return complex(*map(float.fromhex, value["complex"]))
    if "device" in value:
        return torch.device(devices.get(value["device"], value["device"]))
    for kind in _NAMED:
        if kind in value:
            found = getattr(torch, value[kind], None)
            if not isinstance(found, getattr(torch, kind)):
                raise ExecutionFailed(f"torch {torch.__version__} has no {kind} {value[kind]}")
            return found
    return tensor(value)


def dtype_name(dtype: Any) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def operator_named(name: str) -> Any:
    """The operator of ``aten.add.Tensor``.

    Only operators that compute tensors from what they are given, as captured graphs hold them: a document that
    somebody else wrote must not be able to open files or to write into weights.

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
            f"torch {torch.__version__} has no operator {name}",
            hint="it may belong to another version, or to a library that has to be imported first",
        )
    stated = schema(found)
    if stated.is_mutable or stated.name in _REACHES_OUT or not any("Tensor" in str(r.type) for r in stated.returns):
        raise ExecutionFailed(
            f"the operator {name} does more than compute tensors, and no graph of remat holds it",
            hint="do not trust this document: export the graph again",
        )
    return found


def _parts(name: Any) -> list[str]:
    """Namespace, name and overload; nothing for what is no name of an operator."""
    parts = name.split(".") if isinstance(name, str) else []
    if len(parts) != 3 or not all(part.isidentifier() for part in parts) or parts[0].startswith("_"):
        return ["no_such_operator", "default", "default"]
    return parts


def encode_data(tensor: Any) -> dict[str, Any]:
    """A small tensor with its data, row by row."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return {
        "dtype": dtype_name(tensor.dtype),
        "shape": list(tensor.shape),
        "data": base64.b64encode(bytes(flat.tolist())).decode("ascii"),
    }


def decode_data(value: Mapping[str, Any], device: str) -> Any:
    """The tensor that :func:`encode_data` wrote down, on ``device``.

    Raises:
        ExecutionFailed: If type, shape and data do not agree.
    """
    import torch

    raw = bytearray(base64.b64decode(value["data"], validate=True))
    dtype = getattr(torch, value["dtype"], None)
    if not isinstance(dtype, torch.dtype) or math.prod(value["shape"]) * dtype.itemsize != len(raw):
        raise ExecutionFailed("a constant in the graph has another size than its data", hint="export the graph again")
    if not raw:
        return torch.empty(value["shape"], dtype=dtype, device=device)
    return torch.frombuffer(raw, dtype=dtype).reshape(value["shape"]).to(device)
