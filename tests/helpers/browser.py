"""A headless Chromium that loads one page, driven over pipes with the DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
    "--remote-debugging-pipe", "about:blank",
)  # fmt: skip


class Page:
    """A tab. Every call waits for the browser's answer.

    Attributes:
      requests: the addresses that the tab asked for since it was opened, data: included.
      errors: what the browser printed to the console about the page.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._last_id = 0
        self._session: str | None = None
        self._loaded = False
        self.requests: list[str] = []
        self.errors: list[str] = []
        (tab,) = [
            each for each in self.send("Target.getTargets")["targetInfos"] if each["type"] == "page"
        ]
        attached = self.send("Target.attachToTarget", targetId=tab["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol; AssertionError if the browser refuses it."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._last_id:
            pass
        assert "error" not in answer, answer
        return dict(answer["result"])

    def show(self, path: Path, width: int, dark: bool = False) -> None:
        """Loads a page as a screen of `width` shows it, below 600 pixels that of a phone."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=2 if width < 600 else 1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._next()

    def value(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression, waiting for a promise."""
        found = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Writes the whole page as PNG."""
        picture = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._from, 2**20)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        event: dict[str, Any] = json.loads(message)
        self._note(event.get("method"), event.get("params", {}))
        return event

    def _note(self, method: str | None, event: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Log.entryAdded":
            self.errors.append(event["entry"]["text"])
        elif method == "Page.loadEventFired":
            self._loaded = True


@contextlib.contextmanager
def opened() -> Iterator[Page]:
    """Starts Chromium with an empty profile; ends it and its processes."""
    from_test, to_browser = os.pipe()
    from_browser, to_test = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The protocol's file descriptors are 3 and 4; bash puts them there (sh knows only 0 to 9).
        redirections = f'exec "$@" 3<&{from_test} 4>&{to_test}'
        browser = subprocess.Popen(
            ["bash", "-c", redirections, "bash", "chromium", *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(from_test, to_test),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_test)
        os.close(to_test)
        try:
            yield Page(to_browser, from_browser)
        finally:
            os.close(to_browser)  # how a browser with pipes is asked to end
            os.close(from_browser)
            try:
                browser.wait(20)
            finally:
                browser.kill()
