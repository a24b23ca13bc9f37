"""How much memory a process can still take: what the system has, within the limit of its control group."""

from collections.abc import Iterator
from pathlib import Path

_NO_LIMIT = 2**60
"""Limits from here on are none: version 1 writes the largest number that it has."""


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes of memory that this process can still take; None if the system does not say.

    Args:
        root: Where ``proc`` and ``sys`` are.
    """
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    sizes = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return max(0, min([sizes[0], *_left_in_groups(root)])) if sizes else None


def _left_in_groups(root: Path) -> Iterator[int]:
    """What each control group of this process leaves it: its limit less its use, which caches of files are not."""
    try:
        entries = (root / "proc/self/cgroup").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    for entry in entries:
        _, controllers, path = entry.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        limit, use, cache = _FILES[bool(controllers)]
        folder = top / path.lstrip("/")
        while True:  # a group is within the limits of those above it; in a container the path may be that outside
            most, used = _number(folder / limit), _number(folder / use)
            if most is not None and used is not None and most < _NO_LIMIT:
                yield most - used + _statistic(folder / "memory.stat", cache)
            if folder == top or top not in folder.parents:
                break
            folder = folder.parent


_FILES = {
    False: ("memory.max", "memory.current", "inactive_file"),
    True: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By whether it is version 1 of control groups: files of limit and use, and the entry of what may be dropped."""


def _number(path: Path) -> int | None:
    """The number in a file; None if there is no file, or another word: ``max``."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _statistic(path: Path, name: str) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)
