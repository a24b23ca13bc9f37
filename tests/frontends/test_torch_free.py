"""The budget ``auto``: what is free, what PyTorch holds unused, and what the module and its batch take already."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch_plans import FAST

import remat_cli
from remat_cli.errors import UsageError
from remat_cli.frontends.available import available_bytes
from remat_cli.frontends.torch import tensors
from remat_cli.frontends.torch.train import arguments
from remat_cli.frontends.torch.train.arguments import Arguments
from remat_cli.units import parse_budget

pytestmark = pytest.mark.usefixtures("fresh_compiler")

GB = 10**9


def module() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))  # 64 * 65 + 65 parameters of 4 bytes


OWN = 4 * (64 * 65 + 65)


def test_on_a_cpu_it_is_what_the_system_has_and_what_is_there_already(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(arguments, "available_bytes", lambda: 3 * GB)
    x = torch.ones(16, 64)
    budget, told = arguments.free_budget(module(), Arguments((x,), {"same": x.T}))
    assert budget.bytes_for(0) == 3 * GB + OWN + 16 * 64 * 4
    assert told == "budget auto: 3 GB of memory available, 21 kB of the module and its batch"
    assert parse_budget(budget.text) == budget


def test_processes_of_one_machine_share_what_is_available(monkeypatch):
    monkeypatch.setattr(arguments, "available_bytes", lambda: 3 * GB)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    budget, told = arguments.free_budget(module(), torch.ones(16, 64), least=lambda size: min(size, 2 * GB))
    assert budget.bytes_for(0) == 1.5 * GB + OWN + 16 * 64 * 4
    assert "1.5 GB of memory available to each of 2 processes" in told
    assert arguments.free_budget(module(), None, least=lambda size: 5)[0].bytes_for(0) == 5


def test_on_cuda_it_is_what_is_free_what_pytorch_holds_unused_and_what_is_there_already(monkeypatch):
    where = torch.device("cuda", 1)
    on_device = SimpleNamespace(device=where, untyped_storage=lambda: SimpleNamespace(nbytes=lambda: 5 * GB))
    elsewhere = SimpleNamespace(device=torch.device("cpu"))
    figures = {"mem_get_info": (20 * GB, 80 * GB), "memory_reserved": 9 * GB, "memory_allocated": 7 * GB}
    for name, figure in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, figure=figure: figure if device == where else None)
    monkeypatch.setattr(tensors, "storage", id)
    fake = SimpleNamespace(parameters=lambda: [on_device, on_device], buffers=list)
    monkeypatch.setattr(arguments, "leaves", lambda batch: [("", elsewhere)])
    budget, told = arguments.free_budget(fake, None)
    assert budget.bytes_for(0) == 27 * GB
    assert told == (
        "budget auto: 20 GB free on cuda:1, 2 GB that PyTorch holds unused, 5 GB of the module and its batch"
    )


def test_fit_takes_it_and_says_so(monkeypatch, capsys):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(arguments, "available_bytes", lambda: 40_000)
    planned, x = module(), torch.randn(16, 64)
    remat_cli.fit(planned, x, "auto", options=FAST, cost="flops", cache="")
    assert remat_cli.fitted(planned).budget_bytes == 40_000 + OWN + 16 * 64 * 4
    said = capsys.readouterr().err
    assert re.search(r"within 61 kB.*; budget auto: 40 kB of memory available, 21 kB of the module and its batch", said)
    monkeypatch.setattr(arguments, "available_bytes", lambda: 100)
    with pytest.raises(remat_cli.Infeasible):
        remat_cli.fit(module(), x, " Auto", options=FAST, cost="flops", cache="")


def test_it_is_taken_when_training_begins(monkeypatch, capsys):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    planned, x = module(), torch.randn(16, 64)
    remat_cli.fit(planned, None, "auto", options=FAST, cost="flops", cache="")
    monkeypatch.setattr(arguments, "available_bytes", lambda: 50_000)
    planned(x).sum().backward()
    assert remat_cli.fitted(planned).budget_bytes == 50_000 + OWN + 16 * 64 * 4
    assert "50 kB of memory available" in capsys.readouterr().err


def test_a_system_that_does_not_say_asks_for_a_budget(monkeypatch):
    monkeypatch.setattr(arguments, "available_bytes", lambda: None)
    with pytest.raises(UsageError, match="does not say how much memory is free") as refused:
        remat_cli.fit(module(), torch.ones(2, 64), "auto")
    assert '"8GB"' in refused.value.hint


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMORY = {"proc/meminfo": "MemTotal: 16000 kB\nMemAvailable: 8000 kB\n"}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, None),
        ({"proc/meminfo": "MemTotal: 5 kB\n"}, None),
        (MEMORY, 8000 * 1024),
        (  # version 2: the group above has the limit
            {
                **MEMORY,
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "5\n",
                "sys/fs/cgroup/a/memory.max": "5000000\n",
                "sys/fs/cgroup/a/memory.current": "4000000\n",
                "sys/fs/cgroup/a/memory.stat": "anon 7\ninactive_file 250000\n",
            },
            1250000,
        ),
        (  # in a container the path is that of the host
            {
                **MEMORY,
                "proc/self/cgroup": "12:cpu,cpuacct:/x\n4:memory:/docker/1\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "3000000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000000\n",
                "sys/fs/cgroup/memory/memory.stat": "inactive_file 9\ntotal_inactive_file 5\n",
            },
            2000005,
        ),
        (
            {
                **MEMORY,
                "proc/self/cgroup": "4:memory:/\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000000\n",
            },
            8000 * 1024,
        ),
        (
            {
                **MEMORY,
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "1000\n",
                "sys/fs/cgroup/memory.current": "2000\n",
            },
            0,
        ),
    ],
)
def test_available_memory_is_within_the_limits_of_control_groups(tmp_path, files, found):
    assert available_bytes(written(tmp_path, files)) == found
