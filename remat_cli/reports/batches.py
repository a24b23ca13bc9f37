"""The report on the largest batch within a memory, as text and as a document, after ``remat max-batch``."""

from typing import Any

from remat_cli.graph.model import Graph
from remat_cli.plan.comparison import BatchFacts
from remat_cli.plan.model import Scope
from remat_cli.reports.style import Style, fields, render
from remat_cli.reports.words import exact_bytes
from remat_cli.units import format_bytes, format_percent

_AMONG = {
    Scope.ANY_ORDER: "among all plans, in any order",
    Scope.DOCUMENT_ORDER: "among plans in document order",
}


def batch_text(facts: BatchFacts, graph: Graph, style: Style) -> str:
    """The batch, the memory and cost of its plan, and the proof that larger batches are impossible."""
    from rich.text import Text

    base = graph.no_remat_cost
    allowed = f"{format_percent(facts.most_cost / base - 1)} over no-remat" if base > 0 else "anything"
    head = Text.assemble(
        (style.clean(graph.name or "graph"), "bold"),
        f": the largest batch within {format_bytes(facts.memory_bytes)} at {allowed} is ",
        (f"{facts.found:,}" if facts.found else "none", "bold green" if facts.found else "bold red"),
    )
    times = ""
    if facts.without and facts.found:
        times = f"; the plan takes {facts.found / facts.without:.2f} times as many"
    rows = [("without", f"{facts.without:,} fit without recomputation{times}")]
    if facts.cost is not None and facts.peak_bytes is not None:
        over = f", {format_percent(facts.cost / base - 1)} over no-remat" if base > 0 else ""
        rows.append(("plan", f"peak {exact_bytes(facts.peak_bytes)}{over}, by {facts.strategy}"))
    if len(facts.given) != 1:
        rows.append(("graphs", _graphs(facts)))
    rows.append(("larger", _certainty(facts)))
    tried = ", ".join(f"{batch:,}" for batch in facts.tried) or "none"
    rows.append(("search", f"batches tried: {tried}; {facts.outcome}"))
    return render(style, head, "", fields(rows, style))


def _certainty(facts: BatchFacts) -> str:
    proof = f"{facts.impossible:,} or more is proven impossible {_AMONG[facts.scope]}"
    low, high = facts.found + 1, facts.impossible - 1
    if not facts.refuted:
        if low > high:
            return proof
        between = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return f"{proof}; for {between} no plan was found"
    proof = f"{', '.join(f'{batch:,}' for batch in facts.refuted)} and {proof}"
    while high in facts.refuted:
        high -= 1
    if high < low:
        return proof
    return f"{proof}; others up to {high:,} have costs of their own and no plan was found"


def _graphs(facts: BatchFacts) -> str:
    """Where the costs of the batch found come from."""
    if not facts.given:
        return "one for every batch"
    own = ", ".join(f"{batch:,}" for batch in facts.given)
    if not facts.found or facts.found in facts.given:
        return f"for batches of {own}"
    below = [batch for batch in facts.given if batch < facts.found]
    above = [batch for batch in facts.given if batch > facts.found]
    low, high = (below[-1], above[0]) if below and above else facts.given[:2] if above else facts.given[-2:]
    outside = "" if below and above else "; make one near it to be sure"
    return (
        f"for batches of {own}; costs and bytes at {facts.found:,} on the lines through {low:,} and {high:,}{outside}"
    )


def batch_document(facts: BatchFacts) -> dict[str, Any]:
    """The facts as JSON values, ``remat-batch/1`` (schemas/batch-v1.json)."""
    return {
        "schema": "remat-batch/1",
        "memory": facts.memory_bytes,
        "most_cost": facts.most_cost,
        "batch": facts.found,
        "batch_without_remat": facts.without,
        "impossible_from": facts.impossible,
        "scope": facts.scope.value,
        "graph_batch": facts.graph_batch,
        "peak_memory": facts.peak_bytes,
        "cost": facts.cost,
        "strategy": facts.strategy,
        "tried": list(facts.tried),
        "given_batches": list(facts.given),
        "refuted": list(facts.refuted),
        "outcome": facts.outcome,
    }
