"""Damaged graphs, plans and results files, read by the reading functions and by commands.

Nothing but errors of remat may come of them, in clean text; a file that a command writes is whole, or not there.
"""

import functools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from campaigns.damage import as_bytes, as_text, damaged_bytes, damaged_document
from campaigns.engine import Failure
from campaigns.inprocess import clean, folder, remat, timed
from campaigns.judge import Wrong, judged
from remat_cli import load_graph, load_plan, solve
from remat_cli.control import Control
from remat_cli.errors import ExitCode, InputError, RematError
from remat_cli.graph.document import Document
from remat_cli.graph.io import dump_document, graph_from_document
from remat_cli.graph.model import Graph
from remat_cli.plan.comparison import Cell, Row
from remat_cli.plan.io import plan_to_document
from remat_cli.planning.comparison import Execution, compare
from remat_cli.planning.executors import run_cell
from remat_cli.planning.options import Limits
from remat_cli.units import parse_budgets

GRAPH: dict[str, Any] = {
    "schema": "remat-graph/1",
    "name": "toy",
    "cost_unit": "flops",
    "fixed_memory": "2MiB",
    "metadata": {"batch": 8, "more": [1, {"y": None}]},
    "nodes": [
        {"id": "conv1", "op": "conv2d", "phase": "forward", "inputs": [], "cost": 1.2e9, "memory": "64MiB"},
        {"id": "bn1", "phase": "forward", "inputs": ["conv1"], "cost": 3.0e7, "outputs": ["64MiB", 256, "256B"]},
        {"id": "relu1", "phase": "forward", "inputs": ["bn1:0"], "cost": 1e6, "memory": 67108864, "workspace": "1MiB"},
        {"id": "loss", "phase": "loss", "inputs": ["relu1"], "cost": 1, "memory": "4B", "recompute": False},
        {"id": "g/relu1", "phase": "backward", "inputs": ["loss", "bn1:1"], "cost": 2, "memory": 100, "payload": [7]},
        {"id": "g/conv1", "phase": "backward", "inputs": ["g/relu1", "conv1"], "cost": 3, "outputs": [50, 0]},
    ],
    "outputs": ["loss", "g/conv1:0"],
}
NODE_LINK: dict[str, Any] = {
    "directed": True,
    "multigraph": False,
    "graph": {"name": "diamond"},
    "nodes": [{"id": name, "cost": 2, "memory": 30} for name in "abcd"],
    "links": [{"source": s, "target": t} for s, t in ("ab", "ac", "bd", "cd")],
}
GRAPHML = """<?xml version='1.0' encoding='utf-8'?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="d1" for="node" attr.name="memory" attr.type="long"/>
  <key id="d0" for="node" attr.name="cost" attr.type="double"/>
  <graph edgedefault="directed">
    <node id="a"><data key="d0">1.5</data><data key="d1">30</data></node>
    <node id="b"><data key="d0">2.0</data><data key="d1">40</data></node>
    <edge source="a" target="b"/>
  </graph>
</graphml>
"""
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "graph": (
        ("show", "FILE"),
        ("show", "FILE", "--format", "json"),
        ("show", "FILE", "--format", "svg", "-o", "out.svg"),
        ("convert", "FILE", "-o", "out.json"),
        ("convert", "FILE", "-o", "out.yaml"),
        ("convert", "FILE", "-o", "out.dot"),
        ("solve", "FILE", "-b", "70%", "--strategy", "optimal", "--time-limit", "2s", "-o", "out.plan.json"),
        ("solve", "FILE", "-b", "100%", "-o", "out.plan.json"),
        ("check", "good.plan.json", "--graph", "FILE"),
    ),
    "plan": (
        ("check", "FILE"),
        ("check", "FILE", "good.plan.json", "--format", "junit"),
        ("check", "FILE", "--format", "github"),
        ("check", "FILE", "--format", "sarif"),
        ("show", "FILE"),
        ("show", "FILE", "--format", "html", "-o", "out.html"),
        ("diff", "FILE", "good.plan.json"),
        ("diff", "good.plan.json", "FILE", "--format", "json"),
        ("explain", "FILE", "conv1"),
        ("convert", "FILE", "-o", "out.yaml"),
    ),
}


@functools.cache
def plan_document() -> dict[str, Any]:
    """A plan with recomputation."""
    solved = solve(graph_from_document(Document("toy.json", GRAPH)), "72%")
    data: dict[str, Any] = json.loads(dump_document(plan_to_document(solved.plan)))
    return data


class _Here:
    """Runs the cells of a comparison in this process."""

    def run(self, cells: list[Cell], graph: Graph, limits: Limits, control: Control) -> Iterator[Row]:
        return (run_cell(cell, graph, limits) for cell in cells)


def _compare(results: Path) -> None:
    """A comparison that goes on from a results file, if there is one."""
    graph = graph_from_document(Document("toy.json", GRAPH))
    compare(graph, parse_budgets("90%,100%"), ["keep-all", "chen-sqrt"], execution=Execution(_Here(), results))


@functools.cache
def rows() -> str:
    """A results file of ``remat compare``."""
    with folder() as here:
        _compare(here / "rows.jsonl")
        return (here / "rows.jsonl").read_text(encoding="utf-8")


def inputs() -> st.SearchStrategy[dict[str, Any]]:
    """A damaged file, and what is to read it."""
    plan_document()
    rows()
    return _damaged_files()


@st.composite
def _damaged_files(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["graph"] * 12 + ["plan"] * 12 + ["node-link"] * 3 + ["graphml"] * 3 + ["rows"]))
    suffix = "json"
    if kind == "graphml":
        raw, suffix = draw(damaged_bytes(GRAPHML.encode())), "graphml"
    elif kind == "rows":
        lines = rows().splitlines()
        at = draw(st.integers(0, len(lines) - 1))
        line = draw(damaged_document(json.loads(lines[at]), "json"))
        raw, suffix = b"\n".join([*map(str.encode, lines[:at]), line, *map(str.encode, lines[at + 1 :])]), "jsonl"
    else:
        suffix = draw(st.sampled_from(["json", "yaml"]))
        data = {"graph": GRAPH, "node-link": NODE_LINK}.get(kind) or plan_document()
        raw = draw(damaged_document(data, suffix))
    kind = {"node-link": "graph", "graphml": "graph"}.get(kind, kind)
    # A command takes five times as long as reading alone.
    via = draw(st.sampled_from(COMMANDS[kind])) if kind != "rows" and not draw(st.integers(0, 5)) else ("load",)
    return {"kind": kind, "file": f"in.{suffix}", "data": as_text(raw), "via": list(via)}


def check(case: dict[str, Any], counts: Counter[str]) -> None:
    """Read the file; a Failure if anything but a clean error comes of it, or half a file."""
    with folder() as here:
        path = here / case["file"]
        path.write_bytes(as_bytes(case["data"]))
        if case["via"] == ["load"]:
            counts["read in Python"] += 1
            _load(case, path, counts)
            return
        counts[f"read by {case['via'][0]}"] += 1
        (here / "good.plan.json").write_text(dump_document(plan_document()), encoding="utf-8")
        (here / "good.json").write_text(json.dumps(GRAPH), encoding="utf-8")
        done = remat(*({"FILE": case["file"]}.get(word, word) for word in case["via"]))
        counts["taken" if done.code in (ExitCode.OK, ExitCode.NO) else "refused"] += 1
        whole(here, case["via"], done.code)
        if path.read_bytes() != as_bytes(case["data"]):
            raise Failure(f"{case['via'][0]}: input changed", "")


def _load(case: dict[str, Any], path: Path, counts: Counter[str]) -> None:
    reader = {"plan": load_plan, "rows": _compare}.get(case["kind"], load_graph)
    what = case["kind"]
    try:
        with timed(f"reading a {what}"):
            reader(path)
        counts["taken"] += 1
    except InputError as error:
        counts["refused"] += 1
        for problem in error.problems:
            for text in (problem.message.replace("\n", "\x1f"), problem.hint, problem.pointer):
                clean(f"message on a {what}", text)
    except RematError as error:
        counts["refused"] += 1
        clean(f"message on a {what}", error.message)


def whole(here: Path, via: list[str], code: int) -> None:
    """A Failure if the file that a command wrote is not whole, or there is one after an error."""
    left = [path.name for path in here.iterdir() if path.suffix == ".part"]
    if left:
        raise Failure(f"{via[0]}: litter", f"{left}")
    if "-o" not in via:
        return
    target = here / via[via.index("-o") + 1]
    if target.exists() != (code == ExitCode.OK):
        raise Failure(f"{via[0]}: exit {code} and {'a' if target.exists() else 'no'} file", "")
    if not target.exists():
        return
    text = target.read_text(encoding="utf-8")
    try:
        if target.name.endswith(".plan.json"):
            judged(json.loads(text))
        elif target.suffix == ".json":
            json.loads(text)
        elif target.suffix == ".yaml":
            yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, Wrong) as error:
        raise Failure(f"{via[0]}: wrong {target.name}", f"{error}\n{text[:2000]}") from error
    ends = {".svg": "</svg>", ".html": "</html>", ".dot": "}"}.get(target.suffix, "")
    if not text.rstrip().endswith(ends):
        raise Failure(f"{via[0]}: half a file", text[-200:])
