"""Lowers a program of ATen operators to computations, with one value per storage.

Files and the steps that the PyTorch frontend captures share this lowering.

*Views are not computations.* Their readers read the memory behind them. If a program states in which memory its tensors
lie, a call is a view when its results lie in memory that exists already. Otherwise the rules of
:mod:`remat_cli.frontends.aten.views` decide. Results that share memory with each other are one value.

*Inlined calls are not computations either.* Their readers read what they read.

*Operations in place* make a new value of the same size. From there on, all tensors in the old memory lie in the new
value. If the old memory was an input or a buffer, its last version is an output of the graph.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from remat_cli.errors import InputError
from remat_cli.frontends.aten.program import TANGENTS, Call, Program, Ref, TensorType
from remat_cli.frontends.aten.retained_bytes import retained_bytes
from remat_cli.frontends.aten.views import REORDERING, is_view
from remat_cli.frontends.imported import Made, Names

_RANDOM_OPERATORS = """
bernoulli multinomial native_dropout normal poisson rand rand_like randint randint_like randn randn_like randperm
rrelu_with_noise dropout alpha_dropout feature_dropout uniform exponential
"""
_RANDOM = frozenset(_RANDOM_OPERATORS.split())
_STATISTICS = ("aten.batch_norm", "aten.native_batch_norm", "aten._native_batch_norm_legit", "aten.instance_norm")
"""Operators that update running statistics in place, although their schema does not say so."""

Cost = Callable[[Call, Mapping[str, TensorType]], float]
"""Cost of a call, given the types of all tensors."""


@dataclass(frozen=True, slots=True)
class Inlined:
    """A tensor that its readers compute; ``reads`` is the memory that they read for it, each once."""

    reads: tuple[Made | str, ...]


@dataclass(frozen=True, slots=True)
class Computation:
    """A call that makes values.

    Attributes:
        call: The call.
        id: Unique name.
        op: Kind of operation.
        reads: Values that it reads, each once.
        values: For each value that it makes, the names of the tensors in it; empty for a write without a result.
        sizes: Bytes of each value.
        cost: As the cost function says; 1 for the tangents.
        random: Whether it draws random numbers.
    """

    call: Call
    id: str
    op: str
    reads: tuple[Made, ...]
    values: tuple[tuple[str, ...], ...]
    sizes: tuple[int, ...]
    cost: float
    random: bool


@dataclass(slots=True)
class Lowered:
    """A lowered program.

    Attributes:
        computations: In execution order.
        where: Memory of each tensor: a value, the name of an input in fixed memory, or what its readers read instead.
        types: Type of each tensor.
        mutated: Names of the inputs that operations write into.
        views: Names of the calls that are views, or inlined.
        in_place: Number of operations in place, which make a new value.
        tracking: Ids of operations that also update running statistics.
    """

    computations: list[Computation] = field(default_factory=list)
    where: dict[str, Made | str | Inlined] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    mutated: dict[str, None] = field(default_factory=dict)
    views: list[str] = field(default_factory=list)
    in_place: int = 0
    tracking: list[str] = field(default_factory=list)


def lower(program: Program, source: str, cost: Cost) -> Lowered:
    """The computations of a program whose calls have phases; ``source`` names the file in messages.

    Raises:
        InputError: If a call reads a tensor that no earlier call makes, or the cost is unknown.
    """
    work = _Lowering(source, cost)
    out = work.out
    for given in program.inputs:
        out.types[given.name] = given.type
        out.where[given.name] = given.name
        work.own(given.type, given.name)
    for call in program.calls:
        out.types.update(made for made in call.outputs if made is not None)
    for call in program.calls:
        work.call(call)
    return out


class _Lowering:
    def __init__(self, source: str, cost: Cost) -> None:
        self.out = Lowered()
        self._source = source
        self._cost = cost
        self._names = Names()
        self._reordered: set[str] = set()
        self._owners: dict[Hashable, Made | str | Inlined] = {}

    def own(self, kind: TensorType, where: Made | str | Inlined) -> None:
        """Remember the owner of a tensor's memory, if the memory is known."""
        if kind.storage is not None:
            self._owners[kind.storage] = where

    def call(self, call: Call) -> None:
        where = self.out.where
        for name in call.refs():
            if name not in where:
                words = f"{call.name} ({call.target}) reads {name}, made nowhere before"
                raise InputError.of(self._source, words)
        first = call.argument(0, "self", call.argument(0, "input"))
        if call.op == TANGENTS:  # before views: tangents are new values even if their memory is known already
            self._compute(call)
        elif call.inlined:
            self._inline(call)
        elif self._looks(call, first):
            self._view(call, first)
        elif _in_place(call) and isinstance(first, Ref):
            self._write(call, first)
        else:
            self._compute(call)

    def _looks(self, call: Call, first: object) -> bool:
        """Whether a call is a view: its results lie in memory that exists already."""
        storages = [output[1].storage for output in call.outputs if output is not None]
        if storages and None not in storages:
            known = [storage in self._owners for storage in storages]
            if any(known) and not all(known):
                words = f"{call.target} returns new memory and a view of old memory at once"
                raise InputError.of(self._source, words)
            return all(known)
        return is_view(call, self.out.types, isinstance(first, Ref) and first.name in self._reordered)

    def _view(self, call: Call, first: object) -> None:
        self.out.views.append(call.name)
        for output in call.outputs:
            if output is None:
                continue
            name, kind = output
            if kind.storage is not None:
                self.out.where[name] = self._owners[kind.storage]
            elif isinstance(first, Ref):
                self.out.where[name] = self.out.where[first.name]
                if call.op in REORDERING or first.name in self._reordered:
                    self._reordered.add(name)

    def _inline(self, call: Call) -> None:
        """Lower a call that its readers compute."""
        self.out.views.append(call.name)
        found = Inlined(tuple(dict.fromkeys(self._reads(call))))
        for output in call.outputs:
            if output is not None:
                self.out.where[output[0]] = found
                self.own(output[1], found)

    def _reads(self, call: Call) -> Iterator[Made | str]:
        """The memory that a call reads."""
        for name in call.refs():
            where = self.out.where[name]
            yield from where.reads if isinstance(where, Inlined) else (where,)

    def _write(self, call: Call, first: Ref) -> None:
        """Lower an operation in place: it makes a new version of the memory of its first argument."""
        out = self.out
        old = out.where[first.name]
        if isinstance(old, Inlined):
            words = f"{call.name} ({call.target}) writes into {first.name}, which has no memory"
            raise InputError.of(self._source, words)
        size = out.types[old].bytes if isinstance(old, str) else out.computations[old[0]].sizes[old[1]]
        new = (len(out.computations), 0)
        out.computations.append(self._computation(call, [call.made()], [size]))
        out.in_place += 1
        if isinstance(old, str):
            out.mutated[old] = None
        # Views of the old memory see the write, so they move to the new value too.
        for name in [name for name, where in out.where.items() if where == old]:
            out.where[name] = new
        for name in call.made():
            out.where[name] = new

    def _compute(self, call: Call) -> None:
        """Lower a call that makes new memory: one value for each of its results, or for several that share memory."""
        values: list[list[str]] = []
        sizes: list[int] = []
        places: dict[str, Made] = {}
        for slot, output in enumerate(call.outputs):
            if output is None:
                continue
            name, kind = output
            known = None if kind.storage is None or call.op == TANGENTS else self._owners.get(kind.storage)
            if isinstance(known, tuple):
                values[known[1]].append(name)
                places[name] = known
                continue
            # Each tangent has memory of its own, even if the results that the tangents belong to share memory.
            places[name] = (len(self.out.computations), len(values))
            self.own(kind, places[name])
            values.append([name])
            sizes.append(retained_bytes(call, slot, self.out.types))
        self.out.computations.append(self._computation(call, values, sizes))
        self.out.where.update(places)

    def _computation(self, call: Call, values: list[list[str]], sizes: list[int]) -> Computation:
        base = call.op.partition(".")[2]
        parts = ("grad" if call.phase == "backward" else "", call.module, base)
        node_id = self._names.unique("/".join(part for part in parts if part))
        if call.op in _STATISTICS and call.argument(5, "training") is True:
            self.out.tracking.append(node_id)
        return Computation(
            call=call,
            id=node_id,
            op=base[:-1] if _in_place(call) else base,
            reads=tuple(dict.fromkeys(read for read in self._reads(call) if not isinstance(read, str))),
            values=tuple(map(tuple, values)),
            sizes=tuple(sizes),
            cost=1 if call.op == TANGENTS else self._cost(call, self.out.types),
            random=_is_random(call, base),
        )


def _in_place(call: Call) -> bool:
    """Whether an operator writes into its first argument: PyTorch ends the names of such operators in ``_``."""
    base = call.op.partition(".")[2]
    return base.endswith("_") and not base.endswith("__")


def _is_random(call: Call, base: str) -> bool:
    if call.random is not None:
        return call.random
    if base == "scaled_dot_product_attention":
        return bool(call.argument(4, "dropout_p", 0.0))
    return base.rstrip("_") in _RANDOM
