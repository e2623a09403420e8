"""A real server with Google Cloud Storage's JSON API on loopback: fake-gcs-server, with its objects in memory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

from scripts.go_tool import go_tool
from tests.support.loopback_ports import free_port, wait_until_it_listens


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsServer:
    """``url`` is what ``gcs.endpoint.url`` takes."""

    url: str
    process_id: int

    def create_bucket(self, name: str) -> None:
        body = json.dumps({"name": name}).encode()
        self._ask(Request(f"{self.url}/storage/v1/b", data=body, headers={"Content-Type": "application/json"}))

    def names(self, bucket: str) -> set[str]:
        """Return the names of all objects."""
        return {found["name"] for found in self._listing(bucket)}

    def storage_classes(self, bucket: str) -> dict[str, str]:
        return {found["name"]: found["storageClass"] for found in self._listing(bucket)}

    def _listing(self, bucket: str) -> list[dict[str, Any]]:
        answer = json.loads(self._ask(Request(f"{self.url}/storage/v1/b/{quote(bucket)}/o")))
        found: list[dict[str, Any]] = answer.get("items") or []
        return found

    @staticmethod
    def _ask(request: Request) -> str:
        with urlopen(request, timeout=30) as answer:
            text: str = answer.read().decode()
            return text


def gcs_store_section(url: str, bucket: str) -> dict[str, Any]:
    """Return the configuration's store section for a bucket of a server at ``url``."""
    return {
        "type": "gcs",
        "gcs.bucket.name": bucket,
        "gcs.endpoint.url": url,
        "gcs.credentials.default": False,
    }


@contextmanager
def running_gcs_server(directory: Path) -> Iterator[GcsServer]:
    """fake-gcs-server with its log below ``directory``; killed at the end.

    Raises:
        RuntimeError: it did not come up; the message has what it said.
    """
    port = free_port()
    said = directory / "fake-gcs-server.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [
                go_tool("fake-gcs-server"), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port),
                "-backend", "memory", "-log-level", "error",
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory,
        )  # fmt: skip
    try:
        wait_until_it_listens(port, process, said)
        yield GcsServer(url=f"http://127.0.0.1:{port}", process_id=process.pid)
    finally:
        process.kill()
        process.wait()
