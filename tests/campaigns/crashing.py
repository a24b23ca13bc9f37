"""A campaign for the tests of the runner: one of its numbers kills the process, others fail or pass."""

import os
import signal
from collections import Counter

from hypothesis import strategies as st

from campaigns.engine import Failure

OFTEN = 7
DEADLY = OFTEN


def inputs() -> st.SearchStrategy[int]:
    """A number from 0, often the deadly one."""
    return st.one_of(st.integers(0, 1000), st.just(OFTEN))


def check(case: int, counts: Counter[str]) -> None:
    """Die of :data:`DEADLY`, and refuse what is larger than 500."""
    counts["large" if case > 500 else "small"] += 1
    if case == DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)
    if case > 500:
        raise Failure("too large", f"{case}")
    if case == 400:
        raise KeyError(case)
