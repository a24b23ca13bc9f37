"""Results as a page of Markdown tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.frame import Benchmark, Column, Row, Table, Target, dump
from benchmarks.measure import median

_HEAD = """\
# Benchmarks

Made by `make bench` (`python -m benchmarks --help` for parts of it) from the results in `results/`; do not edit.
Times are medians, with the smallest and the largest of all runs in brackets; one run where there are no brackets.
Memory is the largest resident memory of a process made for that measurement. What stands side by side was measured in
the same run; on a shared machine compare ratios rather than times. A commit with `+changes` is one that had changes
not yet committed.

Pages of their own (`python -m benchmarks --list`): what running by plan costs beyond what is recomputed, on
[TensorFlow](overheads/results/steps-tensorflow.md) and [JAX](overheads/results/steps-jax.md); peaks and results [on
TensorFlow](tensorflow/results/plans.md) and [on JAX](jax/results/peaks.md); plans [with copies to the
host](offloading/results/plans.md), [of sharded steps](sharded/results/plans.md) and [of units of
FSDP2](sharded/results/units.md), and with regions [in parts](splitting/results/chunks.md); PyTorch [beside its own
tools](torch/results/peers-cpu.md), [predicted times](torch/results/times.md) and
[Inductor](torch/results/compiled-cpu.md); [models](models/results/models.md) of libraries, and
[others](models/results/foreign.md); what [remat fits](fits/results/fits.md) and other tools predict; what [each
stage of the search](ablation/results/ablation.md) is worth; and the [tables of published papers](paper/README.md).
"""


def page(benchmarks: Sequence[Benchmark], results: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole page: the targets, then a section per benchmark; one without a result says so."""
    parts = [_HEAD, "## Targets\n", _targets(benchmarks, results)]
    places = {measured_on(result) for result in results.values()}
    if len(places) == 1:
        parts.append(f"Measured on: {places.pop()}\n")
    for benchmark in benchmarks:
        result = results.get(benchmark.name)
        if result is None:
            parts.append(f"## {benchmark.title}\n\nNot measured yet: `python -m benchmarks {benchmark.name}`.\n")
        else:
            parts.append(section(benchmark, result, place=len({measured_on(r) for r in results.values()}) > 1))
    return "\n".join(parts)


def section(
    benchmark: Benchmark, result: Mapping[str, Any], *, place: bool = True, files: Mapping[str, str] | None = None
) -> str:
    """The title, the description, the tables and the circumstances of one result, and the machine if ``place``.

    ``files`` names files by the keys of tables that are linked to instead of printed.
    """
    parts = [f"## {benchmark.title}\n"]
    if benchmark.about:
        parts.append(benchmark.about + "\n")
    for table in benchmark.tables:
        rows = [row for row in result["rows"] if row["table"] == table.key]
        if rows and files and table.key in files:
            note = f" {table.note}" if table.note else ""
            parts.append(f"### {table.title}\n\n[{len(rows)} rows]({files[table.key]}).{note}\n")
        elif rows:
            parts.append(written_table(table, rows))
    for picture in benchmark.pictures:
        parts.append(f"![{picture.shows}](results/{benchmark.name}-{picture.key}.svg)\n")
    parts.append(_circumstances(result))
    parts += [_again(record, result) for record in result.get("again", ())]
    if place and result["machine"]:
        parts.append(f"Measured on: {measured_on(result)}\n")
    return "\n".join(parts)


def own_page(benchmark: Benchmark, result: Mapping[str, Any]) -> str:
    """The page of a benchmark that has one of its own: its section, and its targets."""
    text = section(benchmark, result).removeprefix("#")
    return text + ("\n" + _targets([benchmark], {benchmark.name: result}) if benchmark.targets else "")


def keep(benchmark: Benchmark, result: Mapping[str, Any], folder: Path) -> None:
    """Print the page of a result, and write both into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = own_page(benchmark, result)
    (folder / f"{benchmark.name}.json").write_text(dump(result), encoding="utf-8")
    (folder / f"{benchmark.name}.md").write_text(text, encoding="utf-8")
    print(text)


def _targets(benchmarks: Sequence[Benchmark], results: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [_line(["target", "measured", "met"]), "| --- | ---: | --- |"]
    for benchmark in benchmarks:
        result = results.get(benchmark.name)
        for target in benchmark.targets:
            lines.append(_line([target.text, *_verdict(benchmark, target, result)]))
    return "\n".join(lines) + "\n"


def _verdict(benchmark: Benchmark, target: Target, result: Mapping[str, Any] | None) -> tuple[str, str]:
    measured = None if result is None else target.measured(result["rows"])
    number = median(measured)
    if number is None:
        return "", "not measured"
    columns = {c.key: c for table in benchmark.tables if table.key == target.table for c in table.columns}
    return written(measured, columns[target.column]), "yes" if number < target.below else "**no**"


def written_table(table: Table, rows: Sequence[Row]) -> str:
    lines = [f"### {table.title}\n"] if table.title else []
    lines.append(_line([column.heading for column in table.columns]))
    lines.append("| " + " | ".join("---" if column.kind == "text" else "---:" for column in table.columns) + " |")
    before: Row = {}
    for row in rows:
        cells = [written(row[column.key], column) for column in table.columns]
        # The first column is the group: write it once.
        first = table.columns[0].key
        if before.get(first) == row[first]:
            cells[0] = ""
        lines.append(_line(cells))
        before = row
    if table.note:
        lines += ["", table.note]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _circumstances(result: Mapping[str, Any]) -> str:
    text = f"{result['date']} at commit {result['versions']['commit']}"
    text += f", {result['wall_s']:.0f} s in all." if result["wall_s"] is not None else "."
    load = result["load"]
    if load is not None:
        shared = "The machine was shared: load" if load["shared"] else "Load"
        text += f" {shared} average {load['average_before']:.1f} before the start"
        others = load["others_cores"]
        text += f", and other programs used {others:.1f} cores meanwhile." if others is not None else "."
    text += "\n"
    if "limit_s" in result:
        text += f"Other than said above, each solve had {result['limit_s']:g} s.\n"
    return text + ("Quick run: small inputs, measured once.\n" if result["quick"] else "")


def _again(record: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The rows that were measured again, and how those measurements differed."""
    text = f"Measured again: {'; '.join(record['rows'])}. {_circumstances(record)}"
    return text + (f"Measured on: {measured_on(record)}\n" if measured_on(record) != measured_on(result) else "")


def measured_on(result: Mapping[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    packages = ", ".join(f"{name} {number}" for name, number in sorted(versions["packages"].items()) if number)
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {_bytes(machine['memory_bytes'])} of memory, "
        f"{machine['system']}; {versions['python']}; "
        f"remat {versions['remat']}; {packages}."
    )


def written(value: Any, column: Column) -> str:
    """A cell: numbers with their significant digits, nothing for None."""
    if value is None:
        return ""
    if column.kind == "seconds":
        return _seconds(value)
    if column.kind == "bytes":
        return _bytes(value)
    if column.kind == "count":
        return f"{value:,}"
    if column.kind == "ratio":
        return f"{value:.0f}×" if value >= 10 else f"{value:.2g}×"
    return f"{value:.10g}" if column.kind == "number" else str(value)


def _seconds(value: Any) -> str:
    """``123 ms (118–140)``: all three in the unit of the median."""
    middle = median(value)
    assert middle is not None
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if middle >= 0.9995 * scale or unit == "µs":
            break
    if isinstance(value, Mapping) and value["runs"] > 1:
        low, high = _digits(value["min"] / scale), _digits(value["max"] / scale)
        return f"{_digits(middle / scale)} {unit} ({low}–{high})"
    return f"{_digits(middle / scale)} {unit}"


def _digits(number: float) -> str:
    """Three significant digits, never in the form 1e+03."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def _bytes(count: float) -> str:
    amount, unit = float(count), "B"
    for larger in ("kB", "MB", "GB"):
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{_digits(amount)} {unit}"
