"""A joint graph with symbols for batch and length: the same graph with numbers, and its bytes as expressions.

The graph with numbers comes from running every operator again, on tensors without data. The expressions are what
PyTorch says of the memory of every tensor; :class:`Functions` adds what kernels keep beyond that, as
:mod:`~remat_cli.frontends.aten.retained_bytes` and :mod:`~remat_cli.frontends.torch.execute.strides` do with numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.aten.program import Call, Ref, TensorType
from remat_cli.frontends.aten.retained_bytes import BAGS, REDUCED, RESHAPED, retained_like
from remat_cli.frontends.torch.capture.capture import Captured
from remat_cli.frontends.torch.capture.joint_program import joint_program
from remat_cli.frontends.torch.capture.lower import Lowering
from remat_cli.frontends.torch.capture.placeholders import joint_inputs
from remat_cli.frontends.torch.compat.aot_autograd import renumbered
from remat_cli.frontends.torch.compat.fake_tensors import exact_sizes, new_fake_mode
from remat_cli.frontends.torch.compat.symbols import expression
from remat_cli.frontends.torch.execute.strides import OTHER_STRIDES
from remat_cli.frontends.torch.tensors import mapped, tensors_in
from remat_cli.frontends.torch.types import FxNode, Tensor
from remat_cli.graph.sized import Bytes

MOST_BYTES = 1 << 48
"""Larger numbers of bytes are taken for this one, so that sums of them fit 64 bits."""
_EXACT = {
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "CeilDiv": lambda a, b: -(-a // b),
    "ModularIndexing": lambda a, b, c: a // b % c,
    "Max": lambda *items: _fold(np.maximum, items),
    "Min": lambda *items: _fold(np.minimum, items),
}
"""Functions of whole numbers in the expressions of PyTorch."""


def _fold(combine: Any, items: Sequence[Any]) -> Any:
    first, *rest = items
    for item in rest:
        first = combine(first, item)
    return first


def without_whole_slices(captured: Captured, axes: Mapping[Any, str]) -> list[Any]:
    """Remove the gradients of slices that are the whole tensor at all sizes, and return conditions for the others.

    With numbers, indexing a tensor with a slice that is the whole of it makes no operation; with symbols it does. So of
    what remains, no slice may be the whole of its tensor.
    """
    import sympy
    import torch

    names = {symbol: sympy.Symbol(axis, positive=True, integer=True) for symbol, axis in axes.items()}
    conditions = []
    for node in captured.joint.graph.find_nodes(op="call_function", target=torch.ops.aten.slice_backward.default):
        whole, dimension = node.meta["val"].shape, node.args[2]
        part = node.args[0].meta["val"].shape
        one, other = (expression(shape[dimension]).xreplace(names) for shape in (whole, part))
        if one == other:
            node.replace_all_uses_with(node.args[0])
            captured.joint.graph.erase_node(node)
        elif one.free_symbols | other.free_symbols:
            conditions.append(sympy.Ne(one, other))
    return conditions


def with_numbers(captured: Captured, numbers: Mapping[Any, int]) -> Captured:
    """A captured step with symbols as one with numbers in their place.

    Raises:
        CaptureFailed: If an operator refuses these sizes, or the step returns a size.
    """
    try:
        return _Numbered(captured, numbers).captured()
    except CaptureFailed:
        raise
    except Exception as error:  # operators refuse sizes in their own ways
        raise CaptureFailed(f"the step does not run with other sizes: {type(error).__name__}: {error}") from error


class _Numbered:
    """A captured step whose symbols get numbers, operator by operator."""

    def __init__(self, captured: Captured, numbers: Mapping[Any, int]) -> None:
        import torch

        self.given, self.numbers = captured, numbers
        self.graph = torch.fx.Graph()
        self.placeholders = captured.joint.graph.find_nodes(op="placeholder")
        tensors = [k for k, tensor in enumerate(captured.tensors) if isinstance(tensor, torch.Tensor)]
        self.places = {k: number for number, k in enumerate(tensors)}
        self.results: dict[FxNode, Any] = {}
        self.made: dict[FxNode, Any] = {}
        self.inputs: dict[int, Tensor] = {}

    def captured(self) -> Captured:
        """The step with numbers."""
        import torch

        mode = new_fake_mode()
        with mode, exact_sizes(), torch.no_grad():
            for node in self.given.joint.graph.nodes:
                if node.op == "output":
                    self._output(node)
                else:
                    self._node(node, mode)

        def own(tensor: Tensor) -> Tensor:
            return self.inputs.get(id(tensor), tensor)

        model = self.given.model
        model = replace(model, inputs=mapped(model.inputs, own), keywords=mapped(model.keywords, own))
        tensors = tuple(own(self.given.tensors[k]) for k in self.places)
        joint = torch.fx.GraphModule(self.given.joint, self.graph)
        return replace(self.given, joint=joint, tensors=tensors, model=model)

    def _node(self, node: FxNode, mode: Any) -> None:
        import torch

        value = node.meta.get("val")
        if node.op == "placeholder":
            result = self._input(node) if isinstance(value, torch.Tensor) else self._number(value)
        elif node.op == "get_attr":
            result = getattr(self.given.joint, node.target)
            result = mode.from_tensor(result) if isinstance(result, torch.Tensor) else result
        else:
            args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), self.results.__getitem__)
            result = node.target(*args, **kwargs)
        self.results[node] = result
        if isinstance(result, bool | int | float):  # it is written into the arguments of its readers
            self.made[node] = result
            return
        copied = self.made[node] = self.graph.node_copy(node, self.made.__getitem__)
        copied.meta["val"] = result
        if "desc" in copied.meta:
            copied.meta["desc"] = renumbered(copied.meta["desc"], self.places)

    def _input(self, node: FxNode) -> Tensor:
        """A tensor without data for a placeholder; the input of the model that it stands for becomes one as large."""
        import torch

        value, place = node.meta["val"], getattr(node.meta.get("desc"), "idx", None)
        made = torch.empty_strided(
            [self._number(size) for size in value.shape],
            [self._number(step) for step in value.stride()],
            dtype=value.dtype,
            device=value.device,
        )
        if place is not None and any(not isinstance(size, int) for size in value.shape):
            self.inputs[id(self.given.tensors[place])] = made
        return made

    def _number(self, size: Any) -> int:
        return size if isinstance(size, int) else int(expression(size).subs(self.numbers))

    def _output(self, node: FxNode) -> None:
        """The results, but the gradients of sizes, which are none."""
        import torch

        forward = self.given.forward_outputs
        primals = [isinstance(place.meta["val"], torch.Tensor) for place in self.placeholders]
        results, descriptions = [], []
        for k, (result, description) in enumerate(zip(node.args[0], node.meta["desc"], strict=True)):
            if k >= forward and not primals[k - forward]:
                continue
            if result is not None and not isinstance(self.made[result], torch.fx.Node):
                raise CaptureFailed("the step returns a size of its inputs")
            results.append(None if result is None else self.made[result])
            descriptions.append(renumbered(description, self.places))
        copied = self.graph.output(results)
        copied.meta = dict(node.meta) | {"desc": descriptions}


@dataclass(frozen=True, slots=True)
class Functions:
    """The bytes of a graph as expressions in its sizes.

    Attributes:
        symbols: For each symbol of the capture, that of its axis.
        nodes: The FX nodes with symbols, by name.
        calls: The calls of the graph with numbers, by name.
        types: Types of its tensors, by name.
        low: That graph.
        changing: Bytes of the inputs whose sizes vary: with numbers, and as an expression.
    """

    symbols: Mapping[Any, Any]
    nodes: Mapping[str, FxNode]
    calls: Mapping[str, Call]
    types: Mapping[str, TensorType]
    low: Lowering
    changing: tuple[int, Any]

    @classmethod
    def of(cls, symbolic: Captured, axes: Mapping[Any, str], numbered: Captured, low: Lowering) -> Functions:
        """The functions of a captured step, given as it is with symbols, and with numbers."""
        import sympy
        import torch

        program = joint_program(numbered, joint_inputs(numbered)).program
        types = {given.name: given.type for given in program.inputs}
        for call in program.calls:
            types.update(output for output in call.outputs if output is not None)
        made = {axis: sympy.Symbol(axis, positive=True, integer=True) for axis in axes.values()}
        symbols = {symbol: made[axis] for symbol, axis in axes.items()}
        nodes = {node.name: node for node in symbolic.joint.graph.nodes}
        before, after = 0, sympy.Integer(0)
        for node in symbolic.joint.graph.find_nodes(op="placeholder"):
            value, place = node.meta["val"], getattr(node.meta.get("desc"), "idx", None)
            if place is None or not isinstance(value, torch.Tensor) or all(isinstance(n, int) for n in value.shape):
                continue
            before += types[node.name].storage_bytes or 0
            after += expression(value.untyped_storage().nbytes()).xreplace(symbols)
        calls = {call.name: call for call in program.calls}
        return cls(symbols, nodes, calls, types, low, (before, after))

    def renamed(self, item: Any) -> Any:
        """A size, or an expression of PyTorch, with the symbols of axes."""
        import sympy

        made = expression(item).xreplace(self.symbols)
        return sympy.expand(made) if isinstance(made, sympy.Expr) else made

    def fixed_memory(self) -> Any:
        """Bytes of everything that stays."""
        before, after = self.changing
        return self.low.graph.fixed_memory - before + self.renamed(after)

    def value(self, number: int) -> Any:
        """Bytes of a value.

        Raises:
            CaptureFailed: If they are no function that is known here.
        """
        import sympy

        name = self.low.values[number][0]
        tensor, item = self._tensor(name), self.types[name].itemsize
        maker = self.low.fx_nodes[self.low.graph.producer[number]]
        if maker is None:  # the memory of a tangent is dense
            return self._dense(tensor) * item
        call, slot = self.calls[maker.name], int(name.partition(":")[2] or 0)
        shown = self.renamed(tensor.untyped_storage().nbytes())
        like = retained_like(call, slot, self.types)
        if like is not None:
            return shown * sympy.Rational(self.types[like].itemsize, item)
        if call.op == BAGS:
            raise CaptureFailed("what an embedding bag keeps is not known as a function of sizes")
        read = [self._read(call, k, name) for k, name in ((0, "self"), (1, "target"))]
        if call.op in RESHAPED and read[0] is not None:
            return sympy.Max(shown, math.prod(read[0]) * item)
        if call.op in REDUCED and call.argument(REDUCED[call.op], "reduction", 1) != 0 and None not in read:
            pairs = zip_longest(*(reversed(shape or ()) for shape in read), fillvalue=sympy.Integer(1))
            return sympy.Max(shown, math.prod(a if b == 1 else b for a, b in pairs) * item)
        return shown

    def workspace(self, maker: FxNode | None) -> Any:
        """Bytes of a second copy while results are put into their layout, as in ``execute.strides``."""
        import sympy

        if maker is None or str(maker.target) not in OTHER_STRIDES:
            return sympy.Integer(0)
        needed = [sympy.Integer(0)]
        for slot, output in enumerate(self.calls[maker.name].outputs):
            if output is None or output[1].device != "cpu":
                continue
            like = retained_like(self.calls[maker.name], slot, self.types)
            tensor, item = self._tensor(output[0]), self.types[like or output[0]].itemsize
            shape, strides = self._layout(tensor)
            if not _usual(shape, strides):
                spans = [n * step for n, step in zip(shape, strides, strict=True) if n != 1]
                needed.append(sympy.Max(1, *spans) * item)
        return sympy.Max(*needed)

    def _tensor(self, name: str) -> Tensor:
        node, _, slot = name.partition(":")
        return dict(tensors_in(self.nodes[node].meta["val"]))[int(slot) if slot else None]

    def _layout(self, tensor: Tensor) -> tuple[list[Any], list[Any]]:
        return list(map(self.renamed, tensor.shape)), list(map(self.renamed, tensor.stride()))

    def _dense(self, tensor: Tensor) -> Any:
        """Elements of the smallest memory for a tensor."""
        import sympy

        return sympy.expand(
            sum(((n - 1) * step for n, step in zip(*self._layout(tensor), strict=True)), sympy.Integer(1))
        )

    def _read(self, call: Call, position: int, name: str) -> list[Any] | None:
        """The shape of a tensor that a call reads; None if it is none."""
        given = call.argument(position, name)
        return self._layout(self._tensor(given.name))[0] if isinstance(given, Ref) else None


def _usual(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether a layout is contiguous, or in ``channels_last``, at all sizes."""
    axes = list(range(len(shape)))
    orders = [axes] + ([[0, *axes[2:], 1]] if len(axes) in {4, 5} else [])
    for order in orders:
        expected, fits = 1, True
        for axis in reversed(order):
            fits = fits and (shape[axis] == 1 or strides[axis] - expected == 0)
            expected *= shape[axis]
        if fits:
            return True
    return False


def rises(made: Any) -> bool:
    """Whether an expression is proven to fall nowhere: made of sizes and numbers above 0 by sums, products and such."""
    if made.is_Symbol:
        return True
    if made.is_Number:
        return bool(made >= 0)
    name = type(made).__name__
    if name in {"FloorDiv", "CleanDiv", "CeilDiv"}:
        return bool(rises(made.args[0]) and made.args[1].is_Number and made.args[1] > 0)
    if made.is_Pow:
        return bool(rises(made.args[0]) and made.args[1].is_Integer and made.args[1] > 0)
    return bool((made.is_Add or made.is_Mul or name in {"Max", "Min"}) and all(map(rises, made.args)))


def table(expressions: Sequence[Any]) -> Callable[[Bytes, Bytes], Bytes]:
    """From batches and lengths to the numbers of all ``expressions``, int64[C, K]; at most :data:`MOST_BYTES`."""
    import sympy

    function = _compiled(list(map(sympy.sympify, expressions)))

    def numbers(batches: Bytes, lengths: Bytes) -> Bytes:
        shape = np.shape(batches)
        roughly = np.array([np.broadcast_to(row, shape) for row in function(*_floats(batches, lengths))], float)
        exactly = np.array([np.broadcast_to(row, shape) for row in function(batches, lengths)])
        found: Bytes = np.where(roughly < MOST_BYTES, exactly, MOST_BYTES).astype(np.int64)
        return found

    return numbers


def truth(
    guards: Sequence[Any], limits: Sequence[tuple[str, int, int | None]]
) -> Callable[[Bytes, Bytes], npt.NDArray[np.bool_]]:
    """From batches and lengths to whether all conditions hold there, bool[K]."""
    function = _compiled(guards)

    def holds(batches: Bytes, lengths: Bytes) -> npt.NDArray[np.bool_]:
        met = np.ones(np.shape(batches), dtype=np.bool_)
        sizes = {"batch": batches, "length": lengths}
        for axis, least, most in limits:
            met &= (sizes[axis] >= least) & (sizes[axis] <= (most or np.iinfo(np.int64).max))
        for row in function(batches, lengths):
            met &= np.broadcast_to(np.asarray(row, dtype=np.bool_), met.shape)
        return met

    return holds


def _floats(*sizes: Bytes) -> list[npt.NDArray[np.float64]]:
    return [size.astype(np.float64) for size in sizes]


def _compiled(expressions: Sequence[Any]) -> Callable[..., Any]:
    """A function of batch and length for expressions.

    Raises:
        CaptureFailed: If one has a function that is not known here.
    """
    import sympy

    axes = [sympy.Symbol(axis, positive=True, integer=True) for axis in ("batch", "length")]
    unknown = {type(f).__name__ for e in expressions for f in e.atoms(sympy.Function)} - set(_EXACT)
    unknown |= {str(symbol) for e in expressions for symbol in e.free_symbols - set(axes)}
    if unknown:
        raise CaptureFailed(f"sizes depend on {', '.join(sorted(unknown))}, which is not known here")
    made: Callable[..., Any] = sympy.lambdify(axes, list(expressions), modules=[_EXACT, "numpy"])
    return made
