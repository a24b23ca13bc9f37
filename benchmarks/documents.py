"""Reading and writing documents.

Graphs whose nodes have three inputs each, and a plan with half as many recomputations as nodes. *Load* is the work of a
command, from the file to the checked graph or plan, once in a fresh process. The steps below it are measured one by one
afterwards. For comparison there is the bare parser (`json.loads`, or `yaml.load` with PyYAML's C loader), which knows
neither schema nor graph.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, Target, columns
from benchmarks.measure import call_or_fail, largest, median, rounded, timed, together

_TARGET = 20_000
_KINDS = {"graph, JSON": "graph.json", "graph, YAML": "graph.yaml", "plan, JSON": "plan.json"}
_NODES = {"graph, JSON": _TARGET, "graph, YAML": 2_000, "plan, JSON": _TARGET}
_STEPS = {
    "load": "load",
    "parser": "the bare parser alone",
    "read": "read the file",
    "parse": "parse, refusing what documents may not hold",
    "validate": "hold against the schema",
    "build": "build the graph",
    "statements": "build the plan, digest included",
    "digest": "digest",
    "dump": "write as text",
}

TABLES = (
    Table(
        "steps",
        "Time",
        (
            Column("document", "document"),
            Column("nodes", "nodes", "count"),
            Column("step", "step"),
            Column("wall", "time", "seconds"),
            Column("ratio", "beside the bare parser", "ratio"),
        ),
    ),
    Table(
        "sizes",
        "Size and memory",
        (
            Column("document", "document"),
            Column("nodes", "nodes", "count"),
            *columns("bytes", bytes="file", load_bytes="memory to load", parser_bytes="memory of the bare parser"),
        ),
        "Memory is that of the whole process, Python included.",
    ),
)
TARGETS = (
    Target(
        "a 20,000-node JSON graph loads and validates in less than 3 s",
        "steps",
        {"document": "graph, JSON", "nodes": _TARGET, "step": _STEPS["load"]},
        "wall",
        3.0,
    ),
)


def run(session: Session) -> list[Row]:
    rows: list[Row] = []
    for document, nodes in _NODES.items():
        n = 200 if session.quick else nodes
        session.say(f"{document}, {n} nodes")
        path = session.folder / _KINDS[document]
        call_or_fail("benchmarks.documents:make", path=str(path), n=n)
        calls = {
            name: [call_or_fail(f"benchmarks.documents:{name}", path=str(path)) for _ in range(session.times(3))]
            for name in ("load", "parse_barely", "step_by_step")
        }
        walls: dict[str, Any] = {}
        for runs in calls.values():
            walls |= together([called.values for called in runs])
        bare = median(walls["parser"])
        rows += [
            {
                "table": "steps",
                "document": document,
                "nodes": n,
                "step": words,
                "wall": walls[step],
                "ratio": rounded(median(walls[step]) / bare),
            }
            for step, words in _STEPS.items()
            if step in walls
        ]
        rows.append(
            {
                "table": "sizes",
                "document": document,
                "nodes": n,
                "bytes": path.stat().st_size,
                "load_bytes": largest(calls["load"]),
                "parser_bytes": largest(calls["parse_barely"]),
            }
        )
    return rows


def make(path: str, n: int) -> None:
    """Write the document that ``path`` asks for."""
    from benchmarks.inputs import case, plan_of, random_dag
    from remat_cli.graph.io import dump_document, graph_to_document
    from remat_cli.plan.io import plan_to_document

    if path.endswith("plan.json"):
        text = dump_document(plan_to_document(plan_of(*case("random DAG", n))))
    elif path.endswith(".json"):
        text = dump_document(graph_to_document(random_dag(n)))
    else:
        import yaml

        text = yaml.dump(graph_to_document(random_dag(n)), Dumper=yaml.CSafeDumper, sort_keys=True)
    Path(path).write_text(text, encoding="utf-8")


def load(path: str) -> dict[str, float]:
    """Load as a command does; imports are not counted, the making of the validator is."""
    from remat_cli.graph.io import load_graph
    from remat_cli.plan.io import load_plan

    return {"load": timed(lambda: (load_plan if path.endswith("plan.json") else load_graph)(path))[0]}


def parse_barely(path: str) -> dict[str, float]:
    """The parser alone."""
    text = Path(path).read_text(encoding="utf-8")
    if path.endswith(".json"):
        return {"parser": timed(lambda: json.loads(text))[0]}
    import yaml

    return {"parser": timed(lambda: yaml.load(text, Loader=yaml.CSafeLoader))[0]}


def step_by_step(path: str) -> dict[str, float]:
    """Every step of loading and writing by itself, after a first load has made the validators."""
    from remat_cli.files import read_text
    from remat_cli.graph.document import parse_document, validate
    from remat_cli.graph.io import dump_document, graph_from_document, graph_sha256, graph_to_document
    from remat_cli.plan.io import load_plan, plan_from_document, plan_to_document

    seconds: dict[str, float] = {}
    is_plan = path.endswith("plan.json")
    load(path)
    seconds["read"], (text, source) = timed(lambda: read_text(path))
    format_ = "json" if path.endswith(".json") else "yaml"
    seconds["parse"], document = timed(lambda: parse_document(text, source, format_))
    pointer = "/graph" if is_plan else ""
    seconds["validate"], _ = timed(lambda: validate(document, "plan" if is_plan else "graph"))
    of_graph_s = timed(lambda: validate(document, "graph", pointer))[0]
    whole_s, graph = timed(lambda: graph_from_document(document, pointer))
    seconds["build"] = max(0.0, whole_s - of_graph_s)
    if is_plan:
        seconds["validate"] += of_graph_s
        plan_s = timed(lambda: plan_from_document(document))[0]
        seconds["statements"] = max(0.0, plan_s - seconds["validate"] - seconds["build"])
        plan, _ = load_plan(path)
        seconds["dump"], _ = timed(lambda: dump_document(plan_to_document(plan)))
        return seconds
    seconds["digest"], _ = timed(lambda: graph_sha256(graph))
    seconds["dump"], _ = timed(lambda: dump_document(graph_to_document(graph)))
    return seconds
