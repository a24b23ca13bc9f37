"""The page of what ``remat fits`` and other tools predict: errors of each, and a row per model."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.frame import Column, Table, columns
from benchmarks.models.listing import LIMIT_S, MODELS
from benchmarks.page import measured_on, written_table
from remat_cli.planning.fits import BEST, BLOCKS, WITHOUT

_HEAD = """\
# Predicted and measured memory of training

Made by `make truth` from `fits.json`; do not edit. The models of [the suite](../../models/results/models.md), in small
sizes and with random weights: a forward and a backward pass and a step of AdamW (`foreach`) on one core of a CPU. What
is measured is the most that PyTorch's allocator hands out during the third step, by the events of PyTorch's profiler,
with parameters, buffers, inputs and the state of the optimizer. An error is predicted / measured - 1. The search for a
plan had at most {limit}.

- *remat fits*: the module, its batch and its loss, followed in eager mode and captured, without numbers. Where eager
  mode cannot be followed, the captured step is what no recomputation takes. *With workspace*: each operation has run
  once on this CPU to see what its kernel allocates meanwhile, as `remat profile` and `fit` do.
- *eager mode as on a GPU*: dropout in eager mode keeps its input and a mask of floating-point numbers on a CPU, and a
  mask of booleans on a GPU. Here it runs the operator of the GPU.
- *accelerate*: "Training using Adam" of `accelerate estimate-memory`: four times the parameters and buffers, in
  float32. It counts no results of layers, no inputs and no temporary tensors of the optimizer, and knows no batch. The
  command takes names on the Hugging Face hub, so its functions were called with the same modules.
- *torch-kitsune*: `predict_memory` for the same module, with the shape of its first input and AdamW: parameters,
  gradients, state, the sum of the results of layers, and 15% of all that as a margin. A model whose forward pass it
  cannot follow with one input of floating-point numbers gets formulas for some types of layers. It counts no loss.

Neither of these two predicts recomputation.
"""
_SUMMARY = Table(
    "summary",
    "",
    (
        *columns("text", tool="prediction", against="measured"),
        Column("models", "models", "count"),
        *columns("text", median="median error", worst="worst error", low="lowest", high="highest", near="within 1%"),
    ),
)
_ROWS = Table(
    "models",
    "",
    (
        *columns("text", family="family", model="model"),
        *columns("bytes", eager="eager mode", gpu="as on a GPU"),
        *columns("text", without="remat fits", blocks="every block", best="best plan", memory="in"),
        *columns("text", accelerate="accelerate", kitsune="torch-kitsune"),
    ),
)
_CUDA_HEAD = """\
# Predicted and measured memory of training on CUDA, without a GPU

Made by `make hollow-truth` from `cuda.json`; do not edit. Models of [the suite](../../models/results/models.md) are
trained by AdamW (`foreach`) without recomputation, on PyTorch's CUDA build over a runtime that keeps account of memory
and does nothing else (`benchmarks/torch/hollow`). The allocator and the choice of kernels are PyTorch's own; kernels
take no workspace and compute nothing.

- *predicted*: what `remat fits` says is taken from the device, without its context; *gaps*: the part of it that is gaps
  of the allocator and what cuBLAS takes, 67 MB if both threads use it.
- *allocated* and *reserved*: the peaks of the allocator in three steps, if nothing limits it; *cuBLAS*: what it keeps
  of them. *Tensors* is the error of the predicted tensors against what is allocated besides.
- *least limit*: the least memory within which the three steps run, to 1%: what the prediction is of. *Whole* is its
  error. An error is predicted / measured - 1.

The models are small beside what the allocator takes at a time: one block from 1 to 10 MB more or less may mean one
segment of 21 MB more or less, which is the largest part of these errors. So it is for Swin and ConvNeXt V2, whose
operators take blocks of 2 MB for themselves in the backward pass. Steps are captured on a CPU, with the fused attention
of GPUs under dropout: attention in float32 has other kernels on CUDA, which copy heads that are shared.
"""
_CUDA_ROWS = Table(
    "models",
    "",
    (
        *columns("text", family="family", model="model"),
        *columns(
            "bytes", total="predicted", gaps="gaps", allocated="allocated", libraries="cuBLAS", reserved="reserved"
        ),
        *columns("bytes", limit="least limit"),
        *columns("text", tensors="tensors", whole="whole"),
    ),
)
_REFUSED = Table("refused", "", columns("text", model="model", reason="reason"))


def page(document: Mapping[str, Any]) -> str:
    """The page of all answers."""
    rows = {m.name: document["rows"][m.name]["fits"] for m in MODELS if "fits" in document["rows"].get(m.name, {})}
    parts = [_HEAD.format(limit=f"{document.get('limit_s', LIMIT_S):g} s"), "## Errors\n"]
    parts += [errors_table(list(rows.values())), _sentences(rows)]
    families = {model.name: model.family for model in MODELS}
    shown = [_row(families[name], name, row) for name, row in rows.items() if "others" in row]
    parts += ["## Models\n", "Errors, each against what the same way to train was measured to take.\n"]
    parts.append(written_table(_ROWS, shown))
    refused = [{"model": name, "reason": _reason(row)} for name, row in rows.items() if not row["ok"]]
    if refused:
        parts += ["## Not predicted\n", written_table(_REFUSED, refused)]
    return "\n".join([*parts, *_origin(document, rows.values())])


def cuda_page(document: Mapping[str, Any]) -> str:
    """The page of what training takes from a CUDA device."""
    rows = [(m, document["rows"][m.name]["cuda"]) for m in MODELS if "cuda" in document["rows"].get(m.name, {})]
    ours = [(model, row["predicted"], row["measured"]) for model, row in rows if row["ok"]]
    errors = {
        "tensors": [_off(p["total"] - p["gaps"], m["allocated"] - m["libraries"]) for _, p, m in ours],
        "whole": [_off(p["total"], m["limit"]) for _, p, m in ours],
    }
    signed = [{name: _signed(found[k]) for name, found in errors.items()} for k in range(len(ours))]
    shown = [
        {"family": model.family, "model": model.name} | predicted | measured | told
        for (model, predicted, measured), told in zip(ours, signed, strict=True)
    ]
    parts = [_CUDA_HEAD]
    for name, found in errors.items() if ours else ():
        told = _figures(found)
        parts.append(
            f"- {name}: of {told['models']} models, the median error is {told['median']} and the worst {told['worst']} "
            f"(from {told['low']} to {told['high']}); {told['near']} are within 1%"
        )
    parts.append("\n" + written_table(_CUDA_ROWS, shown))
    refused = [{"model": model.name, "reason": _reason(row)} for model, row in rows if not row["ok"]]
    if refused:
        parts += ["## Not measured\n", written_table(_REFUSED, refused)]
    return "\n".join([*parts, *_origin(document, [row for _, row in rows])])


def _origin(document: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """When, of which commits and on what machine the answers are."""
    if "machine" not in document:
        return []
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    return [f"{document['date']} at commit {commits}.\n", f"Measured on: {measured_on(document)}\n"]


def errors_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of errors, which the manual shows, too."""
    return written_table(_SUMMARY, summary(rows))


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each kind of prediction: the median and the largest of the absolute errors, and both ends."""
    ours, all_rows = [row for row in rows if row["ok"]], [row for row in rows if "others" in row]
    kinds = [
        ("remat fits", "eager mode as on a GPU", [_off(r["by_graph"][WITHOUT], r["gpu_dropout"]) for r in ours]),
        ("remat fits", "eager mode on a CPU", [_off(r["by_graph"][WITHOUT], r["measured"]["eager"]) for r in ours]),
        ("with workspace", "eager mode as on a GPU", [_off(r["predicted"][WITHOUT], r["gpu_dropout"]) for r in ours]),
    ]
    kinds += [
        ("with workspace", f"by plan: {name}", [error for r in ours for error in _of_plan(r, name)])
        for name in (BLOCKS, BEST)
    ]
    kinds += [
        (title, "eager mode on a CPU", [_off(tool(r), r["measured"]["eager"]) for r in all_rows])
        for title, tool in _OTHERS
    ]
    return [{"tool": tool, "against": against, **_figures(errors)} for tool, against, errors in kinds if errors]


def _eager(row: Mapping[str, Any]) -> int:
    return int(row["measured"]["eager"])


_OTHERS = (
    ("accelerate", lambda row: row["others"]["accelerate"]),
    ("torch-kitsune", lambda row: row["others"]["kitsune"]),
    ("torch-kitsune without its margin", lambda row: row["others"]["kitsune"] - row["others"]["kitsune_margin"]),
)


def _figures(errors: Sequence[float]) -> dict[str, Any]:
    sizes = [abs(error) for error in errors]
    return {
        "models": len(errors),
        "median": _share(statistics.median(sizes)),
        "worst": _share(max(sizes)),
        "low": _signed(min(errors)),
        "high": _signed(max(errors)),
        "near": f"{sum(size <= 0.01 for size in sizes)} of {len(sizes)}",
    }


def _share(size: float) -> str:
    return f"{size:.1%}" if size >= 0.09995 else f"{size:.2%}"


def _signed(error: float) -> str:
    return ("+" if error >= 0 else "-") + _share(abs(error))


def _off(predicted: int, measured: int) -> float:
    return predicted / measured - 1


def _of_plan(row: Mapping[str, Any], name: str) -> Iterator[float]:
    """The error for a plan, if there is one and it ran."""
    if name in row["predicted"] and isinstance(row["measured"].get(name), int):
        yield _off(row["predicted"][name], row["measured"][name])


def _row(family: str, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    def plan(which: str) -> str:
        if not row["ok"] or which not in row["predicted"]:
            return ""
        return "".join(map(_signed, _of_plan(row, which))) or "**failed**"

    return {
        "family": family,
        "model": name,
        "eager": _eager(row),
        "gpu": row.get("gpu_dropout"),
        "without": _signed(_off(row["by_graph"][WITHOUT], row["gpu_dropout"])) if row["ok"] else "",
        "blocks": plan(BLOCKS),
        "best": plan(BEST),
        "memory": f"{row['share']:.0%}" if "share" in row else "",
        "accelerate": _signed(_off(row["others"]["accelerate"], _eager(row))),
        "kitsune": _signed(_off(row["others"]["kitsune"], _eager(row))),
    }


def _sentences(rows: Mapping[str, Mapping[str, Any]]) -> str:
    ours = [row for row in rows.values() if row["ok"]]
    failed = {
        f"{name} ({which})": text
        for name, row in rows.items()
        for which, text in row.get("measured", {}).items()
        if not isinstance(text, int)
    }
    formulas = sum(row["others"]["kitsune_formulas"] for row in rows.values() if "others" in row)
    lines = [
        f"- models measured: {len(rows)} of the {len(MODELS)} of the suite; remat fits refuses {len(rows) - len(ours)}",
        f"- of those predicted, the step of the optimizer takes the most for {sum(row['update'] for row in ours)}",
        f"- the best plan has 60% of the memory for {sum(row.get('share') == 0.6 for row in ours)}, 80% or 90% for "
        f"{sum(row.get('share', 0) > 0.6 for row in ours)}; for the others no plan was found that takes so little",
        f"- torch-kitsune had formulas for {formulas}",
    ]
    lines += [f"- {name} did not run: {text}" for name, text in failed.items()]
    return "\n".join(lines) + "\n"


def _reason(row: Mapping[str, Any]) -> str:
    return str(row["problem"]).partition("\n")[0][:300]
