"""Colours and marks of all figures: Okabe and Ito's palette for the colour-blind, and never colour alone."""

from __future__ import annotations

from remat_cli.plan.occupancy import Kind

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B")
"""Okabe and Ito's palette, and a brown."""

KINDS = {
    Kind.FIXED: "#999999",
    Kind.FORWARD: "#0072B2",
    Kind.PLAIN: "#0072B2",
    Kind.LOSS: "#CC79A7",
    Kind.BACKWARD: "#56B4E9",
    Kind.UPDATE: "#009E73",
    Kind.RECOMPUTED: "#E69F00",
    Kind.FETCHED: "#009E73",
    Kind.WORKSPACE: "#F0E442",
}
BUDGET = "#D55E00"
PATTERNS = {Kind.RECOMPUTED: "/", Kind.FETCHED: "x", Kind.WORKSPACE: ".", Kind.BACKWARD: "\\"}
"""Hatching, for print without colour."""
