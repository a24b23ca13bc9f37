"""More time never leads to a worse plan."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from itertools import combinations

from benchmarks.machine import ROOT
from remat_cli.tolerances import GAP

_LIMITS_S = (1.0, 2.0, 4.0)
_CODE = """
import json, sys
from benchmarks.ablation.running import measured
for spec, budget in json.load(sys.stdin):
    print(json.dumps([measured(spec, budget, limit_s)["overhead"] for limit_s in {limits}]))
"""


def test_a_longer_limit_gives_no_worse_plan_than_a_shorter_one_beyond_the_gap() -> None:
    """The limits are processor time, so that other programs change little."""
    rng = random.Random(5)
    cases = [
        (f"{rng.choice(('layered', 'wild', 'residual'))}-{rng.randint(40, 250)}", f"{rng.randint(60, 95)}%")
        for _ in range(6)
    ]
    command = [sys.executable, "-c", _CODE.format(limits=_LIMITS_S)]
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(cases), capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(cases)
    assert sum(costs[-1] is not None for costs in answers) >= len(cases) // 2
    for case, overheads in zip(cases, answers, strict=True):
        costs = [math.inf if percent is None else 1 + percent / 100 for percent in overheads]
        for shorter, longer in combinations(costs, 2):
            assert longer <= shorter * (1 + GAP), (case, overheads)
