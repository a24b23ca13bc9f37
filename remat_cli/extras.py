"""How to install optional packages: into the environment that has remat, from where remat came."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation of remat: ``pip install 'remat[torch]'``.

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


def _requirement(extra: str, origin: dict[str, Any]) -> str:
    """``'remat[torch]'`` as an argument of a shell; ``origin`` is direct_url.json, or empty for an index."""
    url = str(origin.get("url", ""))
    if origin.get("dir_info", {}).get("editable"):
        return f"-e '{url2pathname(urlsplit(url).path)}[{extra}]'"
    kind = origin.get("vcs_info", {}).get("vcs", "")
    place = f" @ {kind}+{url}" if kind else f" @ {url}" if url else ""
    return f"'remat[{extra}]{place}'"
