"""The smallest process that can start another one, wait for it, and tell its time and peak memory.

On Linux a process starts with the peak memory of the one that starts it, so what is measured is started from here,
with ``python -I -S``, rather than from the benchmarks themselves. Nothing is imported that a bare Python has not.
"""

import os
import sys
import time


def main() -> None:
    answer, *command = sys.argv[1:]
    started_s = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(pid, 0)  # unlike wait(), gives the usage of this very process
    wall_s = time.perf_counter() - started_s
    file = os.open(answer, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(file, f"{wall_s!r} {os.waitstatus_to_exitcode(status)} {usage.ru_maxrss}".encode())


main()
