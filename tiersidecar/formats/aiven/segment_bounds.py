"""Bounds that a segment's metadata set for its objects in the store: larger ones are refused before they are fetched or opened.

Any client that may write to the bucket decides about the content of a manifest, and nothing in it is signed: 822 bytes once
cost 970 MiB.  So each number in it is compared with the metadata topic's record of the segment.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import IndexKind

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
