"""Reading and writing of whole files: ``-`` for the standard streams, and never a half-written file."""

import contextlib
import errno
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

from remat_cli.errors import InputError, Problem, UsageError, Worded
from remat_cli.registry import suggestion
from remat_cli.standard_output import stdout
from remat_cli.units import parse_size

STDIN_NAME = "<stdin>"


LIMIT = "REMAT_MAX_INPUT"
"""Environment variable with the largest size of an input, such as ``4GB``."""
_MOST_INPUT = 10**9
"""Its default, in bytes: four plans of a million nodes, and far less than would exhaust the memory of a machine."""
_AT_ONCE = 1 << 20
_MOST_NAMES = 1_000
"""Files of a folder among which to look for the name that was meant: that takes less than a tenth of a second."""


def most_input() -> int:
    """The largest input that is read, in bytes.

    Raises:
        UsageError: If the environment variable is not a size.
    """
    asked = os.environ.get(LIMIT, "")
    try:
        return parse_size(asked) if asked else _MOST_INPUT
    except UsageError as error:
        raise UsageError(f"{LIMIT}: {error.message}", hint=error.hint) from None


def cache_folder(name: str) -> Path:
    """The folder ``name`` among the user's caches; it need not exist."""
    from platformdirs import user_cache_path

    return user_cache_path("remat", appauthor=False) / name


def read_bytes(path: str) -> tuple[bytes, str]:
    """The content of ``path`` (``-`` for standard input) and the name to use for it in messages.

    Raises:
        InputError: If the file is missing, unreadable, larger than :func:`most_input`, or a device.
    """
    name = STDIN_NAME if path == "-" else path
    if path == "-" and sys.stdin is None:
        raise InputError(name, [Problem("standard input is closed")])
    try:
        if path == "-":
            return _content(sys.stdin.buffer, name), name
        with Path(path).open("rb") as stream:
            return _content(stream, name), name
    except FileNotFoundError:
        raise InputError(name, [Problem("there is no such file", hint=_instead(path))]) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(name, [Problem(f"cannot be read: {reason}")]) from None


def read_text(path: str) -> tuple[str, str]:
    """The text of ``path`` (``-`` for standard input) and the name to use for it in messages.

    Raises:
        InputError: As :func:`read_bytes`, and if it is not UTF-8.
    """
    data, name = read_bytes(path)
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


def _instead(path: str) -> str:
    """What to give instead of a missing file: a graph of the zoo, once exported, or the file of the closest name."""
    if path.startswith("zoo:"):
        return f"write the graph to a file first: remat export '{path}' -o graph.json"
    missing = Path(path)
    try:
        names = [file.name for file in missing.parent.iterdir()]
    except (OSError, ValueError):
        return ""
    return suggestion(missing.name, names) if len(names) <= _MOST_NAMES else ""


def _content(stream: BinaryIO, name: str) -> bytes:
    """Everything in ``stream``, unless that is too much."""
    if _is_endless(stream):
        raise InputError(name, [Problem("is a device, which has no end", hint="give a file or a pipe")])
    most, parts, size = most_input(), [], 0
    while part := stream.read(_AT_ONCE):
        parts.append(part)
        size += len(part)
        if size > most:
            raise InputError(
                name, [Problem(f"is larger than {most:,} bytes", hint=f"set {LIMIT} to a larger size, such as 4GB")]
            )
    return b"".join(parts)


def _is_endless(stream: BinaryIO) -> bool:
    """Whether ``stream`` is a device such as ``/dev/zero``. A terminal ends when the user ends it."""
    try:
        mode = os.fstat(stream.fileno())
    except (OSError, AttributeError):  # no file behind it, as in a test or a notebook
        return False
    if stat.S_ISCHR(mode.st_mode):
        return not stream.isatty() and mode.st_rdev != Path(os.devnull).stat().st_rdev
    return stat.S_ISBLK(mode.st_mode)


def write_text(path: str, text: str) -> None:
    """Write ``text``, as UTF-8, like :func:`write_bytes`."""
    write_bytes(path, text.encode("utf-8"))  # documents are UTF-8, whatever the terminal's encoding


def write_bytes(path: str, data: bytes) -> None:
    """Write ``data`` to ``path`` in one step (``-`` for standard output).

    The data goes to a temporary file beside the target, which then takes the target's place, so that a reader
    sees the old content or the new and an interruption loses neither. Missing folders are made. Something that is not
    a regular file (``/dev/stdout``, a named pipe) is written to directly.

    Raises:
        UsageError: If the file cannot be written, or standard output is closed.
        OSError: If standard output cannot be written.
    """
    if path == "-":
        require_stdout()
        stream = stdout()
        stream.flush()
        rest = memoryview(data)
        while rest:  # a raw stream (PYTHONUNBUFFERED, in a script) may take only a part at a time
            rest = rest[stream.buffer.write(rest) :]
        stream.buffer.flush()
        return
    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        target = _resolved(target)  # write through a symbolic link, not over it
        target.parent.mkdir(parents=True, exist_ok=True)
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
        raise UsageError(f"{path}: cannot be written: {reason}", hint=_another("-o")) from None


def require_stdout() -> None:
    """Refuse to write a document to standard output if that is closed, as in ``>&-``: it would be lost.

    Raises:
        UsageError: If it is.
    """
    if stdout() is None or (sys.__stdout__ is None and getattr(stdout(), "name", "") == os.devnull):
        raise UsageError("standard output is closed", hint="name a file with -o")


def require_writable(path: str, *, option: str = "-o") -> None:
    """Refuse a target that :func:`write_text` could not write, before the work for it begins.

    ``option`` named it, for the hint.

    Raises:
        UsageError: If the folder is not writable or cannot be made, or if the target is a folder itself.
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
        else:
            folder = next(folder for folder in target.parents if folder.exists())  # where folders are made
            if not folder.is_dir():
                problem = errno.ENOTDIR
            elif not os.access(folder, os.W_OK | os.X_OK):
                problem = errno.EACCES
    except (OSError, RuntimeError) as error:  # a loop of links, a name that is too long
        problem = getattr(error, "errno", None) or errno.ELOOP
    if problem is not None:
        raise UsageError(f"{path}: cannot be written: {os.strerror(problem)}", hint=_another(option))


def _another(option: str) -> str:
    return Worded("choose another path", f"choose another file with {option}")


def make_folders(path: str, *, option: str) -> None:
    """Make the missing folders of a file that another library will write.

    Raises:
        UsageError: If they cannot be made; ``option`` named the file.
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}", hint=_another(option)) from None


def _resolved(path: Path) -> Path:
    """The target of symbolic links.

    Raises:
        OSError: If they form a loop, or if the system does not let this user follow one: a link of somebody else in a
            folder that everybody may write to (``protected_symlinks``). Only the system checks that, and only where it
            follows the link itself.
        RuntimeError: If they form a loop, before Python 3.13.
    """
    if path.is_symlink():
        with contextlib.suppress(FileNotFoundError):  # a link to a file that is still to be made
            os.stat(path)  # noqa: PTH116 - Path.exists swallows errors in some versions
    resolved = path.resolve()
    if resolved.is_symlink():  # since Python 3.13, resolve() returns a loop as it is
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return resolved


def _umask() -> int:
    """The process's umask. It can only be read by setting it, so set it back at once."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
