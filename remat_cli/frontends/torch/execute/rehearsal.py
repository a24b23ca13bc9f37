"""Checks a graph from a document before anything of it runs.

Operators of PyTorch trust their arguments: some read or write outside of memory if sizes do not agree. So every
operation first runs once on tensors without data, which takes no memory, and whose results have sizes, strides and
storages all the same. Results have to be as the document says, and nothing may lie outside of its storage.

Some backward operators check neither that their arguments fit each other nor that indices are in range, since autograd
calls them only with what the forward operator was given and returned. On other arguments they read or write outside of
memory. They were found on a CPU with PyTorch 2.13 by calling the operators of the list with arguments of other sizes,
which lay in memory next to a page that cannot be read, and with indices that are too large.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.errors import ExecutionFailed, RematError, Worded
from remat_cli.frontends.captured.installed import import_libraries
from remat_cli.frontends.captured.origin import damaged
from remat_cli.frontends.torch.codec import decode_data, empty_tensor, spec_of
from remat_cli.frontends.torch.compat.distributed import COMMUNICATING
from remat_cli.frontends.torch.compat.fake_tensors import exact_sizes, new_fake_mode, silent_fakes
from remat_cli.frontends.torch.compat.operators import dispatch_mode, schema, storage_identity
from remat_cli.frontends.torch.document import ITEM_BYTES, Argument, Operation, Returned, Step, TensorSpec, View
from remat_cli.frontends.torch.execute.in_parts import divisions
from remat_cli.frontends.torch.execute.program import Tensors, call_function, result_function, words
from remat_cli.frontends.torch.operators import OPERATORS
from remat_cli.frontends.torch.tensors import storage_bytes, tensors_in
from remat_cli.frontends.torch.types import DispatchMode, Operator, Tensor
from remat_cli.graph.quoting import quote

_FLOATING = tuple(name for name in ITEM_BYTES if "float" in name)


def rehearse(step: Step, device: str, *, force: bool = False, libraries: Sequence[str] = ()) -> None:
    """Check all operations and results of a graph.

    Args:
        step: A graph that this frontend made.
        device: Device that it will run on.
        force: Whether strides may differ, because the graph was exported for another PyTorch or device.
        libraries: Python modules to import; operators of their packages are accepted besides PyTorch's.

    Raises:
        UsageError: If a library cannot be imported, or a result has another type, shape or strides than the document
            says, with the place.
        ExecutionFailed: If an operator is none that graphs hold, or does not take its arguments, with the node.

    Of a step with nodes in parts the whole one is checked, and that the nodes can be divided: for a part they are
    called with the same arguments, of which some have fewer rows.
    """
    import_libraries(libraries)
    if step.whole is not None:
        rehearse(step.whole, device, force=force, libraries=libraries)
        divisions(step)
        return
    namespaces = frozenset(name.partition(".")[0] for name in libraries)
    for node, operation in enumerate(step.operations):
        if node != step.tangents:
            _require_known(operation, f"node {step.graph.nodes[node].id}", namespaces)
    for number, result in enumerate(step.results):
        _require_views(result.tensor, f"metadata.results[{number}]", namespaces)
    _Rehearsal(step, device, force).run()


_TRUST = "if you trust both; if this graph should hold no operators of other libraries, do not trust it"


def _require_known(called: Operation | View, where: str, namespaces: frozenset[str]) -> None:
    if str(called.call).partition(".")[0] in COMMUNICATING:
        raise ExecutionFailed(
            f"{where} calls {quote(called.call)}, which waits for other processes, and here is one",
            hint="the graph is of one rank of many: export the step of one process to measure or to run it",
        )
    if called.call not in OPERATORS and str(called.call).partition(".")[0] not in namespaces:
        raise ExecutionFailed(
            f"{where} calls {quote(called.call)}, which is not one of the operators that graphs hold",
            hint=Worded(
                f"name the module that defines it in libraries {_TRUST}",
                f"name the module that defines it with --library {_TRUST}",
            ),
        )
    for argument in (*called.args, *called.kwargs.values()):
        _require_views(argument, where, namespaces)


def _require_views(argument: Argument, where: str, namespaces: frozenset[str]) -> None:
    if isinstance(argument, View):
        _require_known(argument, where, namespaces)
    elif isinstance(argument, tuple):
        for item in argument:
            _require_views(item, where, namespaces)


class _Rehearsal:
    """Runs a step on tensors without data."""

    def __init__(self, step: Step, device: str, force: bool) -> None:
        self._step = step
        self._device = device
        self._force = force
        self._values: dict[int, list[Tensor]] = {}
        self._calls = ForwardCalls()

    def run(self) -> None:
        import torch

        step = self._step
        real = [decode_data(constant, "cpu") for constant in step.constants]
        with torch.no_grad(), silent_fakes(), exact_sizes(), new_fake_mode(), _checks()(self._calls):
            places = {number: empty_tensor(place.spec, self._device) for number, place in enumerate(step.places)}
            constants = {number: torch.empty_like(data, device=self._device) for number, data in enumerate(real)}
            for index, operation in enumerate(step.operations):
                if index == step.tangents:
                    values = [
                        [empty_tensor(tensor.spec, self._device) for tensor in tensors] for tensors in operation.values
                    ]
                else:
                    values = self._results(index, places, constants)
                self._values |= dict(zip(step.graph.values_of(index), values, strict=True))
            for number in range(len(step.results)):
                self._result(number, places, constants)

    def _results(self, index: int, places: dict[int, Tensor], constants: dict[int, Tensor]) -> list[list[Tensor]]:
        """The tensors in each value that a node makes."""
        node, operation = self._step.graph.nodes[index], self._step.operations[index]
        values = {value: self._values[value] for value in node.inputs}
        try:
            result = call_function(self._step, index, self._device, Tensors(places, constants, values))()
        except RematError:
            raise
        except Exception as error:  # operators may raise anything
            raise self._failed(f"node {node.id} ({operation.call})", error) from error
        found = dict(tensors_in(result))
        return [
            [self._returned(found.get(tensor.item), tensor, f"node {node.id}: values[{k}]") for tensor in tensors]
            for k, tensors in enumerate(operation.values)
        ]

    def _returned(self, tensor: Tensor, stated: Returned, at: str) -> Any:
        """``tensor``, which a node returned, in the type that the document says."""
        if tensor is None:
            raise damaged(self._step.graph, at, f"the operator returns no tensor {stated.item}")
        actual, expected = spec_of(tensor), stated.spec
        # Some operators keep a result in another type than their fake tensor says; see ``retained_bytes``.
        same_type = actual.dtype == expected.dtype or {actual.dtype, expected.dtype} <= set(_FLOATING)
        if not same_type or actual.shape != expected.shape or (actual.stride != expected.stride and not self._force):
            raise damaged(
                self._step.graph, at, f"the operator returns {_words(actual)}, and it says {_words(expected)}"
            )
        if actual.dtype == expected.dtype:
            return tensor
        real = empty_tensor(expected, self._device)
        self._calls.stands_for(real, tensor)
        return real

    def _result(self, number: int, places: dict[int, Tensor], constants: dict[int, Tensor]) -> None:
        at = f"metadata.results[{number}].tensor"
        try:
            tensor = result_function(self._step, number, self._device, Tensors(places, constants, self._values))()
        except RematError:
            raise
        except Exception as error:  # operators may raise anything
            raise self._failed(at, error) from error
        if [item for item, _ in tensors_in(tensor)] != [None]:
            raise damaged(self._step.graph, at, "it is not a tensor")

    def _failed(self, where: str, error: Exception) -> ExecutionFailed:
        return ExecutionFailed(
            f"{where} cannot run: {words(error)}",
            hint="nothing was run: export the graph again, on the device that it is for",
        )


def _words(spec: TensorSpec) -> str:
    return f"{spec.dtype} {list(spec.shape)} with strides {list(spec.stride)}"


def _checks() -> DispatchMode:
    """A mode under which results of operators have to lie inside their storages, and backward operators have partners.

    Use it as a context manager; its argument is what is known of calls so far.
    """

    class Checks(dispatch_mode()):  # type: ignore[misc]  # torch is Any to the type checker
        def __init__(self, calls: ForwardCalls) -> None:
            super().__init__()
            self.calls = calls

        def __torch_dispatch__(self, function: Operator, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not self.calls.fits(function, args, kwargs or {}):
                raise RuntimeError("it trusts its arguments, and they do not belong together")
            result = function(*args, **(kwargs or {}))
            self.calls.add(function, args, kwargs or {}, result)
            for _, tensor in tensors_in(result):
                end = tensor.storage_offset() * tensor.dtype.itemsize + spec_of(tensor).bytes
                if end > storage_bytes(tensor):
                    raise RuntimeError(
                        f"{function} reaches up to byte {end} of a storage of {storage_bytes(tensor)} bytes"
                    )
            return result

    return Checks


@dataclass(frozen=True, slots=True)
class Pair:
    """A backward operator's partner.

    The first argument of the backward operator is the gradient of the partner's first result, so it has its shape.
    Arguments of the same name have to be the same in both calls.

    Attributes:
        forward: The operator of the forward pass.
        results: Maps an argument to the position of the forward result that it is.
        renamed: Maps an argument to its name in the forward call, where that is another one.
        rows: Maps a size argument to the forward tensor whose dimension 0 it is.
    """

    forward: str
    results: Mapping[str, int] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, str] = field(default_factory=dict)


_BAG = "aten._embedding_bag.default"
_ROWS = {"num_weights": "weight"}
_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"
PAIRS = {
    "aten._adaptive_avg_pool2d_backward.default": Pair("aten._adaptive_avg_pool2d.default"),
    "aten._adaptive_avg_pool3d_backward.default": Pair("aten._adaptive_avg_pool3d.default"),
    "aten._embedding_bag_backward.default": Pair(
        _BAG, {"offset2bag": 1, "bag_size": 2, "maximum_indices": 3}, rows=_ROWS
    ),
    "aten._embedding_bag_dense_backward.default": Pair(
        _BAG, {"offset2bag": 1, "bag_size": 2, "maximum_indices": 3}, rows=_ROWS
    ),
    "aten._embedding_bag_per_sample_weights_backward.default": Pair(_BAG, {"offset2bag": 1}),
    "aten._log_softmax_backward_data.default": Pair("aten._log_softmax.default", {"output": 0}),
    "aten._pdist_backward.default": Pair("aten._pdist_forward.default", {"pdist": 0}),
    f"{_ATTENTION}_backward.default": Pair(f"{_ATTENTION}.default", {"out": 0, "logsumexp": 1}),
    "aten._weight_norm_interface_backward.default": Pair(
        "aten._weight_norm_interface.default", {"saved_norms": 1}, {"saved_v": "v", "saved_g": "g"}
    ),
    "aten.adaptive_max_pool2d_backward.default": Pair("aten.adaptive_max_pool2d.default", {"indices": 1}),
    "aten.adaptive_max_pool3d_backward.default": Pair("aten.adaptive_max_pool3d.default", {"indices": 1}),
    "aten.avg_pool3d_backward.default": Pair("aten.avg_pool3d.default"),
    "aten.embedding_dense_backward.default": Pair("aten.embedding.default", rows=_ROWS),
    "aten.fractional_max_pool2d_backward.default": Pair("aten.fractional_max_pool2d.default", {"indices": 1}),
    "aten.fractional_max_pool3d_backward.default": Pair("aten.fractional_max_pool3d.default", {"indices": 1}),
    "aten.grid_sampler_2d_backward.default": Pair("aten.grid_sampler_2d.default"),
    "aten.grid_sampler_3d_backward.default": Pair("aten.grid_sampler_3d.default"),
    "aten.max_pool2d_with_indices_backward.default": Pair("aten.max_pool2d_with_indices.default", {"indices": 1}),
    "aten.max_pool3d_with_indices_backward.default": Pair("aten.max_pool3d_with_indices.default", {"indices": 1}),
    "aten.native_layer_norm_backward.default": Pair("aten.native_layer_norm.default", {"mean": 1, "rstd": 2}),
}
_FORWARD = frozenset(pair.forward for pair in PAIRS.values())


@dataclass(slots=True)
class ForwardCalls:
    """The forward calls of a step so far, for the backward operators that must fit them.

    Attributes:
        forward: Arguments by name and results of the calls that have partners, by operator.
        same: The storage that another one stands for.
    """

    forward: dict[str, list[tuple[dict[str, Any], list[Tensor]]]] = field(default_factory=lambda: defaultdict(list))
    same: dict[int, int] = field(default_factory=dict)

    def stands_for(self, new: Tensor, old: Tensor) -> None:
        """Take ``new`` for ``old`` from here on."""
        self.same[storage_identity(new)] = storage_identity(old)

    def fits(self, function: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether arguments belong together, for operators that do not check that themselves."""
        pair, rule = PAIRS.get(str(function)), _RULES.get(str(function))
        if pair is None and rule is None:
            return True
        arguments = _by_name(function, args, kwargs)
        if rule is not None:
            return rule(arguments)
        return pair is None or any(self._same_as(pair, arguments, *call) for call in self.forward[pair.forward])

    def add(self, function: Operator, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Keep a call that has returned."""
        if str(function) in _FORWARD:
            tensors = [tensor for _, tensor in tensors_in(result)]
            self.forward[str(function)].append((_by_name(function, args, kwargs), tensors))

    def _same_as(self, pair: Pair, arguments: dict[str, Any], there: dict[str, Any], results: list[Tensor]) -> bool:
        gradient, *others = arguments
        if arguments[gradient].shape != results[0].shape:
            return False
        for name in others:
            if name in pair.results:
                expected = results[pair.results[name]]
            elif name in pair.rows:
                expected = there[pair.rows[name]].shape[0]
            elif pair.renamed.get(name, name) in there:
                expected = there[pair.renamed.get(name, name)]
            else:
                continue
            if not self._same(arguments[name], expected):
                return False
        return True

    def _same(self, one: Any, other: Any) -> bool:
        """Whether two arguments are the same numbers, or tensors of the same form in the same memory."""
        import torch

        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            return type(one) is type(other) and one == other
        return self._memory(one) == self._memory(other)

    def _memory(self, tensor: Tensor) -> tuple[Any, ...]:
        storage = storage_identity(tensor)
        return self.same.get(storage, storage), tensor.storage_offset(), tensor.shape, tensor.stride()


def _by_name(function: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, in the order of the schema; those left out have their defaults."""
    stated = schema(function).arguments
    arguments = dict(zip((argument.name for argument in stated), args, strict=False)) | dict(kwargs)
    return {argument.name: arguments.get(argument.name, argument.default_value) for argument in stated}


def _channels_agree(arguments: Mapping[str, Any]) -> bool:
    """Whether a batch normalisation has a number for each channel, or none, and a gradient like its input."""
    shape = arguments["input"].shape
    trains = arguments.get("train", arguments.get("training", True))
    gradients = [tensor for name, tensor in arguments.items() if name in {"grad_out", "grad_output"}]
    read = ("weight", "bias", "running_mean", "running_var") + (
        ("save_mean", "save_invstd", "save_var") if trains else ()
    )
    tensors = [arguments[name] for name in read if arguments.get(name) is not None]
    return len(shape) > 1 and all(t.shape == shape for t in gradients) and all(t.numel() == shape[1] for t in tensors)


def _keys_agree(arguments: Mapping[str, Any]) -> bool:
    """Whether attention has a value for each key."""
    return bool(arguments["key"].shape[:-1] == arguments["value"].shape[:-1])


def _distances_agree(arguments: Mapping[str, Any]) -> bool:
    """Whether there is a distance for each pair of points, and its gradient."""
    gradient = next(iter(arguments.values()))  # "grad", and "grad_output" since PyTorch 2.14 or 2.15
    first, second, shape = arguments["x1"].shape, arguments["x2"].shape, gradient.shape
    pairs = first[:-2] == second[:-2] and first[-1:] == second[-1:] and shape == (*first[:-1], second[-2])
    return bool(pairs and arguments["cdist"].shape == shape)


def _pivots_agree(arguments: Mapping[str, Any]) -> bool:
    """Whether there is a pivot for each step of a factorisation."""
    shape = arguments["LU_data"].shape
    return bool(arguments["LU_pivots"].shape == (*shape[:-2], min(shape[-2:])))


_RULES: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    f"aten.{name}": rule
    for rule, names in (
        (_channels_agree, ("_native_batch_norm_legit.no_stats", "_native_batch_norm_legit_functional.default")),
        (_channels_agree, ("_native_batch_norm_legit_no_training.default", "cudnn_batch_norm.default")),
        (_channels_agree, ("cudnn_batch_norm_backward.default", "native_batch_norm.default")),
        (_channels_agree, ("native_batch_norm_backward.default",)),
        (_keys_agree, ("_scaled_dot_product_flash_attention_for_cpu.default",)),
        (_distances_agree, ("_cdist_backward.default",)),
        (_pivots_agree, ("lu_unpack.default",)),
    )
    for name in names
}
"""Conditions on the arguments of other operators that trust them."""
