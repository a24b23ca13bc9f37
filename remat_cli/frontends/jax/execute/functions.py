"""Loads the functions in a document, and compiles them when they are first called."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from remat_cli.errors import ExecutionFailed, UsageError, Worded
from remat_cli.frontends.captured.origin import damaged
from remat_cli.frontends.jax.document import ArraySpec, Step
from remat_cli.frontends.jax.installed import device_named
from remat_cli.frontends.jax.private import module_of, stable_calls
from remat_cli.printable import printable

_CALL = re.compile(r'custom_call\s+@(?:"([^"]*)"|([\w.$-]+))|call_target_name\s*=\s*"([^"]*)"')
_HARMLESS = frozenset({"Sharding", "annotate_device_placement", "mhlo.topk", "mhlo.erf", "chlo.top_k"})


@dataclass(slots=True, weakref_slot=True)
class Function:
    """A function of a document. It is compiled once, for the types that it states, whatever arrays come.

    Equal functions of several plans are one object as long as one of the plans is in use: compiling takes most of the
    time before a first step.

    Attributes:
        exported: The function as JAX reads it.
        device: Kind of device that it runs on.
        reads: The arrays that it reads.
        makes: The arrays that it makes.
    """

    exported: Any
    device: str
    reads: tuple[ArraySpec, ...]
    makes: tuple[ArraySpec, ...]
    _compiled: Any = None

    def compiled(self) -> Any:
        """The compiled function: call it with arrays on the device."""
        if self._compiled is None:
            import jax
            import jax.numpy as jnp

            place = jax.sharding.SingleDeviceSharding(device_named(self.device))
            structs = [jax.ShapeDtypeStruct(s.shape, jnp.dtype(s.dtype), sharding=place) for s in self.reads]
            with wide_numbers():
                self._compiled = jax.jit(self.exported.call).lower(*structs).compile()
        return self._compiled

    def __call__(self, *arrays: Any) -> Any:
        """The arrays that it makes."""
        return (self._compiled or self.compiled())(*arrays)


_SHARED: WeakValueDictionary[tuple[bytes, str], Function] = WeakValueDictionary()
"""The functions in use, by their text and device."""


def wide_numbers() -> AbstractContextManager[Any]:
    """A context in which JAX makes arrays of 64 bits if asked to; functions state the types of all their numbers."""
    import jax

    context: AbstractContextManager[Any] = jax.enable_x64(True)
    return context


@dataclass(slots=True)
class Loaded:
    """The functions of a step, ready to be called.

    Attributes:
        step: The step.
        device: Kind of device that they run on.
        functions: Every function.
    """

    step: Step
    device: str
    functions: list[Function] = field(default_factory=list)


def load(step: Step, device: str) -> Loaded:
    """The functions of ``step`` for a device.

    Raises:
        UsageError: If the document was damaged, or a function is for another device, or calls what JAX does not
            promise to keep: that might run anything.
        ExecutionFailed: If this JAX cannot read a function.
    """
    loaded = Loaded(step, device)
    for number, written in enumerate(step.functions):
        function = _SHARED.get((written, device))
        if function is None:
            function = _SHARED[written, device] = _read(step, written, number, device)
        loaded.functions.append(function)
    for index, operation in enumerate(step.operations):
        function = loaded.functions[operation.function]
        if (_bare(step.read_specs(index)), _bare(operation.values)) != (_bare(function.reads), _bare(function.makes)):
            at = f"node {step.graph.nodes[index].id}"
            raise damaged(step.graph, at, "its function reads or makes arrays of other types or shapes")
    return loaded


def _read(step: Step, written: bytes, number: int, device: str) -> Function:
    """The function ``number`` of ``step``; see :func:`load` for errors."""
    import jax

    try:
        exported = module_of(written)
    except Exception as error:  # whatever is in the document
        words = printable(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise ExecutionFailed(
            f"JAX cannot read function {number} of the graph {step.graph.name}: {words[:300]}",
            hint=f"it was written by JAX {step.jax}, and this is {jax.__version__}: export it again",
        ) from error
    at = f"metadata.functions[{number}]"
    if device not in exported.platforms:
        raise UsageError(
            f"the graph {step.graph.name} was exported for {' and '.join(exported.platforms)}, not {device}",
            hint=Worded(f'export it again for device="{device}"', f"export it again with --device {device}"),
        )
    if exported.nr_devices != 1 or exported.ordered_effects or exported.unordered_effects:
        raise damaged(step.graph, at, "it is not for one device, or has side effects")
    _require_known_calls(step, exported, at)
    return Function(exported, device, _specs(exported.in_avals), _specs(exported.out_avals))


def _require_known_calls(step: Step, exported: Any, at: str) -> None:
    """Check that a function calls only library functions that JAX itself promises to keep."""
    text = exported.mlir_module()
    if "custom_call" not in text:
        return
    allowed = stable_calls() | _HARMLESS
    for match in _CALL.finditer(text):
        name = next(name_part for name_part in match.groups() if name_part is not None)
        if name not in allowed:
            raise damaged(step.graph, at, f"it calls {name}, which is no function that JAX keeps")


def _specs(avals: Any) -> tuple[ArraySpec, ...]:
    return tuple(ArraySpec(str(aval.dtype), tuple(map(int, aval.shape))) for aval in avals)


def _bare(specs: tuple[ArraySpec, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """Types and shapes of the numbers, without the generators of keys."""
    return [(spec.dtype, spec.shape) for spec in specs]
