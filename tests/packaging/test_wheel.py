"""The package as a user gets it: built, installed somewhere else, and run away from the sources."""

import csv
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from benchmarks.measure import BenchmarkError
from benchmarks.packages import PYTHONS, extras_of, works
from remat_cli import __version__

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    """A folder with the source distribution, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def wheel(built) -> Path:
    [found] = built.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Path:
    """The ``bin`` folder of a fresh environment that has the wheel, and lends its dependencies from this one."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    install = ["--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *install], check=True)
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    # A path in a .pth file is searched for packages; the .pth files in it, such as that of an editable remat, are not.
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "bin"


def run(installed: Path, line: str, cwd: str = "/") -> subprocess.CompletedProcess[str]:
    """Run a line of bash with the installed ``remat`` on the PATH, and none of this process's Python settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "REMAT_", "VIRTUAL_ENV"))}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=cwd,
        env={**kept, "PATH": f"{installed}:{kept['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_wheel_holds_the_package_its_schemas_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for needed in (
        "remat/py.typed",
        "remat_cli/py.typed",
        "remat_cli/cli/main.py",
        "remat_cli/cli/commands/solve.py",
        "remat_cli/solvers/glpk_worker.py",
        "remat_cli/schemas/graph-v1.json",
        "remat_cli/schemas/plan-v1.json",
        "remat_cli/schemas/report-v1.json",
    ):
        assert needed in names
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"remat", "remat_cli", f"remat-{__version__}.dist-info"}
    assert not [name for name in names if "test" in name or "__pycache__" in name]
    sources = {str(p.relative_to(ROOT)) for top in ("remat", "remat_cli") for p in (ROOT / top).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources


def test_the_wheel_tells_what_it_is(wheel):
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(f"remat-{__version__}.dist-info/METADATA").decode()
    assert f"\nVersion: {__version__}\n" in metadata
    assert "\nRequires-Python: >=3.11\n" in metadata
    assert "\nRequires-Dist: highspy" in metadata
    assert "swiglpk" in metadata  # an extra
    assert Metadata.from_email(metadata, validate=True).license_expression == "MIT"
    assert archive.read(f"remat-{__version__}.dist-info/entry_points.txt").decode() == (
        "[console_scripts]\nremat = remat_cli.__main__:main\n"
    )


def test_the_source_distribution_holds_what_the_tests_need(built):
    [source] = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in (
        "pyproject.toml",
        "README.md",
        "Makefile",
        "constraints.txt",
        "schemas/graph-v1.json",
        "graphs/toy.yaml",
        "action.yml",
        ".pre-commit-hooks.yaml",
    ):
        assert needed in names
    assert "tests/packaging/test_wheel.py" in names


def test_the_installed_package_is_the_one_that_runs(installed):
    shown = run(installed, "python -c 'import remat_cli; print(remat_cli.__file__)'; command -v remat")
    package, command = shown.stdout.split()
    assert Path(package).is_relative_to(installed.parent)
    assert command == str(installed / "remat")


def test_the_package_has_the_name_of_its_distribution_too(installed):
    """Modules are the same under both names, or there would be two of each class."""
    code = """
import remat, remat_cli, remat.api.documents, remat.errors
from remat_cli.api import documents
assert remat is remat_cli and remat.api.documents is documents and remat.load_graph is documents.load_graph
assert documents.__spec__.name == documents.__name__ == "remat_cli.api.documents"
try:
    remat.check("nowhere.json")
except remat.errors.RematError as error:
    print(type(error).__module__)
try:
    import remat.nonsense
except ModuleNotFoundError as error:
    print(error)
"""
    done = run(installed, f"python -W error -c '{code}'")
    assert (done.stdout, done.stderr) == ("remat_cli.errors\nNo module named 'remat.nonsense'\n", "")
    asked = run(installed, "python -W error -m remat --version")
    assert (asked.stdout, asked.stderr) == (f"remat {__version__}\n", "")


def test_importing_by_either_name_loads_nothing_else(installed):
    code = 'import sys, remat; print([m for m in sys.modules if m.startswith("remat_cli.") or m == "numpy"])'
    assert run(installed, f"python -c '{code}'").stdout == "['remat_cli.version']\n"


def test_help_and_schemas_come_from_the_wheel(installed):
    assert run(installed, "remat --version").stdout == f"remat {__version__}\n"
    told = run(installed, "remat --help")
    assert (told.returncode, told.stderr) == (0, "")
    assert "Find the cheapest plan" in told.stdout
    for name in ("graph", "plan", "report"):
        printed = run(installed, f"remat schema {name}")
        assert printed.returncode == 0, printed.stderr
        assert json.loads(printed.stdout) == json.loads(
            (ROOT / "schemas" / f"{name}-v1.json").read_text(encoding="utf-8")
        )


def test_a_pipeline_away_from_the_sources(installed):
    line = "remat export 'zoo:linear{n=4}' | remat solve - --budget none -o - | remat check -"
    done = run(installed, line)
    assert done.returncode == 0, done.stderr
    assert "valid plan" in done.stdout


@pytest.mark.parametrize(
    "how",
    [
        *(f"--strategy checkmate-ilp --solver '{spec}'" for spec in ("highs", "cbc", "glpk{via=swiglpk}", "gurobi")),
        pytest.param("--strategy checkmate-ilp --solver 'glpk{via=glpsol}'", marks=pytest.mark.system),
        "--strategy moccasin",
    ],
)
def test_documents_are_all_that_a_search_away_from_the_sources_prints(installed, tmp_path, how):
    """Whatever the solver, in the version that is installed here, prints by itself."""
    search = f"remat solve - -b 5B -q -o - {how}"
    line = f"remat export 'zoo:unit-chain{{n=9}}' -q | tee g.json | {search} | tee p.json | remat check - --format json"
    done = run(installed, line, str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ok"]
    assert json.loads((tmp_path / "g.json").read_text(encoding="utf-8"))["schema"] == "remat-graph/1"
    plan = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))
    assert plan["schema"] == "remat-plan/1"
    assert plan["claim"]["status"] == "optimal"
    told = run(installed, f"remat solve g.json -b 5B -q -o q.json --format json {how}", str(tmp_path))
    assert (told.returncode, told.stderr) == (0, "")
    assert json.loads(told.stdout)["schema"] == "remat-report/1"
    rows = run(installed, f"remat solve g.json --budgets 5B,6B -q -o plans/ --format csv {how}", str(tmp_path))
    assert (rows.returncode, rows.stderr) == (0, "")
    assert len(list(csv.DictReader(rows.stdout.splitlines()))) == 2


def test_documents_are_all_that_an_export_of_pytorch_prints(installed, tmp_path):
    model = "import torch\ndef build():\n    return torch.nn.Linear(4, 4), (torch.zeros(2, 4),)\n"
    (tmp_path / "train.py").write_text(model, encoding="utf-8")
    line = "remat export torch:train.py:build -q | remat solve - -b none -q -o - | remat check - --format json"
    done = run(installed, line, str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ok"]


def test_what_the_benchmark_of_packages_asks_of_an_installation(installed, wheel, tmp_path):
    """The steps that `python -m benchmarks packages` takes on other Pythons, on this one and without the network."""
    works(installed / "remat", tmp_path)
    with pytest.raises(BenchmarkError, match="remat --version"):
        works(Path("false"), tmp_path)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(extras_of(wheel)) == set(declared["optional-dependencies"])
    assert declared["requires-python"] == f">={PYTHONS[0]}"


def test_the_package_says_which_pythons_it_is_for(wheel):
    metadata = zipfile.ZipFile(wheel).read(f"remat-{__version__}.dist-info/METADATA").decode()
    for version in PYTHONS:
        assert f"\nClassifier: Programming Language :: Python :: {version}\n" in metadata
