"""GLPK in a process of its own: ``python glpk_worker.py MODEL RESULT [--gap G] [--time-limit S] [--cuts]``.

Reads a free MPS file, solves it through swiglpk and writes a JSON file with the keys ``ending`` (optimal, gap,
stopped, infeasible, unbounded, "infeasible or unbounded", failed), ``values``, ``bound``, ``message`` and, for a solved
linear model, ``duals``. SIGINT and
SIGTERM end the search in GLPK's callback, with the best solution kept. Imports nothing of remat, so that it starts
quickly and runs by its path.
"""

import argparse
import ctypes
import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_NO_BOUND = 1e300


class _ControlParameters(ctypes.Structure):
    """The head of GLPK's ``glp_iocp``. swiglpk cannot set its callback, so it is written in place."""

    _fields_ = (
        ("msg_lev", ctypes.c_int),
        ("br_tech", ctypes.c_int),
        ("bt_tech", ctypes.c_int),
        ("tol_int", ctypes.c_double),
        ("tol_obj", ctypes.c_double),
        ("tm_lim", ctypes.c_int),
        ("out_frq", ctypes.c_int),
        ("out_dly", ctypes.c_int),
        ("cb_func", _CALLBACK),
        ("cb_info", ctypes.c_void_p),
        ("cb_size", ctypes.c_int),
    )


class _Search:
    """The callback's state: whether to stop the search, and the bound of the open nodes."""

    def __init__(self, glpk: Any) -> None:
        self.stop = False
        self.bound: float | None = None
        # The functions of the very library that swiglpk has loaded.
        library = ctypes.CDLL(glpk._swiglpk.__file__)
        self._best_node = library.glp_ios_best_node
        self._best_node.argtypes, self._best_node.restype = [ctypes.c_void_p], ctypes.c_int
        self._node_bound = library.glp_ios_node_bound
        self._node_bound.argtypes, self._node_bound.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_double
        self._terminate = library.glp_ios_terminate
        self._terminate.argtypes, self._terminate.restype = [ctypes.c_void_p], None
        self.callback = _CALLBACK(self._look)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Remember the request to stop, which GLPK sees at its next callback."""
        self.stop = True

    def _look(self, tree: int, info: int | None) -> None:
        best = self._best_node(tree)
        if best:
            bound = self._node_bound(tree, best)
            self.bound = bound if abs(bound) < _NO_BOUND else None
        if self.stop:
            self._terminate(tree)


def _parameters(glpk: Any, search: _Search, options: argparse.Namespace) -> Any:
    """The control parameters of the integer optimizer, callback included."""
    parameters = glpk.glp_iocp()
    glpk.glp_init_iocp(parameters)
    parameters.presolve = glpk.GLP_ON
    parameters.mip_gap = options.gap
    parameters.out_frq = 500
    parameters.out_dly = 0
    if options.time_limit is not None:
        parameters.tm_lim = _milliseconds(options.time_limit)
    if options.cuts:
        parameters.mir_cuts = parameters.clq_cuts = glpk.GLP_ON
    raw = _ControlParameters.from_address(int(parameters.this))
    fields = (raw.tm_lim, raw.out_frq, raw.out_dly, raw.tol_int, raw.tol_obj)
    expected = (parameters.tm_lim, parameters.out_frq, parameters.out_dly, parameters.tol_int, parameters.tol_obj)
    if fields != expected or raw.cb_func:
        raise SystemExit(f"glp_iocp of GLPK {glpk.glp_version()} has another layout than that of GLPK 5")
    raw.cb_func = search.callback
    return parameters


def _milliseconds(seconds: float) -> int:
    return max(1, min(int(seconds * 1000), 2**31 - 1))


def _solve_linear(glpk: Any, problem: Any, options: argparse.Namespace) -> dict[str, Any]:
    parameters = glpk.glp_smcp()
    glpk.glp_init_smcp(parameters)
    parameters.presolve = glpk.GLP_ON
    if options.time_limit is not None:
        parameters.tm_lim = _milliseconds(options.time_limit)
    code = glpk.glp_simplex(problem, parameters)
    if code == 0:
        status = glpk.glp_get_status(problem)
        ending = {glpk.GLP_OPT: "optimal", glpk.GLP_NOFEAS: "infeasible", glpk.GLP_UNBND: "unbounded"}.get(status)
        if ending is None:
            return _answer("failed", message=f"simplex ended with status {status}")
        if ending != "optimal":
            return _answer(ending)
        duals = [glpk.glp_get_row_dual(problem, i) for i in range(1, glpk.glp_get_num_rows(problem) + 1)]
        return _answer(ending, _values(glpk, problem, glpk.glp_get_col_prim), duals=duals)
    ending, message = _ending(glpk, code, "simplex")
    return _answer(ending, message=message)


def _solve_integer(glpk: Any, problem: Any, search: _Search, options: argparse.Namespace) -> dict[str, Any]:
    code = glpk.glp_intopt(problem, _parameters(glpk, search, options))
    status = glpk.glp_mip_status(problem)
    feasible = status in {glpk.GLP_OPT, glpk.GLP_FEAS}
    values = _values(glpk, problem, glpk.glp_mip_col_val) if feasible else None
    if code == 0:
        ending = {glpk.GLP_OPT: "optimal", glpk.GLP_NOFEAS: "infeasible"}.get(status)
        if ending is None:
            return _answer("failed", message=f"the search ended with status {status}")
        return _answer(ending, values, search.bound)
    ending, message = _ending(glpk, code, "search")
    return _answer(ending, values, search.bound, message)


def _ending(glpk: Any, code: int, what: str) -> tuple[str, str]:
    """The meaning of a non-zero return value of the simplex method or of the search."""
    endings = {
        glpk.GLP_ENOPFS: "infeasible",
        glpk.GLP_ENODFS: "infeasible or unbounded",
        glpk.GLP_ETMLIM: "stopped",
        glpk.GLP_ESTOP: "stopped",
        glpk.GLP_EMIPGAP: "gap",
    }
    ending = endings.get(code, "failed")
    return ending, f"the {what} returned {code}" if ending == "failed" else ""


def _values(glpk: Any, problem: Any, value: Any) -> list[float]:
    return [value(problem, j) for j in range(1, glpk.glp_get_num_cols(problem) + 1)]


def _answer(
    ending: str, values: Any = None, bound: float | None = None, message: str = "", duals: Any = None
) -> dict[str, Any]:
    return {"ending": ending, "values": values, "bound": bound, "message": message, "duals": duals}


def main() -> None:
    """Solve the model of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("result")
    parser.add_argument("--gap", type=float, default=0.0)
    parser.add_argument("--time-limit", type=float)
    parser.add_argument("--cuts", action="store_true")
    options = parser.parse_args()
    import swiglpk as glpk  # a missing package should come as one line from the adapter, not from here

    search = _Search(glpk)
    signal.signal(signal.SIGINT, search.on_signal)
    signal.signal(signal.SIGTERM, search.on_signal)
    problem = glpk.glp_create_prob()
    if glpk.glp_read_mps(problem, glpk.GLP_MPS_FILE, None, options.model) != 0:
        sys.exit("GLPK cannot read the model")
    if glpk.glp_get_num_int(problem):
        answer = _solve_integer(glpk, problem, search, options)
    else:
        answer = _solve_linear(glpk, problem, options)
    result = Path(options.result)
    part = result.with_suffix(".part")
    part.write_text(json.dumps(answer), encoding="ascii")
    part.replace(result)


if __name__ == "__main__":
    main()
