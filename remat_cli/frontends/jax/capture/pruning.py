"""Removes what a step need not compute: equal operations on equal operands, and those that no result depends on.

All operations are pure, so computing one twice gives the same bits. What ``jax.checkpoint`` computes again in the
backward pass disappears here as well: when to compute again is for the plan to say.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from remat_cli.frontends.jax.capture.flat import Atom, Equation, Flat, Number
from remat_cli.frontends.jax.private import inner_jaxpr, is_literal

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
    return equation.name, form_of(dict(equation.params)), id(equation.primitive), _context_form(equation.context)


def _context_form(context: Any) -> Hashable:
    try:
        hash(context)
    except TypeError:
        return id(context)
    return context  # type: ignore[no-any-return]  # JAX's settings are Any to the type checker


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
        made = tuple(str(variable.aval) for variable in equation.outvars)
        equations.append((str(equation.primitive.name), form_of(dict(equation.params)), reads, made))
    given = tuple(str(variable.aval) for variable in jaxpr.invars)
    return given, tuple(equations), tuple(map(operand, jaxpr.outvars)), tuple(id(const) for const in consts)


def _once(flat: Flat) -> Flat:
    """``flat`` without operations that an earlier one has done already."""
    same: dict[int, int] = {}
    known: dict[Hashable, tuple[int, ...]] = {}
    kept = []

    def moved(atom: Atom) -> Atom:
        return same.get(atom, atom) if isinstance(atom, int) else atom

    for equation in flat.equations:
        reads = tuple(map(moved, equation.reads))
        operands = tuple(atom if isinstance(atom, int) else atom_form(atom) for atom in reads)
        key = (equation_form(equation), operands)
        if key in known:
            same |= dict(zip(equation.makes, known[key], strict=True))
            continue
        known[key] = equation.makes
        kept.append(replace(equation, reads=reads))
    return replace(flat, equations=kept, results=list(map(moved, flat.results)))


def _needed(flat: Flat) -> Flat:
    """``flat`` without operations that no result depends on."""
    needed = {atom for atom in flat.results if isinstance(atom, int)}
    kept = []
    for equation in reversed(flat.equations):
        if needed.intersection(equation.makes):
            needed.update(equation.variables)
            kept.append(equation)
    constants = {variable: array for variable, array in flat.constants.items() if variable in needed}
    return replace(flat, equations=kept[::-1], constants=constants)
