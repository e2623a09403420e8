"""A real server with the API of AWS KMS on loopback: local-kms, with its keys in a scratch directory."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
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
        """A new symmetric key; returns its ARN."""
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
