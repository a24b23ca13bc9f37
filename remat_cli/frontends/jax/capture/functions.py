"""Writes groups of equations as functions that run without the code that they came from, equal ones once."""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.jax.capture.flat import Atom, Equation, Flat, Number, atom_form, equation_form
from remat_cli.frontends.jax.compat import bind, key_implementation, without_places
from remat_cli.frontends.jax.document import ITEM_BYTES, ArraySpec
from remat_cli.frontends.source import one_line

_PLATFORMS = {"cpu": "cpu", "cuda": "cuda"}


def spec_of(aval: Any) -> ArraySpec:
    """The array of a type; keys by the numbers in them.

    Raises:
        CaptureFailed: If documents hold no such type.
    """
    import jax

    key = key_implementation(aval.dtype)
    if key is not None:
        aval = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    name = str(aval.dtype)
    if name not in ITEM_BYTES:
        raise CaptureFailed(
            f"the step computes numbers of type {name}, which remat cannot keep",
            hint=f"use one of {', '.join(sorted(ITEM_BYTES))}",
        )
    if not all(isinstance(size, int) for size in aval.shape):
        raise CaptureFailed("the step has arrays without a fixed shape", hint="export it for one shape")
    return ArraySpec(name, tuple(map(int, aval.shape)), key)


@dataclass(slots=True)
class Functions:
    """The functions of a step.

    Attributes:
        flat: The program whose equations they run.
        device: The device that they are for.
        written: The functions so far, as ``jax.export`` writes them.
        known: The number of each, by what it does.
        contents: The number of each, by the hash of its text.
    """

    flat: Flat
    device: str
    written: list[bytes] = field(default_factory=list)
    known: dict[Hashable, int] = field(default_factory=dict)
    contents: dict[str, int] = field(default_factory=dict)

    def number(self, equations: Sequence[Equation], reads: Sequence[int], makes: Sequence[int]) -> int:
        """The number of the function that runs ``equations``.

        Args:
            equations: In order of execution.
            reads: The variables that it is given.
            makes: The variables that it returns.

        Raises:
            CaptureFailed: If JAX cannot write it.
        """
        key = self._form(equations, reads, makes)
        if key not in self.known:
            written = self._written(equations, reads, makes)
            digest = hashlib.sha256(written).hexdigest()
            if digest not in self.contents:
                self.contents[digest] = len(self.written)
                self.written.append(written)
            self.known[key] = self.contents[digest]
        return self.known[key]

    def _form(self, equations: Sequence[Equation], reads: Sequence[int], makes: Sequence[int]) -> Hashable:
        """Something that is equal for groups that do the same."""
        names = {variable: k for k, variable in enumerate(reads)}

        def operand(atom: Atom) -> Hashable:
            return names[atom] if isinstance(atom, int) else atom_form(atom)

        lines = []
        for equation in equations:
            operands = tuple(map(operand, equation.reads))
            for variable in equation.makes:
                names[variable] = len(names)
            lines.append((equation_form(equation), operands))
        types = tuple(str(self.flat.avals[variable]) for variable in reads)
        return types, tuple(lines), tuple(names[variable] for variable in makes)

    def _written(self, equations: Sequence[Equation], reads: Sequence[int], makes: Sequence[int]) -> bytes:
        import jax
        from jax import export

        function = function_of(self.flat, equations, reads, makes)
        numbers = [spec_of(self.flat.avals[variable]) for variable in reads]
        specs = [jax.ShapeDtypeStruct(spec.shape, jax.numpy.dtype(spec.dtype)) for spec in numbers]
        platforms = [_PLATFORMS[self.device]]
        try:
            with without_places():
                return bytes(export.export(jax.jit(function), platforms=platforms)(*specs).serialize())
        except Exception as error:  # lowering rules may raise anything
            names = ", ".join(sorted({equation.name for equation in equations}))
            raise CaptureFailed(
                f"JAX cannot write the operations {names} for {self.device}: {one_line(error)}",
                hint="functions in a graph must run without Python code, and on one device",
            ) from error


def function_of(
    flat: Flat, equations: Sequence[Equation], reads: Sequence[int], makes: Sequence[int]
) -> Callable[..., list[Any]]:
    """The function that runs ``equations`` on arrays; keys are given and returned as the numbers in them."""

    def remat(*arrays: Any) -> list[Any]:
        env = {variable: as_keys(flat.avals[variable], a) for variable, a in zip(reads, arrays, strict=True)}

        def operand(atom: Atom) -> Any:
            return atom.value if isinstance(atom, Number) else env[atom]

        for equation in equations:
            results = bind(equation.primitive, equation.params, equation.context, list(map(operand, equation.reads)))
            env |= dict(zip(equation.makes, results, strict=True))
        return [as_numbers(flat.avals[variable], env[variable]) for variable in makes]

    return remat


def as_keys(aval: Any, array: Any) -> Any:
    """The keys with these numbers, if ``aval`` is a type of keys; else ``array``."""
    import jax

    key = key_implementation(aval.dtype)
    return array if key is None else jax.random.wrap_key_data(array, impl=key)


def as_numbers(aval: Any, array: Any) -> Any:
    """The numbers in keys, if ``aval`` is a type of keys; else ``array``."""
    import jax

    return array if key_implementation(aval.dtype) is None else jax.random.key_data(array)
