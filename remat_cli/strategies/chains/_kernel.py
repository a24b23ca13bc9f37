"""The dynamic programmes over segments of a chain, compiled by numba: plain functions over arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit

_F = TypeVar("_F", bound=Callable[..., Any])
_compiled: Callable[[_F], _F] = njit(cache=True, nogil=True)


@_compiled
def fill_visits(prefix: Any, tail: Any, top: Any, hold: Any, sweep: Any, pending: Any, visit: Any, width: int) -> Any:
    """Least cost of visiting the levels of a segment from the top down (see ``visits``).

    Args:
        prefix: float64[N + 1], cost of computing the levels 1 .. k once.
        tail: float64[N + 1], the part of the cost of level k that is needed only to go on to level k + 1.
        top: int64[N + 1], the highest level <= k that is visited, 0 if there is none.
        hold: int64[N + 1, N + 1], units that a value kept in (l, k] takes.
        sweep: int64[N + 1, N + 1], units that may be reserved while the levels l + 1 .. k are computed.
        pending: int64[N + 1], units to take off from that while the next visit is to r.
        visit: int64[N + 1], units that may be reserved beside a visit to k.
        width: States per segment: 0 .. width - 1 units reserved.

    Returns:
        float64[N + 1, N + 1, width]: cost for the levels l + 1 .. r with m units reserved; infinite if impossible.
    """
    n = prefix.shape[0] - 1
    value = np.full((n + 1, n + 1, width), np.inf)
    for low in range(n, -1, -1):
        for r in range(low + 1, n + 1):
            if top[r] != r:
                continue
            row = value[low, r]
            for k in range(low + 1, r + 1):
                shift = hold[low, k] if k < r else 0
                limit = min(sweep[low, k] - pending[r], width - 1 - shift)
                if top[k] == k:
                    limit = min(limit, visit[k])
                once = prefix[k] - prefix[low] - (tail[r] if k == r else 0.0)
                left = value[low, top[k - 1]]
                right = value[k, r]
                for m in range(limit + 1):
                    cost = once
                    if top[k - 1] > low:
                        cost += left[m]
                    if k < r:
                        cost += right[m + shift]
                    row[m] = min(row[m], cost)
    return value
