"""Records of a KRaft cluster's own metadata, as a controller reads them when its metadata log is empty.

``kafka-storage format`` writes such a file, with the cluster's features and SCRAM users.  The first active controller appends
its records to the empty metadata log, whatever they are: topics with their ids and leader epochs too.

A record's value is ``frame version 1 | apiKey | version``, as unsigned varints, and a flexible message
(``MetadataRecordSerde``).  A file is record batches of format 2; control batches (header, voters, footer) hold no metadata
(``BatchFileReader``).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from mmap import mmap

from crc32c import crc32c

from tiersidecar.domain.cluster_topics import NewPartition, NewTopic
from tiersidecar.domain.errors import CorruptDataError, TruncatedDataError
from tiersidecar.domain.ids import Uuid
from tiersidecar.formats.compaction.raw_records import varint
from tiersidecar.formats.kafka.record_batches import (
    BATCH_HEADER_SIZE,
    CONTROL_FLAG,
    CRC_START_V2,
    HEADER_V2,
    LOG_OVERHEAD,
    NO_PRODUCER_ID,
    check_batch,
    read_batch_header,
)

_FRAME_VERSION = 1
_TOPIC, _PARTITION, _CONFIG, _REMOVE_TOPIC, _PRODUCER_IDS = 2, 3, 4, 9, 15
_OF_TOPICS = re.compile(b"%c[%c%c]\0" % (_FRAME_VERSION, _TOPIC, _REMOVE_TOPIC))
"""How a TopicRecord 0 and a RemoveTopicRecord 0 begin."""
_TOPIC_ID_BYTES = 16
_WITH_DIRECTORIES = 1
"""Version of PartitionRecord since Kafka 3.7."""
_UNASSIGNED_DIRECTORY = bytes(16)
"""``DirectoryId.UNASSIGNED``: the broker reports later where it has the replica."""
_TOPIC_RESOURCE = 2
_NO_LEADER = -1
_NO_TAGS = b"\0"
_RECORDS_PER_BATCH = 1000


def write_topic_records(topic: NewTopic) -> Iterator[bytes]:
    """Yield the values of a TopicRecord, its ConfigRecords and its PartitionRecords, in the order in which they are read."""
    yield _framed(_TOPIC, 0, _string(topic.name) + topic.topic_id + _NO_TAGS)
    for name, value in topic.configs:
        fields = struct.pack(">b", _TOPIC_RESOURCE) + _string(topic.name) + _string(name) + _string(value)
        yield _framed(_CONFIG, 0, fields + _NO_TAGS)
    for partition in topic.partitions:
        yield _framed(_PARTITION, _WITH_DIRECTORIES, _partition_fields(topic.topic_id, partition))


def write_producer_ids_record(next_producer_id: int) -> bytes:
    """Return the value of a ProducerIdsRecord: ids are given out from ``next_producer_id`` on."""
    return _framed(_PRODUCER_IDS, 0, struct.pack(">iqq", _NO_LEADER, -1, next_producer_id) + _NO_TAGS)


def find_topics(content: bytes | mmap, wanted: Mapping[Uuid, str]) -> tuple[set[Uuid], set[Uuid]]:
    """Return which topics of ``wanted``, which has their names by id, a file of the metadata log has as made, and which as
    removed.  It is searched and not parsed, which takes a second for some hundred MiB: no record is compressed, and by chance
    an id is nowhere."""
    made, removed = set[Uuid](), set[Uuid]()
    for match in _OF_TOPICS.finditer(content):
        position = match.end()
        if match[0][1] == _REMOVE_TOPIC:
            removed.add(Uuid(content[position : position + _TOPIC_ID_BYTES]))
            continue
        low, high = (content[position : position + 2] + b"\0\0")[:2]
        position, size = (position + 1, low) if low < 0x80 else (position + 2, low & 0x7F | high << 7)
        name_end = position + max(size - 1, 0)
        topic_id = Uuid(content[name_end : name_end + _TOPIC_ID_BYTES])
        if topic_id in wanted and content[position:name_end] == wanted[topic_id].encode():
            made.add(topic_id)
    return made, removed & wanted.keys()


def append_records(file: bytes, values: Sequence[bytes], *, where: str) -> bytes:
    """Return ``file`` with ``values`` as records behind its last metadata record, and before its closing control batches.

    Raises:
        CorruptDataError: it is no such file, or cut short.
    """
    cut, next_offset, epoch = _end_of_metadata(file, where)
    batches, offset = [], next_offset
    for start in range(0, len(values), _RECORDS_PER_BATCH):
        chunk = values[start : start + _RECORDS_PER_BATCH]
        batches.append(_batch(chunk, base_offset=offset, epoch=epoch))
        offset += len(chunk)
    return file[:cut] + b"".join(batches) + b"".join(_moved(file[cut:], offset - next_offset, where))


def _end_of_metadata(file: bytes, where: str) -> tuple[int, int, int]:
    """Return the byte at which the last metadata batch ends, the offset after it, and its leader epoch."""
    found: tuple[int, int, int] | None = None
    for position, size, base_offset, last_delta, epoch, is_control in _batches(file, where):
        if not is_control:
            found = position + size, base_offset + last_delta + 1, epoch
    if found is None:
        raise CorruptDataError(
            where=where, position=0, reason="it has no metadata record, not even the cluster's features"
        )
    return found


def _batches(file: bytes, where: str) -> Iterator[tuple[int, int, int, int, int, bool]]:
    """Yield position, size, base offset, last offset's delta and leader epoch of each batch, and whether it is of control."""
    position = 0
    while position < len(file):
        rest = memoryview(file)[position:]
        try:
            header = read_batch_header(rest, where=where, position=position)
        except TruncatedDataError as error:
            raise CorruptDataError(where=where, position=position, reason="it ends within a batch") from error
        if header.magic != 2 or header.size_bytes > len(rest):
            raise CorruptDataError(where=where, position=position, reason="it ends within a batch")
        check_batch(rest, header, where=where, position=position)
        is_control = bool(header.attributes & CONTROL_FLAG)
        yield (
            position,
            header.size_bytes,
            header.base_offset,
            header.last_offset_delta,
            header.partition_leader_epoch,
            is_control,
        )
        position += header.size_bytes


def _moved(tail: bytes, by: int, where: str) -> Iterator[bytes]:
    """Return the batches of ``tail`` with offsets higher ``by`` so many; no checksum covers a base offset."""
    for position, size, base_offset, *_ in _batches(tail, where):
        yield struct.pack(">q", base_offset + by) + tail[position + 8 : position + size]


def _batch(values: Sequence[bytes], *, base_offset: int, epoch: int) -> bytes:
    records = b"".join(_record(number, value) for number, value in enumerate(values))
    head = bytearray(BATCH_HEADER_SIZE)
    length = BATCH_HEADER_SIZE - LOG_OVERHEAD + len(records)
    last_delta = len(values) - 1
    HEADER_V2.pack_into(
        head, 0, base_offset, length, epoch, 2, 0, 0, last_delta, 0, 0, NO_PRODUCER_ID, -1, -1, len(values)
    )
    batch = head + records
    struct.pack_into(">I", batch, CRC_START_V2 - 4, crc32c(memoryview(batch)[CRC_START_V2:]))
    return bytes(batch)


def _record(offset_delta: int, value: bytes) -> bytes:
    """Return a record without timestamp delta, key and headers."""
    body = b"\0" + varint(0) + varint(offset_delta) + varint(-1) + varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def _partition_fields(topic_id: Uuid, partition: NewPartition) -> bytes:
    replicas = _array(struct.pack(">i", replica) for replica in partition.replicas)
    return b"".join(
        (
            struct.pack(">i", partition.partition),
            topic_id,
            replicas,
            replicas,  # all in sync
            _array(()),
            _array(()),
            struct.pack(">iii", _NO_LEADER, partition.leader_epoch, 0),
            _array(_UNASSIGNED_DIRECTORY for _ in partition.replicas),
            _NO_TAGS,
        )
    )


def _framed(api_key: int, version: int, fields: bytes) -> bytes:
    return _uvarint(_FRAME_VERSION) + _uvarint(api_key) + _uvarint(version) + fields


def _array(items: Iterable[bytes]) -> bytes:
    items = list(items)
    return _uvarint(len(items) + 1) + b"".join(items)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _uvarint(len(encoded) + 1) + encoded


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
