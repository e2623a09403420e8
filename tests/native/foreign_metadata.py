"""Metadata records as no writer of ours makes them, but another's may: each is read, or refused, in the same way everywhere."""

from __future__ import annotations

from random import Random

from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from tiersidecar.formats.metadata.serde import write_event

EXTREMES = (-(2**63), -(2**63) + 1, -(2**31), -1, 0, 1, 5, 50, 2**31, 2**63 - 2, 2**63 - 1)
_NAMES = (b"", b"\x00", b"orders", b"\xff\xfe", b"\xed\xa0\x80", b"o\x00s", b"n" * 126, b"n" * 127, b"\xc3\xa9" * 64)
_COUNTS = (2**31 - 1, 2**31, 2**32 - 1, 2**35 - 1, 2**40)


class ForeignWriter:
    """Writes one event, with a fault or a rarity at each place by a chance of ``rarity``."""

    def __init__(self, lots: Random, rarity: float) -> None:
        self._lots, self._rarity = lots, rarity

    def write(self, event: MetadataEvent) -> bytes:
        lots = self._lots
        if isinstance(event, RemotePartitionDeleteMetadata):
            return write_event(event, knows_txn_index_empty=False)
        segment, kind = event.remote_log_segment_id, int(isinstance(event, RemoteLogSegmentMetadataUpdate))
        owner = segment.topic_id_partition
        name = lots.choice(_NAMES) if self._is_rare() else owner.topic.encode()
        head = bytes(
            [1, kind if not self._is_rare() else lots.randrange(5), lots.randrange(2) if self._is_rare() else 0]
        )
        ids = owner.topic_id + _int(owner.partition, 4) + self._tags() + segment.uuid + self._tags()
        value = head + self._bytes(name) + ids
        broker, at_ms = _int(event.broker_id, 4), _int(event.event_timestamp_ms, 8)
        if isinstance(event, RemoteLogSegmentMetadataUpdate):
            return value + broker + at_ms + self._bytes(event.custom_metadata) + self._state(event.state) + self._tags()
        start, end = self._offset(event.start_offset), self._offset(event.end_offset)
        value += _int(start, 8) + _int(end, 8) + broker + _int(event.max_timestamp_ms, 8) + at_ms
        entries: list[tuple[int, int]] = [(entry.epoch, entry.start_offset) for entry in event.segment_leader_epochs]
        if self._is_rare():
            entries = [
                (lots.choice([-1, 0, 0, 1, 2, 2**31 - 1]), self._offset(start)) for _ in range(lots.randrange(5))
            ]
        value += self._count(len(entries))
        for epoch, begin in entries:
            value += _int(epoch, 4) + _int(self._offset(begin), 8) + self._tags()
        value += _int(event.segment_size_in_bytes, 4) + self._bytes(event.custom_metadata) + self._state(event.state)
        return value + (b"\x01\x00\x01\x01" if event.txn_index_empty else self._tags())

    def _is_rare(self) -> bool:
        return self._lots.random() < self._rarity

    def _offset(self, offset: int) -> int:
        return self._lots.choice(EXTREMES) if self._is_rare() else offset

    def _state(self, state: int) -> bytes:
        return bytes([self._lots.choice([0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF]) if self._is_rare() else state])

    def _bytes(self, data: bytes | None) -> bytes:
        return self._uvarint(0) if data is None else self._count(len(data)) + data

    def _count(self, count: int) -> bytes:
        """The compact form of a count, which is one more."""
        lots = self._lots
        return self._uvarint(
            lots.choice([0, count, count + 2, *_COUNTS]) if lots.random() < self._rarity / 8 else count + 1
        )

    def _uvarint(self, number: int) -> bytes:
        """Sometimes in more bytes than it needs: up to six, of which Kafka takes five."""
        groups = max(1, -(-number.bit_length() // 7), self._lots.randrange(7) if self._is_rare() else 0)
        return bytes(number >> 7 * at & 0x7F | (0x80 if at + 1 < groups else 0) for at in range(groups))

    def _tags(self) -> bytes:
        """Tags of a struct: known, unknown, with nothing in them, or more than follow."""
        if not self._is_rare():
            return b"\x00"
        lots, count = self._lots, self._lots.randrange(4)
        tags = b"".join(
            self._uvarint(lots.choice([0, 0, 1, 300])) + self._bytes_of_tag(lots.randbytes(lots.randrange(3)))
            for _ in range(count)
        )
        return self._uvarint(count) + tags

    def _bytes_of_tag(self, data: bytes) -> bytes:
        return self._uvarint(len(data)) + data


def _int(number: int, size: int) -> bytes:
    return number.to_bytes(size, "big", signed=True)
