"""``-`` in pipes: the answer alone on standard output, and the same input always gives the same bytes."""

import re
from pathlib import Path

import jsonschema
import pytest
from cli_process import GRAPHS, TOY, environment, remat_process

from remat_cli.graph.document import load_schema

GRAPH = Path(TOY).read_text(encoding="utf-8")
RUN = re.compile(r'^ *"run": .*\n', re.MULTILINE)
"""The one part of a plan that may differ: timings and machine facts."""


@pytest.mark.parametrize(("graph", "strategy"), [("toy.yaml", "auto"), ("unet.json", "dtr"), ("unet.json", "twremat")])
def test_two_runs_write_the_same_plan_but_for_its_timings(graph, strategy):
    plans = []
    for hashes in ("1", "2"):  # no order may come from Python's hashes
        done = remat_process(
            *("solve", "-", "-b", "80%", "-o", "-", "-q", "--strategy", strategy, "--seed", "5"),
            stdin=(GRAPHS / graph).read_text(encoding="utf-8"),
            env=environment(PYTHONHASHSEED=hashes),
        )
        assert done.err == ""
        assert done.json()["schema"] == "remat-plan/1"
        plans.append(done.out)
    first, second = (RUN.subn("", text) for text in plans)
    assert first == second
    assert first[1] == 1


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("solve", "-", "-b", "80%", "-o", "-"), "plan"),
        (("solve", "-", "-b", "80%", "--format", "json", "-o", "p.json"), "report"),
        (("solve", "-", "--budgets", "80%,90%", "--format", "json", "-o", "{budget}.json"), "curve"),
        (("compare", "-", "--budgets", "80%", "--strategies", "keep-all,chen-sqrt", "--format", "json"), "comparison"),
        (("max-batch", "-", "--memory", "1GB", "--batch", "1", "--format", "json"), "batch"),
        (("show", "-", "--format", "json"), "graph-summary"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_graph_comes_through_a_pipe_and_nothing_but_a_document_leaves(tmp_path, arguments, kind):
    done = remat_process(*arguments, stdin=GRAPH, cwd=tmp_path)
    document = done.json()
    schema = load_schema(kind)
    if kind != "plan":  # whose schema refers to that of graphs
        jsonschema.Draft202012Validator(schema).validate(document)
    assert document["schema"] == f"remat-{kind}/1"


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("check", "-", "--format", "json"), "checks"),
        (("show", "-", "--format", "json"), "report"),
        (("check", "-", "-", "--format", "json"), "checks"),
        (("explain", "-", "conv1", "--format", "json"), "explanation"),
        (("diff", "-", "plan.json", "--format", "json"), "diff"),
        (("diff", "plan.json", "-", "--format", "json"), "diff"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:3]),
)
def test_a_plan_comes_through_a_pipe_and_nothing_but_a_document_leaves(remat, arguments, kind):
    remat("solve", TOY, "-b", "80%", "-q", "-o", "plan.json")
    done = remat_process(*arguments, stdin=Path("plan.json").read_text(encoding="utf-8"))
    assert done.err == ""
    document = done.json(kind)
    assert document["schema"] == f"remat-{kind}/1"
