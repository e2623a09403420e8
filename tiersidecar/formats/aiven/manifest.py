"""The ``.rsm-manifest``: compact JSON in a fixed order, no newline at the end (``SegmentManifestV1``).

It is written last and so seals a segment.  ``eventTimestampMs`` is that of COPY_SEGMENT_STARTED.

The chunk index in it is fixed, or variable with its sizes in a binary codec of their own: ``transformedChunks`` is base64 of a
zstd frame of ``count i32``, then for one chunk ``size i32``, for more ``base i32 | width i8 | (count - 1) x (size - base) in
width bytes | last size i32``, big endian (``ChunkSizesBinaryCodec``).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct

from tiersidecar.domain.data_keys import NO_CONTEXT, KeyContext
from tiersidecar.domain.errors import CorruptDataError, DataKeyError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, format_uuid, parse_uuid
from tiersidecar.domain.offsets import ByteRange, EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, knows_txn_index_empty
from tiersidecar.formats.aiven.index_blob import (
    ANY_SEGMENT,
    MOST_CHUNKS,
    IndexKind,
    SegmentBounds,
    SegmentIndexes,
    transformed_bytes_at_most,
)
from tiersidecar.formats.aiven.key_ring import DataKeys
from tiersidecar.formats.aiven.transforms import (
    ChunkCipher,
    ChunkIndex,
    TransformPlan,
    compress_frame,
    decompress_frame,
)

_VERSION = "1"
_MOST_POSITION = 1 << 31
_ALWAYS = tuple(kind for kind in IndexKind if kind is not IndexKind.TRANSACTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEncryption:
    """``data_key`` is wrapped, ``<key id>:<base64>``."""

    data_key: str = field(repr=False)
    aad: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSegment:
    """Copy of the segment's metadata in a manifest.  It decides nothing: the metadata topic is the truth."""

    remote_log_segment_id: RemoteLogSegmentId
    start_offset: Offset
    end_offset: Offset
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_leader_epochs: tuple[EpochEntry, ...]
    txn_index_empty: bool | None
    """None where the manifest does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Description of how to read a segment's objects."""

    chunk_index: ChunkIndex
    indexes: SegmentIndexes
    compression: bool
    encryption: ManifestEncryption | None = None
    segment: ManifestSegment | None = None


def write_manifest(
    *,
    metadata: RemoteLogSegmentMetadata,
    chunk_index: ChunkIndex,
    indexes: SegmentIndexes,
    compression: bool,
    encryption: ManifestEncryption | None = None,
    kafka_version: tuple[int, int] = (4, 3),
) -> bytes:
    """Return the bytes that the plugin under brokers of ``kafka_version`` writes."""
    document: dict[str, object] = {
        "version": _VERSION,
        "chunkIndex": chunk_index_document(chunk_index),
        "segmentIndexes": {kind.value: _range_document(indexes.range_of(kind)) for kind in IndexKind},
        "compression": compression,
    }
    if encryption is not None:
        aad = base64.b64encode(encryption.aad).decode("ascii")
        document["encryption"] = {"dataKey": encryption.data_key, "aad": aad}
    segment = _segment_document(metadata)
    if knows_txn_index_empty(kafka_version):
        segment["txnIdxEmpty"] = metadata.txn_index_empty
    document["remoteLogSegmentMetadata"] = segment
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def read_manifest(data: bytes, *, where: str = "manifest", bounds: SegmentBounds = ANY_SEGMENT) -> Manifest:
    """Return the manifest; unknown keys are skipped.  Nothing is made of it that ``bounds`` do not allow.

    Raises:
        CorruptDataError: naming what is missing or wrong.
    """
    _check_amount(data, where, bounds)
    try:
        document = _Fields(json.loads(data), where, "")
    except (ValueError, RecursionError) as error:  # also for a number of thousands of digits
        raise CorruptDataError(where=where, position=0, reason=f"not JSON: {error}") from error
    version = document.text("version")
    if version != _VERSION:
        raise document.fault("version", f"is {_repr(version)}, we know only {_VERSION!r}")
    return Manifest(
        chunk_index=parse_chunk_index(document.get("chunkIndex"), where=where, bounds=bounds),
        indexes=_read_indexes(document.nested("segmentIndexes"), bounds),
        compression=document.boolean("compression"),
        encryption=None if document.get("encryption") is None else _read_encryption(document.nested("encryption")),
        segment=None
        if document.get("remoteLogSegmentMetadata") is None
        else _read_segment(document.nested("remoteLogSegmentMetadata")),
    )


def reading_plan(manifest: Manifest, key_ring: DataKeys | None, context: KeyContext = NO_CONTEXT) -> TransformPlan:
    """Return how to open the chunks and indexes of ``manifest``, whose data key has ``context``.

    Raises:
        DataKeyError: encrypted, and the ring cannot open the data key.
        KeyServiceError, KeyRefusedError: the key service is away, or refuses.
    """
    cipher = None
    if manifest.encryption is not None:
        if key_ring is None:
            key_id = manifest.encryption.data_key.partition(":")[0]
            raise DataKeyError(key_id=key_id, reason="encryption is not configured here")
        cipher = _cipher(key_ring.unwrap(manifest.encryption.data_key, context), manifest.encryption)
    return TransformPlan(
        chunk_size=manifest.chunk_index.original_chunk_size, compression=manifest.compression, cipher=cipher
    )


def _cipher(data_key: bytes, encryption: ManifestEncryption) -> ChunkCipher:
    try:
        return ChunkCipher(data_key, encryption.aad)
    except ValueError as error:
        raise DataKeyError(key_id=encryption.data_key.partition(":")[0], reason=str(error)) from error


def _check_amount(data: bytes, where: str, bounds: SegmentBounds) -> None:
    """Check the amount before parsing: a list of a million empty lists takes 40 times its text."""
    if len(data) > bounds.manifest_bytes:
        reason = f"{len(data)} bytes, where the segment's metadata allow {bounds.manifest_bytes}"
        raise CorruptDataError(where=where, position=0, reason=reason)
    values = max(data.count(b","), data.count(b"[") + data.count(b"{"))
    if values > bounds.manifest_values:
        reason = f"{values} values, where the segment's metadata allow {bounds.manifest_values}"
        raise CorruptDataError(where=where, position=0, reason=reason)


def _range_document(byte_range: ByteRange | None) -> dict[str, int] | None:
    return None if byte_range is None else {"position": byte_range.start, "size": len(byte_range)}


def _segment_document(metadata: RemoteLogSegmentMetadata) -> dict[str, object]:
    partition = metadata.topic_id_partition
    return {
        "remoteLogSegmentId": {
            "topicIdPartition": {
                "topicId": format_uuid(partition.topic_id),
                "topicPartition": {"topic": partition.topic, "partition": partition.partition},
            },
            "id": format_uuid(metadata.remote_log_segment_id.uuid),
        },
        "startOffset": metadata.start_offset,
        "endOffset": metadata.end_offset,
        "maxTimestampMs": metadata.max_timestamp_ms,
        "brokerId": metadata.broker_id,
        "eventTimestampMs": metadata.event_timestamp_ms,
        "segmentLeaderEpochs": {str(epoch): offset for epoch, offset in metadata.segment_leader_epochs},
    }


class _Fields:
    """Typed access to a JSON object, with errors that name the key."""

    __slots__ = ("_document", "_path", "_where", "get")

    def __init__(self, document: object, where: str, path: str) -> None:
        self._where, self._path = where, path
        if not isinstance(document, dict):
            raise CorruptDataError(where=where, position=0, reason=f"{path.strip('.') or 'manifest'} is not an object")
        self._document: dict[str, object] = document
        self.get = self._document.get

    def nested(self, key: str) -> _Fields:
        return _Fields(self.get(key), self._where, f"{self._path}{key}.")

    def items(self) -> list[tuple[str, int]]:
        return [(key, self.integer(key)) for key in self._document]

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise self.fault(key, f"is {_repr(value)}, not text")
        return value

    def integer(self, key: str) -> int:
        value = self.get(key)
        if type(value) is not int:
            raise self.fault(key, f"is {_repr(value)}, not a whole number")
        return value

    def boolean(self, key: str) -> bool:
        value = self.get(key)
        if not isinstance(value, bool):
            raise self.fault(key, f"is {_repr(value)}, neither true nor false")
        return value

    def fault(self, key: str, reason: str) -> CorruptDataError:
        return CorruptDataError(where=self._where, position=0, reason=f"{self._path}{key} {reason}")


def _repr(value: object) -> str:
    """Return the beginning of a value from the store, for a message."""
    return repr(value)[:64]


def _read_indexes(fields: _Fields, bounds: SegmentBounds) -> SegmentIndexes:
    offset, timestamp, producer_snapshot, leader_epoch = (
        _read_range(fields.nested(kind), kind, bounds) for kind in _ALWAYS
    )
    kind = IndexKind.TRANSACTION
    has_transaction = fields.get(kind) is not None
    return SegmentIndexes(
        offset=offset,
        timestamp=timestamp,
        producer_snapshot=producer_snapshot,
        leader_epoch=leader_epoch,
        transaction=_read_range(fields.nested(kind), kind, bounds) if has_transaction else None,
    )


def _read_range(fields: _Fields, kind: IndexKind, bounds: SegmentBounds) -> ByteRange:
    position, size = fields.integer("position"), fields.integer("size")
    if not (0 <= position < _MOST_POSITION and 0 <= size < _MOST_POSITION):
        raise fields.fault("position", f"and size of the {kind} index are no range")
    if size > bounds.index_bytes(kind):
        reason = f"of the {kind} index is {size}, where the segment's metadata allow {bounds.index_bytes(kind)}"
        raise fields.fault("size", reason)
    return ByteRange(position, position + size)


def _read_encryption(fields: _Fields) -> ManifestEncryption:
    try:
        aad = base64.b64decode(fields.text("aad"), validate=True)
    except binascii.Error as error:
        raise fields.fault("aad", f"is not base64: {error}") from error
    return ManifestEncryption(data_key=fields.text("dataKey"), aad=aad)


def _read_segment(fields: _Fields) -> ManifestSegment:
    segment_id = fields.nested("remoteLogSegmentId")
    partition = segment_id.nested("topicIdPartition")
    topic_partition = partition.nested("topicPartition")
    try:
        topic_id, uuid = parse_uuid(partition.text("topicId")), parse_uuid(segment_id.text("id"))
        epochs = sorted((int(epoch), offset) for epoch, offset in fields.nested("segmentLeaderEpochs").items())
    except ValueError as error:
        raise fields.fault("remoteLogSegmentId", f"or segmentLeaderEpochs: {error}") from error
    topic_id_partition = TopicIdPartition(
        topic_id=topic_id, topic=topic_partition.text("topic"), partition=topic_partition.integer("partition")
    )
    return ManifestSegment(
        remote_log_segment_id=RemoteLogSegmentId(topic_id_partition=topic_id_partition, uuid=uuid),
        start_offset=Offset(fields.integer("startOffset")),
        end_offset=Offset(fields.integer("endOffset")),
        max_timestamp_ms=fields.integer("maxTimestampMs"),
        broker_id=fields.integer("brokerId"),
        event_timestamp_ms=fields.integer("eventTimestampMs"),
        segment_leader_epochs=tuple(EpochEntry(LeaderEpoch(epoch), Offset(offset)) for epoch, offset in epochs),
        txn_index_empty=None if fields.get("txnIdxEmpty") is None else fields.boolean("txnIdxEmpty"),
    )


_INT = Struct(">i")
_MANY = Struct(">iib")
_MOST_WIDTH = 4


def chunk_index_document(index: ChunkIndex) -> dict[str, object]:
    """Return the JSON object, its keys in the plugin's order."""
    original = {"originalChunkSize": index.original_chunk_size, "originalFileSize": index.original_file_size}
    if index.transformed_sizes is None:
        return {
            "type": "fixed",
            **original,
            "transformedChunkSize": index.transformed_chunk_size,
            "finalTransformedChunkSize": index.final_transformed_chunk_size,
        }
    packed = compress_frame(write_chunk_sizes(index.transformed_sizes))
    return {"type": "variable", **original, "transformedChunks": base64.b64encode(packed).decode("ascii")}


def parse_chunk_index(
    document: object, *, where: str = "chunk index", bounds: SegmentBounds = ANY_SEGMENT
) -> ChunkIndex:
    """Invert :func:`chunk_index_document`; nothing is opened that ``bounds`` do not allow.

    Raises:
        CorruptDataError: naming the key that is missing or wrong.
    """
    if not isinstance(document, Mapping):
        raise _corrupt(where, f"chunkIndex is {_repr(document)}, not an object")
    chunk_bytes = _integer(document, "originalChunkSize", where)
    file_bytes = _integer(document, "originalFileSize", where)
    _check_chunks(chunk_bytes, file_bytes, bounds, where)
    try:
        match document.get("type"):
            case "fixed":
                index = ChunkIndex(
                    original_chunk_size=chunk_bytes,
                    original_file_size=file_bytes,
                    transformed_chunk_size=_integer(document, "transformedChunkSize", where),
                    final_transformed_chunk_size=_integer(document, "finalTransformedChunkSize", where),
                )
            case "variable":
                count = -(-file_bytes // chunk_bytes)
                index = ChunkIndex(
                    original_chunk_size=chunk_bytes,
                    original_file_size=file_bytes,
                    transformed_sizes=_open_chunk_sizes(document.get("transformedChunks"), count, where),
                )
            case other:
                raise _corrupt(where, f"chunkIndex.type is {_repr(other)}, neither fixed nor variable")
    except ValueError as error:
        raise _corrupt(where, f"chunkIndex: {error}") from error
    if bounds.is_size_known:
        _check_transformed(index, where)
    return index


def _check_chunks(chunk_bytes: int, file_bytes: int, bounds: SegmentBounds, where: str) -> None:
    """Check the sizes before anything so large is made."""
    if chunk_bytes <= 0 or file_bytes < 0:
        raise _corrupt(where, f"chunkIndex: chunk size {_repr(chunk_bytes)}, file size {_repr(file_bytes)}")
    if file_bytes > bounds.segment_size_bytes or (bounds.is_size_known and file_bytes != bounds.segment_size_bytes):
        said = f"is of a segment of {_repr(file_bytes)} bytes, the metadata say {bounds.segment_size_bytes}"
        raise _corrupt(where, said)
    if -(-file_bytes // chunk_bytes) > MOST_CHUNKS:
        raise _corrupt(where, f"chunkIndex has chunks of {chunk_bytes} bytes, more than {MOST_CHUNKS} of them")


def _check_transformed(index: ChunkIndex, where: str) -> None:
    largest = transformed_bytes_at_most(min(index.original_chunk_size, index.original_file_size))
    sizes = index.transformed_sizes
    if sizes is None:
        found = index.final_transformed_chunk_size
        found = max(found, index.transformed_chunk_size if index.chunk_count > 1 else 0)
    else:
        found = max(sizes, default=0)
    if found > largest:
        reason = f"chunkIndex has a chunk of {_repr(found)} bytes in the store, of at most {largest}"
        raise _corrupt(where, reason)


def write_chunk_sizes(sizes: Sequence[int]) -> bytes:
    """Encode the sizes in binary: the last one stands by itself, the others are above the least of them.

    Raises:
        ValueError: a negative size.
    """
    if any(size < 0 for size in sizes):
        raise ValueError("chunk sizes cannot be negative")
    if len(sizes) < 2:
        return _INT.pack(len(sizes)) + b"".join(map(_INT.pack, sizes))
    *others, last = sizes
    base = min(others)
    width = max(1, ((max(others) - base).bit_length() + 7) // 8)
    above = b"".join((size - base).to_bytes(width, "big") for size in others)
    return _MANY.pack(len(sizes), base, width) + above + _INT.pack(last)


def read_chunk_sizes(data: bytes, *, where: str = "chunk sizes") -> tuple[int, ...]:
    """Invert :func:`write_chunk_sizes`.

    Raises:
        CorruptDataError: too short, too long, or impossible numbers.
    """
    count = _unpack(_INT, data, 0, where)[0]
    if count < 2:
        if count < 0 or len(data) != _INT.size * (1 + count):
            raise _corrupt(where, f"{len(data)} bytes for {count} chunk sizes")
        return _unpack(_INT, data, _INT.size, where) if count else ()
    _, base, width = _unpack(_MANY, data, 0, where)
    end = _MANY.size + (count - 1) * width
    if not 1 <= width <= _MOST_WIDTH or len(data) != end + _INT.size:
        raise _corrupt(where, f"{len(data)} bytes for {count} chunk sizes of {width} bytes")
    above = (data[at : at + width] for at in range(_MANY.size, end, width))
    return (*(base + int.from_bytes(value, "big") for value in above), *_unpack(_INT, data, end, where))


def _open_chunk_sizes(text: object, count: int, where: str) -> tuple[int, ...]:
    """Return ``count`` sizes: data that opens to more than they take is not opened."""
    if not isinstance(text, str):
        raise _corrupt(where, f"chunkIndex.transformedChunks is {_repr(text)}, not base64 text")
    try:
        packed = base64.b64decode(text, validate=True)
        data = decompress_frame(packed, max_bytes=_MANY.size + _MOST_WIDTH * (count + 1))
    except (binascii.Error, ValueError) as error:
        raise _corrupt(where, f"chunkIndex.transformedChunks: {error}") from error
    said = _unpack(_INT, data, 0, where)[0]
    if said != count:
        raise _corrupt(where, f"chunkIndex: {said} chunk sizes for {count} chunks")
    return read_chunk_sizes(data, where=where)


def _integer(document: Mapping[str, object], key: str, where: str) -> int:
    value = document.get(key)
    if type(value) is not int:
        raise _corrupt(where, f"chunkIndex.{key} is {_repr(value)}, not a whole number")
    return value


def _unpack(layout: Struct, data: bytes, offset: int, where: str) -> tuple[int, ...]:
    if len(data) < offset + layout.size:
        raise _corrupt(where, f"chunk sizes end after {len(data)} bytes")
    return layout.unpack_from(data, offset)


def _corrupt(where: str, reason: str) -> CorruptDataError:
    return CorruptDataError(where=where, position=0, reason=reason)
