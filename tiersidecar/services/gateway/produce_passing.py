"""Produce requests, looked at while they pass: nothing of their records is kept, nor looked at.

The size of a frame goes first, so nothing in it may grow or shrink.  Numbers of partitions are changed in their places.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

from tiersidecar.domain.ids import Uuid
from tiersidecar.formats.wire.cursor import HEAD_BYTES, MOST_HEADER_TAGS, Buffer, Cursor
from tiersidecar.formats.wire.messages import MalformedMessageError

FIRST_FLEXIBLE_PRODUCE = 9
_FIRST_WITH_TRANSACTIONS, _FIRST_WITH_IDS = 3, 13
_INDEX, _ID = struct.Struct(">i"), struct.Struct("16s")
_MOST_KEPT_BYTES = 128 * 1024
"""For fields that are not whole yet, never for records.  The client's id and a transactional id have 32 KiB each at most."""

_Field = TypeVar("_Field")
NumberOf = Callable[[str | bytes, int], int]
"""Takes a topic, by its name or the 16 bytes of its id, and a partition; returns the number to ask the broker for."""


class ProducePassing:
    """``services.gateway.exchange.Passing`` of a request that has ``size_bytes``, its size included.

    ``most_rows`` counts topics and partitions, ``most_tags`` the tagged fields at any one place.
    """

    def __init__(self, version: int, size_bytes: int, *, number_of: NumberOf, most_rows: int, most_tags: int) -> None:
        self._version, self._left, self._rows_left = version, size_bytes, most_rows
        self._number_of, self._most_rows, self._most_tags = number_of, most_rows, most_tags
        self._kept = bytearray()
        self._trouble = ""
        self._cursor = Cursor(b"", flexible=False)
        self._walk = self._all_fields()

    def feed(self, data: memoryview) -> Sequence[Buffer]:
        """Return the bytes that may go on: the same number in all as came, in order, whatever the pieces.

        Raises:
            MalformedMessageError: it is no Produce request of this version.
        """
        self._left -= len(data)
        there = memoryview(self._kept + data) if self._kept else data
        self._cursor.buffer, self._cursor.position = there, 0
        is_done = next(self._walk, True)
        at, self._cursor.buffer = self._cursor.position, b""
        if is_done:  # what may be behind it is nothing to the broker either
            self._kept = bytearray()
            return (there,)
        self._kept = bytearray(there[at:])
        if not self._left or len(self._kept) > _MOST_KEPT_BYTES:
            raise MalformedMessageError(f"no Produce request of version {self._version}: {self._trouble}")
        return (there[:at],) if at else ()

    def _all_fields(self) -> Iterator[None]:
        """Go on until the cursor stands where more is needed than has come, each time."""
        topics = yield from self._whole(self._head)
        for _ in self._rows(topics):
            topic, partitions = yield from self._whole(self._topic)
            for _ in self._rows(partitions):
                at, records_bytes = yield from self._whole(self._partition)
                self._renumber(topic, at)
                yield from self._passed(records_bytes)
                yield from self._whole(self._tags)
            yield from self._whole(self._tags)
        yield from self._whole(self._tags)

    def _whole(self, read: Callable[[Cursor], _Field]) -> Generator[None, None, _Field]:
        while True:
            at = self._cursor.position
            try:
                return read(self._cursor)
            except MalformedMessageError as error:
                self._cursor.position, self._trouble = at, str(error)
            yield

    def _passed(self, size: int) -> Iterator[None]:
        while size > (here := len(self._cursor.buffer) - self._cursor.position):
            self._cursor.skip(here)
            size -= here
            self._trouble = "it ends within its records"
            yield
        self._cursor.skip(size)

    def _rows(self, count: int) -> Iterator[None]:
        for _ in range(count):
            self._rows_left -= 1
            if self._rows_left < 0:
                raise MalformedMessageError(f"a request for more than {self._most_rows} topics and partitions")
            yield

    def _renumber(self, topic: str | bytes, at: int) -> None:
        (partition,) = _INDEX.unpack_from(self._cursor.buffer, at)
        number = self._number_of(topic, partition)
        if number != partition:
            _INDEX.pack_into(self._cursor.buffer, at, number)

    # One each: read by the cursor, or raise.

    def _head(self, cursor: Cursor) -> int:
        cursor.flexible = False
        cursor.skip(HEAD_BYTES)
        cursor.skip_string()  # client_id
        cursor.flexible = self._version >= FIRST_FLEXIBLE_PRODUCE
        cursor.skip_tagged_fields(most=MOST_HEADER_TAGS)
        if self._version >= _FIRST_WITH_TRANSACTIONS:
            cursor.skip_string()  # transactional_id
        cursor.skip(2 + 4)  # acks, timeout_ms
        return cursor.array_length()

    def _topic(self, cursor: Cursor) -> tuple[str | bytes, int]:
        return produce_topic(cursor, self._version), cursor.array_length()

    def _partition(self, cursor: Cursor) -> tuple[int, int]:
        """Return where its number is, and the size of its records."""
        at = cursor.position
        cursor.skip(_INDEX.size)
        length = cursor.uvarint() - 1 if cursor.flexible else cursor.int32()
        return at, max(length, 0)

    def _tags(self, cursor: Cursor) -> None:
        cursor.skip_tagged_fields(most=self._most_tags)


def produce_topic(cursor: Cursor, version: int) -> str | bytes:
    """Read the name of a topic, or its id, in a Produce request or the answer to one."""
    return Uuid(cursor.fixed(_ID)[0]) if version >= _FIRST_WITH_IDS else cursor.string()
