"""Sizes, budgets and times as people write them, converted to and from integers and floats.

``16GB`` is 16 * 10^9 bytes, ``16GiB`` is 16 * 2^30 bytes. A bare number in a document is bytes; in what a user types it
is refused (:func:`require_unit`). ``16G`` and ``16Gb`` are refused, because they are ambiguous.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

from remat_cli.errors import UsageError, wrong_type

_SI = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15, "EB": 10**18}
_IEC = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50, "EiB": 2**60}
_UNITS = {name.lower(): factor for name, factor in (_SI | _IEC | {"byte": 1, "bytes": 1}).items()}
_BITS = re.compile(r"[KMGTPE]i?b")
"""Bits to most readers, bytes to some."""
_PARTS = re.compile(r"[0-9.]+ *[A-Za-z]+")
_COMPOUND = re.compile(r"(?:[0-9.]+ *[A-Za-z]+ *){2,}")
"""Durations of several parts, such as 1h30m."""
_SECONDS = {
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
}
_NUMBER = re.compile(r"([+-]?(?:\d+(?:_\d+)*\.?(?:\d+(?:_\d+)*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([^\d\s]*)", re.ASCII)
_LONGEST = 64

_BANDWIDTH = "25GB/s"
_RANGES = "4GB:16GB:1GB, 40%:95%:5% or 4GB,8GB"

TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Units of cost that are times, the largest first, in seconds."""
_LIKELY_PERCENT, _LIKELY_BYTES = 100, 10**6
"""For hints: a bare number up to the first may be a percentage, and one from the second on is bytes."""

MOST_BUDGETS = 200
"""The largest number of budgets in one request."""
MOST_LENGTHS = 64
"""The largest number of lengths in one request."""
_MOST_DIGITS = 9
MOST_BYTES = 2**63 - 1
"""The largest size: the maximum of a signed 64-bit integer, as in every allocator and array."""
MOST_SECONDS = 10**9
"""The longest time, some thirty years: far below the values at which clocks and solvers overflow."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget as asked: bytes, or a percentage of the no-remat peak.

    Attributes:
        amount: Bytes, or percent.
        relative: Whether ``amount`` is a percentage.
        text: As the user wrote it.
    """

    amount: Fraction
    relative: bool
    text: str

    def bytes_for(self, no_remat_peak_bytes: int) -> int:
        """The budget in bytes, fixed memory included, floored.

        Raises:
            UsageError: If a percentage makes more than ``MOST_BYTES``.
        """
        amount = self.amount * no_remat_peak_bytes / 100 if self.relative else self.amount
        return math.floor(_bounded(amount, self.text))


def _split(text: str, what: str, example: str, *, sign: str = "") -> tuple[Fraction, str]:
    """The number and the unit of ``text`` before ``sign``, or a UsageError that shows an example."""
    match = _NUMBER.fullmatch(text.strip().removesuffix(sign)) if len(text) <= _LONGEST else None
    if match is None:
        raise UsageError(f'"{text[:_LONGEST]}" is not a {what}', hint=f"write it like {example}")
    number = Fraction(match[1].replace("_", ""))
    if number < 0:
        raise UsageError(f'"{text}" is negative', hint=f"write a {what} like {example}")
    return number, match[2]


def _bytes(text: str) -> Fraction:
    number, unit = _split(text, "size", "16GB (10^9) or 16GiB (2^30)")
    factor = _UNITS.get(unit.lower()) if unit else 1
    digits = text.strip()[: -len(unit)].strip()
    if _BITS.fullmatch(unit):
        raise UsageError(f'"{text}" could mean bits', hint=f"write {digits}{unit[:-1]}B for bytes")
    if factor is not None:
        return _bounded(number * factor, text)
    letter = unit.upper()
    if letter in {"K", "M", "G", "T", "P", "E"}:
        raise UsageError(
            f'"{text}" is ambiguous',
            hint=f"write {digits}{letter}B (powers of 1000) or {digits}{letter}iB (of 1024)",
        )
    raise UsageError(f'"{text}" has the unknown unit "{unit}"', hint=f"known units: {', '.join((*_SI, *_IEC))}")


def _bounded(amount: Fraction, text: str) -> Fraction:
    """``amount`` bytes, or a UsageError above ``MOST_BYTES`` that quotes ``text``."""
    if amount > MOST_BYTES:
        raise UsageError(f'"{text}" is more than {MOST_BYTES} bytes', hint="is the unit right?")
    return amount


def require_unit(text: str, *, percent: bool = True) -> None:
    """Refuse a text in which a size or percentage is a bare number.

    Raises:
        UsageError: If a unit is missing; the hint spells out what may be meant.
    """
    for part in re.split("[,:]", text):
        digits = part.strip()
        match = _NUMBER.fullmatch(digits) if len(digits) <= _LONGEST else None
        if match is None or match[2]:
            continue
        number = Fraction(match[1].replace("_", ""))
        if number == 0:  # the same in every unit
            continue
        share = f"{float(100 * number):.10g}%" if number <= 1 else f"{digits}%"
        meant = [f"{digits}GB", f"{digits}GiB", *([share] if percent and number <= _LIKELY_PERCENT else [])]
        if number >= _LIKELY_BYTES:
            meant = []
        if number.denominator == 1:
            meant.append(f"{digits}B")
        raise UsageError(f'"{digits}" has no unit', hint=f"write {' or '.join(meant)}")


def parse_percentage(text: str) -> Fraction:
    """The number in ``5%``.

    Raises:
        UsageError: If ``text`` is not a percentage. A bare number other than 0 is none: 0.05 could be 0.05% or 5%.
    """
    stripped = text.strip()
    number, unit = _split(stripped, "percentage", "5%", sign="%")
    if unit:
        raise UsageError(f'"{text}" is not a percentage', hint="write it like 5%")
    if number and not stripped.endswith("%"):
        meant = f"{stripped}%" if number > 1 else f"{stripped}% or {float(100 * number):.10g}%"
        raise UsageError(f'"{text}" has no percent sign', hint=f"write {meant}")
    return number


def parse_share(text: str) -> float:
    """A share from 0 to below 1, such as ``0.01``, or as a percentage with its sign: ``1%``.

    Raises:
        UsageError: If ``text`` is neither.
    """
    stripped = text.strip()
    if stripped.endswith("%"):
        share = parse_percentage(stripped) / 100
    else:
        share, unit = _split(stripped, "share", "0.01 or 1%")
        if unit:
            raise UsageError(f'"{text}" is not a share', hint="write it like 0.01 or 1%")
    if share >= 1:
        hint = f"write {stripped}% if percent are meant" if share < 100 and stripped[-1] != "%" else "write 0.01 or 1%"
        raise UsageError(f'"{text}" is not below 1', hint=hint)
    return float(share)


def parse_size(text: str) -> int:
    """Bytes of a size such as ``64MiB``, ``1.5GB`` or ``4096``; a fraction of a byte is rounded up.

    Raises:
        UsageError: If ``text`` is not a size, or is negative, ambiguous (``16G``), or above 2^63 - 1 bytes.
    """
    return math.ceil(_bytes(text))


def parse_budget(text: str) -> Budget:
    """A budget such as ``16GB``, ``12.5GiB`` or ``80%``.

    Raises:
        UsageError: If ``text`` is neither a size nor a percentage.
    """
    stripped = text.strip()
    if stripped.endswith("%"):
        return Budget(parse_percentage(stripped), True, stripped)
    return Budget(_bytes(stripped), False, stripped)


def as_budget(value: Budget | str | float, argument: str = "budget") -> Budget:
    """The budget that an argument of a function stands for: a budget, a text, or a number of bytes.

    Raises:
        UsageError: If it is nothing of these, if a text has no unit, or if a number is below 1: a share?
    """
    if isinstance(value, Budget):
        return value
    if isinstance(value, str):
        budget = parse_budget(value)
        require_unit(value)
        return budget
    amount = _number_of_bytes(value, argument, 'a budget such as "16GB" or "60%", or a number of bytes')
    if 0 < amount < 1:
        raise UsageError(
            f"{argument} is {value}, less than one byte",
            hint=f'for a share of the peak without recomputation, write "{100 * float(amount):g}%"',
        )
    whole = math.floor(amount)
    return Budget(Fraction(whole), False, f"{whole}B")


def parse_bandwidth(text: str) -> float:
    """Bytes per second of a bandwidth such as ``25GB/s``; ``inf`` for no limit.

    Raises:
        UsageError: If it is not a size per second, or is zero.
    """
    stripped = text.strip()
    if stripped.lower() == "inf":
        return math.inf
    size, slash, second = stripped.rpartition("/")
    if not slash or second.strip() not in {"s", "sec", "second"}:
        raise UsageError(f'"{text[:_LONGEST]}" is not a bandwidth', hint=f"write it like {_BANDWIDTH}")
    require_unit(size, percent=False)
    rate = _bytes(size)
    if rate == 0:
        raise UsageError(f'the bandwidth "{text}" is zero', hint=f"write it like {_BANDWIDTH}, or leave it out")
    return float(rate)


LINKS = {"pcie3": 12e9, "pcie4": 25e9, "pcie5": 50e9, "nvlink-c2c": 400e9}
"""Bytes per second in each direction that links between a device and its host reach, 16 lanes for PCIe; about."""


def parse_bandwidths(text: str) -> tuple[float, float]:
    """Bytes per second to the host and from it: ``25GB/s`` for both, ``25GB/s:20GB/s``, or a name of ``LINKS``.

    Raises:
        UsageError: As :func:`parse_bandwidth`.
    """
    if (link := LINKS.get(text.strip().lower())) is not None:
        return link, link
    out, colon, back = text.partition(":")
    there = parse_bandwidth(out)
    return there, parse_bandwidth(back) if colon else there


def format_bandwidth(bytes_per_s: float) -> str:
    """A bandwidth for people: ``25 GB/s``."""
    return "unlimited" if math.isinf(bytes_per_s) else f"{format_bytes(round(bytes_per_s))}/s"


def as_budgets(value: Any) -> list[Budget]:
    """The budgets that an argument stands for: one as :func:`as_budget` takes it, several, or text: ``40%:95%:5%``.

    Raises:
        UsageError: As :func:`as_budget` and :func:`parse_budgets`.
    """
    if isinstance(value, str):
        budgets = parse_budgets(value)
        require_unit(value)
        return list(budgets)
    several = value if isinstance(value, Iterable) and not isinstance(value, bytes) else [value]
    return [as_budget(each, "budgets") for each in several]


def as_size(value: str | float, argument: str) -> int:
    """Bytes of an argument of a function: a size as :func:`parse_size` reads it, or a number of bytes, rounded up.

    Raises:
        UsageError: If it is neither, or a text has no unit.
    """
    if isinstance(value, str):
        size = parse_size(value)
        require_unit(value, percent=False)
        return size
    return math.ceil(_number_of_bytes(value, argument, 'a size such as "16GB", or a number of bytes'))


def _number_of_bytes(value: object, argument: str, expected: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong_type(argument, value, expected)
    if not isinstance(value, Integral) and not math.isfinite(value):
        raise wrong_type(argument, value, expected)
    nearest = as_float(value)
    text = str(value) if abs(nearest) < 10.0**_LONGEST else f"{nearest:g}"
    if value < 0:
        raise UsageError(f"{argument} is {text}, which is negative", hint=f"give {expected}")
    number = Fraction(int(value)) if isinstance(value, Integral) else Fraction(float(value))
    return _bounded(number, text)


def as_float(number: Any) -> float:
    """The nearest float; infinite for a whole number beyond all floats."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def parse_lengths(text: str) -> tuple[int, ...]:
    """Lengths, rising: ``512,1024``, ``512:4096:512`` (start, stop, step; the stop included), or both mixed.

    Raises:
        UsageError: If a part is no whole number or range, or there are too many.
    """
    example = "write lengths like 512,1024,2048 or 512:4096:512"
    found: set[int] = set()
    for part in text.split(","):
        numbers = part.strip().split(":")
        plain = all(n.isascii() and n.isdigit() and len(n) <= _MOST_DIGITS for n in numbers)
        if len(numbers) not in {1, 3} or not plain:
            raise UsageError(f'"{text[:_LONGEST]}" is no list of lengths', hint=example)
        start, stop, step = map(int, numbers if len(numbers) == 3 else (numbers[0], numbers[0], "1"))
        if not step or start > stop:
            raise UsageError(f'"{part.strip()}" is no range that rises', hint=example)
        if (stop - start) // step >= MOST_LENGTHS:
            raise UsageError(f'"{part.strip()}" makes more than {MOST_LENGTHS} lengths', hint="use a larger step")
        found.update(range(start, stop + 1, step))
    if len(found) > MOST_LENGTHS:
        raise UsageError(f'"{text[:_LONGEST]}" makes more than {MOST_LENGTHS} lengths', hint="use a larger step")
    return tuple(sorted(found))


def parse_budgets(text: str) -> tuple[Budget, ...]:
    """Several budgets: ``4GB,8GB,12GB``, ``4GB:16GB:1GB`` (start, stop, step; the stop included), or both mixed.

    Every budget has its own text, which :func:`parse_budget` reads as the same budget.

    Raises:
        UsageError: If a part is not a budget or range, a range mixes bytes and percentages, or there are too many.
    """
    budgets: list[Budget] = []
    for part in text.split(","):
        if not part.strip():
            raise UsageError(f'"{text[:_LONGEST]}" has an empty entry', hint=f"write budgets like {_RANGES}")
        budgets += _range(part.strip()) if ":" in part else [parse_budget(part)]
        if len(budgets) > MOST_BUDGETS:
            raise _too_many(text)
    return tuple(budgets)


def _range(text: str) -> list[Budget]:
    parts = text.split(":")
    if len(parts) != 3 or not all(part.strip() for part in parts):
        raise UsageError(f'"{text[:_LONGEST]}" is not START:STOP:STEP', hint=f"write a range like {_RANGES}")
    start, stop, step = (parse_budget(part) for part in parts)
    if len({start.relative, stop.relative, step.relative}) > 1:
        raise UsageError(f'"{text}" mixes percentages and bytes', hint=f"write a range like {_RANGES}")
    if step.amount == 0:
        raise UsageError(f'"{text}" has a step of zero', hint=f"write a range like {_RANGES}")
    if start.amount > stop.amount:
        raise UsageError(
            f'"{text}" starts above its stop', hint=f"write it upwards: {stop.text}:{start.text}:{step.text}"
        )
    if (stop.amount - start.amount) / step.amount >= MOST_BUDGETS:
        raise _too_many(text)
    count = (stop.amount - start.amount) // step.amount + 1
    return [_at(start.amount + k * step.amount, (start, step, stop)) for k in range(count)]


def _at(amount: Fraction, corners: tuple[Budget, ...]) -> Budget:
    """The budget of ``amount``, written in the unit of a corner if it has few digits there, else in bytes."""
    for corner in corners:
        unit = "%" if corner.relative else _NUMBER.sub(r"\2", corner.text)
        scaled = amount if corner.relative else amount / _UNITS.get(unit.lower(), 1)
        digits = f"{float(scaled):.10g}"
        if Fraction(digits) == scaled:
            return Budget(amount, corner.relative, f"{digits}{unit}")
    relative = corners[0].relative
    return Budget(amount, relative, f"{float(amount):.12g}%" if relative else f"{math.floor(amount)}B")


def _too_many(text: str) -> UsageError:
    return UsageError(f'"{text[:_LONGEST]}" makes more than {MOST_BUDGETS} budgets', hint="use a larger step")


def parse_duration(text: str) -> float:
    """Seconds of a duration such as ``60s``, ``1.5m``, ``1h30m``, ``500ms`` or ``60``.

    Raises:
        UsageError: If ``text`` is not a duration, or is more than 10^9 seconds.
    """
    parts = _PARTS.findall(text) if len(text) <= _LONGEST and _COMPOUND.fullmatch(text.strip()) else [text]
    seconds, last = Fraction(0), None
    for part in parts:
        number, unit = _split(part, "duration", "60s, 5m or 1h30m")
        factor = _SECONDS.get(unit.lower()) if unit else Fraction(1)
        if factor is None:
            raise UsageError(f'"{text}" has the unknown unit "{unit}"', hint="known units: us, ms, s, m, h")
        if last is not None and factor >= last:
            raise UsageError(f'"{text}" is not a duration', hint="write larger units first, each once: 1h30m")
        seconds, last = seconds + number * factor, factor
    if seconds > MOST_SECONDS:
        raise UsageError(f'"{text}" is longer than {MOST_SECONDS} seconds', hint="leave it out for no limit")
    return float(seconds)


def format_bytes(count: int) -> str:
    """``count`` bytes for people, to four significant digits: ``15.83 GB``."""
    amount, unit = float(count), "B"
    for name in ("kB", "MB", "GB", "TB", "PB"):
        if abs(amount) < 1000 * 0.99995:
            break
        amount, unit = amount / 1000, name
    return f"{count} B" if unit == "B" else f"{_digits(amount)} {unit}"


def format_count(amount: float) -> str:
    """A cost or a count for people: exact below 100,000, else four significant digits with k, M, G, T, P, E."""
    if abs(amount) < 1e5:
        return str(int(amount)) if amount == int(amount) else _digits(amount)
    power = min(6, max(1, math.floor(math.log10(abs(amount)) / 3)))
    scaled = amount / 1000**power
    if abs(scaled) >= 999.95 and power < 6:  # 999,999 is 1000 k to four digits: write 1 M
        power, scaled = power + 1, scaled / 1000
    return f"{_digits(scaled)} {'kMGTPE'[power - 1]}" if abs(scaled) < 999.95 else f"{amount:.3e}"


def format_cost(amount: float, unit: str) -> str:
    """A cost for people: ``1.234 T flops``, ``26 units``, ``513 ms``."""
    if unit in TIME_UNITS and math.isfinite(amount):
        name, factor = time_scale(amount, unit)
        return f"{format_count(float(_digits(amount / factor)))} {name}"
    number = format_count(amount) if math.isfinite(amount) else str(amount)
    if unit == "unit":
        unit = "unit" if amount == 1 else "units"
    return f"{number} {unit}"


def time_scale(amount: float, unit: str) -> tuple[str, float]:
    """The unit of time in which an amount of ``unit`` has the fewest digits, and how many of ``unit`` make one."""
    sizes = {name: size / TIME_UNITS[unit] for name, size in TIME_UNITS.items()}
    return next(((name, size) for name, size in sizes.items() if abs(amount) >= 0.99995 * size), (unit, 1.0))


def format_percent(ratio: float) -> str:
    """A ratio as a percentage, small ones with more digits: ``25.0%``, ``0.0531%``."""
    percent = 100 * ratio
    if percent == 0:
        return "0%"
    if abs(percent) >= 9.9995:  # rounds to 10.00, which is shown as 10.0
        return f"{percent:.1f}%"
    if abs(percent) >= 0.01:
        return f"{percent:.{3 if abs(percent) >= 1 else 4}f}".rstrip("0").rstrip(".") + "%"
    return f"{percent:.2g}%"


def format_duration(seconds: float) -> str:
    """Seconds for people: ``0.42 s``, ``12.3 s``, ``3 min 20 s``, ``1 h 02 min``."""
    if seconds < 59.95:  # the rest rounds to a minute or more
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _digits(amount: float) -> str:
    return f"{amount:.4g}" if abs(amount) < 1000 else f"{amount:.0f}"
