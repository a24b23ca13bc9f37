"""What holds for all tests."""

from __future__ import annotations

import signal

# A shell's background jobs and nohup start pytest with SIGINT ignored. Children inherit that, and Python then installs
# no handler: Ctrl-C would do nothing to the commands under test.
signal.signal(signal.SIGINT, signal.default_int_handler)
