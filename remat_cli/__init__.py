"""remat: fit the training of neural networks into the memory at hand by recomputing values.

The package is the Python interface. Its names load when they are used, so this import stays fast.

>>> import remat_cli as remat
>>> graph = remat.build_graph("unit-chain{n=17}")
>>> solved = remat.solve(graph, "60%")
>>> solved.report.ok, solved.report.replay.peak_bytes, solved.plan.claim.cost
(True, 6, 21.0)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from remat_cli.version import __version__ as __version__

if TYPE_CHECKING:
    # For type checkers. The list of names is in one place, api/__init__.py.
    from remat_cli.api import *  # noqa: F403 - see above
else:

    def __getattr__(name: str) -> Any:
        """Import ``name`` from where it lives."""
        from importlib import import_module

        if name == "__all__":
            return sorted(["__version__", *import_module("remat_cli.api").__all__])
        if not name.startswith("_") and name in import_module("remat_cli.api").__all__:
            return getattr(import_module("remat_cli.api"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """All public names, loaded or not."""
        return sorted({*globals(), *__getattr__("__all__")})
