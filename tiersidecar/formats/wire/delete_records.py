"""DeleteRecords requests, looked at without an object for each partition: the broker has not authorised them yet."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator

from tiersidecar.formats.wire.cursor import Buffer, Cursor
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
    """Return a whole request's body in which deletes of ``topics`` are of offset 0, so that nothing of them is deleted.  A
    request of these alone waits for no follower.

    Raises:
        MalformedMessageError: it is no DeleteRecords request of ``version``.
    """
    cursor, whole, others = Cursor(body, flexible=version >= _FIRST_FLEXIBLE), bytearray(body), 0
    for _ in range(_length(cursor)):
        is_of_them = cursor.string() in topics
        others += not is_of_them
        for _ in range(_length(cursor)):
            cursor.fixed(_ROW)
            if is_of_them:
                _OFFSET.pack_into(whole, cursor.position - _OFFSET.size, 0)
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()
    if not others:
        _TIMEOUT.pack_into(whole, cursor.position, 0)
    return whole


_ROW, _OFFSET, _TIMEOUT = struct.Struct(">iq"), struct.Struct(">q"), struct.Struct(">i")


def _length(cursor: Cursor) -> int:
    length = cursor.array_length()
    if length < 0:
        raise MalformedMessageError(f"null instead of an array before byte {cursor.position}")
    return length
