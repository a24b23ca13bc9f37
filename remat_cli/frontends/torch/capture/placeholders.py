"""The inputs of a captured step: the tensor of each placeholder, and the valid range of its numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import CaptureFailed
from remat_cli.frontends.aten.value_ranges import (
    GROWING,
    INDEXING,
    INDEXING_ALONG,
    INDEXING_EACH,
    INDEXING_FLAT,
    OFFSETS,
    SHARES,
)
from remat_cli.frontends.torch.capture.capture import Captured
from remat_cli.frontends.torch.codec import spec_of
from remat_cli.frontends.torch.compat.aot_autograd import descriptors
from remat_cli.frontends.torch.compat.distributed import whole_description
from remat_cli.frontends.torch.compat.fake_tensors import is_fake
from remat_cli.frontends.torch.compat.operators import is_operator
from remat_cli.frontends.torch.document import Placeholder
from remat_cli.frontends.torch.tensors import dense_bytes, leaves, storage_bytes
from remat_cli.frontends.torch.types import FxGraph, FxNode, Tensor


@dataclass(frozen=True, slots=True)
class JointInput:
    """A placeholder of the joint graph.

    Attributes:
        placeholder: Its description in a document.
        number: Position among the compiler's inputs; for a tangent the number of the result, see :func:`result_kind`.
    """

    placeholder: Placeholder
    number: int | str

    @property
    def is_tangent(self) -> bool:
        """Whether it is a gradient that comes from outside after the forward pass."""
        return self.placeholder.kind == "tangent"


def joint_inputs(captured: Captured) -> list[JointInput]:
    """All placeholders, in order.

    Raises:
        CaptureFailed: If an input is not a plain dense tensor.
    """
    known_kinds = descriptors()
    names = _known(captured)
    limits = _limits(captured.joint.graph)
    places: list[JointInput] = []
    for node in captured.joint.graph.find_nodes(op="placeholder"):
        value, description = node.meta["val"], whole_description(node.meta.get("desc"))
        if not is_fake(value):
            raise CaptureFailed(
                f"an input of the model is {type(value).__name__} and not a tensor of fixed shape: compile with "
                "torch.compile(..., dynamic=False)"
            )
        if isinstance(description, known_kinds.PlainAOTInput):
            tensor = captured.tensors[description.idx]
            kind, name = names.get(id(tensor), ("captured", f"captured{description.idx}"))
            size, number = storage_bytes(tensor), description.idx
        elif (
            isinstance(description, known_kinds.TangentAOTInput)
            and (number := _result_number(description.output)) is not None
        ):
            kind, name, size = "tangent", f"tangent{number}", dense_bytes(value)
        else:
            raise _refused(captured, description, names)
        places.append(JointInput(Placeholder(kind, name, spec_of(value), size, limits[node]), number))
    return places


def unplannable(parts: Sequence[Captured | None]) -> dict[int, CaptureFailed]:
    """Why some of the joint graphs of a step cannot be planned, by their position."""
    errors = {}
    for number, part in enumerate(parts):
        try:
            if part is not None:
                joint_inputs(part)
        except CaptureFailed as error:
            errors[number] = error
    return errors


def _refused(captured: Captured, description: Any, names: Mapping[int, tuple[str, str]]) -> CaptureFailed:
    """The error for a placeholder of an unknown kind, with the reason that PyTorch added it."""
    known_kinds = descriptors()
    # Tokens order operations with side effects (prints, checks); their names are arguments of the wrapped calls.
    if isinstance(description, known_kinds.ForwardTokenAOTInput | known_kinds.BackwardTokenAOTInput):
        nodes = captured.joint.graph.nodes
        effects = {str(a) for n in nodes for a in n.args if is_operator(a) and not is_operator(n.target)}
        return CaptureFailed(
            f"the step does something besides computing: {', '.join(sorted(effects))}",
            hint="a plan cannot repeat that, so leave it out; functions of torch.linalg that check what they compute "
            "have variants that do not, such as torch.linalg.cholesky_ex",
        )
    written = getattr(getattr(description, "output", None), "mutated_input", None)
    if isinstance(written, known_kinds.PlainAOTInput):
        kind, name = names.get(id(captured.tensors[written.idx]), ("tensor", f"captured{written.idx}"))
        return CaptureFailed(
            f"the step writes into the {kind} {name}, of which it also takes the gradient",
            hint="write into it between steps (Embedding with max_norm writes too), or into a copy",
        )
    return CaptureFailed(
        f"an input of the model is of a kind that remat does not know: {type(description).__name__}",
        hint="tensor subclasses and inputs that share memory and are written to are not supported",
    )


def _known(captured: Captured) -> dict[int, tuple[str, str]]:
    """Kind and name of tensors by identity; the first name of a tensor with several."""
    model = captured.model
    tensors: list[tuple[str, str, Tensor]] = [("parameter", n, t) for n, t in model.module.named_parameters()]
    tensors += [("buffer", n, t) for n, t in model.module.named_buffers()]
    tensors += [("input", n, t) for tree in (model.inputs, model.keywords) for n, t in leaves(tree)]
    names: dict[int, tuple[str, str]] = {}
    for kind, name, tensor in tensors:
        names.setdefault(id(tensor), (kind, name))
    return names


def _limits(graph: FxGraph) -> dict[FxNode, int | None]:
    """For each node with one tensor: a limit that its numbers must be below, given by the operators that read them.

    Operators pass integers on, except for arithmetic, so the limit of a result applies to the arguments too. Limits
    only make random inputs valid, so one that is too low does no harm.
    """
    limits: dict[FxNode, int | None] = {}
    for node in reversed(graph.nodes):
        dtype = getattr(node.meta.get("val"), "dtype", None)
        if dtype is None:
            continue
        floating = dtype.is_floating_point or dtype.is_complex
        bounds: list[int | None] = []
        for user in node.users:
            if user.op == "call_function":
                shares = [1 for k in SHARES.get(str(user.target), ()) if user.args[k] is node]
                bounds += shares if floating else _used_as_index(user, node)
                bounds.append(_handed_back(user, node, limits.get(user)))
        limits[node] = min((limit for limit in bounds if limit is not None), default=None)
    return limits


def _handed_back(user: FxNode, node: FxNode, limit: int | None) -> int | None:
    """The limit of ``node`` that keeps the result of ``user``, an operator that reads it, below ``limit``."""
    if limit is None:
        return None
    import torch

    read, result = node.meta["val"], user.meta["val"]
    if any(t.dtype == torch.bool or t.dtype.is_floating_point or t.dtype.is_complex for t in (read, result)):
        return limit if read.dtype == result.dtype else None
    name = str(user.target).split(".")[1]
    if name not in GROWING:
        return limit
    other = user.args[1] if len(user.args) > 1 else None
    if name in {"add", "sub"} and user.args[0] is node and isinstance(other, int):
        return max(1, limit - other if name == "add" else limit + other)
    if name == "mul" and node.op != "placeholder":  # most often by a mask
        return limit
    # Of other arithmetic, zeros and ones hardly leave a range, unless many are added up.
    added_up = read.numel() // max(1, result.numel()) if name == "sum" else 1
    if name == "cumsum":
        added_up = read.shape[other] if read.dim() else 1
    return 2 if added_up < limit else 1


def _used_as_index(user: FxNode, node: FxNode) -> list[int]:
    name = str(user.target)
    if name in INDEXING_EACH:
        shape = user.args[0].meta["val"].shape
        return [int(shape[k]) for k, index in enumerate(user.args[1]) if index is node]
    if name in INDEXING_FLAT and user.args[1] is node:
        return [int(user.args[0].meta["val"].numel())]
    if name in OFFSETS and user.args[OFFSETS[name]] is node:
        return [1]
    indexed, indices, dimension = INDEXING.get(name, (0, -1, 0))
    if name in INDEXING_ALONG:
        indices, dimension = 2, user.args[1]
    if indices < 0 or user.args[indices] is not node:
        return []
    shape = user.args[indexed].meta["val"].shape
    return [int(shape[dimension])] if shape else [1]


def result_kind(captured: Captured, number: int, places: Sequence[JointInput]) -> tuple[str, int | str]:
    """The kind of the ``number``-th output of the joint graph, and what it belongs to.

    The kind is ``result``, ``update`` or ``gradient``. Updates and gradients belong to the placeholder with a position.
    Results have a number; memory that several results are views of is a result too, such as ``1.base``.

    Raises:
        CaptureFailed: If it is of another kind.
    """
    if number >= captured.forward_outputs:
        return "gradient", number - captured.forward_outputs
    known_kinds = descriptors()
    inputs = [place.number for place in places if not place.is_tangent]
    description = whole_description(captured.joint.graph.output_node().meta["desc"][number])
    if isinstance(description, known_kinds.InputMutationAOTOutput):
        mutated = description.mutated_input
        if isinstance(mutated, known_kinds.PlainAOTInput) and mutated.idx in inputs:
            return "update", inputs.index(mutated.idx)
        raise CaptureFailed(f"the model updates an input that shares memory with another ({mutated})")
    if (result := _result_number(description)) is not None:
        return "result", result
    raise CaptureFailed(f"the model returns what remat does not know: {type(description).__name__}")


def _result_number(description: Any) -> int | str | None:
    """The number of a result; ``1.base`` for memory that result 1 and others are views of; None if it is neither."""
    known_kinds = descriptors()
    if isinstance(description, known_kinds.PlainAOTOutput):
        return int(description.idx)
    if isinstance(description, known_kinds.IntermediateBaseAOTOutput):
        return f"{_result_number(description.base_of)}.base"
    return None
