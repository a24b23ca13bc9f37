"""Captures the training step that a source names, with what its graph does not say: all parameters, and other sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from remat_cli.api.documents import Source, as_graph
from remat_cli.errors import CaptureFailed, UsageError
from remat_cli.frontends.gpus import Gpu
from remat_cli.frontends.interconnect import ONE_QUEUE
from remat_cli.frontends.messages import Tell
from remat_cli.frontends.optimizers import Parameter
from remat_cli.frontends.ranks import Ranks
from remat_cli.graph.memory_parts import Part, parts_of_values
from remat_cli.graph.model import Graph, Node, NodeQueue
from remat_cli.graph.sized import SizedGraph

LIBRARIES = ("hf", "timm", "torchvision", "diffusers")
"""Schemes of models that libraries know by name."""
_FUNCTIONS = ("torch", "jax", "tf")
_WORKSPACE = "kernels take no memory of their own while they run: it was not measured, and convolutions may take much"
_AS_CAPTURED = "no recomputation takes what the captured step takes: a graph does not say what eager mode keeps besides"
_WHOLE_ATTENTION = "_safe_softmax"
"""What PyTorch's attention runs where it computes all weights: on a CPU, with dropout."""
_WEIGHTS = "attention keeps its weights, as on a CPU with dropout; where a GPU runs flash attention, it keeps none"
_NCCL = "the buffers of NCCL take nothing beside the context: what they take is not known"


@dataclass(frozen=True, slots=True)
class Model:
    """A training step whose memory is asked for.

    Attributes:
        source: Where it comes from, see :func:`fits`.
        batch: Sequences or images; None for 1, or what the source says.
        length: Tokens of a sequence.
        resolution: Height and width of images.
        task: What the model is trained for, as ``causal-lm``.
        dtype: Type of the parameters, as ``bfloat16``; ``-mixed`` behind it for autocast.
        lora: Rank of adapters that are trained alone; 0 for none.
        ranks: How it is divided over ranks; None for one.
    """

    source: str
    batch: int | None = None
    length: int | None = None
    resolution: int | None = None
    task: str = ""
    dtype: str = ""
    lora: int = 0
    ranks: Ranks | None = None


@dataclass(frozen=True, slots=True)
class Captured:
    """A training step as a graph, and what the graph does not say.

    Attributes:
        title: The model.
        graph: Its graph.
        parameters: All its parameters, those that the step does not read among them.
        buffer_bytes: Bytes of its buffers.
        shapes_known: Whether the shapes of parameters are known, and not only the bytes of their gradients. Without
            parameters, all that stays in memory is in the fixed memory of the graph.
        sizes: The batch, in words.
        assumptions: What was assumed.
        by_sheet: Whether costs are times by the data sheet of the card.
        eager: The step in eager mode; None if it is not known.
        resized: Captures the step again with other sizes, by the names of ``by``.
        followed: Follows the step with other sizes in eager mode.
        varied: Captures it with symbols for these sizes, see :func:`~remat_cli.frontends.torch.families.sized_graph`.
        by: The sizes that can be changed, what each is now, and the most that the model takes.
        ranks: How it is divided over ranks, of which the graph is the step of one; None for one.
        captured: The graph without the collectives that were added to it; None if none were.
        with_regions: Adds the regions that may run in parts to the graph; None if none are known besides its own.
    """

    title: str
    graph: Graph
    parameters: tuple[Parameter, ...]
    buffer_bytes: int
    shapes_known: bool
    sizes: str
    assumptions: tuple[str, ...] = ()
    by_sheet: bool = False
    eager: Graph | None = None
    resized: Callable[[Mapping[str, int]], Captured] | None = None
    followed: Callable[[Mapping[str, int]], Graph | None] | None = None
    varied: Callable[[Mapping[str, int]], SizedGraph] | None = None
    by: tuple[tuple[str, int, int | None], ...] = ()
    ranks: Ranks | None = None
    captured: Graph | None = None
    with_regions: Callable[[Graph], Graph] | None = None

    @property
    def updated(self) -> tuple[Parameter, ...]:
        """What the optimizer of this rank updates."""
        return self.parameters if self.ranks is None else self.ranks.updated(self.parameters)

    @property
    def buffers(self) -> dict[str, int]:
        """Bytes that are kept for communication, by their name."""
        size = 0 if self.ranks is None else self.ranks.bucket_bytes(self.parameters)
        return {Part.BUFFERS.value: size} if size else {}


def captured_step(source: str | Graph | Source, asked: Model, card: Gpu, tell: Tell) -> Captured:
    """The step of a source."""
    scheme = asked.source.partition(":")[0] if ":" in asked.source else ""
    cost = f"roofline:{card.speed}" if card.speed else "flops"
    if scheme in LIBRARIES:
        return _by_name(asked, cost, tell)
    if scheme == "torch":
        _refuse(asked, "the function decides", ("batch", "length", "resolution", "task"))
        return _of_function(asked, cost, tell)
    _refuse(asked, "the graph has its own", ("batch", "length", "resolution", "task", "dtype", "lora", "ranks"))
    if scheme == "zoo":
        from remat_cli.api.frameworks import build_graph

        graph = build_graph(asked.source.partition(":")[2], cost=cost)
        return replace(_of_graph(graph), by_sheet=bool(card.speed))
    if scheme in _FUNCTIONS:
        from remat_cli.api.frameworks import _exported

        [graph] = _exported(scheme, asked.source.partition(":")[2], "cpu", cost)
        return replace(_of_graph(graph), by_sheet=bool(card.speed))
    return _of_graph(as_graph(source, "source"))


def _refuse(asked: Model, reason: str, names: Sequence[str]) -> None:
    for name in names:
        if getattr(asked, name):
            raise UsageError(f"{name} is for models by name; {reason}", hint="leave it out")


def _of_graph(graph: Graph) -> Captured:
    """The step of a graph: its trained parameters are as large as the gradients that it returns."""
    parts = parts_of_values(graph)
    gradients = [graph.size[v] for v in graph.outputs if parts[v] is Part.GRADIENTS]
    parameters = tuple(Parameter((size,), 1) for size in gradients)
    read = _read_bytes(graph)
    if parameters and read["parameter"] > sum(gradients):
        parameters += (Parameter((read["parameter"] - sum(gradients),), 1, trained=False),)
    assumed = () if parameters else ("fixed memory of the graph holds parameters, gradients and optimizer state",)
    sentences = (*assumed, *((_AS_CAPTURED,) if read else ()), *_of_kernels(graph))
    buffers = read["buffer"] if parameters else 0
    return Captured(graph.name or "graph", graph, parameters, buffers, False, "the batch of the graph", sentences)


def _read_bytes(graph: Graph) -> Counter[str]:
    """Bytes of what the graph is given, by kind; nothing if it does not tell."""
    places = graph.metadata.get("places") if isinstance(graph.metadata, dict) else None
    given = places if isinstance(places, list) else []
    sizes = Counter[str]()
    for place in given:
        if isinstance(place, dict) and isinstance(place.get("bytes"), int):
            sizes[str(place.get("kind"))] += place["bytes"]
    return sizes


def _of_kernels(graph: Graph) -> tuple[str, ...]:
    """What is assumed of kernels in a captured step that was not measured on its device."""
    facts = graph.metadata
    if not isinstance(facts, dict) or facts.get("frontend") not in _FUNCTIONS or "profile" in facts:
        return ()
    weighted = any(node.op == _WHOLE_ATTENTION for node in graph.nodes)
    return (_WORKSPACE, _WEIGHTS) if weighted else (_WORKSPACE,)


def _of_function(asked: Model, cost: str, tell: Tell) -> Captured:
    from remat_cli.frontends.source import load_function
    from remat_cli.frontends.torch.installed import require_present
    from remat_cli.frontends.torch.named import adapted, float_types

    require_present("cpu")
    text = asked.source.partition(":")[2]
    function = load_function(text, "torch")
    dtype = float_types(asked.dtype)

    @wraps(function)
    def build() -> tuple[Any, ...]:
        module, *others = function()
        return (adapted(module, dtype, asked.lora) if asked.dtype or asked.lora else module, *others)

    return _captured(build, text.rpartition(":")[2], asked, "the batch of the function", cost, tell)


def _by_name(asked: Model, cost: str, tell: Tell) -> Captured:
    from remat_cli.frontends.torch.installed import require_present
    from remat_cli.frontends.torch.named import NamedModel, NameOptions, named_model

    require_present("cpu")
    options = NameOptions(asked.batch or 1, asked.length, asked.resolution, asked.task, asked.dtype, asked.lora)
    model = named_model(asked.source, options)

    def varied(model: NamedModel, sizes: Mapping[str, int]) -> SizedGraph:
        from remat_cli.frontends.torch.blocks import as_on_cards
        from remat_cli.frontends.torch.families import sized_graph

        with as_on_cards():
            return sized_graph(
                lambda found: model.resized(**found).build(), sizes, model.title, asked.source, cost=cost, tell=tell
            )

    def followed(model: NamedModel) -> Graph | None:
        from remat_cli.frontends.torch.blocks import as_on_cards, eager_by_blocks

        with as_on_cards():
            graph = eager_by_blocks(model.build, model.title, tell=tell)
        return graph if isinstance(graph, Graph) else None

    def captured(model: NamedModel) -> Captured:
        sizes = model.sizes
        words = f"{sizes.batch:,} x {sizes.length:,} tokens" if sizes.length else f"{sizes.batch:,} images"
        words += "" if sizes.length else f" of {sizes.resolution} x {sizes.resolution} pixels"
        step = _captured(model.build, model.title, asked, words, cost, tell)
        axes: list[tuple[str, int, int | None]] = [("batch", sizes.batch, None)]
        if sizes.length:
            axes.append(("length", sizes.length, model.most_length))
        of_type = () if asked.dtype else (f"parameters are {model.dtype}",)
        return replace(
            step,
            assumptions=(*model.assumptions, *of_type, *step.assumptions),
            by=tuple(axes),
            resized=lambda sizes: captured(model.resized(**sizes)),
            followed=lambda sizes: followed(model.resized(**sizes)),
            varied=lambda sizes: varied(model, sizes),
        )

    return captured(model)


def _captured(
    build: Callable[[], tuple[Any, ...]], title: str, asked: Model, sizes: str, cost: str, tell: Tell
) -> Captured:
    """The graph of what ``build`` returns, with its parameters as they were when it was built."""
    from remat_cli.frontends.torch.blocks import as_on_cards, export_by_blocks
    from remat_cli.frontends.torch.measure.costs import cost_model
    from remat_cli.frontends.torch.named import contents
    from remat_cli.frontends.torch.regions import with_regions

    seen: list[tuple[Mapping[str, Parameter], int]] = []
    ranks = asked.ranks
    links = None if ranks is None else ranks.captured
    world = None if ranks is None or links is None else ranks.count

    @wraps(build)
    def recording() -> tuple[Any, ...]:
        module, *others = build()
        if ranks is not None and links is not None:
            from remat_cli.frontends.torch.sharding import divided

            module = divided(module, ranks)
        seen.append(contents(module))
        return module, *others

    with as_on_cards():
        exported = export_by_blocks(
            recording, title, asked.source, cost=cost, world=world, interconnect=links, eager=ranks is None, tell=tell
        )
    graph, (named, buffer_bytes) = exported.graph, seen[-1]
    graded = _graded(graph)
    parameters = tuple(replace(p, trained=p.trained and name in graded) for name, p in named.items())
    assumed = [exported.few] if exported.few else []
    if isinstance(exported.eager, CaptureFailed):
        assumed.append(f"no recomputation takes what the captured step takes: {exported.eager.message}")

    def offering(graph: Graph) -> Graph:
        return with_regions(graph, cost_model(cost, "cpu", tell).cost)

    step = Captured(
        title,
        graph,
        parameters,
        buffer_bytes,
        True,
        sizes,
        (*assumed, *_of_kernels(graph)),
        by_sheet=cost != "flops",
        eager=exported.eager if isinstance(exported.eager, Graph) else None,
        with_regions=offering if ranks is None else None,
    )
    return step if ranks is None else _of_rank(step, ranks)


def _graded(graph: Graph) -> set[str]:
    """The names of the parameters that get a gradient: an optimizer has no state for others."""
    places = graph.metadata["places"]
    return {places[result["of"]]["name"] for result in graph.metadata["results"] if result["kind"] == "gradient"}


def _of_rank(step: Captured, ranks: Ranks) -> Captured:
    """``step``, captured in a world of ``ranks``, with all their collectives as they run between cards."""
    graph = ranks.reduced(step.graph)

    def on_cards(node: Node) -> Node:
        """``node`` without the buffer that gloo takes, with which the step is captured."""
        if node.queue is NodeQueue.COMPUTE:
            return node
        buffer = max(sum(node.outputs), sum(graph.size[v] for v in node.inputs))
        return replace(node, workspace=max(0, node.workspace - buffer))

    assumed = [
        f"the batch is that of each of {ranks.replicas:,} "
        + ("ranks" if ranks.tp == 1 else f"groups of {ranks.tp:,} ranks"),
        _NCCL,
        *((ONE_QUEUE,) if ranks.tp > 1 and ranks.replicas > 1 else ()),
        *((ranks.assumed,) if ranks.assumed else ()),
    ]
    if gather_us := ranks.gather_us(step.parameters):
        assumed.append(f"gathering the updated parameters takes {gather_us / 1e3:,.3g} ms more, after each step")
    captured = None if len(graph.nodes) == len(step.graph.nodes) else step.graph
    graph = replace(graph, nodes=tuple(map(on_cards, graph.nodes)))
    return replace(step, graph=graph, ranks=ranks, captured=captured, assumptions=(*step.assumptions, *assumed))
