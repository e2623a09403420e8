"""The ``.indexes`` object: a segment's companions one after the other, never compressed (FORMATS: objects).

Offset index, time index, producer snapshot, leader epochs, and the transaction index where there is one.  With encryption
each that is not empty is a chunk of its own, with its own IV.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import ByteRange
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
        """Size of the object."""
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
