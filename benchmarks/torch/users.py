"""A part of the GPU benchmark: models as users train them, by ``remat.fit`` and with checkpoints of their own.

"checkpoints" is ``gradient_checkpointing_enable`` of transformers, and ``torch.utils.checkpoint`` around each block of
ResNet-50. AdamW's state is in all numbers. The memory that PyTorch may take from the device is limited to the budget of
``fit``, which is what eager mode or checkpoints took, or a share of that.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.frame import Column, Row, Table, columns
from benchmarks.torch.devices import TURNS
from benchmarks.torch.subject import Subject

if TYPE_CHECKING:
    from benchmarks.torch.user_models import Trained

TABLE = Table(
    "models",
    "Models of transformers and torchvision by fit",
    (
        *columns("text", model="model", method="method"),
        Column("budget_bytes", "budget", "bytes"),
        *columns("bytes", predicted_bytes="predicted", allocated_bytes="allocated", reserved_bytes="reserved"),
        *columns("number", step_s="step, s", over="over eager, %", predicted_over="predicted, %", fit_s="fit took, s"),
        *columns("text", losses="losses of 3 steps", problem="problem"),
    ),
    note="Predicted is the peak of tensors by plan, with AdamW's state; the budget covers what is reserved.",
)
FITS = Table(
    "fits",
    "What `remat fits` predicts for them",
    (
        *columns("text", model="model", way="way"),
        *columns("bytes", predicted_bytes="predicted", gaps_bytes="of it gaps and cuBLAS"),
        *columns("bytes", allocated_bytes="allocated", reserved_bytes="reserved"),
        Column("off", "predicted against reserved, %", "number"),
        Column("problem", "problem"),
    ),
    note="Predicted on a CPU, from the name of the model; the context of CUDA is left out.",
)
_STEPS = 3
_SOLVE_S = 5.0
"""Seconds for each plan; ``fit`` makes several where gaps of the allocator exceed the budget."""
_ROOM = 10**15
"""A memory in which everything fits."""


class Step(Subject):
    """A model with its batch and optimizer."""

    def __init__(self, model: "Trained", device: Any) -> None:
        import torch

        torch.manual_seed(0)
        self.batch = {name: tensor.to(device.name) for name, tensor in model.batch().items()}
        super().__init__(model.build().to(device.name).train(), tuple(self.batch.values()), device, optimizer=True)
        self.autocast = model.autocast

    def cast(self) -> Any:
        """The context of its forward pass."""
        import torch

        return torch.autocast(self.device.name, self.autocast) if self.autocast else contextlib.nullcontext()

    def step(self) -> Any:
        assert self.optimizer is not None
        self.owner.zero_grad(set_to_none=True)
        with self.cast():
            loss = self.module(**self.batch)["loss"]
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def rows_of(
    device: Any, left_s: Callable[[], float], say: Callable[[str], None], *, quick: bool, only: str = ""
) -> Iterator[tuple[str, Row]]:
    """The rows of every model, with their tables: eager mode, its own checkpoints, ``fit``, and ``fits``."""
    from benchmarks.torch.user_models import models
    from remat_cli.frontends.torch.measure.rates import device_rates

    with TURNS.turn():
        device_rates(device.name)
    for name, model in models(quick=quick).items():
        if left_s() < 0 or only not in name:
            continue
        say(name)
        measured: list[Row] = []
        for cells in _ways(model, device, left_s, lambda text, name=name: say(f"{name}: {text}")):  # type: ignore[misc]
            device.free()
            measured.append(cells)
            yield "models", {"model": name} | cells
        if model.named and left_s() > 0:
            say(f"{name}: fits")
            for cells in _predicted(*model.named, measured[:2]):
                yield "fits", {"model": name} | cells


def _ways(model: "Trained", device: Any, left_s: Callable[[], float], say: Callable[[str], None]) -> Iterator[Row]:
    rows: list[Row] = []
    wanted: list[float] = []
    for method in ("eager", "checkpoints"):
        row = _plain(model, device, method, wanted)
        rows.append(row | {"over": _over(row, rows[0] if rows else row)})
        yield rows[-1]
    eager, checkpoints = (row.get("reserved_bytes") or row.get("allocated_bytes") or 0 for row in rows)
    like = "memory of checkpoints"
    asked = [(checkpoints, like, "measured"), (int(0.6 * eager), "60% of eager", "measured")]
    asked += [(eager, "memory of eager", "device"), (checkpoints, like, "device")]
    for budget, title, cost in asked:
        if not budget or left_s() < 0:
            return
        say(f"fit in the {title}, cost={cost}")
        row = _fitted(model, device, budget, cost, wanted)
        yield {"method": f"fit, {title}, cost={cost}"} | row | {"over": _over(row, rows[0])}


def _plain(model: "Trained", device: Any, method: str, wanted: list[float]) -> Row:
    with _cells() as cells:
        subject = Step(model, device)
        if method == "checkpoints":
            model.set_checkpoints(subject.owner)
        found = subject.losses(_STEPS)
        first = not wanted
        wanted += found if first else []
        cells |= _measured(subject) | {"losses": "these" if first else _compared(found, wanted)}
    return {"method": method} | cells


def _fitted(model: "Trained", device: Any, budget: int, cost: str, wanted: list[float]) -> Row:
    import torch

    from remat_cli.api import SolveOptions, fit, fitted

    torch.compiler.reset()
    with _cells() as cells:
        cells["budget_bytes"] = budget
        subject = Step(model, device)
        started, states = time.monotonic(), 2 * subject.parameter_bytes()
        options = SolveOptions(time_limit_s=_SOLVE_S)
        with TURNS.measuring(), subject.cast():
            fit(subject.owner, subject.batch, budget, options=options, cost=cost, reserve=states, holds=(), cache="")
        told = fitted(subject.owner)
        assert told is not None
        cells |= {"fit_s": round(time.monotonic() - started, 1), "predicted_bytes": told.plan_bytes}
        cells["predicted_over"] = round(told.extra_cost, 2)
        with device.limited(budget):
            cells["losses"] = _compared(subject.losses(_STEPS), wanted)
            cells |= _measured(subject)
    return cells


def _predicted(named: Any, asked: Mapping[str, Any], measured: list[Row]) -> Iterator[Row]:
    """What ``remat fits`` says of plain training and of checkpoints in every block, beside what was measured."""
    import remat_cli
    from remat_cli.planning.fits import BLOCKS, GAPS, WITHOUT

    with _cells() as cells, tempfile.TemporaryDirectory() as folder:
        source = named
        if not isinstance(named, str):
            named.save_pretrained(folder)
            source = f"hf:{folder}"
        answer = remat_cli.fits(source, f"{_ROOM}B", optimizer="adamw", context=0, **asked).fits
    if cells["problem"]:
        yield {"way": "all"} | cells
        return
    for way, row in zip((WITHOUT, BLOCKS), measured, strict=True):
        choice = answer.choice(way)
        found = {key: row.get(key) for key in ("allocated_bytes", "reserved_bytes")}
        if choice is None:
            yield {"way": way, "problem": "not among the ways"} | found
            continue
        taken = found["reserved_bytes"] or found["allocated_bytes"]
        off = round(100 * (choice.total_bytes / taken - 1), 2) if taken else None
        yield {
            "way": way,
            "predicted_bytes": choice.total_bytes,
            "gaps_bytes": choice.parts.get(GAPS, 0),
            "off": off,
            "problem": "",
        } | found


def _measured(subject: Subject) -> Row:
    usage = subject.usage()
    seconds = round(subject.seconds(5), 5)
    return {"allocated_bytes": usage.allocated, "reserved_bytes": usage.reserved, "step_s": seconds}


def _compared(found: list[float], wanted: list[float]) -> str:
    if found == wanted:
        return "bit for bit"
    return f"{max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(found, wanted, strict=True)):.1g} off"


def _over(row: Row, eager: Row) -> float | None:
    if not (row.get("step_s") and eager.get("step_s")):
        return None
    return round(100 * (row["step_s"] / eager["step_s"] - 1), 2)


@contextlib.contextmanager
def _cells() -> Iterator[Row]:
    """Cells of a row; a failure is one of them, so that the other rows are still made."""
    cells: Row = {"problem": ""}
    try:
        yield cells
    except Exception as error:
        cells["problem"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
