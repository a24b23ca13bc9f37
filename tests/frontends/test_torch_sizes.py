"""Steps whose batch and length are symbols: every size gives the graph that PyTorch captures there, byte for byte."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import remat_cli as remat
from remat_cli.errors import CaptureFailed, Infeasible, LimitReached
from remat_cli.frontends.torch.capture import symbolic
from remat_cli.frontends.torch.export import export_model
from remat_cli.frontends.torch.families import sized_graph
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.sized import SizedGraph, grid
from remat_cli.plan.replay import replay
from remat_cli.planning.accumulation import in_parts
from remat_cli.planning.buckets import buckets
from remat_cli.planning.fits import WITHOUT, Need
from remat_cli.planning.least_peak import solve_smallest
from remat_cli.planning.lengths import covered, peaks
from remat_cli.planning.max_batch import one_forward
from remat_cli.planning.options import SolveOptions
from remat_cli.planning.solving import solve

POSITIONS = 14
pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Reader(nn.Module):
    """Embeds, attends, and classifies; its positions are a slice of a table that is trained."""

    def __init__(self, width=8):
        super().__init__()
        self.words, self.positions = nn.Embedding(50, width), nn.Parameter(torch.zeros(1, POSITIONS, width))
        self.mix, self.norm = nn.Linear(width, 3 * width), nn.LayerNorm(width)
        self.feed, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, 50)

    def forward(self, tokens, targets):
        x = self.norm(self.words(tokens) + self.positions[:, : tokens.shape[1]])
        for _ in range(2):
            q, k, v = self.mix(x).chunk(3, -1)
            x = x + nn.functional.dropout((q @ k.mT).softmax(-1), 0.1, self.training) @ v
        x = self.back(nn.functional.gelu(self.feed(x)))
        return nn.functional.cross_entropy(x.flatten(0, 1), targets.flatten())


class Pictures(nn.Module):
    """Convolutions with batch norm, which updates its buffers, and a loss that keeps every element."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 3)

    def forward(self, images):
        made = self.last(torch.relu(self.norm(self.first(images))))
        return nn.functional.mse_loss(made, images[..., 2:-2, 2:-2])


def reader(sizes):
    shape = (sizes["batch"], sizes["length"])
    return Reader(), (torch.randint(0, 50, shape), torch.randint(0, 50, shape))


def pictures(sizes):
    return Pictures(), (torch.randn(sizes["batch"], 3, 12, 12),)


def lines(sizes):
    """The length is the height of images: strides, padding and pooling depend on it."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(2))
    return module, (torch.randn(sizes["batch"], 3, sizes["length"], 8),), lambda made: made.square().mean()


def of(build, **sizes):
    return sized_graph(build, sizes, "step", "test", cost="roofline:h100", tell=lambda _: None)


def captured(build, **sizes):
    return export_model(lambda: build(sizes), "step", "test", cost="roofline:h100")


def alike(one, other):
    """Whether two graphs have the same nodes, bytes and costs."""
    parts = ("id", "op", "phase", "inputs", "outputs", "workspace", "recompute", "cost")
    return [[getattr(node, part) for part in parts] for node in one.nodes] == [
        [getattr(node, part) for part in parts] for node in other.nodes
    ] and (one.outputs, one.fixed_memory) == (other.outputs, other.fixed_memory)


@pytest.mark.parametrize("batch", [1, 3])
def test_every_length_is_as_pytorch_captures_it_and_no_peak_is_above_the_proven_one(batch):
    sized = of(reader, batch=batch, length=9)
    longest = POSITIONS - 1  # a slice that is the whole table is another graph
    limits = SolveOptions(time_limit_s=3, threads=1)
    plan = solve_smallest(sized.exact(batch, longest), limits).plan
    assert len(plan.statements) > 3 * len(plan.graph.nodes)
    proven = covered(sized, plan.statements, batch, longest)
    assert proven is not None
    assert proven.lengths == (2, longest)
    by_function = peaks(sized, plan.statements, [batch], range(2, longest + 1))
    for length, peak in zip(range(2, longest + 1), by_function, strict=True):
        static = captured(reader, batch=batch, length=length)
        assert sized.same_bytes(static, batch, length)
        replayed = replay(static, plan.statements)
        assert not replayed.findings
        assert replayed.peak_bytes == peak <= proven.peak_bytes
    assert proven.peak_bytes == replayed.peak_bytes


def test_graphs_of_all_sizes_have_the_costs_that_a_capture_has():
    sized = of(reader, batch=4, length=9)
    for batch, length in ((2, 3), (5, 9), (9, 13), (4, 9)):
        assert alike(sized.exact(batch, length), captured(reader, batch=batch, length=length))


@dataclass(frozen=True)
class Steps:
    """The steps of the small model, with an optimizer's state of 1,000 bytes and no gaps."""

    ones: SizedGraph
    more: SizedGraph

    def sized(self, batch):
        sized = self.ones if batch == 1 else self.more
        return replace(sized, bytes_of=lambda *sizes: sized.bytes_of(*sizes) + self._state(sized))

    def _state(self, sized):
        return np.array([0] * (len(sized.rising) - 1) + [1000])[:, None]

    def need(self, batch, length):
        graph = self.sized(batch).exact(batch, length)
        return Need(graph, {"all that stays": graph.fixed_memory + 1000}, context_bytes=50)

    def rough(self, batch, length):
        return self.sized(2).at(batch, length)


def test_buckets_hold_the_largest_batches_and_fall_with_the_length():
    steps = Steps(of(reader, batch=1, length=9), of(reader, batch=4, length=9))
    memory = no_remat_peak(captured(reader, batch=5, length=9)) + 1050 + 7
    lengths = (5, 9)
    table = buckets(steps, lengths, memory, SolveOptions(time_limit_s=2, threads=1))
    assert [bucket.length for bucket in table] == list(lengths)
    for bucket in table:
        for batch, fits in ((bucket.without.size, True), (bucket.without.too_much, False)):
            assert (no_remat_peak(captured(reader, batch=batch, length=bucket.length)) + 1050 <= memory) is fits
        assert bucket.without.too_much == bucket.without.size + 1
        assert bucket.best.size >= bucket.without.size
        assert bucket.best.size < bucket.best.too_much
        choice = bucket.best.choice
        assert choice.total_bytes <= memory
        assert choice.solved.report.replay.time <= one_forward(choice.plan.graph) * (1 + 1e-9)
        static = captured(reader, batch=bucket.best.size, length=bucket.length)
        replayed = replay(static, choice.plan.statements)
        assert not replayed.findings
        assert replayed.peak_bytes + 1050 == choice.total_bytes
        assert bucket.covered.peak_bytes == replayed.peak_bytes + 1000
    sizes = [bucket.best.size for bucket in table]
    assert sizes == sorted(sizes, reverse=True)
    assert table[1].without.size == 5


@pytest.mark.parametrize("error", [Infeasible, LimitReached])
def test_a_search_that_the_time_ended_says_so(monkeypatch, error):
    def ended(*_, **__):
        raise error("no plan")

    monkeypatch.setattr("remat_cli.planning.buckets.max_batch_of", ended)
    steps = Steps(of(reader, batch=1, length=9), of(reader, batch=4, length=9))
    memory = no_remat_peak(captured(reader, batch=5, length=9)) + 1050
    [bucket] = buckets(steps, (9,), memory, SolveOptions(time_limit_s=2, threads=1))
    assert bucket.best.size + 1 < bucket.best.too_much
    assert bucket.best.cut_short is (error is LimitReached)


def test_parts_of_a_batch_count_the_gradients_that_wait():
    steps = Steps(of(reader, batch=1, length=9), of(reader, batch=4, length=9))
    whole = captured(reader, batch=6, length=9)
    gradients = sum(4 * p.numel() for p in Reader().parameters())
    memory = no_remat_peak(captured(reader, batch=3, length=9)) + 1050 + gradients
    rows = in_parts(steps, 6, 9, memory, SolveOptions(time_limit_s=2, threads=1))
    assert [(row.batch, row.parts) for row in rows] == [(6, 1), (3, 2), (2, 3), (1, 6)]
    assert rows[1].choice.name == WITHOUT
    assert rows[1].choice.total_bytes == memory  # the last byte
    less = in_parts(steps, 6, 9, memory - 1, SolveOptions(time_limit_s=2, threads=1))
    assert less[1].choice is None or less[1].choice.name != WITHOUT
    for row in rows:
        kept = row.choices[0] if row.choices else None
        wait = gradients if row.parts > 1 else 0
        expected = no_remat_peak(captured(reader, batch=row.batch, length=9)) + 1050 + wait
        assert kept is None or kept.total_bytes == expected
        assert row.choice is None or row.choice.total_bytes <= memory
        assert row.cost is None or row.cost == row.parts * row.choice.solved.report.replay.time
    assert (rows[0].choice is None) or rows[0].choice.overhead >= 0
    assert no_remat_peak(whole) > 0


def test_images_vary_by_batch_alone():
    sized = of(pictures, batch=3)
    assert sized.axes == ("batch",)
    for batch in (2, 3, 8):
        assert sized.same_bytes(captured(pictures, batch=batch), batch, 0)
        assert alike(sized.exact(batch, 0), captured(pictures, batch=batch))


def test_sizes_that_are_rounded_are_functions_too():
    sized = of(lines, batch=3, length=20)
    for length in range(8, 24):
        if sized.holds_at(2, length):
            assert sized.same_bytes(captured(lines, batch=2, length=length), 2, length), length
    assert sized.holds_at(2, 17)
    assert sized.holds_at(2, 18)


def test_where_pytorch_makes_another_graph_nothing_is_claimed():
    sized = of(reader, batch=4, length=9)
    batches, lengths = grid([1, 2, 4], [1, 2, POSITIONS - 1, POSITIONS, POSITIONS + 1])
    held = sized.holds(batches, lengths).reshape(3, 5)
    assert held.tolist() == [[False] * 5, *[[False, True, True, False, False]] * 2]
    whole = captured(reader, batch=4, length=POSITIONS)
    assert not sized.same_bytes(whole, 4, POSITIONS)
    plan = solve(sized.exact(4, 9), None, SolveOptions(strategy="keep-all")).plan
    assert covered(sized, plan.statements, 4, POSITIONS) is None
    assert covered(sized, plan.statements, 4, POSITIONS - 1) is not None


def test_a_run_takes_the_peak_that_is_claimed():
    sized = of(reader, batch=4, length=9)
    for length in (5, 12):
        graph = sized.exact(4, length)
        solved = solve_smallest(graph, SolveOptions(time_limit_s=3, threads=1))
        ran = remat.run_plan(solved.plan, steps=1)
        assert ran.memory.measured == solved.report.replay.peak_bytes
        assert ran.identical


def test_a_size_that_is_none_of_the_batch_is_refused():
    def build(sizes):
        return Reader(), tuple(torch.randint(0, 50, (sizes["batch"], 2 * sizes["length"])) for _ in range(2))

    with pytest.raises(CaptureFailed, match=r"dimension 1 of input .* is neither the batch nor the length"):
        of(build, batch=4, length=9)


def test_a_step_that_depends_on_its_length_cannot_vary():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(9, 9)

        def forward(self, x):
            return self.mix(x).mean()

    with pytest.raises(CaptureFailed):
        of(lambda sizes: (Fixed(), (torch.randn(sizes["batch"], sizes["length"]),)), batch=4, length=9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8*b*s + 4*b", True), ("b*s - b", False), ("Max(3*b, s)", True), ("-s", False), ("s**2", True), ("7", True)],
)
def test_what_cannot_fall_is_told_from_what_may(text, expected):
    import sympy

    axes = {"b": sympy.Symbol("batch", positive=True, integer=True)}
    axes["s"] = sympy.Symbol("length", positive=True, integer=True)
    made = sympy.expand(sympy.sympify(text, axes))
    assert symbolic.rises(made) is expected
    found = symbolic.table([made])(*grid(range(2, 6), range(2, 9)))[0].reshape(4, 7)
    falls = (np.diff(found, axis=0) < 0).any() or (np.diff(found, axis=1) < 0).any()
    assert not (expected and falls)


def test_huge_sizes_do_not_wrap_around():
    import sympy

    size = sympy.Symbol("batch", positive=True, integer=True)
    [[found]] = symbolic.table([16 * size**3])(np.array([1 << 30]), np.array([5]))
    assert found == symbolic.MOST_BYTES
