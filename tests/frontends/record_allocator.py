"""Record what PyTorch's own CUDA allocator makes of requests: ``python tests/frontends/record_allocator.py``.

Writes ``allocator.json`` beside this file, with which ``test_torch_allocator.py`` compares the simulation. It needs a
build of PyTorch with CUDA, and a device with a few GB to spare; no kernel runs.
"""

import json
import random
from pathlib import Path

import torch

SEQUENCES = 24
REQUESTS = 90
_SIZES = (
    (1, 4_000),
    (4_000, 1 << 20),
    ((1 << 20) - 600, (1 << 20) + 600),
    (1 << 20, 10 << 20),
    ((10 << 20) - 600, (10 << 20) + 600),
    (10 << 20, 90 << 20),
)


def requests(chance: random.Random) -> list[list[int]]:
    """``[number, size]`` for a request, ``[number]`` for the end of one; few sizes come often, as in networks."""
    usual = [chance.randint(*chance.choice(_SIZES)) for _ in range(6)]
    alive: list[int] = []
    made: list[list[int]] = []
    for number in range(REQUESTS):
        size = chance.choice(usual) if chance.random() < 0.7 else chance.randint(*chance.choice(_SIZES))
        made.append([number, size])
        alive.append(number)
        while alive and chance.random() < 0.47:
            made.append([alive.pop(chance.randrange(len(alive)))])
    return made


def record(steps: list[list[int]], limit: int | None) -> tuple[list[list[int]], bool]:
    """Bytes allocated and reserved after every step, and whether it went through."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0 if limit is None else limit / total)
    alive: dict[int, torch.Tensor] = {}
    seen = []
    try:
        for step in steps:
            if len(step) == 2:
                alive[step[0]] = torch.empty(step[1], dtype=torch.uint8, device="cuda")
            else:
                del alive[step[0]]
            seen.append([torch.cuda.memory_allocated(), torch.cuda.memory_reserved()])
    except torch.OutOfMemoryError:
        return seen, False
    finally:
        alive.clear()
        torch.cuda.empty_cache()
    return seen, True


def main() -> None:
    """Record all sequences, each without a limit and within several."""
    chance = random.Random(0)
    recorded = []
    for _ in range(SEQUENCES):
        steps = requests(chance)
        free, _ = record(steps, None)
        most = max(reserved for _, reserved in free)
        need = max(allocated for allocated, _ in free)
        for limit in (None, most - (2 << 20), (most + need) // 2, need + (1 << 20)):
            seen, through = record(steps, limit)
            peak = [max(column) for column in zip(*seen, strict=True)] if seen else [0, 0]
            recorded.append({"limit": limit, "through": through, "served": len(seen), "peak": peak, "end": seen[-1:]})
        recorded[-4]["steps"] = steps
    about = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "settings": "default"}
    text = json.dumps(about | {"recorded": recorded}, separators=(",", ":")).replace('{"limit"', '\n{"limit"')
    Path(__file__).with_name("allocator.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
