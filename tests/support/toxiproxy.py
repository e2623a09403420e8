"""A real toxiproxy on loopback, between a client and a server: delays, narrows, cuts and refuses connections."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scripts.go_tool import go_tool
from tests.support.kafka_admin import wait_until
from tests.support.loopback_ports import free_port

ToxicKind = Literal["latency", "bandwidth", "slow_close", "timeout", "reset_peer", "limit_data"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Toxic:
    """``attributes`` as toxiproxy's documentation names them: ms, KB/s, bytes.  ``upstream``: on the way to the server."""

    kind: ToxicKind
    attributes: tuple[tuple[str, int], ...]
    upstream: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Toxiproxy:
    """One proxy: clients connect to ``url``; ``control_url`` is toxiproxy's own HTTP API."""

    url: str
    control_url: str

    def add(self, toxic: Toxic) -> None:
        stream = "upstream" if toxic.upstream else "downstream"
        self._post("/proxies/way/toxics", type=toxic.kind, stream=stream, attributes=dict(toxic.attributes))

    def refuse(self) -> None:
        """Drop all connections, and take none until :meth:`heal`."""
        self._post("/proxies/way", enabled=False)

    def heal(self) -> None:
        """Reset it: no toxics, and connections are taken."""
        self._post("/reset")

    def _post(self, path: str, **body: object) -> None:
        request = urllib.request.Request(f"{self.control_url}{path}", data=json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=10):
            pass


@contextmanager
def running_toxiproxy(directory: Path, upstream: str) -> Iterator[Toxiproxy]:
    """Run a proxy in front of ``upstream`` (host and port); killed at the end.

    Raises:
        TimeoutError: it did not come up.
    """
    control, listen = free_port(), free_port()
    with (directory / "toxiproxy.log").open("wb") as log:
        process = subprocess.Popen(
            [go_tool("toxiproxy"), "-host", "127.0.0.1", "-port", str(control)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    proxy = Toxiproxy(url=f"http://127.0.0.1:{listen}", control_url=f"http://127.0.0.1:{control}")
    try:
        wait_until(lambda: _answers(proxy.control_url), "toxiproxy answers", 20)
        proxy._post("/proxies", name="way", listen=f"127.0.0.1:{listen}", upstream=upstream, enabled=True)
        yield proxy
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/version", timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False
