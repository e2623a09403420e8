"""DeleteRecords requests, looked at without an object for each partition: the broker has not authorised them yet."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from tiersidecar.formats.wire.cursor import Buffer, Cursor
from tiersidecar.formats.wire.messages import MalformedMessageError

_FIRST_FLEXIBLE = 2
_TIMEOUT_BYTES = 4


def read_deletes(body: Buffer, version: int) -> dict[tuple[str, int], int]:
    """Offset by topic and partition, of a whole request's body.

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
    """Topic, partition and offset of each delete.

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


def with_offsets(
    body: Buffer, version: int, offsets: Mapping[tuple[str, int], int], *, timeout_ms: int | None = None
) -> bytearray:
    """Return a copy of a whole request's body in which the deletes of ``offsets``, by topic and partition, have these, and the
    request ``timeout_ms``, if given.

    Raises:
        MalformedMessageError: it is no DeleteRecords request of ``version``.
    """
    changed, cursor = bytearray(body), Cursor(body, flexible=version >= _FIRST_FLEXIBLE)
    for _ in range(_length(cursor)):
        topic = cursor.string()
        for _ in range(_length(cursor)):
            partition, offset = cursor.fixed(_ROW)
            _OFFSET.pack_into(changed, cursor.position - _OFFSET.size, offsets.get((topic, partition), offset))
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()
    if timeout_ms is not None:
        _TIMEOUT.pack_into(changed, cursor.position, timeout_ms)
    return changed


_ROW, _OFFSET, _TIMEOUT = struct.Struct(">iq"), struct.Struct(">q"), struct.Struct(">i")


def _length(cursor: Cursor) -> int:
    length = cursor.array_length()
    if length < 0:
        raise MalformedMessageError(f"null instead of an array before byte {cursor.position}")
    return length
