"""Reading and writing of whole files: ``-`` for the standard streams, and never a half-written file."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from pathlib import Path

from remat_cli.errors import InputError, Problem, UsageError

STDIN_NAME = "<stdin>"


def read_text(path: str) -> tuple[str, str]:
    """The text of ``path`` (``-`` for standard input) and the name to use for it in messages.

    Raises:
        InputError: If the file is missing, unreadable or not UTF-8.
    """
    name = STDIN_NAME if path == "-" else path
    if path == "-" and sys.stdin is None:
        raise InputError(name, [Problem("standard input is closed")])
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(name, [Problem("there is no such file")]) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(name, [Problem(f"cannot be read: {reason}")]) from None
    return decoded(data, name), name


def decoded(data: bytes, name: str) -> str:
    """The text of the file ``name`` with these bytes.

    Raises:
        InputError: If they are not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise InputError(name, [Problem(problem, line=line, hint="save the file as UTF-8 text")]) from None


def write_text(path: str, text: str) -> None:
    """Write ``text``, as UTF-8, like :func:`write_bytes`."""
    write_bytes(path, text.encode("utf-8"))  # documents are UTF-8, whatever the terminal's encoding


def write_bytes(path: str, data: bytes) -> None:
    """Write ``data`` to ``path`` in one step (``-`` for standard output).

    The data goes to a temporary file beside the target, which then takes the target's place, so that a reader
    sees the old content or the new and an interruption loses neither. Something that is not a regular file
    (``/dev/stdout``, a named pipe) is written to directly.

    Raises:
        UsageError: If the file cannot be written.
        OSError: If standard output cannot be written.
    """
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        target = _resolved(target)  # write through a symbolic link, not over it
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            # mkstemp makes the file private; give it the mode that a plain open() would have given.
            Path(temporary).chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
            Path(temporary).replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except (OSError, RuntimeError) as error:  # RuntimeError: how older Pythons report a loop of links
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: cannot be written: {reason}", hint="choose another file with -o") from None


def require_writable(path: str, *, option: str = "-o") -> None:
    """Refuse a target that :func:`write_text` could not write, before the work for it begins.

    Args:
        path: The target, or ``-``.
        option: The option that named it, for the hint.

    Raises:
        UsageError: If the folder does not exist or is not writable, or if the target is a folder itself.
    """
    if path == "-":
        return
    problem = None
    try:
        target = _resolved(Path(path))
        if target.is_dir():
            problem = errno.EISDIR
        elif target.exists() and not target.is_file():
            problem = None if os.access(target, os.W_OK) else errno.EACCES
        elif not target.parent.exists():
            problem = errno.ENOENT
        elif not target.parent.is_dir():
            problem = errno.ENOTDIR
        elif not os.access(target.parent, os.W_OK | os.X_OK):
            problem = errno.EACCES
    except (OSError, RuntimeError) as error:  # a loop of links, a name that is too long
        problem = getattr(error, "errno", None) or errno.ELOOP
    if problem is not None:
        raise UsageError(
            f"{path}: cannot be written: {os.strerror(problem)}", hint=f"choose another file with {option}"
        )


def _resolved(path: Path) -> Path:
    """The target of symbolic links.

    Raises:
        OSError: If they form a loop.
        RuntimeError: The same, before Python 3.13.
    """
    resolved = path.resolve()
    if resolved.is_symlink():  # since Python 3.13, resolve() returns a loop as it is
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return resolved


def _umask() -> int:
    """The process's umask. It can only be read by setting it, so set it back at once."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
