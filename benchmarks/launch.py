"""A minimal process that starts another one, waits for it, and reports its time and peak memory.

On Linux a process inherits the peak memory of its parent. So measured processes are started from here, with
``python -I -S``, and not from the benchmarks themselves. This module imports nothing that a bare Python has not loaded.
"""

import os
import sys
import time


def main() -> None:
    answer, *command = sys.argv[1:]
    started_s = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(pid, 0)  # unlike wait(), returns the usage of this one process
    wall_s = time.perf_counter() - started_s
    file = os.open(answer, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(file, f"{wall_s!r} {os.waitstatus_to_exitcode(status)} {usage.ru_maxrss}".encode())


main()
