"""A captured step as a flat list of equations: calls inlined, short loops over layers unrolled.

JAX writes a function as a jaxpr, whose equations may hold further jaxprs. Of these, calls (``jit``,
``jax.checkpoint``, functions with derivatives of their own) are inlined. A ``scan`` of few steps is unrolled, so that a
plan can tell its layers apart; a longer one is divided into blocks of steps, which are scans themselves. ``while`` and
``cond`` stay single operations, and so do scans that neither go over something nor stack what their steps make.

What a step need not compute is left out: operations that an earlier one has done already, and those that no result
depends on. All operations are pure, so computing one twice gives the same bits. What ``jax.checkpoint`` computes again
in the backward pass disappears here as well: when to compute again is for the plan to say.
"""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.jax.capture.naming import CARRY
from remat_cli.frontends.jax.compat import context_of, inner_jaxpr, is_literal, scope_of
from remat_cli.frontends.jax.document import AUTO, UNROLLED, WHOLE

_CALLS = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "call", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call"}
)
_IDENTITIES = frozenset({"name", "optimization_barrier", "copy", "stop_gradient"})
"""Operations that return what they read. ``name`` and barriers tell jax.checkpoint what to do, which a plan decides."""
_PRINTS = frozenset({"debug_callback", "debug_print"})
_REFUSED = {
    "pure_callback": "calls Python code (jax.pure_callback)",
    "io_callback": "calls Python code (jax.experimental.io_callback)",
    "shard_map": "runs on several devices (jax.shard_map)",
    "xla_pmap": "runs on several devices (jax.pmap)",
    "psum": "exchanges numbers between devices",
    "all_gather": "exchanges numbers between devices",
    "infeed": "reads from outside",
    "outfeed": "writes to the outside",
}
LONGEST = 64
"""Most steps of a scan that is unrolled: more than the layers of most models, and fewer than steps of time."""
_MOST_EQUATIONS = 50_000
_START = np.dtype("uint32")
"""Type of the number of a step. JAX wraps negative numbers around, which takes operations; these are not negative."""


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A number in the program.

    Attributes:
        value: The number as JAX keeps it.
        aval: Its type.
    """

    value: Any
    aval: Any


Atom = int | Number
"""What an equation reads: a variable, by its number, or a number in the program."""


@dataclass(frozen=True, slots=True, eq=False)
class Equation:
    """One primitive operation.

    Attributes:
        primitive: JAX's primitive.
        params: Its parameters.
        context: The settings under which it was written.
        reads: What it reads.
        makes: The variables that it makes.
        backward: Whether it belongs to the backward pass.
    """

    primitive: Any
    params: Mapping[str, Any]
    context: Any
    reads: tuple[Atom, ...]
    makes: tuple[int, ...]
    backward: bool

    @property
    def name(self) -> str:
        """Name of the primitive."""
        return str(self.primitive.name)

    @property
    def variables(self) -> tuple[int, ...]:
        """The variables that it reads."""
        return tuple(atom for atom in self.reads if isinstance(atom, int))


@dataclass(slots=True)
class Flat:
    """A flat program.

    Attributes:
        avals: Type of every variable.
        equations: In order of execution.
        places: The variables of the arguments, in order.
        constants: The array of every variable that stands for one.
        results: In order.
        step_bytes: Most bytes that a step of a scan stacks beside others, such as what it keeps for its gradients.
        loops: How many scans were ``unrolled`` or ``divided``, and how many loops were kept whole, by their kind.
        prints: How many prints are left out.
        names: The name of each variable of the forward pass that ``checkpoint_name`` gives one; the first, if several.
    """

    avals: list[Any] = field(default_factory=list)
    equations: list[Equation] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    constants: dict[int, Any] = field(default_factory=dict)
    results: list[Atom] = field(default_factory=list)
    loops: Counter[str] = field(default_factory=Counter)
    step_bytes: int = 0
    prints: int = 0
    names: dict[int, str] = field(default_factory=dict)

    def new(self, aval: Any) -> int:
        """A new variable."""
        self.avals.append(aval)
        return len(self.avals) - 1

    def aval_of(self, atom: Atom) -> Any:
        """The type of what an equation reads."""
        return self.avals[atom] if isinstance(atom, int) else atom.aval


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where a scan is cut.

    Attributes:
        sizes: Number of steps of each part.
        single: Whether every part is one step, which is inlined; otherwise it is a block, a scan itself.
    """

    sizes: tuple[int, ...]
    single: bool


@dataclass(frozen=True, slots=True)
class Stack:
    """Arrays on top of each other: one for each step of a scan, or for each block.

    Attributes:
        parts: The arrays.
        cuts: How the scan was cut.
    """

    parts: list[Atom]
    cuts: Cuts


def flatten(closed: Any, scans: str = AUTO) -> Flat:
    """The flat program of a closed jaxpr.

    Args:
        closed: The jaxpr.
        scans: What becomes of scans, one of :data:`~remat_cli.frontends.jax.document.SCANS`.

    Raises:
        CaptureFailed: If it calls Python code or other devices, or is too long.
    """
    flattener = _Flattener(scans)
    flat = flattener.flat
    flat.places = [flat.new(variable.aval) for variable in closed.jaxpr.invars]
    results = flattener.inline(closed.jaxpr, closed.consts, flat.places, top=True)
    flat.results = [flattener.whole(atom) for atom in results]
    return flat


@dataclass(slots=True)
class _Flattener:
    """Writes a flat program.

    Attributes:
        flat: The program so far.
        scans: What becomes of scans.
        stacks: The variables that stand for a stack of arrays which is not made before something reads it.
        made: The stacks that were made.
        arrays: The variable of each constant, by the identity of its array.
        slices: What takes steps from an array, by the type of the array and what is taken.
        starts: The number of each step at which something is taken.
        sweep: Whether the backward pass has begun.
    """

    scans: str
    flat: Flat = field(default_factory=Flat)
    stacks: dict[int, Stack] = field(default_factory=dict)
    made: dict[int, Atom] = field(default_factory=dict)
    arrays: dict[int, int] = field(default_factory=dict)
    slices: dict[Any, Any] = field(default_factory=dict)
    starts: dict[int, Any] = field(default_factory=dict)
    sweep: bool = False

    def constant(self, array: Any, aval: Any) -> int:
        """The variable of a constant."""
        if id(array) not in self.arrays:
            self.arrays[id(array)] = variable = self.flat.new(aval)
            self.flat.constants[variable] = array
        return self.arrays[id(array)]

    def inline(self, jaxpr: Any, consts: Sequence[Any], given: Sequence[Atom], *, top: bool = False) -> list[Atom]:
        """Write the equations of ``jaxpr`` for the arguments ``given``; returns what its results are.

        The transformations around an equation at the ``top`` say where the backward pass begins. Inside, they may be
        those of a gradient that the loss itself takes.
        """
        env: dict[Any, Atom] = {}
        for variable, array in zip(jaxpr.constvars, consts, strict=True):
            env[variable] = self.constant(array, variable.aval)
        env |= dict(zip(jaxpr.invars, given, strict=True))

        def atom(operand: Any) -> Atom:
            if not is_literal(operand):
                return env[operand]
            if operand.aval.shape:
                return self.constant(operand.val, operand.aval)
            return Number(operand.val, operand.aval)

        for equation in jaxpr.eqns:
            if top and scope_of(equation).startswith("transpose("):
                self.sweep = True
            results = self.equation(equation, [atom(operand) for operand in equation.invars])
            env |= dict(zip(equation.outvars, results, strict=True))
        return [atom(operand) for operand in jaxpr.outvars]

    def equation(self, equation: Any, reads: list[Atom]) -> list[Atom]:
        """Write one equation, or what it consists of; returns what its results are."""
        name, params = str(equation.primitive.name), equation.params
        if name in _REFUSED:
            raise CaptureFailed(
                f"the step {_REFUSED[name]}, which a graph cannot hold", hint="move it out of the loss function"
            )
        if name in _PRINTS:
            self.flat.prints += 1
            return []
        if name in _IDENTITIES:
            if name == "name" and isinstance(reads[0], int) and not self.sweep:
                name_of = str(params["name"])
                if name_of.startswith(f"{CARRY}."):  # comes after the name of the operation, and tells more
                    self.flat.names[reads[0]] = name_of
                self.flat.names.setdefault(reads[0], name_of)
            return reads
        inner = inner_jaxpr(params.get("jaxpr", params.get("call_jaxpr"))) if name in _CALLS | {"scan"} else None
        if inner is not None and name in _CALLS:
            return self.inline(*inner, reads)
        if inner is not None and (cuts := self.cuts(params)) is not None:
            self.flat.loops["unrolled" if cuts.single else "divided"] += 1
            return self.divided(equation, inner, reads, cuts)
        if name in {"scan", "while", "cond"}:
            self.flat.loops[name] += 1
        return self.written(equation, params, reads, [variable.aval for variable in equation.outvars])

    def written(self, equation: Any, params: Mapping[str, Any], reads: Sequence[Atom], avals: list[Any]) -> list[Atom]:
        """Write one equation with these parameters, which makes arrays of these types; returns its results."""
        name = str(equation.primitive.name)
        if equation.effects:
            raise CaptureFailed(
                f"the step has an operation with side effects ({name}), which a graph cannot hold",
                hint="move it out of the loss function",
            )
        if len(self.flat.equations) >= _MOST_EQUATIONS:
            raise CaptureFailed(
                f"the step has more than {_MOST_EQUATIONS:,} operations", hint="put repeated parts into jax.lax.scan"
            )
        makes = tuple(map(self.flat.new, avals))
        read = tuple(self.whole(atom) for atom in reads)
        self.flat.equations.append(Equation(equation.primitive, params, context_of(equation), read, makes, self.sweep))
        return list(makes)

    def cuts(self, params: Mapping[str, Any]) -> Cuts | None:
        """Where a scan is cut; None if it stays one operation."""
        jaxpr, length = params["jaxpr"].jaxpr, params["length"]
        over = len(jaxpr.invars) > params["num_consts"] + params["num_carry"]
        stacks = len(jaxpr.outvars) > params["num_carry"]
        if self.scans == WHOLE or length == 0 or not (over or stacks):
            return None
        if self.scans == UNROLLED or (self.scans == AUTO and length <= LONGEST):
            return Cuts((1,) * length, single=True)
        most = math.ceil(length / math.ceil(math.sqrt(length)))
        full, rest = divmod(length, most)
        return Cuts((most,) * full + (rest,) * (rest > 0), single=False)

    def divided(self, equation: Any, inner: tuple[Any, Sequence[Any]], reads: list[Atom], cuts: Cuts) -> list[Atom]:
        """Write a scan part by part."""
        params, outputs = equation.params, inner[0].outvars
        shared, carried = params["num_consts"], params["num_carry"]
        stacked = sum(v.aval.size * v.aval.dtype.itemsize for v in outputs[carried:])
        self.flat.step_bytes = max(self.flat.step_bytes, stacked)
        carry = reads[shared : shared + carried]
        stacks = [self.parts(atom, cuts) for atom in reads[shared + carried :]]
        made: list[list[Atom]] = [[] for _ in outputs[carried:]]
        parts = range(len(cuts.sizes))
        for part in reversed(parts) if params["reverse"] else parts:
            given = [*reads[:shared], *carry, *(stack[part] for stack in stacks)]
            if cuts.single:
                results = self.inline(*inner, given)
            else:
                results = self.block(equation, outputs, given, cuts.sizes[part])
            carry = results[:carried]
            for collected, result in zip(made, results[carried:], strict=True):
                collected.append(result)
        if params["reverse"]:
            made = [collected[::-1] for collected in made]
        length = params["length"]
        return [
            *carry,
            *(self.stack(m, _stacked(v.aval, length), cuts) for m, v in zip(made, outputs[carried:], strict=True)),
        ]

    def block(self, equation: Any, outputs: Sequence[Any], given: Sequence[Atom], length: int) -> list[Atom]:
        """Write so many steps of a scan as one operation."""
        params = {**equation.params, "length": length, "unroll": min(equation.params["unroll"], length)}
        carried = params["num_carry"]
        avals = [v.aval for v in outputs[:carried]] + [_stacked(v.aval, length) for v in outputs[carried:]]
        return self.written(equation, params, given, avals)

    def stack(self, parts: list[Atom], aval: Any, cuts: Cuts) -> Atom:
        """A variable for arrays on top of each other, which is made only if something reads it as a whole."""
        stacked = self.flat.new(aval)
        self.stacks[stacked] = Stack(parts, cuts)
        return stacked

    def parts(self, atom: Atom, cuts: Cuts) -> list[Atom]:
        """The parts of a stack along the first axis: arrays of single steps, or stacks of those of a block."""
        if isinstance(atom, int) and atom in self.stacks and self.stacks[atom].cuts == cuts:
            return self.stacks[atom].parts
        aval = self.flat.aval_of(atom)
        stacks_read: list[Atom] = []
        start = 0
        for size in cuts.sizes:
            closed = self.slicing(aval, size, cuts.single)
            stacks_read += self.inline(closed.jaxpr, closed.consts, [atom, self.start(start)])
            start += size
        return stacks_read

    def slicing(self, aval: Any, size: int, single: bool) -> Any:
        """What takes so many steps from an array of this type; where it starts is an argument.

        Were it a number in the program, no two steps would run the same function, and each would be compiled.
        """
        import jax

        def cut(array: Any, start: Any) -> Any:
            found = jax.lax.dynamic_slice_in_dim(array, start, size)
            return jax.lax.squeeze(found, (0,)) if single else found

        key = (aval, size, single)
        if key not in self.slices:
            self.slices[key] = jax.make_jaxpr(cut)(aval, jax.ShapeDtypeStruct((), _START))
        return self.slices[key]

    def start(self, number: int) -> int:
        """The constant that is this number of a step."""
        import jax

        if number not in self.starts:
            self.starts[number] = np.asarray(number, _START)
        return self.constant(self.starts[number], jax.core.ShapedArray((), _START))

    def whole(self, atom: Atom) -> Atom:
        """``atom``; if it is a stack that is not made yet, it is made now."""
        import jax
        import jax.numpy as jnp

        if not isinstance(atom, int) or atom not in self.stacks:
            return atom
        if atom in self.made:
            return self.made[atom]
        stack = self.stacks[atom]
        parts = [self.whole(part) for part in stack.parts]
        together = jnp.stack if stack.cuts.single else jnp.concatenate
        closed = jax.make_jaxpr(lambda *arrays: together(arrays))(*map(self.flat.aval_of, parts))
        [made] = self.inline(closed.jaxpr, closed.consts, parts)
        self.made[atom] = made
        return made


def _stacked(aval: Any, length: int) -> Any:
    """The type of so many arrays on top of each other."""
    return aval.update(shape=(length, *aval.shape))


_LARGEST = 1 << 16
"""Bytes of the largest array in a parameter that is compared by its contents."""


def pruned(flat: Flat) -> Flat:
    """``flat`` with every operation once, and only those that the results depend on."""
    return _needed(_once(flat))


def form_of(value: Any) -> Hashable:
    """Something that is equal for equal parameters of equations. What cannot be compared is equal only to itself."""
    inner = inner_jaxpr(value)
    if inner is not None:
        return "jaxpr", _jaxpr_form(*inner)
    if isinstance(value, tuple | list):
        return type(value).__name__, tuple(map(form_of, value))
    if isinstance(value, dict):
        return "dict", tuple((key, form_of(value[key])) for key in sorted(value, key=str))
    if hasattr(value, "tobytes") and hasattr(value, "dtype") and getattr(value, "nbytes", _LARGEST + 1) <= _LARGEST:
        return "array", str(value.dtype), tuple(value.shape), value.tobytes()
    try:
        hash(value)
    except TypeError:
        return "object", id(value)
    return type(value).__name__, value


def atom_form(number: Number) -> Hashable:
    """Something that is equal for equal numbers of the same type."""
    weak = bool(getattr(number.aval, "weak_type", False))
    return str(number.aval.dtype), weak, form_of(number.value), repr(number.value)


def equation_form(equation: Equation) -> Hashable:
    """Something that is equal for the same operation, whatever it reads."""
    return equation.name, form_of(dict(equation.params)), id(equation.primitive), form_of(equation.context)


def _jaxpr_form(jaxpr: Any, consts: Any) -> Hashable:
    names: dict[Any, int] = {}
    for variable in (*jaxpr.constvars, *jaxpr.invars):
        names[variable] = len(names)

    def operand(atom: Any) -> Hashable:
        if is_literal(atom):
            return atom_form(Number(atom.val, atom.aval))
        return names[atom]

    equations = []
    for equation in jaxpr.eqns:
        reads = tuple(map(operand, equation.invars))
        for variable in equation.outvars:
            names[variable] = len(names)
        types = tuple(str(variable.aval) for variable in equation.outvars)
        equations.append((str(equation.primitive.name), form_of(dict(equation.params)), reads, types))
    given_types = tuple(str(variable.aval) for variable in jaxpr.invars)
    return given_types, tuple(equations), tuple(map(operand, jaxpr.outvars)), tuple(id(const) for const in consts)


def _once(flat: Flat) -> Flat:
    """``flat`` without operations that an earlier one has done already."""
    same: dict[int, int] = {}
    first_of: dict[Hashable, tuple[int, ...]] = {}
    equations = []

    def moved(atom: Atom) -> Atom:
        return same.get(atom, atom) if isinstance(atom, int) else atom

    for equation in flat.equations:
        reads = tuple(map(moved, equation.reads))
        operands = tuple(atom if isinstance(atom, int) else atom_form(atom) for atom in reads)
        key = (equation_form(equation), operands)
        if key in first_of:
            same |= dict(zip(equation.makes, first_of[key], strict=True))
            continue
        first_of[key] = equation.makes
        equations.append(replace(equation, reads=reads))
    return replace(flat, equations=equations, results=list(map(moved, flat.results)))


def _needed(flat: Flat) -> Flat:
    """``flat`` without operations that no result depends on."""
    needed = {atom for atom in flat.results if isinstance(atom, int)}
    equations = []
    for equation in reversed(flat.equations):
        if needed.intersection(equation.makes):
            needed.update(equation.variables)
            equations.append(equation)
    constants = {variable: array for variable, array in flat.constants.items() if variable in needed}
    return replace(flat, equations=equations[::-1], constants=constants)
