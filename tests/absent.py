"""Commands in an environment from which packages are missing: hidden from imports and from metadata alike."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from cli_process import Done

ROOT = Path(__file__).parents[1]

_HIDE = """
import os, sys

HIDDEN = frozenset(os.environ["HIDDEN_MODULES"].split())
UNLISTED = frozenset(os.environ["HIDDEN_DISTRIBUTIONS"].split())

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] in HIDDEN else self.finder.find_spec(name, *rest)

    def find_distributions(self, *asked):
        found = getattr(self.finder, "find_distributions", lambda *_: ())(*asked)
        return [one for one in found if one.name.lower().replace("_", "-") not in UNLISTED]

    def invalidate_caches(self):
        getattr(self.finder, "invalidate_caches", lambda: None)()

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


def normal(name: str) -> str:
    """The name of a distribution as indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed_by(names: Iterable[str]) -> set[str]:
    """Distributions and all that they need, as their metadata says, markers aside; extras are left out."""
    found: set[str] = set()
    todo = [normal(name) for name in names]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # for another system, or another Python
            continue
        found.add(name)
        todo += [normal(re.match(r"[\w.-]+", one)[0]) for one in requirements if "extra ==" not in one]
    return found


def all_but(names: Iterable[str]) -> set[str]:
    """Every distribution of this environment but these and what they need."""
    return {normal(one.name) for one in metadata.distributions()} - needed_by(names)


def modules_of(distributions: set[str]) -> set[str]:
    """The modules at the top that come from these distributions alone."""
    modules = metadata.packages_distributions()
    return {name for name, owners in modules.items() if {normal(owner) for owner in owners} <= distributions}


def remat_without(hidden: set[str], folder: Path, line: str = "", *, code: str | None = None) -> Done:
    """Run ``remat`` in ``folder`` with these distributions hidden, from its processes too.

    Args:
        hidden: The distributions.
        folder: Where to run; ``hiding`` in it is searched for packages first.
        line: The arguments of the command line, none with a space in it.
        code: Python to run in place of the command line.
    """
    first = folder / "hiding"
    first.mkdir(exist_ok=True)
    (first / "sitecustomize.py").write_text(_HIDE, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REMAT_")}
    done = subprocess.run(
        [sys.executable, "-c", code or "from remat_cli.__main__ import main; main()", *line.split()],
        cwd=folder,
        env={
            **kept,
            "PYTHONPATH": os.pathsep.join([str(first), str(ROOT)]),
            "HIDDEN_MODULES": " ".join(sorted(modules_of(hidden) | hidden)),
            "HIDDEN_DISTRIBUTIONS": " ".join(sorted(hidden)),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Done(done.returncode, done.stdout, done.stderr)
