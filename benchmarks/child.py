"""The fresh process in which :func:`benchmarks.measure.call` calls one function."""

from __future__ import annotations

import json
import resource
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.measure import peak_bytes
from remat_cli.running import exit_now


def main(function: str, arguments: str, answer: str) -> None:
    module, _, name = function.partition(":")
    values = getattr(import_module(module), name)(**json.loads(arguments))
    used = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    Path(answer).write_text(json.dumps({"peak_bytes": peak_bytes(used), "values": values}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
    # Leave as the command does: a solver that still runs could crash Python's normal exit.
    exit_now(0)
