"""The command line as a process of its own, for what needs one: signals, pipes, terminals, limits."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from remat_cli.graph.document import load_schema

GRAPHS = Path(__file__).parents[1] / "graphs"
TOY = str(GRAPHS / "toy.yaml")
TOY_PEAK = 270_533_124
"""No-remat peak of the toy graph in bytes; 80% of it is 216,426,499."""

NODE_LINK = {
    "directed": True,
    "multigraph": False,
    "graph": {"name": "nx"},
    "nodes": [{"id": "a", "weight": 1, "size": 10}, {"id": "b", "weight": 2, "size": 20}],
    "links": [{"source": "a", "target": "b"}],
}
"""A graph of networkx whose attributes are called otherwise."""


PATIENCE_S = 120.0
"""How long to wait for what must come; a slow machine takes long, a broken program forever."""

MAIN = "from remat_cli.cli.main import main; main()"
_QUICK = """
import sys
from remat_cli.cli import progress
progress._PLAIN_EVERY_S = 0.05
from remat_cli.cli.main import main
print("ready", file=sys.stderr, flush=True)
main()
"""


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a command."""

    code: int
    out: str
    err: str

    def expected(self, code: int | None) -> Done:
        """This, which ended with ``code``; None for any."""
        assert code in (None, self.code), f"exit {self.code} instead of {code}: {self.err or self.out}"
        return self

    def json(self, kind: str = "") -> Any:
        """Standard output as a document, which follows the schema of its ``kind`` if one is given."""
        document = json.loads(self.out)
        if kind:
            jsonschema.Draft202012Validator(load_schema(kind)).validate(document)
        return document


def read(path: str | Path = "toy.plan.json") -> Any:
    """A document in the current folder."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def script(path: Path, body: str) -> str:
    """An executable shell script."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="ascii")
    path.chmod(0o755)
    return str(path)


def program(folder: Path) -> Path:
    """A program ``remat`` in ``folder`` that is this one."""
    return Path(script(folder / "remat", f'exec {sys.executable} -c "{MAIN}" "$@"'))


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without options of remat, and with ``extra``."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("REMAT_") and k not in {"NO_COLOR", "FORCE_COLOR"}}
    return {**plain, **extra}


def remat_process(*arguments: str, **options: Any) -> Done:
    """Run the command in a process and wait for it."""
    return run_code(MAIN, *arguments, **options)


def run_code(text: str, *arguments: str, stdin: str | None = None, code: int | None = 0, **options: Any) -> Done:
    """Run Python code in a process, which has to end with ``code``, and wait for it."""
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None and "stdin" not in options else None,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment(), **options},
    )
    return Done(done.returncode, done.stdout or "", done.stderr or "").expected(code)


class Running:
    """A command under way, with quick plain progress on its stderr.

    It leads a process group of its own, as a command that a shell starts does.
    """

    def __init__(self, *arguments: str, cwd: Path, **extra_environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _QUICK, *map(str, arguments)],
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=environment(**extra_environment),
            process_group=0,
        )
        self._err: list[str] = []
        self._out: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self._process.stderr, self._err), (self._process.stdout, self._out))
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        lines.extend(iter(stream.readline, ""))

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            stream.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, pattern: str) -> str:
        """Wait until stderr has a line that matches; the line."""
        found = None

        def look() -> bool:
            nonlocal found
            ended = self._process.poll() is not None and not self._readers[0].is_alive()
            found = next((line for line in list(self._err) if re.search(pattern, line)), None)
            assert found or not ended, f"ended without {pattern!r}:\n{''.join(self._err)}"
            return found is not None

        wait_until(look, f"{pattern!r} on stderr, which has:\n{''.join(self._err)}")
        assert found is not None
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        self._process.send_signal(number)

    def press_ctrl_c(self) -> None:
        """Send SIGINT to its whole group, as a terminal does."""
        os.killpg(self.pid, signal.SIGINT)

    def finish(self) -> Done:
        """Wait for its end."""
        code = self._process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return Done(code, "".join(self._out), "".join(self._err))

    def descendants(self) -> set[int]:
        """Process ids of its children, their children, and so on."""
        return set(_descendants(self.pid))


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = (thread / "children").read_text().split()
        except OSError:  # gone meanwhile
            continue
        for child in map(int, children):
            found += [child, *_descendants(child)]
    return found


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Any, what: str) -> None:
    """Look again and again until ``condition()`` holds."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"waited in vain for {what}"
        time.sleep(0.02)
