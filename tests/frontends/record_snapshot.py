"""Record a step with PyTorch's own CUDA allocator: ``python tests/frontends/record_snapshot.py FOLDER``.

Writes ``recorded_step.pickle``, and prints the peak that PyTorch counts. ``test_cuda_snapshot.py`` compares the reader
with the file beside it, which was made so. It needs a build of PyTorch with CUDA, and a device; no number matters, so
that it runs without one too (``benchmarks.torch.hollow``). Paths of the machine are left out.
"""

import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` and what is added to it."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def build() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """A model and a batch."""
    return nn.Sequential(Block(256), Block(256), nn.Linear(256, 4000)), (torch.randn(1024, 256),)


def plain(value: Any) -> Any:
    """``value`` with the paths of another machine."""
    if isinstance(value, dict):
        return {key: _path(one) if key == "filename" else plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def _path(file: str) -> str:
    installed = file.rpartition("site-packages/")[2]
    return f"/venv/lib/python3.11/site-packages/{installed}" if installed != file else f"/home/me/{Path(file).name}"


def main() -> None:
    """Run a step, and write what was recorded."""
    model, batch = build()
    model, batch = model.cuda(), tuple(one.cuda() for one in batch)
    torch.cuda.memory._record_memory_history(stacks="python")
    model(*batch).sum().backward()
    target = Path(sys.argv[1]) / "recorded_step.pickle"
    torch.cuda.memory._dump_snapshot(str(target))
    recorded = pickle.loads(target.read_bytes())
    kept = {name: plain(recorded[name]) for name in ("segments", "device_traces")}
    target.write_bytes(pickle.dumps(kept))
    counted, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    sys.stdout.write(f"PyTorch {torch.__version__}: {counted} bytes allocated, {reserved} reserved\n")


if __name__ == "__main__":
    main()
