"""The report on a policy, the best settings of another tool for recomputation, as text."""

from collections.abc import Mapping
from typing import Any

from remat_cli.reports.style import Style, fields, render
from remat_cli.reports.words import percent_over
from remat_cli.tolerances import GAP
from remat_cli.units import format_bytes

_SHOWN = 8
"""The number of names that are listed; the snippet has all."""
_UNITS = {"modules": "modules", "layers": "layers", "names": "values", "settings": "settings"}
"""What each kind of setting is called."""


def policy_text(policy: Mapping[str, Any], style: Style) -> str:
    """What the tool recomputes, what that costs, and what the best of all plans costs."""
    from rich.text import Text

    base = policy["no_remat_cost"]
    head = Text.assemble(
        (policy["tool"], "bold"),
        f": {_chosen(policy)}, ",
        (_over(policy["cost"], base), "bold"),
        " over no-remat",
    )
    peak, budget = policy["peak_memory"], policy["budget"]
    few = policy["candidates"] if policy["unit"] == "settings" else None
    within = "any" if budget is None else format_bytes(budget)
    rows = [
        ("graph", style.clean(policy["graph"] or "graph")),
        ("peak", f"{'not known' if peak is None else format_bytes(peak)} of {within}"),
        (policy["tool"], _over(policy["cost"], base) + _proof(policy, base, few)),
        *((other["tool"], _over(other["cost"], base) + _proof(other, base)) for other in policy["others"]),
        ("any plan", _best(policy["best"], base)),
    ]
    if policy["note"] is not None:
        rows.insert(2, ("note", policy["note"]))
    if settings := _listed(policy):
        rows.insert(1, (_UNITS[policy["unit"]], settings))
    return f"{render(style, head, '', fields(rows, style))}\n{policy['snippet']}"


def _chosen(policy: Mapping[str, Any]) -> str:
    if "every-n-layers" in policy["strategy"]:
        return f"every {_ordinal(int(policy['settings'][0]))} of {policy['candidates']} layers is recomputed"
    if policy["unit"] == "settings":
        return _setting(*policy["settings"])
    count = len(policy["settings"])
    if policy["cost"] <= policy["no_remat_cost"]:
        return "nothing has to be recomputed"
    done = "saved" if policy["unit"] == "names" else "recomputed"
    return f"{count} of {policy['candidates']} {_UNITS[policy['unit']]} {'is' if count == 1 else 'are'} {done}"


def _setting(kind: str, *names: str) -> str:
    """What a setting of a tool for training does, in words."""
    listed = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    number = int(names[0]) if kind in {"every", "block", "uniform"} else 0
    return {
        "none": "nothing is recomputed",
        "full": "every layer is recomputed",
        "selective": "every layer is recomputed but for the results that the tool saves",
        "save": f"every layer is recomputed but for {listed}",
        "modules": f"{listed} {'is' if len(names) == 1 else 'are'} recomputed in every layer",
        "every": f"every {_ordinal(number)} layer is recomputed" if number != 1 else "every layer is recomputed",
        "block": f"the first {number} layers are recomputed" if number != 1 else "the first layer is recomputed",
        "uniform": f"every {number} layers are recomputed together",
    }[kind]


def _ordinal(n: int) -> str:
    if n == 1:
        return "one"
    return f"{n}{'th' if 10 < n % 100 < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


def _listed(policy: Mapping[str, Any]) -> str:
    if "every-n-layers" in policy["strategy"] or policy["unit"] == "settings":
        return ""
    names = policy["settings"]
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _proof(claim: Mapping[str, Any], base: float, settings: int | None = None) -> str:
    """Whether a tool can do no better, or by how much it might; for a tool with few settings their number is given."""
    if claim["cost"] - claim["lower_bound"] <= GAP * claim["cost"]:
        if settings is not None:
            return f", the cheapest of {settings} settings"
        return ", the cheapest that this tool can do"
    return f", bound {_over(claim['lower_bound'], base)}"


def _best(best: Mapping[str, Any] | None, base: float) -> str:
    if best is None:
        return "none was found in time"
    return f"{_over(best['cost'], base)}, bound {_over(best['lower_bound'], base)} ({best['scope']})"


def _over(cost: float, base: float) -> str:
    return f"+{percent_over(cost / base - 1)}" if base > 0 else f"{cost:g}"
