"""One user partition whose metadata is kept here."""

from __future__ import annotations

import asyncio
from operator import attrgetter

from tiersidecar.domain.errors import CorruptDataError, MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.domain.segments import RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.metadata import hot
from tiersidecar.formats.metadata.serde import read_event

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


IS_READY = attrgetter("is_ready")
READY_AT = attrgetter("ready_at")
"""Sort key of :class:`HeldPartition`: each poll asks thousands of them."""


def partition_key(topic_id_partition: TopicIdPartition) -> bytes:
    """Return topic id and partition, as :func:`tiersidecar.formats.metadata.hot.peek` finds them."""
    return topic_id_partition.topic_id + topic_id_partition.partition.to_bytes(4, "big")


class HeldPartition:
    """A user partition's cache, and how far it has come.

    ``complete_to``: events of this partition below that metadata offset are all in the cache, while it is not live.
    ``applied_to``: highest offset applied, so that no record counts twice however often it is read again.
    ``ready_at``: the end offset seen at assignment (S-095, T-71), None until it is known; lower where the topic lost its end
    since.
    """

    __slots__ = (
        "_deleted",
        "_previous",
        "_ready",
        "applied_to",
        "cache",
        "complete_to",
        "is_dirty",
        "is_ready",
        "ready_at",
        "topic_id_partition",
    )

    def __init__(
        self,
        topic_id_partition: TopicIdPartition,
        *,
        cache: RemoteLogMetadataCache | None = None,
        complete_to: int = 0,
        applied_to: int = -1,
    ) -> None:
        self.topic_id_partition = topic_id_partition
        self.cache = cache or RemoteLogMetadataCache(topic_id_partition)
        self.complete_to = complete_to
        self.applied_to = applied_to
        self.ready_at: int | None = None
        self.is_ready = False
        self._ready: asyncio.Event | None = None  # made for a waiting caller: thousands of partitions have no waiter
        self.is_dirty = cache is None
        self._previous: RemoteLogMetadataCache | None = None
        self._deleted: set[bytes] | None = None

    def fold(self, offset: int, kind: int, value: bytes, position: int, *, topic: str, partition: int) -> None:
        """Apply the record ``value`` at ``offset``, whose topic id begins at ``position``.

        Raises:
            IllegalTransitionError: refused, nothing changed.
                UnknownSegmentError: refused as well.
            CorruptDataError: its bytes cannot be read.
        """
        self.applied_to = offset
        self.is_dirty = True
        if kind == hot.ADDED:
            added = hot.read_added(value, position)
            if added is not None:
                self.cache.add(added)
                return
        elif kind == hot.UPDATED:
            updated = hot.read_updated(value, position)
            if updated is not None:
                self.cache.update(updated)
                if self._deleted is not None and updated[-1] == _DELETED:
                    self._deleted.add(updated[0])
                return
        event = read_event(value, where=record_name(topic, partition, offset))
        self.cache.apply(event)
        if self._deleted is not None and isinstance(event, RemoteLogSegmentMetadataUpdate) and event.state is _DELETED:
            self._deleted.add(event.remote_log_segment_id.uuid)

    def become_ready(self) -> None:
        """Note that everything up to :attr:`ready_at` has been applied; waiting callers go on."""
        self.cache.mark_loaded()
        self.is_ready = True
        self.wake()

    def wake(self) -> None:
        """Have all waiting callers look again."""
        if self._ready is not None:
            self._ready.set()
            self._ready = None

    async def wait(self) -> None:
        """Wait until :meth:`wake`."""
        if self._ready is None:
            self._ready = asyncio.Event()
        await self._ready.wait()

    def begin_again(self) -> None:
        """Forget the cache, because the topic no longer has what it was made from; :meth:`lost_segments` compares
        afterwards."""
        if self.is_ready or self.complete_to > 0:
            self._previous = self.cache
        self._deleted = set()
        self.cache = RemoteLogMetadataCache(self.topic_id_partition)
        self.complete_to, self.applied_to, self.ready_at = 0, -1, None
        self.is_ready, self.is_dirty = False, True

    @property
    def is_to_be_compared(self) -> bool:
        """Return whether a replay begun by :meth:`begin_again` has not come to its end."""
        return self._previous is not None

    def lost_segments(self) -> int:
        """Return, after a replay begun by :meth:`begin_again`, how many finished segments the topic no longer knows as such and
        did not see deleted.  If any, the former cache is taken back: it names data that nothing else does."""
        previous, self._previous = self._previous, None
        deleted, self._deleted = self._deleted or set(), None
        if previous is None:
            return 0
        lost = sum(
            self._is_lost(metadata.remote_log_segment_id.uuid) and metadata.remote_log_segment_id.uuid not in deleted
            for metadata in previous.list_remote_log_segments()
            if metadata.state is _FINISHED
        )
        if lost:
            self.cache = previous
        return lost

    def _is_lost(self, uuid: Uuid) -> bool:
        """Return whether a segment that was finished is none now; one whose end alone is lost would be deleted as a copy that
        never ended."""
        found = self.cache.segment(uuid)
        return found is None or found.state is _STARTED

    def require_ready(self) -> RemoteLogMetadataCache:
        """Return the cache.

        Raises:
            MetadataNotReadyError: it is not complete yet.
        """
        if not self.is_ready:
            raise MetadataNotReadyError(subject=str(self.topic_id_partition))
        return self.cache


def record_name(topic: str, partition: int, offset: int) -> str:
    """Return how errors name a record."""
    return f"{topic}-{partition} offset {offset}"


def read_corrupt(value: bytes, *, topic: str, partition: int, offset: int) -> CorruptDataError:
    """Return the error of a record that is none."""
    where = record_name(topic, partition, offset)
    try:
        read_event(value, where=where)
    except CorruptDataError as error:
        return error
    return CorruptDataError(where=where, position=0, reason="its topic id cannot be read")
