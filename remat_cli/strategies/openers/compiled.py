"""Compilation of kernels in the background."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.kernels import compiling
from remat_cli.strategies.engine import Engine


@dataclass(slots=True)
class CompiledLoops(Engine):
    """Starts the compilation of kernels in a thread; returns at once."""

    def work(self, groups: tuple[compiling.Group, ...]) -> bool:
        """Start compiling ``groups``, in this order."""
        compiling.warm(groups)
        return False
