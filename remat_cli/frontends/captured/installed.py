"""Checks that a framework is installed, in a version that its frontend supports, and imports libraries for it."""

import importlib
import re
from collections.abc import Sequence
from importlib import metadata

from remat_cli.errors import FrameworkUnavailable, UsageError
from remat_cli.extras import install_command

Version = tuple[int, int]


def require_version(title: str, extra: str, oldest: Version, below: Version, distributions: tuple[str, ...]) -> None:
    """Check that a framework can be imported.

    Args:
        title: Its name as people write it.
        extra: The extra of remat that installs it.
        oldest: The first supported version.
        below: The first version after that which is not.
        distributions: The packages that it may come from.

    Raises:
        FrameworkUnavailable: If it is missing, or its version is not supported.
    """
    hint = f"run {install_command(extra)}"
    version = next(filter(None, map(installed_version, distributions)), None)
    if version is None:
        raise FrameworkUnavailable(f"this needs {title}, which is not installed", hint=hint)
    if not oldest <= numbers(version) < below:
        supported = f"{'.'.join(map(str, oldest))} up to, but not including, {'.'.join(map(str, below))}"
        raise FrameworkUnavailable(f"this needs {title} from {supported}, and {version} is installed", hint=hint)


def require_known(device: str, title: str, devices: tuple[str, ...]) -> None:
    """Refuse a kind of device that a framework does not know.

    Raises:
        UsageError: If it does not.
    """
    if device not in devices:
        raise UsageError(f"{title} knows no device {device}", hint=f"choose {' or '.join(devices)}")


def import_libraries(names: Sequence[str]) -> None:
    """Import Python modules, which register operations of their own.

    Raises:
        UsageError: If one cannot be imported.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # a library may do anything while it is imported
            raise UsageError(f"the library {name} cannot be imported: {type(error).__name__}: {error}") from error


def numbers(version: str) -> Version:
    """Major and minor version."""
    major, minor = (int(part) for part in re.findall(r"\d+", version)[:2])
    return major, minor


def installed_version(name: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
