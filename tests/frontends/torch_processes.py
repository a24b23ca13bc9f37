"""Runs functions in processes that train together over gloo, or in one of its own: none with a compiler's past."""

import os
import sys
import tempfile
import traceback
from itertools import accumulate
from pathlib import Path

import torch

from remat_cli.frontends.torch.measure.memory import changes_of

_IMPORTED = [
    "torch",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.profiler",
    "remat_cli.api.fitting",
    "remat_cli.frontends.torch.train.fitting",
    "remat_cli.frontends.torch.train.sharded_step",
]
"""Modules that one process imports for all that are forked from it: 7 s of processor time for each of them.

They have nothing else of one another: what is compiled, and threads, begin after the fork.
"""


def together(function, *arguments, count=2):
    """What ``function(rank, *arguments)`` returns in each process."""
    return _forked(_in_group, [(function, rank, count, arguments) for rank in range(count)])


def apart(function, *arguments, **environment):
    """What ``function(*arguments)`` returns in a process of its own, whose environment has ``environment`` too."""
    [returned] = _forked(_alone, [(function, arguments)], environment)
    return returned


def _forked(target, calls, extra=()):
    with tempfile.TemporaryDirectory() as folder:
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_IMPORTED)
        environment = {**os.environ, **dict(extra)}  # the server has the one with which it was started
        started = [
            context.Process(target=_run, args=(target, call, environment, folder, number))
            for number, call in enumerate(calls)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(240)
        hanging = [process for process in started if process.is_alive()]
        for process in hanging:
            process.kill()
        said = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("*.txt"))]
        assert not said, "\n".join(said)
        assert not hanging, "the processes wait for each other"
        return [torch.load(Path(folder) / f"{number}.pt", weights_only=False) for number in range(len(calls))]


_STEPS, _TIMES = 40, 3
"""Most steps that are measured, and how often each rank has to see its least.

On a busy machine gloo held 256 bytes to 66 KB too long, in 18 of 25 steps of one of four ranks.
"""


def least_peak(step, clear, enough=None):
    """The most bytes in use in a step after ``clear``, of several the least: threads of gloo let go of tensors late.

    It ends when every rank has seen a peak that is no more than ``enough`` or, where that is not given, its least three
    times; a step under the profiler takes much longer than without.
    """
    peaks = []
    for _ in range(_STEPS):
        clear()
        [changes] = changes_of([step])
        peaks.append(max(accumulate(changes, initial=0)))
        waits = peaks.count(min(peaks)) < _TIMES if enough is None else min(peaks) > enough
        waiting = torch.tensor(float(waits))
        torch.distributed.all_reduce(waiting, torch.distributed.ReduceOp.MAX)
        if not waiting:
            break
    return min(peaks)


def _run(target, call, environment, folder, number):
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        torch.save(target(folder, *call), Path(folder) / f"{number}.pt")
    except BaseException:
        Path(folder, f"{number}.txt").write_text(traceback.format_exc(), encoding="utf-8")
        sys.exit(1)


def _in_group(folder, function, rank, count, arguments):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count)
    try:
        return function(rank, *arguments)
    finally:
        torch.distributed.destroy_process_group()


def _alone(folder, function, arguments):
    return function(*arguments)
