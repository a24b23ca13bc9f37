"""Solver programs that crash, hang, lie or print without end, in place of CBC and GLPK.

Whatever they do, the command ends soon after its time limit with a documented exit code, and its plan and claim hold.
"""

import functools
import json
import shlex
from collections import Counter
from typing import Any

from hypothesis import strategies as st

from campaigns.engine import Failure
from campaigns.processes import chain, check_target, check_words, scene
from campaigns.truth import ANY_ORDER, DOCUMENT_ORDER, FRONTIER, Instance, least_cost, peak_of
from remat_cli.errors import ExitCode
from remat_cli.solvers.registry import solver_from_spec

LIMIT_S = 3
LATE_S = 30.0
"""How long after its limit a command may end; untuned, several times what it takes, for busy machines."""
NODES = 7
PROGRAMS = {"cbc": "cbc", "glpk": "glpk{via=glpsol}"}
_VERSION = 'case "$1" in -stop | --version) exec "$real" "$@";; esac'
"""Without its version no program is taken for a solver."""
_HONEST = '"$real" "$@"'
_HALVE = "head -c $(($(wc -c < solution.txt) / 2)) solution.txt > half; mv half solution.txt"
_OTHER_OBJECTIVE = "s/objective value +-?[0-9.e+]+/objective value -77777.5/; s/ o -?[0-9.e+]+$/ o -77777/"
_OTHER_VALUES = r"s/^( *[0-9]+ +[a-z][0-9]+ +)1( .*)$/\10\2/; s/^(j [0-9]+) 1$/\1 0/"


def _says(cbc: str, glpsol: str) -> str:
    """Write an ending in the words of the program that this one stands for; glpsol is the one that gets --freemps."""
    return f"case \"$*\" in *--freemps*) echo '{glpsol}';; *) echo '{cbc}';; esac > solution.txt"


_UNBOUNDED = f"echo PROBLEM HAS UNBOUNDED SOLUTION; {_says('Unbounded - objective value 0', 's mip 1 1 u 0')}"
BEHAVIOURS: dict[str, str] = {
    "crashes": "echo last words; kill -SEGV $$",
    "aborts": "echo last words >&2; kill -ABRT $$",
    "fails": "exit 3",
    "says nothing": "exit 0",
    "hangs": "sleep 1000",
    "is deaf": "trap '' INT TERM; while :; do sleep 0.1; done",
    "leaves a child": "sleep 1000 & exit 0",
    "prints without end": "yes 'Cbc0010I After 0 nodes'",
    "prints one line without end": r"tr '\0' x < /dev/zero",
    "writes rubbish": "head -c 5000 /dev/urandom > solution.txt",
    "writes nothing": ": > solution.txt",
    "halves its answer": f"{_HONEST}; {_HALVE}",
    "crashes after its answer": f"{_HONEST}; kill -SEGV $$",
    "fails after its answer": f"{_HONEST}; exit 9",
    "is late with its answer": f"{_HONEST}; sleep 1",
    "lies about its objective": f"{_HONEST}; sed -i -E '{_OTHER_OBJECTIVE}' solution.txt",
    "lies about values": f"{_HONEST}; sed -i -E '{_OTHER_VALUES}' solution.txt",
    "says that it is infeasible": _says("Infeasible - objective value 0", "s mip 1 1 n 0"),
    "says that it is unbounded": _UNBOUNDED,
    "says that nothing is optimal": _says("Optimal - objective value 0", "s mip 1 1 o 0"),
}
_BELIEVED = "says that it is infeasible"


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, Any]:
    """A program, what it does, and a request."""
    return {
        "program": draw(st.sampled_from([*PROGRAMS])),
        "behaviour": draw(st.sampled_from([*BEHAVIOURS])),
        "strategy": draw(
            st.sampled_from(["checkmate-ilp", "checkmate-ilp", "checkmate-lp", "optimal{depth=1}", "auto"])
        ),
        "budget": draw(st.sampled_from([3, 4, 5])),
        "by_variable": draw(st.booleans()),
    }


@functools.cache
def _real(program: str) -> str:
    return str(solver_from_spec(PROGRAMS[program]).availability().path)


@functools.cache
def _instance() -> Instance:
    return Instance.of(json.loads(chain(NODES)))


@functools.cache
def _least(budget: int, scope: str) -> float | None:
    return least_cost(_instance(), budget, scope)


def check(case: dict[str, Any], counts: Counter[str]) -> None:
    """Solve with the program; a Failure if the command does not end in time, in order, or with a true answer."""
    what = f"{case['program']} {case['behaviour']}"
    with scene() as here:
        program = here.folder / "program"
        real = shlex.quote(_real(case["program"]))
        script = f"#!/bin/bash\nreal={real}\n{_VERSION}\n{BEHAVIOURS[case['behaviour']]}\n"
        program.write_text(script, encoding="ascii")
        program.chmod(0o755)
        (here.folder / "chain.json").write_text(chain(NODES), encoding="utf-8")
        via = "via=glpsol" if case["program"] == "glpk" else ""
        named = {"REMAT_CBC": str(program), "REMAT_GLPSOL": str(program)} if case["by_variable"] else {}
        options = ",".join(filter(None, [via, "" if named else f"path={program}"]))
        ended = here.run(
            *("solve", "chain.json", "-b", f"{case['budget']}B", "--strategy", case["strategy"], "--gap", "0"),
            *("--solver", f"{case['program']}{{{options}}}" if options else case["program"]),
            *("--time-limit", f"{LIMIT_S}s", "-o", "out.plan.json"),
            **named,
        )
        counts[f"exit {ended.code}"] += 1
        check_words(what, ended)
        if ended.seconds > LIMIT_S + LATE_S:
            raise Failure(f"{what}: late", f"{ended.seconds:.1f} s")
        target = here.folder / "out.plan.json"
        if check_target(what, ended, target, old=False, killed=False):
            counts["plans judged"] += 1
            _check_claim(what, json.loads(target.read_text(encoding="utf-8")), case["budget"])
        elif ended.code == ExitCode.NO:
            _check_no(what, case, ended.err, counts)
        here.check_gone(what)


def _check_claim(what: str, plan: dict[str, Any], budget: int) -> None:
    claim = plan["claim"]
    if claim["scope"] not in (ANY_ORDER, DOCUMENT_ORDER, FRONTIER):
        return
    least = _least(budget, claim["scope"])
    assert least is not None
    if claim["lower_bound"] > least * (1 + 1e-9):
        raise Failure(f"{what}: false bound", f"{claim}, least is {least}")
    if claim["status"] == "optimal" and claim["cost"] * (1 - 1e-4) > least:
        raise Failure(f"{what}: false optimal", f"{claim}, least is {least}")


def _check_no(what: str, case: dict[str, Any], said: str, counts: Counter[str]) -> None:
    """A "no" is false if remat could know better: where everything may simply be kept, or nobody told it so."""
    nodes = range(len(_instance().nodes))
    fits_as_it_is = case["budget"] >= peak_of(_instance(), nodes)
    if case["behaviour"] == _BELIEVED and not fits_as_it_is:
        counts["lies that cannot be known for lies"] += 1
    elif case["strategy"] != "checkmate-lp" or fits_as_it_is:
        raise Failure(f"{what}: false no", said)
