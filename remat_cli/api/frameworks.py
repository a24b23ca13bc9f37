"""Architectures and frameworks: exports, measures, runs as the commands of that name, and the backend that trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from remat_cli.api.arguments import as_text, as_whole
from remat_cli.api.documents import Source, as_graph, as_plan
from remat_cli.frontends.interconnect import MOST_RANKS, Interconnect
from remat_cli.frontends.messages import tell_stderr
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan
from remat_cli.tracebacks import door

if TYPE_CHECKING:
    from remat_cli.frontends.ran import Ran
    from remat_cli.frontends.torch.train.backend import Unplanned
    from remat_cli.planning.solved import Solved


@door
def build_graph(spec_text: str, *, cost: str = "flops") -> Graph:
    """The training graph of a known architecture.

    Args:
        spec_text: The architecture with options, such as ``vgg16{batch=256,backward=operator}``.
        cost: ``flops``; or ``roofline:NAME``: time on a GPU by its data sheet, in microseconds.

    Raises:
        UsageError: If there is no such architecture or cost, or an option is unknown or out of range.

    Examples:
        >>> import remat_cli as remat
        >>> remat.build_graph("vgg16{batch=1}").cost_unit
        'flops'
        >>> remat.build_graph("vgg16{batch=1}", cost="roofline:v100").cost_unit
        'us'
    """
    from remat_cli.frontends.zoo import zoo_costs
    from remat_cli.zoo import registry

    return registry.build_graph(as_text(spec_text, "spec_text"), zoo_costs(as_text(cost, "cost")))


@door
def export_torch(
    text: str,
    *,
    device: str = "cpu",
    cost: str = "device",
    compiler: str = "eager",
    world: int | None = None,
    interconnect: str | None = None,
) -> Graph:
    """The graph of the training step that ``FILE.py:NAME`` builds.

    Args:
        text: The function: it returns (module, inputs) or (module, inputs, loss).
        device: ``cpu`` or ``cuda``: the device that the step is for. Nothing runs there during export.
        cost: ``device``: time on the device at hand, whose rates are measured once, in two seconds, and kept;
            ``flops``; or ``roofline:NAME``: time on a GPU by its data sheet.
        compiler: What compiles the step: ``eager``, which runs operations one by one, or ``inductor``, which joins
            them: nodes then are groups of operations.
        world: The number of ranks of a training in which this step is that of rank 0: the function is called in a
            process group of that size without processes, and may make meshes and DTensors. None for no others.
        interconnect: Bandwidth between ranks, what one sends in one direction: ``400GB/s``, or by the names of the
            dimensions of the mesh, ``fsdp=50GB/s,tp=400GB/s``. A collective takes the time of a ring.

    Raises:
        CaptureFailed: If the step cannot be captured as one graph.
        UsageError: If there is no such function, device, cost model or compiler, or ``world`` is given where this
            process has a process group already, or without an interconnect, or with costs that are no times.
        FrameworkUnavailable: If PyTorch is missing, was not built for the device, or is too old for the compiler.
    """
    from remat_cli.frontends.torch import export

    return export.export_torch(
        as_text(text, "text"),
        device=device,
        cost=as_text(cost, "cost"),
        compiler=compiler,
        world=None if world is None else as_whole(world, "world", 1, MOST_RANKS),
        interconnect=None if interconnect is None else Interconnect.of(as_text(interconnect, "interconnect")),
    )


@door
def export_torch_parts(
    text: str,
    *,
    device: str = "cpu",
    cost: str = "device",
    compiler: str = "eager",
    world: int | None = None,
    interconnect: str | None = None,
) -> tuple[Graph, ...]:
    """As :func:`export_torch`; but if PyTorch captures the step in parts, the graph of each part, in their order.

    ``graph.metadata["part"]`` tells what a part takes from others, and why it ends. :func:`remat_backend` takes the
    plans of all parts.

    Args:
        text: The function: it returns (module, inputs) or (module, inputs, loss).
        device: ``cpu`` or ``cuda``: the device that the step is for.
        cost: ``device``, ``flops`` or ``roofline:NAME``.
        compiler: ``eager`` or ``inductor``.
        world: The number of ranks, see :func:`export_torch`.
        interconnect: Bandwidth between ranks, see there.

    Raises:
        UsageError, FrameworkUnavailable: As :func:`export_torch`.
        CaptureFailed: If the step cannot be captured.
    """
    options = {"compiler": compiler}
    if world is not None:
        options["world"] = str(as_whole(world, "world", 1, MOST_RANKS))
    if interconnect is not None:
        options["interconnect"] = interconnect
    return tuple(_exported("torch", text, device, cost, **options))


@door
def export_jax(text: str, *, device: str = "cpu", cost: str = "device", scans: str = "auto") -> Graph:
    """The graph of the training step that ``FILE.py:NAME`` builds: what ``jax.value_and_grad`` of a loss computes.

    Args:
        text: The function: it returns (loss, arguments) or (loss, arguments, options).
        device: ``cpu`` or ``cuda``: the device that the step is for. Nothing runs there during export.
        cost: ``device``: time on the device at hand, whose rates are measured once, in a second, and kept; ``flops``;
            or ``roofline:NAME``: time on a GPU by its data sheet.
        scans: What becomes of ``jax.lax.scan``: ``unrolled``, ``blocks``, ``whole``; or ``auto``, which unrolls scans
            of at most 64 steps and divides longer ones into blocks.

    Raises:
        CaptureFailed: If the step cannot be captured.
        UsageError: If there is no such function, device, cost model or way to treat scans.
        FrameworkUnavailable: If JAX is missing, or the device whose times are asked for.
    """
    [graph] = _exported("jax", text, device, cost, scans=scans)
    return graph


@door
def export_tensorflow(text: str, *, device: str = "cpu", cost: str = "flops") -> Graph:
    """The graph of the training step that ``FILE.py:NAME`` builds: of a Keras model, or of a function of tensors.

    Args:
        text: The function: it returns (model, batch), (model, batch, loss) or (step, inputs).
        device: ``cpu`` or ``gpu``: the device that the step is for.
        cost: ``flops``; or ``roofline:NAME``: time on a GPU by its data sheet. :func:`profile` measures times.

    Raises:
        CaptureFailed: If the step cannot be captured.
        UsageError: If there is no such function, device or cost model.
        FrameworkUnavailable: If TensorFlow or the device is missing.
    """
    [graph] = _exported("tf", text, device, cost)
    return graph


def _exported(name: str, text: str, device: str, cost: str, **options: str) -> Sequence[Graph]:
    """The graphs of what ``text`` names, by the framework of that name."""
    from remat_cli.frontends.frameworks import FRAMEWORKS

    framework = FRAMEWORKS.load(name)()
    device, cost = as_text(device, "device"), as_text(cost, "cost")
    words = {key: as_text(word, key) for key, word in options.items()}
    return framework.export(as_text(text, "text"), device=device, cost=cost, tell=tell_stderr, **words)


@door
def profile(
    graph: Graph | Source,
    *,
    device: str = "cpu",
    repeats: int = 10,
    warmup: int = 2,
    seed: int = 0,
    force: bool = False,
    libraries: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Graph:
    """``graph`` with measured costs (microseconds), sizes and workspaces.

    Nodes with the same operation on tensors of the same form are measured once.

    Args:
        graph: A graph that ``remat export`` made from a framework, or the path or the data of one.
        device: ``cpu`` or ``cuda``.
        repeats: Samples per operation; their median is the cost.
        warmup: Calls before the samples.
        seed: Seed of the random inputs.
        force: Whether to measure even if the graph was exported for another PyTorch or device.
        libraries: Python modules to import; the graph may use operators of their packages besides PyTorch's.
        progress: Called with the number of kinds of operations that are done, and of all kinds.

    Raises:
        UsageError: If no framework made the graph, or another version of it, or for another device, or a number is out
            of range.
        InputError: If the graph's document is invalid.
        FrameworkUnavailable: If the framework is missing, or there is no such device.
        OutOfMemory: If the device's memory is too small for an operation and its inputs.
        ExecutionFailed: If an operation fails, with the node.
    """
    from remat_cli.frontends.frameworks import framework_of

    model = as_graph(graph)
    repeats, warmup, seed = as_whole(repeats, "repeats"), as_whole(warmup, "warmup", 0), as_whole(seed, "seed", 0)
    modules = _modules(libraries)
    return framework_of(model).profile(
        model,
        device=device,
        repeats=repeats,
        warmup=warmup,
        seed=seed,
        force=force,
        libraries=modules,
        progress=progress,
    )


def _modules(libraries: Sequence[str]) -> list[str]:
    return [as_text(name, "a library") for name in ([libraries] if isinstance(libraries, str) else libraries)]


@door
def run_plan(
    plan: Plan | Solved | Source,
    *,
    device: str = "cpu",
    steps: int = 3,
    seed: int = 0,
    graph: Graph | Source | None = None,
    force: bool = False,
    libraries: Sequence[str] = (),
) -> Ran:
    """Run ``plan`` with random weights and inputs, and compare it with the same graph without recomputation.

    Args:
        plan: A plan for a graph that ``remat export`` made from a framework: an object, a path, or a document's data.
        device: ``cpu`` or ``cuda``.
        steps: Steps to time; one more is run to measure memory.
        seed: Seed of weights, inputs and random operations.
        graph: The graph that the plan must be for; None for any.
        force: Whether to run it even if it was exported for another PyTorch or device.
        libraries: Python modules to import; the graph may use operators of their packages besides PyTorch's.

    Raises:
        UsageError: If the plan is not valid, or no framework made its graph, or it is not ``graph``, or was exported
            for another version of the framework or device.
        InputError: If a document is invalid.
        FrameworkUnavailable: If the framework is missing, or there is no such device.
        OutOfMemory: If the device's memory is exhausted, with the place.
        ExecutionFailed: If an operation fails, with the node.
    """
    from remat_cli.frontends.frameworks import framework_of

    loaded, wanted = as_plan(plan), None if graph is None else as_graph(graph)
    steps, seed = as_whole(steps, "steps"), as_whole(seed, "seed", 0)
    modules = _modules(libraries)
    framework = framework_of(loaded.graph)
    return framework.run(loaded, device=device, steps=steps, seed=seed, graph=wanted, force=force, libraries=modules)


@door
def remat_backend(
    *plans: Plan | Solved | Source, unknown: Unplanned = "error", compiler: str = "eager"
) -> Callable[[Any, list[Any]], Any]:
    """A backend for ``torch.compile`` that runs training steps by plan.

    Args:
        plans: Plans, or their files; one for each graph that is compiled.
        unknown: How to treat a graph without a plan: ``error``, or ``warn`` and run it without one.
        compiler: What the plans are for, as for :func:`export_torch`.

    Raises:
        FrameworkUnavailable: If PyTorch is missing, or too old for the compiler.
        UsageError: If a plan is not valid, or its graph is not of PyTorch, or ``unknown`` is neither.
        InputError: If a file holds no plan.
    """
    from remat_cli.frontends.torch.train import backend as backends

    return backends.remat_backend(*map(as_plan, plans), unknown=unknown, compiler=compiler)
