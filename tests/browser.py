"""A real browser without a window: Debian's Chromium, spoken to through a pipe by the DevTools protocol."""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAIT_S = 60.0


class Browser:
    """One page of a browser. `complaints` are the errors and warnings that its console has shown."""

    def __init__(self, asks: int, answers: int) -> None:
        self._asks = asks
        self._answers = answers
        self._read = b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, *, width: int, dark: bool = False) -> None:
        """Open a file at a width of so many CSS pixels."""
        self.complaints.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._take(self._receive())

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Write the whole page as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to a command of the protocol."""
        number = next(self._numbers)
        asked: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            asked["sessionId"] = self._session
        os.write(self._asks, json.dumps(asked).encode() + b"\0")
        while True:
            said = self._receive()
            if said.get("id") == number:
                assert "error" not in said, said
                result: dict[str, Any] = said["result"]
                return result
            self._take(said)

    def _take(self, said: dict[str, Any]) -> None:
        if "method" not in said:
            return
        self._events.append(said)
        found = said["params"]
        if said["method"] == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            self.complaints.append(found["entry"]["text"])
        elif said["method"] == "Runtime.exceptionThrown":
            self.complaints.append(found["exceptionDetails"]["text"])
        elif said["method"] == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(found["args"]))

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + WAIT_S
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._answers], [], [], max(deadline - time.monotonic(), 0))
            more = os.read(self._answers, 1 << 16) if ready else b""
            assert more, "the browser has ended or does not answer"
            self._read += more
        message, self._read = self._read.split(b"\0", 1)
        said: dict[str, Any] = json.loads(message)
        return said


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start Chromium with a profile of its own; end it."""
    program = shutil.which("chromium")
    assert program is not None, "the test needs Chromium: `make browser` installs it on Debian"
    theirs, asks = os.pipe()
    answers, their_answers = os.pipe()
    # It speaks on descriptors 3 and 4, which are others here: above 9, so that neither is taken before it is copied.
    copies = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs, their_answers)]
    shell = f'exec 3<&{copies[0]} 4>&{copies[1]}; exec "$@"'
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}"]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", program, *flags, "--disable-dev-shm-usage", "--hide-scrollbars", "about:blank"],
            pass_fds=copies,
            stdout=log,
            stderr=log,
        )
    for end in (theirs, their_answers, *copies):
        os.close(end)
    try:
        yield Browser(asks, answers)
    finally:
        process.terminate()
        process.wait(20)
        os.close(asks)
        os.close(answers)
