"""A real Azure Blob service on loopback: Azurite, Microsoft's own emulator, with its blobs in memory."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from scripts.node_tool import node_program
from tests.support.build_cache import require_program
from tests.support.loopback_ports import free_port, wait_until_it_listens

ACCOUNT = "tiersidecar"
ACCOUNT_KEY = base64.b64encode(b"of loopback only: a key of a test, and of nothing else at all...").decode()
_UP_WITHIN_S = 60.0
_VERSION = "2021-08-06"


@dataclass(frozen=True, slots=True, kw_only=True)
class AzuriteServer:
    """``url`` has the account in its path, as emulators do."""

    url: str
    process_id: int

    def create_container(self, name: str) -> None:
        self._ask("PUT", f"{self.url}/{name}?restype=container&{account_sas()}")

    def unfinished_blobs(self, container: str) -> list[str]:
        """Return names of blobs that have blocks, none of which was ever committed."""
        return sorted(self._names(container, "&include=uncommittedblobs") - self.names(container))

    def access_tiers(self, container: str) -> dict[str, str]:
        answer = self._ask("GET", f"{self.url}/{container}?restype=container&comp=list&{account_sas()}")
        return dict(re.findall(r"<Name>(.*?)</Name>.*?<AccessTier>(.*?)</AccessTier>", answer))

    def lease(self, container: str, key: str) -> None:
        """Lease a blob for a minute: nothing else may change or delete it."""
        headers = {"x-ms-lease-action": "acquire", "x-ms-lease-duration": "60", "x-ms-version": _VERSION}
        self._ask("PUT", f"{self.url}/{container}/{key}?comp=lease&{account_sas()}", headers)

    def names(self, container: str) -> set[str]:
        """Return the names of all blobs that are committed."""
        return self._names(container, "")

    def _names(self, container: str, more: str) -> set[str]:
        answer = self._ask("GET", f"{self.url}/{container}?restype=container&comp=list{more}&{account_sas()}")
        return set(re.findall(r"<Name>(.*?)</Name>", answer))

    @staticmethod
    def _ask(method: str, url: str, headers: Mapping[str, str] | None = None) -> str:
        with urlopen(Request(url, method=method, headers=dict(headers or {})), timeout=30) as answer:
            text: str = answer.read().decode()
            return text


def account_sas(*, permissions: str = "rwdlactfi", key: str = ACCOUNT_KEY) -> str:
    """Return a shared access signature for all blobs of the account, for an hour, as the service's documentation has it."""
    expiry = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    fields = [ACCOUNT, permissions, "b", "sco", "", expiry, "", "", _VERSION, "", ""]
    mac = hmac.new(base64.b64decode(key), "\n".join(fields).encode(), hashlib.sha256)
    named = {"sv": _VERSION, "ss": "b", "srt": "sco", "sp": permissions, "se": expiry}
    return urlencode({**named, "sig": base64.b64encode(mac.digest()).decode()})


def azure_store_section(server: AzuriteServer, container: str) -> dict[str, Any]:
    """Return the configuration's store section for a container of ``server``."""
    return {
        "type": "azure",
        "azure.account.name": ACCOUNT,
        "azure.account.key": ACCOUNT_KEY,
        "azure.container.name": container,
        "azure.endpoint.url": server.url,
    }


@contextmanager
def running_azurite(directory: Path) -> Iterator[AzuriteServer]:
    """Azurite with its log below ``directory``; killed at the end.

    Raises:
        RuntimeError: it did not come up; the message has what it said.
    """
    port = free_port()
    said = directory / "azurite.log"
    node = require_program("node", debian="nodejs", rpm="nodejs")
    with said.open("wb") as log:
        process = subprocess.Popen(
            [
                node, node_program("azurite"), "--blobHost", "127.0.0.1", "--blobPort", str(port),
                "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent",
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"},
        )  # fmt: skip
    try:
        wait_until_it_listens(port, process, said, within_s=_UP_WITHIN_S)
        yield AzuriteServer(url=f"http://127.0.0.1:{port}/{ACCOUNT}", process_id=process.pid)
    finally:
        process.kill()
        process.wait()
