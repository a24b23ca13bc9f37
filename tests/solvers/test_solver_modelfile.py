"""What is written reads back, by HiGHS's readers, as the same model to the last bit."""

import math
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import highspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_problems import INF, KNOWN, Known, dense, installed

from remat_cli.errors import UsageError
from remat_cli.mip import LinearModel
from remat_cli.solvers.base import Request
from remat_cli.solvers.modelfile import write_model

_FINITE = st.floats(-1e15, 1e15, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-8)
_COEFFICIENT = _FINITE.filter(lambda x: abs(x) < 1e12)
_LOWER = st.one_of(st.just(-INF), st.just(0.0), _FINITE)
_UPPER = st.one_of(st.just(INF), st.just(1.0), _FINITE)


READABLE = [k for k in KNOWN if k.model.columns and k.name != "crossed bounds"]


@st.composite
def models(draw: st.DrawFn) -> LinearModel:
    n, m = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    bounds = [sorted([draw(_LOWER), draw(_UPPER)]) for _ in range(n)]
    sides = [sorted([draw(_LOWER), draw(_UPPER)]) for _ in range(m)]
    rows = [([draw(st.one_of(st.just(0.0), _COEFFICIENT)) for _ in range(n)], low, high) for low, high in sides]
    return dense(
        [draw(_FINITE) for _ in range(n)],
        rows,
        [low for low, _ in bounds],
        [high for _, high in bounds],
        [draw(st.integers(0, 1)) for _ in range(n)],
        offset=draw(_FINITE),
    )


def read(path: Path) -> LinearModel:
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("small_matrix_value", 1e-12)
    assert highs.readModel(str(path)) == highspy.HighsStatus.kOk, path.read_text(encoding="ascii")
    highs.ensureRowwise()
    lp = highs.getLp()
    kinds = list(lp.integrality_) or [highspy.HighsVarType.kContinuous] * lp.num_col_
    return LinearModel(
        cost=np.array(lp.col_cost_),
        lower=np.array(lp.col_lower_),
        upper=np.array(lp.col_upper_),
        integer=np.array([k == highspy.HighsVarType.kInteger for k in kinds]),
        starts=np.array(lp.a_matrix_.start_, dtype=np.int64),
        indices=np.array(lp.a_matrix_.index_, dtype=np.int64),
        values=np.array(lp.a_matrix_.value_),
        row_lower=np.array(lp.row_lower_),
        row_upper=np.array(lp.row_upper_),
        offset=lp.offset_,
        column_names=tuple(lp.col_names_),
    )


def rows_of(model: LinearModel) -> list[tuple[tuple[tuple[int, float], ...], float, float]]:
    """Rows as ``(terms, lower, upper)``, in order; neighbours with the same terms are one two-sided row.

    Rows without terms or without sides say nothing that a file has to keep, apart from contradictions.
    """
    rows: list[tuple[tuple[tuple[int, float], ...], float, float]] = []
    for r in range(model.rows):
        span = slice(model.starts[r], model.starts[r + 1])
        pairs = zip(model.indices[span].tolist(), model.values[span].tolist(), strict=True)
        terms = tuple(sorted((j, a) for j, a in pairs if a))
        low, high = float(model.row_lower[r]), float(model.row_upper[r])
        if not terms or (low == -INF and high == INF):
            continue
        if rows and rows[-1][0] == terms:
            _, before_low, before_high = rows.pop()
            low, high = max(low, before_low), min(high, before_high)
        rows.append((terms, low, high))
    return rows


def assert_same(model: LinearModel, again: LinearModel) -> None:
    for name in ("cost", "lower", "upper", "integer"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name), err_msg=name)
    assert again.offset == model.offset
    assert rows_of(again) == rows_of(model)


@settings(max_examples=150, derandomize=True)
@given(model=models(), suffix=st.sampled_from([".mps", ".lp"]))
def test_round_trip(model: LinearModel, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model{suffix}"
        write_model(model, path)
        assert_same(model, read(path))


@pytest.mark.parametrize("suffix", [".mps", ".lp"])
@pytest.mark.parametrize("known", READABLE, ids=lambda k: k.name)
def test_round_trip_of_known_models(known: Known, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    write_model(known.model, path)
    assert_same(known.model, read(path))


@pytest.mark.parametrize("suffix", [".mps", ".lp"])
def test_names(suffix: str, tmp_path: Path) -> None:
    model = dense([1, 2, 3, 4, 5, 6], [([1] * 6, 1, INF)], [0] * 6, [1] * 6, [1] * 6)
    names = ["R[3,2]", "R 3 2", "e12", "3x", "", "free"]
    write_model(replace(model, column_names=names), tmp_path / f"a{suffix}")
    again = read(tmp_path / f"a{suffix}")
    assert_same(model, again)
    assert list(again.column_names) == ["R_3_2", "R_3_2_c1", "x_e12", "x_3x", "c4", "x_free"]
    write_model(replace(model, column_names=names), tmp_path / f"b{suffix}", named=False)
    assert list(read(tmp_path / f"b{suffix}").column_names) == [f"c{i}" for i in range(6)]


@pytest.mark.system
@pytest.mark.parametrize("suffix", [".mps", ".lp"])
def test_other_readers_agree(suffix: str, tmp_path: Path) -> None:
    """CBC and glpsol read the file themselves, with their own ideas of defaults."""
    model = dense(
        [-1.5, -2, 1, -0.25],
        [([1, 1, 0, 0], -INF, 7.5), ([0, 1, 1, 0], -3, 4), ([1, 0, 0, 1], 2, 2)],
        [-INF, -2, -7, 0],
        [-1, INF, -2, INF],
        [1, 1, 0, 1],
    )
    path = tmp_path / f"model{suffix}"
    write_model(model, path)
    cbc = str(installed("cbc").availability().path)
    told = subprocess.run([cbc, str(path), "-solve"], capture_output=True, text=True, check=True, timeout=20).stdout
    value = float(told.partition("Objective value:")[2].split()[0])
    flag = "--freemps" if suffix == ".mps" else "--lp"
    glpsol = str(installed("glpk{via=glpsol}").availability().path)
    subprocess.run([glpsol, flag, str(path), "-w", str(tmp_path / "out")], capture_output=True, check=True, timeout=20)
    line = next(x for x in (tmp_path / "out").read_text(encoding="ascii").splitlines() if x.startswith("s mip"))
    best = installed("highs").solve(Request(model, gap=0.0)).objective
    assert line.split()[4] == "o"
    assert best is not None
    assert float(line.split()[-1]) == pytest.approx(best)
    assert value == pytest.approx(best)


def test_numbers_keep_every_digit(tmp_path: Path) -> None:
    model = dense([1 / 3, math.pi], [([0.1, 2 / 3], 1e-17, 1 / 7)], [-1 / 9, 0], [1 / 11, INF], [0, 0], offset=math.e)
    for suffix in (".mps", ".lp"):
        write_model(model, tmp_path / f"m{suffix}")
        assert_same(model, read(tmp_path / f"m{suffix}"))


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in \.mps or \.lp"):
        write_model(KNOWN[0].model, tmp_path / "model.txt")
    with pytest.raises(UsageError, match="cannot be written"):
        write_model(KNOWN[0].model, tmp_path / "missing" / "model.lp")
