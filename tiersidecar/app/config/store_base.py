"""What every kind of store is configured with: how segments become objects (S-199, S-220)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from tiersidecar.app.config.document import KeyPath
from tiersidecar.app.config.section import Section, refuse
from tiersidecar.app.config.values import FilePath, PositiveDurationMs, Quantity, comma_separated

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


class KeyPair(Section):
    """An RSA key pair that wraps the data keys of segments."""

    public_key_file: Annotated[FilePath, Field(examples=["/etc/tiersidecar/keys/2026-public.pem"])]
    """PEM file of the public key."""

    private_key_file: Annotated[FilePath, Field(examples=["/etc/tiersidecar/keys/2026-private.pem"])]
    """PEM file of the private key."""


class StoreBase(Section):
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
    """Check before local data may go. `full` reads every byte back and compares it with the local log: it proves what the store
    can deliver. `checksum` compares the CRC32C and the size that the store keeps of the whole object with the local file: it
    proves what the store received, and saves the read. Segments that are compressed or encrypted here, that another replica has
    rolled elsewhere, or that differ are read in full even so. `auto` is `full`."""

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

    @property
    def location(self) -> tuple[str, str]:
        """The store, and the beginning of our keys in it: the objects of two sections lie apart unless the stores are equal and
        one beginning begins with the other."""
        return self.place, self.key_prefix

    @property
    def place(self) -> str:
        """Where the objects are, for reports; no secrets."""
        raise NotImplementedError
