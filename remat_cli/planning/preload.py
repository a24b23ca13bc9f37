"""Imports for solving, preloaded in the process from which workers are forked: see ``processes.shared_calls``.

Nothing here may start a thread: a fork of a process with several threads may hang.
"""

import signal
from importlib import import_module

signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command handles Ctrl-C and ends the workers
for _name in ("remat_cli.planning.curve", "remat_cli.strategies.searches", "highspy"):
    import_module(_name)
