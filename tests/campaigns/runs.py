"""Damaged plans of a PyTorch step, for ``remat run``: nothing but a clean error may come of them, nor a crash."""

import contextlib
import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from campaigns.damage import as_bytes, as_text, damaged_data, damaged_document
from campaigns.inprocess import folder, remat
from remat_cli.errors import ExitCode, RematError
from remat_cli.graph.document import Document
from remat_cli.graph.io import graph_from_document, graph_sha256

MODEL = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(3)])
        self.norm = torch.nn.BatchNorm1d(8)
        self.drop = torch.nn.Dropout(0.5)
    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.drop(self.norm(x)).square().mean()
def step():
    return Net(), (torch.randn(16, 8),)
"""


@functools.cache
def plan() -> str:
    """A plan of the model's training step, with recomputation."""
    with folder() as here:
        (here / "model.py").write_text(MODEL, encoding="utf-8")
        for arguments in (
            ("export", "torch:model.py:step", "--cost", "flops", "-o", "step.json"),
            ("solve", "step.json", "-b", "80%", "-o", "step.plan.json"),
            ("run", "step.plan.json", "--steps", "1"),
        ):
            done = remat(*arguments)
            if done.code != ExitCode.OK:
                raise RuntimeError(f"{arguments} of an undamaged model: {done.err}")
        return Path("step.plan.json").read_text(encoding="utf-8")


_PARTS = ("payload", "payload", "payload", "metadata", "metadata", "nodes")


def inputs() -> st.SearchStrategy[dict[str, Any]]:
    """A damaged plan; most have the digest of their damaged graph, as who means harm would see to."""
    plan()
    return _damaged_plans()


@st.composite
def _damaged_plans(draw: st.DrawFn) -> dict[str, Any]:
    data = json.loads(plan())
    if not draw(st.integers(0, 5)):
        return {"plan": as_text(draw(damaged_document(data, "json")))}
    graph, part = data["graph"], draw(st.sampled_from(_PARTS))
    if part == "payload":
        node = draw(st.sampled_from(graph["nodes"]))
        node["payload"] = draw(damaged_data(node["payload"]))
    else:
        graph[part] = draw(damaged_data(graph[part]))
    with contextlib.suppress(RematError):  # then the graph is refused before anybody looks at its digest
        data["graph_sha256"] = graph_sha256(graph_from_document(Document("graph", graph)))
    return {"plan": json.dumps(data)}


def check(case: dict[str, Any], counts: Counter[str]) -> None:
    """Run the plan; a Failure if anything but a clean answer comes of it."""
    with folder() as here:
        (here / "in.plan.json").write_bytes(as_bytes(case["plan"]))
        done = remat("run", "in.plan.json", "--steps", "1")
    counts["ran" if done.code in (ExitCode.OK, ExitCode.NO) else "refused"] += 1
