"""A part of the GPU benchmark: recomputation, copies to the host, and both, beside PyTorch's own ways.

One transformer, one device. Bandwidths are measured with pinned memory. Budgets lie between eager mode's need and the
least that any plan needs. ``save_on_cpu`` copies all that autograd saves; checkpointing recomputes each block. On a
CPU, where tests run this, what is allocated includes the copies.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.frame import Column, Row, Table, columns
from benchmarks.torch.devices import TURNS
from benchmarks.torch.subject import Subject

TABLE = Table(
    "copies",
    "Recompute, copy to the host, or both",
    (
        Column("method", "method"),
        *columns("bytes", budget_bytes="budget", predicted_bytes="predicted", allocated_bytes="allocated"),
        *columns("bytes", host_bytes="host, predicted"),
        *columns("number", predicted_s="predicted, s", bound_s="bound, s", step_s="step, s"),
        *columns("text", losses="losses of 3 steps", problem="problem"),
    ),
)
_PLANS = {
    "recompute only": "offload{copy=false}",
    "copies only": "offload{recompute=false}",
    "both": "offload",
}
_SHARES = (0.6, 0.35)
"""Budgets, as shares of the way from the least that any plan needs to what no plan exceeds."""
_COPIED = 1 << 28
_STEPS = 3


def bandwidths(device: str) -> tuple[float, float]:
    """Bytes per second to the host and back, with pinned memory; on a CPU those of plain copies."""
    import torch

    there = torch.empty(_COPIED if device == "cuda" else 1 << 22, dtype=torch.uint8, device=device)
    here = torch.empty(there.numel(), dtype=torch.uint8, pin_memory=device == "cuda")
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def rate(copy: Callable[[], Any]) -> float:
        taken = []
        for _ in range(5):
            wait()
            started = time.perf_counter()
            copy()
            wait()
            taken.append(time.perf_counter() - started)
        return there.numel() / min(taken)

    return (
        rate(lambda: here.copy_(there, non_blocking=True)),
        rate(lambda: there.copy_(here, non_blocking=True)),
    )


def rows_of(
    subject: Callable[[], Subject],
    solve_s: float,
    left_s: Callable[[], float],
    say: Callable[[str], None],
    *,
    quick: bool,
) -> Iterator[Row]:
    """The rows: eager mode and PyTorch's ways, then plans, each in ``solve_s`` seconds; for one budget if ``quick``."""
    import torch

    plain = subject()
    device = plain.device.name
    wanted = plain.losses(_STEPS)
    cells = {"losses": "these", "allocated_bytes": _allocated(plain), "step_s": round(plain.seconds(5), 5)}
    yield {"method": "eager", "problem": ""} | cells
    del plain
    for title, way in (("save_on_cpu", "saved"), ("checkpoint, each block", "blocks")):
        if left_s() <= 0:
            return
        say(title)
        peer = subject()
        if way == "blocks":
            peer.owner.way = way
        else:
            peer.module = partial(_saved_on_cpu, peer.owner, device == "cuda")
        yield _row(peer, title, wanted)
        del peer
    with TURNS.turn():
        out, back = bandwidths(device)
    say(f"{out / 1e9:.1f} GB/s to the host, {back / 1e9:.1f} GB/s back")
    for share in _SHARES[:1] if quick else _SHARES:
        for title, strategy in _PLANS.items():
            if left_s() <= 0:
                return
            say(f"{title} at {share:.0%}")
            torch.compiler.reset()
            yield _planned(subject(), f"{title}, {share:.0%}", (strategy, share, out, back, solve_s), wanted)


def _allocated(subject: Subject) -> int:
    """The peak of a step, without the optimizer's state, which plans here do not count."""
    return subject.usage().allocated - 2 * subject.parameter_bytes()


def _saved_on_cpu(module: Any, pinned: bool, *inputs: Any) -> Any:
    import torch

    with torch.autograd.graph.save_on_cpu(pin_memory=pinned):
        return module(*inputs)


def _row(subject: Subject, method: str, wanted: list[float]) -> Row:
    with _cells() as cells:
        found = subject.losses(_STEPS)
        cells["losses"] = "bit for bit" if found == wanted else "differ"
        cells["allocated_bytes"] = _allocated(subject)
        cells["step_s"] = round(subject.seconds(5), 5)
    return {"method": method} | cells


def _planned(subject: Subject, method: str, asked: tuple[str, float, float, float, float], wanted: list[float]) -> Row:
    from remat_cli.api import SolveOptions, solve
    from remat_cli.graph.analysis import no_remat_peak, peak_bound
    from remat_cli.plan.check import check
    from remat_cli.plan.host import Host

    strategy, share, out, back, solve_s = asked
    made: list[Any] = []

    def planner(graph: Any) -> Any:
        least, most = peak_bound(graph).bytes, no_remat_peak(graph)
        budget = int(least + share * (most - least))
        options = SolveOptions(strategy=strategy, time_limit_s=solve_s, host=Host(out, back))
        made.append(solve(graph, budget, options).plan)
        return made[-1]

    with _cells() as cells:
        subject.fit(planner)
        plan = made[0]
        seen = check(plan).replay
        cells |= {
            "budget_bytes": plan.budget_bytes,
            "predicted_bytes": seen.peak_bytes,
            "host_bytes": seen.host_peak_bytes,
            "predicted_s": round(seen.time / 1e6, 5),
            "bound_s": round(plan.claim.lower_bound / 1e6, 5),
        }
        cells |= _row(subject, method, wanted)
    return {"method": method} | cells


@contextlib.contextmanager
def _cells() -> Iterator[Row]:
    """Cells of a row; a failure is one of them, so that the other rows are still made."""
    cells: Row = {"problem": ""}
    try:
        yield cells
    except Exception as error:
        cells["problem"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
