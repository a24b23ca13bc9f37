"""Units of FSDP2 by plan: what was predicted, and what two processes took.

Six blocks of a transformer's feed-forward network, each a unit of `fully_shard`, in two processes with gloo on a CPU.
A unit gathers 8.39 MB, a wide activation is 2.1 MB. Bytes are beside the parts of the parameters and the batch.
*Measured* is what PyTorch's profiler sees its allocator hand out in a step, the least of some steps, since gloo's
threads let go of tensors late. *FSDPMemTracker* is PyTorch's own prediction, by a step under it; it does not count what
gloo takes. The plans have the peaks of the first three lines as their budgets.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.measure import call

_HOWS = ("reshard", "keep", "checkpoint")
_WORDS = {
    "reshard": "FSDP2, reshard after forward",
    "keep": "FSDP2, no reshard",
    "checkpoint": "FSDP2, reshard, every block checkpointed",
}
_MOST_S = 900.0
"""Seconds after which the processes of a line are killed. Untuned."""
_SEARCH_S = 30.0
_STEPS = 21
"""Steps that are measured, the first apart. Of four, all took 3 MB more while another program ran."""

TABLES = (
    Table(
        "units",
        "",
        (
            Column("how", "step"),
            *columns("bytes", budget="budget", predicted="predicted", measured="measured", tracker="FSDPMemTracker"),
            *columns("number", extra="recomputed, %", least="at least, %"),
            *columns("count", kept="units kept gathered"),
        ),
        f"At most {_SEARCH_S:g} s for the plans of a step. *Recomputed* is of the FLOPs of a step, and "
        "*at least* is the proven bound for all plans within the budget.",
        named_by=("how",),
    ),
)


def run(session: Session) -> list[Row]:
    """Measure the usual ways, and plans within what they take."""
    blocks = 2 if session.quick else 6
    rows = []
    peaks: dict[str, int] = {}
    for how in _HOWS:
        session.say(_WORDS[how])
        values = call("benchmarks.sharded.units:taken", limit_s=_MOST_S, how=how, budget=0, blocks=blocks).values or {}
        peaks[how] = values.get("measured") or 0
        rows.append(TABLES[0].row({"how": _WORDS[how], "budget": None}, values))
    for how in _HOWS[: 1 if session.quick else None]:
        name = f"plan within that of: {_WORDS[how]}"
        session.say(name)
        values = call(
            "benchmarks.sharded.units:taken", limit_s=_MOST_S, how="plan", budget=peaks[how], blocks=blocks
        ).values
        rows.append(TABLES[0].row({"how": name, "budget": peaks[how]}, values or {}))
    return rows


def taken(how: str, budget: int, blocks: int) -> Row:
    """What a step takes in process 0 of two."""
    import tempfile
    from pathlib import Path

    import torch

    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_in_process, (how, budget, blocks, folder), nprocs=2)
        values: Row = torch.load(Path(folder) / "values.pt", weights_only=False)
    return values


def _in_process(rank: int, how: str, budget: int, blocks: int, folder: str) -> None:
    import os
    from pathlib import Path

    import torch

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    values = _measured(rank, how, budget, blocks)
    if rank == 0:
        torch.save(values, Path(folder) / "values.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _measured(rank: int, how: str, budget: int, blocks: int) -> Row:
    import torch

    import remat_cli as remat
    from remat_cli.frontends.torch.compat.fully_sharded import reshards
    from remat_cli.frontends.torch.tensors import total_bytes

    module = _model(how, blocks)
    torch.manual_seed(rank)
    x = torch.randn(256, 512)
    fixed = total_bytes([*module.parameters(), x])
    values: dict[str, Any] = {"predicted": None, "tracker": None, "extra": None, "least": None, "kept": None}
    if how != "checkpoint":
        options = remat.SolveOptions(time_limit_s=_SEARCH_S, threads=1)
        asked = budget + fixed if how == "plan" else "100%"
        remat.fit(module, x, asked, loss=_loss, holds=(), cost="flops", cache="", options=options)
        report = remat.fitted(module)
        values["predicted"] = (report.plan_bytes if how == "plan" else report.keep_all_bytes) - fixed
        if how == "plan":
            values["extra"], values["least"] = round(report.extra_cost, 2), round(report.least_extra_cost, 2)
            values["kept"] = sum(not reshards(unit) for unit in module)
        else:
            remat.unfit(module)
    found = []
    for _ in range(_STEPS):
        module.zero_grad()
        found.append(_peak(lambda: _loss(module(x)).backward()))
    values["measured"] = min(found[1:])
    if how != "plan":
        values["tracker"] = _tracked(_model(how, blocks), x) - fixed
    return values


def _loss(y: Any) -> Any:
    return y.square().mean()


def _model(how: str, blocks: int) -> Any:
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Linear(512, 2048, bias=False)
            self.back = nn.Linear(2048, 512, bias=False)
            self.norm = nn.LayerNorm(512)

        def plain(self, x: Any) -> Any:
            return x + self.back(nn.functional.gelu(self.wide(self.norm(x))))

        def forward(self, x: Any) -> Any:
            return checkpoint(self.plain, x, use_reentrant=False) if how == "checkpoint" else self.plain(x)

    torch.manual_seed(0)
    module = nn.Sequential(*[Block() for _ in range(blocks)])
    for block in module:
        fully_shard(block, reshard_after_forward=how != "keep")
    return fully_shard(module)


def _peak(step: Any) -> int:
    import torch

    from remat_cli.frontends.torch.compat.operators import profiler_events

    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as session:
        step()
    events = enumerate(profiler_events(session))
    changes = sorted((event.start_ns(), k, event.nbytes()) for k, event in events if event.name() == "[memory]")
    return max(accumulate((size for *_, size in changes), initial=0))


def _tracked(module: Any, x: Any) -> int:
    """The peak of a step by FSDPMemTracker, all categories together."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    tracker = FSDPMemTracker(module)
    tracker.track_inputs((x,))
    with tracker:
        _loss(module(x)).backward()
    peaks = tracker.get_tracker_snapshot("peak")
    return int(sum(sizes["Total"] for sizes in peaks.values()))
