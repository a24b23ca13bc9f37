"""Building a MILP and handing it to a solver.

The Checkmate MILP of four networks at 60% of their no-remat peak. *Build* states it in Pyomo, *compile* turns it into
arrays, *pass* gives the arrays to HiGHS. Each run has a fresh process; imports are not counted. The second table shows
all ways from one stated model into a solver, including compilation, measured one after the other. Every reader must
report the rows and nonzeros that were compiled.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.measure import call_or_fail, largest, median, rounded, spread, timed, together

_GRAPHS = ("linear{n=22}", "vgg16", "unet", "mobilenet-v1")
_SHARE = 0.6
_OURS = "arrays to HiGHS"
_CBC_READS = re.compile(r"has (\d+) rows, (\d+) columns and (\d+) elements")

TABLES = (
    Table(
        "build",
        "From the graph to HiGHS",
        (
            Column("graph", "graph"),
            *columns("count", nodes="nodes", rows="rows", columns="columns", nonzeros="nonzeros"),
            *columns("seconds", build="build", compile="compile"),
            Column("pass", "pass", "seconds"),
            Column("total", "all three", "seconds"),
            Column("peak_bytes", "memory", "bytes"),
        ),
    ),
    Table(
        "paths",
        "Ways from the stated model into a solver",
        (
            *columns("text", graph="graph", path="way"),
            *columns("seconds", write="compile and write", read="pass or read", total="both"),
            Column("ratio", "beside ours", "ratio"),
            Column("bytes", "file", "bytes"),
        ),
        "CBC and GLPK read the same MPS file as HiGHS; the start of CBC's process is counted. Pyomo's interface does "
        "all in one step.",
    ),
)


def run(session: Session) -> list[Row]:
    built: list[Row] = []
    paths: list[Row] = []
    for spec in ("linear{n=3}",) if session.quick else _GRAPHS:
        session.say(spec)
        runs = [call_or_fail("benchmarks.handoff:straight", spec=spec) for _ in range(session.times(3))]
        walls = together([called.values["walls"] for called in runs])
        built.append({"table": "build", "graph": spec, **runs[0].values["sizes"], **walls, "peak_bytes": largest(runs)})
        ways = [
            call_or_fail("benchmarks.handoff:all_ways", spec=spec, folder=str(session.folder)).values
            for _ in range(session.times(2))
        ]
        ours = median(spread([_total(way[_OURS]) for way in ways]))
        for path in ways[0]:
            totals = spread([_total(way[path]) for way in ways])
            writes = [way[path]["write"] for way in ways]
            paths.append(
                {
                    "table": "paths",
                    "graph": spec,
                    "path": path,
                    "write": None if writes[0] is None else spread(writes),
                    "read": spread([way[path]["read"] for way in ways]),
                    "total": totals,
                    "ratio": rounded(median(totals) / ours),
                    "bytes": ways[0][path]["bytes"],
                }
            )
    return built + paths


def _total(way: dict[str, Any]) -> float:
    """Seconds from the stated model into the solver."""
    return (way["write"] or 0.0) + way["read"]


def _stated(spec: str) -> Any:
    from remat_cli.control import Control
    from remat_cli.graph.analysis import no_remat_peak
    from remat_cli.milp.checkmate import Formulation, Problem, state
    from remat_cli.zoo.registry import build_graph

    graph = build_graph(spec)
    return state(Problem.of(graph, int(_SHARE * no_remat_peak(graph)), Formulation()), Control())


def _warm_up() -> None:
    """Import the modules that are otherwise imported on first use."""
    from remat_cli.milp.compile import compile_model

    _to_highs(compile_model(_stated("linear{n=2}")).model)


def _to_highs(model: Any) -> Any:
    """HiGHS with ``model`` in it, given as remat's adapter gives it."""
    import highspy

    from remat_cli.solvers.highs import _highs_lp

    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    if highs.passModel(_highs_lp(highspy, model)) == highspy.HighsStatus.kError:
        raise ValueError("HiGHS refuses the model")
    return highs


def straight(spec: str) -> dict[str, Any]:
    """Build, compile and pass, once."""
    from remat_cli.control import Control
    from remat_cli.graph.analysis import no_remat_peak
    from remat_cli.milp.checkmate import Formulation, Problem, state
    from remat_cli.milp.compile import compile_model
    from remat_cli.zoo.registry import build_graph

    _warm_up()
    graph = build_graph(spec)
    budget_bytes = int(_SHARE * no_remat_peak(graph))
    build_s, stated = timed(lambda: state(Problem.of(graph, budget_bytes, Formulation()), Control()))
    compile_s, compiled = timed(lambda: compile_model(stated))
    pass_s, _ = timed(lambda: _to_highs(compiled.model))
    model = compiled.model
    return {
        "sizes": {
            "nodes": len(graph.nodes),
            "rows": model.rows,
            "columns": model.columns,
            "nonzeros": len(model.values),
        },
        "walls": {"build": build_s, "compile": compile_s, "pass": pass_s, "total": build_s + compile_s + pass_s},
    }


def all_ways(spec: str, folder: str) -> dict[str, dict[str, Any]]:
    """Seconds to write and to read, and the size of the file, for every way.

    Raises:
        ValueError: If a reader does not see the model that was compiled.
    """
    from remat_cli.milp.compile import compile_model
    from remat_cli.solvers.modelfile import write_model

    _warm_up()
    stated = _stated(spec)
    compile_s, compiled = timed(lambda: compile_model(stated))
    model = compiled.model
    wanted = (model.rows, len(model.values))
    files = {name: Path(folder) / name for name in ("ours.mps", "ours.lp", "pyomo.lp")}
    written_s = {
        "ours.mps": compile_s + timed(lambda: write_model(model, files["ours.mps"], named=False))[0],
        "ours.lp": compile_s + timed(lambda: write_model(model, files["ours.lp"], named=False))[0],
        "pyomo.lp": timed(lambda: stated.write(str(files["pyomo.lp"])))[0],
    }
    readers = {
        "MPS file to HiGHS": ("ours.mps", _highs_reads),
        "MPS file to CBC": ("ours.mps", _cbc_reads),
        "MPS file to GLPK": ("ours.mps", _glpk_reads),
        "LP file to HiGHS": ("ours.lp", _highs_reads),
        "Pyomo's LP file to HiGHS": ("pyomo.lp", _highs_reads),
    }
    pass_s, highs = timed(lambda: _to_highs(model))
    ways: dict[str, dict[str, Any]] = {_OURS: {"write": compile_s, "read": pass_s, "bytes": None}}
    seen = {_OURS: (highs.getNumRow(), highs.getNumNz())}
    for way, (name, reader) in readers.items():
        read_s, seen[way] = timed(lambda reader=reader, name=name: reader(str(files[name])))
        ways[way] = {"write": written_s[name], "read": read_s, "bytes": files[name].stat().st_size}
    interface = "Pyomo's HiGHS interface (set_instance)"
    set_s, seen[interface] = timed(lambda: _pyomo_sets(stated))
    ways[interface] = {"write": None, "read": set_s, "bytes": None}
    for way, sizes in seen.items():
        if sizes != wanted:
            raise ValueError(f"{spec}: {way}: {sizes} rows and nonzeros, {wanted} were compiled")
    return ways


def _highs_reads(path: str) -> tuple[int, int]:
    import highspy

    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    if highs.readModel(path) == highspy.HighsStatus.kError:
        raise ValueError("HiGHS cannot read the model")
    return highs.getNumRow(), highs.getNumNz()


def _cbc_reads(path: str) -> tuple[int, int]:
    from remat_cli.solvers.cbc import find_cbc

    told = subprocess.run([find_cbc(None), path, "-quit"], capture_output=True, text=True, check=True)
    found = _CBC_READS.search(told.stdout)
    if found is None:
        raise ValueError(f"CBC does not say what it read: {told.stdout[-200:]}")
    return int(found[1]), int(found[3])


def _glpk_reads(path: str) -> tuple[int, int]:
    import swiglpk

    swiglpk.glp_term_out(swiglpk.GLP_OFF)
    problem = swiglpk.glp_create_prob()
    if swiglpk.glp_read_mps(problem, swiglpk.GLP_MPS_FILE, None, path):
        raise ValueError("GLPK cannot read the model")
    return swiglpk.glp_get_num_rows(problem), swiglpk.glp_get_num_nz(problem)


def _pyomo_sets(model: Any) -> tuple[int, int]:
    from pyomo.contrib.solver.solvers.highs import Highs

    highs = Highs()
    highs.set_instance(model)
    return highs._solver_model.getNumRow(), highs._solver_model.getNumNz()
