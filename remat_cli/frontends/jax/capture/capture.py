"""Captures a training step: the jaxpr of the value and the gradients of a loss function, flat and pruned."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, SupportsFloat

from remat_cli.errors import CaptureFailed, RematError
from remat_cli.frontends.jax.capture.flat import LONGEST, Flat, flatten, pruned
from remat_cli.frontends.jax.capture.functions import spec_of
from remat_cli.frontends.jax.capture.naming import with_names
from remat_cli.frontends.jax.document import AUTO, PlaceSpec
from remat_cli.frontends.source import frames_of, place_in
from remat_cli.printable import printable

_EXPECTED = (
    "it returns (loss, arguments) or (loss, arguments, options): loss is a function that returns a scalar, arguments a "
    'tuple for it, options a mapping with "argnums" or "has_aux" as for jax.value_and_grad'
)
_OPTIONS = ("argnums", "has_aux")


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss function, and what its step is.

    Attributes:
        function: Returns a scalar; with ``has_aux``, a scalar and anything else.
        argnums: The arguments to differentiate by.
        has_aux: See ``function``.
    """

    function: Callable[..., Any]
    argnums: int | tuple[int, ...] = 0
    has_aux: bool = False

    def step(self, dissolved: Counter[str] | None = None) -> Callable[..., Any]:
        """The value and the gradients, by JAX; what the function computes has names.

        Args:
            dissolved: Counts the calls in the function that are dissolved, by their kind.
        """
        import jax

        named = with_names(self.function, dissolved)
        step: Callable[..., Any] = jax.value_and_grad(named, argnums=self.argnums, has_aux=self.has_aux)
        return step


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured step.

    Attributes:
        flat: Its program.
        places: The arguments, in order.
        results: For every result of the program its kind and name.
        structure: The structure of what the step returns.
        notes: What a user should know of the capture.
    """

    flat: Flat
    places: tuple[PlaceSpec, ...]
    results: tuple[tuple[str, str], ...]
    structure: Any
    notes: tuple[str, ...]


def loss_in(returned: Any, name: str) -> tuple[Loss, tuple[Any, ...]]:
    """The loss and its arguments in what the user's function ``name`` returned.

    Raises:
        CaptureFailed: If it returned something else.
    """
    if not isinstance(returned, tuple) or not 2 <= len(returned) <= 3:
        raise CaptureFailed(f"{name}() returned {type(returned).__name__}", hint=_EXPECTED)
    function, arguments = returned[:2]
    options = returned[2] if len(returned) == 3 else {}
    if not callable(function):
        raise CaptureFailed(f"{name}() returned {type(function).__name__} as the loss", hint=_EXPECTED)
    if not isinstance(arguments, tuple | list):
        raise CaptureFailed(f"{name}() returned {type(arguments).__name__} as the arguments", hint=_EXPECTED)
    if not isinstance(options, Mapping) or any(key not in _OPTIONS for key in options):
        raise CaptureFailed(f"{name}() returned other options than {' and '.join(_OPTIONS)}", hint=_EXPECTED)
    return Loss(function, options.get("argnums", 0), bool(options.get("has_aux", False))), tuple(arguments)


def capture(
    loss: Loss, arguments: tuple[Any, ...], keywords: Mapping[str, Any] | None = None, *, scans: str = AUTO
) -> Captured:
    """The step of ``loss`` for arguments of these shapes. Nothing is computed.

    Args:
        loss: The loss function.
        arguments: Arrays, ``jax.ShapeDtypeStruct`` or numbers, in any containers that JAX knows.
        keywords: Arguments by name.
        scans: What becomes of scans, one of :data:`~remat_cli.frontends.jax.document.SCANS`.

    Raises:
        CaptureFailed: If JAX cannot trace it, or the graph could not hold it.
    """
    import jax

    keywords = dict(keywords or {})
    dissolved: Counter[str] = Counter()
    step = loss.step(dissolved)
    try:
        closed, shape = jax.make_jaxpr(step, return_shape=True)(*arguments, **keywords)
    except RematError:
        raise
    except Exception as error:  # the user's code may do anything
        raise _no_arrays(arguments, keywords) or _no_loss(loss, arguments, keywords) or _failed(error) from error
    flat = pruned(flatten(closed, scans))
    leaves, _ = jax.tree_util.tree_flatten_with_path((arguments, keywords))
    places = tuple(
        PlaceSpec("argument", _argument_name(path), spec_of(flat.avals[place]), _below(leaf))
        for (path, leaf), place in zip(leaves, flat.places, strict=True)
    )
    results, structure = jax.tree_util.tree_flatten_with_path(shape)
    return Captured(
        flat, places, tuple(_result(path, loss) for path, _ in results), structure, _notes(flat, dissolved, scans)
    )


def _no_arrays(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> CaptureFailed | None:
    """The error for arguments that hold anything but arrays, such as the functions in a model of equinox."""
    import jax

    leaves, _ = jax.tree_util.tree_flatten_with_path((arguments, keywords))
    others = [
        (path, leaf)
        for path, leaf in leaves
        if not hasattr(leaf, "dtype") and not isinstance(leaf, complex | SupportsFloat)
    ]
    if not others:
        return None
    more = f", and {len(others) - 1} more are none" if len(others) > 1 else ""
    path, leaf = others[0]
    what = getattr(leaf, "__name__", "")
    return CaptureFailed(
        f"the argument {_argument_name(path)} is no array but {type(leaf).__name__} {what}".rstrip() + more,
        hint="give the arrays, and let the loss refer to the rest; with equinox: arrays, static = "
        "eqx.partition(model, eqx.is_array), and in the loss model = eqx.combine(arrays, static)",
    )


def _no_loss(loss: Loss, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> CaptureFailed | None:
    """The error for a function that returns something else than a loss, such as a whole training step."""
    import jax

    try:
        result = jax.eval_shape(loss.function, *arguments, **keywords)
    except Exception:  # it fails by itself: what JAX says of that is the better error
        return None
    if loss.has_aux and isinstance(result, tuple) and len(result) == 2:
        result = result[0]
    if getattr(result, "shape", None) == ():
        return None
    holds = f"an array of shape {result.shape}" if hasattr(result, "shape") else type(result).__name__
    if isinstance(result, tuple):
        holds += f" of {len(result)}"
    return CaptureFailed(
        f"the function returns {holds}, and not a loss, which is a scalar",
        hint="plans are for the loss function, not for a training step: return loss_function, (parameters, batch) "
        "here, and let the step take loss and gradients for the optimizer's update from "
        "remat_cli.frontends.jax.value_and_grad(loss_function, plan=...); for a function that returns (loss, other), "
        "add {'has_aux': True}",
    )


def _failed(error: Exception) -> CaptureFailed:
    place = place_in(frames_of(error), "jax")
    lines = [printable(line) for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    at = f"{place}: " if place else ""
    return CaptureFailed(
        f"the step could not be captured: {at}{type(error).__name__}: {lines[0][:400]}",
        hint="does jax.value_and_grad of the function work for these arguments?",
        details=[f"  {line}" for line in lines[1:6]],
    )


def path_name(path: Any) -> str:
    """``0.layers.w`` for a path in a container."""
    import jax

    return printable(str(jax.tree_util.keystr(path, simple=True, separator=".")))


def _argument_name(path: Any) -> str:
    """The name of an argument: its number or keyword, and the path in it."""
    return path_name(path[1:])


def _result(path: Any, loss: Loss) -> tuple[str, str]:
    """Kind and name of a result of ``value_and_grad``."""
    if path[0].idx == 1:  # gradients: for one argument, or a tuple of them
        numbers = (loss.argnums,) if isinstance(loss.argnums, int) else tuple(loss.argnums)
        if isinstance(loss.argnums, int):
            inner, number = path[1:], numbers[0]
        else:
            inner, number = path[2:], numbers[path[1].idx]
        rest = path_name(inner)
        return "gradient", f"{number}.{rest}" if rest else str(number)
    if loss.has_aux and path[1].idx == 1:
        return "auxiliary", path_name(path[2:]) or "auxiliary"
    return "loss", "loss"


def _below(leaf: Any) -> int | None:
    """A limit of whole numbers, if they are there: random ones in their place must be valid too."""
    import jax
    import numpy as np

    if not hasattr(leaf, "dtype") or not hasattr(leaf, "__array__") or getattr(leaf, "size", 0) == 0:
        return None
    if not jax.dtypes.issubdtype(leaf.dtype, np.integer):
        return None
    lowest, highest = int(leaf.min()), int(leaf.max())
    return highest + 1 if lowest >= 0 else None


def _notes(flat: Flat, dissolved: Counter[str], scans: str) -> tuple[str, ...]:
    """What was done with loops, prints and ``jax.checkpoint``."""
    notes = []
    if flat.loops["unrolled"]:
        short = f" of at most {LONGEST} steps" if scans == AUTO else ""
        notes.append(f"unrolled: {flat.loops['unrolled']} scans{short}; the plan tells their steps apart")
    if flat.loops["divided"]:
        notes.append(
            f"divided: {flat.loops['divided']} scans, into blocks of steps; the plan tells their blocks apart "
            "(scans unrolled: their steps)"
        )
    for kind in ("scan", "while", "cond"):
        if flat.loops[kind]:
            notes.append(f"kept whole, as one operation each: {flat.loops[kind]} of {kind}")
    if flat.prints:
        notes.append(f"left out: {flat.prints} prints (jax.debug)")
    if dissolved["remat2"] or dissolved["checkpoint"]:
        notes.append("jax.checkpoint in the function is undone: the plan decides what is computed again")
    return tuple(notes)
