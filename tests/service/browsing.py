"""A browser at a width, driven over WebDriver by the standard library alone."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def call(method: str, url: str, data: Any = None) -> Any:
    """The value of an answer of WebDriver."""
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(json.load(error)["value"]["message"]) from None


class Browser:
    """A session of a browser."""

    def __init__(self, url: str) -> None:
        self._url = url

    def open(self, url: str) -> None:
        call("POST", f"{self._url}/url", {"url": url})

    def run(self, script: str) -> Any:
        """What a script returns."""
        return call("POST", f"{self._url}/execute/sync", {"script": script, "args": []})

    def _find(self, css: str) -> str:
        element: str = call("POST", f"{self._url}/element", {"using": "css selector", "value": css})[_ELEMENT]
        return f"{self._url}/element/{element}"

    def click(self, css: str) -> None:
        call("POST", f"{self._find(css)}/click", {})

    def type(self, css: str, text: str) -> None:
        call("POST", f"{self._find(css)}/value", {"text": text})

    def text(self, css: str = "body") -> str:
        found: str = call("GET", f"{self._find(css)}/text")
        return found

    def wait(self, holds: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait until something holds; elements may be replaced meanwhile."""
        until_s = time.monotonic() + seconds
        while True:
            with contextlib.suppress(AssertionError):
                if holds():
                    return
            assert time.monotonic() < until_s, self.text()
            time.sleep(0.05)

    def log(self) -> list[str]:
        """What the browser complains about: scripts that fail, what the page's policy refuses."""
        return [entry["message"] for entry in call("POST", f"{self._url}/se/log", {"type": "browser"})]

    @property
    def overflow(self) -> int:
        """Pixels that the page is wider than the window."""
        return int(self.run("const r = document.documentElement; return r.scrollWidth - r.clientWidth"))

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(call("GET", f"{self._url}/screenshot")))


def missing() -> str | None:
    """What is not on this machine, if anything."""
    if shutil.which("chromedriver") is None:
        return "chromedriver"
    return None if any(map(shutil.which, BROWSERS)) else f"one of {', '.join(BROWSERS)}"


@contextlib.contextmanager
def open_browser(width: int, profile: Path, *options: str) -> Iterator[Browser]:
    """A browser whose window is so wide, as a phone's is where it is narrow."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    driver = subprocess.Popen(["chromedriver", f"--port={port}", "--log-level=OFF"], stdout=subprocess.DEVNULL)
    try:
        root = f"http://127.0.0.1:{port}"
        until_s = time.monotonic() + 20.0
        while True:
            try:
                call("GET", f"{root}/status")
                break
            except OSError:
                assert time.monotonic() < until_s
                time.sleep(0.05)
        chrome = {
            "binary": next(filter(None, map(shutil.which, BROWSERS))),
            "args": [*_OPTIONS, f"--user-data-dir={profile}", *options],
            "mobileEmulation": {"deviceMetrics": {"width": width, "height": 800, "pixelRatio": 1}},
        }
        wanted = {"alwaysMatch": {"goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL"}}}
        session = call("POST", f"{root}/session", {"capabilities": wanted})["sessionId"]
        try:
            yield Browser(f"{root}/session/{session}")
        finally:
            call("DELETE", f"{root}/session/{session}")
    finally:
        driver.terminate()
        driver.wait()
