"""A real Chromium, driven over the WebDriver protocol: no library is needed for a dozen requests."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Any

from vllm_spark import proc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HINT = "apt-get install chromium chromium-driver"


class Browser:
    """One window."""

    def __init__(self, driver: str, chromium: str, width: int, height: int, *, dark: bool) -> None:
        options = {
            "binary": chromium,
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", *(["--force-dark-mode"] if dark else [])],
            "mobileEmulation": {
                "deviceMetrics": {"width": width, "height": height, "pixelRatio": 1, "mobile": width < 600}
            },
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self.session = driver
        found = self.ask("POST", "/session", capabilities={"alwaysMatch": wanted})
        self.session = f"{driver}/session/{found['sessionId']}"

    def ask(self, method: str, path: str, **body: Any) -> Any:
        data = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(self.session + path, data, method=method)  # noqa: S310 - loopback
        with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310
            return json.load(reply)["value"]

    def go(self, url: str) -> None:
        self.ask("POST", "/url", url=url)

    def js(self, script: str, *values: Any) -> Any:
        return self.ask("POST", "/execute/sync", script=script, args=list(values))

    def find(self, selector: str) -> list[str]:
        found = self.ask("POST", "/elements", using="css selector", value=selector)
        return [next(iter(element.values())) for element in found]

    def click(self, element: str) -> None:
        self.ask("POST", f"/element/{element}/click")

    def press(self, key: str) -> None:
        keys = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.ask("POST", "/actions", actions=[{"type": "key", "id": "k", "actions": keys}])

    def allow(self, *permissions: str) -> None:
        for name in permissions:
            self.ask("POST", "/permissions", descriptor={"name": name}, state="granted")

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.ask("POST", "/se/log", type="browser")]

    def screenshot(self, path: Path) -> None:
        height = self.js("return document.documentElement.scrollHeight")
        width = self.js("return document.documentElement.clientWidth")
        shot = {"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        found = self.ask("POST", "/goog/cdp/execute", cmd="Page.captureScreenshot", params=shot)
        path.write_bytes(base64.b64decode(found["data"]))


@contextlib.contextmanager
def open_browser(width: int, height: int, *, dark: bool = False) -> Iterator[Browser]:
    """A window of that size; below 600 pixels it is a phone.

    Raises:
        ToolMissing: no Chromium; the message says how to get it.
    """
    chromium = proc.require("chromium", hint=HINT)
    command = [proc.require("chromedriver", hint=HINT), "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            lines = iter(driver.stdout.readline, "")
            port = next(match[1] for line in lines if (match := re.search(r"successfully on port (\d+)", line)))
            browser = Browser(f"http://127.0.0.1:{port}", chromium, width, height, dark=dark)
            try:
                yield browser
            finally:
                browser.ask("DELETE", "")
        finally:
            driver.terminate()
