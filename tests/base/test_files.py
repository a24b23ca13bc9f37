import contextlib
import errno
import io
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from remat_cli import files
from remat_cli.errors import InputError, UsageError, on_command_line
from remat_cli.files import read_text, require_writable, write_text


@pytest.fixture(autouse=True)
def umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def old(tmp_path):
    """A file with an old text."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    return path


class Crash(BaseException):
    """Stands for whatever ends a process in the middle: a KeyboardInterrupt, for one."""


# Writing


def test_a_new_file_has_the_text_and_the_usual_mode(tmp_path):
    os.umask(0o027)
    target = tmp_path / "plan.json"
    write_text(str(target), "grüße\n")
    assert target.read_bytes() == "grüße\n".encode()
    assert target.stat().st_mode & 0o777 == 0o640
    assert os.umask(0o022) == 0o027  # reading the umask has not changed it
    assert list(tmp_path.iterdir()) == [target]


def test_an_old_file_keeps_its_mode(old):
    old.chmod(0o604)
    write_text(str(old), "new")
    assert old.read_text() == "new"
    assert old.stat().st_mode & 0o777 == 0o604


@pytest.mark.parametrize("crash", [Crash(), KeyboardInterrupt(), OSError(errno.EIO, "I/O error")])
@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
def test_a_crash_in_the_middle_leaves_the_old_file_and_no_litter(old, tmp_path, monkeypatch, step, crash):

    def fail(*_):
        raise crash

    monkeypatch.setattr(*((os, step) if step == "fsync" else (Path, step)), fail)
    with pytest.raises(UsageError if isinstance(crash, OSError) else type(crash)):
        write_text(str(old), "new")
    monkeypatch.undo()
    assert old.read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]


def test_being_killed_in_the_middle_leaves_the_old_file(old):
    code = "import os, sys, signal; from remat_cli.files import write_text;" + (
        "os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL); write_text(sys.argv[1], 'new')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(old)], check=False)
    assert done.returncode == -9
    assert old.read_text() == "old"


def test_a_full_disk_leaves_the_old_file_and_no_litter(old, tmp_path):
    code = """
        import resource, sys
        from remat_cli.errors import UsageError
        from remat_cli.files import write_text
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            write_text(sys.argv[1], "x" * 10_000)
        except UsageError as error:
            print(error.message, error.hint, sep="|")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(old)], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{old}: cannot be written: File too large|choose another path\n"
    assert old.read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]


def test_readers_see_the_old_file_or_the_new_one(tmp_path):
    target = tmp_path / "plan.json"
    versions = [str(digit) * 200_000 for digit in range(5)]
    write_text(str(target), versions[0])
    seen, stop = set(), threading.Event()

    def read():
        while not stop.is_set():
            seen.add(target.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for version in versions:
        write_text(str(target), version)
    stop.set()
    reader.join()
    assert seen <= set(versions)


def test_symbolic_links_are_written_through(tmp_path):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "plan.json", tmp_path / "link.json"
    link.symlink_to(target)
    for text in ("made through a dangling link", "replaced"):
        write_text(str(link), text)
        assert link.is_symlink()
        assert target.read_text() == text


def test_hidden_names_and_names_without_suffix_work(tmp_path):
    for name in (".plan", "plan", "a b.plan.json", "-"):
        write_text(str(tmp_path / name), name)
        assert (tmp_path / name).read_text() == name


def test_what_is_no_regular_file_is_written_to_directly(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_text(str(pipe), "through the pipe\n")
    reader.join(30)
    assert got == ["through the pipe\n"]
    assert pipe.is_fifo()


def test_dev_stdout_works_where_standard_output_is_a_pipe():
    code = "from remat_cli.files import write_text; write_text('/dev/stdout', 'plan\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "plan\n"


def test_dev_full_is_a_clean_error():
    with pytest.raises(UsageError, match="/dev/full: cannot be written: No space left on device"):
        write_text("/dev/full", "plan")
    assert Path("/dev/full").is_char_device()


def test_a_dash_is_standard_output(capsysbinary):
    sys.stdout.write("before\n")
    write_text("-", "grüße\n")
    assert capsysbinary.readouterr().out == "before\ngrüße\n".encode()


def test_documents_on_standard_output_are_utf8_whatever_the_locale():
    code = "from remat_cli.files import write_text; write_text('-', 'grüße\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert done.stdout == "grüße\n".encode()


def _bad_targets(folder: Path) -> dict[str, str]:
    (folder / "file").write_text("")
    (folder / "loop").symlink_to(folder / "loop")
    return {
        "a folder": str(folder),
        "a file as folder": str(folder / "file" / "plan.json"),
        "a loop of links": str(folder / "loop"),
        "too long a name": str(folder / ("x" * 300)),
    }


@pytest.mark.parametrize("case", ["a folder", "a file as folder", "a loop of links", "too long a name"])
def test_unwritable_targets_are_clean_errors_early_and_late(tmp_path, case):
    target = _bad_targets(tmp_path)[case]
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match="cannot be written") as late:
        write_text(target, "plan")
    assert late.value.message.startswith(target)
    assert late.value.hint
    with pytest.raises(UsageError, match="cannot be written") as early:
        require_writable(target, option="--write-model")
    assert early.value.message.startswith(target)
    assert on_command_line(early.value.hint) == "choose another file with --write-model"
    assert sorted(tmp_path.iterdir()) == before


def test_folders_without_permission_are_clean_errors(tmp_path, monkeypatch):
    # The superuser, as whom tests may run, is refused nothing: say no in the system's place.
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files.tempfile, "mkstemp", refuse)
    monkeypatch.setattr(os, "access", lambda *_: False)
    for attempt in (lambda path: write_text(path, "plan"), require_writable):
        with pytest.raises(UsageError, match="cannot be written: Permission denied"):
            attempt(str(tmp_path / "plan.json"))


def test_missing_folders_are_made_when_something_is_written(tmp_path):
    target = tmp_path / "new" / "deep" / "plan.json"
    require_writable(str(target))
    assert not list(tmp_path.iterdir())
    write_text(str(target), "plan")
    assert target.read_text() == "plan"
    files.make_folders(str(tmp_path / "logs" / "log.txt"), option="--solver-log")
    assert (tmp_path / "logs").is_dir()
    with pytest.raises(UsageError, match="cannot be written") as caught:
        files.make_folders(str(target / "log.txt"), option="--solver-log")
    assert caught.value.hint == "choose another path"


def test_good_targets_are_left_alone(tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "not-yet")
    for path in ("-", "/dev/null", str(tmp_path / "new"), str(tmp_path / "old"), str(tmp_path / "link")):
        require_writable(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "old"]
    assert (tmp_path / "old").read_text() == "old"


# Reading


def test_text_and_name_are_read(tmp_path):
    source = tmp_path / "graph.json"
    source.write_bytes(b"\xef\xbb\xbf{}\r\n")
    assert read_text(str(source)) == ("{}\r\n", str(source))


def test_a_dash_is_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("grüße".encode()), encoding="ascii"))
    assert read_text("-") == ("grüße", "<stdin>")


def test_a_missing_file_is_told_what_to_give_instead(tmp_path):
    (tmp_path / "segnet.json").touch()
    for path, hint in (
        (tmp_path / "segnet.jsn", 'did you mean "segnet.json"?'),
        (tmp_path / "none" / "segnet.jsn", ""),
        (tmp_path / "none", ""),
        ("zoo:vgg16{batch=8}", "write the graph to a file first: remat export 'zoo:vgg16{batch=8}' -o graph.json"),
    ):
        with pytest.raises(InputError, match="there is no such file") as caught:
            read_text(str(path))
        assert caught.value.source == str(path)
        assert [problem.hint for problem in caught.value.problems] == [hint]


def test_an_unreadable_file_is_a_clean_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        read_text(str(tmp_path / "graph.json"))


@pytest.mark.parametrize("path", ["/proc/self/mem", "a\0b"])
def test_what_the_system_refuses_to_read_is_a_clean_error(path, monkeypatch):
    with pytest.raises(InputError, match="cannot be read"):
        read_text(path)
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_text(".")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="<stdin>: standard input is closed"):
        read_text("-")


def test_bytes_that_are_no_text_are_pointed_at(tmp_path):
    source = tmp_path / "graph.json"
    source.write_bytes(b"{\n  \n\xff}")
    with pytest.raises(InputError, match=r"graph.json:3: byte 0xff is not UTF-8 \(save the file as UTF-8 text\)"):
        read_text(str(source))


def test_a_link_that_the_system_does_not_follow_is_not_followed(tmp_path, monkeypatch):
    """With protected_symlinks, Linux refuses links of others in folders that everybody may write to."""
    target, link = tmp_path / "precious", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    followed = os.stat

    def refuse(path, *more, **options):
        if os.fspath(path) == str(link) and options.get("follow_symlinks", True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return followed(path, *more, **options)

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(Path, "exists", lambda _: False)  # what newer versions of Python make of the error
    for write in (lambda: write_text(str(link), "new"), lambda: require_writable(str(link))):
        with pytest.raises(UsageError, match="link: cannot be written: Permission denied"):
            write()
    assert target.read_text() == "old"


# What never ends, or is too much


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom"])
def test_a_device_is_refused(path, monkeypatch):
    with pytest.raises(InputError, match=f"{path}: is a device, which has no end"):
        read_text(path)
    with open(path, encoding="latin-1") as endless:  # noqa: PTH123 - a device
        monkeypatch.setattr(sys, "stdin", endless)
        with pytest.raises(InputError, match="<stdin>: is a device, which has no end"):
            read_text("-")


def test_the_null_device_and_pipes_are_read(tmp_path):
    assert read_text(os.devnull) == ("", os.devnull)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = "x" * 3_000_000  # more than a pipe holds, and more than is read at once
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    assert read_text(str(pipe)) == (text, str(pipe))
    writer.join()


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_more_than_the_limit_is_refused_and_the_limit_can_be_raised(tmp_path, monkeypatch, kind):
    path = tmp_path / "graph.json"

    def put(count):
        if kind == "file":
            path.write_bytes(b" " * count)
            return
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        threading.Thread(target=fill, args=(count,), daemon=True).start()

    def fill(count):
        with contextlib.suppress(BrokenPipeError), path.open("wb") as stream:
            stream.write(b" " * count)

    monkeypatch.setenv("REMAT_MAX_INPUT", "2MB")
    put(2_000_000)
    assert len(read_text(str(path))[0]) == 2_000_000
    put(2_000_001)
    with pytest.raises(InputError, match=r"is larger than 2,000,000 bytes \(set REMAT_MAX_INPUT to a larger size"):
        read_text(str(path))
    monkeypatch.setenv("REMAT_MAX_INPUT", "3MB")
    put(2_000_001)
    assert len(read_text(str(path))[0]) == 2_000_001
    monkeypatch.setenv("REMAT_MAX_INPUT", "much")
    put(1)
    with pytest.raises(UsageError, match='REMAT_MAX_INPUT: "much" is not a size'):
        read_text(str(path))


# Standard output


class Part(io.RawIOBase):
    """A raw stream that takes a few bytes at a time, as a disk that is almost full does."""

    def __init__(self):
        self.taken = b""

    def writable(self):
        return True

    def write(self, data):
        self.taken += bytes(data[:7])
        return min(7, len(data))


def test_a_stream_that_takes_a_part_at_a_time_gets_everything(monkeypatch):
    stream = Part()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stream, "utf-8", write_through=True))
    write_text("-", "grüße" * 100)
    assert stream.taken == ("grüße" * 100).encode()
