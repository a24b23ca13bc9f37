"""Commands that get SIGINT, SIGTERM or SIGKILL at a random moment.

The old file or a whole new one is there afterwards, nothing half-written, no process, no temporary file, no traceback.
"""

import signal
import subprocess
import time
from collections import Counter
from typing import Any

from hypothesis import strategies as st

from campaigns.processes import OLD, chain, check_target, check_words, scene, send

SOLVE = ("solve", "chain.json", "-b", "6B", "--gap", "0", "--time-limit", "4s", "-o", "out.plan.json", "--strategy")
COMMANDS: dict[str, tuple[str, ...]] = {
    "auto": (*SOLVE, "auto"),
    "optimal": (*SOLVE, "optimal"),
    "checkmate-ilp/highs": (*SOLVE, "checkmate-ilp"),
    "checkmate-ilp/cbc": (*SOLVE, "checkmate-ilp", "--solver", "cbc"),
    "checkmate-ilp/glpk": (*SOLVE, "checkmate-ilp", "--solver", "glpk"),
    "checkmate-lp/cbc": (*SOLVE, "checkmate-lp", "--solver", "cbc"),
    "search": (*SOLVE, "search"),
    "lns/glpk": (*SOLVE, "lns", "--solver", "glpk"),
    "anneal": (*SOLVE, "anneal"),
    "moccasin": (*SOLVE, "moccasin"),
    "rotor": (*SOLVE, "rotor"),
    "keep-all": ("solve", "chain.json", "-b", "none", "-o", "out.plan.json", "--strategy", "keep-all"),
    "peak": ("solve", "chain.json", "--minimize", "peak", "--time-limit", "4s", "-o", "out.plan.json"),
    "compare": (
        *("compare", "chain.json", "--budgets", "8B,10B", "--strategies", "keep-all,optimal,anneal", "--jobs", "2"),
        *("--time-limit", "3s", "--format", "json", "-o", "out.json"),
    ),
    "export": ("export", "zoo:densenet121", "-o", "out.json"),
    "convert": ("convert", "chain.json", "-o", "out.yaml"),
}
_SIGNALS = {
    "INT": (signal.SIGINT,),
    "TERM": (signal.SIGTERM,),
    "KILL": (signal.SIGKILL,),
    "INT INT": (signal.SIGINT, signal.SIGINT),
}


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, Any]:
    """A command, signals and moments."""
    return {
        "command": draw(st.sampled_from([*COMMANDS])),
        "signals": draw(st.sampled_from([*_SIGNALS])),
        "group": draw(st.booleans()),
        "old": draw(st.booleans()),
        "after_ms": draw(st.sampled_from(range(0, 5000, 10))),
        "between_ms": draw(st.sampled_from(range(0, 500, 10))),
    }


def check(case: dict[str, Any], counts: Counter[str]) -> None:
    """Run the command and send the signals; a Failure if it leaves anything but what it may."""
    numbers = _SIGNALS[case["signals"]]
    command = COMMANDS[case["command"]]
    what = f"{command[0]}, {case['signals']}"

    def trouble(process: subprocess.Popen[str]) -> bool:
        hit = False
        for pause_ms, number in zip((case["after_ms"], case["between_ms"]), numbers, strict=False):
            time.sleep(pause_ms / 1000)
            hit = send(process, number, group=case["group"]) or hit
        return hit

    with scene() as here:
        (here.folder / "chain.json").write_text(chain(33), encoding="utf-8")
        target = here.folder / command[command.index("-o") + 1]
        if case["old"]:
            target.write_text(OLD, encoding="utf-8")
        ended = here.run(*command, trouble=trouble)
        counts["hit while running" if ended.signalled else "ended before"] += 1
        if ended.signalled:
            counts[f"runs that got {case['signals']}"] += 1
        check_words(what, ended, killed=numbers)
        new = check_target(what, ended, target, old=case["old"], killed=ended.code < 0)
        counts["new files" if new else "old files kept" if case["old"] else "no files"] += 1
        if here.check_gone(what, killed=signal.SIGKILL in numbers):
            counts["folders left to the next start"] += 1
