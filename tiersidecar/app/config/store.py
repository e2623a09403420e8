"""Where segments go, and in which form: the settings of Aiven's plugin under their own names (S-199, S-220)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tiersidecar.app.config.document import KeyPath
from tiersidecar.app.config.section import Section, refuse
from tiersidecar.app.config.values import FilePath, PositiveDurationMs, Quantity, Secret, comma_separated

MIB = 1024 * 1024


class CustomMetadataField(StrEnum):
    """What a segment's custom metadata may record (S-289)."""

    REMOTE_SIZE = "REMOTE_SIZE"
    OBJECT_PREFIX = "OBJECT_PREFIX"
    OBJECT_KEY = "OBJECT_KEY"


class VerifyReadBack(StrEnum):
    """How a copied segment is checked before anything local may go (DESIGN.md section 5)."""

    AUTO = "auto"
    CHECKSUM = "checksum"
    FULL = "full"


class ReadableBy(StrEnum):
    """Who may read objects that are files; only their owner may write them."""

    OWNER = "owner"
    GROUP = "group"
    ALL = "all"


class KeyPair(Section):
    """An RSA key pair that wraps the data keys of segments."""

    public_key_file: Annotated[FilePath, Field(examples=["/etc/tiersidecar/keys/2026-public.pem"])]
    """PEM file of the public key."""

    private_key_file: Annotated[FilePath, Field(examples=["/etc/tiersidecar/keys/2026-private.pem"])]
    """PEM file of the private key."""


class _StoreSection(Section):
    key_prefix: str = ""
    """Put before every object key as it is: end it with `/`. It must never change while remote segments exist."""

    chunk_size: Annotated[int, Quantity("size", at_least=1, at_most=1_073_741_823)] = 4 * MIB
    """Slice of a segment that is transformed, cached and fetched as one."""

    compression_enabled: bool = False
    """Compress chunks with zstd."""

    compression_heuristic_enabled: bool = False
    """With compression: leave segments alone whose first batch is compressed already."""

    encryption_enabled: bool = False
    """Encrypt chunks and indexes with AES-GCM under a data key per segment."""

    encryption_key_pair_id: Annotated[str | None, Field(min_length=1, examples=["'2026'"])] = None
    """Key pair that wraps the data keys of new segments."""

    encryption_key_pairs: Annotated[dict[str, KeyPair], Field(examples=[{}])] = Field(default_factory=dict)
    """Key pairs by id: the one for new segments, and those of older segments that are still to be read."""

    custom_metadata_fields_include: Annotated[tuple[CustomMetadataField, ...], BeforeValidator(comma_separated)] = ()
    """What to record with each segment: REMOTE_SIZE, OBJECT_PREFIX, OBJECT_KEY."""

    upload_rate_limit_bytes_per_second: Annotated[
        Annotated[int, Quantity("size", at_least=MIB)] | None, Field(examples=["100MiB"])
    ] = None
    """Upper bound of bytes handed to the store, and so read from disk, per second, over all uploads; default: the copy quota,
    which is also the most it can be. At least 1 MiB. Changed by a reload (SIGHUP)."""

    upload_stall_timeout: PositiveDurationMs = 120_000
    """An upload of which nothing moves for so long is given up, and the segment copied again under a new id."""

    upload_timeout: PositiveDurationMs = 3_600_000
    """Longest upload of one object, not counting its waits for the upload rate."""

    request_timeout: PositiveDurationMs = 60_000
    """Longest wait for any other request to the store: a fetch, a deletion, a probe."""

    verify_read_back: VerifyReadBack = VerifyReadBack.AUTO
    """Check before local data may go: `checksum` compares the store's own full-object checksum and size, `full` reads every
    byte back, `auto` takes `checksum` where the store keeps one and `full` where not."""

    @model_validator(mode="after")
    def _key_of_new_segments_is_known(self) -> Self:
        faults: list[tuple[KeyPath, str]] = []
        if self.encryption_enabled and self.encryption_key_pair_id is None:
            faults.append((("encryption.key.pair.id",), "is required with encryption.enabled"))
        elif self.encryption_key_pair_id is not None and self.encryption_key_pair_id not in self.encryption_key_pairs:
            known = ", ".join(sorted(self.encryption_key_pairs)) or "none"
            reason = f"{self.encryption_key_pair_id!r} is not in encryption.key.pairs, which has {known}"
            faults.append((("encryption.key.pair.id",), reason))
        if "\0" in self.key_prefix or ".." in self.key_prefix.split("/"):
            faults.append((("key.prefix",), "cannot hold '..' or a NUL character"))
        refuse(faults)
        return self


class FilesystemStore(_StoreSection):
    """A directory, usually a mount: the embedded default."""

    type: Literal["filesystem"]
    """`filesystem` or `s3`."""

    root: Annotated[FilePath, Field(examples=["/srv/tier"])]
    """Directory of the objects. It must exist: an unmounted volume is not to be replaced by a directory."""

    objects_readable_by: ReadableBy = ReadableBy.GROUP
    """Who may read new objects: `owner` (files of mode 0600, directories 0700), `group` (0640, 0750) or `all` (0644, 0755),
    whatever the umask. A broker with native tiering and Spark jobs that run as other users need the wider ones."""


class S3Store(_StoreSection):
    """Amazon S3, or a server that speaks its protocol."""

    type: Literal["s3"]
    """`filesystem` or `s3`."""

    s3_bucket_name: Annotated[str, Field(min_length=1, examples=["kafka-tier"])]
    """Bucket of the objects; it must exist."""

    s3_region: Annotated[str, Field(min_length=1, examples=["eu-central-1"])]
    """Region of the bucket; for other servers whatever they expect, often us-east-1."""

    s3_endpoint_url: Annotated[
        str | None, Field(pattern=r"^https?://[^\s/]+/?\S*$", examples=["https://objects.example.com"])
    ] = None
    """Address of another server than Amazon's."""

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
    """`crc32c` demands that the server keeps a full-object CRC32C, `none` never sends one, `auto` sends one and goes on
    without where the server does not keep it."""

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


StoreSection = Annotated[FilesystemStore | S3Store, Field(discriminator="type")]
