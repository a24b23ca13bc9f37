import importlib.metadata
import subprocess
import sys
from importlib.metadata import Distribution, EntryPoint, EntryPoints

import pytest

from remat_cli.errors import UsageError
from remat_cli.registry import Registry, suggestion
from remat_cli.solvers.registry import SOLVERS
from remat_cli.strategies.registry import STRATEGIES

GROUP = "remat.test-things"


class Thing:
    """What the tests register."""


def table(**entries: str) -> Registry[Thing]:
    return Registry(kind="thing", table=entries, group=GROUP)


class _Package(Distribution):
    """An installed distribution, made up."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nName: {self._name}\nVersion: 1\n" if filename == "METADATA" else None

    def locate_file(self, path):
        raise NotImplementedError


@pytest.fixture
def installed(monkeypatch):
    """Call it with (distribution, name, target) triples: what is then installed besides remat."""

    def install(*points: tuple[str, str, str]) -> None:
        found = EntryPoints(EntryPoint(name, value, GROUP)._for(_Package(owner)) for owner, name, value in points)
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda **wanted: found.select(**wanted))

    return install


def test_entries_load_only_when_asked_for():
    things = table(thing=f"{__name__}:Thing", broken="no.such.module:Thing")
    assert things.names() == ["broken", "thing"]
    assert things.load("thing") is Thing


def test_a_broken_entry_of_our_own_is_shown_in_full():
    with pytest.raises(ModuleNotFoundError):
        table(broken="no.such.module:Thing").load("broken")


def test_listing_names_imports_none_of_the_modules():
    code = (
        "import sys; from remat_cli.strategies.registry import STRATEGIES;"
        "from remat_cli.solvers.registry import SOLVERS;"
        "STRATEGIES.names(); SOLVERS.names();"
        "print([m for m in sys.modules if m.split('.')[0] in {'pyomo', 'highspy', 'scipy', 'pulp', 'gurobipy'}"
        " or m.startswith(('remat_cli.strategies.', 'remat_cli.milp')) and m not in"
        " {'remat_cli.strategies.registry', 'remat_cli.strategies.base'}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(("name", "hint"), [("thign", 'did you mean "thing"?'), ("zzz", "known: other, thing")])
def test_an_unknown_name_is_refused_with_the_closest_one_or_all(name, hint):
    with pytest.raises(UsageError, match=f'there is no thing "{name}"') as caught:
        table(thing="x:X", other="x:X").load(name)
    assert caught.value.hint == hint


def test_entry_points_of_other_packages_are_found(installed):
    installed(("their-package", "theirs", f"{__name__}:Thing"))
    things = table(ours="x:X")
    assert things.names() == ["ours", "theirs"]
    assert things.load("theirs") is Thing


def test_entry_points_of_other_groups_are_not(monkeypatch):
    point = EntryPoint("theirs", f"{__name__}:Thing", "remat.others")._for(_Package("their-package"))
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **wanted: EntryPoints([point]).select(**wanted))
    assert table(ours="x:X").names() == ["ours"]


def test_taking_a_name_of_ours_is_an_error_that_names_both_owners(installed):
    installed(("their-package", "ours", f"{__name__}:Thing"))
    with pytest.raises(UsageError, match='"ours" is claimed by both remat and their-package') as caught:
        table(ours="x:X").load("ours")
    assert "their-package" in caught.value.hint


def test_two_packages_with_one_name_are_an_error_that_names_both(installed):
    installed(("first-package", "theirs", "a:A"), ("second-package", "theirs", "b:B"))
    with pytest.raises(UsageError, match="claimed by both first-package and second-package"):
        table(ours="x:X").names()


@pytest.mark.parametrize("target", ["no.such.module:Thing", f"{__name__}:Missing"])
def test_what_another_package_registered_wrongly_is_a_clean_error(installed, target):
    installed(("their-package", "theirs", target))
    with pytest.raises(UsageError, match=r'the thing "theirs" .* cannot be loaded') as caught:
        table().load("theirs")
    assert caught.value.hint


def test_suggestions_are_close_or_absent():
    assert suggestion("keep-al", ["keep-all", "auto"]) == 'did you mean "keep-all"?'
    assert suggestion("xyz", ["keep-all", "auto"]) == ""


def test_outsiders_have_a_group_for_strategies_and_solvers():
    assert STRATEGIES.group == "remat.strategies"
    assert SOLVERS.group == "remat.solvers"
