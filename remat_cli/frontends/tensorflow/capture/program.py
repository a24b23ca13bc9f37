"""A captured step in remat's own terms: operations in an order in which they can run, and what they read."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from remat_cli.frontends.tensorflow.document import (
    Call,
    Constant,
    Data,
    Made,
    Place,
    Placeholder,
    Read,
    Ref,
    TensorSpec,
)
from remat_cli.graph.model import Phase


class Kind(StrEnum):
    """How often and where an operation may run.

    ``PURE``: any number of times. ``ONCE``: at most once, in order with others of this kind. ``UPDATE``: at most once,
    after everything else, since it writes variables or comes after something that does.
    """

    PURE = "pure"
    ONCE = "once"
    UPDATE = "update"


@dataclass(slots=True)
class Op:
    """A captured operation.

    Attributes:
        name: Its name in TensorFlow's graph, without marks of layers.
        call: What it does; ``Made`` in its inputs counts the operations of the program.
        kind: How often it may run.
        phase: The part of the step.
        cost: Its cost; positive.
        alias_of: For each output, the position of the input whose memory it is; None for memory of its own.
        node_def: TensorFlow's own description.
    """

    name: str
    call: Call
    kind: Kind
    phase: Phase
    node_def: Any
    layer: tuple[str, ...] = ()
    cost: float = 1.0
    alias_of: tuple[int | None, ...] = ()

    @property
    def is_alias(self) -> bool:
        """Whether it makes no memory of its own, and may run wherever its result is read."""
        return self.kind is Kind.PURE and bool(self.alias_of) and None not in self.alias_of


@dataclass(slots=True)
class Program:
    """A captured step.

    Attributes:
        ops: The operations, each after those that it reads from.
        places: The places.
        bound: What each place is in this process: the number of an argument, a variable, or a tensor.
        constants: The constants.
        functions: Serialised FunctionDefs, by number.
        results: What the step returns.
        specs: Type and shape of each result.
        notes: What the user should know.
        by_name: Names of the layers that take arguments by name.
        by_rows: The places of variables of which the step reads or writes rows: reading all of one makes a copy.
    """

    ops: list[Op] = field(default_factory=list)
    places: list[Placeholder] = field(default_factory=list)
    bound: list[Any] = field(default_factory=list)
    constants: list[Data] = field(default_factory=list)
    functions: list[bytes] = field(default_factory=list)
    results: list[Ref] = field(default_factory=list)
    specs: list[TensorSpec] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    by_name: set[str] = field(default_factory=set)
    by_rows: set[int] = field(default_factory=set)
    _numbers: dict[Data, int] = field(default_factory=dict)

    def constant(self, data: Data) -> Constant:
        """The constant with this data; equal ones are one."""
        if data not in self._numbers:
            self._numbers[data] = len(self.constants)
            self.constants.append(data)
        return Constant(self._numbers[data])

    def spec(self, ref: Ref) -> TensorSpec:
        """Type and shape of a tensor."""
        match ref:
            case Made(op, output):
                return self.ops[op].call.outputs[output]
            case Constant(number):
                return self.constants[number].spec
            case Place(number) | Read(number):
                return self.places[number].spec
        raise AssertionError(f"{ref} is no tensor of a captured step")

    def root(self, ref: Ref) -> Ref:
        """The tensor whose memory ``ref`` is."""
        while isinstance(ref, Made):
            op = self.ops[ref.op]
            source = op.alias_of[ref.output] if op.alias_of else None
            if source is None:
                return ref
            ref = op.call.inputs[source]
        return ref
