"""The package as users install it.

pip, pipx and uv install the wheel and the source distribution into separate environments, with the newest versions
that the metadata allow, and uv with the smallest. In each, `remat` makes a plan of a small graph and checks it. Sizes
are those on disk after that, including bytecode; times are medians of fresh processes. Extras are resolved, not
installed. The benchmark needs the network, and Pythons on the PATH, from pyenv or from uv; a missing Python is left
out and reported.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.frame import Column, Row, Session, Table, columns
from benchmarks.machine import ROOT
from benchmarks.measure import BenchmarkError, Ended, run_process, spread, succeeded

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_INSTALLERS = ("pip", "pipx", "uv")
_SMALLEST = "uv, smallest versions"
"""Of what remat asks for itself, on the oldest Python: some of these know no newer one."""
_LIMIT_S = 900.0
_IMPORTS = 7
_NOT_EXTRAS = ("dev",)

TABLES = (
    Table(
        "installs",
        "",
        (
            *columns("text", python="Python", installer="installer", archive="from", ending="plan made and checked"),
            Column("packages", "packages", "count"),
            *columns("bytes", own_bytes="remat itself", all_bytes="with all packages"),
            *columns("seconds", bare="bare Python", imported="import remat_cli", help="remat --help"),
        ),
    ),
    Table(
        "extras",
        "Extras",
        (
            *columns("text", python="Python", extra="extra", ending="resolves"),
            Column("packages", "packages more than without", "count"),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Installed:
    """An installation: its interpreter, and the command in it."""

    python: Path
    remat: Path


def run(session: Session) -> list[Row]:
    """Everything on every Python; if quick, one Python, pip and uv, and one extra."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(session.folder / "dist"), str(ROOT)]
    succeeded(run_process(build, limit_s=_LIMIT_S), "building the package")
    [wheel], [source] = (list((session.folder / "dist").glob(f"*{end}")) for end in (".whl", ".tar.gz"))
    tools = _tools(session)
    rows: list[Row] = []
    for version in PYTHONS[-1:] if session.quick else PYTHONS:
        python = find_python(version, tools)
        if python is None:
            session.say(f"Python {version} is not here")
            rows.append(_row(version, "", "", "no such Python here"))
            continue
        installers = (*_INSTALLERS, _SMALLEST) if version == PYTHONS[0] else _INSTALLERS
        for installer in _INSTALLERS[::2] if session.quick else installers:
            for archive in (wheel,) if session.quick or installer in ("pipx", _SMALLEST) else (wheel, source):
                session.say(f"Python {version}: {installer}, {archive.name}")
                rows.append(_measured(session, tools, python, version, installer, archive))
                session.keep(rows)
    return rows + list(_extras(session, tools, wheel))


def _tools(session: Session) -> Path:
    """The ``bin`` folder of an environment with uv and pipx."""
    session.say("uv and pipx")
    folder = session.folder / "tools"
    succeeded(run_process([sys.executable, "-m", "venv", str(folder)]), "making an environment")
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv", "pipx"]
    succeeded(run_process(install, limit_s=_LIMIT_S), "installing uv and pipx")
    return folder / "bin"


def find_python(version: str, tools: Path) -> str | None:
    """An interpreter of this version: on the PATH, from pyenv, or one that uv knows; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    known = [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"))]
    found = run_process([str(tools / "uv"), "python", "find", "--no-python-downloads", version])
    for path in (f"python{version}", *known, found.out.strip()):
        if path and _version_of(path) == version:
            return path
    return None


def _version_of(python: str) -> str | None:
    """Major and minor version of an interpreter; None if it cannot be started (as a shim of pyenv without version)."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    except OSError:
        return None
    return told.stdout.strip() if told.returncode == 0 else None


def _measured(session: Session, tools: Path, python: str, version: str, installer: str, archive: Path) -> Row:
    kind = "wheel" if archive.suffix == ".whl" else "source"
    folder = session.folder / f"{version}-{installer}-{kind}"
    try:
        installed = install(tools, python, installer, archive, folder)
        works(installed.remat, folder)
    except BenchmarkError as error:
        return _row(version, installer, kind, str(error))
    asking = [str(installed.python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(_step(asking, "asking").out.strip())
    commands = {
        "bare": [str(installed.python), "-I", "-c", "pass"],
        "imported": [str(installed.python), "-I", "-c", "import remat_cli"],
        "help": [str(installed.remat), "--help"],
    }
    values: Row = {}
    for name, command in commands.items():
        values[name] = spread([_step(command, command[-1]).wall_s for _ in range(session.times(_IMPORTS))])
    values |= {"packages": len(list(site.glob("*.dist-info")))}
    return _row(
        version, installer, kind, "yes", values | {"own_bytes": _size(site / "remat_cli"), "all_bytes": _size(site)}
    )


def _row(version: str, installer: str, archive: str, ending: str, values: Row | None = None) -> Row:
    case = {"python": version, "installer": installer, "archive": archive, "ending": ending}
    return TABLES[0].row(case, values or {})


def install(tools: Path, python: str, installer: str, archive: Path, folder: Path) -> Installed:
    """Install ``archive`` with ``installer`` for ``python`` below ``folder``.

    Raises:
        BenchmarkError: If a step fails.
    """
    folder.mkdir()
    if installer == "pipx":
        places = {"PIPX_HOME": str(folder / "home"), "PIPX_BIN_DIR": str(folder / "bin"), "PIPX_DEFAULT_BACKEND": "pip"}
        command = [str(tools / "python"), "-m", "pipx", "install", "--quiet", "--python", python, str(archive)]
        _step(["env", *(f"{name}={value}" for name, value in places.items()), *command], "pipx install")
        return Installed(folder / "home" / "venvs" / "remat" / "bin" / "python", folder / "bin" / "remat")
    environment = folder / "environment"
    inside = environment / "bin" / "python"
    if installer in ("uv", _SMALLEST):
        _step([str(tools / "uv"), "venv", "--quiet", "--python", python, str(environment)], "uv venv")
        into = ["--quiet", "--compile-bytecode", "--python", str(inside), str(archive)]
        into += ["--resolution", "lowest-direct"] if installer == _SMALLEST else []
        _step([str(tools / "uv"), "pip", "install", *into], "uv pip install")
    else:
        _step([python, "-m", "venv", str(environment)], "making an environment")
        _step([str(inside), "-m", "pip", "install", "--quiet", str(archive)], "pip install")
    return Installed(inside, environment / "bin" / "remat")


def works(remat: Path, folder: Path) -> None:
    """Make a plan of a small graph in ``folder``, and check it.

    Raises:
        BenchmarkError: If a command fails, or prints unexpected output.
    """
    graph, plan = str(folder / "g.json"), str(folder / "g.plan.json")
    for arguments, says in (
        (("--version",), "remat "),
        (("--help",), "Find the cheapest plan"),
        (("export", "zoo:unit-chain{n=17}", "-o", graph), ""),
        (("solve", graph, "--budget", "60%", "--strategy", "optimal", "-o", plan), "proven optimal"),
        (("check", plan), "fits"),
    ):
        ended = _step([str(remat), *arguments], f"remat {arguments[0]}", folder)
        if says not in ended.out:
            raise BenchmarkError(f"remat {arguments[0]} does not say {says!r}")


def _step(command: list[str], what: str, folder: Path | None = None) -> Ended:
    # The new environments must not see this environment's packages.
    clean = ["env", "-u", "PYTHONPATH", "-u", "VIRTUAL_ENV", *command]
    return succeeded(run_process(clean, limit_s=_LIMIT_S, folder=folder or Path("/")), what)


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _extras(session: Session, tools: Path, wheel: Path) -> Iterator[Row]:
    """The packages that every extra adds, as uv resolves it."""
    extras = [name for name in extras_of(wheel) if name not in _NOT_EXTRAS]
    for version in PYTHONS[-1:] if session.quick else PYTHONS:
        without = _resolved(session, tools, version, f"remat @ {wheel.as_uri()}")
        if isinstance(without, str):
            raise BenchmarkError(f"remat does not resolve on Python {version}: {without}")
        for extra in extras[:1] if session.quick else extras:
            session.say(f"Python {version}: extra {extra}")
            found = _resolved(session, tools, version, f"remat[{extra}] @ {wheel.as_uri()}")
            values = {"ending": found} if isinstance(found, str) else {"ending": "yes", "packages": found - without}
            yield TABLES[1].row({"python": version, "extra": extra}, values)


def extras_of(wheel: Path) -> list[str]:
    """The extras that a wheel offers, in their order."""
    from zipfile import ZipFile

    with ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    return [line.partition(": ")[2] for line in lines if line.startswith("Provides-Extra: ")]


def _resolved(session: Session, tools: Path, version: str, requirement: str) -> int | str:
    """Number of packages that ``requirement`` needs, or why it cannot be resolved."""
    asked = session.folder / "requirements.in"
    asked.write_text(requirement + "\n", encoding="utf-8")
    options = ["--quiet", "--no-header", "--no-annotate", "--python-version", version, "--only-binary", ":all:"]
    ended = run_process([str(tools / "uv"), "pip", "compile", *options, str(asked)], limit_s=_LIMIT_S)
    if ended.problem():
        return ended.problem()
    return sum("==" in line or " @ " in line for line in ended.out.splitlines())
