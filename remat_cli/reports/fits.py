"""The answer of ``remat fits``: yes or no first, then bytes by what they are for, prices, and what to change first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from remat_cli.plan.model import Scope
from remat_cli.reports.accumulation import PartedFacts, best_words, parted_document, parted_table
from remat_cli.reports.buckets import (
    BucketFacts,
    ChoiceFacts,
    bucket_table,
    buckets_document,
    what_one_plan_covers,
    what_the_time_decided,
)
from remat_cli.reports.style import Style, fields, render, title
from remat_cli.reports.table import Column, Table, markdown_escaped
from remat_cli.reports.words import cost_words, percent_over, size_column
from remat_cli.tolerances import SAME_COST
from remat_cli.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

CONTEXT = "context of the device"
_TOTAL = "taken from the device"
_AMONG = {Scope.ANY_ORDER: "in any order of operations", Scope.DOCUMENT_ORDER: "in this order of operations"}


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest batch, or the longest sequences.

    Attributes:
        found: With one more forward pass at most.
        without: Without recomputation; 0 if even 1 does not fit.
        most: The model takes no more; None if it has no such limit.
        too_much: No plan fits this size; None if none is known.
        exact: Whether bytes are known at every size, and not those on a line through two.
        cut_short: Whether the time limit ended the search for a larger one.
    """

    found: int
    without: int
    most: int | None = None
    too_much: int | None = None
    exact: bool = False
    cut_short: bool = False


@dataclass(frozen=True, slots=True)
class RanksFacts:
    """Ranks that train together, of which one is planned.

    Attributes:
        count: All ranks.
        shard: What is divided over them: ``full``, ``grad`` or ``none``.
        tp: How many of them share matrices.
        bytes_per_s: What a rank sends in one direction, by the dimension of the mesh.
        words: All this.
    """

    count: int
    shard: str
    tp: int
    bytes_per_s: Mapping[str, float]
    words: str


@dataclass(frozen=True, slots=True)
class FitsFacts:
    """Whether a training step fits into the memory of a card.

    Attributes:
        title: The model.
        sizes: Its batch, in words.
        optimizer: The optimizer.
        card: The card, or its memory.
        times_of: Where the costs come from, if they are times: the data sheet of a card, or the graph.
        memory_bytes: Its memory.
        context_bytes: What is taken outside of the framework.
        cost_unit: Unit of all costs.
        base_cost: What a step costs without recomputation.
        choices: Ways to train.
        missing: Why a way to train was not found, by its name.
        least_bytes: No plan in ``scope``, of whole operations, takes less from the device.
        scope: The plans for which that is proven.
        least_in_parts_bytes: No plan takes less, with any region in any number of parts; None if no regions are known.
        assumptions: What was assumed, in sentences.
        advice: What would free memory, in bytes and in words, the most first.
        largest: The largest batch and the longest sequences, by what grows.
        buckets: Batches for sequences up to several lengths.
        parted: A batch in parts whose gradients are added up.
        ranks: The ranks of which one is planned; None for one alone.
    """

    title: str
    sizes: str
    optimizer: str
    card: str
    times_of: str
    memory_bytes: int
    context_bytes: int
    cost_unit: str
    base_cost: float
    choices: tuple[ChoiceFacts, ...]
    missing: Mapping[str, str]
    least_bytes: int
    scope: Scope
    assumptions: tuple[str, ...]
    advice: tuple[tuple[int, str], ...]
    largest: Mapping[str, Largest]
    buckets: tuple[BucketFacts, ...] = ()
    parted: tuple[PartedFacts, ...] = ()
    ranks: RanksFacts | None = None
    least_in_parts_bytes: int | None = None

    @property
    def chosen(self) -> ChoiceFacts | None:
        """The cheapest way to train that fits; None if none was found."""
        fitting = [choice for choice in self.choices if choice.total_bytes <= self.memory_bytes]
        return min(fitting, key=lambda choice: choice.cost, default=None)

    @property
    def floor_bytes(self) -> int:
        """No plan takes less from the device, of whole operations, or with regions in parts."""
        return (
            self.least_bytes if self.least_in_parts_bytes is None else min(self.least_bytes, self.least_in_parts_bytes)
        )

    @property
    def impossible(self) -> bool:
        """Whether it is proven that no plan fits."""
        return self.floor_bytes > self.memory_bytes

    def over(self, cost: float) -> float:
        """A cost over that without recomputation, as a share."""
        return cost / self.base_cost - 1 if self.base_cost > 0 else 0.0


def fits_text(facts: FitsFacts, style: Style) -> str:
    """The answer for people."""
    from rich.text import Text

    word, why, look = verdict(facts)
    memory = format_bytes(facts.memory_bytes)
    parts: list[RenderableType] = [
        Text.assemble((word, look), style.clean(f": {why}")),
        fields([("model", model_words(facts)), *_speed(facts)], style),
        title("Memory", f"  {facts.card}" + ("" if facts.card == memory else f": {memory}")),
        fits_table(facts, style.glyph("✓ fits", "fits")).text(style),
    ]
    if facts.buckets:
        table = bucket_table(facts.buckets, facts.cost_unit, lines=True)
        parts += ["", title("Batches by length", f"  {facts.card}"), table.text(style)]
    if facts.parted:
        table_of_parts = parted_table(facts.parted, facts.cost_unit, lines=True)
        parts += ["", title("A batch in parts", f"  {facts.card}"), table_of_parts.text(style)]
    parts += ["", fields(details(facts), style)]
    if facts.advice:
        advised = [(format_bytes(size), sentence) for size, sentence in facts.advice]
        parts += [title("What to change first"), fields(advised, style)]
    return render(style, *parts)


def fits_markdown(facts: FitsFacts) -> str:
    """The answer in GitHub's Markdown, for a README: tables of the memory and of buckets, and what was assumed."""
    word, why, _ = verdict(facts)
    lines = [
        f"**{word}**: {markdown_escaped(why)}",
        "",
        f"{markdown_escaped(model_words(facts))}; {facts.card}",
        "",
        fits_table(facts, "fits").markdown(),
    ]
    if facts.buckets:
        lines.append(bucket_table(facts.buckets, facts.cost_unit).markdown())
    if facts.parted:
        lines.append(parted_table(facts.parted, facts.cost_unit).markdown())
    lines += [f"- {markdown_escaped(f'{name}: {words}')}" for name, words in details(facts)]
    return "\n".join(lines) + "\n"


def model_words(facts: FitsFacts) -> str:
    """The model, its batch, its optimizer, and how it is divided."""
    ranks = [] if facts.ranks is None else [facts.ranks.words]
    return "; ".join([facts.title, facts.sizes, facts.optimizer, *ranks])


def details(facts: FitsFacts) -> list[tuple[str, str]]:
    """What is proven, missing, largest and assumed, each with a label."""
    rows = [("at least", _floor(facts)), *_floor_in_parts(facts), *facts.missing.items()]
    told = {"batches": what_the_time_decided(facts.buckets), "one plan": what_one_plan_covers(facts.buckets)}
    rows += [(name, words) for name, words in told.items() if words]
    rows += [("in parts", best_words(facts.parted))] if facts.parted else []
    rows += [(f"largest {name}", _largest(one)) for name, one in facts.largest.items()]
    return rows + [("assumed", sentence) for sentence in facts.assumptions]


def verdict(facts: FitsFacts) -> tuple[str, str, str]:
    """Yes, no or unknown; why; and its look."""
    chosen, memory = facts.chosen, format_bytes(facts.memory_bytes)
    if chosen is None and facts.impossible:
        short = format_bytes(facts.floor_bytes - facts.memory_bytes)
        least = format_bytes(facts.floor_bytes)
        return "no", f"no plan fits, since each takes {least} or more, {short} too much for {memory}", "bold red"
    if chosen is None:
        nearest = min(facts.choices, key=lambda choice: choice.total_bytes)
        takes = format_bytes(nearest.total_bytes)
        return "not known", f"the least that was found takes {takes}, and {memory} is not refuted", "bold yellow"
    takes = format_bytes(chosen.total_bytes)
    if chosen.name == facts.choices[0].name:
        return "yes", f"without recomputation it takes {takes} of {memory}", "bold green"
    if chosen.cost <= facts.base_cost and not chosen.regions:
        eager = format_bytes(facts.choices[0].total_bytes)
        words = f"by a plan at no extra cost it takes {takes} of {memory}; without a plan {eager}"
        return "yes", words, "bold green"
    over = percent_over(facts.over(chosen.cost))
    bound = (
        ""
        if chosen.lower_bound is None
        else f"; no plan costs less than +{percent_over(facts.over(chosen.lower_bound))}"
    )
    if chosen.regions:
        return "yes", f"with {_in_parts(chosen)} it takes {takes} of {memory}, at +{over}{_whole(facts)}", "bold green"
    return "yes", f"with recomputation ({chosen.name}) it takes {takes} of {memory}, at +{over}{bound}", "bold green"


def _in_parts(choice: ChoiceFacts) -> str:
    """``the loss in 8 parts and hidden in 2``."""
    words = [f"{'the ' if name == 'loss' else ''}{name} in {count} parts" for name, count in choice.regions.items()]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _whole(facts: FitsFacts) -> str:
    """What whole operations need, where the cheapest way to train has regions in parts."""
    fitting = [one for one in facts.choices if not one.regions and one.total_bytes <= facts.memory_bytes]
    if fitting:
        return f"; with whole operations +{percent_over(facts.over(min(one.cost for one in fitting)))}"
    if facts.least_bytes > facts.memory_bytes:
        return f"; with whole operations no plan fits, since each takes {format_bytes(facts.least_bytes)} or more"
    return "; with whole operations none was found"


def _speed(facts: FitsFacts) -> list[tuple[str, str]]:
    if facts.cost_unit != "us":
        return []
    time = cost_words(facts.base_cost, facts.cost_unit)
    return [("step", f"{time} without recomputation, by {facts.times_of}")]


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the table: a name, and a text for each choice."""

    name: str
    texts: Sequence[str]
    look: str = ""


def fits_table(facts: FitsFacts, fits_mark: str) -> Table[_Line]:
    """The memory of every choice by what it is for, its time, and whether it fits: ``fits_mark`` if it does."""
    choices = facts.choices
    names = list(dict.fromkeys(name for choice in choices for name in choice.parts))
    rows = [(name, [choice.parts.get(name) for choice in choices]) for name in names]
    rows.append((CONTEXT, [facts.context_bytes for _ in choices]))
    rows.append((_TOTAL, [choice.total_bytes for choice in choices]))
    texts = iter(size_column([size for _, sizes in rows for size in sizes if size is not None]))
    lines = [_Line(name, [next(texts) if size is not None else "" for size in sizes]) for name, sizes in rows]
    lines[-1] = replace(lines[-1], look="bold")
    lines.append(_Line("time of a step", [_over(facts, choice) for choice in choices]))
    fit = [fits_mark if choice.total_bytes <= facts.memory_bytes else _excess(facts, choice) for choice in choices]
    lines.append(_Line("", fit))

    def column(at: int) -> Column[_Line]:
        return Column(choices[at].name, lambda line: line.texts[at], look=lambda line: line.look)

    first: Column[_Line] = Column("", lambda line: line.name, numeric=False, look=lambda line: line.look)
    return Table([first, *map(column, range(len(choices)))], lines)


def _over(facts: FitsFacts, choice: ChoiceFacts) -> str:
    over = facts.over(choice.cost)
    if over > SAME_COST:
        return f"+{percent_over(over)}"
    return cost_words(choice.cost, facts.cost_unit)


def _excess(facts: FitsFacts, choice: ChoiceFacts) -> str:
    return f"{format_bytes(choice.total_bytes - facts.memory_bytes)} over"


def _floor(facts: FitsFacts) -> str:
    proof = _AMONG.get(facts.scope, facts.scope.value)
    return f"{format_bytes(facts.least_bytes)}: proven for every plan {proof}, with whole operations"


def _floor_in_parts(facts: FitsFacts) -> list[tuple[str, str]]:
    if facts.least_in_parts_bytes is None:
        return []
    least = format_bytes(facts.least_in_parts_bytes)
    return [("with parts", f"{least}: proven for every plan, with regions in any number of parts")]


def _largest(one: Largest) -> str:
    whole = one.found == one.most
    found = f"{one.found:,}, all that the model takes," if whole else f"{'' if one.exact else 'about '}{one.found:,}"
    without = f"{one.without:,} without recomputation" if one.without else "none without recomputation"
    late = "; the time limit ended the search, and more time may find a larger one" if one.cut_short else ""
    if not one.exact:
        return f"{found} at one more forward pass, {without}: by bytes on the line through two sizes{late}"
    without += f", and not {one.without + 1:,}" if one.without != one.most else ""
    refuted = f"; no plan fits {one.too_much:,}" if one.too_much is not None else ""
    return f"{found} at one more forward pass, {without}: by the bytes of each of these sizes{refuted}{late}"


def fits_document(facts: FitsFacts) -> dict[str, Any]:
    """As JSON values, ``remat-fits/1`` (schemas/fits-v1.json). Costs are in the cost unit, memory in bytes."""
    chosen = facts.chosen
    return {
        "schema": "remat-fits/1",
        "model": facts.title,
        "sizes": facts.sizes,
        "optimizer": facts.optimizer,
        "ranks": None if facts.ranks is None else _ranks_document(facts.ranks),
        "card": facts.card,
        "memory": facts.memory_bytes,
        "context": facts.context_bytes,
        "fits": None if chosen is None and not facts.impossible else chosen is not None,
        "chosen": None if chosen is None else chosen.name,
        "least_memory": facts.least_bytes,
        "least_memory_in_parts": facts.least_in_parts_bytes,
        "scope": facts.scope.value,
        "cost_unit": facts.cost_unit,
        "no_remat_cost": facts.base_cost,
        "choices": [
            {
                "name": choice.name,
                "memory": choice.total_bytes,
                "parts": dict(choice.parts),
                "cost": choice.cost,
                "lower_bound": choice.lower_bound,
                "fits": choice.total_bytes <= facts.memory_bytes,
                "regions": dict(choice.regions),
            }
            for choice in facts.choices
        ],
        "missing": dict(facts.missing),
        "assumptions": list(facts.assumptions),
        "advice": [{"bytes": size, "sentence": sentence} for size, sentence in facts.advice],
        "largest": {
            name: {
                "found": one.found,
                "without_remat": one.without,
                "exact": one.exact,
                "too_much": one.too_much,
                "cut_short": one.cut_short,
            }
            for name, one in facts.largest.items()
        },
        "buckets": buckets_document(facts.buckets, facts.cost_unit) if facts.buckets else None,
        "accumulation": parted_document(facts.parted, facts.cost_unit) if facts.parted else None,
    }


def _ranks_document(ranks: RanksFacts) -> dict[str, Any]:
    return {"count": ranks.count, "shard": ranks.shard, "tp": ranks.tp, "bytes_per_s": dict(ranks.bytes_per_s)}
