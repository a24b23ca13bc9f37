"""Divides operations of a captured step: which tensors are divided, and what each call is for a part of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from typing import Any

from remat_cli.errors import RematError
from remat_cli.frontends.aten.division_rules import (
    LIKELIHOODS,
    WHOLE,
    Asked,
    Operand,
    Rows,
    State,
    Summed,
    Whole,
    divided,
    leading_rows,
    linear,
)
from remat_cli.frontends.torch.codec import decode, decode_data, empty_tensor, operator_named
from remat_cli.frontends.torch.compat.fake_tensors import exact_sizes, new_fake_mode, silent_fakes
from remat_cli.frontends.torch.document import Constant, Input, Operation, Place, Step, Value, View, tensors_read
from remat_cli.frontends.torch.execute.cross_entropy import in_one_buffer
from remat_cli.frontends.torch.execute.part_calls import Part, PartCall, tensors_of
from remat_cli.frontends.torch.execute.strides import copied_bytes
from remat_cli.frontends.torch.tensors import tensors_in
from remat_cli.frontends.torch.types import Tensor
from remat_cli.graph.splitting import made_ahead

_SUMMED_TYPES = ("float32", "float64", "int64", "int32")
"""Types of tensors that are added up part by part."""
ADDED_IN = "float32"
"""The type in which tensors of 16 bits are added up, to be rounded once at the end: each sum of 16 bits would round."""
_ADDED_WIDER = ("float16", "bfloat16")
_OVERFLOWING = "float16"
"""A mean is a sum in parts, and that of numbers of this type may be infinite though their mean is not."""

_STORED = ("parameter", "buffer")


EMBEDDING_GRADIENT = "aten.embedding_dense_backward.default"
ADDED_IN_PLACE = "aten.mm.default"
"""The operator whose results are added to a sum by its own kernel."""


class NotDivisible(Exception):
    """A call cannot be divided, or not in this way."""


@dataclass(frozen=True, slots=True)
class TargetsWeight:
    """The weight of all targets, which is computed before the first part.

    Attributes:
        value: Its value.
        targets: The targets.
        weights: The weight of each class, if classes have weights.
        ignored: The number of targets that do not count.
        dtype: Its type.
    """

    value: int
    targets: Any
    weights: Any
    ignored: int
    dtype: str


@dataclass(frozen=True, slots=True)
class _Known:
    """An expression for a tensor.

    Attributes:
        tensor: The whole tensor without data.
        state: How it is divided.
        expression: The expression for a part.
        others: Other ways to divide it, if it comes from outside: it may be whole, though it has a dimension of as many
            as there are rows.
    """

    tensor: Any
    state: State
    expression: Any
    others: tuple[_Known, ...] = ()


@dataclass(slots=True)
class Divider:
    """What is known of the tensors of a step, if its rows are divided.

    Attributes:
        step: The step, with whole operations.
        rows: The number of rows.
        device: Kind of device that the step is for.
        made: How values are divided that are made in parts.
    """

    step: Step
    rows: int
    device: str
    made: dict[int, State] = field(default_factory=dict)
    _constants: dict[int, Tensor] = field(default_factory=dict)
    _by_form: dict[Any, tuple[State, ...] | None] = field(default_factory=dict)

    def states(self, node: int) -> Mapping[int, State] | None:
        """How a node divides its values, see :meth:`call`; None if it cannot. Nodes of equal form are tried once."""
        operation, reads = self.step.operations[node], self.step.graph.nodes[node].inputs
        form = self._form((*operation.args, *operation.kwargs.items()), reads), operation.call, operation.values
        if form not in self._by_form:
            try:
                self._by_form[form] = tuple(state for _, _, state in self.call(node).made)
            except NotDivisible:
                self._by_form[form] = None
        states = self._by_form[form]
        return None if states is None else dict(zip(self.step.graph.values_of(node), states, strict=True))

    def _form(self, argument: Any, reads: Sequence[int]) -> Any:
        """Equal for arguments of equal forms that are divided in the same way."""
        match argument:
            case tuple():
                return tuple(self._form(item, reads) for item in argument)
            case View(call, args, kwargs, item):
                return call, self._form((*args, *kwargs.items()), reads), item
            case Input(position, part):
                return self._form(Value(reads[position], part), reads)
            case Value(number, part):
                return self.step.tensors(number)[part], self.made.get(number)
            case Place(number):
                return self.step.places[number].spec, self.step.places[number].kind
        return argument

    def call(self, node: int) -> PartCall:
        """The call of a node for a part, given how the values that it reads are divided.

        Raises:
            NotDivisible: If it is not known how to divide it.
        """
        operation, reads = self.step.operations[node], self.step.graph.nodes[node].inputs
        numbers = self.step.graph.values_of(node)
        if node == self.step.tangents or operation.random or copied_bytes(operation, self.device):
            raise NotDivisible
        if any(len(tensors) != 1 for tensors in operation.values):
            raise NotDivisible
        args = [self._argument(argument, reads) for argument in operation.args]
        kwargs = {key: self._argument(argument, reads) for key, argument in operation.kwargs.items()}
        specs = {tensors[0].item: tensors[0].spec for tensors in operation.values}
        whole = tensors_in(self._returned(operation.call, args, kwargs))
        shapes = [tuple(tensor.shape) for _, tensor in whole]
        ways = _ways(args, kwargs)
        tried = ((self._rule(operation.call, *way, shapes), *way) for way in ways)
        found, args, kwargs = next((one for one in tried if one[0] is not None), (None, args, kwargs))
        if found is None:
            raise NotDivisible
        states = {item: state for (item, _), state in zip(whole, found.results, strict=True)}
        if not states.keys() >= specs.keys():
            raise NotDivisible
        for item, state in states.items():
            if isinstance(state, Summed) and item in specs and not _can_be_added(specs[item].dtype, state):
                raise NotDivisible
        own = list(args)
        for at, argument in found.arguments.items():
            own += [None] * (at + 1 - len(own))
            own[at] = argument
        made = tuple(
            (number, tensors[0].item, states[tensors[0].item])
            for number, tensors in zip(numbers, operation.values, strict=True)
        )
        return PartCall(
            node,
            found.call or operation.call,
            tuple(map(_expressed, own)),
            {key: _expressed(argument) for key, argument in kwargs.items()},
            made,
        )

    def _rule(self, call: str, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Sequence[Any]) -> Any:
        import torch

        operator = operator_named(call)
        name = call.removeprefix("aten.")
        tags = operator.tags
        pointwise = torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
        asked = Asked(
            [_operand(argument) for argument in args],
            {key: _operand(argument) for key, argument in kwargs.items()},
            shapes,
            self.rows,
        )
        return divided(name, asked, pointwise=pointwise) if call.startswith("aten.") else None

    def _returned(self, call: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What an operator returns for whole tensors, without data."""
        return operator_named(call)(*map(_whole, args), **{key: _whole(argument) for key, argument in kwargs.items()})

    def _argument(self, argument: Any, reads: Sequence[int]) -> Any:
        """An argument of a node; a :class:`_Known` for each tensor."""
        if isinstance(argument, tuple):
            return [self._argument(item, reads) for item in argument]
        match argument:
            case View():
                return self._view(argument, reads)
            case Input(position, part):
                return self._value(Value(reads[position], part))
            case Value():
                return self._value(argument)
            case Place(number):
                place = self.step.places[number]
                return self._outer(argument, place.spec, divisible=place.kind not in _STORED)
            case Constant(number):
                if number not in self._constants:
                    import torch

                    data = decode_data(self.step.constants[number], "cpu")
                    self._constants[number] = torch.empty_like(data, device=self.device)
                return _Known(self._constants[number], WHOLE, argument)
        return decode(argument, lambda tensor: tensor, {self.step.device or self.device: self.device})

    def _value(self, value: Value) -> _Known:
        [returned] = self.step.tensors(value.number)[value.part : value.part + 1]
        state = self.made.get(value.number)
        if state is None:
            return self._outer(value, returned.spec, divisible=True)
        return _Known(empty_tensor(returned.spec, self.device), state, value)

    def _outer(self, expression: Value | Place, spec: Any, *, divisible: bool) -> _Known:
        """A tensor from outside. It is divided if its first dimensions are as many as there are rows."""
        tensor = empty_tensor(spec, self.device)
        whole = _Known(tensor, WHOLE, expression)
        rows = self._rows(tensor) if divisible else None
        return whole if rows is None else _Known(tensor, rows, Part(expression, rows), (whole,))

    def _rows(self, tensor: Tensor) -> Rows | None:
        """The first dimensions of a tensor from outside if they are as many as there are rows, one after another."""
        rows, stride = leading_rows(tensor.shape, self.rows), tensor.stride()
        if rows is None or any(stride[k] != stride[k + 1] * tensor.shape[k + 1] for k in range(rows.count - 1)):
            return None
        return rows

    def _view(self, view: View, reads: Sequence[int]) -> _Known:
        args = [self._argument(argument, reads) for argument in view.args]
        kwargs = {key: self._argument(argument, reads) for key, argument in view.kwargs.items()}
        tensors = tensors_in(self._returned(view.call, args, kwargs))
        at = [item for item, _ in tensors].index(view.item)
        tensor, shapes = tensors[at][1], [tuple(one.shape) for _, one in tensors]
        ways = []
        for own, named in _ways(args, kwargs):
            found = self._rule(view.call, own, named, shapes)
            for position, argument in found.arguments.items() if found is not None else ():
                own[position] = argument
            expression = View(view.call, _all(own), _named(named), view.item)
            if found is not None:
                ways.append(_Known(tensor, found.results[at], expression))
            elif all(isinstance(known.state, Whole) for known in _knowns([*own, *named.values()])):
                ways.append(_Known(tensor, WHOLE, expression))
                rows = self._rows(tensor) if self._is_divisible(view) else None
                if rows is not None:
                    ways.append(_Known(tensor, rows, Part(expression, rows)))
        if not ways:
            raise NotDivisible
        return replace(ways[0], others=tuple(ways[1:]))

    def _is_divisible(self, view: View) -> bool:
        """Whether a view is of no parameters or buffers, whose dimensions are no rows."""
        places = [one.number for one in tensors_read([view]) if isinstance(one, Place)]
        return not any(self.step.places[number].kind in _STORED for number in places)


def _can_be_added(dtype: str, state: Summed) -> bool:
    """Whether results of a type can be added up, and divided at the end if they are a mean."""
    if dtype == _OVERFLOWING:
        return state == Summed()
    return dtype in _SUMMED_TYPES or dtype in _ADDED_WIDER


@dataclass(frozen=True, slots=True)
class Division:
    """Nodes that run together, part by part.

    Attributes:
        step: The step, with whole operations.
        rows: The number of rows that are divided.
        device: Kind of device that the step is for.
        calls: What runs for each part, in order.
        results: How the values are divided that others read.
        ones: The tangents for which it does not wait: ones stand for them.
        weights: What is computed before the first part.
        starts: Results that are the sum of all parts and of a value from outside, which is this one. Gradients of
            embeddings are added to a copy of it row by row.
    """

    step: Step
    rows: int
    device: str
    calls: tuple[PartCall, ...]
    results: Mapping[int, State]
    ones: frozenset[int] = frozenset()
    weights: tuple[TargetsWeight, ...] = ()
    starts: Mapping[int, Value] = field(default_factory=dict)

    @property
    def before_bytes(self) -> int:
        """Bytes of what is computed before the first part."""
        return sum(tensor.spec.bytes for one in self.weights for tensor in self.step.tensors(one.value))

    def size(self, parts: int) -> int:
        """Rows of a part, of which the last may have fewer."""
        return -(-self.rows // parts)

    def added_wider(self, number: int) -> bool:
        """Whether a result is a sum in :data:`ADDED_IN`, and is rounded to its own type at the end."""
        [returned] = self.step.tensors(number)
        return isinstance(self.results[number], Summed) and returned.spec.dtype in _ADDED_WIDER

    def added_in_place(self, call: PartCall) -> bool:
        """Whether the operator of a call adds what it makes to the sum, so that no summand exists beside it."""
        number, _, state = call.made[0]
        return number in self.starts or (
            call.call == ADDED_IN_PLACE
            and isinstance(state, Summed)
            and number in self.results
            and not self.added_wider(number)
        )

    def last_uses(self) -> list[list[int]]:
        """For each call the values made by calls of the operation that no later call reads, to be freed behind it."""
        last: dict[int, int] = {}
        for k, call in enumerate(self.calls):
            last |= {number: k for number, _, _ in call.made}
            for tensor in tensors_of((*call.args, *call.kwargs.values())):
                if isinstance(tensor, Value) and tensor.number in last:
                    last[tensor.number] = k
        return [[number for number, at in last.items() if at == k] for k in range(len(self.calls))]


def division(
    step: Step,
    nodes: Sequence[int],
    repeats: Sequence[int],
    rows: int,
    results: Sequence[int],
    device: str,
    ahead_of: Sequence[int] = (),
) -> Division:
    """How ``nodes`` and the repeated ones run in parts.

    Args:
        step: A step with whole operations.
        nodes: The nodes.
        repeats: Nodes that are computed again.
        rows: The number of rows.
        results: The values of ``nodes`` that others read.
        device: Kind of device that the step is for.
        ahead_of: The node of the tangents, if they do not wait for it.

    Raises:
        NotDivisible: If they cannot.
    """
    divider = Divider(step, rows, device)
    ones = _ones(step, nodes, ahead_of)
    calls, weights, starts = list[PartCall](), list[TargetsWeight](), dict[int, Value]()
    with without_data():
        for node in sorted({*nodes, *repeats}):
            other = added_to(step, node)
            if other is not None and calls and step.graph.producer[other[0]] == calls[-1].node:
                [number] = step.graph.values_of(node)
                calls[-1] = replace(calls[-1], made=((number, None, Summed()),))
                starts[number], divider.made[number] = Value(other[1]), Summed()
                continue
            call = _call(divider, node)
            if ones and call.call in LIKELIHOODS:
                weights += [_weight(step, call, number) for number, item, _ in call.made if item == 1]
                call = replace(call, made=tuple(one for one in call.made if one[1] == 0))
            calls.append(call)
            divider.made |= {number: state for number, _, state in call.made}
            divider.made |= dict.fromkeys((one.value for one in weights), WHOLE)
    for call in calls:
        beside = {item for number, item, _ in call.made if number in results}
        for number, _, state in call.made:
            by = state.by if isinstance(state, Summed) and number in results else None
            if by is not None and by not in beside and not (ones and call.call in LIKELIHOODS):
                raise NotDivisible
    states = {number: divider.made[number] for number in results}
    if any(isinstance(state, Whole) for state in states.values()):
        raise NotDivisible
    return Division(step, rows, device, in_one_buffer(step, calls, results), states, ones, tuple(weights), starts)


def added_to(step: Step, node: int) -> tuple[int, int] | None:
    """If a node adds the gradient of an embedding, which only it reads, to another value: the two values."""
    graph, operation = step.graph, step.operations[node]
    if operation.call != "aten.add.Tensor" or operation.kwargs or len(graph.nodes[node].inputs) != 2:
        return None
    [made] = operation.values[0]
    for gradient, other in permutations(graph.nodes[node].inputs):
        maker = step.operations[graph.producer[gradient]]
        if maker.call != EMBEDDING_GRADIENT or graph.readers[gradient] != (node,) or gradient in graph.outputs:
            continue
        alike = all(tensors == (made,) for tensors in (step.tensors(gradient), step.tensors(other)))
        if alike and maker.args[3] == -1 and maker.args[4] is False and made.spec.dtype in _SUMMED_TYPES:
            return gradient, other
    return None


def _call(divider: Divider, node: int) -> PartCall:
    """The call of a node for a part; what depends on no rows would be computed again for each, and has none.

    Raises:
        NotDivisible: If it has none.
    """
    try:
        call = divider.call(node)
    except RematError:
        raise
    except Exception as error:  # operators may raise anything
        raise NotDivisible from error
    if not any(isinstance(one, Part | Value) for one in tensors_of((*call.args, *call.kwargs.values()))):
        raise NotDivisible
    return call


def _ones(step: Step, nodes: Sequence[int], ahead_of: Sequence[int]) -> frozenset[int]:
    """The tangent for which nodes do not wait, if there is one; all that they make of it has to be linear in it.

    Raises:
        NotDivisible: If it is not.
    """
    if not ahead_of:
        return frozenset()
    tangents = step.graph.values_of(step.tangents)
    if tuple(ahead_of) != (step.tangents,) or len(tangents) != 1 or step.tensors(tangents[0])[0].spec.shape:
        raise NotDivisible
    late = {*tangents, *made_ahead(step.graph, nodes, ahead_of)}
    if any(tensor.spec.dtype == _OVERFLOWING for value in late for tensor in step.tensors(value)):
        raise NotDivisible  # a scaled loss is to keep these from vanishing
    for node in nodes:
        operation, reads = step.operations[node], step.graph.nodes[node].inputs
        if not late.isdisjoint(reads) and not linear(
            operation.call.removeprefix("aten."), _positions(operation, reads, late)
        ):
            raise NotDivisible
    return frozenset(tangents)


def _positions(operation: Operation, reads: Sequence[int], values: set[int]) -> list[int]:
    """The positions of the arguments that are, or hold, some of ``values``; -1 for those by name."""
    arguments = [*enumerate(operation.args), *((-1, argument) for argument in operation.kwargs.values())]
    return [
        at
        for at, argument in arguments
        if any(isinstance(t, Input) and reads[t.position] in values for t in tensors_read([argument]))
    ]


def _weight(step: Step, call: PartCall, value: int) -> TargetsWeight:
    [returned] = step.tensors(value)
    return TargetsWeight(value, call.args[1], call.args[2], call.args[4], returned.spec.dtype)


@contextmanager
def without_data() -> Iterator[None]:
    """A context in which tensors have no data, and operators compute only sizes."""
    import torch

    with torch.no_grad(), silent_fakes(), exact_sizes(), new_fake_mode():
        yield


def _knowns(arguments: Sequence[Any]) -> Iterator[_Known]:
    for argument in arguments:
        if isinstance(argument, list | tuple):
            yield from _knowns(argument)
        elif isinstance(argument, _Known):
            yield argument


def _ways(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """The arguments of a call in every way to divide those that may be divided otherwise, the first ones first."""
    several = list({id(known): known for known in _knowns([*args, *kwargs.values()]) if known.others}.values())
    for chosen in product(*((known, *known.others) for known in several)):
        instead = {id(known): one for known, one in zip(several, chosen, strict=True)}

        def chosen_of(known: _Known, instead: Mapping[int, _Known] = instead) -> _Known:
            return instead.get(id(known), known)

        yield [_mapped(one, chosen_of) for one in args], {key: _mapped(one, chosen_of) for key, one in kwargs.items()}


def _mapped(argument: Any, change: Any) -> Any:
    if isinstance(argument, list | tuple):
        return [_mapped(item, change) for item in argument]
    return change(argument) if isinstance(argument, _Known) else argument


def _operand(argument: Any) -> Any:
    return _mapped(argument, lambda known: Operand(tuple(known.tensor.shape), known.state))


def _whole(argument: Any) -> Any:
    return _mapped(argument, lambda known: known.tensor)


def _expressed(argument: Any) -> Any:
    return _mapped(argument, lambda known: known.expression)


def _all(arguments: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(map(_expressed, arguments))


def _named(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _expressed(argument) for key, argument in arguments.items()}


def part_of(tensor: Tensor, rows: Rows, start: int, count: int) -> Tensor:
    """The part of ``tensor`` with ``count`` rows from ``start`` on; a view."""
    if rows.count == 1:
        return tensor.narrow(rows.at, start, count)
    shape = tensor.shape
    flat = tensor.view(*shape[: rows.at], -1, *shape[rows.end :]).narrow(rows.at, start, count)
    return flat.unflatten(rows.at, (*[1] * (rows.count - 1), count))
