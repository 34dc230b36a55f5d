"""Drives a headless Chromium through chromedriver's HTTP interface (W3C WebDriver). Needs no package."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PATIENCE_SECONDS = 600


def missing() -> str:
    """Return what is missing for a browser, or nothing."""
    if _browser() is None:
        return f"no browser: none of {', '.join(_BROWSERS)}"
    return "" if shutil.which("chromedriver") else "no chromedriver (Debian: chromium-driver)"


def _browser() -> str | None:
    return next((path for name in _BROWSERS if (path := shutil.which(name))), None)


class Browser:
    """One window. `logs` returns the messages of its console since the last call."""

    def __init__(self, session: str) -> None:
        self._session = session

    def open(self, path: Path) -> None:
        """Load a file and wait for its `load` event."""
        _call("POST", f"{self._session}/url", {"url": path.as_uri()})

    def script(self, body: str, *arguments: object) -> Any:
        """Run a function body in the page and return its result."""
        return _call("POST", f"{self._session}/execute/sync", {"script": body, "args": list(arguments)})

    def wait(self, condition: str, what: str) -> None:
        """Wait until a function body returns true."""
        _wait(lambda: bool(self.script(condition)), what)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window in pixels."""
        _call("POST", f"{self._session}/window/rect", {"width": width, "height": height})

    def picture(self, selector: str) -> bytes:
        """Return a PNG of the first element that a CSS selector finds."""
        element = _call("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        return base64.b64decode(_call("GET", f"{self._session}/element/{next(iter(element.values()))}/screenshot"))

    def wheel(self, x: int, y: int, delta: int) -> None:
        """Turn the wheel at a place of the window."""
        action = {"type": "scroll", "x": x, "y": y, "deltaX": 0, "deltaY": delta, "duration": 0, "origin": "viewport"}
        _call("POST", f"{self._session}/actions", {"actions": [{"type": "wheel", "id": "w", "actions": [action]}]})

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Press the mouse at `start`, move it to `end`, release it."""

        def move(place: tuple[int, int]) -> dict[str, Any]:
            return {"type": "pointerMove", "x": place[0], "y": place[1], "duration": 0, "origin": "viewport"}

        steps = [move(start), {"type": "pointerDown", "button": 0}, move(end), {"type": "pointerUp", "button": 0}]
        mouse = {"type": "pointer", "id": "m", "parameters": {"pointerType": "mouse"}, "actions": steps}
        _call("POST", f"{self._session}/actions", {"actions": [mouse]})

    def logs(self) -> list[str]:
        """Return the console's messages: errors of scripts, and what the page's policy refused."""
        return [entry["message"] for entry in _call("POST", f"{self._session}/se/log", {"type": "browser"})]


@contextmanager
def browser(folder: Path) -> Generator[Browser]:
    """Yield a browser that keeps its files in `folder`."""
    with open(folder / "driver.txt", "w+", encoding="utf-8") as words:
        driver = subprocess.Popen(
            [shutil.which("chromedriver") or "", "--port=0"],
            stdout=words,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HOME": str(folder)},
        )
        try:
            found: list[str] = []
            _wait(lambda: bool(found.extend(_ports(folder / "driver.txt")) or found), "chromedriver")
            session = _session(f"http://127.0.0.1:{found[0]}", folder)
            try:
                yield Browser(session)
            finally:
                _call("DELETE", session)
        finally:
            driver.terminate()
            driver.wait()


def _ports(log: Path) -> list[str]:
    return re.findall(r"successfully on port (\d+)", log.read_text(encoding="utf-8"))


def _session(driver: str, folder: Path) -> str:
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'profile'}",
    ]
    wanted = {"goog:chromeOptions": {"binary": _browser(), "args": flags}, "goog:loggingPrefs": {"browser": "ALL"}}
    made = _call("POST", f"{driver}/session", {"capabilities": {"alwaysMatch": wanted}})
    return f"{driver}/session/{made['sessionId']}"


def _call(method: str, url: str, body: object = None) -> Any:
    data = None if method != "POST" else json.dumps(body or {}).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy of the system is not for this machine
    with opener.open(request, timeout=_PATIENCE_SECONDS) as response:
        return json.load(response)["value"]


def _wait(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)
