"""Remote segments that count as a second copy of what is on a disk: finished, not to be copied again, and in a known place.

Of a segment that is to be copied again (``tiersidecar repair``) the store has lost something: what is on this disk may be the
only copy of its records.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Protocol

from tiersidecar.decide.pin import SegmentsAt
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.keys import place_in
from tiersidecar.ports.metadata_log import DoubtMetadata, MetadataView
from tiersidecar.ports.state_records import RecopyRequests, segments_of


class DoubtedMetadata(MetadataView, DoubtMetadata, Protocol):
    """The metadata, and what they are worth."""


class TrustedCopies:
    """The metadata, without the segments that a request names, or that lie in a place that is not one of ``places``; None
    leaves none out for its place."""

    def __init__(
        self, metadata: DoubtedMetadata, requests: RecopyRequests, *, places: Container[str] | None = None
    ) -> None:
        self._metadata, self._requests, self._places = metadata, requests, places

    def segments_at(self, topic_id_partition: TopicIdPartition) -> SegmentsAt | None:
        """Return the look-up for :func:`~tiersidecar.decide.pin.is_remote`; None while metadata or requests are not known."""
        doubted = self.doubted(topic_id_partition)
        if doubted is None or not self._metadata.is_ready(topic_id_partition):
            return None

        def segments_at(epoch: int, offset: int) -> Iterator[RemoteLogSegmentMetadata]:
            found = self._metadata.finished_segments_at(topic_id_partition, epoch, offset)
            return (
                one for one in found if one.remote_log_segment_id.uuid not in doubted and self._is_in_known_place(one)
            )

        return segments_at

    def _is_in_known_place(self, segment: RemoteLogSegmentMetadata) -> bool:
        place = "" if self._places is None else place_in(segment.custom_metadata or b"")
        return not place or (self._places is not None and place in self._places)

    @property
    def are_sure(self) -> bool:
        """Return whether the metadata topic can be relied on to keep what it says: else local data may not go because of it."""
        return self._metadata.halted_reason is None

    def doubted(self, topic_id_partition: TopicIdPartition) -> frozenset[Uuid] | None:
        """Return segments that are to be copied again; None while that is not known."""
        try:
            return segments_of(self._requests.recopies(topic_id_partition))
        except MetadataNotReadyError:
            return None
