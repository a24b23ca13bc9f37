"""On a GPU: training in less memory than plain training needs.

`make gpu`, in at most ten minutes and without a network. Allowed memory is set with
`torch.cuda.set_per_process_memory_fraction`; Adam's state is in all numbers of the first two tables. Graphs are
measured on the device first (`remat profile`), so plans save time, not FLOPs. Rows that did not finish in time are
missing; failed rows say why. Parts run in several processes; one of them has the device, while others make plans.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.frame import Benchmark, Column, Row, Session, Table, columns, described, perform
from benchmarks.page import keep
from benchmarks.torch import copies, peers, users
from benchmarks.torch import parts as parts_of_the_loss
from benchmarks.torch.batches import Batches
from benchmarks.torch.devices import TURNS, Cpu, device_named
from benchmarks.torch.subject import Subject, plan_budget, planner, solved

HERE = Path(__file__).resolve().parent
HOLLOW = """Predicted and measured memory on CUDA, without a GPU

`make hollow`: PyTorch's CUDA build over a runtime that keeps account of memory and does nothing else
(`python -m benchmarks.torch.hollow`). What PyTorch's allocator hands out and takes from the device is as on a GPU,
within the same limits; kernels do nothing, convolutions ask for {workspace} bytes of workspace each and everything else
for none, and there are no times and no results.
"""
_NEEDS_KERNELS = {"step_s", "predicted_s", "results", "losses"}
MINUTES = 9.0
_ALLOWED = 0.6
"""Allowed share of the memory of plain training, which then must fail."""

TABLES = (
    Table(
        "fit",
        "A model that does not fit the memory allowed",
        (
            Column("method", "method"),
            Column("allowed_bytes", "allowed", "bytes"),
            Column("ran", "ran"),
            *columns("bytes", predicted_bytes="predicted", allocated_bytes="allocated", reserved_bytes="reserved"),
            Column("step_s", "step, s", "number"),
            *columns("text", losses="losses of 4 steps of Adam", plan="plan by"),
        ),
    ),
    Table(
        "batch",
        "The largest batch within the same memory",
        (
            Column("method", "method"),
            Column("allowed_bytes", "allowed", "bytes"),
            *columns("count", predicted="predicted", measured="measured"),
            Column("problem", "problem"),
        ),
    ),
    Table(
        "peaks",
        "Predicted and measured: the zoo's models with measured costs",
        (
            *columns("text", model="model", budget="budget"),
            *columns("bytes", predicted_bytes="predicted", allocated_bytes="allocated"),
            Column("off", "allocated against predicted, %", "number"),
            *columns("bytes", taken_bytes="reserved, predicted", reserved_bytes="reserved"),
            *columns("number", taken_off="reserved against predicted, %", predicted_s="predicted, s", step_s="step, s"),
            Column("recomputations", "recomputed", "count"),
            *columns("text", results="results", problem="problem"),
        ),
    ),
    Table(
        "overhead",
        "The generated graph without recomputation, against eager",
        (
            Column("model", "model"),
            *columns("number", eager_s="eager, s", step_s="generated, s", overhead="overhead, %"),
            Column("problem", "problem"),
        ),
    ),
    copies.TABLE,
    *peers.TABLES,
    users.TABLE,
    users.FITS,
    parts_of_the_loss.TABLE,
)

_ZOO = {
    "cuda": ("torch/gpt2{batch=8}", "torch/vgg16{batch=32}", "torch/unet{batch=8}", "torch/resnet50{batch=64}"),
    "cpu": ("torch/unet{batch=1,resolution=32,width=4,depth=2}",),
}
_QUICK = (2, 16, 2, 8, 64)
"""Depth, width, heads, batch and sequence for a run that only shows that the benchmark works."""
_SIZES = (12, 1024, 16, 8, 1024)


@dataclass
class Run:
    """One run of all parts.

    Attributes:
        device: The device.
        quick: Tiny models.
        end_s: ``time.monotonic()`` after which no part is begun.
        session: Reports progress and keeps rows.
        rows: The rows so far.
        only: Text in the names of the models of a part that has several; empty for all.
    """

    device: Any
    quick: bool
    end_s: float
    session: Session
    rows: list[Row] = field(default_factory=list)
    allowed_bytes: int = 0
    only: str = ""

    def add(self, table: str, **cells: Any) -> None:
        [columns] = [t.columns for t in TABLES if t.key == table]
        self.rows.append({"table": table} | dict.fromkeys((c.key for c in columns), None) | cells)
        self.session.keep(self.rows)

    def left_s(self) -> float:
        return self.end_s - time.monotonic()

    def solve_s(self) -> float:
        return 0.5 if self.quick else max(2.0, min(5.0, self.left_s() / 20))

    def shallow(self, batch: int | None = None) -> Subject:
        """A subject with one layer if ``quick``, where searches and captures are most of the time."""
        return self.subject(batch, 1 if self.quick else None)

    def subject(self, batch: int | None = None, layers: int | None = None) -> Subject:
        import torch

        from benchmarks.torch.models import Model

        depth, width, heads, usual, length = _QUICK if self.quick else _SIZES
        torch.manual_seed(0)
        module = Model(layers or depth, width, heads, 0.1).to(self.device.name)
        x = torch.randn(batch or usual, length, width, device=self.device.name)
        return Subject(module, (x,), self.device, optimizer=True)


def fit(run: Run) -> None:
    """Plain training, the same within less memory, and by plan within less memory."""
    plain = run.subject()
    wanted = plain.losses(4)
    usage = plain.usage()
    run.add("fit", method="eager", ran="yes", step_s=round(plain.seconds(5), 5), losses="these", **_bytes(usage))
    run.allowed_bytes = int((usage.reserved or usage.allocated) * _ALLOWED)
    del plain
    for method in ("eager", "remat"):  # one after the other: each needs an otherwise empty memory
        run.session.say(f"{method} within {run.allowed_bytes} bytes")
        cells: Row = {"method": method, "allowed_bytes": run.allowed_bytes, "plan": "", "losses": ""}
        tried = run.subject()
        if method == "remat":
            made: list[Any] = []
            states = 2 * tried.parameter_bytes()  # Adam's
            budget = plan_budget(run.allowed_bytes, run.device.name)
            make = planner(budget, run.solve_s(), made, states)
            tried.fit(make, reserve_bytes=states)
            cells |= {"plan": made[0].strategy, "predicted_bytes": _peak(made[0])}
        with run.device.limited(run.allowed_bytes):
            cells |= _tried(tried, wanted)
        run.add("fit", **cells)
        del tried


def _tried(subject: Subject, wanted: list[float]) -> Row:
    """How training goes within the limit."""
    import torch

    try:
        found = subject.losses(4)
        cells: Row = _bytes(subject.usage())
    except torch.OutOfMemoryError:
        subject.owner.zero_grad(set_to_none=True)
        return {"ran": "no: out of memory"}
    off = max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(found, wanted, strict=True))
    losses = "bit for bit" if found == wanted else f"{off:.1g} off"
    return cells | {"ran": "yes", "losses": losses, "step_s": round(subject.seconds(5), 5)}


def _bytes(usage: Any) -> Row:
    return {"allocated_bytes": usage.allocated, "reserved_bytes": usage.reserved}


def _peak(plan: Any) -> int:
    from remat_cli.plan.check import check

    return int(check(plan).replay.peak_bytes)


def batch(run: Run) -> None:
    """The largest batch by prediction and by trying, without and with plans."""
    allowed = run.allowed_bytes or int(run.device.memory_bytes() * _ALLOWED)
    search = Batches(run.shallow, run.device, allowed, run.solve_s(), run.left_s, run.session.say)
    for method, plan in (("eager", False), ("remat", True)):
        guess = search.predicted(plan=plan)
        found, problem = None, ""
        try:
            found = search.measured(guess, plan=plan)
        except TimeoutError:
            problem = "no time left to measure"
        run.add("batch", method=method, allowed_bytes=allowed, predicted=guess, measured=found, problem=problem)


def peaks(run: Run) -> None:
    """Plans with measured costs, run beside the graph without recomputation."""
    from remat_cli.api import profile
    from remat_cli.frontends.torch.framework import Torch
    from remat_cli.graph.analysis import no_remat_peak

    name = run.device.name
    for spec in _ZOO["cpu" if run.quick else name]:
        if run.left_s() < 0:
            return
        run.session.say(f"predicted and measured: {spec}")
        graph = Torch().export_architecture(spec.replace("{", f"{{device={name},cost=flops,"))
        with TURNS.measuring():
            graph = profile(graph, device=name, repeats=3)
        for share in (1.0, 0.8, 0.6):
            budget = None if share == 1.0 else int(no_remat_peak(graph) * share)
            title = "none" if budget is None else f"{share:.0%}"
            try:
                cells = _ran(solved(graph, budget, run.solve_s()), name)
            except Exception as error:  # one infeasible budget must not end the others
                cells = {"problem": _said(error)}
            run.add("peaks", model=spec, budget=title, **({"problem": ""} | cells))


def _ran(plan: Any, device: str) -> Row:
    from remat_cli.api import run_plan

    with TURNS.turn():
        ran = run_plan(plan, device=device, steps=5)
    memory = ran.memory
    # On a CPU live storages are measured, and workspace is not among them.
    predicted = memory.predicted if device == "cuda" else memory.predicted_without_workspace
    results = {True: "bit for bit", False: f"{len(ran.differing)} of {ran.compared} differ", None: "not compared"}
    said = results[ran.identical] + (f"; {len(ran.unsteady)} change from run to run" if ran.unsteady else "")
    return {
        "predicted_bytes": predicted,
        "allocated_bytes": memory.measured,
        "off": _off(memory.measured, predicted),
        "taken_bytes": memory.predicted_reserved,
        "reserved_bytes": memory.reserved,
        "taken_off": None if memory.reserved is None else _off(memory.reserved, memory.predicted_reserved),
        "predicted_s": round(plan.claim.cost / 1e6, 5),
        "step_s": round(ran.step_s, 5),
        "recomputations": ran.recomputations,
        "results": said,
    }


def _off(measured: int, predicted: int) -> float:
    return round(100 * (measured / predicted - 1), 3)


def overhead(run: Run) -> None:
    """Time of a step of the plain module, and by a plan that recomputes nothing."""
    import torch

    from remat_cli.frontends.torch.architectures import TORCH_ARCHITECTURES
    from remat_cli.spec import build, split_spec

    for spec in _ZOO["cpu" if run.quick else run.device.name]:
        if run.left_s() < 0:
            return
        run.session.say(f"overhead: {spec}")
        name, options = split_spec(spec)
        torch.manual_seed(0)
        module, inputs = build(TORCH_ARCHITECTURES.load(name), name, options).make()
        there = tuple(x.to(run.device.name) for x in inputs)
        eager = Subject(module.to(run.device.name), there, run.device, optimizer=False)
        generated = eager.copied().fit(planner(None, 1.0, []), cost="flops")
        times = 2 if run.quick else 10
        pairs = [(eager.seconds(times), generated.seconds(times)) for _ in range(2)]  # in turn: clocks drift
        plain, ours = (min(column) for column in zip(*pairs, strict=True))
        share = round(100 * (ours / plain - 1), 2)
        run.add("overhead", model=spec, eager_s=round(plain, 6), step_s=round(ours, 6), overhead=share, problem="")
        del module, eager, generated
        torch.compiler.reset()
        run.device.free()


def side_by_side(run: Run) -> None:
    """Beside PyTorch's own tools."""
    kept = list(run.rows)
    session = replace(run.session, keep=lambda rows: run.session.keep([*kept, *rows]), on=run.device.name)
    run.rows += peers.run(session, run.left_s)
    run.session.keep(run.rows)


def copying(run: Run) -> None:
    """Plans with copies to the host."""
    limit_s = 1.5 if run.quick else run.solve_s()
    for row in copies.rows_of(run.shallow, limit_s, run.left_s, run.session.say, quick=run.quick):
        run.add("copies", **row)


def models(run: Run) -> None:
    """Models as users train them."""
    for table, row in users.rows_of(run.device, run.left_s, run.session.say, quick=run.quick, only=run.only):
        run.add(table, **row)


def parts(run: Run) -> None:
    """The loss in parts."""
    for row in parts_of_the_loss.rows_of(run.device, run.left_s, run.session.say, quick=run.quick):
        run.add("parts", **row)


PARTS: dict[str, Callable[[Run], None]] = {
    "fit": fit,
    "peaks": peaks,
    "overhead": overhead,
    "batch": batch,
    "copies": copying,
    "peers": side_by_side,
    "models": models,
    "parts": parts,
}
LANES = (
    *(("fit", "batch"), ("peaks", "overhead"), ("copies", "peers"), ("parts",)),
    *((f"models/{name}",) for name in ("GPT-2", "Llama", "BERT", "ResNet")),
)
"""The parts that one process takes, where several share a device."""
_GRACE_S = 30.0
"""Time to end for what was begun before the end."""


def everything(run: Run, parts: list[str]) -> list[Row]:
    """All rows of ``parts``, in order. A part that fails leaves a row that says so, and the next one goes on."""
    import torch

    for asked in parts:
        name, _, run.only = asked.partition("/")
        if run.left_s() < 0:
            run.session.say(f"{asked}: no time left")
            continue
        started = time.monotonic()
        try:
            PARTS[name](run)
        except Exception as error:  # the other parts must still run
            run.session.say(f"{name} failed: {_said(error)}")
            table, column = {"fit": ("fit", "ran")}.get(name, (name, "problem"))
            run.add(table, **{column: _said(error)})
        torch.compiler.reset()
        run.device.free()
        run.session.say(f"{asked}: {time.monotonic() - started:.0f} s, {max(0.0, run.left_s()):.0f} s left")
    return run.rows


def in_lanes(asked: argparse.Namespace, parts: list[str], end_s: float) -> list[Row]:
    """All rows of ``parts``, by a process for each lane; one has the device, while others make their plans."""
    lanes = [chosen for lane in LANES if (chosen := [name for name in lane if name.partition("/")[0] in parts])]
    with tempfile.TemporaryDirectory(prefix="lanes-", dir=asked.out) as folder:
        outs = [Path(folder) / str(k) for k in range(len(lanes))]
        started = []
        for out, lane in zip(outs, lanes, strict=True):
            told = ["--device", asked.device, "--minutes", str((end_s - time.monotonic()) / 60), "--out", str(out)]
            told += ["--parts", ",".join(lane), "--turns", str(Path(folder) / "turns"), *["--quick"] * asked.quick]
            command = [sys.executable, "-m", "benchmarks.torch.gpu", *told]
            started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        for process in started:
            try:
                process.wait(max(0.1, end_s + _GRACE_S - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()  # what it has measured is in its file
                process.wait()
        kept = [path for out in outs for path in sorted(out.glob("*.json"))]
        return [row for path in kept for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _without_kernels(parts: list[str]) -> tuple[Table, ...]:
    """The tables of ``parts``, without those that need working kernels."""
    kept = [table for table in TABLES if table.key in parts or (table is users.FITS and "models" in parts)]
    return tuple(replace(t, columns=tuple(c for c in t.columns if c.key not in _NEEDS_KERNELS)) for t in kept)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch.gpu", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny models")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="no part is begun later")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for gpu.* (hollow.* without one)")
    parser.add_argument("--turns", type=Path, help="file to lock while the device is used")
    parser.add_argument("--lanes", action="store_true", help="several processes, also on a CPU")
    asked = parser.parse_args(arguments)
    end_s = time.monotonic() + 60 * asked.minutes
    parts = asked.parts.split(",")
    if {name.partition("/")[0] for name in parts} - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    from remat_cli.errors import RematError
    from remat_cli.frontends.torch.installed import require_present

    try:
        require_present(asked.device)
    except RematError as error:
        print(f"{error.message}: {error.hint}", file=sys.stderr)
        return 2
    device = Cpu() if asked.device == "cpu" else device_named("cuda")
    asked.out.mkdir(parents=True, exist_ok=True)

    hollow = device.facts()["device"] == "hollow"

    lanes = not asked.turns and (asked.lanes or (asked.device == "cuda" and not hollow and len(parts) > 1))
    TURNS.path = asked.turns

    def run(session: Session) -> list[Row]:
        if lanes:
            return in_lanes(asked, parts, end_s)
        rows = everything(Run(device, asked.quick, end_s, session), parts)
        dropped = _NEEDS_KERNELS if hollow else set()
        return [{key: cell for key, cell in row.items() if key not in dropped} for row in rows]

    workspace = f"{int(os.environ.get('HOLLOW_WORKSPACE', '0')):,}"
    title, about = described(HOLLOW.format(workspace=workspace) if hollow else __doc__)
    name, tables = ("hollow", _without_kernels(parts)) if hollow else ("gpu", TABLES)
    bench = Benchmark(name, title, about, tables, run)
    result = perform(bench, quick=asked.quick, partial=asked.out / f"{name}.partial.json")
    result["device"] = device.facts()
    facts = ", ".join(f"{key} {value}" for key, value in device.facts().items())
    result["machine"] = result["machine"] | {"cpu": f"{facts}; {result['machine']['cpu']}"}
    keep(bench, result, asked.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
