"""All segments of a partition at one moment, to be made into dataclasses later, in a thread.

A partition may have a hundred thousand.  To make their dataclasses takes a second, to keep their packed rows some milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tiersidecar.domain.epochs import EpochEntry
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.metadata_cache_rows import ROW, Row
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState


class EpochPart(Protocol):
    """A leader epoch of a segment; ``first`` is relative to the segment's start."""

    @property
    def epoch(self) -> int: ...

    @property
    def first(self) -> int: ...


EpochMaps = Sequence[Sequence[EpochPart]]
"""The leader epochs that segments have, by the number that a row has of them."""


class SegmentPicture:
    """Of rows that change no more, and of nothing of the cache that does: :meth:`segments` may run in a thread."""

    __slots__ = ("_custom", "_data", "_epoch_maps", "_numbers", "topic_id_partition")

    def __init__(
        self,
        topic_id_partition: TopicIdPartition,
        *,
        data: bytes,
        custom: Sequence[bytes | None],
        numbers: Sequence[int],
        epoch_maps: EpochMaps,
    ) -> None:
        self.topic_id_partition = topic_id_partition
        self._data, self._custom, self._numbers, self._epoch_maps = data, custom, numbers, epoch_maps

    def __len__(self) -> int:
        """Segments in any state but DELETE_SEGMENT_FINISHED."""
        return len(self._numbers)

    @property
    def mark(self) -> int:
        """The same for pictures of the same segments of a partition."""
        return hash((self._data, tuple(self._custom), tuple(self._numbers)))

    def segments(self, from_offset: int = 0) -> tuple[RemoteLogSegmentMetadata, ...]:
        """Those that end at ``from_offset`` or above, ascending by start offset."""
        rows = ((ROW.unpack_from(self._data, number * ROW.size), self._custom[number]) for number in self._numbers)
        wanted = sorted(((row, custom) for row, custom in rows if row[2] >= from_offset), key=lambda one: one[0][1])
        return tuple(
            segment_of(self.topic_id_partition, row, custom, self._epoch_maps[row[5]]) for row, custom in wanted
        )


def segment_of(
    topic_id_partition: TopicIdPartition, row: Row, custom: bytes | None, epochs: Sequence[EpochPart]
) -> RemoteLogSegmentMetadata:
    """The segment that a row stands for."""
    uuid, start, end, max_timestamp_ms, size, _, is_empty, broker, event_timestamp_ms, state = row
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(topic_id_partition=topic_id_partition, uuid=Uuid(uuid)),
        start_offset=Offset(start),
        end_offset=Offset(end),
        max_timestamp_ms=max_timestamp_ms,
        broker_id=BrokerId(broker),
        event_timestamp_ms=event_timestamp_ms,
        segment_size_in_bytes=size,
        segment_leader_epochs=tuple(EpochEntry(LeaderEpoch(part.epoch), Offset(start + part.first)) for part in epochs),
        custom_metadata=custom,
        state=RemoteLogSegmentState(state),
        txn_index_empty=is_empty,
    )
