"""``import remat``: the package ``remat_cli`` under the name of its distribution, with all modules in it."""

import sys
from collections.abc import Sequence
from importlib import import_module, util
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

import remat_cli

if TYPE_CHECKING:
    from remat_cli import __version__ as __version__
    from remat_cli.api import *  # noqa: F403 - as in remat_cli


class _Alias(MetaPathFinder, Loader):
    """Finds ``remat.x`` as ``remat_cli.x``: one module, since two copies had two of each class."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The alias of a module of ``remat_cli``; None for others, and for ``python -m remat``, which runs a file."""
        package, _, rest = name.partition(".")
        if package != __name__ or rest == "__main__" or util.find_spec(f"remat_cli.{rest}") is None:
            return None
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself, whose own specification is kept: the import system replaces it."""
        module = import_module("remat_cli" + spec.name.removeprefix(__name__))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module, which has run already, its own specification back."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _Alias())
sys.modules[__name__] = remat_cli
