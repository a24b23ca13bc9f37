"""Writes the code of an operation that runs part by part.

::

    v9_0 = empty((4096, 768), (768, 1), float32)    # a result of which each part has some rows
    for a in range(0, 4096, 512):
        r = min(512, 4096 - a)
        u4 = op3(part(v2_0, 0, 1, a, r), op1(places[5]))
        u5 = op4(u4, 1, False)
        del u4
        put(v9_0, 0, 1, a, r, u5)
        if a:
            v8_0.addmm_(op1(u5), part(v2_0, 0, 1, a, r))    # a result that is a sum
        else:
            v8_0 = op3(op1(u5), part(v2_0, 0, 1, a, r))
        del u5

Products that are added up are added into the sum by their own kernel. Every other summand exists beside the sum. Sums
of tensors of 16 bits are of 32 bits, and rounded behind the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from remat_cli.frontends.aten.division_rules import RowCount, Rows, Summed
from remat_cli.frontends.captured.origin import damaged
from remat_cli.frontends.torch.codec import dtype_named
from remat_cli.frontends.torch.document import Constant, InParts, Place, Step, Value, View
from remat_cli.frontends.torch.execute.cross_entropy import CROSS_ENTROPY, cross_entropy
from remat_cli.frontends.torch.execute.division import ADDED_IN, Division, NotDivisible, division, part_of
from remat_cli.frontends.torch.execute.part_calls import Part, PartCall
from remat_cli.frontends.torch.types import Tensor


class Code(Protocol):
    """The function under construction."""

    step: Step
    device: str

    def line(self, text: str, node: str | None = None) -> None:
        """One line of the function."""

    def operator(self, name: str) -> str:
        """The variable that holds an operator."""

    def literal(self, value: Any) -> str:
        """A value as text."""

    def beside(self, name: str, value: Any) -> str:
        """The variable ``name`` of the code, which is ``value``."""


def divisions(step: Step) -> Mapping[int, Division]:
    """How each node in parts of a step is divided.

    Raises:
        UsageError: If one cannot be.
    """
    return {index: divided_node(step, index) for index in step.parts}


def divided_node(step: Step, index: int) -> Division:
    """How a node in parts is divided.

    Raises:
        UsageError: If it cannot be.
    """
    parts, origin = step.parts[index], step.graph.origin
    assert step.whole is not None
    assert origin is not None
    results = [origin.values[value] for value in step.graph.values_of(index)]
    try:
        device = step.device or "cpu"
        return division(step.whole, parts.nodes, parts.repeats, parts.rows, results, device, parts.ahead_of)
    except NotDivisible:
        at = f"splits: {step.graph.nodes[index].id}"
        raise damaged(step.whole.graph, at, "its nodes cannot run in parts") from None


def write_parts(code: Code, index: int) -> None:
    """Write one computation of a node in parts."""
    step = code.step
    _Loop(code, divided_node(step, index), step.parts[index], index).write()


class _Loop:
    """The loop over the parts of a node.

    Args:
        code: The function under construction.
        division: How the node is divided.
        parts: The node in parts.
        index: Its number.
    """

    def __init__(self, code: Code, division: Division, parts: InParts, index: int) -> None:
        self._code, self._division, self._parts = code, division, parts
        graph = code.step.graph
        assert graph.origin is not None
        self._id = graph.nodes[index].id
        self._number = {whole: number for number, whole in enumerate(graph.origin.values)}
        self._own = {number for call in division.calls for number, _, _ in call.made}
        self._own |= {one.value for one in division.weights}
        code.beside("part", part)
        code.beside("put", put)

    def write(self) -> None:
        division, code = self._division, self._code
        wider = [whole for whole in division.results if division.added_wider(whole)]
        for whole, state in division.results.items():
            if isinstance(state, Rows):  # before the loop: a part is written as soon as it is there
                [returned] = division.step.tensors(whole)
                self._begin("empty", whole, returned.spec.dtype)
            elif whole in division.starts:
                [returned] = division.step.tensors(whole)
                self._begin("empty", whole, returned.spec.dtype)
                code.line(f"v{self._number[whole]}_0.copy_({self._argument(division.starts[whole])})", self._id)
            elif whole in wider:
                self._begin("zeros", whole, ADDED_IN)
        if division.weights:
            code.line(f"a, r = 0, {division.rows}")
        for weight in division.weights:
            given = ", ".join(map(self._argument, (weight.targets, weight.weights, weight.ignored)))
            of = code.beside("targets_weight", targets_weight)
            code.line(f"u{weight.value} = {of}({given}, {code.literal(dtype_named(weight.dtype))})", self._id)
        size = division.size(self._parts.parts)
        code.line(f"for a in range(0, {division.rows}, {size}):", self._id)
        self._line(f"r = min({size}, {division.rows} - a)")
        for call, last in zip(division.calls, division.last_uses(), strict=True):
            self._call(call, set(last))
        for whole, state in division.results.items():
            if isinstance(state, Summed) and (state.divisor != 1 or state.by is not None):
                self._divide(whole, state)
        for whole in wider:
            [returned] = division.step.tensors(whole)
            dtype = code.literal(dtype_named(returned.spec.dtype))
            code.line(f"v{self._number[whole]}_0 = v{self._number[whole]}_0.to({dtype})", self._id)
        if division.weights:
            code.line("del " + ", ".join(f"u{weight.value}" for weight in division.weights))

    def _begin(self, maker: str, whole: int, dtype: str) -> None:
        """Write the result of which parts are made, ``empty`` or as ``zeros``, in a type."""
        [returned] = self._division.step.tensors(whole)
        made = self._code.beside(maker, partial(_MAKERS[maker], device=self._code.device))
        form = f"{returned.spec.shape!r}, {returned.spec.stride!r}, {self._code.literal(dtype_named(dtype))}"
        self._code.line(f"v{self._number[whole]}_0 = {made}({form})", self._id)

    def _divide(self, whole: int, state: Summed) -> None:
        """Write the division of a sum at the end, which makes a mean of it."""
        by = str(state.divisor)
        if state.by is not None and self._division.weights:
            by = f"u{self._division.weights[0].value}"
        elif state.by is not None:
            made = next(call.made for call in self._division.calls if whole in {number for number, _, _ in call.made})
            by = next(f"v{self._number[number]}_0" for number, item, _ in made if item == state.by)
        self._code.line(f"v{self._number[whole]}_0.div_({by})", self._id)

    def _line(self, text: str) -> None:
        self._code.line(f"    {text}", self._id)

    def _call(self, call: PartCall, last: set[int]) -> None:
        """Write one call, and the end of what it is the last to read."""
        states = {number: state for number, _, state in call.made if number in self._division.results}
        if self._division.added_in_place(call):
            total = f"v{self._number[call.made[0][0]]}_0"
            if call.made[0][0] in self._division.starts:
                added = self._code.beside("add_rows", add_rows)
                self._line(f"{added}({total}, {', '.join(map(self._argument, call.args[:2]))})")
                return
            arguments = ", ".join(map(self._argument, call.args))
            self._line(f"if a: {total}.addmm_({arguments})")
            self._line(f"else: {total} = {self._text(call)}")
            self._free(last - {number for number, _, _ in call.made})
            return
        if [item for _, item, _ in call.made] == [None]:
            self._line(f"u{call.made[0][0]} = {self._text(call)}")
        else:
            self._line(f"t = {self._text(call)}")
            for number, item, _ in call.made:
                self._line(f"u{number} = t[{item}]")
            self._line("t = None")
        for number, state in states.items():
            total = f"v{self._number[number]}_0"
            if isinstance(state, Rows):
                self._line(f"put({total}, {state.at}, {state.count}, a, r, u{number})")
            elif self._division.added_wider(number):
                self._line(f"{total}.add_(u{number})")
            else:
                self._line(f"if a: {total}.add_(u{number})")
                self._line(f"else: {total} = u{number}")
        self._free(last)

    def _free(self, values: set[int]) -> None:
        if values:
            self._line("del " + ", ".join(f"u{number}" for number in sorted(values)))

    def _text(self, call: PartCall | View) -> str:
        arguments = [self._argument(argument) for argument in call.args]
        arguments += [f"{key}={self._argument(argument)}" for key, argument in call.kwargs.items()]
        own = call.call == CROSS_ENTROPY
        called = self._code.beside("cross_entropy", cross_entropy) if own else self._code.operator(call.call)
        return f"{called}({', '.join(arguments)})"

    def _argument(self, argument: Any) -> str:
        match argument:
            case RowCount():
                return "r"
            case Part(tensor, rows):
                return f"part({self._argument(tensor)}, {rows.at}, {rows.count}, a, r)"
            case Value(number) if number in self._division.ones:
                [returned] = self._division.step.tensors(number)
                return self._code.literal(_one(returned.spec.dtype, self._code.device))
            case Value(number, inner):
                return f"u{number}" if number in self._own else f"v{self._number[number]}_{inner}"
            case Place(number):
                return f"places[{number}]"
            case Constant(number):
                return f"constants[{number}]"
            case View():
                text = self._text(argument)
                return text if argument.item is None else f"{text}[{argument.item}]"
            case list() | tuple():
                return f"[{', '.join(map(self._argument, argument))}]"
        return self._code.literal(argument)


def part(tensor: Tensor, at: int, count: int, start: int, rows: int) -> Tensor:
    """See :func:`part_of`."""
    return part_of(tensor, Rows(at, count), start, rows)


def put(tensor: Tensor, at: int, count: int, start: int, rows: int, value: Tensor) -> None:
    """Write a part of a tensor."""
    part_of(tensor, Rows(at, count), start, rows).copy_(value)


def add_rows(total: Tensor, gradients: Tensor, indices: Tensor) -> None:
    """Add the gradient of an embedding, row by row."""
    total.index_add_(0, indices.flatten(), gradients.flatten(0, -2))


def targets_weight(targets: Tensor, weights: Tensor | None, ignored: int, dtype: Any) -> Tensor:
    """The weight of all targets, as ``nll_loss_forward`` returns it: their number, without those that are ignored."""
    counted = targets != ignored
    if weights is None:
        return counted.sum(dtype=dtype)
    return weights.index_select(0, targets.flatten()[counted.flatten()]).sum(dtype=dtype)


def complete(tensor: Tensor, tangent: Tensor) -> None:
    """Multiply a gradient, which was computed for a tangent of one, by the tangent.

    It counts as changed in any case, so that autograd refuses a second backward pass, which would find it multiplied.
    """
    if tangent == 1:
        tensor.narrow(0, 0, 0).zero_()
    else:
        tensor.mul_(tangent)


def _one(dtype: str, device: str) -> Tensor:
    import torch

    return torch.ones((), dtype=dtype_named(dtype), device=device)


def _empty(shape: Sequence[int], stride: Sequence[int], dtype: Any, *, device: str) -> Tensor:
    import torch

    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _zeros(shape: Sequence[int], stride: Sequence[int], dtype: Any, *, device: str) -> Tensor:
    return _empty(shape, stride, dtype, device=device).zero_()


_MAKERS = {"empty": _empty, "zeros": _zeros}
