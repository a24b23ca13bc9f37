"""All undocumented names of JAX that this frontend uses. No other module uses such names.

Each function here is small and has a test of its own (``tests/jax_frontend/test_compat.py``). If a new version of JAX
moves or changes a name, the test says which, before any plan goes wrong.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def is_literal(atom: Any) -> bool:
    """Whether an operand of an equation is a number in the program, and not a variable."""
    from jax.extend.core import Literal

    return isinstance(atom, Literal)


def inner_jaxpr(value: Any) -> tuple[Any, Sequence[Any]] | None:
    """The jaxpr in a parameter of an equation, and its constants; None if the parameter is something else."""
    from jax.extend.core import ClosedJaxpr, Jaxpr

    if isinstance(value, ClosedJaxpr):
        return value.jaxpr, value.consts
    return (value, ()) if isinstance(value, Jaxpr) else None


def closed_jaxpr(function: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """The jaxpr of a function for arguments of these types, with its constants."""
    import jax

    return jax.make_jaxpr(function)(*avals)


def scope_of(equation: Any) -> str:
    """The transformations and named scopes around an equation: ``transpose(jvp(Model))/Dense_0``."""
    return str(equation.source_info.name_stack)


def context_of(equation: Any) -> Any:
    """The settings under which an equation was made, such as the precision of products; a context manager is inside."""
    return equation.ctx


def bind(primitive: Any, params: Mapping[str, Any], context: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of one equation."""
    with context.manager:
        results = primitive.bind(*operands, **primitive.get_bind_params(dict(params)))
    return list(results) if primitive.multiple_results else [results]


def is_tracer(value: Any) -> bool:
    """Whether a value stands for one that another transformation (jit, vmap, grad) will fill in."""
    from jax.core import Tracer

    return isinstance(value, Tracer)


def tracing() -> bool:
    """Whether a transformation (jit, vmap, grad) is running the code at hand."""
    from jax._src.core import trace_state_clean

    return not trace_state_clean()


def key_implementation(dtype: Any) -> str | None:
    """Name of the random generator of a type of keys; None for types of numbers."""
    import jax

    if not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return None
    return str(dtype._impl.name)


@contextlib.contextmanager
def without_places() -> Iterator[None]:
    """Within this context, exported functions do not hold the files and lines that they came from."""
    from jax._src import config

    with config.traceback_in_locations_limit(0):
        yield


def stable_calls() -> frozenset[str]:
    """Names of the library functions that JAX promises to keep for exported functions."""
    from jax._src.export import _export

    return frozenset(_export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE)


def module_of(serialized: bytes) -> Any:
    """The exported function in a document, see ``jax.export.deserialize``."""
    from jax import export

    return export.deserialize(bytearray(serialized))
