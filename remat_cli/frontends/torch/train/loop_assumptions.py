"""States what is assumed of a training loop: what it does with a module's results, and what memory its loss takes.

Steps correct the former: each backward pass shows which results take a gradient, and which are still there. The loss
runs between the forward and the backward pass of the module. What it keeps is gone when the backward pass of the module
begins, but for the gradients of the results.
"""

import contextlib
import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

from remat_cli.errors import CaptureFailed, UsageError
from remat_cli.frontends.messages import warn
from remat_cli.frontends.torch.capture.capture import Captured
from remat_cli.frontends.torch.capture.placeholders import joint_inputs, result_kind
from remat_cli.frontends.torch.capture.random_state import undisturbed
from remat_cli.frontends.torch.capture.results import TrainedResults, Use, tangent_numbers
from remat_cli.frontends.torch.compat.fake_tensors import is_fake, silent_fakes
from remat_cli.frontends.torch.compat.operators import weak_storage
from remat_cli.frontends.torch.measure.memory import changes_of, live_storages
from remat_cli.frontends.torch.tensors import dense_bytes, is_random, leaves, storage, storage_bytes
from remat_cli.frontends.torch.types import FakeMode, Tensor
from remat_cli.units import format_bytes


@dataclass(frozen=True, slots=True)
class Signature:
    """What distinguishes the graphs of a module, and is the same for all batch sizes and lengths.

    Attributes:
        results: Number, dimensions and type of each result.
        parameters: Shapes of the parameters that the graph reads: the parts of a module often return the same.
    """

    results: tuple[tuple[int | str, int, str], ...]
    parameters: tuple[tuple[int, ...], ...]

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of the results."""
        return frozenset(k for k, _, _ in self.results if isinstance(k, int))


@dataclass(slots=True)
class ResultUses:
    """What is assumed of the results of a module's graphs, and corrected by what steps do.

    Attributes:
        assumed: The use of each signature, as it is assumed now.
        elsewhere: The results of each signature that other parts hold, if they are there in the backward pass; they
            count there.
        module: The module, for the names of its tensors; None if it is gone or not known.
    """

    assumed: dict[Signature, Use] = field(default_factory=dict)
    elsewhere: dict[Signature, frozenset[int]] = field(default_factory=dict)
    module: Callable[[], Any] = lambda: None

    def name_of(self, tensor: Tensor) -> str:
        """The name of a parameter or buffer of the module, with what it is; empty for other tensors."""
        module = self.module()
        if module is None:
            return ""
        named = [("parameter", module.named_parameters()), ("buffer", module.named_buffers())]
        return next((f"{what} {name}" for what, pairs in named for name, one in pairs if one is tensor), "")

    def assume(self, captured: Captured, use: Use, with_all_held: Use) -> None:
        """Merge ``use`` with earlier assumptions for graphs of the same signature.

        ``with_all_held`` is the same if all that the module returns stays: other parts hold the rest, if anything does.
        """
        signature = signature_of(captured)
        before = self.assumed.get(signature, use)
        self.assumed[signature] = Use(before.takes | use.takes, before.holds | use.holds)
        others = signature.numbers - with_all_held.holds
        self.elsewhere[signature] = self.elsewhere.get(signature, others) & others

    def use_of(self, captured: Captured) -> Use:
        """What to assume of the results of a joint graph.

        For results of a signature not seen before: the first number takes a gradient, all do if there is no number, and
        all of them stay.
        """
        numbers = frozenset(tangent_numbers(captured))
        signature = signature_of(captured)
        if signature not in self.assumed:
            tangents = [(one.number, one.placeholder.spec.shape) for one in joint_inputs(captured) if one.is_tangent]
            scalars = [number for number, shape in tangents if set(shape) <= {1}]
            self.assumed[signature] = Use(frozenset(scalars[:1]) or numbers, signature.numbers)
        current = self.assumed[signature]
        return Use(current.takes & numbers or numbers, current.holds)

    def learn(self, captured: Captured, assumed: Use, seen: Use) -> bool:
        """Take note of what a step has done with the results. Whether the graph is to be planned again.

        A step that refutes an assumption is told of by a warning; the next one has another plan.
        """
        signature = signature_of(captured)
        current = self.assumed[signature]
        takes = seen.takes - current.takes
        holds = (seen.holds & signature.numbers) - current.holds - self.elsewhere.get(signature, frozenset())
        if takes:
            warn(
                f"remat: result {_listed(takes)} of the module takes a gradient, which was not assumed: this step "
                "computes its forward pass twice, and the next one has a plan that expects it (returns=[...] says so "
                "beforehand)"
            )
        if holds:
            sizes = {of: dense_bytes(value) for of, value in _results(captured)}
            warn(
                f"remat: result {_listed(holds)} of the module is still there in the backward pass, and holds= says "
                f"that it is not: this step takes {format_bytes(sum(sizes[k] for k in holds))} more than its plan, and "
                "the next one has a plan that counts it"
            )
        self.assumed[signature] = Use(current.takes | takes, current.holds | holds)
        return self.use_of(captured) != assumed


def _listed(results: Collection[int | str]) -> str:
    return ", ".join(map(str, sorted(results, key=str)))


def copied_bytes(captured: Captured, use: Use) -> int | None:
    """Bytes that a step keeps beside its inputs to be able to compute everything a second time; None if it never does.

    These are copies of what it updates, and the state of the random generator.
    """
    import torch

    if use.takes.issuperset(tangent_numbers(captured)):
        return None
    inputs = joint_inputs(captured)
    kinds = (result_kind(captured, k, inputs) for k in range(captured.forward_outputs))
    updated = {of for kind, of in kinds if kind == "update" and isinstance(of, int)}
    draws = any(is_random(node) for node in captured.joint.graph.nodes)
    state = int(torch.get_rng_state().numel()) if draws else 0  # that of CUDA is smaller, and not on the device
    return state + sum(inputs[of].placeholder.spec.bytes for of in updated)


def _results(captured: Captured) -> list[tuple[int | str, Any]]:
    """Number and fake tensor of each result of the forward pass, updates left out."""
    inputs = joint_inputs(captured)
    output = captured.joint.graph.output_node()
    results = []
    for k, node in enumerate(output.args[0][: captured.forward_outputs]):
        kind, of = result_kind(captured, k, inputs)
        if node is not None and kind == "result":
            results.append((of, node.meta["val"]))
    return results


def signature_of(captured: Captured) -> Signature:
    """The signature of a joint graph."""
    import torch

    return Signature(
        tuple((of, value.ndim, str(value.dtype)) for of, value in _results(captured)),
        tuple(tuple(map(int, t.shape)) for t in captured.tensors if isinstance(t, torch.nn.Parameter)),
    )


Loss = Callable[[Any], Any]
"""From what a module returns to a number that takes a gradient."""
_USUAL = 3
"""How many times the results that it reads a loss is assumed to take beside them, in float32 at least. Cross entropy
takes that at the start of its backward pass: the logarithm of softmax, its gradient, and that of the results. The mean
of squares takes two."""
_SESSIONS = 3
"""Sessions of PyTorch's profiler before giving up: on a busy machine one sometimes loses all events."""


@dataclass(frozen=True, slots=True)
class LossDemand:
    """What a loop asks of the results of a module.

    Attributes:
        trained: The results that take a gradient.
        loss_bytes: Most bytes that the loss takes at a time, in its forward or its backward pass, the gradients of the
            results included.
        forward_bytes: Most bytes that its forward pass takes at a time, when all results are still there.
        number_bytes: Bytes of the loss and of its gradient, which the loop has to the end of the backward pass; 0 if
            the module returns its loss.
        usual: Whether that is what a usual loss takes, because the loss is not known.
        uncounted: Why the workspace of its operations could not be measured; empty if it was, or is never.
    """

    trained: TrainedResults
    loss_bytes: int = 0
    forward_bytes: int = 0
    number_bytes: int = 0
    usual: bool = False
    uncounted: str = ""


def usual_demand(trained: TrainedResults) -> LossDemand:
    """What a loss asks that is not known, and computed outside of the module. A number is a loss itself."""
    size = sum(_in_float(tensor) for tensor in trained.tensors if tensor.numel() > 1)
    return LossDemand(trained, _USUAL * size, number_bytes=2 * 4 if size else 0, usual=size > 0)


def usual_loss() -> Callable[[Tensor], Tensor]:
    """A loss that takes what one is assumed to take that is not known."""
    import torch

    class Loss(torch.autograd.Function):  # type: ignore[misc]  # torch is Any to the type checker
        @staticmethod
        def forward(ctx: Any, tensor: Any) -> Any:
            ctx.form = tensor.shape, tensor.dtype, tensor.device
            ctx.save_for_backward(tensor.new_empty(_in_float(tensor), dtype=torch.uint8))
            return tensor.new_zeros((), dtype=torch.float32)

        @staticmethod
        def backward(ctx: Any, *_tangents: Any) -> Any:
            shape, dtype, device = ctx.form
            more = [torch.empty_like(kept) for kept in ctx.saved_tensors * (_USUAL - 2)]  # while the result is made
            result = torch.empty(shape, dtype=dtype, device=device)
            del more
            return result

    return lambda tensor: Loss.apply(tensor) if tensor.numel() > 1 else tensor


def _in_float(tensor: Tensor) -> int:
    """Bytes of a tensor in float32, in its own type if that is larger."""
    return int(dense_bytes(tensor) // tensor.dtype.itemsize * max(4, tensor.dtype.itemsize))


def demand_of(loss: Loss, output: Any, mode: FakeMode) -> LossDemand:
    """What ``loss`` asks of ``output``, what a module returned.

    On a CPU the loss and its backward pass run on numbers, random ones where ``output`` has none, so that the workspace
    of their operations counts; where they do not run on such numbers, and elsewhere, they run on tensors without data.

    Args:
        loss: The loss.
        output: Results with a graph of autograd.
        mode: The fake mode of its tensors, if they are fake.

    Raises:
        UsageError: If the loss is not a number, or depends on no result.
        CaptureFailed: If it cannot be computed.
    """
    results = list(leaves(output))
    trained = [tensor for _, tensor in results if tensor.requires_grad]
    problems: list[Exception] = []
    figures = None
    if all(tensor.device.type == "cpu" for _, tensor in results):
        figures = _attempt(partial(_on_numbers, loss, output, trained), problems)
    if figures is None:
        figures = _attempt(partial(_without_numbers, loss, output, trained, mode), problems)
    if figures is None:
        raise CaptureFailed(
            f"loss could not be computed on what the module returned: {_named(problems[0])}",
            hint="its labels have to be of the given batch; without loss, set reserve to what it takes",
        ) from problems[0]
    names = [name for name, tensor in results if tensor.requires_grad]
    named = zip(names, trained, strict=True)
    takes = [leaf for leaf, reads in zip(named, figures.reads, strict=True) if reads]
    if not takes:
        raise UsageError("the loss depends on none of the results of the module", hint="is there a detach() in it?")
    read = TrainedResults(tuple(t for _, t in takes), tuple(name for name, _ in takes), len(trained) - len(takes))
    uncounted = _named(problems[0]) if problems else ""
    return LossDemand(
        read, max(1, figures.peak_bytes), figures.forward_bytes, figures.number_bytes, uncounted=uncounted
    )


@dataclass(frozen=True, slots=True)
class _Figures:
    """What a run of a loss and its backward pass has shown.

    Attributes:
        reads: For each result that can take a gradient, whether the loss depends on it.
        peak_bytes: Most bytes in use at a time beside the results.
        forward_bytes: The same in the forward pass.
        number_bytes: Bytes of the loss and of its gradient.
    """

    reads: Sequence[bool]
    peak_bytes: int
    forward_bytes: int
    number_bytes: int


def _attempt(run: Callable[[], _Figures], problems: list[Exception]) -> _Figures | None:
    """What ``run`` returns; None if it fails, for a reason that is added to ``problems``."""
    try:
        return run()
    except UsageError:
        raise
    except Exception as error:  # it is the user's function
        problems.append(error)
        return None


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _on_numbers(loss: Loss, output: Any, trained: Sequence[Tensor]) -> _Figures:
    """Run ``loss`` on a copy of ``output`` with numbers, on a CPU; all requests to PyTorch's allocator count."""
    import torch

    copies: dict[int, Any] = {}
    with undisturbed():
        twin = _with_numbers(output, copies)
    inputs = [copies[id(tensor)] for tensor in trained]
    own = {storage(tensor) for tensor in copies.values()}
    losses: list[Any] = []
    gradients: list[Any] = []

    def forward() -> None:
        losses[:] = [loss(twin)]
        _require_number(losses[0])

    def backward() -> None:
        gradients[:] = torch.autograd.grad(losses[0], inputs, allow_unused=True)

    for _ in range(_SESSIONS):
        losses.clear()
        gradients.clear()
        with undisturbed(), torch.enable_grad():
            first, second = changes_of([forward, backward])
        if first:
            break
    [value] = losses
    return _Figures(
        reads=[one is not None for one in gradients],
        peak_bytes=max(accumulate(first + second, initial=0)),
        forward_bytes=max(accumulate(first, initial=0)),
        number_bytes=value.nbytes + (0 if storage(value) in own else storage_bytes(value)),
    )


def _with_numbers(tree: Any, copies: dict[int, Any]) -> Any:
    """A copy of nested results in which every tensor has numbers and no graph of autograd.

    ``copies`` receives the copies of the tensors, by the identity of these.
    """
    import torch

    if isinstance(tree, torch.Tensor):
        if id(tree) not in copies:
            copies[id(tree)] = _numbers_like(tree).requires_grad_(tree.requires_grad)
        return copies[id(tree)]
    if isinstance(tree, Mapping):
        twin: Any = copy.copy(tree)
        for key, item in tree.items():
            twin[key] = _with_numbers(item, copies)
        return twin
    if isinstance(tree, list | tuple):
        items = [_with_numbers(item, copies) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if hasattr(tree, "__dataclass_fields__") and not isinstance(tree, type):
        twin = copy.copy(tree)
        for name in tree.__dataclass_fields__:
            object.__setattr__(twin, name, _with_numbers(getattr(tree, name, None), copies))
        return twin
    return tree


def _numbers_like(tensor: Tensor) -> Tensor:
    """A tensor of the same form with its numbers; if it has none, with random ones between 0 and 1, or with zeros."""
    import torch

    if not is_fake(tensor):
        return tensor.detach()
    memory = torch.zeros(dense_bytes(tensor) // tensor.dtype.itemsize, dtype=tensor.dtype)
    if tensor.is_floating_point() or tensor.is_complex():
        memory = torch.rand(memory.shape, dtype=tensor.dtype)
    return memory.as_strided(tuple(tensor.shape), tuple(tensor.stride()))


def _without_numbers(loss: Loss, output: Any, trained: Sequence[Tensor], mode: FakeMode) -> _Figures:
    """Run ``loss`` on ``output`` itself; if its tensors are fake, nothing is computed, and no workspace counts."""
    import torch

    results = [tensor for _, tensor in leaves(output)]
    under = mode if any(map(is_fake, results)) else contextlib.nullcontext()
    with silent_fakes(), under, torch.enable_grad(), live_storages()(results) as live:
        value = loss(output)
        _require_number(value)
        number, forward = live.sizes.get(weak_storage(value), 0) + value.nbytes, int(live.peak_bytes)
        gradients = torch.autograd.grad(value, trained, allow_unused=True)
    return _Figures([one is not None for one in gradients], int(live.peak_bytes), forward, number)


def _require_number(value: Any) -> None:
    """Check that a loss is a number that takes a gradient."""
    import torch

    if not isinstance(value, torch.Tensor):
        raise UsageError(
            f"loss returned {type(value).__name__}, and not a tensor",
            hint="loss=lambda output: criterion(output, labels)",
        )
    if value.numel() != 1 or not value.requires_grad:
        form = f"{value.numel()} numbers" if value.numel() != 1 else "a number that takes no gradient"
        raise UsageError(f"loss returned {form}", hint="it has to be one number, and depend on the results")
