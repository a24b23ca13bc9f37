"""The README's numbers: a step of DistilBERT as it is, with gradient checkpointing, and by plan at the peak of that.

Peaks are by PyTorch's profiler, parameters included; times are medians of four steps in turn. Needs transformers:
``OMP_NUM_THREADS=1 python -m benchmarks.torch.distilbert``, with ``--small`` for a model of one layer.
"""

import copy
import statistics
import sys
import time
from typing import Any

from benchmarks.torch.devices import allocated_peak

_ROUNDS = 4
_SOLVE_S = 30.0


def main() -> None:
    """Print peaks, times, and whether the gradients are the same."""
    import torch

    from benchmarks.models import operators  # noqa: F401 - has to come before torchvision, which transformers imports

    # isort: split
    import transformers

    from remat_cli import SolveOptions, fit

    small = {"n_layers": 1, "dim": 64, "hidden_dim": 128, "n_heads": 2} if "--small" in sys.argv[1:] else {}
    torch.manual_seed(0)
    eager = transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig(**small)).train()
    words = torch.randint(5, 30_000, (8, 256))
    batch = {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": torch.randint(0, 2, (8,))}
    checkpointed, planned = copy.deepcopy(eager), copy.deepcopy(eager)
    checkpointed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    peaks = {"eager": _peak(eager, batch), "checkpointing": _peak(checkpointed, batch)}
    budget = peaks["checkpointing"]
    fit(planned, batch, budget, cost="measured", cache="", options=SolveOptions(time_limit_s=_SOLVE_S))
    peaks["remat"] = _peak(planned, batch)
    modules = {"eager": eager, "checkpointing": checkpointed, "remat": planned}
    seconds: dict[str, list[float]] = {name: [] for name in modules}
    for _ in range(_ROUNDS):
        for name, module in modules.items():
            began = time.perf_counter()
            _step(module, batch)
            seconds[name].append(time.perf_counter() - began)
    pairs = zip(eager.parameters(), planned.parameters(), strict=True)
    for name in modules:
        print(f"{name}: {peaks[name] / 1e6:.1f} MB, {statistics.median(seconds[name]):.2f} s")
    print(f"gradients identical: {all(torch.equal(one.grad, other.grad) for one, other in pairs)}")


def _step(module: Any, batch: dict[str, Any]) -> None:
    import torch

    module.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    module(**batch).loss.backward()


def _peak(module: Any, batch: dict[str, Any]) -> int:
    """Bytes of parameters, inputs, and what a step holds at most besides."""
    module.zero_grad(set_to_none=True)
    fixed = sum(tensor.nbytes for tensor in [*module.parameters(), *batch.values()])
    return fixed + allocated_peak(lambda: _step(module, batch))


if __name__ == "__main__":
    main()
