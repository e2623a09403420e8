"""Settings of the S3 store: bucket, server, login, timeouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

MIB = 1024 * 1024
DAY_MS = 24 * 60 * 60 * 1000
CONNECT_TIMEOUT_S = 10.0
_CONNECTIONS = 64


class S3Checksums(StrEnum):
    """``CRC32C``: send one, and demand that the server keeps it.  ``NONE``: send none.  ``AUTO``: send one, and go on without
    where the server refuses it."""

    AUTO = "auto"
    CRC32C = "crc32c"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """``access_key_id`` and ``secret_access_key`` None: botocore's own chain (environment, profile, assumed role, web
    identity, instance role).

    ``part_buffers`` parts of ``part_size_bytes`` are the memory of the whole store, ``parts_in_flight`` those of one object.
    ``stall_timeout_s`` is how long a request may make no progress, ``attempt_timeout_s`` how long the server may take to
    answer once it has the request, ``call_timeout_s`` bounds a request with all its attempts.
    """

    bucket: str
    region: str
    endpoint_url: str | None = None
    addressing: Literal["auto", "path", "virtual"] = "auto"
    part_size_bytes: int = 25 * MIB
    parts_in_flight: int = 4
    part_buffers: int = 8
    call_timeout_s: float | None = None
    attempt_timeout_s: float = 60.0
    stall_timeout_s: float = 60.0
    max_attempts: int = 5
    storage_class: str = "STANDARD"
    server_side_encryption: Literal["AES256", "aws:kms"] | None = None
    kms_key_id: str | None = None
    checksums: S3Checksums = S3Checksums.AUTO
    ca_file: str | None = None
    verify_tls: bool = True
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    key_prefix: str = ""
    stale_upload_ms: int = DAY_MS

    def client_arguments(self) -> dict[str, Any]:
        """Return the arguments of ``session.client("s3", ...)``."""
        from aiobotocore.config import AioConfig  # late: a seventh of the daemon's start, whatever its store

        return {
            "region_name": self.region,
            "endpoint_url": self.endpoint_url,
            "verify": (self.ca_file or True) if self.verify_tls else False,
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "config": AioConfig(
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=self.attempt_timeout_s,
                max_pool_connections=_CONNECTIONS,
                retries={"mode": "adaptive", "total_max_attempts": self.max_attempts},
                # botocore's own sums cost 3 CPU seconds per GiB; ours are sent explicitly.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={"addressing_style": self.addressing, "payload_signing_enabled": False},
            ),
        }

    def new_object_arguments(self) -> dict[str, Any]:
        """Return the arguments of every new object: PutObject and CreateMultipartUpload take the same."""
        arguments: dict[str, Any] = {}
        if self.storage_class != "STANDARD":
            arguments["StorageClass"] = self.storage_class
        if self.server_side_encryption is not None:
            arguments["ServerSideEncryption"] = self.server_side_encryption
        if self.kms_key_id is not None:
            arguments["SSEKMSKeyId"] = self.kms_key_id
        return arguments
