"""The ``.indexes`` object, and the bounds that a segment's metadata set for all its objects in the store.

The object has a segment's companions one after the other, never compressed (FORMATS: objects): offset index, time index,
producer snapshot, leader epochs, and the transaction index where there is one.  With encryption each that is not empty is a
chunk of its own, with its own IV.

Larger objects than the bounds allow are refused before they are fetched or opened.  Any client that may write to the bucket
decides about the content of a manifest, and nothing in it is signed: 822 bytes once cost 970 MiB.  So each number in it is
compared with the metadata topic's record of the segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.transforms import Buffer, ChunkCipher


class IndexKind(StrEnum):
    """The parts, named as the manifest names them, in their order."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    PRODUCER_SNAPSHOT = "producerSnapshot"
    LEADER_EPOCH = "leaderEpoch"
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentIndexes:
    """Place of each part in the object; ``transaction`` is None for a segment without aborted transactions."""

    offset: ByteRange
    timestamp: ByteRange
    producer_snapshot: ByteRange
    leader_epoch: ByteRange
    transaction: ByteRange | None = None

    def range_of(self, kind: IndexKind) -> ByteRange | None:
        return dict(self.ranges()).get(kind)

    def ranges(self) -> tuple[tuple[IndexKind, ByteRange], ...]:
        """Return each part that is there, in order."""
        parts = (self.offset, self.timestamp, self.producer_snapshot, self.leader_epoch, self.transaction)
        return tuple((kind, part) for kind, part in zip(IndexKind, parts, strict=True) if part is not None)

    @property
    def size_bytes(self) -> int:
        """Return the size of the object."""
        return self.ranges()[-1][1].stop


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexArtefacts:
    """The parts as they are on disk (LogSegmentData; S-033); ``leader_epochs`` is a leader-epoch-checkpoint's bytes."""

    offset_index: Buffer
    time_index: Buffer
    producer_snapshot: Buffer
    leader_epochs: Buffer
    transaction_index: Buffer | None = None

    def parts(self) -> tuple[Buffer, ...]:
        """Return the parts that are there, in order."""
        always = (self.offset_index, self.time_index, self.producer_snapshot, self.leader_epochs)
        return always if self.transaction_index is None else (*always, self.transaction_index)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBlob:
    """The object and the place of each part in it."""

    data: bytes
    indexes: SegmentIndexes


def build_index_blob(
    artefacts: IndexArtefacts, cipher: ChunkCipher | None = None, ivs: Sequence[bytes] = ()
) -> IndexBlob:
    """Build the object.  ``ivs`` has one for each kind of index, whether or not it is there.

    Raises:
        ValueError: too few IVs.
    """
    if cipher is not None and len(ivs) < len(artefacts.parts()):
        raise ValueError(f"{len(ivs)} IVs for {len(artefacts.parts())} indexes")
    data, ranges = bytearray(), []
    for number, part in enumerate(artefacts.parts()):
        start = len(data)
        data += part if cipher is None or not part else cipher.encrypt(part, ivs[number])
        ranges.append(ByteRange(start, len(data)))
    offset, timestamp, producer_snapshot, leader_epoch, *transaction = ranges
    indexes = SegmentIndexes(
        offset=offset,
        timestamp=timestamp,
        producer_snapshot=producer_snapshot,
        leader_epoch=leader_epoch,
        transaction=transaction[0] if transaction else None,
    )
    return IndexBlob(data=bytes(data), indexes=indexes)


def open_index(stored: Buffer, cipher: ChunkCipher | None = None, *, where: str = "index") -> bytes:
    """Return one part from exactly its bytes of the object.

    Raises:
        CorruptDataError: it does not open.
    """
    if cipher is None or not stored:
        return bytes(stored)
    return cipher.decrypt(stored, where=where)


def slice_index(
    blob: Buffer,
    indexes: SegmentIndexes,
    kind: IndexKind,
    cipher: ChunkCipher | None = None,
    *,
    where: str = ".indexes",
) -> bytes | None:
    """Return one part out of the whole object, opened; None for a transaction index that is not there.

    Raises:
        CorruptDataError: the object is shorter than the manifest says, or the part does not open.
    """
    byte_range = indexes.range_of(kind)
    if byte_range is None:
        return None
    if byte_range.stop > len(blob):
        reason = f"{kind} index ends at byte {byte_range.stop}, the object at {len(blob)}"
        raise CorruptDataError(where=where, position=len(blob), reason=reason)
    part = memoryview(blob)[byte_range.start : byte_range.stop]
    return open_index(part, cipher, where=f"{kind} index of {where}")


MIB = 1024 * 1024

MOST_CHUNKS = 1 << 18
"""Chunks of one segment: 4 KiB chunks of 1 GiB.  Smaller chunks are not written."""
MOST_CHUNK_BYTES = 16 * MIB
"""Size of a chunk that is opened whole, unless chunks are written larger here."""
MOST_INDEX_BYTES = 10 * MIB
"""``segment.index.bytes``: a broker rolls its segment before an index is larger, unless that is configured higher."""

_LEAST_BATCH_BYTES = 26
"""Size of a message of format 0."""
_LEAST_MARKER_BYTES = 78
_ENCRYPTION_BYTES = 28
_MANIFEST_BYTES = 64 * 1024
"""Everything but what grows with chunks and leader epochs: names, the wrapped data key, unknown keys."""
_MANIFEST_BYTES_OF_A_CHUNK = 6
_MANIFEST_BYTES_OF_AN_EPOCH = 48
_SPARE_ENTRIES = 16
_EPOCHS_BYTES = 256 * 1024
_BYTES_OF_AN_EPOCH = 32
_MOST_SEGMENT_BYTES = (1 << 31) - 1
_MOST_EPOCHS = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentBounds:
    """Bounds for one segment's objects; without arguments those that hold for every segment."""

    segment_size_bytes: int = _MOST_SEGMENT_BYTES
    is_size_known: bool = False
    offset_count: int = 1 << 31
    leader_epoch_count: int = _MOST_EPOCHS
    most_chunk_bytes: int = MOST_CHUNK_BYTES
    most_index_bytes: int = MOST_INDEX_BYTES

    @property
    def manifest_bytes(self) -> int:
        """Return the most bytes that a manifest may have."""
        chunks = min(self.segment_size_bytes, MOST_CHUNKS)
        return (
            _MANIFEST_BYTES
            + _MANIFEST_BYTES_OF_A_CHUNK * chunks
            + _MANIFEST_BYTES_OF_AN_EPOCH * min(self.leader_epoch_count, _MOST_EPOCHS)
        )

    @property
    def manifest_values(self) -> int:
        """Return the most commas, brackets and braces that a manifest may have: they cost memory when it is parsed."""
        return 256 + 2 * self.leader_epoch_count

    def index_bytes(self, kind: IndexKind) -> int:
        """Return the most bytes that an index may take in the store.

        An offset or time index that an unclean stop left preallocated has as many zeros as ``segment.index.bytes``.
        """
        match kind:
            case IndexKind.OFFSET | IndexKind.TIMESTAMP:
                return self.most_index_bytes + _ENCRYPTION_BYTES
            case IndexKind.TRANSACTION:
                return min(34 * (self.transaction_entries), self.most_index_bytes) + _ENCRYPTION_BYTES
            case IndexKind.PRODUCER_SNAPSHOT:
                return self.most_index_bytes + _ENCRYPTION_BYTES
            case IndexKind.LEADER_EPOCH:
                own = _BYTES_OF_AN_EPOCH * min(self.leader_epoch_count, _MOST_EPOCHS)
                return _EPOCHS_BYTES + own + _ENCRYPTION_BYTES

    @property
    def index_entries(self) -> int:
        """Return the most entries of an offset or time index that are not zeros: one for each batch."""
        return min(self.offset_count, self.segment_size_bytes // _LEAST_BATCH_BYTES) + _SPARE_ENTRIES

    @property
    def transaction_entries(self) -> int:
        """Return the most aborted transactions: each has its marker in the segment."""
        return min(self.offset_count, self.segment_size_bytes // _LEAST_MARKER_BYTES) + _SPARE_ENTRIES


def transformed_bytes_at_most(original_bytes: int) -> int:
    """Return the most bytes of a chunk in the store: zstd's own bound (``ZSTD_compressBound``), and IV and tag."""
    return original_bytes + original_bytes // 128 + 1024


def bounds_of(
    metadata: RemoteLogSegmentMetadata,
    *,
    most_chunk_bytes: int = MOST_CHUNK_BYTES,
    most_index_bytes: int = MOST_INDEX_BYTES,
) -> SegmentBounds:
    """Return the bounds that ``metadata`` set."""
    return SegmentBounds(
        segment_size_bytes=metadata.segment_size_in_bytes,
        is_size_known=True,
        offset_count=metadata.next_offset - metadata.start_offset,
        leader_epoch_count=len(metadata.segment_leader_epochs),
        most_chunk_bytes=max(most_chunk_bytes, MOST_CHUNK_BYTES),
        most_index_bytes=most_index_bytes,
    )


ANY_SEGMENT = SegmentBounds()
