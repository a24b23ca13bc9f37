"""The hint of a missing package fits the way in which remat was installed."""

import json
import sys
from pathlib import Path

import pytest

from remat_cli.extras import install_command

CHECKOUT = {"url": "file:///src/my%20remat", "dir_info": {}}


@pytest.mark.parametrize(
    ("installer", "origin", "receipt", "command"),
    [
        ("pip", None, "", "pip install 'remat[plot]'"),
        ("uv", None, "", "uv pip install 'remat[plot]'"),
        ("pip", CHECKOUT, "", "pip install 'remat[plot] @ file:///src/my%20remat'"),
        ("pip", {**CHECKOUT, "dir_info": {"editable": True}}, "", "pip install -e '/src/my remat[plot]'"),
        ("uv", CHECKOUT, "uv-receipt.toml", "uv tool install --force 'remat[plot] @ file:///src/my%20remat'"),
        ("pip", None, "pipx_metadata.json", "pipx install --force 'remat[plot]'"),
        (
            "pip",
            {"url": "https://example.org/remat", "vcs_info": {"vcs": "git", "commit_id": "1f3d"}},
            "",
            "pip install 'remat[plot] @ git+https://example.org/remat'",
        ),
        ("", None, "", "pip install 'remat[plot]'"),
    ],
)
def test_the_command_reaches_the_environment_and_the_origin_of_remat(
    installer: str, origin: object, receipt: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    if installer:
        installed = tmp_path / "remat-1.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: remat\nVersion: 1\n")
        (installed / "INSTALLER").write_text(f"{installer}\n")
        if origin is not None:
            (installed / "direct_url.json").write_text(json.dumps(origin))
    if receipt:
        (tmp_path / receipt).touch()
    assert install_command("plot") == command
