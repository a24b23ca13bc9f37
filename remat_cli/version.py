"""The version: the one place where it is written."""

from __future__ import annotations

__version__ = "0.5.0.dev0"
