"""Brings the joint graph of Inductor into the form of AOTAutograd's: what it writes into inputs are results.

Inductor's joint graph writes the new statistics of a batch normalisation into their buffers itself, as its last nodes.
A plan takes them as results of the forward pass; the graphs that are made by plan write them at its end.

Copies that Inductor would make of images and weights are added, see :func:`lay_out`.
"""

from collections.abc import Sequence
from typing import Any

from remat_cli.errors import CaptureFailed, UsageError
from remat_cli.frontends.torch.capture.capture import Captured, Inductor, Model, Receive, Tracer, through_aot
from remat_cli.frontends.torch.compat.aot_autograd import as_given, default_split, descriptors
from remat_cli.frontends.torch.compat.fake_tensors import exact_sizes, is_fake, new_fake_mode
from remat_cli.frontends.torch.compat.inductor import inductor, partitioner_base
from remat_cli.frontends.torch.compat.operators import is_operator, schema
from remat_cli.frontends.torch.inductor.fusion import fusion
from remat_cli.frontends.torch.inductor.image_layouts import LAYOUT, lay_out
from remat_cli.frontends.torch.installed import require_inductor
from remat_cli.frontends.torch.types import FakeMode, FxGraph, FxNode, GraphModule, Tensor

_COPY = "aten.copy_.default"


def through_inductor(graph_module: GraphModule, inputs: Sequence[Tensor], model: Model, receive: Receive) -> Any:
    """Capture what Inductor makes, after its decompositions and its passes; it compiles nothing."""

    class Capture(partitioner_base()):  # type: ignore[misc]  # torch is Any to the type checker
        def __call__(self, joint: GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
            receive(captured_joint(joint, num_fwd_outputs, inputs, model))
            options.pop("compiler")  # an option of min-cut, which the default split does not take
            return default_split(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)

        def uuid(self) -> Any:
            return None

    return inductor(graph_module, inputs, partitioner=Capture(), compiler=as_given)


TRACERS: dict[str, Tracer] = {"eager": through_aot, "inductor": through_inductor}
"""What may compile a step, by name."""


def tracer_of(compiler: str) -> Tracer:
    """What compiles a step, by its name.

    Raises:
        UsageError: If there is no such compiler.
        FrameworkUnavailable: If it is Inductor, of a PyTorch with which it does not keep to plans.
    """
    if compiler not in TRACERS:
        raise UsageError(f'"{compiler!s}" is not a compiler that plans are for', hint=f"choose {' or '.join(TRACERS)}")
    if compiler == "inductor":
        require_inductor()
    return TRACERS[compiler]


def captured_joint(joint: GraphModule, forward_outputs: int, tensors: Sequence[Tensor], model: Model) -> Captured:
    """The joint graph that Inductor partitions, see :class:`Captured`; the graph module ``joint`` stays as it is.

    Raises:
        CaptureFailed: If it writes into anything but an input.
    """
    import torch

    graph = torch.fx.Graph()
    copies_of: dict[FxNode, FxNode] = {}
    writes = [node for node in joint.graph.nodes if _writes(node)]
    mode = new_fake_mode()  # without a cache, unlike Inductor's own: see exact_sizes
    with torch.no_grad(), exact_sizes(), mode:
        for node in joint.graph.nodes:
            if node.op == "output":
                _outputs(graph, node, writes, copies_of, forward_outputs)
            elif node not in writes:
                copies_of[node] = copy = graph.node_copy(node, copies_of.__getitem__)
                copy.meta = dict(node.meta)
                _set_value(copy, mode)
        copies = lay_out(graph, mode)
    metas = {copy: node.meta for node, copy in copies_of.items()}
    metas |= {copy: _meta(copy, metas[copy.args[0]]["val"]) for copy in copies}
    return Captured(
        torch.fx.GraphModule(joint, graph),
        forward_outputs + len(writes),
        tuple(tensors),
        model,
        inductor=Inductor(metas, tuple(writes), fusion),
    )


def _meta(copy: FxNode, copied: Tensor) -> dict[str, Any]:
    """What Inductor's own graph would say of a copy of the fake tensor ``copied`` of that graph."""
    with copied.fake_mode:
        return {**copy.meta, "val": copy.target(copied, memory_format=copy.meta[LAYOUT])}


def _writes(node: FxNode) -> bool:
    """Whether a node writes into an input."""
    if not is_operator(node.target) or not schema(node.target).is_mutable:
        return False
    if str(node.target) == _COPY and node.args[0].op == "placeholder" and not node.users:
        return True
    raise CaptureFailed(f"{node.target} writes into its input {node.name}, even after functionalization")


def _outputs(
    graph: FxGraph, output: FxNode, writes: Sequence[FxNode], copies_of: dict[FxNode, FxNode], forward_outputs: int
) -> None:
    """Add the output node: what is written, then what ``output`` returns."""
    kinds = descriptors()
    results = [copies_of.get(result) for result in output.args[0]]
    new = graph.output((*(copies_of[node.args[1]] for node in writes), *results))
    new.meta = dict(output.meta)
    descriptions = [kinds.InputMutationAOTOutput(node.args[0].meta["desc"]) for node in writes]
    new.meta["desc"] = [*descriptions, *output.meta["desc"]]


def _set_value(node: FxNode, mode: FakeMode) -> None:
    """Give a node a fake result of ``mode``: storages then say what is a view, whatever passes have done before."""
    import torch

    value = node.meta.get("val")
    if node.op == "placeholder" and is_fake(value):
        node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    elif node.op == "get_attr":
        node.meta["val"] = mode.from_tensor(getattr(node.graph.owning_module, node.target)) if value is None else value
    elif is_operator(node.target) or getattr(node.target, "__name__", "") == "getitem":
        arguments = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda argument: argument.meta["val"])
        node.meta["val"] = node.target(*arguments[0], **arguments[1])
