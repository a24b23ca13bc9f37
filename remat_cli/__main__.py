"""``python -m remat_cli``: the command line, where the command itself is not on the PATH."""

from __future__ import annotations

from remat_cli.cli.main import main

if __name__ == "__main__":
    main()
