"""A real browser without a screen, driven by the DevTools protocol over its websocket."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from scripts.browser import Browser, bring_browser

_START_S = 60.0
_ANSWER_S = 60.0
_MOST_BYTES = 256 * 1024 * 1024
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.messages: list[str] = []
        """Return what the browser wrote to its console, such as what a policy refused."""

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(_ANSWER_S):
            while True:
                message = await self._socket.receive_json()
                self._note(message)
                if message.get("id") == number:
                    assert "error" not in message, f"{method}: {message['error']}"
                    result: dict[str, Any] = message["result"]
                    return result

    async def show(self, url: str, *, width: int, height: int = 900, dark: bool = False, script: bool = True) -> None:
        """Open ``url`` in a window of that size, and wait until it is loaded."""
        await self.call("Page.enable")
        await self.call("Log.enable")
        await self.call("Runtime.enable")
        await self.call("Emulation.setScriptExecutionDisabled", value=not script)
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.navigate", url=url)
        deadline_s = time.monotonic() + _ANSWER_S
        while not await self.value("document.readyState === 'complete' && location.href !== 'about:blank'"):
            assert time.monotonic() < deadline_s, f"{url} is not loaded"

    async def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, awaited if it is a promise."""
        done = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    async def press(self, key: str) -> None:
        """Press one key, such as Tab."""
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode={"Tab": 9}[key]
            )

    async def picture(self, path: Path) -> None:
        """Write the whole page as PNG."""
        done = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(done["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Log.entryAdded":
            self.messages.append(message["params"]["entry"]["text"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(message["params"]["exceptionDetails"]))


@asynccontextmanager
async def browsing() -> AsyncIterator[Page]:
    """Yield a browser with a profile of its own; its process has ended when this is left."""
    browser = bring_browser()
    with tempfile.TemporaryDirectory(prefix="tiersidecar-browser-", ignore_cleanup_errors=True) as profile:
        log = Path(profile, "browser.log")
        process = _start(browser, Path(profile), log)
        try:
            port = await _port_of(process, Path(profile, "data", "DevToolsActivePort"), log)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                    tab = next(one for one in await response.json() if one["type"] == "page")
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=_MOST_BYTES) as socket:
                    yield Page(socket)
        finally:
            process.kill()
            process.wait()


def _start(browser: Browser, profile: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as written:
        return subprocess.Popen(
            [str(browser.path), *_FLAGS, f"--user-data-dir={profile}/data", "about:blank"],
            env={**os.environ, **browser.environment, "XDG_CACHE_HOME": f"{profile}/cache"},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
        )


async def _port_of(process: subprocess.Popen[bytes], file: Path, log: Path) -> int:
    deadline_s = time.monotonic() + _START_S
    while True:
        if file.is_file() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        assert process.poll() is None, f"the browser ended:\n{log.read_text()[-2000:]}"
        assert time.monotonic() < deadline_s, f"the browser does not listen:\n{log.read_text()[-2000:]}"
        await asyncio.sleep(0.05)
