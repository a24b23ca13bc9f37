"""Compiled models against Pyomo's own compiler, number for number."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from pyomo.core import Binary, ConcreteModel, Constraint, Objective, Var
from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler

from remat_cli.control import Control
from remat_cli.graph.analysis import no_remat_peak
from remat_cli.graph.closing import closed
from remat_cli.milp import cover_bound, cover_running, retention
from remat_cli.milp.checkmate import Formulation
from remat_cli.milp.checkmate import build as build_checkmate
from remat_cli.milp.compile import Compiled, append_block, compile_model
from remat_cli.solvers.base import Request, Termination
from remat_cli.solvers.highs import Highs
from remat_cli.zoo.registry import build_graph


def assert_same(model: Any, compiled: Compiled) -> None:
    form = LinearStandardFormCompiler().write(model, mixed_form=True)
    matrix = form.A.tocsr()
    rhs = np.asarray(form.rhs, dtype=np.float64)
    kind = np.array([row.bound_type for row in form.rows])
    arrays = compiled.model
    assert list(compiled.column_of) == [id(v) for v in form.columns] == [id(v) for v in compiled.variables]
    assert list(arrays.column_names) == [v.name for v in form.columns]
    assert list(arrays.column_names[1:3]) == [v.name for v in form.columns[1:3]]
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
    models = [
        retention.build(graph, budget, 1.0, control).model,
        retention.build(graph, budget, None, control).model,
        cover_bound.build(graph, budget),
        cover_running.build(graph, budget, control),
        cover_bound.price_model(closed(graph), budget).model,
    ]
    if len(graph.nodes) < 30:
        forms = (Formulation(), Formulation(frontier=False, stage_split=2), Formulation(minimize_peak=True))
        models += [build_checkmate(graph, budget, form, control).model for form in forms]
    for model in models:
        assert_same(model, compile_model(model))


def test_duplicates_fixed_variables_constants_and_ranges_compile_as_in_pyomo() -> None:
    model = ConcreteModel()
    model.x = Var(range(6), domain=Binary)
    model.y = Var(bounds=(-3, None))
    model.z = Var()
    x, y = model.x, model.y
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


def test_names_of_appended_columns_follow_those_of_the_model() -> None:
    graph = build_graph("unit-chain{n=6}")
    stated = retention.build(graph, 5, None, Control())
    rows = retention.in_stage_rows(stated, list(stated.R))
    assert rows is not None
    compiled = append_block(compile_model(stated.model), rows.block)
    assert list(compiled.model.column_names) == [v.name for v in compiled.variables]
    assert [compiled.column_of[id(v)] for v in compiled.variables] == list(range(compiled.model.columns))


def test_neither_scipy_nor_all_of_pyomo_is_loaded() -> None:
    code = (
        "import sys\n"
        "import remat_cli as remat\n"
        "graph = remat.build_graph('unet{batch=1}')\n"
        "assert remat.solve(graph, '80%', remat.SolveOptions(strategy='optimal')).plan.solver == 'highs'\n"
        "print(*sorted({'scipy', 'numba', 'pyomo.environ', 'pyomo.core'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pyomo.core"]
