"""The report on a pipeline."""

from dataclasses import replace

import jsonschema
from hypothesis import given
from report_cases import STYLES
from test_report_any import assert_fits

from remat_cli.graph.document import load_schema
from remat_cli.reports.pipelines import (
    ChoiceFacts,
    DeviceFacts,
    PipelineFacts,
    StageFacts,
    pipeline_document,
    pipeline_text,
)
from remat_cli.reports.style import Style

STAGE = StageFacts(0, "block", 0, 2, 10, None, 50, (1.0, 2.5), 3.0, "optimal", "block.stage0.plan.json")
DEVICE = DeviceFacts(100, 60, 3.5, 3.4, 0.75)
FACTS = PipelineFacts(
    schedule="1f1b",
    microbatches=1,
    transfer=0.0,
    cost_unit="us",
    stages=(STAGE, replace(STAGE, stage=1, device=1, in_flight=1, costs=(1.0, 2.0), path="")),
    devices=(DEVICE, DEVICE),
    makespan=10.0,
    lower_bound=9.0,
    bubble=0.25,
    others=(
        ChoiceFacts("nothing", (120, 60), False, 8.0),
        ChoiceFacts("the whole forward pass", (50, 50), True, 12.5),
        ChoiceFacts("everywhere the same", None, False, None),
    ),
    assumptions=("inputs count once",),
    outcome="finished",
)


def test_text():
    text = pipeline_text(FACTS, Style(width=100, color=False, unicode=True))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "fits: a step of 1 microbatch takes 10 us" in text
    assert "no choice of plans in the order of the graphs takes less than 9 us (gap 10.0%)" in text
    assert any("nothing 120 B" in line and line.endswith("8 us -20.0%") for line in lines)
    assert any("the whole forward pass 50 B" in line and line.endswith("12.5 us +25.0%") for line in lines)
    assert any(line.startswith("everywhere the same") and "us" not in line for line in lines)
    assert any(line.startswith("0 block 0 2 10 B 50 B 16.7% optimal") for line in lines)
    assert any(line.startswith("1 block 1 1 10 B 50 B 0% optimal") for line in lines)
    assert "stage 0 block.stage0.plan.json" in lines
    assert "assumed inputs count once" in lines


@given(STYLES)
def test_no_line_is_longer_than_the_terminal(style):
    long = replace(STAGE, name="stage-of-a-model-with-a-long-name\u202e", path="plans/of/a/model/" + 20 * "long/")
    assert_fits(pipeline_text(replace(FACTS, stages=(long,) * 3), style), style)


def test_document():
    jsonschema.validate(pipeline_document(FACTS), load_schema("pipeline"))
    document = pipeline_document(FACTS)
    assert document["gap"] == 0.1
    assert [stage["plan"] for stage in document["stages"]] == ["block.stage0.plan.json", None]
    assert document["stages"][0]["costs"] == {"forward": 1.0, "backward": 2.5}
    assert document["others"][2]["needed"] is None
    weights = replace(STAGE, weights_held_bytes=4, costs=(1.0, 1.0, 1.0))
    split = pipeline_document(replace(FACTS, stages=(weights,)))["stages"][0]
    assert split["costs"]["weights"] == 1.0
    assert split["held_for_weights"] == 4
    free = pipeline_document(replace(FACTS, makespan=0.0, lower_bound=0.0, stages=(replace(STAGE, base_cost=0.0),)))
    assert free["gap"] == 0.0
    assert free["stages"][0]["overhead"] is None
