"""remat: fit the training of neural networks into the memory at hand by recomputing values.

The package itself is the Python interface; what it names loads when it is used, so that this import stays light.

>>> import remat_cli as remat
>>> graph = remat.build_graph("unit-chain{n=17}")
>>> solved = remat.solve(graph, "60%")
>>> solved.report.ok, solved.report.replay.peak_bytes, solved.plan.claim.cost
(True, 6, 21.0)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from remat_cli.version import __version__

if TYPE_CHECKING:
    from remat_cli.api import (
        Report,
        Solved,
        SolveOptions,
        build_graph,
        check,
        compare,
        export_torch,
        fit,
        load_graph,
        load_plan,
        save_graph,
        save_plan,
        solve,
    )
    from remat_cli.errors import Infeasible, RematError

__all__ = [
    "Infeasible",
    "RematError",
    "Report",
    "SolveOptions",
    "Solved",
    "__version__",
    "build_graph",
    "check",
    "compare",
    "export_torch",
    "fit",
    "load_graph",
    "load_plan",
    "save_graph",
    "save_plan",
    "solve",
]


def __getattr__(name: str) -> Any:
    """Import ``name`` from where it lives."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = "remat_cli.errors" if name in {"Infeasible", "RematError"} else "remat_cli.api"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """What there is to use, loaded or not."""
    return sorted({*globals(), *__all__})
