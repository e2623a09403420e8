"""How far a partition has been copied."""

from __future__ import annotations

from tiersidecar.decide.copy import copied_offset_among, find_copied_offset
from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.reading.pictured_segments import of_pictured


async def copied_offset_of(
    metadata: MetadataView, topic_id_partition: TopicIdPartition, lineage: Lineage, blocking: Blocking
) -> Offset:
    """The highest remote offset of this lineage, inclusive; -1 when there is none.

    Nearly always some look-ups.  Where an election has cut the last segment, all of them are looked at.

    Raises:
        MetadataNotReadyError: the metadata has not been replayed yet.
    """
    found = find_copied_offset(
        lineage,
        lambda epoch: metadata.highest_offset_for_epoch(topic_id_partition, epoch),
        lambda epoch, offset: metadata.remote_log_segment_metadata(topic_id_partition, epoch, offset),
    )
    if found is not None:
        return found
    return await of_pictured(
        metadata.picture(topic_id_partition), blocking, lambda segments: copied_offset_among(segments, lineage)
    )
