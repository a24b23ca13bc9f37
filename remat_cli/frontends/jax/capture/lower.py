"""Lowers a captured step to a graph of remat: a node per group of equations, a value per array between groups."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.imported import Names
from remat_cli.frontends.jax.capture.capture import Captured
from remat_cli.frontends.jax.capture.contraction import Group, Item, contracted, members_of
from remat_cli.frontends.jax.capture.costs import Work, work_of
from remat_cli.frontends.jax.capture.flat import Equation, Flat, Number
from remat_cli.frontends.jax.capture.functions import Functions, as_numbers, spec_of
from remat_cli.frontends.jax.capture.primitives import CHEAP, flops, is_reduction
from remat_cli.frontends.jax.document import (
    ArraySpec,
    Constant,
    Data,
    Input,
    Operation,
    Place,
    PlaceSpec,
    Result,
    Value,
    function_text,
)
from remat_cli.graph.model import Graph, Node, Phase

_LARGEST_CONSTANT = 1 << 16
"""Bytes of the largest array that the code refers to and whose data is in the document. Larger ones are given."""


def lower(captured: Captured, cost: Callable[[Work], float], name: str, device: str) -> tuple[Graph, list[Any]]:
    """The graph of a captured step; and the arrays that its code refers to and that are places, behind the arguments.

    Raises:
        CaptureFailed: If there is nothing to compute, or JAX cannot write an operation.
    """
    return _Lowering(captured, device).lowered(cost, name)


def items_of(flat: Flat, given: frozenset[int]) -> list[Item]:
    """The equations as contraction sees them."""
    return [
        Item(
            reads=tuple(dict.fromkeys(variable for variable in equation.variables if variable not in given)),
            makes=equation.makes,
            cheap=equation.name in CHEAP,
            reduction=is_reduction(equation.name),
            backward=equation.backward,
        )
        for equation in flat.equations
    ]


@dataclass(slots=True)
class _Lowering:
    """The work on one step.

    Attributes:
        captured: The step.
        device: The device that its functions are for.
        given: The places and constants that variables stand for.
        places: All places; captured arrays behind the arguments.
        constants: The constants.
        arrays: The captured arrays that are places.
        specs: The array in each variable.
    """

    captured: Captured
    device: str
    given: dict[int, Place | Constant] = field(default_factory=dict)
    places: list[PlaceSpec] = field(default_factory=list)
    constants: list[Data] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)
    specs: dict[int, ArraySpec] = field(default_factory=dict)

    @property
    def flat(self) -> Flat:
        return self.captured.flat

    def lowered(self, cost: Callable[[Work], float], name: str) -> tuple[Graph, list[Any]]:
        """See :func:`lower`."""
        if not self.flat.equations:
            raise CaptureFailed("the step computes nothing", hint="does the loss depend on the arguments?")
        self.find_given()
        for equation in self.flat.equations:
            self.specs |= {variable: spec_of(self.flat.avals[variable]) for variable in equation.makes}
        given = frozenset(self.given)
        sizes = {variable: spec.bytes for variable, spec in self.specs.items()}
        items = items_of(self.flat, given)
        kept = frozenset(atom for atom in self.flat.results if isinstance(atom, int) and atom not in given)
        groups = contracted(items, sizes, kept)
        equations = [[self.flat.equations[index] for index in indices] for indices in members_of(items, groups)]
        nodes, numbers, functions = self.nodes(groups, equations, cost)
        results = self.results(numbers)
        outputs = tuple(sorted({r.array.number for r in results if isinstance(r.array, Value)}))
        fixed = sum(place.spec.bytes for place in self.places) + sum(data.spec.bytes for data in self.constants)
        graph = Graph(name=name, nodes=tuple(nodes), outputs=outputs, fixed_memory=fixed)
        metadata: dict[str, Any] = {
            "places": [place.document() for place in self.places],
            "constants": [data.document() for data in self.constants],
            "functions": [function_text(function) for function in functions],
            "results": [result.document(graph.value_name) for result in results],
            "tags": {
                graph.value_name(number): self.flat.names[variable]
                for variable, number in numbers.items()
                if variable in self.flat.names and graph.nodes[graph.producer[number]].phase is Phase.FORWARD
            },
        }
        if self.flat.step_bytes:
            metadata["step_bytes"] = self.flat.step_bytes
        return replace(graph, metadata=metadata), self.arrays

    def find_given(self) -> None:
        """Number the places and constants."""
        self.places += self.captured.places
        for number, (variable, place) in enumerate(zip(self.flat.places, self.captured.places, strict=True)):
            self.given[variable] = Place(number)
            self.specs[variable] = place.spec
        for variable, array in self.flat.constants.items():
            spec = self.specs[variable] = spec_of(self.flat.avals[variable])
            if spec.bytes > _LARGEST_CONSTANT:
                self.given[variable] = Place(len(self.places))
                self.places.append(PlaceSpec("captured", f"captured{len(self.arrays)}", spec))
                self.arrays.append(array)
            else:
                self.given[variable] = self.constant(as_numbers(self.flat.avals[variable], array), spec)

    def constant(self, array: Any, spec: ArraySpec) -> Constant:
        """A constant with the data of ``array``."""
        data = Data(spec, np.asarray(array).tobytes())
        if data not in self.constants:
            self.constants.append(data)
        return Constant(self.constants.index(data))

    def nodes(
        self, groups: Sequence[Group], equations: Sequence[Sequence[Equation]], cost: Callable[[Work], float]
    ) -> tuple[list[Node], dict[int, int], list[bytes]]:
        """The nodes, the number of the value of each variable, and the functions."""
        functions, names = Functions(self.flat, self.device), Names()
        numbers: dict[int, int] = {}
        nodes = []
        backward = False
        for group, own in zip(groups, equations, strict=True):
            backward = backward or group.backward
            makes = sorted(group.makes)
            made = {variable for equation in own for variable in equation.makes}
            reads = list(dict.fromkeys(v for equation in own for v in equation.variables if v not in made))
            inputs = sorted(numbers[variable] for variable in reads if variable in numbers)
            operation = Operation(
                function=functions.number(own, reads, makes),
                reads=tuple(
                    Input(inputs.index(numbers[variable])) if variable in numbers else self.given[variable]
                    for variable in reads
                ),
                values=tuple(self.specs[variable] for variable in makes),
            )
            leading = self.leading(own)
            moved = sum(self.specs[variable].bytes for variable in {*reads, *makes})
            nodes.append(
                Node(
                    id=names.unique(leading),
                    cost=cost(work_of(self.flat, own, moved)),
                    inputs=tuple(inputs),
                    outputs=tuple(spec.bytes for spec in operation.values),
                    op=leading,
                    phase=Phase.BACKWARD if backward else Phase.FORWARD,
                    payload=operation.document(),
                )
            )
            for variable in makes:
                numbers[variable] = len(numbers)
        return nodes, numbers, functions.written

    def leading(self, equations: Sequence[Equation]) -> str:
        """Name of the equation that takes the most FLOPs; the last of equals."""

        def work(equation: Equation) -> float:
            shapes = [self.flat.aval_of(atom).shape for atom in equation.reads]
            return flops(equation.name, equation.params, shapes, [self.flat.avals[v].shape for v in equation.makes])

        return max(reversed(equations), key=work).name

    def results(self, numbers: dict[int, int]) -> list[Result]:
        """What the results of the step are."""
        results = []
        for (kind, name), atom in zip(self.captured.results, self.flat.results, strict=True):
            array: Value | Place | Constant
            if isinstance(atom, Number):
                spec = spec_of(atom.aval)
                array = self.constant(np.asarray(atom.value, dtype=atom.aval.dtype), spec)
            elif atom in numbers:
                array, spec = Value(numbers[atom]), self.specs[atom]
            else:
                array, spec = self.given[atom], self.specs[atom]
            results.append(Result(kind, name, array, spec))
        return results
