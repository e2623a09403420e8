"""A real server with the API of AWS KMS on loopback: local-kms, with its keys in a scratch directory."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import botocore.session

from scripts.go_tool import go_tool
from tests.support.loopback_ports import free_port, wait_until_it_listens

REGION = "eu-west-2"
ALIAS = "alias/kafka-tier"


@dataclass(frozen=True, slots=True, kw_only=True)
class KmsServer:
    """``client`` administers the keys; the server checks no signatures."""

    url: str
    client: Any = field(repr=False)
    process: subprocess.Popen[bytes] = field(repr=False)

    def options(self, **others: str) -> dict[str, str]:
        """``encryption.key.wrapping.options`` for the key behind the alias."""
        return {
            "key.id": ALIAS,
            "region": REGION,
            "endpoint.url": self.url,
            "access.key.id": "of-loopback",
            "secret.access.key": "only",
            **others,
        }

    def create_key(self) -> str:
        """Create a symmetric key; return its ARN."""
        return str(self.client.create_key()["KeyMetadata"]["Arn"])

    def point_alias(self, arn: str) -> None:
        """Make the alias name this key, as an operator does who changes keys."""
        known = {one["AliasName"] for one in self.client.list_aliases()["Aliases"]}
        change = self.client.update_alias if ALIAS in known else self.client.create_alias
        change(AliasName=ALIAS, TargetKeyId=arn.rpartition("/")[2])

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running_kms(directory: Path) -> Iterator[KmsServer]:
    """local-kms with its log and its keys below ``directory``; killed at the end.

    Raises:
        RuntimeError: it did not come up; the message has what it said.
    """
    port, said = free_port(), directory / "local-kms.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [go_tool("local-kms")],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory,
            env={
                "PORT": str(port), "KMS_DATA_PATH": str(directory / "kms"), "KMS_REGION": REGION,
                "KMS_SEED_PATH": str(directory / "no-seeds.yaml"),
            },
        )  # fmt: skip
    try:
        wait_until_it_listens(port, process, said)
        url = f"http://127.0.0.1:{port}"
        client = botocore.session.get_session().create_client(
            "kms", region_name=REGION, endpoint_url=url, aws_access_key_id="of-loopback", aws_secret_access_key="only"
        )
        yield KmsServer(url=url, client=client, process=process)
    finally:
        process.kill()
        process.wait()


class DenyingKms:
    """Before a :class:`KmsServer`, which checks no rights: denies the verbs in ``denied`` as AWS's service does."""

    def __init__(self, upstream: str) -> None:
        self.denied, self.asked = set[str](), list[str]()
        denying = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                verb = self.headers["X-Amz-Target"].rpartition(".")[2]
                denying.asked.append(verb)
                status, answer = 400, json.dumps({"__type": "AccessDeniedException", "message": "no right"}).encode()
                if verb not in denying.denied:
                    status, answer = _passed_on(upstream, body, dict(self.headers))
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *told: object) -> None:
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def denying_kms(upstream: str) -> Iterator[DenyingKms]:
    """Yield a :class:`DenyingKms` that passes on to ``upstream`` what it does not deny."""
    denying = DenyingKms(upstream)
    thread = Thread(target=denying.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield denying
    finally:
        denying.server.shutdown()
        denying.server.server_close()
        thread.join()


def _passed_on(upstream: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    kept = {name: value for name, value in headers.items() if name.lower() not in ("host", "content-length")}
    try:
        with urllib.request.urlopen(urllib.request.Request(upstream, data=body, headers=kept)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
