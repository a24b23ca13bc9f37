"""``torch.compile(step, backend=remat_backend("step.plan.json"))``: operation by operation, or inside Inductor."""

from __future__ import annotations

from remat_cli.frontends.torch.inductor.joint import way_of
from remat_cli.frontends.torch.train.backend import (
    Backend,
    Find,
    Refuse,
    Results,
    Unplanned,
    backend_of,
    finder_of,
)
from remat_cli.plan.model import Plan


def remat_backend(*plans: Plan | str, unknown: Unplanned = "error", compiler: str = "eager") -> Backend:
    """A backend for ``torch.compile`` that runs training steps by plan.

    Args:
        plans: Plans, or their files; one for each graph that is compiled.
        unknown: How to treat a graph without a plan: ``error``, or ``warn`` and run it without one.
        compiler: What the plans are for: ``eager`` or ``inductor``.

    Raises:
        FrameworkUnavailable: If torch is missing.
        UsageError: If a plan is not valid, or its graph is not of this frontend, or an argument is none of its values.
        InputError: If a file holds no plan.
    """
    find, refuse = finder_of(*plans, unknown=unknown)
    return backend_with(compiler, find, refuse)


def backend_with(compiler: str, find: Find, refuse: Refuse, results: Results | None = None) -> Backend:
    """A backend that calls ``find`` for the plan of each graph, see :func:`backend_of`; ``compiler`` runs it.

    Raises:
        UsageError: If there is no such compiler.
    """
    way_of(compiler)
    if compiler == "inductor":
        # Importing it imports Inductor.
        from remat_cli.frontends.torch.train.inductor_backend import inductor_backend

        return inductor_backend(find, refuse, results)
    return backend_of(find, refuse, results)
