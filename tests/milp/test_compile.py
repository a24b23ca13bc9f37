"""Compiled models against Pyomo's own compiler, number for number."""

from __future__ import annotations

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
from remat_cli.milp import retention
from remat_cli.milp.checkmate import Formulation
from remat_cli.milp.checkmate import build as build_checkmate
from remat_cli.milp.compile import Block, Compiled, append_block, compile_model
from remat_cli.mip import Row
from remat_cli.solvers.base import Request, Termination
from remat_cli.solvers.highs import Highs
from remat_cli.zoo.registry import build_graph


def assert_same(model: Any, compiled: Compiled) -> None:
    form = LinearStandardFormCompiler().write(model, mixed_form=True)
    matrix = form.A.tocsr()
    rhs = np.asarray(form.rhs, dtype=np.float64)
    kind = np.array([row.bound_type for row in form.rows])
    arrays = compiled.model
    place = {v.name: column for column, v in enumerate(form.columns)}
    idle = 0
    for v in model.component_data_objects(Var):
        column = compiled.column_of[v.index()]
        if v.fixed:
            assert column == -1
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


@pytest.mark.parametrize("spec", ["unit-chain{n=9}", "linear{n=6}", "unet{batch=1}"])
def test_every_formulation_compiles_to_what_pyomo_makes_of_it(spec: str) -> None:
    graph = build_graph(spec)
    budget = no_remat_peak(graph) * 3 // 4
    control = Control()
    stated: list[Any] = [
        retention.build(graph, budget, 1.0, control),
        retention.build(graph, budget, None, control),
    ]
    if len(graph.nodes) < 30:
        forms = (Formulation(), Formulation(frontier=False, stage_split=2), Formulation(minimize_peak=True))
        stated += [build_checkmate(graph, budget, form, control) for form in forms]
    for model in stated:
        assert_same(model.model, model.compiled())


def test_columns_are_called_by_their_keys() -> None:
    graph = build_graph("unit-chain{n=6}")
    stated = retention.build(graph, 5, None, Control())
    compiled = stated.compiled()
    named = {(t, i): compiled.model.column_names[compiled.column_of[number]] for (t, i), number in stated.R.items()}
    assert named == {(t, i): f"R[{t},{i}]" for t, i in stated.R}
    assert list(compiled.model.column_names[1:3]) == list(compiled.model.column_names)[1:3]
    peak = build_checkmate(graph, 5, Formulation(minimize_peak=True), Control()).compiled().model
    assert [name for name, cost in zip(peak.column_names, peak.cost, strict=True) if cost] == ["peak[0]"]


def test_duplicates_fixed_variables_constants_and_ranges_compile_as_in_pyomo() -> None:
    model = ConcreteModel()
    model.x = Var(range(6), domain=Binary)
    model.y = Var([6], bounds=(-3, None))
    model.z = Var([7])
    x, y = model.x, model.y[6]
    model.x[2].fix(1)
    model.plain = Constraint(expr=2 * x[0] + 3 * x[2] + y + 1 <= 7)
    model.ranged = Constraint(expr=(1, x[1] + 4 * y - x[1] * 0.5, 9))
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


def test_a_variable_whose_index_is_not_its_number_is_refused() -> None:
    model = ConcreteModel()
    model.x = Var(range(2), domain=Binary)
    model.y = Var(range(2), domain=Binary)
    model.objective = Objective(expr=model.x[0] + model.y[0])
    with pytest.raises(ValueError, match="not its number"):
        compile_model(model)


def test_a_block_out_of_turn_or_over_unknown_variables_is_refused() -> None:
    model = ConcreteModel()
    model.x = Var(range(3), domain=Binary)
    model.objective = Objective(expr=model.x[0] + model.x[1])
    model.rows = Constraint(range(1), rule=lambda m, _: m.x[0] + m.x[1] >= 1)
    model.x[2].fix(1)
    compiled = compile_model(model)
    assert compiled.column_of.tolist() == [0, 1, -1]
    more = append_block(compiled, Block(3, 1, (Row([1, 3], [1.0, -1.0], 0.0, 1.0),)))
    assert more.column_of.tolist() == [0, 1, -1, 2]
    assert more.model.indices[-2:].tolist() == [1, 2]
    assert (more.model.lower[2], more.model.upper[2], more.model.integer[2]) == (0.0, 1.0, False)
    with pytest.raises(ValueError, match="cannot follow"):
        append_block(more, Block(3, 1, ()))
    with pytest.raises(ValueError, match="has no column"):
        append_block(compiled, Block(3, 0, (Row([0, 2], [1.0, 1.0], 0.0, 1.0),)))


def test_a_block_may_speak_of_variables_that_no_row_before_it_has() -> None:
    model = ConcreteModel()
    model.x = Var(range(3), domain=Binary)
    model.objective = Objective(expr=model.x[1] + model.x[2])
    model.rows = Constraint(range(1), rule=lambda m, _: m.x[1] + m.x[2] >= 1)
    compiled = compile_model(model, "x[{}]".format)
    assert compiled.column_of.tolist() == [2, 0, 1]
    more = append_block(compiled, Block(3, 1, (Row([0, 3], [1.0, -1.0], 1.0, 1.0),)))
    assert more.column_of.tolist() == [2, 0, 1, 3]
    assert more.model.indices[-2:].tolist() == [2, 3]
    assert more.model.integer.tolist() == [True, True, True, False]
    assert list(more.model.column_names) == ["x[1]", "x[2]", "x[0]", "x[3]"]


def test_names_of_appended_columns_follow_those_of_the_model() -> None:
    graph = build_graph("unit-chain{n=6}")
    stated = retention.build(graph, 5, None, Control())
    rows = retention.in_stage_rows(stated, list(stated.R))
    assert rows is not None
    before = stated.compiled()
    compiled = append_block(before, rows.block)
    names = list(compiled.model.column_names)
    assert names[: before.model.columns] == list(before.model.column_names)
    assert names[before.model.columns :] == [f"w[{number}]" for number, _ in rows.levels]
    assert len(names) == compiled.model.columns


@pytest.mark.parametrize(
    ("work", "loaded"),
    [
        # Crowded stages solve it, which are arrays from the start.
        ("assert remat.solve(graph, '80%', remat.SolveOptions(strategy='optimal')).plan.solver == 'highs'", []),
        ("retention.build(graph, no_remat_peak(graph) * 8 // 10, 1.0, Control()).compiled()", ["pyomo.core"]),
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
