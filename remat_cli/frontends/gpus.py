"""Cards by name: their memory, and their speed by the data sheet."""

from dataclasses import dataclass

from remat_cli.errors import UsageError
from remat_cli.frontends.rates import MACHINES
from remat_cli.registry import suggestion
from remat_cli.units import as_size, format_bytes

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Gpu:
    """A card, or an amount of memory.

    Attributes:
        title: Its name, for reports.
        memory_bytes: All its memory that PyTorch can see.
        speed: Its name in :data:`.rates.MACHINES`; empty if only its memory is known.
        links: Bytes per second that it sends in one direction, to cards of the same machine and to those of others;
            None if they are not known.
    """

    title: str
    memory_bytes: int
    speed: str = ""
    links: tuple[float, float] | None = None


_SEEN_GIB = {
    "a10": 21.98,
    "a100": 79.15,
    "a100-40gb": 39.38,
    "a6000": 47.40,
    "b200": 178.35,
    "h100": 79.10,
    "h200": 139.71,
    "l4": 21.95,
    "l40s": 44.39,
    "rtx3090": 23.56,
    "rtx4090": 23.51,
    "rtx5090": 31.33,
    "t4": 14.56,
    "v100": 15.77,
    "v100-32gb": 31.73,
}
"""About what PyTorch can see of a card, in GiB: low values of the total capacity in public reports of exhausted memory.
Drivers and error correction keep a part of what the name says, more on some machines; answers print the number."""
CARDS = tuple(_SEEN_GIB)
"""The names of all cards that are known."""
_LINKS_GBS = {
    "a100": (300.0, 25.0),
    "a100-40gb": (300.0, 25.0),
    "b200": (900.0, 50.0),
    "h100": (450.0, 50.0),
    "h200": (450.0, 50.0),
}
"""GB/s of NVLink and of the network in DGX systems, for each card and in one direction: half of what data sheets state
for NVLink, and one port of 200 or 400 Gb/s for each card."""
_SAME_SPEED = {"v100-32gb": "v100"}


def gpu(text: str) -> Gpu:
    """The card of a name such as ``h100``, or an amount of memory such as ``24GB``.

    Raises:
        UsageError: If it is neither.
    """
    name = text.strip().lower().replace("_", "-").removeprefix("nvidia-")
    if name in _SEEN_GIB:
        speed = _SAME_SPEED.get(name, name)
        title = MACHINES[speed].machine if speed == name else name.upper()
        links = _LINKS_GBS.get(name)
        known = None if links is None else (links[0] * 1e9, links[1] * 1e9)
        return Gpu(title, int(_SEEN_GIB[name] * _GIB), speed, known)
    if name[:1].isdigit():
        memory = as_size(text, "gpu")
        return Gpu(format_bytes(memory), memory)
    raise UsageError(
        f'no card "{text}" is known',
        hint=suggestion(name, list(CARDS)) or f"known: {', '.join(CARDS)}; or write its memory, as in 24GB",
    )
