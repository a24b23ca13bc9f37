"""Comparisons for several links: the tables one after another for people, all rows together for programs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from typing import Any

from remat_cli.plan.host import Host
from remat_cli.plan.linked import Linked
from remat_cli.reports.comparison import comparison_csv, comparison_document, comparison_text
from remat_cli.reports.jsonform import document_json
from remat_cli.reports.style import Style, render, title


def linked_text(linked: Linked, style: Style) -> str:
    """The table of each link under its name and bandwidths."""
    parts = []
    for (name, host), comparison in zip(linked.links, linked.comparisons, strict=True):
        head = render(style, title(style.clean(name), f"  {host.words}")).lstrip("\n")
        parts.append(head + comparison_text(comparison, style))
    return "\n".join(parts)


def _link(name: str, host: Host) -> dict[str, Any]:
    return {
        "link": name,
        "bandwidth_out": _limited(host.out_bytes_per_s),
        "bandwidth_in": _limited(host.in_bytes_per_s),
        "latency_s": host.latency_s,
        "memory": host.memory_bytes,
    }


def _limited(rate: float) -> float | None:
    return None if math.isinf(rate) else rate


def linked_document(linked: Linked) -> Mapping[str, Any]:
    """As JSON values, ``remat-comparisons/1`` (schemas/comparisons-v1.json)."""
    return {
        "schema": "remat-comparisons/1",
        "links": [
            {**_link(name, host), "comparison": comparison_document(comparison)}
            for (name, host), comparison in zip(linked.links, linked.comparisons, strict=True)
        ],
        "interrupted": linked.interrupted,
    }


def linked_json(linked: Linked) -> str:
    """:func:`linked_document` as text."""
    return document_json(dict(linked_document(linked)))


def linked_csv(linked: Linked) -> str:
    """One line for each link, strategy and budget, with a header; missing values are empty."""
    lines: list[dict[str, Any]] = []
    for (name, host), comparison in zip(linked.links, linked.comparisons, strict=True):
        link = {key: "" if value is None else value for key, value in _link(name, host).items()}
        lines += [{**link, **row} for row in csv.DictReader(io.StringIO(comparison_csv(comparison)))]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()
