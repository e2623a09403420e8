"""Partitions that are mounted read-only: another cluster copies their history, and the broker's own logs of them stay empty.

Such a log begins at :data:`~tiersidecar.domain.mounts.MOUNTED_START`, above every offset there is, so that the broker answers
each Fetch OFFSET_OUT_OF_RANGE if the client may read, and with another error if it may not.  Clients are to see the remote log
and nothing else: for all rewrites the broker's log is an empty one that begins where the remote log ends.

Once a record is in the broker's log, by whatever way, nobody can say any more whose log that is: the mount of that partition
halts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import structlog

from tiersidecar.domain.errors import RetriableError, TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.mounts import MOUNTED_START
from tiersidecar.domain.offsets import NO_EPOCH
from tiersidecar.ports.broker import ListOffsets, OffsetSpec
from tiersidecar.ports.clock import Clock
from tiersidecar.reading.remote_log_reader import RemoteLogReader
from tiersidecar.services.gateway.broker_offsets import BrokerOffsets
from tiersidecar.services.gateway.unplanned_logs import UnplannedLogs

log = structlog.get_logger(__name__)

_STORE_S = 5.0
"""How long the store is waited for, which tells what transactions are open: a Fetch of other partitions may wait with it."""


class MountedLogs:
    """The :class:`~tiersidecar.services.gateway.broker_offsets.Mounts` of a gateway.

    ``planned`` are the mounted topics, by name; ``topic_id`` is what a name is the topic of now, None where that is not known.
    ``unplanned`` knows what of them, and of other topics, the plan does not have.
    """

    are_any = True

    def __init__(
        self,
        *,
        planned: Mapping[str, Uuid],
        unplanned: UnplannedLogs,
        topic_id: Callable[[str], Uuid | None],
        reader: RemoteLogReader,
        clock: Clock,
    ) -> None:
        self._planned, self._topic_id, self._reader, self._clock = planned, topic_id, reader, clock
        self._ids, self.unplanned = frozenset(planned.values()), unplanned
        self._halted: dict[TopicIdPartition, str] = {}

    def is_mounted(self, partition: TopicIdPartition) -> bool:
        """As the Protocol says."""
        return self.unplanned.is_planned(partition)

    def is_mounted_topic(self, topic: str | bytes) -> bool:
        """Return whether nothing may be written to a topic of this name, or of these 16 bytes of an id: one that was seeded by
        another plan is spoilt as easily."""
        if isinstance(topic, bytes):
            return topic in self._ids or self.unplanned.has_topic_id(topic)
        known, now = {self._planned.get(topic), self.unplanned.topic_id(topic)} - {None}, self._topic_id(topic)
        return bool(known) and (now is None or now in known)

    def halted(self, partition: TopicIdPartition) -> str:
        """As the Protocol says: until the process is started anew, whatever becomes of the broker's log."""
        return self._halted.get(partition, "") or self.unplanned.halted(partition)

    def reason_not_ready(self) -> str:
        """Return what an operator has to look at; empty where there is nothing."""
        first = next(iter(self._halted.values()), "")
        return f"{first} (and {len(self._halted) - 1:,} more)" if len(self._halted) > 1 else first

    async def seen(self, partition: TopicIdPartition, told: BrokerOffsets) -> BrokerOffsets | None:
        """As the Protocol says: the end of the remote log, and where the first transaction that is open there begins."""
        if not self.is_mounted(partition):
            return told
        self.check(partition, told.log_start_offset, told.high_watermark)
        if self.halted(partition):
            return None
        try:
            async with asyncio.timeout(_STORE_S):
                bounds = await self._reader.bounds(partition)
                stable = await self._reader.last_stable_offset(partition)
        except (TiersidecarError, TimeoutError):
            return None
        return replace(
            told,
            log_start_offset=bounds.log_end,
            high_watermark=bounds.log_end,
            # Of a log whose segments have all expired there is no snapshot, and no transaction either.
            last_stable_offset=stable if bounds.start < bounds.end else bounds.log_end,
            is_mounted=True,
        )

    def check(self, partition: TopicIdPartition, log_start: int, log_end: int) -> None:
        """Halt the mount of the partition unless the broker's log is as it was seeded."""
        if (log_start, log_end) == (MOUNTED_START, MOUNTED_START) or partition in self._halted:
            return
        reason = (
            f"{partition} is mounted read-only, and has been written to in this cluster: its log has the offsets "
            f"[{log_start}, {log_end}). Take the right to write from its producers, set the cluster up anew, and seed it"
        )
        self._halted[partition] = reason
        log.warning("gateway.mount.halted", topic=partition.topic, partition=partition.partition, reason=reason)

    async def watch(
        self, led: Callable[[], Iterable[TopicIdPartition]], broker: ListOffsets, interval_s: float
    ) -> None:
        """Look at the logs of all that is mounted and ``led`` here, at every interval and until cancelled, whether or not
        anybody reads them."""
        while True:
            wanted = {partition: NO_EPOCH for partition in led() if self.is_mounted(partition)}
            try:
                starts = await broker.list_offsets(wanted, OffsetSpec.EARLIEST) if wanted else {}
                ends = await broker.list_offsets(wanted, OffsetSpec.LATEST) if wanted else {}
            except RetriableError:
                starts = ends = {}  # the roster says that the broker is away
            for partition, start in starts.items():
                if start.error is None and ends[partition].error is None:
                    self.check(partition, start.offset, ends[partition].offset)
            await self._clock.sleep(interval_s)
