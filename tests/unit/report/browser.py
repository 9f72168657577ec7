"""A page in headless Chromium, over the DevTools protocol: what it asks the network for, what it complains of."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
    "--remote-debugging-port=0", "--remote-allow-origins=*",
)  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome")
START_S = 60.0


def program() -> str:
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    assert found, f"none of {', '.join(NAMES)} is on PATH: the report's tests need a browser"
    return found


class Browser:
    """One browser process with one page."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.events: list[dict[str, Any]] = []
        self._number = 0
        self._opened = ExitStack()

    def __enter__(self) -> Browser:
        from websockets.sync.client import connect

        with open(self.folder / "browser.log", "wb") as log:
            argv = [program(), *FLAGS, f"--user-data-dir={self.folder / 'profile'}", "about:blank"]
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        port = self._port()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=10) as reply:
            pages = json.load(reply)
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        self.socket = self._opened.enter_context(connect(address, max_size=1 << 26, proxy=None))
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _port(self) -> str:
        file = self.folder / "profile" / "DevToolsActivePort"
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError((self.folder / "browser.log").read_text("utf-8", "replace")[-2000:])
            if file.exists() and (text := file.read_text().split()):
                return text[0]
            time.sleep(0.1)
        raise AssertionError("the browser did not open its port")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        self.socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=60))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return dict(message["result"])
            self.events.append(message)

    def size(self, width: int, height: int, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path) -> None:
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        end = time.monotonic() + START_S
        while self.value("document.readyState") != "complete":
            assert time.monotonic() < end, "the page did not load"
            time.sleep(0.05)
        self.value("document.fonts.ready.then(() => 1)")

    def value(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself left out."""
        asked = [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked[1:] if not url.startswith("data:")]

    def complaints(self) -> list[str]:
        """Console errors and warnings, exceptions, refusals."""
        found = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            if event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
        return found

    def screenshot(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])
