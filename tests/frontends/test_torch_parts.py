"""Steps that PyTorch captures in parts, or only after their first call, and code that logs."""

import copy
import json
import logging
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_plans import plan_of, repeated, run_plan

from remat_cli.cli.main import run
from remat_cli.errors import CaptureFailed, NotOneGraph
from remat_cli.frontends.torch.capture.refusals import read_refusal, refusal_of
from remat_cli.frontends.torch.export import export_model, export_parts
from remat_cli.frontends.torch.train.backend import remat_backend

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # PyTorch itself looks at it where what crosses a graph break enters a compiled part.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

WIDTH = 16
LOCK = threading.Lock()
LOGGER = logging.getLogger("remat_tests.model")


class Net(nn.Module):
    """Two layers; ``between`` is what happens between them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        x = self.between(self.first(x).tanh())
        return self.second(x).square().mean()

    def between(self, x):
        raise NotImplementedError


class Logs(Net):
    """As a model whose loss function has no name in its configuration."""

    def between(self, x):
        LOGGER.warning("the shape is %s", x.shape)
        LOGGER.warning_once("the default is used")
        return x.sin()


class Installs(Net):
    """Its first call sets something up under a lock, as the hooks that collect hidden states."""

    installed = False

    def between(self, x):
        if not self.installed:
            with LOCK:
                self.installed = True
        return x.sin()


class Prints(Net):
    def between(self, x):
        print("a line of the model")  # noqa: T201 - as models do
        return x.sin()


class Branches(Net):
    def between(self, x):
        return x.sin() if x.sum() > 1e9 else x.cos()


class Repeats(Net):
    """A function that PyTorch compiles once and runs twice."""

    def between(self, x):
        for _ in range(2):
            torch._dynamo.graph_break()
            x = self.repeated(x)
        torch._dynamo.graph_break()
        return x

    @torch._dynamo.disable(recursive=False)
    def repeated(self, x):
        return self.inner(x)

    def inner(self, x):
        return self.second(x).sin()


class Writes(Net):
    """A part of its own writes into what the part before has made, and its gradient flows on."""

    def between(self, x):
        torch._dynamo.graph_break()
        x.index_add_(0, torch.arange(4), self.second(x[4:].clone()))
        torch._dynamo.graph_break()
        return x


class Locked(Net):
    """Code between the parts computes something as well."""

    def between(self, x):
        with LOCK:
            return x.sin()


def by_hand(graph):
    """A plan with many recomputations."""
    return plan_of(graph, repeated(graph, share=0.3))


def of(kind):
    def build():
        return kind(), torch.randn(8, WIDTH)

    build.__name__ = kind.__name__
    return build


@pytest.fixture(autouse=True)
def once(monkeypatch):
    """What libraries add to loggers."""

    def warning_once(self, *args):
        self.warning(*args)

    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)


def exported(kind):
    told = []
    graphs = export_parts(of(kind), kind.__name__, "torch:x", tell=told.append)
    return graphs, told


def trained(kind, graphs, *, warm=False):
    """Whether two steps by plan, with many recomputations, equal eager steps bit for bit."""
    torch.manual_seed(0)
    eager, x = of(kind)()
    if warm:
        eager(x)
    planned = copy.deepcopy(eager)
    step = torch.compile(planned, backend=remat_backend(*map(by_hand, graphs)), dynamic=False)
    same = []
    for _ in range(2):
        eager.zero_grad()
        planned.zero_grad()
        wanted, found = eager(x), step(x)
        wanted.backward()
        found.backward()
        same.append(torch.equal(wanted, found))
        for name in ("first.weight", "first.bias", "second.weight", "second.bias"):
            same.append(torch.equal(eager.get_parameter(name).grad, planned.get_parameter(name).grad))
    return all(same)


def test_code_that_logs_is_one_graph_in_export_and_in_training():
    [graph], told = exported(Logs)
    assert told == []
    assert "part" not in graph.metadata
    assert export_model(of(Logs), "Logs", "torch:x") == graph
    assert run_plan(by_hand(graph), steps=1).identical
    assert trained(Logs, [graph])


def test_what_a_first_call_does_is_no_reason_to_refuse():
    [graph], told = exported(Installs)
    assert told == []
    [note, *_] = graph.metadata["notes"]
    assert "the first call of the model does something that later calls do not (test_torch_parts.py:" in note
    assert "in between: Unsupported context manager)" in note
    assert "call the model once before you compile it" in note
    assert {"tanh", "sin"} <= {node.op for node in graph.nodes}
    assert trained(Installs, [graph], warm=True)


def test_a_part_that_remat_cannot_plan_is_named():
    graphs, _ = exported(Writes)
    assert len(graphs) == 2
    notes = [note for graph in graphs for note in graph.metadata["notes"]]
    [note] = [note for note in notes if "runs without a plan" in note]
    assert "the step writes into the tensor captured" in note


@pytest.mark.parametrize(
    ("kind", "ends", "makers"),
    [
        (Prints, "in between: Failed to trace builtin operator: Dynamo does not know how to trace", [0, 1]),
        (Locked, "in between: Unsupported context manager: Dynamo does not know how to enter a `lock`", [None]),
    ],
)
def test_parts_say_why_they_end_and_what_crosses(kind, ends, makers, capsys):
    """Behind ``print`` the rest of the inner function is a part; within the lock, nothing is captured."""
    graphs, told = exported(kind)
    assert told == []
    count = 1 + len(makers)
    assert [graph.name for graph in graphs] == [f"{kind.__name__}.{k}" for k in range(count)]
    parts = [graph.metadata["part"] for graph in graphs]
    assert [(part["number"], part["parts"], part["runs"]) for part in parts] == [(k, count, 1) for k in range(count)]
    assert parts[0]["ends"].startswith("test_torch_parts.py:")
    assert ends in parts[0]["ends"]
    assert parts[0]["takes"] == []
    for part, graph, maker in zip(parts[1:], graphs[1:], makers, strict=True):
        assert part["ends"] == ""
        [taken] = part["takes"]
        assert (taken["bytes"], taken["from"]) == (8 * WIDTH * 4, maker)
        captured = [place["name"] for place in graph.metadata["places"] if place["kind"] == "captured"]
        assert captured == [taken["name"]]
        assert graph.metadata["notes"] == []
    [note] = graphs[0].metadata["notes"]
    assert note.startswith("2 of 6 parameters (24 B), such as unused.weight, have no part in a graph: ")
    for graph in graphs:
        ran = run_plan(by_hand(graph), steps=1)
        assert ran.identical
        assert ran.memory.predicted == ran.memory.measured
    assert trained(kind, graphs)
    capsys.readouterr()


def test_a_way_that_depends_on_numbers_is_followed_with_real_tensors():
    before = torch.get_rng_state()
    graphs, told = exported(Branches)
    assert torch.equal(before, torch.get_rng_state())
    assert len(graphs) == 3
    assert "cos" in {node.op for node in graphs[1].nodes}
    [text] = told
    assert "the way that the step takes depends on numbers (test_torch_parts.py:" in text
    assert "real tensors" in text
    assert any("without a backward pass, which needs no plan" in note for note in graphs[0].metadata["notes"])
    assert trained(Branches, graphs)


def test_a_part_that_runs_twice_is_one_graph():
    graphs, _ = exported(Repeats)
    assert [graph.metadata["part"]["runs"] for graph in graphs] == [1, 2, 1]
    assert trained(Repeats, graphs)


def test_one_graph_is_asked_for_and_there_are_two():
    with pytest.raises(NotOneGraph, match=r"could not be captured: test_torch_parts\.py:\d+ in between: Failed"):
        export_model(of(Prints), "x", "torch:x")


class Fails(Net):
    def between(self, x):
        print("so PyTorch divides it")  # noqa: T201 - as models do
        return x @ x


def test_an_error_behind_a_graph_break_is_the_users_own(capsys):
    with pytest.raises(
        CaptureFailed, match=r"test_torch_parts\.py:\d+ in \w+: .*must have same reduction dim"
    ) as raised:
        exported(Fails)
    assert "without remat" in raised.value.hint
    capsys.readouterr()


class Eager(nn.Module):
    """PyTorch runs its layers as they are: there is a graph break inside of its own loop over them."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH, momentum=None))

    def forward(self, x):
        return self.layers(x).square().mean()


def test_a_step_of_which_no_graph_reads_a_parameter_is_refused():
    with pytest.raises(CaptureFailed, match=r"could not be captured: ") as raised:
        exported(Eager)
    assert "captures no part of the step that reads a parameter that trains" in raised.value.hint


class Begins(Net):
    """One graph only, since nothing is computed before the graph break."""

    def forward(self, x):
        print("nothing to capture yet")  # noqa: T201 - as models do
        return super().forward(x)

    def between(self, x):
        return x.sin()


def test_a_single_part_has_the_name_of_the_step_and_says_what_it_lacks(capsys):
    [graph], _ = exported(Begins)
    assert graph.name == "Begins"
    assert graph.metadata["part"]["parts"] == 1
    note = graph.metadata["notes"][0]
    assert note.startswith("the graph is not the whole step: test_torch_parts.py:")
    assert "in forward: Failed to trace builtin operator" in note
    assert trained(Begins, [graph])
    capsys.readouterr()


SOURCE = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64)])

    def forward(self, x):
        x = self.layers[0](x).tanh()
        print("a line of the model")
        return self.layers[1](x).square().mean()

def build():
    return Net(), torch.randn(128, 64)
"""


def test_the_command_writes_a_file_for_each_part_and_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SOURCE, encoding="utf-8")
    Path("step.json").write_text("of another day", encoding="utf-8")
    assert run(["export", "torch:train.py:build", "-o", "step.json"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "a line of the model" in said.err
    for words in (
        "wrote step.0.json: build.0, ",
        "wrote step.1.json: build.1, ",
        "step.json was there before, and is not of this export",
        "PyTorch divides the step into 2 parts",
        "32.77 kB of part 0",
        "part 0 ends",
        "train.py:11 in forward",
        "remat_backend",
    ):
        assert words in said.err
    assert Path("step.json").read_text(encoding="utf-8") == "of another day"
    assert json.loads(Path("step.1.json").read_text(encoding="utf-8"))["name"] == "build.1"
    for k in (0, 1):
        assert run(["solve", f"step.{k}.json", "--budget", "100%"]) == 0
        assert run(["run", f"step.{k}.plan.json", "--steps", "1"]) == 0
    capsys.readouterr()


def test_standard_output_takes_one_graph(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SOURCE, encoding="utf-8")
    assert run(["export", "torch:train.py:build"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "divides the step into 2 parts, and standard output takes one graph" in said.err
    assert "-o step.json writes step.0.json" in said.err


TEXT = """\
Data-dependent branching
  Explanation: Detected a branch. Dynamo does not follow it.

      The condition is computed as follows:
        gt = gt(sum_1, 0)

  Hint: Use `torch.cond` to express
  control flow.
  Hint: This is fundamental.

  Developer debug context: attempted to jump with TensorVariable()

 For more details about this graph break, please visit: https://meta-pytorch.github.io/x

from user code:
   File "/home/me/model.py", line 12, in forward
"""


def test_what_pytorch_says_is_told_in_lines():
    refusal = read_refusal(TEXT, [("/home/me/model.py", 12, "forward"), (torch.__file__, 3, "relu")])
    assert refusal.line() == "model.py:12 in forward: Data-dependent branching"
    assert refusal.details() == [
        "  PyTorch: Detected a branch. Dynamo does not follow it.",
        "           The condition is computed as follows:",
        "           gt = gt(sum_1, 0)",
        "  PyTorch's hint: Use `torch.cond` to express control flow.",
        "  PyTorch's hint: This is fundamental.",
    ]
    assert refusal.sentence().endswith("Data-dependent branching: Detected a branch. Dynamo does not follow it.")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "it cannot be captured"),
        ("x" * 1000, "x" * 400 + " ..."),
        ("generic_jump TensorVariable()", "a branch depends on the numbers in a tensor"),
    ],
)
def test_what_says_little_is_told_too(text, line):
    refusal = read_refusal(text, [])
    assert refusal.line() == line
    assert refusal.details() == []


def test_numbers_that_are_missing_while_a_graph_is_compiled_are_told_in_one_line():
    """PyTorch adds what it executes, and where in the user's code that is."""
    error = torch._subclasses.fake_tensor.DataDependentOutputException(
        "aten._local_scalar_dense.default\n\nWhile executing %padded : [num_users=2] = call_function[target=pad]\n"
        'Original traceback:\n  File "/home/me/model.py", line 12, in forward\n    padded = pad(x, (0, width))\n'
    )
    line = "model.py:12 in forward: what it does depends on the numbers in a tensor (aten._local_scalar_dense.default)"
    assert refusal_of(error).line() == line


def test_a_resumed_function_has_its_own_name():
    refusal = read_refusal("Something", [("/home/me/model.py", 12, "torch_dynamo_resume_in_forward_at_9")])
    assert refusal.line() == "model.py:12 in forward: Something"


def test_the_message_of_a_refusal_has_lines_that_are_not_cut():
    with pytest.raises(NotOneGraph) as raised:
        export_model(of(Branches), "x", "torch:x")
    first, *others = raised.value.message.splitlines()
    assert first.startswith("the model could not be captured: test_torch_parts.py:")
    assert first.endswith("Data-dependent branching")
    assert any(line.startswith("  PyTorch: Detected data-dependent branching") for line in others)
    assert any(line.startswith("  PyTorch's hint: ") for line in others)
    assert all("..." not in line[-4:] for line in others)
    assert "Explanation:" not in raised.value.message
