"""The cache of machine code: damaged, unwritable, missing, shared; and the command that fills it."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from cold import FLOW, finish, script, start

ROOT = Path(__file__).parents[2]
NO_HOME = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/cache"}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A folder with machine code."""
    folder = tmp_path_factory.mktemp("filled")
    assert script(FLOW, folder) == "False"
    assert script(FLOW, folder) == "True"
    return folder


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"garbage",
        lambda content: content[: len(content) // 2],
        lambda content: content[:1000] + bytes(len(content) - 1000),
    ],
    ids=["empty", "garbage", "half", "zeros"],
)
def test_damaged_files_are_replaced(filled, tmp_path, damage):
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    good = file.read_bytes()
    file.write_bytes(damage(good))
    assert script(FLOW, tmp_path) == "False"
    assert script(FLOW, tmp_path) == "True"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]


def test_machine_code_of_other_sources_is_not_taken(tmp_path):
    """Kernels are compiled into one another: a change in any of them concerns all."""
    package = tmp_path / "package"
    shutil.copytree(ROOT / "remat_cli", package / "remat_cli", ignore=shutil.ignore_patterns("__pycache__"))
    cache = tmp_path / "cache"
    assert script(FLOW, cache, package=package) == "False"
    with (package / "remat_cli" / "kernels" / "segments.py").open("a") as file:
        file.write("# changed\n")
    assert script(FLOW, cache, package=package) == "False"
    assert script(FLOW, cache, package=package) == "True"


def test_without_a_folder_it_compiles_in_memory(tmp_path):
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    assert script(FLOW, no_folder) == script(FLOW, no_folder) == "False"


def test_a_full_disk_is_no_error(tmp_path):
    full = """
import tempfile
def mkstemp(**options):
    raise OSError(28, "No space left on device")
tempfile.mkstemp = mkstemp
"""
    assert script(full + FLOW, tmp_path) == "False"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_two_first_starts_at_once(tmp_path):
    both = [start(FLOW, tmp_path) for _ in range(2)]
    assert {finish(process) for process in both} <= {"True", "False"}
    assert script(FLOW, tmp_path) == "True"


@pytest.fixture
def installation(tmp_path):
    """A copy of the package that its user can read and not write, with a graph."""
    folder = tmp_path / "installation"
    shutil.copytree(ROOT / "remat_cli", folder / "remat_cli", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "schemas", folder / "schemas")
    shutil.copy(ROOT / "graphs" / "unet.json", folder)
    yield folder
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)


def _read_only(folder: Path) -> dict[str, object]:
    """Options of a process that cannot write in ``folder``, and has no home."""
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return {"env": NO_HOME, "preexec_fn": _obey_modes}


def _obey_modes() -> None:
    """Have the modes of files hold for root as well: it loses all capabilities with the next program."""
    prctl, drop_from_bounding_set = ctypes.CDLL(None).prctl, 24
    for capability in range(64):
        prctl(drop_from_bounding_set, capability, 0, 0, 0)


def test_a_read_only_installation_without_a_home(installation):
    options = _read_only(installation)
    assert script(FLOW, None, package=installation, **options) == "False"
    solve = """
    import sys
    from remat_cli.cli.main import run
    sys.exit(run(["solve", "unet.json", "--budget", "80%", "--strategy", "min-cut", "--quiet", "-o", "-"]))
    """
    plan = json.loads(script(solve, None, package=installation, cwd=installation, **options))
    assert plan["schema"].startswith("remat-plan/")
    assert not list(installation.rglob("*.nbc"))


def test_a_read_only_installation_that_was_warmed_up(installation):
    """As in an image that one user makes and another runs."""
    assert script(FLOW, None, package=installation, env=NO_HOME) == "False"
    assert list((installation / "remat_cli" / "kernels" / "__pycache__").glob("flow.*.nbc"))
    assert script(FLOW, None, package=installation, **_read_only(installation)) == "True"


def _warm_up(cache: Path) -> subprocess.CompletedProcess[str]:
    code = f"""
    from remat_cli.kernels import compiling
    assert set({QUICK}) < set(compiling.GROUPS)
    compiling.GROUPS = {QUICK}
    from remat_cli.cli.main import main
    main()
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), "warm-up"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


QUICK = ("flow", "segments", "repeated")
"""Groups that take a second or two each; all take most of a minute."""


def test_the_command_fills_the_cache(tmp_path):
    done = _warm_up(tmp_path)
    assert done.returncode == 0
    assert str(tmp_path) in done.stdout
    code = """
    from remat_cli.kernels.compiling import GROUPS, ready
    print(*(group for group in GROUPS if ready(group)))
    """
    assert set(script(code, tmp_path).split()) == set(QUICK)


def test_machine_code_of_every_group_is_kept():
    """In the folder of all other tests, so that nothing is compiled for this one alone."""
    folder = os.environ.get("NUMBA_CACHE_DIR")
    code = """
    from remat_cli.control import Control
    from remat_cli.kernels.compiling import GROUPS, kept, wait
    print(all(wait(group, Control()) and kept(group) for group in GROUPS))
    """
    assert script(code, folder and Path(folder)) == "True"
    ready = "from remat_cli.kernels.compiling import GROUPS, ready; print(all(map(ready, GROUPS)))"
    assert script(ready, folder and Path(folder)) == "True"


def test_the_command_says_that_there_is_no_folder(tmp_path):
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    done = _warm_up(no_folder)
    assert done.returncode == 1
    assert "no folder to keep machine code" in done.stderr
    assert "NUMBA_CACHE_DIR" in done.stderr


def test_a_cold_start_with_little_time_gives_a_plan(tmp_path):
    code = f"""
    import sys
    from remat_cli.cli.main import run
    graph = {str(ROOT / "graphs" / "resnet50.json")!r}
    sys.exit(run(["solve", graph, "--minimize", "peak", "--time-limit", "3s", "--quiet", "-o", "-"]))
    """
    assert json.loads(script(code, tmp_path))["schema"].startswith("remat-plan/")
