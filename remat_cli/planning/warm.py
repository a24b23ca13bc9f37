"""What solving needs, imported ahead in the process from which others are forked: see ``processes.shared_calls``.

Nothing here may start a thread, for forks of a process with several may hang.
"""

from __future__ import annotations

import signal
from importlib import import_module

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which ends the others
for _name in ("remat_cli.planning.curve", "remat_cli.strategies.auto", "remat_cli.strategies.optimal", "highspy"):
    import_module(_name)
import_module("remat_cli.milp._pyomo").load()
