"""``python -m benchmarks.models.contest``: auto beside every other strategy, on training steps of real models.

Each strategy gets the same ten seconds on one core. ``auto`` should have the cheapest plan, or one within the gap that
was asked for, and a proof wherever another strategy has one. Rows are kept as they come, and a later run continues.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Table, columns
from benchmarks.machine import machine, versions
from benchmarks.models.listing import HERE, LIMIT_S, MODELS
from benchmarks.page import measured_on, written_table

_NAMES = """
resnet18 densenet efficientnet_b0 convnext mobilenetv4 vit swin maxvit fcn_resnet18 timesformer whisper hf_vit bert gpt2
llama t5 deberta mamba unet2d dit
"""
NAMES = _NAMES.split()
"""Twenty models of all families whose step is one graph."""
BUDGETS = ("60%", "80%")
GAP = 1e-4
"""The gap asked for, that of the command: costs this close count as equal."""
_ROOT = HERE.parents[1]
_TABLE = Table(
    "contest",
    "",
    (
        Column("graph", "model"),
        Column("nodes", "nodes", "count"),
        Column("budget", "budget"),
        Column("auto", "auto, %", "number"),
        Column("proven", "proven"),
        Column("other", "best other, %", "number"),
        *columns("text", by="by", provers="others that prove", verdict="auto is"),
    ),
)
_HEAD = f"""\
# Auto beside every strategy

Made by `python -m benchmarks.models.contest` from `contest.json`; do not edit. Recomputation in percent of the cost,
after {LIMIT_S:g} s for each strategy on one core. *Worse* is a plan that is more expensive than that of another
strategy by more than the gap of {GAP:.2%}, no plan where another has one, or no proof where another has one.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=NAMES, help="models")
    parser.add_argument("--work", type=Path, default=_ROOT / "build" / "contest", help="folder for graphs and rows")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder for contest.json and contest.md")
    parser.add_argument("--export", action="store_true", help="only make the graphs")
    parser.add_argument("--again", nargs="+", metavar="STRATEGY", help="measure only these, again; the other rows stay")
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    kept = asked.results / "contest.json"
    document: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {"rows": {}}
    for name in asked.only:
        graph = asked.work / f"{name}.json"
        if not graph.is_file():
            file = next(model.file for model in MODELS if model.name == name)
            _remat("export", f"torch:{file}:{name}", "-o", str(graph), "-q")
        if asked.export:
            continue
        rows = asked.work / f"{name}.rows.jsonl"
        which = ("--strategies", ",".join(asked.again)) if asked.again else ("--results", str(rows))
        text = _remat(
            *("compare", str(graph), "--budgets", ",".join(BUDGETS), "--time-limit", f"{LIMIT_S:g}s", "--jobs", "1"),
            *("--threads", "1", *which, "--format", "json"),
        )
        nodes = len(json.loads(graph.read_text(encoding="utf-8"))["nodes"])
        one = {"nodes": nodes, "rows": json.loads(text)["rows"], "commit": versions()["commit"]}
        document["rows"][name] = _joined(document["rows"].get(name), one, asked.again) if asked.again else one
        document |= {"machine": machine(), "versions": versions()}
        kept.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        (asked.results / "contest.md").write_text(page(document), encoding="utf-8")
    return 0


def _joined(old: dict[str, Any] | None, new: dict[str, Any], again: list[str]) -> dict[str, Any]:
    """The rows of a model, of which those of the strategies ``again`` are new."""
    if old is None:
        return new
    kept = [row for row in old["rows"] if row["strategy"] not in again]
    same = old["commit"] == new["commit"]
    renewed = sorted({*again, *(old.get("again", ()) if same else ())})
    commits = [old["earlier"]] if "earlier" in old else []
    earlier = ", ".join(commits if same and commits else [*commits, old["commit"]])
    return {**new, "rows": kept + new["rows"], "earlier": earlier, "again": renewed}


def _remat(*arguments: str) -> str:
    """What a command of remat writes on standard output; 1 says that there is no plan, which is an answer."""
    done = subprocess.run([sys.executable, "-m", "remat_cli", *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode not in {0, 1}:
        sys.exit(done.returncode)
    return done.stdout


def page(document: dict[str, Any]) -> str:
    """The page of all rows."""
    rows = [
        row
        for name, one in document["rows"].items()
        for budget in BUDGETS
        if (row := _row(name, one["nodes"], budget, [r for r in one["rows"] if r["budget"] == budget]))
    ]
    verdicts = [str(row["verdict"]) for row in rows]
    totals = ", ".join(f"{verdicts.count(v)} {v}" for v in sorted(set(verdicts)))
    commits = sorted({str(one["commit"]) for one in document["rows"].values()})
    earlier = sorted({str(one["earlier"]) for one in document["rows"].values() if "earlier" in one})
    again = sorted({name for one in document["rows"].values() for name in one.get("again", ())})
    more = f" Strategies other than {', '.join(again)} at {', '.join(earlier)}." if earlier else ""
    return "\n".join(
        [_HEAD, f"Of {len(rows)} cases: {totals}. Commits: {', '.join(commits)}.{more}", "",
         written_table(_TABLE, rows), "",
         f"Measured on: {measured_on(document)}", ""]
    )  # fmt: skip


def _row(name: str, nodes: int, budget: str, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """One graph and budget; None if no strategy has a plan."""
    plans = {row["strategy"]: row for row in rows if row["ended"] == "plan"}
    if not plans:
        return None
    auto = plans.get("auto")
    others = {name: row for name, row in plans.items() if name != "auto"}
    best = min(others.values(), key=lambda row: float(row["cost"]), default=None)
    # Proofs among the plans of one tool say nothing about all plans.
    provers = sorted(name for name, row in others.items() if row["optimal"] and row["scope"] != "restricted")
    worse = auto is None or (best is not None and auto["cost"] > best["cost"] * (1 + GAP))
    unproven = bool(provers) and not (auto and auto["optimal"])
    return {
        "graph": name,
        "nodes": nodes,
        "budget": budget,
        "auto": auto and 100 * auto["overhead"],
        "proven": "yes" if auto and auto["optimal"] else "",
        "other": best and 100 * best["overhead"],
        "by": best and best["strategy"],
        "provers": ", ".join(provers),
        "verdict": "worse" if worse else "not proven" if unproven else "as good or better",
    }


if __name__ == "__main__":
    sys.exit(main())
