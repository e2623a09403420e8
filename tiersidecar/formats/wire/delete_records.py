"""DeleteRecords requests, looked at without an object for each partition: the broker has not authorised them yet."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator

from tiersidecar.formats.wire.cursor import Buffer, Cursor, write_array_length
from tiersidecar.formats.wire.messages import MalformedMessageError

_FIRST_FLEXIBLE = 2
_TIMEOUT_BYTES = 4


def read_deletes(body: Buffer, version: int) -> dict[tuple[str, int], int]:
    """Return the offset by topic and partition, of a whole request's body.

    Raises:
        MalformedMessageError: it names a partition twice, or is no DeleteRecords request of ``version``.
    """
    deletes = dict[tuple[str, int], int]()
    for topic, partition, offset in deletes_asked(body, version):
        if (topic, partition) in deletes:
            raise MalformedMessageError("DeleteRecords of one partition twice")
        deletes[topic, partition] = offset
    return deletes


def deletes_asked(body: Buffer, version: int) -> Iterator[tuple[str, int, int]]:
    """Yield topic, partition and offset of each delete.

    Raises:
        MalformedMessageError: it is no DeleteRecords request of ``version``.
    """
    cursor = Cursor(body, flexible=version >= _FIRST_FLEXIBLE)
    for _ in range(_length(cursor)):
        topic = cursor.string()
        rows = _length(cursor)
        if not rows:  # no client sends it, and tens of thousands fit into a request
            raise MalformedMessageError("DeleteRecords of a topic without partitions")
        for _ in range(rows):
            partition, offset = cursor.fixed(_ROW)
            cursor.skip_tagged_fields()
            yield topic, partition, offset
        cursor.skip_tagged_fields()
    cursor.skip(_TIMEOUT_BYTES)
    cursor.skip_tagged_fields()
    cursor.end()


def up_to_0(body: Buffer, version: int, topics: Collection[str]) -> bytearray:
    """Return a whole request's body with those of its ``topics`` alone, whose deletes are of offset 0 and wait for no follower:
    it deletes nothing.

    Raises:
        MalformedMessageError: it is no DeleteRecords request of ``version``.
    """
    cursor, kept, number_of = Cursor(body, flexible=version >= _FIRST_FLEXIBLE), bytearray(), 0
    for _ in range(_length(cursor)):
        start_at, offsets_at = cursor.position, list[int]()
        topic = cursor.string()
        for _ in range(_length(cursor)):
            cursor.fixed(_ROW)
            offsets_at.append(cursor.position - _OFFSET.size - start_at)
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()
        if topic in topics:
            of_topic = bytearray(body[start_at : cursor.position])
            for at in offsets_at:
                _OFFSET.pack_into(of_topic, at, 0)
            kept += of_topic
            number_of += 1
    end = bytearray(body[cursor.position :])
    _TIMEOUT.pack_into(end, 0, 0)
    return write_array_length(number_of, flexible=cursor.flexible) + kept + end


_ROW, _OFFSET, _TIMEOUT = struct.Struct(">iq"), struct.Struct(">q"), struct.Struct(">i")


def _length(cursor: Cursor) -> int:
    length = cursor.array_length()
    if length < 0:
        raise MalformedMessageError(f"null instead of an array before byte {cursor.position}")
    return length
