"""Whether training fits into the memory of a card, from the name of a model or from a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.api.arguments import as_text, as_whole
from remat_cli.api.documents import Source, as_graph
from remat_cli.control import Progress
from remat_cli.errors import Infeasible, LimitReached, UsageError
from remat_cli.frontends.gpus import Gpu, gpu
from remat_cli.frontends.messages import Tell, tell_stderr
from remat_cli.frontends.optimizers import Optimizer, Parameter, optimizer
from remat_cli.graph.batched import Batched
from remat_cli.graph.memory_parts import Part, parts_of_values
from remat_cli.graph.model import Graph
from remat_cli.planning import fits as answers
from remat_cli.planning.fits import Fits, Need, Reserved
from remat_cli.planning.max_batch import MaxBatch, one_forward
from remat_cli.planning.max_batch_graphs import max_batch_of
from remat_cli.planning.options import SolveOptions
from remat_cli.reports.fits import ChoiceFacts, FitsFacts
from remat_cli.tracebacks import door
from remat_cli.units import as_size

CONTEXT = "600MiB"
"""What CUDA takes for its context and PyTorch's kernels before the first tensor: 450 to 600 MiB, by card and driver."""
LIBRARIES = ("hf", "timm", "torchvision", "diffusers")
"""Schemes of models that libraries know by name."""
_FUNCTIONS = ("torch", "jax", "tf")
_BY_SHAPE = ("adafactor", "adamw-8bit")
"""Optimizers whose state depends on the shapes of parameters."""


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
    """

    source: str
    batch: int | None = None
    length: int | None = None
    resolution: int | None = None
    task: str = ""
    dtype: str = ""
    lora: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What :func:`fits` found.

    Attributes:
        title: The model.
        gpu: The card.
        optimizer: Title of the optimizer.
        sizes: The batch as it was captured, in words.
        assumptions: What was assumed, in sentences.
        advice: What would free memory, in bytes and in words, the most first.
        fits: The answer.
    """

    title: str
    gpu: Gpu
    optimizer: str
    sizes: str
    assumptions: tuple[str, ...]
    advice: tuple[tuple[int, str], ...]
    fits: Fits

    def facts(self) -> FitsFacts:
        """The facts for a report."""
        answer = self.fits
        graph = answer.need.graph
        choices = [
            ChoiceFacts(
                choice.name,
                choice.parts,
                choice.total_bytes,
                choice.solved.report.replay.time,
                choice.plan.claim.lower_bound if choice.name == answers.BEST else None,
            )
            for choice in answer.choices
        ]
        largest = {name: one.facts() for name, one in answer.largest.items()}
        return FitsFacts(
            title=self.title,
            sizes=self.sizes,
            optimizer=self.optimizer,
            card=self.gpu.title,
            memory_bytes=answer.memory_bytes,
            context_bytes=answer.need.context_bytes,
            cost_unit=graph.cost_unit,
            base_cost=graph.total_cost,
            choices=tuple(choices),
            missing=answer.missing,
            least_bytes=answer.least_bytes,
            scope=answer.scope,
            assumptions=self.assumptions,
            advice=self.advice,
            largest=largest,
        )


@door
def fits(
    source: str | Graph | Source,
    gpu_name: str,
    *,
    batch: int | None = None,
    length: int | None = None,
    resolution: int | None = None,
    task: str = "",
    dtype: str = "",
    lora: int = 0,
    optimizer_name: str = "adamw",
    context: str | float = CONTEXT,
    largest: bool = False,
    options: SolveOptions | None = None,
    listener: Callable[[Progress], None] | None = None,
    tell: Tell = tell_stderr,
) -> Answer:
    """Whether a training step fits into the memory of a card.

    Args:
        source: ``hf:config.json`` (a configuration of Transformers: its file, folder, or name on the hub),
            ``timm:NAME``, ``torchvision:NAME``, ``diffusers:config.json``, ``torch:FILE.py:NAME`` (also ``jax:`` and
            ``tf:``), ``zoo:NAME``; or a graph, its file or its data.
        gpu_name: A card such as ``h100``, or its memory such as ``24GB``.
        batch: Sequences or images, of a model by name.
        length: Tokens of a sequence, of a model of Transformers.
        resolution: Height and width of images.
        task: What a model of Transformers is trained for, such as ``causal-lm``.
        dtype: Type of the parameters: ``float32``, ``bfloat16`` or ``float16``; with ``-mixed`` they stay in float32.
        lora: Rank of the adapters that are trained alone; 0 to train everything. For models of PyTorch.
        optimizer_name: A key of :data:`remat_cli.frontends.optimizers.OPTIMIZERS`.
        context: What is taken outside of the framework, in bytes or as text.
        largest: Whether to look for the largest batch and the longest sequences, too. For models by name.
        options: How to solve; by default for at most a minute.
        listener: Receives the progress, from any thread.
        tell: Called before much memory is taken.

    Raises:
        UsageError: If there is no such model, card or optimizer, or an option is not for the source.
        InputError: If a configuration or graph is not valid.
        FrameworkUnavailable: If the library that knows the model is missing.
        CaptureFailed: If the step cannot be captured.
        Interrupted, SolverUnavailable, SolverFailed: From the searches.
    """
    card, chosen = gpu(as_text(gpu_name, "gpu")), optimizer(as_text(optimizer_name, "optimizer"))
    context_bytes = as_size(context, "context")
    for name, number in {"batch": batch, "length": length, "resolution": resolution}.items():
        if number is not None:
            as_whole(number, name)
    asked = Model(source if isinstance(source, str) else "", batch, length, resolution, task, dtype, lora)
    step = _step(source, asked, card, tell)
    if optimizer_name in _BY_SHAPE and not step.shapes_known:
        raise UsageError(
            f"the state of {chosen.title} depends on the shapes of parameters, which this graph does not tell",
            hint="take another optimizer, or export the graph from a framework",
        )

    def need(one: Captured) -> Need:
        return _need(one, chosen, context_bytes)

    answer = answers.fits(need(step), card.memory_bytes, options, listener=listener)
    if largest:
        answer = _with_largest(answer, step, need, options)
    advice = _advice(answer, step, asked, optimizer_name)
    return Answer(step.title, card, chosen.title, step.sizes, step.assumptions, advice, answer)


@dataclass(frozen=True, slots=True)
class Captured:
    """A training step as a graph, and what the graph does not say.

    Attributes:
        title: The model.
        graph: Its graph.
        parameters: All its parameters, those that the step does not read among them.
        buffer_bytes: Bytes of its buffers.
        shapes_known: Whether the shapes of parameters are known, and not only the bytes of their gradients.
        sizes: The batch, in words.
        assumptions: What was assumed.
        resized: Captures the step again with another size, of the names of ``by``.
        by: The sizes that can be changed, and what each is now.
    """

    title: str
    graph: Graph
    parameters: tuple[Parameter, ...]
    buffer_bytes: int
    shapes_known: bool
    sizes: str
    assumptions: tuple[str, ...] = ()
    resized: Callable[[str, int], Captured] | None = None
    by: tuple[tuple[str, int, int | None], ...] = ()


def _need(step: Captured, chosen: Optimizer, context_bytes: int) -> Need:
    graph, parameters = step.graph, step.parameters
    fixed = {"parameters": sum(p.size for p in parameters)}
    fixed["buffers"] = step.buffer_bytes
    fixed["inputs"] = max(0, graph.fixed_memory - _read_bytes(graph, sum(fixed.values())))
    fixed[f"state of {chosen.title}"] = chosen.state_bytes(parameters)
    reserved: Reserved | None = None
    if isinstance(graph.metadata, dict) and graph.metadata.get("frontend") == "torch":
        from remat_cli.frontends.torch.measure.allocator import least_limit

        reserved = least_limit
    return Need(graph, fixed, context_bytes, chosen.workspace_bytes(parameters), reserved)


def _read_bytes(graph: Graph, otherwise: int) -> int:
    """Bytes of the parameters and buffers that the graph reads; ``otherwise`` if it does not tell."""
    places = graph.metadata.get("places") if isinstance(graph.metadata, dict) else None
    if not isinstance(places, list) or not all(isinstance(p, dict) and "kind" in p and "bytes" in p for p in places):
        return otherwise
    return sum(p["bytes"] for p in places if p["kind"] in {"parameter", "buffer"})


def _step(source: str | Graph | Source, asked: Model, card: Gpu, tell: Tell) -> Captured:
    """The step of a source."""
    scheme = asked.source.partition(":")[0] if ":" in asked.source else ""
    cost = f"roofline:{card.speed}" if card.speed else "flops"
    if scheme in LIBRARIES:
        return _by_name(asked, cost, tell)
    if scheme == "torch":
        _refuse(asked, "the function decides", ("batch", "length", "resolution", "task"))
        return _of_function(asked, cost, tell)
    _refuse(asked, "the graph has its own", ("batch", "length", "resolution", "task", "dtype", "lora"))
    if scheme == "zoo":
        from remat_cli.api.frameworks import build_graph

        return _of_graph(build_graph(asked.source.partition(":")[2], cost=cost))
    if scheme in _FUNCTIONS:
        from remat_cli.api.frameworks import _exported

        [graph] = _exported(scheme, asked.source.partition(":")[2], "cpu", cost)
        return _of_graph(graph)
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
    if sum(gradients) > graph.fixed_memory:  # the graph has no parameters of its own in its fixed memory
        raise UsageError(
            "the gradients that the graph returns are larger than its fixed memory, so the parameters are not in it",
            hint="say in fixed_memory how many bytes parameters and inputs take",
        )
    return Captured(graph.name or "graph", graph, parameters, 0, False, "the batch of the graph")


def _of_function(asked: Model, cost: str, tell: Tell) -> Captured:
    from remat_cli.frontends.source import load_function
    from remat_cli.frontends.torch.installed import require_present
    from remat_cli.frontends.torch.named import adapted, float_types

    require_present("cpu")
    text = asked.source.partition(":")[2]
    function = load_function(text, "torch")
    dtype = float_types(asked.dtype)

    def build() -> tuple[Any, ...]:
        module, *others = function()
        return (adapted(module, dtype, asked.lora) if asked.dtype or asked.lora else module, *others)

    return _captured(build, text.rpartition(":")[2], asked.source, "the batch of the function", cost, tell)


def _by_name(asked: Model, cost: str, tell: Tell) -> Captured:
    from remat_cli.frontends.torch.installed import require_present
    from remat_cli.frontends.torch.named import NamedModel, NameOptions, named_model

    require_present("cpu")
    options = NameOptions(asked.batch or 1, asked.length, asked.resolution, asked.task, asked.dtype, asked.lora)
    model = named_model(asked.source, options)

    def captured(model: NamedModel) -> Captured:
        sizes = model.sizes
        words = f"{sizes.batch:,} x {sizes.length:,} tokens" if sizes.length else f"{sizes.batch:,} images"
        words += "" if sizes.length else f" of {sizes.resolution} x {sizes.resolution} pixels"
        step = _captured(model.build, model.title, asked.source, words, cost, tell)
        axes: list[tuple[str, int, int | None]] = [("batch", sizes.batch, None)]
        if sizes.length:
            axes.append(("length", sizes.length, model.most_length))
        assumed = (*model.assumptions, *((f"parameters are {model.dtype}",) if not asked.dtype else ()))
        return replace(
            step,
            assumptions=assumed,
            by=tuple(axes),
            resized=lambda name, number: captured(model.resized(**{name: number})),
        )

    return captured(model)


def _captured(
    build: Callable[[], tuple[Any, ...]], title: str, source: str, sizes: str, cost: str, tell: Tell
) -> Captured:
    """The graph of what ``build`` returns, with its parameters as they were when it was built."""
    from remat_cli.frontends.torch.export import export_model
    from remat_cli.frontends.torch.named import contents

    seen: list[tuple[tuple[Parameter, ...], int]] = []

    def recording() -> tuple[Any, ...]:
        built = build()
        seen.append(contents(built[0]))
        return built

    graph = export_model(recording, title, source, cost=cost, tell=tell)
    parameters, buffer_bytes = seen[-1]
    return Captured(title, graph, parameters, buffer_bytes, True, sizes)


def _with_largest(answer: Fits, step: Captured, need: Callable[[Captured], Need], options: SolveOptions | None) -> Fits:
    """The answer with the largest batch and the longest sequences."""
    if step.resized is None:
        raise UsageError("only a model by name can be captured with other batches", hint="leave largest out")
    results: dict[str, MaxBatch] = {}
    for name, now, most in step.by:
        other = now * 2 if most is None or now * 2 <= most else now // 2
        family = Batched.of([(now, need(step).graph), (other, need(step.resized(name, other)).graph)])
        limits = options or SolveOptions(time_limit_s=answers.TIME_LIMIT_S / 2)
        room = answer.memory_bytes - answer.need.context_bytes
        try:
            results[name] = max_batch_of(family, room, limit=one_forward, options=limits)
        except (Infeasible, LimitReached):
            continue
    return replace(answer, largest=results)


_SHOWN = 3
"""Most changes that are named."""


def _advice(answer: Fits, step: Captured, asked: Model, optimizer_name: str) -> tuple[tuple[int, str], ...]:
    """What would free memory, the most first; nothing if no recomputation is needed."""
    chosen = answer.chosen
    if chosen is not None and chosen.name == answers.WITHOUT:
        return ()
    tightest = min(answer.choices, key=lambda choice: choice.total_bytes)
    parts, trained = tightest.parts, [p for p in step.parameters if p.trained]
    changes = []
    if asked.length is not None or "tokens" in step.sizes:
        changes.append(
            (parts.get(Part.LOSS.value, 0), "are logits and loss: compute the loss for a part of the tokens at a time")
        )
    state = optimizer(optimizer_name)
    if optimizer_name in {"adam", "adamw", "adam-fused", "adamw-fused"} and step.shapes_known:
        spared = state.state_bytes(trained) - optimizer("adamw-8bit").state_bytes(trained)
        changes.append((spared, "less state with --optimizer adamw-8bit"))
    if tightest.in_update:
        changes.append(
            (parts.get(answers.UPDATE, 0), "less in the optimizer's step with a fused one: --optimizer adamw-fused")
        )
    if step.shapes_known and not asked.lora:
        spared = sum(p.size for p in trained) + state.state_bytes(trained)
        changes.append((spared, "are gradients and state: adapters (--lora 16) need next to none of them"))
    wide = [p for p in trained if p.item_bytes == 4]
    if step.shapes_known and wide and not asked.dtype.endswith("-mixed"):
        spared = (2 * sum(p.size for p in wide) + state.state_bytes(wide)) // 2
        changes.append((spared, "less for parameters, gradients and state with --dtype bfloat16"))
    return tuple(sorted((change for change in changes if change[0] > 0), reverse=True)[:_SHOWN])
