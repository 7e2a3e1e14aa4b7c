"""A headless Chromium, driven over its DevTools protocol by two pipes."""

import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {"Tab": 9, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}


def find() -> str | None:
    """The program, if one is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """A browser with one page."""

    def __init__(self, program: str, profile: Path, patience: float = 60.0):
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # High numbers, which 3 and 4, where it looks for them, do not collide with.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (theirs_in, theirs_out)]

        def connect() -> None:
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [
                program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--remote-debugging-pipe", f"--user-data-dir={profile}", "--window-size=1200,900",
                "about:blank",
            ],
            preexec_fn=connect, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in (theirs_in, theirs_out, *high):
            os.close(fd)
        self._in, self._out, self._unread = ours_in, ours_out, b""
        self._numbers, self._patience, self._session = itertools.count(1), patience, None
        self.events: list[dict[str, Any]] = []
        pages = self.call("Target.getTargets")["targetInfos"]
        [page] = [target["targetId"] for target in pages if target["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        self._process.wait(10)

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + self._patience
        while b"\0" not in self._unread:
            if not select.select([self._in], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer.")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise EOFError("Chromium has ended.")
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def call(self, method: str, **params: Any) -> Any:
        """A method of the protocol -> its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, page: Path) -> None:
        """Loads a page, to its end."""
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def press(self, *keys: str) -> None:
        """Presses keys as a user does."""
        for key in keys:
            for kind in ("rawKeyDown", "keyUp"):
                code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
                self.call("Input.dispatchKeyEvent", type=kind, **code)

    def ask(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")
