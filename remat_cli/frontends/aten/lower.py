"""From a graph of ATen operators to operations of remat: one value per piece of memory.

*Views are no operations.* Whoever reads them reads what they look at, see :mod:`remat_cli.frontends.aten.views`.

*Operations in place* make a new value of the same size instead: from there on, all that lay in the old memory lies in
the new. If that was an input or a buffer, its last version is an output of the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from remat_cli.errors import InputError, Problem
from remat_cli.frontends.aten.flops import elements, flops
from remat_cli.frontends.aten.kept import kept_bytes
from remat_cli.frontends.aten.program import TANGENTS, Call, Program, Ref, TensorType
from remat_cli.frontends.aten.views import REORDERING, is_view
from remat_cli.frontends.imported import Made, Names, Operation

_RANDOM_OPERATORS = """
bernoulli multinomial native_dropout normal poisson rand rand_like randint randint_like randn randn_like randperm
rrelu_with_noise dropout alpha_dropout feature_dropout uniform exponential
"""
_RANDOM = frozenset(_RANDOM_OPERATORS.split())
_OWN = ("aten.", "prims.", "remat.")
_STATISTICS = ("aten.batch_norm", "aten.native_batch_norm", "aten._native_batch_norm_legit", "aten.instance_norm")
"""Operators that update running statistics where these lie, and do not say so."""


@dataclass(slots=True)
class Lowered:
    """What became of a program.

    Attributes:
        operations: In execution order.
        where: Memory of each tensor: a value, or the name of what lies in fixed memory.
        types: Type of each tensor.
        mutated: Fixed memory that operations write into.
        views: How many views were left out.
        in_place: How many operations in place make a new value instead.
        random: Ids of operations that draw random numbers.
        tracking: Ids of operations that update running statistics on the side.
        defaults: Operators without a rule that cost what the user said.
    """

    operations: list[Operation] = field(default_factory=list)
    where: dict[str, Made | str] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    mutated: dict[str, None] = field(default_factory=dict)
    views: int = 0
    in_place: int = 0
    random: list[str] = field(default_factory=list)
    tracking: list[str] = field(default_factory=list)
    defaults: Counter[str] = field(default_factory=Counter)


def lower(program: Program, source: str, default_cost: int | None) -> Lowered:
    """The operations of a program that has its phases.

    Args:
        program: The program.
        source: Name of the file, for messages.
        default_cost: FLOPs per element of the largest tensor for operators of others; None refuses them.

    Raises:
        InputError: If there are operators of others, or a call reads what is nowhere made.
    """
    return _Lowering(program, source, default_cost).run()


class _Lowering:
    def __init__(self, program: Program, source: str, default_cost: int | None) -> None:
        self._program = program
        self._source = source
        self._default_cost = default_cost
        self._names = Names()
        self._reordered: set[str] = set()
        self._foreign: Counter[str] = Counter()
        self._out = Lowered()

    def run(self) -> Lowered:
        out = self._out
        for given in self._program.inputs:
            out.types[given.name] = given.type
            out.where[given.name] = given.name
        for call in self._program.calls:
            out.types.update(made for made in call.outputs if made is not None)
        for call in self._program.calls:
            self._call(call)
        if self._foreign:
            told = ", ".join(f"{op} ({times} times)" for op, times in sorted(self._foreign.items()))
            problem = Problem(
                f"operators that are not PyTorch's own, without a rule for their cost: {told}",
                hint="say --default-cost 1 for one FLOP per element of the largest tensor that they touch",
            )
            raise InputError(self._source, [problem])
        return out

    def _call(self, call: Call) -> None:
        for name in call.refs():
            if name not in self._out.where:
                raise InputError(
                    self._source, [Problem(f"{call.name} ({call.target}) reads {name}, made nowhere before")]
                )
        first = call.argument(0, "self", call.argument(0, "input"))
        if call.op != TANGENTS and is_view(call, self._out.types, self._is_reordered(first)):
            self._view(call, first)
        elif _in_place(call) and isinstance(first, Ref):
            self._write(call, first)
        else:
            made = [output for output in call.outputs if output is not None]
            operation = self._operation(call, [kept_bytes(call, kind, self._out.types) for _, kind in made])
            for slot, (name, _) in enumerate(made):
                self._out.where[name] = (len(self._out.operations), slot)
            self._out.operations.append(operation)

    def _is_reordered(self, first: object) -> bool:
        return isinstance(first, Ref) and first.name in self._reordered

    def _view(self, call: Call, first: Ref) -> None:
        self._out.views += 1
        for output in call.outputs:
            if output is not None:
                self._out.where[output[0]] = self._out.where[first.name]
                if call.op in REORDERING or first.name in self._reordered:
                    self._reordered.add(output[0])

    def _write(self, call: Call, first: Ref) -> None:
        """An operation in place: a new version of the memory that its first argument lies in."""
        out = self._out
        old = out.where[first.name]
        size = out.types[old].bytes if isinstance(old, str) else out.operations[old[0]].outputs[old[1]]
        operation = self._operation(call, [size])
        new = (len(out.operations), 0)
        out.operations.append(operation)
        out.in_place += 1
        if isinstance(old, str):
            out.mutated[old] = None
        for name in [name for name, where in out.where.items() if where == old]:
            out.where[name] = new
        for output in call.outputs:
            if output is not None:
                out.where[output[0]] = new

    def _operation(self, call: Call, sizes: Sequence[int]) -> Operation:
        base = call.op.partition(".")[2]
        name = "/".join(part for part in ("grad" if call.phase == "backward" else "", call.module, base) if part)
        node_id = self._names.unique(name)
        is_random = _is_random(call, base)
        if is_random:
            self._out.random.append(node_id)
        if call.op in _STATISTICS and call.argument(5, "training") is True:
            self._out.tracking.append(node_id)
        reads = [self._out.where[name] for name in call.refs()]
        return Operation(
            id=node_id,
            op=base.rstrip("_"),
            reads=tuple(dict.fromkeys(read for read in reads if not isinstance(read, str))),
            outputs=tuple(sizes),
            flops=1 if call.op == TANGENTS else self._cost(call),
            phase=call.phase,
            recompute=not is_random and call.op != TANGENTS,
            differentiable=tuple(output[1].floating for output in call.outputs if output is not None),
        )

    def _cost(self, call: Call) -> int:
        if call.target.startswith(_OWN):
            try:
                return flops(call, self._out.types)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                problem = Problem(
                    f"{call.name} ({call.target}) cannot be costed: {error}", hint="are its arguments right?"
                )
                raise InputError(self._source, [problem]) from None
        if self._default_cost is None:
            self._foreign[call.op] += 1
            return 1
        self._out.defaults[call.op] += 1
        return self._default_cost * elements(call, self._out.types)


def _in_place(call: Call) -> bool:
    """Whether an operator writes into its first argument: by PyTorch's convention, its name ends in one underscore."""
    base = call.op.partition(".")[2]
    return base.endswith("_") and not base.endswith("__")


def _is_random(call: Call, base: str) -> bool:
    if base == "scaled_dot_product_attention":
        return bool(call.argument(4, "dropout_p", 0.0))
    return base.rstrip("_") in _RANDOM
