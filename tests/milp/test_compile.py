"""Compiled models against Pyomo's own compiler, number for number."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pyomo.core import Binary, ConcreteModel, Constraint, Objective, Var
from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.milp.checkmate import Formulation, Problem, build, state
from remat_cli.milp.compile import CompiledModel, compile_model
from remat_cli.solvers.base import Request, Termination
from remat_cli.solvers.highs import Highs
from remat_cli.zoo.registry import build_graph


def assert_same(model: Any, compiled: CompiledModel) -> None:
    form = LinearStandardFormCompiler().write(model, mixed_form=True)
    matrix = form.A.tocsr()
    rhs = np.asarray(form.rhs, dtype=np.float64)
    kind = np.array([row.bound_type for row in form.rows])
    arrays = compiled.model
    place = {v.name: column for column, v in enumerate(form.columns)}
    idle = 0
    for v in model.component_data_objects(Var):
        column = compiled.column_of.get(id(v))
        if v.fixed:
            assert column is None
        elif v.name in place:
            assert column == place[v.name]
        else:  # in no row and not in the objective: Pyomo leaves it out
            assert (column, arrays.cost[column]) == (len(place) + idle, 0.0)
            assert column not in arrays.indices
            idle += 1
    assert arrays.columns == len(place) + idle
    arrays = replace(
        arrays,
        cost=arrays.cost[: len(place)],
        lower=arrays.lower[: len(place)],
        upper=arrays.upper[: len(place)],
        integer=arrays.integer[: len(place)],
    )
    assert arrays.offset == form.c_offset[0]
    rows_of: dict[str, list[int]] = {}
    for index, row in enumerate(form.rows):
        rows_of.setdefault(row.constraint.parent_component().name, []).append(index)
    assert {name: rows.tolist() for name, rows in compiled.rows_of.items() if len(rows)} == rows_of
    for ours, theirs in (
        (arrays.cost, form.c.toarray()[0]),
        (arrays.lower, [-np.inf if v.lb is None else v.lb for v in form.columns]),
        (arrays.upper, [np.inf if v.ub is None else v.ub for v in form.columns]),
        (arrays.integer, [v.is_binary() for v in form.columns]),
        (arrays.starts, matrix.indptr),
        (arrays.indices, matrix.indices),
        (arrays.values, matrix.data),
        (arrays.row_lower, np.where(kind <= 0, rhs, -np.inf)),
        (arrays.row_upper, np.where(kind >= 0, rhs, np.inf)),
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("spec", ["unit-chain{n=9}", "linear{n=6}", "feed-forward{depth=4,width=8,batch=2}"])
@pytest.mark.parametrize(
    "formulation", [Formulation(), Formulation(frontier=False, stage_split=2), Formulation(minimize_peak=True)]
)
def test_every_form_compiles_to_what_pyomo_makes_of_it(spec: str, formulation: Formulation) -> None:
    graph = build_graph(spec)
    stated = state(Problem.of(graph, no_remat_peak(graph) * 3 // 4, formulation), Control())
    assert_same(stated, compile_model(stated))


def test_columns_are_called_by_their_keys() -> None:
    graph = build_graph("unit-chain{n=6}")
    stated = build(graph, 5, Formulation(frontier=False), Control())
    names = stated.model.column_names
    assert {place: names[column] for place, column in stated.R.items()} == {(t, i): f"R[{t},{i}]" for t, i in stated.R}
    assert {place: names[column] for place, column in stated.S.items()} == {(t, v): f"S[{t},{v}]" for t, v in stated.S}
    assert list(names[1:3]) == list(names)[1:3]
    peak = build(graph, 5, Formulation(minimize_peak=True), Control()).model
    assert [name for name, cost in zip(peak.column_names, peak.cost, strict=True) if cost] == ["peak"]


def test_every_equation_is_a_constraint_that_reads_like_the_paper() -> None:
    graph = build_graph("unit-chain{n=6}")
    stated = state(Problem.of(graph, 5, Formulation()), Control())
    shown = {str(row): str(row.expr) for rows in stated.component_objects(Constraint) for row in rows.values()}
    reads = {(v, k) for k, node in enumerate(graph.nodes) for v in node.inputs}
    assert (3, 4) in reads
    assert shown["dependencies[5,4,3]"] == "R[5,4]  <=  R[5,3] + S[5,3]"
    assert shown["retention[5,3]"] == "S[5,3]  <=  R[4,3] + S[4,3]"
    assert shown["freeing[4,3,4,7b]"] == "1  <=  1 - R[4,4] + S[5,3] + FREE[4,3,4]"
    assert shown["freeing[4,3,4,7c]"] == "1 - R[4,4] + S[5,3]  <=  2*(1 - FREE[4,3,4])"
    assert shown["usage[2,0]"] == "U[2,0]  ==  S[2,0] + S[2,1] + R[2,0]"


def test_duplicates_fixed_variables_and_constants_compile_as_in_pyomo() -> None:
    model = ConcreteModel()
    model.x = Var(range(6), domain=Binary)
    model.y = Var([6], bounds=(-3, None))
    model.z = Var([7])
    x, y = model.x, model.y[6]
    model.x[2].fix(1)
    model.plain = Constraint(expr=2 * x[0] + 3 * x[2] + y + 1 <= 7)
    model.least = Constraint(expr=x[1] + 4 * y - x[1] * 0.5 >= 1)
    model.nested = Constraint(expr=3 * (1 - x[1]) + 2 >= x[5] - (x[0] + 2 * (y - 1)))
    model.twice = Constraint(expr=x[4] + x[4] + y - y == 2 * x[3])
    model.objective = Objective(expr=3 * x[0] + 2 * x[2] + y + 4)
    assert_same(model, compile_model(model))
    model.true = Constraint(expr=5 * x[2] <= 6)
    assert compile_model(model).model.rows == 4


def test_a_row_that_cannot_hold_makes_the_model_infeasible() -> None:
    model = ConcreteModel()
    model.x = Var(range(2), domain=Binary)
    model.x[0].fix(1)
    model.rows = Constraint(range(2), rule=lambda m, k: (m.x[0] >= 2) if k else (m.x[1] >= 0))
    model.objective = Objective(expr=model.x[1])
    assert Highs().solve(Request(compile_model(model).model)).termination is Termination.INFEASIBLE


def test_what_is_not_linear_is_refused() -> None:
    model = ConcreteModel()
    model.x = Var(range(2), domain=Binary)
    model.objective = Objective(expr=model.x[0] * model.x[1])
    with pytest.raises(ValueError, match="not linear"):
        compile_model(model)


def test_a_row_with_two_sides_is_refused() -> None:
    model = ConcreteModel()
    model.x = Var(range(2), domain=Binary)
    model.objective = Objective(expr=model.x[0])
    model.rows = Constraint(expr=(1, model.x[0] + model.x[1], 2))
    with pytest.raises(ValueError, match="neither an equation nor an inequality with one side"):
        compile_model(model)


def test_fixed_variables_have_no_column_and_unused_ones_the_last() -> None:
    model = ConcreteModel()
    model.x = Var(range(4), domain=Binary)
    model.objective = Objective(expr=model.x[1] + model.x[2])
    model.rows = Constraint(range(1), rule=lambda m, _: m.x[1] + m.x[2] + m.x[3] >= 1)
    model.x[3].fix(1)
    compiled = compile_model(model)
    assert compiled.columns_of(model.x) == {0: 2, 1: 0, 2: 1}
    assert list(compiled.model.column_names) == ["x[1]", "x[2]", "x[0]"]


@pytest.mark.parametrize(
    ("work", "loaded"),
    [
        # Bottleneck stages solve it, which are arrays from the start.
        ("assert remat.solve(graph, '80%', remat.SolveOptions(strategy='optimal')).plan.solver == 'highs'", []),
        ("retention.build(graph, no_remat_peak(graph) * 8 // 10, 1.0, Control()).model()", []),
        ("from remat_cli.strategies.published import checkmate_ilp, checkmate_lp", []),
        (
            "from remat_cli.milp.checkmate import Formulation, build\n"
            "build(graph, no_remat_peak(graph) * 8 // 10, Formulation(), Control())",
            ["pyomo.core"],
        ),
    ],
)
def test_neither_scipy_nor_all_of_pyomo_is_loaded(work: str, loaded: list[str]) -> None:
    code = (
        "import sys\n"
        "import remat_cli as remat\n"
        "from remat_cli.control import Control\n"
        "from remat_cli.graph.analysis import no_remat_peak\n"
        "from remat_cli.milp import retention\n"
        "graph = remat.build_graph('unet{batch=1}')\n"
        f"{work}\n"
        "print(*sorted({'scipy', 'numba', 'pyomo.environ', 'pyomo.core'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == loaded
