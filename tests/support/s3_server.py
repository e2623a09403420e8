"""A real S3 server on loopback: versitygw over a scratch directory, started once per test session."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config

from scripts.go_tool import go_tool
from tests.support.certificates import IssuedCertificate
from tests.support.loopback_ports import free_port, wait_until_it_listens

ACCESS_KEY = "tiersidecar"
SECRET_KEY = "of-loopback-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """``url`` has an address of loopback; a bucket is a directory below ``directory``."""

    url: str
    directory: Path
    process_id: int


def make_reader(server: S3Server, bucket: str, name: str, secret: str) -> None:
    """An account that may read and list ``bucket``, and nothing else."""
    subprocess.run(
        [
            go_tool("versitygw"), "admin", "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--endpoint-url", server.url,
            "create-user", "--access", name, "--secret", secret, "--role", "user",
        ],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    allowed = {
        "Effect": "Allow",
        "Principal": {"AWS": [name]},
        "Action": ["s3:GetObject", "s3:ListBucket"],
        "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    s3_client(server.url).put_bucket_policy(Bucket=bucket, Policy=policy)


def s3_client(url: str, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY) -> Any:
    """Return a client of boto, for what the store does not do."""
    return botocore.session.get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=Config(s3={"addressing_style": "path"}),
    )


def s3_store_section(
    url: str, bucket: str, *, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY
) -> dict[str, Any]:
    """Return the configuration's store section for a bucket of a server that :func:`running_s3_server` started."""
    return {
        "type": "s3",
        "s3.bucket.name": bucket,
        "s3.region": "us-east-1",
        "s3.endpoint.url": url,
        "s3.path.style.access.enabled": True,
        "aws.access.key.id": access_key,
        "aws.secret.access.key": secret_key,
    }


@contextmanager
def running_s3_server(
    directory: Path,
    certificate: IssuedCertificate | None = None,
    *,
    virtual_domain: str = "",
    has_users: bool = False,
) -> Iterator[S3Server]:
    """versitygw with its objects and its own files below ``directory``, by TLS if it has a certificate; killed at the end.

    ``has_users``: accounts can be made, by :func:`make_reader`.
    With a ``virtual_domain``, a bucket is also ``<bucket>.<virtual_domain>``, which clients must resolve to loopback.

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
    users: list[str | Path] = []
    if has_users:
        accounts = directory / "accounts"
        accounts.mkdir()
        users = ["--iam-dir", accounts]
    said = directory / "versitygw.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [
                go_tool("versitygw"), "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--port", f"127.0.0.1:{port}",
                "--keep-alive", "--quiet", *domain, *users, *tls, "posix", objects,
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_until_it_listens(port, process, said)
        yield S3Server(url=url, directory=objects, process_id=process.pid)
    finally:
        process.kill()
        process.wait()
