"""What holds for all tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path

# A shell's background jobs and nohup start pytest with SIGINT ignored. Children inherit that, and Python then installs
# no handler: Ctrl-C would do nothing to the commands under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Costs must not depend on the machine, and no test waits for the measurement of one.
os.environ["REMAT_RATES"] = str(Path(__file__).parent / "rates.json")
