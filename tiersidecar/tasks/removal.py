"""Delete one remote segment: DELETE_SEGMENT_STARTED, its objects, DELETE_SEGMENT_FINISHED (S-067).

Abandoned anywhere, it is taken up again from the state that the metadata topic shows.

The order of removal: what the store has refused to delete comes after everything else.

A legal hold, say, keeps an object for years: it must not keep all that expires after it.  A store that is away refuses
everything; so the first refusal ends a round, and the next round begins with another segment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import structlog

from tiersidecar.decide.cleanup import Removal
from tiersidecar.domain.errors import IllegalTransitionError, PublishTimeoutError, TiersidecarError, UnknownSegmentError
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.keys import place_in
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.failpoints import Failpoints
from tiersidecar.ports.metadata_log import PublishMetadata
from tiersidecar.ports.metrics.retention import DELETE_ERRORS, DELETE_REQUESTS
from tiersidecar.ports.store import DeleteObjects
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.remote_objects import recorded_keys
from tiersidecar.tasks.ownership import Ownership


class RefusedLast:
    """Remembers refusals for as long as the segment is due."""

    def __init__(self) -> None:
        self._refused: dict[TopicIdPartition, dict[RemoteLogSegmentId, int]] = {}
        self._count = 0

    def order(self, owner: TopicIdPartition, due: Iterable[Removal]) -> list[Removal]:
        """Return all of ``due``, which is all that is due of ``owner``: first those that were never refused, in their order,
        then the others, those first that were refused longest ago."""
        removals = list(due)
        known = self._refused.pop(owner, {})
        still = {key: known[key] for removal in removals if (key := removal.metadata.remote_log_segment_id) in known}
        if still:
            self._refused[owner] = still
        return sorted(removals, key=lambda removal: still.get(removal.metadata.remote_log_segment_id, 0))

    def refused(self, removal: Removal) -> None:
        """Note that the store did not delete it."""
        self._count += 1
        segment_id = removal.metadata.remote_log_segment_id
        self._refused.setdefault(segment_id.topic_id_partition, {})[segment_id] = self._count


log = structlog.get_logger(__name__)

BEGUN_WITHIN_S = 30.0
"""Time after the look whether it is undone, within which a deletion is begun, or its DELETE_SEGMENT_STARTED given up.  So none
comes any more this long after an undelete is durable, whatever became of the process."""


class SegmentRemover:
    """Removes remote segments on behalf of ``broker_id``; ``key_prefix`` is that of objects whose segment records none."""

    def __init__(
        self,
        *,
        metadata_log: PublishMetadata,
        store: DeleteObjects,
        key_prefix: str,
        clock: Clock,
        failpoints: Failpoints,
        telemetry: Telemetry,
        broker_id: BrokerId,
        ownership: Ownership,
    ) -> None:
        self._metadata_log, self._store, self._key_prefix = metadata_log, store, key_prefix
        self._clock, self._failpoints, self._telemetry = clock, failpoints, telemetry
        self._broker_id, self._ownership = broker_id, ownership
        self._unsure: set[RemoteLogSegmentId] = set()

    def unsure(self, topic_id_partition: TopicIdPartition) -> frozenset[RemoteLogSegmentId]:
        """Return segments whose deletion may have begun: what was sent was not read back, and may be written yet.  The metadata
        topic, read to its end from now on, shows it."""
        return frozenset(
            segment_id for segment_id in self._unsure if segment_id.topic_id_partition == topic_id_partition
        )

    def settle(self, segment_ids: Iterable[RemoteLogSegmentId]) -> None:
        """Note that the metadata topic has been read to its end since they were unsure."""
        self._unsure.difference_update(segment_ids)

    async def remove(self, removal: Removal, is_undone: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Remove one segment.  Both events are durable and the objects gone when this returns, by us or by a leader before or
        after us; or nothing is done, because ``is_undone``, asked right before a deletion begins, says so."""
        topic = removal.metadata.topic_id_partition.topic
        self._telemetry.count(DELETE_REQUESTS, topic=topic)
        try:
            if not await self._remove(removal.metadata, is_undone):
                return
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

    async def _remove(
        self, metadata: RemoteLogSegmentMetadata, is_undone: Callable[[], Awaitable[bool]] | None
    ) -> bool:
        await self._ownership.confirm(metadata.topic_id_partition, place=place_in(metadata.custom_metadata or b""))
        if metadata.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            await self._failpoints.reach("delete.begun")
            until_s = self._clock.monotonic_s() + BEGUN_WITHIN_S
            if is_undone is not None and await is_undone():
                return False
            self._ownership.require_role()
            await self._begin(metadata, None if is_undone is None else until_s)
        await self._failpoints.reach("delete.started.published")
        self._ownership.require_role()
        await self._store.delete_objects(recorded_keys(metadata, self._key_prefix).in_upload_order)
        await self._failpoints.reach("delete.objects.deleted")
        await self._publish(metadata, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
        await self._failpoints.reach("delete.finished.published")
        return True

    async def _begin(self, metadata: RemoteLogSegmentMetadata, until_s: float | None) -> None:
        """Publish DELETE_SEGMENT_STARTED.  Not read back, even because it is cancelled, the segment is unsure: no undelete is
        answered until that is known."""
        if until_s is not None and until_s <= self._clock.monotonic_s():
            subject, most_ms = str(metadata.topic_id_partition), int(BEGUN_WITHIN_S * 1000)
            raise PublishTimeoutError(subject=subject, waited_ms=most_ms)  # nothing was sent
        try:
            await self._publish(metadata, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, until_s)
        except BaseException:
            self._unsure.add(metadata.remote_log_segment_id)
            raise
        self._unsure.discard(metadata.remote_log_segment_id)

    async def _publish(
        self, metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, until_s: float | None = None
    ) -> None:
        await self._metadata_log.publish(
            RemoteLogSegmentMetadataUpdate(
                remote_log_segment_id=metadata.remote_log_segment_id,
                broker_id=self._broker_id,
                event_timestamp_ms=self._clock.now_ms(),
                state=state,
                custom_metadata=metadata.custom_metadata,
            ),
            until_s=until_s,
        )
