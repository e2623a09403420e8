"""A real S3 server on loopback: versitygw over a scratch directory, started once per test session."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.go_tool import go_tool
from tests.support.certificates import IssuedCertificate
from tests.support.loopback_ports import free_port

ACCESS_KEY = "tiersidecar"
SECRET_KEY = "of-loopback-only"
_UP_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """``url`` has an address of loopback; a bucket is a directory below ``directory``."""

    url: str
    directory: Path
    process_id: int


def s3_store_section(url: str, bucket: str) -> dict[str, Any]:
    """The configuration's store section for a bucket of a server that :func:`running_s3_server` started."""
    return {
        "type": "s3",
        "s3.bucket.name": bucket,
        "s3.region": "us-east-1",
        "s3.endpoint.url": url,
        "s3.path.style.access.enabled": True,
        "aws.access.key.id": ACCESS_KEY,
        "aws.secret.access.key": SECRET_KEY,
    }


@contextmanager
def running_s3_server(
    directory: Path,
    certificate: IssuedCertificate | None = None,
    *,
    virtual_domain: str = "",
) -> Iterator[S3Server]:
    """versitygw with its objects and its own files below ``directory``, by TLS if it has a certificate; killed at the end.

    With a ``virtual_domain``, a bucket is also ``<bucket>.<virtual_domain>``, which whoever asks must resolve to loopback.

    Raises:
        RuntimeError: it did not come up; the message has what it said.
    """
    objects = directory / "objects"
    objects.mkdir(parents=True)
    port = free_port()
    url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{port}"
    tls: list[str | Path] = (
        [] if certificate is None else ["--cert", certificate.certificate_path, "--key", certificate.key_path]
    )
    domain = ["--virtual-domain", f"{virtual_domain}:{port}"] if virtual_domain else []
    said = directory / "versitygw.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [
                go_tool("versitygw"), "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--port", f"127.0.0.1:{port}",
                "--keep-alive", "--quiet", *domain, *tls, "posix", objects,
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _wait_until_it_answers(port, process, said)
        yield S3Server(url=url, directory=objects, process_id=process.pid)
    finally:
        process.kill()
        process.wait()


def _wait_until_it_answers(port: int, process: subprocess.Popen[bytes], said: Path) -> None:
    deadline = time.monotonic() + _UP_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"versitygw did not come up on port {port}:\n{said.read_text()}")
