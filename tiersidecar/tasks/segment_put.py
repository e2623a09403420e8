"""Put the objects of a segment that was written to this disk into the store, and prove by reading them back that they are
what was written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from tiersidecar.domain.errors import (
    CorruptDataError,
    CustomMetadataTooLargeError,
)
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import (
    LocalSegment,
    RemoteLogSegmentMetadata,
    SegmentScan,
)
from tiersidecar.formats.aiven.index_blob import IndexArtefacts
from tiersidecar.formats.aiven.layout import SegmentEncryption
from tiersidecar.formats.kafka.log_dir_files import write_leader_epochs
from tiersidecar.formats.kafka.producer_state import write_producer_snapshot
from tiersidecar.formats.kafka.segment_scan import SegmentScanner
from tiersidecar.ports.log_dirs import SegmentFile
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.segment_stream import Pace, SegmentStream
from tiersidecar.tasks.segment_objects import SegmentObjects
from tiersidecar.tasks.segment_reading import next_base_offset_of

OpenFile = Callable[[LocalSegment], AbstractAsyncContextManager[SegmentFile]]
"""Opens the .log of a segment on this disk, for as long as the context lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSegment:
    """A segment on this disk, as it is to go up.  ``digest`` is the SHA-256 of its whole .log, in hexadecimal;
    ``max_timestamp_ms`` is what its retention goes by."""

    local: LocalSegment
    artefacts: IndexArtefacts
    is_compressed: bool
    digest: str
    max_timestamp_ms: int

    @property
    def facts(self) -> NewFacts:
        """Return what the event says of it."""
        return NewFacts(
            start_offset=self.local.base_offset,
            end_offset=Offset(next_base_offset_of(self.local) - 1),
            size_bytes=self.local.size_bytes,
            max_timestamp_ms=self.max_timestamp_ms,
            txn_index_empty=not self.artefacts.transaction_index,
            digest=self.digest,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFacts:
    """A segment that is to go up, without its bytes."""

    start_offset: Offset
    end_offset: Offset
    size_bytes: int
    max_timestamp_ms: int
    txn_index_empty: bool
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SwapStore:
    """Store in which segments are kept, and read past every cache: what is proven by it stands in the store."""

    objects: SegmentObjects
    stream: SegmentStream
    blobs: IndexBlobReader
    pace: Pace
    open_file: OpenFile
    most_custom_metadata_bytes: int


class Prover(Protocol):
    """Is shown the stored .log from its first byte to its last when it is read back."""

    def look(self, part: memoryview) -> None:
        """See the next bytes; they must not be kept."""

    def finish(self) -> None:
        """Note that all bytes were shown.

        Raises:
            CorruptDataError: they are not what they were to be.
        """


class DigestAlone:
    """A :class:`Prover` that compares nothing besides the digest: the file is checked batch by batch when it goes up."""

    def look(self, part: memoryview) -> None:
        return None

    def finish(self) -> None:
        return None


async def put_segment(store: SwapStore, started: RemoteLogSegmentMetadata, new: NewSegment) -> bytes | None:
    """Put up a segment that was begun (:meth:`SegmentSwap.begin`) and read it back; return the custom metadata that its
    COPY_SEGMENT_FINISHED names.

    Raises:
        StoreError, CorruptDataError, CustomMetadataTooLargeError: it is not there.
        KeyServiceError, KeyRefusedError: the key service gives no key.
    """
    encryption = await store.objects.new_encryption(started.remote_log_segment_id)
    custom_metadata = await upload(store, started, new, encryption)
    stored = started if custom_metadata is None else replace(started, custom_metadata=custom_metadata)
    await read_back(store, stored, new, DigestAlone())
    return custom_metadata


async def upload(
    store: SwapStore, started: RemoteLogSegmentMetadata, new: NewSegment, encryption: SegmentEncryption | None
) -> bytes | None:
    """Store the three objects of ``started``, durably; return the custom metadata that names them.

    Raises:
        StoreError, CorruptDataError, CustomMetadataTooLargeError: one is not there.
    """
    async with store.open_file(new.local) as file:
        reading = _FileReading(started, new)
        custom = await store.objects.put(started, file, reading, is_compressed=new.is_compressed, encryption=encryption)
    if len(custom or b"") > store.most_custom_metadata_bytes:
        raise CustomMetadataTooLargeError(
            segment=str(started.remote_log_segment_id),
            size_bytes=len(custom or b""),
            limit_bytes=store.most_custom_metadata_bytes,
        )
    return custom


async def read_back(store: SwapStore, stored: RemoteLogSegmentMetadata, new: NewSegment, prover: Prover) -> None:
    """Read the objects again, and compare them with what was written.

    Raises:
        StoreError, CorruptDataError: one cannot be read, or differs.
    """
    digest = hashlib.sha256()

    def look(part: memoryview) -> None:
        digest.update(part)
        prover.look(part)

    async for _ in store.stream.feed_log(stored, look, store.pace):
        pass
    require(stored, digest.hexdigest() == new.digest, "its .log differs from what was uploaded")
    prover.finish()
    indexes = await store.blobs.read_index_files(stored)
    epochs = tuple(await store.blobs.read_leader_epochs(stored))
    producers = write_producer_snapshot(await store.blobs.read_producer_snapshot(stored))
    said = new.artefacts
    is_same = (
        indexes.offset_index == said.offset_index
        and indexes.time_index == said.time_index
        and indexes.transaction_index == (said.transaction_index or b"")
        and write_leader_epochs(epochs) == said.leader_epochs
        and producers == said.producer_snapshot
    )
    require(stored, is_same, "its indexes differ from what was uploaded")


class _FileReading:
    """The new file on its way up (:class:`~tiersidecar.tasks.segment_objects.LogReading`): every checksum is looked at again,
    and the whole must be what was written."""

    def __init__(self, started: RemoteLogSegmentMetadata, new: NewSegment) -> None:
        self._started, self._new = started, new
        self._digest = hashlib.sha256()
        self._scanner = SegmentScanner(
            where=new.local.log_path, base_offset=started.start_offset, next_base_offset=started.next_offset
        )
        self.scan: SegmentScan | None = None

    def look(self, part: memoryview) -> None:
        self._digest.update(part)
        self._scanner.feed(part)

    def finish(self) -> None:
        scan = self._scanner.finish()
        require(self._started, self._digest.hexdigest() == self._new.digest, "its file has changed")
        self.scan = scan

    def artefacts(self) -> IndexArtefacts:
        return self._new.artefacts


def require(segment: RemoteLogSegmentMetadata, is_right: bool, reason: str) -> None:
    """Return if ``is_right``.

    Raises:
        CorruptDataError: it is not, for ``reason``.
    """
    if not is_right:
        raise CorruptDataError(where=str(segment.remote_log_segment_id), position=0, reason=reason)
