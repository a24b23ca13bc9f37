"""Debian's Chromium without a window, through its command line."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

_CONSOLE = re.compile(r":CONSOLE[:(]\d+.*", re.MULTILINE)


def opened(page: Path, folder: Path) -> tuple[str, list[str]]:
    """The document after its scripts have run, and everything that went to the console."""
    chromium = shutil.which("chromium")
    assert chromium, "the tests need Debian's chromium: make system"
    done = subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server",
            "--enable-unsafe-swiftshader", f"--user-data-dir={folder / 'profile'}", "--window-size=1280,900",
            "--virtual-time-budget=20000", "--enable-logging=stderr", "--dump-dom", page.resolve().as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    # A graphics driver in software tells how slow reading back is; that is no word of the page's.
    said = [line for line in _CONSOLE.findall(done.stderr) if "GL Driver Message (OpenGL, Performance" not in line]
    return done.stdout, said
