"""A headless Chromium for tests: the devtools protocol over a pipe, so that no package is needed.

Messages are JSON objects that end in NUL, on file descriptors 3 (to the browser) and 4 (from it). A thread reads them:
answers go to who asked, console errors, exceptions and refused loads are collected in `problems`. One browser has one
tab. Nothing here knows of the pages that it shows.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NO_CHROMIUM = "no chromium here: the page is not tried in a browser"
MAX_WAIT_S = 60.0
# The browser's descriptors, by its own rule.
_TO_BROWSER, _FROM_BROWSER = 3, 4


class BrowserError(AssertionError):
    """The page or the browser said no."""


class Browser:
    """One tab. `problems` is what its console complained of since the last `clear`."""

    def __init__(self, profile: Path) -> None:
        self.problems: list[str] = []
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._number = 0
        self._lock = threading.Lock()
        read_end, self._write = os.pipe()
        self._read, write_end = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--mute-audio"]
        options += ["--no-first-run", "--disable-extensions", "--disable-background-networking"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        # A shell moves the pipes to 3 and 4: doing so in a forked copy of this process is not safe with threads.
        script = f'exec "$0" "$@" {_TO_BROWSER}<&{read_end} {_FROM_BROWSER}>&{write_end}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, str(CHROMIUM), *options],
            pass_fds=(read_end, write_end),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_end)
        os.close(write_end)
        self._session = ""
        threading.Thread(target=self._listen, daemon=True).start()
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        with self._lock:
            self._number += 1
            number = self._number
            answers = self._answers[number] = queue.Queue()
            message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
            if self._session:
                message["sessionId"] = self._session
            data = json.dumps(message).encode() + b"\0"
            while data:
                data = data[os.write(self._write, data) :]
        try:
            answer = answers.get(timeout=MAX_WAIT_S)
        except queue.Empty:
            raise BrowserError(f"{method}: no answer in {MAX_WAIT_S} s") from None
        finally:
            del self._answers[number]
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error'].get('message', answer['error'])}")
        return dict(answer.get("result", {}))

    def _listen(self) -> None:
        rest = b""
        while chunk := os.read(self._read, 1 << 16):
            *messages, rest = (rest + chunk).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    answers = self._answers.get(message["id"])
                    if answers is not None:
                        answers.put(message)
                else:
                    self._note(message["method"], message["params"])

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(entry.get("value", "")) for entry in parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    def open(self, address: str) -> None:
        """Open a page; does not wait for what its script fetches."""
        # Where only the fragment differs, going there would not load the page anew.
        self.leave()
        answer = self.ask("Page.navigate", url=address)
        if answer.get("errorText"):
            raise BrowserError(f"{address}: {answer['errorText']}")
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def leave(self) -> None:
        """Go to an empty page, so that the previous one sends no more requests."""
        self.ask("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(f"{expression}: {details.get('exception', {}).get('description', details['text'])}")
        return answer["result"].get("value")

    def wait(self, condition: str, timeout_s: float = MAX_WAIT_S) -> Any:
        """Wait until the JavaScript expression is true, and return its value."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            # A page that is being left has no context to ask.
            with contextlib.suppress(BrowserError):
                if value := self.evaluate(condition):
                    return value
            time.sleep(0.02)
        raise BrowserError(f"not true in {timeout_s} s: {condition}; the console: {self.problems}")

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_CODES.get(key, 0))

    def size(self, width: int, height: int, *, is_phone: bool = False) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone)

    def prefer(self, **features: str) -> None:
        """Media features, as in `prefer(prefers_color_scheme="dark")`."""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.ask("Emulation.setEmulatedMedia", features=wanted)

    def screenshot(self, path: Path) -> Path:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))
        return path

    def clear(self) -> None:
        self.problems.clear()

    def close(self) -> None:
        with contextlib.suppress(BrowserError, OSError):
            self._session = ""
            self.ask("Browser.close")
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)


_CODES = {"Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13, "Tab": 9}


@contextlib.contextmanager
def running_browser(profile: Path) -> Iterator[Browser]:
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()
