"""Where segments go, and in which form: the settings of Aiven's plugin under their own names (S-199, S-220)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Discriminator, Field, Tag, model_validator

from tiersidecar.adapters.stores.installed import installed_kinds
from tiersidecar.app.config.document import KeyPath
from tiersidecar.app.config.section import refuse
from tiersidecar.app.config.store_azure import AzureStore
from tiersidecar.app.config.store_base import MIB, StoreBase, VerifyReadBack
from tiersidecar.app.config.store_gcs import GcsStore
from tiersidecar.app.config.store_installed import InstalledStore
from tiersidecar.app.config.values import FilePath, PositiveDurationMs, Quantity, Secret


class ReadableBy(StrEnum):
    """Who may read objects that are files; only their owner may write them."""

    OWNER = "owner"
    GROUP = "group"
    ALL = "all"


class FilesystemStore(StoreBase):
    """A directory, usually a mount: the embedded default."""

    type: Literal["filesystem"]
    """Kind of store: `filesystem`, `s3`, `azure` or `gcs`."""

    root: Annotated[FilePath, Field(examples=["/srv/tier"])]
    """Directory of the objects. It must exist: the sidecar does not create it, since the volume may just not be mounted."""

    objects_readable_by: ReadableBy = ReadableBy.GROUP
    """Who may read new objects: `owner` (files of mode 0600, directories 0700), `group` (0640, 0750) or `all` (0644, 0755),
    whatever the umask. A broker with native tiering and Spark jobs that run as other users need the wider ones."""

    @property
    def location(self) -> tuple[str, str]:
        return "filesystem", f"{Path(self.root).resolve()}/{self.key_prefix}"

    @property
    def place(self) -> str:
        return f"filesystem {self.root}"


class S3Store(StoreBase):
    """Amazon S3, or a server that speaks its protocol."""

    type: Literal["s3"]
    """This kind of store."""

    s3_bucket_name: Annotated[str, Field(min_length=1, examples=["kafka-tier"])]
    """Bucket of the objects; it must exist."""

    s3_region: Annotated[str, Field(min_length=1, examples=["eu-central-1"])]
    """Region of the bucket; for other servers whatever they expect, often us-east-1."""

    s3_endpoint_url: Annotated[
        str | None, Field(pattern=r"^https?://[^\s/]+/?\S*$", examples=["https://objects.example.com"])
    ] = None
    """Address of the server, if it is not Amazon's."""

    s3_path_style_access_enabled: bool | None = None
    """true puts the bucket into the path, false into the host name; default: the client's choice."""

    s3_multipart_upload_part_size: Annotated[int, Quantity("size", at_least=5 * MIB, at_most=2**31 - 1)] = 25 * MIB
    """Size of the parts of a multipart upload, each held in memory while it is sent."""

    s3_multipart_upload_parts_in_flight: Annotated[int, Field(ge=1, le=64)] = 4
    """Parts of one segment that are sent at once."""

    s3_api_call_timeout: PositiveDurationMs | None = None
    """Longest wait for one request with all its retries; default: none."""

    s3_api_call_attempt_timeout: PositiveDurationMs | None = None
    """Longest wait for one attempt; default: the client's."""

    s3_max_attempts: Annotated[int, Field(ge=1, le=20)] = 5
    """Attempts for one request, in botocore's adaptive retry mode."""

    s3_storage_class: Annotated[str, Field(pattern=r"^[A-Z_]+$")] = "STANDARD"
    """Storage class of new objects. Classes that must be restored before a read make remote reads fail."""

    s3_server_side_encryption: Literal["none", "AES256", "aws:kms"] = "none"
    """Encryption by the store: none (the bucket's own default), SSE-S3 (`AES256`) or SSE-KMS (`aws:kms`)."""

    s3_server_side_encryption_kms_key_id: Annotated[str | None, Field(min_length=1, examples=["alias/kafka-tier"])] = (
        None
    )
    """Key for SSE-KMS; default: the account's."""

    s3_checksum_algorithm: Literal["auto", "crc32c", "none"] = "auto"
    """`crc32c` requires that the server keeps a full-object CRC32C, `none` never sends one, `auto` sends one and accepts a
    server that does not keep it."""

    s3_ssl_ca_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/s3-ca.pem"])] = None
    """PEM file of the authorities that signed the server's certificate; default: the system's."""

    aws_access_key_id: Annotated[Secret | None, Field(examples=["{env: AWS_ACCESS_KEY_ID}"])] = None
    """Static access key; default: botocore's own chain (environment, profile, web identity, instance role)."""

    aws_secret_access_key: Annotated[Secret | None, Field(examples=["{env: AWS_SECRET_ACCESS_KEY}"])] = None
    """Static secret key."""

    aws_certificate_check_enabled: bool = True
    """false accepts any certificate: for tests only."""

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        faults: list[tuple[KeyPath, str]] = []
        if (self.aws_access_key_id is None) != (self.aws_secret_access_key is None):
            missing = "aws.access.key.id" if self.aws_access_key_id is None else "aws.secret.access.key"
            faults.append(((missing,), "is required: the access key and the secret key go together"))
        if self.s3_server_side_encryption_kms_key_id is not None and self.s3_server_side_encryption != "aws:kms":
            key = "s3.server.side.encryption.kms.key.id"
            faults.append(((key,), "has no effect unless s3.server.side.encryption is aws:kms"))
        if self.verify_read_back is VerifyReadBack.CHECKSUM and self.s3_checksum_algorithm == "none":
            faults.append((("verify.read.back",), "checksum needs s3.checksum.algorithm auto or crc32c"))
        refuse(faults)
        return self

    @property
    def location(self) -> tuple[str, str]:
        return f"{self.place} at {self.s3_endpoint_url or 'Amazon'}", self.key_prefix

    @property
    def place(self) -> str:
        return f"s3://{self.s3_bucket_name}"


INSTALLED = "installed"
"""The tag of kinds that other packages bring; those of the built-in ones are their names."""


def _kind_of(value: Any) -> str | None:
    """Return the tag below: that of a built-in kind is its name, and wins over a package's of the same name."""
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    if kind is None:
        return None
    return str(kind) if kind in BUILT_IN or str(kind) not in installed_kinds() else INSTALLED


StoreSection = Annotated[
    Annotated[FilesystemStore, Tag("filesystem")]
    | Annotated[S3Store, Tag("s3")]
    | Annotated[AzureStore, Tag("azure")]
    | Annotated[GcsStore, Tag("gcs")]
    | Annotated[InstalledStore, Tag(INSTALLED)],
    Discriminator(_kind_of),
]


def store_sections() -> dict[str, type[StoreBase]]:
    """Return the section of each kind of store by its tag, in the order of :data:`StoreSection`."""
    members, _ = get_args(StoreSection)
    return {tag.tag: section for section, tag in map(get_args, get_args(members))}


BUILT_IN = tuple(tag for tag in store_sections() if tag != INSTALLED)
