"""Debian's Chromium without a window: through its command line, and driven as a reader would."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

_CONSOLE = re.compile(r":CONSOLE[:(]\d+.*", re.MULTILINE)

_CODES = {"Tab": 9, "Enter": 13, "Escape": 27}


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


class Browser:
    """A page in Chromium that can be pointed at, typed into and photographed: through its developer tools' pipe."""

    def __init__(self, folder: Path):
        chromium = shutil.which("chromium")
        assert chromium, "the tests need Debian's chromium: make system"
        said, heard = os.pipe(), os.pipe()  # what it is told, and what it answers
        # It reads descriptor 3 and writes descriptor 4; ours are moved out of the way of these numbers.
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 64) for end in (said[0], heard[1])]
        os.close(said[0])
        os.close(heard[1])
        options = (
            "--headless --no-sandbox --disable-dev-shm-usage --no-first-run --no-proxy-server "
            "--enable-unsafe-swiftshader --remote-debugging-pipe"
        )
        command = f'exec "$0" {options} "$@" 3<&{theirs[0]} 4>&{theirs[1]} {theirs[0]}<&- {theirs[1]}>&-'
        self._process = subprocess.Popen(
            ["bash", "-c", command, chromium, f"--user-data-dir={folder / 'session'}", "about:blank"],
            pass_fds=theirs,
            stderr=subprocess.DEVNULL,
        )
        for end in theirs:
            os.close(end)
        self._say, self._hear = os.fdopen(said[1], "wb", 0), os.fdopen(heard[0], "rb", 0)
        self._rest, self._count, self._session = b"", 0, None
        self.console: list[str] = []
        targets = self.send("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        self.send("Browser.close")
        self._process.wait(30)
        self._say.close()
        self._hear.close()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol; its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._say.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            if answer.get("method") in {"Runtime.consoleAPICalled", "Runtime.exceptionThrown"}:
                self.console.append(json.dumps(answer["params"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._hear], [], [], 60)[0], "the browser does not answer"
            part = self._hear.read(1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    def ask(self, code: str) -> Any:
        """The value of ``code`` in the page."""
        answer = self.send("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, f"{code}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def until(self, code: str, seconds: float = 60.0) -> None:
        """Wait until ``code`` is true in the page."""
        end = time.monotonic() + seconds
        while not self.ask(f"Boolean({code})"):
            assert time.monotonic() < end, f"never came true: {code}"
            time.sleep(0.05)

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show ``page`` in a window of this size, and wait until its charts are drawn."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.theme(dark=dark)
        self.send("Page.navigate", url=page.resolve().as_uri())
        self.until(f"location.href === {json.dumps(page.resolve().as_uri())} && document.body?.dataset.drawn")

    def theme(self, *, dark: bool) -> None:
        """What the reader prefers."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def box(self, element: str) -> tuple[float, float, float, float]:
        """Left, top, width and height of an element in the window, after it was scrolled there."""
        box = self.ask(
            f"(() => {{ const e = document.querySelector({json.dumps(element)}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
        )
        left, top, width, height = box
        return left, top, width, height

    def point(self, x: float, y: float) -> None:
        """Move the mouse there."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press at ``start``, move to ``end``, let go."""
        button = {"button": "left", "buttons": 1, "clickCount": 1}
        self.point(*start)
        self.send("Input.dispatchMouseEvent", type="mousePressed", x=start[0], y=start[1], **button)
        for part in (0.3, 0.7, 1.0):
            x, y = (a + part * (b - a) for a, b in zip(start, end, strict=True))
            self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
        self.send("Input.dispatchMouseEvent", type="mouseReleased", x=end[0], y=end[1], **button)

    def click(self, x: float, y: float) -> None:
        """Point, wait for longer than plotly waits between two looks at the mouse (50 ms), and click."""
        self.point(x, y)
        time.sleep(0.15)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, key: str) -> None:
        """Press a key and let it go."""
        text = {"text": key} if len(key) == 1 else {"windowsVirtualKeyCode": _CODES[key]} if key in _CODES else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def photograph(self, file: Path) -> None:
        """The whole page as a PNG file."""
        size = self.ask("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    def printed(self) -> bytes:
        """The page on paper, as a PDF."""
        return base64.b64decode(self.send("Page.printToPDF")["data"])
