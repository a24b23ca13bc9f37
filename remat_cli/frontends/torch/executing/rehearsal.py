"""Checks a graph from a document before anything of it runs.

Operators of PyTorch trust their arguments: some read or write outside of memory if sizes do not agree. So every
operation first runs once on tensors without data, which takes no memory, and whose results have sizes, strides and
storages all the same. Results have to be as the document says, and nothing may lie outside of its storage.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from remat_cli.errors import ExecutionFailed, RematError, UsageError, Worded
from remat_cli.frontends.captured.origin import damaged
from remat_cli.frontends.torch.codec import decode_data, dtype_named, spec_of
from remat_cli.frontends.torch.document import ITEM_BYTES, Argument, Operation, Returned, Step, TensorSpec, View
from remat_cli.frontends.torch.executing.pairing import Calls
from remat_cli.frontends.torch.executing.program import Tensors, call_function, result_function, words
from remat_cli.frontends.torch.operators import OPERATORS
from remat_cli.frontends.torch.private import dispatch_mode, exact_sizes, new_fake_mode, silent_fakes
from remat_cli.frontends.torch.tensors import storage_bytes, tensors_in
from remat_cli.graph.quoting import quote

_FLOATING = tuple(name for name in ITEM_BYTES if "float" in name)


def rehearse(step: Step, device: str, *, force: bool = False, libraries: Sequence[str] = ()) -> None:
    """Check all operations and results of a graph.

    Args:
        step: A graph that this frontend made.
        device: Device that it will run on.
        force: Whether strides may differ, because the graph was exported for another PyTorch or device.
        libraries: Python modules to import; operators of their packages are accepted besides PyTorch's.

    Raises:
        UsageError: If a library cannot be imported, or a result has another type, shape or strides than the document
            says, with the place.
        ExecutionFailed: If an operator is none that graphs hold, or does not take its arguments, with the node.
    """
    _require_operators(step, _namespaces(libraries))
    _Rehearsal(step, device, force).run()


def _namespaces(libraries: Sequence[str]) -> frozenset[str]:
    """Import these modules; the namespaces of operators that belong to their packages.

    Raises:
        UsageError: If one cannot be imported.
    """
    for name in libraries:
        try:
            importlib.import_module(name)
        except Exception as error:  # a library may do anything while it is imported
            raise UsageError(f"the library {name} cannot be imported: {type(error).__name__}: {error}") from error
    return frozenset(name.partition(".")[0] for name in libraries)


def _require_operators(step: Step, namespaces: frozenset[str]) -> None:
    """Check that all operators are among those that capturing leaves, or in ``namespaces``."""
    for node, operation in enumerate(step.operations):
        if node != step.tangents:
            _require_known(operation, f"node {step.graph.nodes[node].id}", namespaces)
    for number, result in enumerate(step.results):
        _require_views(result.tensor, f"metadata.results[{number}]", namespaces)


_TRUST = "if you trust both; if this graph should hold no operators of other libraries, do not trust it"


def _require_known(called: Operation | View, where: str, namespaces: frozenset[str]) -> None:
    if called.call not in OPERATORS and str(called.call).partition(".")[0] not in namespaces:
        raise ExecutionFailed(
            f"{where} calls {quote(called.call)}, which is not one of the operators that graphs hold",
            hint=Worded(
                f"name the module that defines it in libraries {_TRUST}",
                f"name the module that defines it with --library {_TRUST}",
            ),
        )
    for argument in (*called.args, *called.kwargs.values()):
        _require_views(argument, where, namespaces)


def _require_views(argument: Argument, where: str, namespaces: frozenset[str]) -> None:
    if isinstance(argument, View):
        _require_known(argument, where, namespaces)
    elif isinstance(argument, tuple):
        for item in argument:
            _require_views(item, where, namespaces)


class _Rehearsal:
    """Runs a step on tensors without data."""

    def __init__(self, step: Step, device: str, force: bool) -> None:
        self._step = step
        self._device = device
        self._force = force
        self._values: dict[int, list[Any]] = {}
        self._calls = Calls()

    def run(self) -> None:
        import torch

        step = self._step
        real = [decode_data(constant, "cpu") for constant in step.constants]
        with torch.no_grad(), silent_fakes(), exact_sizes(), new_fake_mode(), _checks()(self._calls):
            places = {number: self._tensor(place.spec) for number, place in enumerate(step.places)}
            constants = {number: torch.empty_like(data, device=self._device) for number, data in enumerate(real)}
            for index in range(len(step.operations)):
                self._operation(index, places, constants)
            for number in range(len(step.results)):
                self._result(number, places, constants)

    def _tensor(self, spec: TensorSpec) -> Any:
        import torch

        return torch.empty_strided(spec.shape, spec.stride, dtype=dtype_named(spec.dtype), device=self._device)

    def _operation(self, index: int, places: dict[int, Any], constants: dict[int, Any]) -> None:
        step, operation = self._step, self._step.operations[index]
        if index == step.tangents:
            made = [[self._tensor(tensor.spec) for tensor in tensors] for tensors in operation.values]
        else:
            made = self._results(index, places, constants)
        self._values |= dict(zip(step.graph.values_of(index), made, strict=True))

    def _results(self, index: int, places: dict[int, Any], constants: dict[int, Any]) -> list[list[Any]]:
        """The tensors in each value that a node makes."""
        node, operation = self._step.graph.nodes[index], self._step.operations[index]
        values = {value: self._values[value] for value in node.inputs}
        try:
            result = call_function(self._step, index, self._device, Tensors(places, constants, values))()
        except RematError:
            raise
        except Exception as error:  # operators may raise anything
            raise self._failed(f"node {node.id} ({operation.call})", error) from error
        found = dict(tensors_in(result))
        return [
            [self._returned(found.get(tensor.item), tensor, f"node {node.id}: values[{k}]") for tensor in tensors]
            for k, tensors in enumerate(operation.values)
        ]

    def _returned(self, tensor: Any, told: Returned, at: str) -> Any:
        """``tensor``, which a node returned, in the type that the document says."""
        if tensor is None:
            raise damaged(self._step.graph, at, f"the operator returns no tensor {told.item}")
        found, wanted = spec_of(tensor), told.spec
        # Some operators keep a result in another type than their fake tensor says; see ``retained_bytes``.
        same_type = found.dtype == wanted.dtype or {found.dtype, wanted.dtype} <= set(_FLOATING)
        if not same_type or found.shape != wanted.shape or (found.stride != wanted.stride and not self._force):
            raise damaged(self._step.graph, at, f"the operator returns {_words(found)}, and it says {_words(wanted)}")
        if found.dtype == wanted.dtype:
            return tensor
        real = self._tensor(wanted)
        self._calls.stands_for(real, tensor)
        return real

    def _result(self, number: int, places: dict[int, Any], constants: dict[int, Any]) -> None:
        at = f"metadata.results[{number}].tensor"
        try:
            made = result_function(self._step, number, self._device, Tensors(places, constants, self._values))()
        except RematError:
            raise
        except Exception as error:  # operators may raise anything
            raise self._failed(at, error) from error
        if [item for item, _ in tensors_in(made)] != [None]:
            raise damaged(self._step.graph, at, "it is not a tensor")

    def _failed(self, where: str, error: Exception) -> ExecutionFailed:
        return ExecutionFailed(
            f"{where} cannot run: {words(error)}",
            hint="nothing was run: export the graph again, on the device that it is for",
        )


def _words(spec: TensorSpec) -> str:
    return f"{spec.dtype} {list(spec.shape)} with strides {list(spec.stride)}"


def _checks() -> Any:
    """A mode under which results of operators have to lie inside their storages, and backward operators have partners.

    Use it as a context manager; its argument is what is known of calls so far.
    """

    class Checks(dispatch_mode()):  # type: ignore[misc]  # torch is Any to the type checker
        def __init__(self, calls: Calls) -> None:
            super().__init__()
            self.calls = calls

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not self.calls.fits(function, args, kwargs or {}):
                raise RuntimeError("it trusts its arguments, and they do not belong together")
            result = function(*args, **(kwargs or {}))
            self.calls.add(function, args, kwargs or {}, result)
            for _, tensor in tensors_in(result):
                end = tensor.storage_offset() * tensor.dtype.itemsize + spec_of(tensor).bytes
                if end > storage_bytes(tensor):
                    raise RuntimeError(
                        f"{function} reaches up to byte {end} of a storage of {storage_bytes(tensor)} bytes"
                    )
            return result

    return Checks
