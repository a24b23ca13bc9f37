"""The ``remat`` command, and ``python -m remat_cli`` where it is not on the PATH."""

import os
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line.

    Until it is imported, which takes a moment, Ctrl-C ends the process as it ends one in C: at once, and without words.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # numpy's OpenBLAS makes its threads while it is imported, and interrupts the process if it may not. Nothing here
    # multiplies matrices that are large enough for more than one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from remat_cli.cli.main import main

    main()


if __name__ == "__main__":
    main()
