"""Optional packages: which are missing, and how to install them into the environment that has remat."""

import json
import re
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from remat_cli.errors import UsageError

_DRAWN_WITH = {"html": ("jinja2", "plotly"), "svg": ("matplotlib",), "png": ("matplotlib",)}
_GATHERING = frozenset({"all-solvers", "dev"})
"""Extras that repeat what others install."""
_NAMES = {"yaml": "pyyaml"}
"""Distributions that are not called like their module."""


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation of remat: ``pip install 'remat[torch]'``.

    Without an extra, it completes an installation that lacks what remat itself needs.

    uv and pipx give a tool an environment of its own, which pip does not reach. A remat that did not come from an index
    is named by its origin, because the index need not have it.
    """
    try:
        installed = metadata.distribution("remat")
        installer = (installed.read_text("INSTALLER") or "").strip()
        origin = json.loads(installed.read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:  # run from a checkout, without an installation
        installer, origin = "", {}
    environment = Path(sys.prefix)
    if (environment / "uv-receipt.toml").exists():
        command = "uv tool install --force"
    elif (environment / "pipx_metadata.json").exists():
        command = "pipx install --force"
    else:
        command = "uv pip install" if installer == "uv" else "pip install"
    return f"{command} {_requirement(extra, origin)}"


def is_installed(package: str) -> bool:
    """Whether ``package`` can be imported, without importing it."""
    try:
        return util.find_spec(package) is not None
    except (ImportError, ValueError):  # an import hook refuses it, or left a broken module
        return False


def require_drawing(format: str) -> None:
    """Refuse a page or a figure for which a package is missing, before the work for it begins.

    Raises:
        UsageError: If one is missing.
    """
    for package in _DRAWN_WITH.get(format, ()):
        if not is_installed(package):
            raise _missing(package, "plot")


def not_imported(error: ImportError) -> UsageError | None:
    """The error to show for a failed import; None if it is of no package that remat or an extra of it asks for."""
    package = (error.name or "").partition(".")[0]
    extra = _extras().get(_normal(_NAMES.get(package, package)))
    if extra is None:
        return None
    if is_installed(package):
        hint = f"install it again, or a version of it that fits: {install_command(extra)}"
        return UsageError(f"{package} is installed, but cannot be imported: {error}", hint=hint)
    return _missing(package, extra)


def _missing(package: str, extra: str) -> UsageError:
    return UsageError(f"{package} is not installed", hint=f"install it with: {install_command(extra)}")


def _extras() -> dict[str, str]:
    """The extra that installs each package that remat can use; empty for those that come with remat."""
    try:
        requirements = metadata.requires("remat") or []
    except metadata.PackageNotFoundError:
        requirements = []
    extras: dict[str, str] = {}
    for requirement in requirements:
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"]([\w.-]+)['\"]", requirement)
        if name and (extra is None or extra[1] not in _GATHERING):
            extras.setdefault(_normal(name[0]), "" if extra is None else extra[1])
    return extras


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirement(extra: str, origin: dict[str, Any]) -> str:
    """``'remat[torch]'`` as an argument of a shell; ``origin`` is direct_url.json, or empty for an index."""
    asked = f"[{extra}]" if extra else ""
    url = str(origin.get("url", ""))
    if origin.get("dir_info", {}).get("editable"):
        return f"-e '{url2pathname(urlsplit(url).path)}{asked}'"
    kind = origin.get("vcs_info", {}).get("vcs", "")
    place = f" @ {kind}+{url}" if kind else f" @ {url}" if url else ""
    return f"'remat{asked}{place}'"
