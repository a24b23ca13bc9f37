"""The report on a run of a plan on a device, as text."""

from collections.abc import Mapping
from typing import Any

from remat_cli.reports.style import Style, fields, render
from remat_cli.reports.words import count, exact_bytes
from remat_cli.units import format_bytes, format_duration, format_percent

_SHOWN = 5
"""The number of names that are listed."""


def run_text(ran: Mapping[str, Any], style: Style) -> str:
    """The report on a run."""
    from rich.text import Text

    verdicts = {
        True: ("identical", "✓", "green"),
        False: ("different", "✗", "red"),
        None: ("not compared", "?", "yellow"),
    }
    words, mark, color = verdicts[ran["identical"]]
    parts = ran.get("in_parts")
    if parts is not None and parts["within"] and not ran["identical"]:
        words, mark, color = "equal up to rounding", "✓", "green"
    ascii_mark = {"✓": "ok:", "✗": "NO:", "?": "?"}[mark]
    headline = Text.assemble((f"{style.glyph(mark, ascii_mark)} {words}", f"bold {color}"), f": {_verdict(ran)}")
    rows = [
        ("graph", f"{ran['graph']}: {ran['computations']} computations, {ran['recomputations']} of them repeated"),
        ("device", f"{ran['device']}, {ran['framework']} {ran['version']}"),
        *_memory_rows(ran),
        *_copy_rows(ran),
        *_part_rows(ran),
        ("time", _time(ran)),
    ]
    if ran["result"] is not None:
        rows.append(("result", f"{ran['result']:.9g} (weights and inputs are random)"))
    if not ran["finite"]:
        rows.append(("", "some results are infinite or NaN, so equality is weaker evidence"))
    return render(style, headline, "", fields(rows, style))


def _verdict(ran: Mapping[str, Any]) -> str:
    if ran["identical"] is None:
        return "the step without recomputation does not fit this device, so there is nothing to compare with"
    if ran["identical"]:
        return f"all {ran['compared']} results equal those without recomputation, bit for bit"
    listed = ", ".join(ran["differing"][:_SHOWN])
    more = len(ran["differing"]) - _SHOWN
    text = f"{listed}{f' and {more} more' if more > 0 else ''}"
    if ran["unsteady"]:
        text += f"; {len(ran['unsteady'])} of all results differ even between runs without recomputation"
    return text


def _part_rows(ran: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The regions in parts, if there are any, and what they do to the results."""
    parts = ran.get("in_parts")
    if parts is None:
        return []
    regions = ", ".join(f"{name} in {number} parts" for name, number in parts["regions"].items())
    summed = parts["summed"][:_SHOWN]
    more = len(parts["summed"]) - len(summed)
    words = f"{', '.join(summed)}{f' and {more} more' if more > 0 else ''}" if summed else "none of the results"
    largest = f"largest difference {parts['largest']:.2g} of the largest number in a tensor"
    rows = [("in parts", regions), ("", f"sums over parts, no longer bit for bit: {words}")]
    if parts["others"]:
        rows.append(("", f"computed from what the regions make, and no longer bit for bit: {parts['others']} others"))
    return [*rows, ("", largest)]


def _memory_rows(ran: Mapping[str, Any]) -> list[tuple[str, str]]:
    memory = ran["memory"]
    rows = [
        ("predicted", exact_bytes(memory["predicted"])),
        ("measured", f"{exact_bytes(memory['measured'])}{_peak_deviation(memory, ran['device'])}"),
    ]
    if memory["predicted_without_workspace"] != memory["predicted"]:
        rows.insert(1, ("", f"{exact_bytes(memory['predicted_without_workspace'])} without workspace"))
    if memory["reserved"] is not None:
        rows += _blocks_rows(memory)
    if memory["allocator"] is not None:
        rows.append(
            ("", f"{exact_bytes(memory['allocator'])} handed out by the allocator, with what kernels need besides")
        )
    if memory["generator_states"]:
        rows.append(("", f"and {memory['generator_states']} bytes for states of the random generator, on the host"))
    if ran["reference_peak"] is not None:
        rows.append(("no-remat", f"{exact_bytes(ran['reference_peak'])} measured without recomputation"))
    return rows


def _copy_rows(ran: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The copies between device and host, if there are any."""
    copied = ran.get("copied")
    if copied is None:
        return []
    out, back = (count(copied[way], "copy", "copies") for way in ("to_host", "from_host"))
    memory = f"{exact_bytes(copied['measured'])} of host memory{_deviation(copied['measured'], copied['predicted'])}"
    if ran["device"] == "cpu":
        when = "nothing runs beside the copies on a CPU"
    else:
        when = f"{_short_time(copied['predicted_s'])} per step by the costs of the plan"
    return [("copies", f"{out} to host, {back} from host; {when}"), ("", memory)]


def _blocks_rows(memory: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The plan in PyTorch's allocator on CUDA: allocated blocks, and memory taken from the device."""
    reserved, wanted = memory["reserved"], memory["predicted_reserved"]
    return [
        (
            "in blocks",
            f"{exact_bytes(memory['predicted_blocks'])} predicted, with the parts of blocks that stay unused",
        ),
        ("reserved", f"{exact_bytes(reserved)} taken from the device{_deviation(reserved, wanted)}"),
        ("", f"and {format_bytes(memory['libraries'])} kept by libraries"),
    ]


def _peak_deviation(memory: Mapping[str, Any], device: str) -> str:
    """The measured against the predicted peak. On a CPU, workspace is not measured, so both leave it out."""
    predicted = memory["predicted_without_workspace"] if device == "cpu" else memory["predicted"]
    return _deviation(memory["measured"], predicted)


def _deviation(measured: int, predicted: int) -> str:
    """The difference between a measured and a predicted number."""
    difference = measured - predicted
    if difference == 0:
        return ", as predicted to the byte"
    return f", {format_percent(abs(difference) / predicted)} {'above' if difference > 0 else 'below'} the prediction"


def _time(ran: Mapping[str, Any]) -> str:
    text = f"{_short_time(ran['step_s'])} per step (median of {ran['steps']})"
    if ran["reference_step_s"] is None:
        return text
    return f"{text}; {_short_time(ran['reference_step_s'])} without recomputation"


def _short_time(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 1 else f"{1000 * seconds:.3g} ms"
