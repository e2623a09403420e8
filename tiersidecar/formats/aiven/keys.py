"""Keys: ``<key.prefix><topic>-<topicId>/<partition>/<startOffset, 20 digits>-<segmentId>.<suffix>`` (``ObjectKeyFactory``).

The prefix is put in front as it is: a slash only where it has one.

A segment's custom metadata may name its key.  They are a section of Kafka tagged fields (``SegmentCustomMetadataSerde``):
``count uvarint`` and per field ``tag uvarint | size uvarint | value``: tag 0 the size of the three objects together (zig-zag
varlong), 1 the key prefix and 2 the key without prefix and suffix (compact strings: length + 1 as uvarint, UTF-8).

Tag 917 is ours: the name of the place where the objects lie (compact string; KIP-917), absent in the default place.  The plugin
keeps the bytes of a tag that it does not know, and does not look at them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import (
    DEFAULT_PLACE,
    RemoteLogSegmentId,
    TopicIdPartition,
    is_place_name,
    parse_uuid,
    place_prefix,
)
from tiersidecar.domain.ids import format_uuid as text_of
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State


class CustomMetadataField(StrEnum):
    """Values of ``custom.metadata.fields.include``."""

    REMOTE_SIZE = "REMOTE_SIZE"
    OBJECT_PREFIX = "OBJECT_PREFIX"
    OBJECT_KEY = "OBJECT_KEY"


_REMOTE_SIZE_TAG, _OBJECT_PREFIX_TAG, _OBJECT_KEY_TAG = range(3)
_PLACE_TAG = 917
_LONGEST_VARLONG = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMetadata:
    """The fields; None for one that is left out, and an empty ``place`` for the default one."""

    remote_size: int | None = None
    object_prefix: str | None = None
    object_key: str | None = None
    place: str = DEFAULT_PLACE

    @property
    def recorded_prefix(self) -> str | None:
        """Return what the keys of the objects begin with, as far as it is recorded: in a place it is the place's, whose own
        prefix the configuration has; None where nothing is recorded."""
        return place_prefix(self.place) if self.place else self.object_prefix


def write_custom_metadata(metadata: CustomMetadata) -> bytes:
    """Return the bytes; none at all without fields."""
    values: dict[int, bytes] = {}
    if metadata.remote_size is not None:
        values[_REMOTE_SIZE_TAG] = _unsigned_varint(metadata.remote_size << 1 ^ metadata.remote_size >> 63)
    if metadata.object_prefix is not None:
        values[_OBJECT_PREFIX_TAG] = _compact_string(metadata.object_prefix)
    if metadata.object_key is not None:
        values[_OBJECT_KEY_TAG] = _compact_string(metadata.object_key)
    if metadata.place:
        values[_PLACE_TAG] = _compact_string(metadata.place)
    if not values:
        return b""
    fields = (_unsigned_varint(tag) + _unsigned_varint(len(value)) + value for tag, value in values.items())
    return _unsigned_varint(len(values)) + b"".join(fields)


def read_custom_metadata(data: bytes | None, *, where: str = "custom metadata") -> CustomMetadata:
    """Return the known fields; others are skipped.

    Raises:
        CorruptDataError: not such a section, or cut short; or tags that do not ascend, which Kafka's ``TaggedFields`` refuses;
            or a place that can have no such name.
    """
    if not data:
        return CustomMetadata()
    reader = _Reader(data, where)
    fields = dict(reader.tagged_fields())
    reader.expect_end()
    return CustomMetadata(
        remote_size=_read_signed(fields.get(_REMOTE_SIZE_TAG), where),
        object_prefix=_read_string(fields.get(_OBJECT_PREFIX_TAG), where),
        object_key=_read_string(fields.get(_OBJECT_KEY_TAG), where),
        place=_read_place(fields.get(_PLACE_TAG), where),
    )


def place_in(data: bytes) -> str:
    """Return the place that custom metadata name; the default one where they name none, or are another plugin's.  Quick."""
    if _PLACE_TAG_BYTES not in data:
        return DEFAULT_PLACE
    try:
        return read_custom_metadata(data).place
    except CorruptDataError:
        return DEFAULT_PLACE


def stored_bytes(segments: Iterable[RemoteLogSegmentMetadata]) -> int:
    """Return the size of ``segments`` in the store, from the end of each copy until its deletion is finished.

    A segment counts with its size on the broker's disk if its custom metadata have no REMOTE_SIZE, or are another plugin's.
    """
    return sum(_stored_bytes(one) for one in segments if one.state in _STORED)


_STORED = frozenset({State.COPY_SEGMENT_FINISHED, State.DELETE_SEGMENT_STARTED})


def _stored_bytes(segment: RemoteLogSegmentMetadata) -> int:
    if segment.custom_metadata:
        try:
            remote_size = read_custom_metadata(segment.custom_metadata).remote_size
        except CorruptDataError:
            return segment.segment_size_in_bytes
        if remote_size is not None and remote_size >= 0:
            return remote_size
    return segment.segment_size_in_bytes


class _Reader:
    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where, self._position = data, where, 0

    def unsigned_varint(self) -> int:
        value = 0
        for index, byte in enumerate(self._data[self._position : self._position + _LONGEST_VARLONG]):
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                self._position += index + 1
                return value
        raise self._corrupt("a variable-length integer that does not end")

    def tagged_fields(self) -> Iterator[tuple[int, bytes]]:
        """Yield tags with their values, ascending: of a repeated tag, two readers could believe different values."""
        former = -1
        for _ in range(self.unsigned_varint()):
            tag = self.unsigned_varint()
            if tag <= former:
                raise self._corrupt(f"tag {tag} after tag {former}")
            former = tag
            yield tag, self.bytes_of(self.unsigned_varint())

    def bytes_of(self, size: int) -> bytes:
        value = self._data[self._position : self._position + size]
        if len(value) < size:
            raise self._corrupt(f"a field of {size} bytes where {len(value)} are left")
        self._position += size
        return value

    def rest(self) -> bytes:
        return self._data[self._position :]

    def expect_end(self) -> None:
        if self._position != len(self._data):
            raise self._corrupt(f"{len(self._data) - self._position} bytes after the last field")

    def _corrupt(self, reason: str) -> CorruptDataError:
        return CorruptDataError(where=self._where, position=self._position, reason=reason)


def _read_signed(value: bytes | None, where: str) -> int | None:
    if value is None:
        return None
    reader = _Reader(value, where)
    raw = reader.unsigned_varint()
    reader.expect_end()
    return raw >> 1 ^ -(raw & 1)


def _read_string(value: bytes | None, where: str) -> str | None:
    if value is None:
        return None
    reader = _Reader(value, where)
    size = reader.unsigned_varint() - 1
    if size < 0:
        return None
    text = reader.bytes_of(size)
    reader.expect_end()
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise CorruptDataError(where=where, position=error.start, reason="a string that is not UTF-8") from error


def _read_place(value: bytes | None, where: str) -> str:
    if value is None:
        return DEFAULT_PLACE
    place = _read_string(value, where)
    if place is None or not is_place_name(place):
        raise CorruptDataError(where=where, position=0, reason="a place whose name is none")
    return place


def _compact_string(text: str) -> bytes:
    encoded = text.encode()
    return _unsigned_varint(len(encoded) + 1) + encoded


def _unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_PLACE_TAG_BYTES = _unsigned_varint(_PLACE_TAG)


class ObjectKind(StrEnum):
    """The objects of a segment, by suffix, in the order in which they are put: the manifest seals it (S-283)."""

    LOG = "log"
    INDEXES = "indexes"
    MANIFEST = "rsm-manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKeys:
    """The three keys of one segment."""

    log: str
    indexes: str
    manifest: str

    @property
    def in_upload_order(self) -> tuple[str, str, str]:
        return self.log, self.indexes, self.manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedObjectKey:
    """The parts of a key."""

    segment_id: RemoteLogSegmentId
    start_offset: Offset
    kind: ObjectKind


_BELOW_2_31 = (
    "0|[1-9][0-9]{0,8}|1[0-9]{9}|20[0-9]{8}|21[0-3][0-9]{7}|214[0-6][0-9]{6}|2147[0-3][0-9]{5}|21474[0-7][0-9]{4}"
    "|214748[0-2][0-9]{3}|2147483[0-5][0-9]{2}|21474836[0-3][0-9]|214748364[0-7]"
)
LAYOUT_PATTERN = (
    rf"(?P<topic>[a-zA-Z0-9._-]{{1,249}})-(?P<topic_id>[a-zA-Z0-9_-]{{21}}[AQgw])/(?P<partition>{_BELOW_2_31})"
    r"/(?P<offset>[0-9]{20})-(?P<uuid>[a-zA-Z0-9_-]{21}[AQgw])\.(?P<kind>log|indexes|rsm-manifest)"
)
"""A key without its prefix, in syntax that Python, Java and RE2 share but for the names of groups.

22 characters hold 132 bits: the last one of an id ends in four zeros.  So what fits is written as it is read.
"""

_KEY = re.compile(LAYOUT_PATTERN)


def main_path(segment_id: RemoteLogSegmentId, start_offset: int) -> str:
    """Return a key without prefix and suffix."""
    return f"{segment_id.topic_id_partition.qualified}/{start_offset:020d}-{text_of(segment_id.uuid)}"


def planned_keys(metadata: RemoteLogSegmentMetadata, key_prefix: str = "") -> ObjectKeys:
    """Return the keys to write a segment under."""
    stem = key_prefix + main_path(metadata.remote_log_segment_id, metadata.start_offset)
    return _keys(stem, stem)


def plugin_keys(metadata: RemoteLogSegmentMetadata, key_prefix: str = "") -> ObjectKeys:
    """Return the keys where the plugin looks for a segment: prefix and path by its custom metadata, where they have them.

    The manifest's key never comes from there: it is looked up under the configured prefix, whatever it was when the segment was
    written (``reading.remote_objects.recorded_keys`` are the keys of what was written).

    Raises:
        CorruptDataError: custom metadata that cannot be read.
    """
    path = main_path(metadata.remote_log_segment_id, metadata.start_offset)
    recorded = read_custom_metadata(metadata.custom_metadata, where=f"custom metadata of {path}")
    prefix = key_prefix if recorded.object_prefix is None else recorded.object_prefix
    return _keys(prefix + (recorded.object_key or path), key_prefix + path)


def parse_object_key(key: str, key_prefix: str = "") -> ParsedObjectKey | None:
    """Invert :func:`planned_keys`; None for a key that is not of this layout or not under the prefix."""
    match = _KEY.fullmatch(key.removeprefix(key_prefix)) if key.startswith(key_prefix) else None
    if match is None:
        return None
    topic, topic_id, partition, offset, uuid, kind = match.groups()
    return ParsedObjectKey(
        segment_id=RemoteLogSegmentId(
            topic_id_partition=_partition_of(topic, topic_id, partition), uuid=parse_uuid(uuid)
        ),
        start_offset=Offset(int(offset)),
        kind=ObjectKind(kind),
    )


@lru_cache(maxsize=64)
def _partition_of(topic: str, topic_id: str, partition: str) -> TopicIdPartition:
    """Return the partition, kept for the next key: in a listing those of one partition are neighbours."""
    return TopicIdPartition(topic_id=parse_uuid(topic_id), topic=topic, partition=int(partition))


def _keys(stem: str, manifest_stem: str) -> ObjectKeys:
    return ObjectKeys(
        log=f"{stem}.{ObjectKind.LOG}",
        indexes=f"{stem}.{ObjectKind.INDEXES}",
        manifest=f"{manifest_stem}.{ObjectKind.MANIFEST}",
    )
