"""Model files: free MPS and CPLEX LP, with every number in full.

HiGHS's own writer keeps 15 significant digits, and turns two-sided rows of an LP file into two rows. CBC and GLPK must
solve exactly the model that HiGHS solves. So this module writes the files, with the shortest decimal text that reads
back as the same float64.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf, isinf
from pathlib import Path
from typing import TextIO

import numpy as np

from remat_cli.errors import UsageError
from remat_cli.mip import LinearModel

_LP_LINE = 8
"""Terms per line of an LP file, because some readers have line buffers of 255 or 560 characters."""


def write_model(model: LinearModel, path: Path, *, named: bool = True, note: str = "") -> None:
    """Write ``model`` to ``path`` in the format of its suffix, ``.mps`` or ``.lp``.

    Columns get the names ``model.column_names`` (characters that a format cannot express become ``_``), or ``c0``,
    ``c1``, ... without ``named`` or without names. Rows are ``r0``, ``r1``, ...

    If ``named``, columns have the model's names. ``note`` is a comment for the first line; ASCII.

    Raises:
        UsageError: If the suffix is neither, or the file cannot be written.
    """
    writers = {".mps": (_write_mps, "*"), ".lp": (_write_lp, "\\")}
    writer, mark = writers.get(path.suffix.lower(), (None, ""))
    if writer is None:
        raise UsageError(f"{path}: a model file ends in .mps or .lp", hint=f"write {path.stem}.lp instead")
    try:
        with path.open("w", encoding="ascii", newline="\n") as stream:
            if note:
                stream.write(f"{mark} {note}\n")
            writer(model, _names(model) if named else [f"c{i}" for i in range(model.columns)], stream)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None


def _names(model: LinearModel) -> list[str]:
    """A distinct name for every column, valid in both formats."""
    if len(model.column_names) != model.columns:
        return [f"c{i}" for i in range(model.columns)]
    names, used = [], set[str]()
    for i, given in enumerate(model.column_names):
        name = re.sub(r"[^A-Za-z0-9_.]+", "_", given).strip("_") or f"c{i}"
        if not name[0].isalpha() or re.match(r"(?i)e\d|(inf|infinity|free)$", name):
            name = f"x_{name}"  # an LP reader would take it for a number, or for a keyword
        if name in used:
            name = f"{name}_c{i}"
        used.add(name)
        names.append(name)
    return names


def _range_form(lower: float, upper: float) -> tuple[str, float, float] | None:
    """``(type, right-hand side, range)`` whose sum or difference is the other side exactly, if there is one."""
    width = upper - lower
    if lower + width == upper:
        return "G", lower, width
    return ("L", upper, width) if upper - width == lower else None


def _mps_rows(model: LinearModel) -> Iterator[tuple[int, str, str, float, float | None]]:
    """``(row, name, type, right-hand side, range)`` of every MPS row.

    A two-sided row for which no range is exact becomes two rows, ``r7`` and ``r7u``.
    """
    for r, (lower, upper) in enumerate(zip(model.row_lower.tolist(), model.row_upper.tolist(), strict=True)):
        if lower == upper:
            yield r, f"r{r}", "E", lower, None
        elif isinf(lower) or isinf(upper):
            kind = "N" if lower == -inf and upper == inf else "G" if upper == inf else "L"
            yield r, f"r{r}", kind, 0.0 if kind == "N" else lower if kind == "G" else upper, None
        elif (form := _range_form(lower, upper)) is not None:
            yield r, f"r{r}", form[0], form[1], form[2]
        else:
            yield r, f"r{r}", "G", lower, None
            yield r, f"r{r}u", "L", upper, None


def _write_mps(model: LinearModel, names: Sequence[str], out: TextIO) -> None:
    rows = list(_mps_rows(model))
    row_names: list[list[str]] = [[] for _ in range(model.rows)]
    for r, name, _, _, _ in rows:
        row_names[r].append(name)
    # Without FREE, CBC takes short lines such as " LO BND c0 0" for the fixed format and refuses them.
    out.write("NAME remat FREE\nROWS\n N obj\n")
    out.writelines(f" {kind} {name}\n" for _, name, kind, _, _ in rows)
    out.write("COLUMNS\n")
    out.writelines(_mps_columns(model, names, row_names))
    out.write("RHS\n")
    if model.offset:
        out.write(f" RHS obj {-float(model.offset)!r}\n")  # the format gives the constant with the opposite sign
    out.writelines(f" RHS {name} {rhs!r}\n" for _, name, _, rhs, _ in rows if rhs)
    if any(width is not None for *_, width in rows):
        out.write("RANGES\n")
        out.writelines(f" RNG {name} {width!r}\n" for _, name, _, _, width in rows if width is not None)
    out.write("BOUNDS\n")
    columns = zip(names, model.lower.tolist(), model.upper.tolist(), model.integer.tolist(), strict=True)
    for name, lower, upper, integer in columns:
        out.writelines(_mps_bounds(name, lower, upper, integer))
    out.write("ENDATA\n")


def _mps_columns(model: LinearModel, names: Sequence[str], row_names: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of the COLUMNS section; an empty column has its zero cost, so that it exists."""
    by_column = np.argsort(model.indices, kind="stable")
    row_of = np.repeat(np.arange(model.rows), np.diff(model.starts))[by_column].tolist()
    values = model.values[by_column].tolist()
    ends = np.searchsorted(model.indices[by_column], np.arange(model.columns + 1)).tolist()
    in_integers = False
    for i, (name, cost, integer) in enumerate(zip(names, model.cost.tolist(), model.integer.tolist(), strict=True)):
        if integer != in_integers:
            yield f" M{i} 'MARKER' '{'INTORG' if integer else 'INTEND'}'\n"
            in_integers = integer
        if cost or ends[i] == ends[i + 1]:
            yield f" {name} obj {cost!r}\n"
        for k in range(ends[i], ends[i + 1]):
            for row in row_names[row_of[k]]:
                yield f" {name} {row} {values[k]!r}\n"
    if in_integers:
        yield " MEND 'MARKER' 'INTEND'\n"


def _mps_bounds(name: str, lower: float, upper: float, integer: bool) -> Iterator[str]:
    """All bounds, stated explicitly, because readers have different defaults.

    Readers differ on an integer column without bounds (upper bound 1 or none) and on a negative upper bound alone
    (lower bound 0 or none).
    """
    if lower == -inf and upper == inf:
        yield f" FR BND {name}\n"
    elif lower == upper:
        yield f" FX BND {name} {lower!r}\n"
    else:
        if lower == -inf:
            yield f" MI BND {name}\n"
        elif lower or upper != inf:
            yield f" LO BND {name} {lower!r}\n"
        if upper != inf:
            yield f" UP BND {name} {upper!r}\n"
        elif integer:
            yield f" PL BND {name}\n"


def _write_lp(model: LinearModel, names: Sequence[str], out: TextIO) -> None:
    # Every column is in the objective, some with a zero, because readers number columns as they occur.
    out.write("minimize\nobj:\n")
    out.writelines(_lp_terms(names, model.cost.tolist()))
    out.write(f" {float(model.offset):+}\n" if model.offset else "")
    out.write("subject to\n")
    starts, indices, values = model.starts.tolist(), model.indices.tolist(), model.values.tolist()
    sides = zip(model.row_lower.tolist(), model.row_upper.tolist(), strict=True)
    for r, ((start, end), (lower, upper)) in enumerate(zip(pairwise(starts), sides, strict=True)):
        # A row without terms has to name some column; there is none to name in a model without columns.
        terms = [names[i] for i in indices[start:end]] or list(names[:1])
        lines = list(_lp_terms(terms, values[start:end] or [0.0]))
        for name, relation, side in _lp_rows(f"r{r}", lower, upper):
            out.write(f"{name}:\n")
            out.writelines(lines)
            out.write(f" {relation} {side!r}\n")
    out.write("bounds\n")
    for name, lower, upper in zip(names, model.lower.tolist(), model.upper.tolist(), strict=True):
        out.write(_lp_bounds(name, lower, upper))
    if model.integer.any():
        out.write("general\n")
        out.writelines(f" {names[i]}\n" for i in np.flatnonzero(model.integer).tolist())
    out.write("end\n")


def _lp_terms(names: Sequence[str], values: Sequence[float]) -> Iterator[str]:
    terms = [f"{value:+} {name}" for value, name in zip(values, names, strict=True)]
    for k in range(0, len(terms), _LP_LINE):
        yield " " + " ".join(terms[k : k + _LP_LINE]) + "\n"


def _lp_rows(name: str, lower: float, upper: float) -> Iterator[tuple[str, str, float]]:
    """One line for a one-sided row, two for a two-sided one: not every reader takes ``1 <= x + y <= 2``."""
    if lower == upper:
        yield name, "=", lower
    elif isinf(lower) or isinf(upper):
        if lower != -inf:
            yield name, ">=", lower
        elif upper != inf:
            yield name, "<=", upper
        # A row without sides has no effect, and the format cannot express it.
    else:
        yield f"{name}lo", ">=", lower
        yield f"{name}up", "<=", upper


def _lp_bounds(name: str, lower: float, upper: float) -> str:
    if lower == -inf and upper == inf:
        return f" {name} free\n"
    if lower == upper:
        return f" {name} = {lower!r}\n"
    low = "-inf" if lower == -inf else repr(lower)
    return f" {low} <= {name}\n" if upper == inf else f" {low} <= {name} <= {upper!r}\n"
