"""What is written and logged is what is solved."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import highspy
import pytest
from families import varied_graph

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak, peak_bound
from remat_cli.solvers.base import Outcome, Request
from remat_cli.solvers.highs import Highs
from remat_cli.strategies.base import Context, Found, Task
from remat_cli.strategies.incumbent import Incumbent
from remat_cli.strategies.published.checkmate_ilp import CheckmateIlp
from remat_cli.strategies.retention.solving import Retention
from remat_cli.strategies.searches import Optimal
from remat_cli.zoo.registry import build_graph

CHAIN = build_graph("unit-chain{n=17}")
LAYERS = build_graph("linear{n=8}")


@dataclass(frozen=True, slots=True)
class Counted(Highs):
    """HiGHS, with a list of what it was asked."""

    asked: ClassVar[list[Request]] = []

    def solve(self, request: Request) -> Outcome:
        self.asked.append(request)
        return Highs.solve(self, request)


def read(path: Path) -> tuple[float, float]:
    """Optimum of a model file, by HiGHS alone, in the unit that its first line tells; and that unit."""
    unit = float(path.read_text(encoding="ascii").splitlines()[0].rsplit(" ", 1)[1])
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("mip_rel_gap", 0.0)
    assert highs.readModel(str(path)) == highspy.HighsStatus.kOk
    highs.run()
    return highs.getInfo().objective_function_value * unit, unit


@pytest.mark.parametrize("suffix", [".lp", ".mps"])
@pytest.mark.parametrize("graph", [CHAIN, LAYERS], ids=["chain", "layers"])
def test_the_file_of_checkmates_milp_has_the_optimum_of_the_run(graph, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    budget = (peak_bound(graph).bytes + no_remat_peak(graph)) // 2
    found = CheckmateIlp().solve(Task(graph, budget), Context(Control(), Highs(), gap=0.0, write_model=path))
    assert isinstance(found, Found)
    cost = sum(graph.nodes[k].cost for k in found.schedule.computes)
    assert read(path)[0] == pytest.approx(cost, rel=1e-6)


def test_the_file_of_the_relaxation_is_the_relaxation(tmp_path: Path) -> None:
    path = tmp_path / "model.lp"
    found = CheckmateIlp(relax=True).solve(Task(CHAIN, 5), Context(Control(), Highs(), write_model=path))
    assert read(path)[0] == pytest.approx(found.bounds[0].cost, rel=1e-6)


@pytest.mark.parametrize("suffix", [".lp", ".mps"])
def test_the_file_of_a_retention_model_is_that_of_its_last_solve(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    with_rows = 0
    for seed in (*range(1070, 1080), 1171, 1193):
        graph = varied_graph(seed)
        budget = max(peak_bound(graph).bytes, no_remat_peak(graph) - 1)
        Counted.asked.clear()
        best = Incumbent.of(Task(graph, budget), Context(Control(), Counted(), gap=0.0, threads=1))
        model = Retention.over(best, None)
        outcome = model.solve(Control())
        if outcome is None or outcome.objective is None:
            continue
        model.write(path)
        assert read(path)[0] == pytest.approx(outcome.objective * model.stated.cost_scale, rel=1e-6)
        highs = highspy.Highs()
        highs.setOptionValue("output_flag", False)
        highs.readModel(str(path))
        last = Counted.asked[-1].model
        assert (highs.getNumCol(), highs.getNumRow()) == (last.columns, last.rows)
        with_rows += last.rows > model.stated.model().rows
    assert with_rows > 2, "rows inside stages were needed, and are in the file"


def test_a_model_that_was_never_solved_can_be_written(tmp_path: Path) -> None:
    best = Incumbent.of(Task(CHAIN, 5), Context(Control(), Highs()))
    model = Retention.over(best, None)
    model.write(tmp_path / "model.lp")
    assert read(tmp_path / "model.lp")[0] <= 22 + 1e-6


def test_the_log_has_every_solve_of_the_optimal_strategy(tmp_path: Path) -> None:
    """Bounds, prices, cuts, windows and proofs included."""
    log = tmp_path / "log.txt"
    Counted.asked.clear()
    for seed in range(1070, 1090):
        graph = varied_graph(seed)
        budget = max(peak_bound(graph).bytes, no_remat_peak(graph) - 3)
        Optimal().solve(Task(graph, budget), Context(Control.within(20), Counted(), threads=1, solver_log=log))
    assert len(Counted.asked) > 20
    assert all(request.log_path == log for request in Counted.asked)
    assert log.read_text(encoding="utf-8").count("remat: a model of ") == len(Counted.asked)


def test_a_request_says_what_the_context_says(tmp_path: Path) -> None:
    rng = random.Random(1)
    best = Incumbent.of(Task(CHAIN, 5), Context(Control(), Highs()))
    model = Retention.over(best, None).model
    context = Context(Control(), Highs(), gap=0.01, threads=3, seed=rng.randrange(100), solver_log=tmp_path / "l")
    request = context.request(model, context.control, start=model.lower)
    assert (request.gap, request.threads, request.seed) == (0.01, 3, context.seed)
    assert request.log_path == tmp_path / "l"
    assert request.start is model.lower
    assert context.request(model, context.control, gap=0.5).gap == 0.5


def test_a_solver_without_warm_starts_gets_no_start() -> None:
    @dataclass(frozen=True, slots=True)
    class Cold(Highs):
        warm_start: ClassVar[bool] = False

    best = Incumbent.of(Task(CHAIN, 5), Context(Control(), Highs()))
    model = Retention.over(best, None).model
    assert Context(Control(), Cold()).request(model, Control(), start=model.lower).start is None
