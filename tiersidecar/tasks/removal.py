"""Delete one remote segment: DELETE_SEGMENT_STARTED, its objects, DELETE_SEGMENT_FINISHED (S-067).

Abandoned anywhere, it is taken up again from the state that the metadata topic shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from tiersidecar.decide.cleanup import Removal
from tiersidecar.domain.errors import IllegalTransitionError, TiersidecarError, UnknownSegmentError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.failpoints import Failpoints
from tiersidecar.ports.metadata_log import PublishMetadata
from tiersidecar.ports.metrics.retention import DELETE_ERRORS, DELETE_REQUESTS
from tiersidecar.ports.store import DeleteObjects
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.ownership import Ownership

log = structlog.get_logger(__name__)


class SegmentRemover:
    """Removes remote segments on behalf of ``broker_id``.  ``keys_of`` gives the keys of a segment's objects."""

    def __init__(
        self,
        *,
        metadata_log: PublishMetadata,
        store: DeleteObjects,
        keys_of: Callable[[RemoteLogSegmentMetadata], Sequence[str]],
        clock: Clock,
        failpoints: Failpoints,
        telemetry: Telemetry,
        broker_id: BrokerId,
        ownership: Ownership,
    ) -> None:
        self._metadata_log, self._store, self._keys_of = metadata_log, store, keys_of
        self._clock, self._failpoints, self._telemetry = clock, failpoints, telemetry
        self._broker_id, self._ownership = broker_id, ownership

    async def remove(self, removal: Removal) -> None:
        """Both events are durable and the objects gone when this returns, by us or by a leader before or after us."""
        topic = removal.metadata.topic_id_partition.topic
        self._telemetry.count(DELETE_REQUESTS, topic=topic)
        try:
            await self._remove(removal.metadata)
        except (IllegalTransitionError, UnknownSegmentError) as error:
            # Only DELETE_SEGMENT_FINISHED can refuse what we publish: another was faster.
            log.info("segment.delete.done_by_another", topic=topic, error=str(error))
            return
        except TiersidecarError:
            self._telemetry.count(DELETE_ERRORS, topic=topic)
            raise
        log.info(
            "segment.deleted",
            topic=topic,
            partition=removal.metadata.topic_id_partition.partition,
            segment_id=str(removal.metadata.remote_log_segment_id),
            start_offset=removal.metadata.start_offset,
            end_offset=removal.metadata.end_offset,
            bytes=removal.metadata.segment_size_in_bytes,
            reason=removal.reason,
        )

    async def _remove(self, metadata: RemoteLogSegmentMetadata) -> None:
        await self._ownership.confirm(metadata.topic_id_partition)
        if metadata.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            await self._failpoints.reach("delete.begun")
            self._ownership.require_role()
            await self._publish(metadata, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
        await self._failpoints.reach("delete.started.published")
        self._ownership.require_role()
        await self._store.delete_objects(self._keys_of(metadata))
        await self._failpoints.reach("delete.objects.deleted")
        await self._publish(metadata, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
        await self._failpoints.reach("delete.finished.published")

    async def _publish(self, metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState) -> None:
        await self._metadata_log.publish(
            RemoteLogSegmentMetadataUpdate(
                remote_log_segment_id=metadata.remote_log_segment_id,
                broker_id=self._broker_id,
                event_timestamp_ms=self._clock.now_ms(),
                state=state,
                custom_metadata=metadata.custom_metadata,
            )
        )
