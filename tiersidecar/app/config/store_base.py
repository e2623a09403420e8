"""Settings of every kind of store: how segments become objects (S-199, S-220)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from tiersidecar.adapters.key_wrapping.kinds import AWS_KMS, load_wrapping_kind
from tiersidecar.app.config.document import KeyPath
from tiersidecar.app.config.options import Option, revealed
from tiersidecar.app.config.section import Section, refuse
from tiersidecar.app.config.values import FilePath, PositiveDurationMs, Quantity, comma_separated
from tiersidecar.domain.errors import ConfigError

MIB = 1024 * 1024


class CustomMetadataField(StrEnum):
    """Fields that a segment's custom metadata may record (S-289)."""

    REMOTE_SIZE = "REMOTE_SIZE"
    OBJECT_PREFIX = "OBJECT_PREFIX"
    OBJECT_KEY = "OBJECT_KEY"


class VerifyReadBack(StrEnum):
    """How a copied segment is checked before anything local may go (docs/design/0001)."""

    AUTO = "auto"
    CHECKSUM = "checksum"
    FULL = "full"


class KeyPair(Section):
    """An RSA key pair that wraps the data keys of segments."""

    public_key_file: Annotated[FilePath, Field(examples=["/etc/tiersidecar/keys/2026-public.pem"])]
    """PEM file of the public key."""

    private_key_file: Annotated[FilePath, Field(examples=["/etc/tiersidecar/keys/2026-private.pem"])]
    """PEM file of the private key."""


class StoreBase(Section):
    key_prefix: str = ""
    """Prefix of every object key, used as it is: end it with `/`. It must never change while remote segments exist."""

    chunk_size: Annotated[int, Quantity("size", at_least=1, at_most=1_073_741_823)] = 4 * MIB
    """Part of a segment that is transformed, cached and fetched as a unit."""

    compression_enabled: bool = False
    """Compress chunks with zstd."""

    compression_heuristic_enabled: bool = False
    """With compression: skip segments whose first batch is already compressed."""

    encryption_enabled: bool = False
    """Encrypt chunks and indexes with AES-GCM under a data key per segment."""

    encryption_key_pair_id: Annotated[str | None, Field(min_length=1, examples=["'2026'"])] = None
    """Key pair that wraps the data keys of new segments."""

    encryption_key_pairs: Annotated[dict[str, KeyPair], Field(examples=[{}])] = Field(default_factory=dict)
    """Key pairs by id: the one for new segments, and those of older segments that must stay readable."""

    encryption_key_wrapping: Annotated[str | None, Field(pattern=r"^[a-z0-9.-]+$", examples=["aws-kms"])] = None
    """Key service that wraps the data keys of new segments: `aws-kms`, or an entry point of the group
    `tiersidecar.key_wrapping`. Native brokers cannot read such segments. If `encryption.key.pair.id` is set too, the
    service only opens older segments."""

    encryption_key_wrapping_options: Annotated[
        dict[str, Option], Field(examples=[{"key.id": "alias/kafka-tier", "region": "eu-central-1"}])
    ] = Field(default_factory=dict)
    """Options of the key service. For `aws-kms`: `key.id`, `region`, `endpoint.url`, `ca.location`, `access.key.id`,
    `secret.access.key`. A value may be a secret: `{env: NAME}` or `{file: /path}`."""

    encryption_data_key_cache_ms: PositiveDurationMs = 3_600_000
    """How long a data key that the service has unwrapped is kept, in memory only."""

    encryption_data_key_cache_size: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000
    """Maximum number of these keys, in each process; each takes about 300 bytes."""

    custom_metadata_fields_include: Annotated[tuple[CustomMetadataField, ...], BeforeValidator(comma_separated)] = ()
    """Fields to record with each segment: REMOTE_SIZE, OBJECT_PREFIX, OBJECT_KEY."""

    upload_rate_limit_bytes_per_second: Annotated[
        Annotated[int, Quantity("size", at_least=MIB)] | None, Field(examples=["100MiB"])
    ] = None
    """Maximum bytes per second that are sent to the store, and so read from disk, over all uploads; default: the copy
    quota, which is also its maximum. At least 1 MiB. Changed by a reload (SIGHUP)."""

    upload_stall_timeout: PositiveDurationMs = 120_000
    """An upload that makes no progress for this long is given up, and the segment is copied again under a new id."""

    upload_timeout: PositiveDurationMs = 3_600_000
    """Longest upload of one object, not counting waits for the upload rate."""

    request_timeout: PositiveDurationMs = 60_000
    """Longest wait for any other request to the store: a fetch, a deletion, a probe."""

    verify_read_back: VerifyReadBack = VerifyReadBack.AUTO
    """Check before local data may be trimmed. `full` reads every byte back and compares it with the local log: it proves
    what the store can deliver. `checksum` compares the CRC32C and the size that the store keeps of the whole object with
    the local file: it proves what the store received, and saves the read. Segments are still read in full if they are
    compressed or encrypted by tiersidecar, if another replica has rolled at other offsets, or if the checksums differ.
    `auto` is `full`."""

    @model_validator(mode="after")
    def _key_of_new_segments_is_known(self) -> Self:
        faults: list[tuple[KeyPath, str]] = []
        if self.encryption_key_wrapping is not None:
            faults += self._wrapping_faults(self.encryption_key_wrapping)
        elif self.encryption_key_wrapping_options:
            faults.append((("encryption.key.wrapping.options",), "have no effect without encryption.key.wrapping"))
        if self.encryption_enabled and self.encryption_key_pair_id is None and self.encryption_key_wrapping is None:
            reason = "is required with encryption.enabled, unless encryption.key.wrapping names a key service"
            faults.append((("encryption.key.pair.id",), reason))
        services = {AWS_KMS, self.encryption_key_wrapping or AWS_KMS}
        for key_id in self.encryption_key_pairs:
            if key_id.partition("/")[1] and key_id.partition("/")[0] in services:
                reason = f"{key_id!r} looks in a manifest like a key of a key service: give the pair another id"
                faults.append((("encryption.key.pairs", key_id), reason))
        if self.encryption_key_pair_id is not None and self.encryption_key_pair_id not in self.encryption_key_pairs:
            known = ", ".join(sorted(self.encryption_key_pairs)) or "none"
            reason = f"{self.encryption_key_pair_id!r} is not in encryption.key.pairs, which has {known}"
            faults.append((("encryption.key.pair.id",), reason))
        if "\0" in self.key_prefix or ".." in self.key_prefix.split("/"):
            faults.append((("key.prefix",), "cannot hold '..' or a NUL character"))
        refuse(faults)
        return self

    def _wrapping_faults(self, kind: str) -> list[tuple[KeyPath, str]]:
        try:
            found = load_wrapping_kind(kind).faults(revealed(self.encryption_key_wrapping_options))
        except ConfigError as error:
            key = "encryption.key.wrapping"
            return [((key,), fault.removeprefix(f"{key}: ")) for fault in error.faults]
        faults: list[tuple[KeyPath, str]] = []
        for option, value in self.encryption_key_wrapping_options.items():
            if "secret" in option and isinstance(value, str):
                reason = "is a secret: write {env: NAME} or {file: /path}"
                faults.append((("encryption.key.wrapping.options", option), reason))
        return faults + [(("encryption.key.wrapping.options", option), reason) for option, reason in found]

    @property
    def is_plain(self) -> bool:
        """Return whether each object has the bytes of the broker's file: no compression and no encryption is configured."""
        return not (self.compression_enabled or self.encryption_key_pairs or self.encryption_key_wrapping)

    @property
    def location(self) -> tuple[str, str]:
        """Return the store, and the beginning of our keys in it: the objects of two sections lie apart unless the stores are
        equal and one beginning begins with the other."""
        return self.place, self.key_prefix

    @property
    def place(self) -> str:
        """Return where the objects are, for reports; no secrets."""
        raise NotImplementedError
