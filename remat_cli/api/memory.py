"""Whether training fits into the memory of a card, from the name of a model or from a graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from remat_cli.api.arguments import as_text, as_whole, options_of
from remat_cli.api.documents import Source
from remat_cli.api.sizes import AllSizes, bucket_table, parted, with_largest
from remat_cli.api.steps import Captured, Model, captured_step
from remat_cli.control import Progress
from remat_cli.errors import UsageError, wrong_type
from remat_cli.frontends import gpus, optimizers
from remat_cli.frontends.gpus import Gpu
from remat_cli.frontends.messages import Tell, tell_stderr
from remat_cli.frontends.optimizers import Optimizer
from remat_cli.frontends.ranks import Ranks
from remat_cli.graph.memory_parts import Part
from remat_cli.graph.model import Graph
from remat_cli.planning import fits as answers
from remat_cli.planning.accumulation import Parted
from remat_cli.planning.buckets import Bucket
from remat_cli.planning.fits import Choice, Fits, Need, Reserved
from remat_cli.planning.options import SolveOptions
from remat_cli.reports.accumulation import ASSUMED, PartedFacts
from remat_cli.reports.buckets import BucketFacts, ChoiceFacts, CoveredFacts
from remat_cli.reports.fits import FitsFacts, RanksFacts
from remat_cli.tracebacks import door
from remat_cli.units import as_size, format_bytes

CONTEXT = "600MiB"
"""What is assumed for the context of the device and the code of kernels, which no allocator of a framework counts."""
DEFAULT = "adamw"
_OF_PARTS = (
    "of the plan in parts, the step returns its loss alone (logits that are returned are whole), and sums over parts "
    "differ in last bits; in float32 by some units in the last place"
)
_BY_SHAPE = ("adafactor", "adamw-8bit")
"""Optimizers whose state depends on the shapes of parameters."""


@dataclass(frozen=True, slots=True)
class FitsAnswer:
    """What :func:`fits` found.

    Attributes:
        title: The model.
        gpu: The card.
        optimizer: Title of the optimizer.
        sizes: The batch as it was captured, in words.
        assumptions: What was assumed, in sentences.
        advice: What would free memory, in bytes and in words, the most first.
        by_sheet: Whether costs are times by the data sheet of the card.
        fits: The answer.
        buckets: Batches for sequences up to several lengths, if asked for.
        parted: A batch in parts whose gradients are added up, if asked for.
        ranks: The ranks of which one is planned; None for one alone.
    """

    title: str
    gpu: Gpu
    optimizer: str
    sizes: str
    assumptions: tuple[str, ...]
    advice: tuple[tuple[int, str], ...]
    by_sheet: bool
    fits: Fits
    buckets: tuple[Bucket, ...] = ()
    parted: tuple[Parted, ...] = ()
    ranks: Ranks | None = None

    def facts(self) -> FitsFacts:
        """The facts for a report."""
        answer = self.fits
        graph = answer.need.graph
        return FitsFacts(
            title=self.title,
            sizes=self.sizes,
            optimizer=self.optimizer,
            card=self.gpu.title,
            times_of=f"the data sheet of {self.gpu.title}: a real one takes longer" if self.by_sheet else "the graph",
            memory_bytes=answer.memory_bytes,
            context_bytes=answer.need.context_bytes,
            cost_unit=graph.cost_unit,
            base_cost=graph.no_remat_cost,
            choices=tuple(map(choice_facts, answer.choices)),
            missing=answer.missing,
            least_bytes=answer.least_bytes,
            scope=answer.scope,
            assumptions=(*self.assumptions, *((ASSUMED,) if self.parted else ())),
            advice=self.advice,
            largest=answer.largest,
            buckets=tuple(map(bucket_facts, self.buckets)),
            parted=tuple(map(parted_facts, self.parted)),
            ranks=None if self.ranks is None else RanksFacts(**self.ranks.document(), words=self.ranks.words),
            least_in_parts_bytes=answer.least_in_parts_bytes,
        )


def choice_facts(choice: Choice) -> ChoiceFacts:
    """The facts of a way to train."""
    bound = choice.plan.claim.lower_bound if choice.name == answers.BEST else None
    origin = choice.plan.graph.origin
    return ChoiceFacts(
        choice.name,
        choice.parts,
        choice.total_bytes,
        choice.solved.report.replay.time,
        bound,
        {} if origin is None else origin.parts,
    )


def bucket_facts(bucket: Bucket) -> BucketFacts:
    """The facts of a bucket."""
    cost, proof = bucket.best.choice, bucket.covered
    return BucketFacts(
        length=bucket.length,
        without=bucket.without.size,
        without_cost=None if bucket.without.choice is None else choice_facts(bucket.without.choice).cost,
        batch=bucket.best.size,
        cost=None if cost is None else choice_facts(cost).cost,
        base_cost=None if cost is None else cost.plan.graph.no_remat_cost,
        too_much=bucket.best.too_much,
        covered=None if proof is None else CoveredFacts(proof.batches, proof.lengths, proof.peak_bytes, proof.proof),
        choices=tuple(map(choice_facts, bucket.choices)),
        cut_short=bucket.best.cut_short,
    )


def parted_facts(row: Parted) -> PartedFacts:
    """The facts of a batch in parts."""
    choice = row.choice
    return PartedFacts(
        batch=row.batch,
        parts=row.parts,
        length=row.length,
        name="" if choice is None else choice.name,
        total_bytes=None if choice is None else choice.total_bytes,
        cost=row.cost,
        overhead=None if choice is None else choice.overhead,
        impossible=row.impossible,
        choices=tuple(map(choice_facts, row.choices)),
    )


@door
def fits(
    source: str | Graph | Source,
    gpu: str,
    *,
    batch: int | None = None,
    length: int | None = None,
    resolution: int | None = None,
    task: str = "",
    dtype: str = "",
    lora: int = 0,
    optimizer: str = "",
    context: str | float = CONTEXT,
    largest: bool = False,
    buckets: Sequence[int] = (),
    global_batch: int | None = None,
    ranks: int | None = None,
    shard: str = "",
    tp: int = 1,
    interconnect: str = "",
    options: SolveOptions | None = None,
    listener: Callable[[Progress], None] | None = None,
    tell: Tell = tell_stderr,
) -> FitsAnswer:
    """Whether a training step fits into the memory of a card.

    Args:
        source: ``hf:config.json`` (a configuration of Transformers: its file, folder, or name on the hub),
            ``timm:NAME``, ``torchvision:NAME``, ``diffusers:config.json``, ``torch:FILE.py:NAME`` (also ``jax:`` and
            ``tf:``), ``zoo:NAME``; or a graph, its file or its data.
        gpu: A card such as ``h100``, or its memory such as ``24GB``.
        batch: Sequences or images, of a model by name.
        length: Tokens of a sequence, of a model of Transformers.
        resolution: Height and width of images.
        task: What a model of Transformers is trained for, such as ``causal-lm``.
        dtype: Type of the parameters: ``float32``, ``bfloat16`` or ``float16``; with ``-mixed`` they stay in float32.
        lora: Rank of the adapters that are trained alone; 0 to train everything. For models of PyTorch.
        optimizer: A key of :data:`remat_cli.frontends.optimizers.OPTIMIZERS`; by default ``adamw`` where the
            parameters are known, and else none.
        context: What is taken outside of the framework, in bytes or as text.
        largest: Whether to look for the largest batch and the longest sequences, too. For models by name.
        global_batch: A batch to train on in parts whose gradients are added up, and how to train parts of every size
            that divides it. For models by name.
        ranks: Ranks that train together, of which one is planned; None for one alone. For models of PyTorch.
        shard: What is divided over the ranks: ``full`` (the default: parameters, gradients and the state of the
            optimizer, as FSDP does), ``grad`` (gradients and state) or ``none``.
        tp: How many of the ranks share matrices, by the tensor-parallel plan of a model of Transformers.
        interconnect: What a rank sends in one direction, such as ``50GB/s``, or ``fsdp=50GB/s,tp=450GB/s``; by default
            that of a machine with eight such cards, by data sheets.
        buckets: Lengths of sequences for each of which the largest batch is looked for. For models of Transformers.
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
    text = source if isinstance(source, str) else ""
    card = gpus.gpu(as_text(gpu, "gpu"))
    together = _ranks(card, ranks, shard, tp, interconnect)
    model = Model(text, batch, length, resolution, task, _whole_name(as_text(dtype, "dtype")), lora, together)
    for name in ("batch", "length", "resolution"):
        if getattr(model, name) is not None:
            as_whole(getattr(model, name), name)
    as_text(task, "task"), as_text(dtype, "dtype"), as_whole(lora, "lora", 0)
    if not isinstance(largest, bool):
        raise wrong_type("largest", largest, "True or False")
    if not isinstance(buckets, list | tuple):
        raise wrong_type("buckets", buckets, "a list of lengths")
    lengths = tuple(sorted({as_whole(one, "buckets", 2) for one in buckets}))
    if global_batch is not None:
        as_whole(global_batch, "global_batch")

    def activity(progress: Progress) -> None:
        if listener is not None:
            listener(Progress(progress.activity))  # the cost of what will be captured is not known to the listener

    other_sizes = largest or bool(lengths) or global_batch is not None
    _require_one_size(together, other_sizes)
    asked = _Asked(as_text(optimizer, "optimizer"), as_size(context, "context"))
    limits = options_of(options, SolveOptions(time_limit_s=answers.TIME_LIMIT_S))
    activity(Progress("capturing the step"))
    step = captured_step(source, model, card, tell)
    steps = AllSizes(step, asked.need, lengths) if other_sizes else None  # refused before a search
    answer = answers.fits(asked.need(step), card.memory_bytes, limits, listener=activity)
    table: tuple[Bucket, ...] = ()
    parts: tuple[Parted, ...] = ()
    if steps is not None:
        if largest:
            answer = with_largest(answer, steps, limits, activity)
        if lengths:
            table = bucket_table(answer, steps, lengths, limits, activity)
        if global_batch is not None:
            parts = parted(answer, steps, global_batch, limits, activity)
    found = asked.answer(step, card, answer, _advice(answer, step, model, optimizer or DEFAULT))
    return replace(found, buckets=table, parted=parts, ranks=together)


def _whole_name(dtype: str) -> str:
    """``bfloat16-mixed`` for ``bf16-mixed``, as trainers call it."""
    kind, dash, mixed = dtype.partition("-")
    return {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}.get(kind, kind) + dash + mixed


def _ranks(card: Gpu, ranks: int | None, shard: str, tp: int, interconnect: str) -> Ranks | None:
    """The ranks that are asked for; None for one alone.

    Raises:
        UsageError: If they make no sense together.
    """
    as_text(shard, "shard"), as_whole(tp, "tp"), as_text(interconnect, "interconnect")
    if ranks is not None:
        return Ranks.of(as_whole(ranks, "ranks"), shard, tp, interconnect, card)
    for name, given in (("shard", shard), ("tp", tp > 1), ("interconnect", interconnect)):
        if given:
            raise UsageError(f"{name} is for several ranks", hint="say how many ranks train together, or leave it out")
    return None


def _require_one_size(ranks: Ranks | None, other_sizes: bool) -> None:
    if ranks is not None and other_sizes:
        raise UsageError(
            "larger batches and other lengths are not looked for on several ranks",
            hint="leave largest, buckets and global_batch out, and ask for one batch after another",
        )


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is in memory besides a captured step.

    Attributes:
        optimizer: Name of the optimizer; empty for the default.
        context_bytes: Bytes taken outside of the framework.
    """

    optimizer: str
    context_bytes: int

    def __post_init__(self) -> None:
        """Refuse an unknown optimizer before much is done."""
        optimizers.optimizer(self.optimizer or DEFAULT)

    def chosen(self, step: Captured) -> Optimizer:
        """The optimizer for a step: none by default where the parameters are not known.

        Raises:
            UsageError: If its state cannot be known.
        """
        if self.optimizer and not step.parameters:
            raise UsageError(
                "this graph does not tell which bytes are parameters, so the state of an optimizer is not known",
                hint="leave the optimizer out: the fixed memory of the graph holds its state",
            )
        if self.optimizer in _BY_SHAPE and not step.shapes_known:
            raise UsageError(
                f"the state of {self.optimizer} depends on the shapes of parameters, which this graph does not tell",
                hint="take another optimizer, or give the function or the name that the graph was made from",
            )
        return optimizers.optimizer(self.optimizer or (DEFAULT if step.parameters else "none"))

    def need(self, step: Captured) -> Need:
        """What a step needs, with the state of the optimizer."""
        return _need(step, self.chosen(step), self.context_bytes)

    def answer(self, step: Captured, card: Gpu, fits: Fits, advice: tuple[tuple[int, str], ...]) -> FitsAnswer:
        """The answer with what was assumed."""
        assumed = [*step.assumptions, f"the context of the device takes {format_bytes(self.context_bytes)}"]
        if card.speed:
            assumed.append(f"PyTorch can use {format_bytes(card.memory_bytes)} of the card, if nothing else does")
        if fits.need.reserved is None:
            assumed.append("an allocator leaves no gaps between tensors")
        if fits.choice(answers.IN_PARTS) is not None:
            assumed.append(_OF_PARTS)
        title = self.chosen(step).title
        return FitsAnswer(step.title, card, title, step.sizes, tuple(assumed), advice, step.by_sheet, fits)


def _need(step: Captured, chosen: Optimizer, context_bytes: int) -> Need:
    graph, parameters = step.graph, step.parameters
    fixed = {"parameters": sum(p.size for p in parameters)}
    fixed["buffers"] = step.buffer_bytes
    fixed["inputs" if parameters else "fixed memory"] = max(0, graph.fixed_memory - sum(fixed.values()))
    state = fixed[f"state of {chosen.title}"] = chosen.state_bytes(step.updated)
    fixed |= step.buffers
    reserved: Reserved | None = None
    if isinstance(graph.metadata, dict) and graph.metadata.get("frontend") == "torch":
        from remat_cli.frontends.torch.measure.allocator import least_limit

        reserved = partial(least_limit, captured=step.captured, state_bytes=state)
    workspace_bytes = chosen.workspace_bytes(step.updated)
    return Need(graph, fixed, context_bytes, workspace_bytes, reserved, step.eager, step.with_regions)


_SHOWN = 3
"""Most changes that are named."""


def _advice(answer: Fits, step: Captured, asked: Model, optimizer_name: str) -> tuple[tuple[int, str], ...]:
    """What would free memory, the most first; nothing if no recomputation is needed."""
    chosen = answer.chosen
    if chosen is not None and chosen.name == answers.WITHOUT:
        return ()
    tightest = min(answer.choices, key=lambda choice: choice.total_bytes)
    parts, trained = tightest.parts, [p for p in step.updated if p.trained]
    changes = []
    in_parts = answer.choice(answers.IN_PARTS)
    if in_parts is None and (asked.length is not None or "tokens" in step.sizes):
        changes.append(
            (parts.get(Part.LOSS.value, 0), "are logits and loss: compute the loss for a part of the tokens at a time")
        )
    state = optimizers.optimizer(optimizer_name)
    if optimizer_name in {"adam", "adamw", "adam-fused", "adamw-fused"} and step.shapes_known:
        spared = state.state_bytes(trained) - optimizers.optimizer("adamw-8bit").state_bytes(trained)
        changes.append((spared, "less state with the optimizer adamw-8bit"))
    if tightest.in_update:
        changes.append((parts.get(answers.UPDATE, 0), "less in the optimizer's step with adamw-fused"))
    if step.shapes_known and not asked.lora:
        spared = sum(p.size for p in trained) + state.state_bytes(trained)
        changes.append((spared, "are gradients and state: adapters of LoRA need next to none of them"))
    wide = [p for p in trained if p.item_bytes == 4]
    mostly_wide = 2 * sum(p.size for p in wide) > sum(p.size for p in step.parameters)
    if step.shapes_known and mostly_wide and not asked.dtype.endswith("-mixed"):
        spared = (2 * sum(p.size for p in wide) + state.state_bytes(wide)) // 2
        changes.append((spared, "less for parameters, gradients and state in bfloat16"))
    return tuple(sorted((change for change in changes if change[0] > 0), reverse=True)[:_SHOWN])
