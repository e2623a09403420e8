"""Progress of a partition's copies, and the time of its next one.

The lag is counted anew at every look and every plan (U18).  The rest to be copied of a partition is known by the table alone:
cheap, and asked at every look.

A copy waits for a store that answers, the backfill's rate, a slot, and the copy quota: in this order, so that a store that is
away keeps no slot from the copies to another.
Slots bound how many segments are copied at once, and go to partitions in turns, so that none starves another.  The backfill's
state is which partitions catch up, how fast, and how long it will take.  Whole segments wait for admission under
remote.log.manager.copy.max.bytes.per.second (S-164, S-165).
"""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from itertools import count
from math import nan

import structlog

from tiersidecar.decide.backfill import BackfillOrder, BackfillPlan, decide_backfill
from tiersidecar.decide.copy import CopyLag, copied_offset_among, copy_lag, find_copied_offset, pending_segments
from tiersidecar.decide.quota import RateQuota
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.ids import DEFAULT_PLACE, TopicIdPartition
from tiersidecar.domain.offsets import NO_OFFSET, Lineage, Offset
from tiersidecar.domain.segments import LocalPartition, LocalSegment
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.ports.metrics.copying import (
    BACKFILL_BYTES,
    BACKFILL_ETA,
    BACKFILL_PARTITIONS,
    COPY_LAG_BYTES,
    COPY_LAG_SECONDS,
    COPY_LAG_SEGMENTS,
    COPY_THROTTLE_SECONDS,
)
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.reading.lineage import of_pictured
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.store_gates import StoreGates


async def copied_offset_of(
    metadata: MetadataView, topic_id_partition: TopicIdPartition, lineage: Lineage, blocking: Blocking
) -> Offset:
    """Return the highest remote offset of this lineage, inclusive; -1 when there is none.

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


def pending_copies(table: PartitionTable, local: LocalPartition, copied_offset: int) -> tuple[LocalSegment, ...]:
    """Return the segments to copy, as the copy lane found remote log start and holes last.  Found anew where any of that, or a
    segment, is another: it is asked twice at every look, and of most partitions never changes."""
    record = table.record(local.topic_id_partition)
    asked = (local.segments, copied_offset, record.remote_log_start, record.copy_holes)
    if record.pending is None or record.pending[0] != asked:
        record.pending = (asked, pending_segments(*asked))
    return record.pending[1]


class CopyLagReport:
    """Sets the three gauges of a led partition, from the partition table as it is."""

    def __init__(self, *, table: PartitionTable, metadata: MetadataView, clock: Clock, telemetry: Telemetry) -> None:
        self._table, self._metadata, self._clock, self._telemetry = table, metadata, clock, telemetry
        self._known: dict[TopicIdPartition, CopyLag] = {}

    @property
    def known(self) -> Mapping[TopicIdPartition, CopyLag]:
        """Return the lag that was last reported, of the partitions that are led now, where anything waits."""
        for topic_id_partition in [
            topic_id_partition for topic_id_partition in self._known if not self._is_led(topic_id_partition)
        ]:
            del self._known[topic_id_partition]
        return self._known

    def report(self, partition: TieredPartition) -> None:
        """Set the gauges.  A partition whose directory cannot be read keeps its last values.

        They are not set again where nothing waits, as nothing did: at thousands of partitions gauges cost more than the look.
        """
        topic_id_partition = partition.view.topic_id_partition
        local = self._table.local_partition(topic_id_partition)
        if local is None:
            return
        record = self._table.record(topic_id_partition)
        copied = self._copied_offset(local) if record.copied_offset is None else record.copied_offset
        lag = copy_lag(pending_copies(self._table, local, copied))
        if lag.oldest_ms is None:
            self._known.pop(topic_id_partition, None)
        else:
            self._known[topic_id_partition] = lag
        if lag.oldest_ms is None and lag == record.copy_lag_reported:
            return
        record.copy_lag_reported = lag
        labels = {"topic": topic_id_partition.topic, "partition": str(topic_id_partition.partition)}
        age_ms = 0 if lag.oldest_ms is None else max(self._clock.now_ms() - lag.oldest_ms, 0)
        self._telemetry.gauge(COPY_LAG_BYTES, lag.size_bytes, **labels)
        self._telemetry.gauge(COPY_LAG_SEGMENTS, lag.segments, **labels)
        self._telemetry.gauge(COPY_LAG_SECONDS, age_ms / 1000, **labels)

    def _copied_offset(self, local: LocalPartition) -> int:
        """Return what the metadata has of the live file's epochs, until the copy lane has found it: the store may be away."""
        highest = (
            self._metadata.highest_offset_for_epoch(local.topic_id_partition, entry.epoch)
            for entry in local.leader_epochs
        )
        return max((offset for offset in highest if offset is not None), default=NO_OFFSET)

    def _is_led(self, topic_id_partition: TopicIdPartition) -> bool:
        tiered = self._table.assignment.get(topic_id_partition)
        return tiered is not None and tiered.role is PartitionRole.LEADER


_RECHECK_S = 1.0


class CopyQuota:
    """One quota for all partitions, first come first served."""

    def __init__(self, *, quota: RateQuota, clock: Clock, telemetry: Telemetry | None = None) -> None:
        self._quota, self._clock, self._telemetry = quota, clock, telemetry or NoTelemetry()
        self._turn = asyncio.Lock()

    @property
    def wait_s(self) -> float:
        """Return the seconds until the rate allows another segment; 0 where it does."""
        return self._quota.throttle_s(self._clock.monotonic_s())

    async def admit(self, size_bytes: int) -> None:
        """Wait until the rate allows another segment, looking again each second, then charge it whole."""
        async with self._turn:
            while (wait_s := self.wait_s) > 0:
                step_s = min(wait_s, _RECHECK_S)
                await self._clock.sleep(step_s)
                self._telemetry.count(COPY_THROTTLE_SECONDS, step_s)
            self._quota.record(size_bytes, self._clock.monotonic_s())


log = structlog.get_logger(__name__)

_RATE_WINDOW_S = 600.0
_LOGGED_EVERY_S = 60.0


class Backfill:
    """Plans anew at every look.  ``threshold`` and ``order`` are those of :func:`decide_backfill`."""

    def __init__(
        self, *, lags: CopyLagReport, threshold: int, order: BackfillOrder, clock: Clock, telemetry: Telemetry
    ) -> None:
        self.lags, self._threshold, self._order = lags, threshold, order
        self._clock, self._telemetry = clock, telemetry
        self._plan = BackfillPlan(ranks={}, remaining_bytes=0)
        self._copied: deque[tuple[float, int]] = deque()
        self._began_s: float | None = None
        self._logged_s = -_LOGGED_EVERY_S

    @property
    def is_under_way(self) -> bool:
        """Return whether anything was found to catch up at the last look."""
        return bool(self._plan.ranks)

    def rank(self, partition: TopicIdPartition) -> int:
        """Return the rank for :class:`~tiersidecar.tasks.copy_admission.CopySlots`: LIVE, or how soon it is its topic's
        turn."""
        return self._plan.ranks.get(partition, LIVE)

    def copied(self, size_bytes: int) -> None:
        """Count a segment of a partition that catches up: it was copied."""
        self._copied.append((self._clock.monotonic_s(), size_bytes))

    def look(self) -> None:
        """Plan, and report the progress: in the gauges each time, in the log once a minute."""
        self._plan = decide_backfill(self.lags.known, self._threshold, self._order)
        remaining, now_s = self._plan.remaining_bytes, self._clock.monotonic_s()
        eta_s = self._eta_s(now_s)
        self._telemetry.gauge(BACKFILL_PARTITIONS, len(self._plan.ranks))
        self._telemetry.gauge(BACKFILL_BYTES, remaining)
        self._telemetry.gauge(BACKFILL_ETA, nan if eta_s is None else eta_s)
        if self._plan.ranks:
            self._log_progress(now_s, eta_s)
        elif self._began_s is not None:
            log.info("copy.backfill.finished", elapsed_ms=int((now_s - self._began_s) * 1000))
            self._began_s, self._logged_s = None, now_s - _LOGGED_EVERY_S
            self._copied.clear()

    def _log_progress(self, now_s: float, eta_s: float | None) -> None:
        if self._began_s is None:
            self._began_s = now_s
        if now_s - self._logged_s < _LOGGED_EVERY_S:
            return
        self._logged_s = now_s
        log.info(
            "copy.backfill.progress",
            partitions=len(self._plan.ranks),
            remaining_bytes=self._plan.remaining_bytes,
            bytes_per_s=round(self._bytes_per_s(now_s)),
            eta_s=None if eta_s is None else round(eta_s),
        )

    def _eta_s(self, now_s: float) -> float | None:
        """Return the time left; None while nothing shows how fast it goes."""
        if not self._plan.ranks:
            return 0.0
        bytes_per_s = self._bytes_per_s(now_s)
        return self._plan.remaining_bytes / bytes_per_s if bytes_per_s else None

    def _bytes_per_s(self, now_s: float) -> float:
        while self._copied and self._copied[0][0] < now_s - _RATE_WINDOW_S:
            self._copied.popleft()
        if self._began_s is None or now_s <= self._began_s:
            return 0.0
        return sum(size for _, size in self._copied) / min(now_s - self._began_s, _RATE_WINDOW_S)


LIVE = -1
"""The rank of a partition without backlog: before every rank of a backfill."""


class CopySlots:
    """``size`` at once, lower ranks first, first come first served within a rank.

    A segment takes a slot, not a partition: one with more segments queues again behind the others of its rank.  ``reserved``
    slots are for :data:`LIVE` alone.  Of ``places`` that copies go to, each that has no slot finds one left by the others while
    there are as many, for a store that hangs keeps the slots of its copies until they are given up.  A backfill may take that
    one too: else the topics of a sound place that fall behind would not be copied until the other store answers.
    """

    def __init__(self, size: int, *, reserved: int = 0, places: Collection[str] = ()) -> None:
        self._size, self._reserved = size, reserved
        self._taken = dict.fromkeys(places, 0)
        self._arrivals = count()
        self._queues: defaultdict[str, list[tuple[int, int, asyncio.Future[None]]]] = defaultdict(list)

    @property
    def size(self) -> int:
        """Return the number of slots.  It may change at any time: more are let in at once, and of those that are in none is put
        out (S-174)."""
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        self._size = size
        self._let_in()

    @asynccontextmanager
    async def taking(self, rank: int, place: str = DEFAULT_PLACE) -> AsyncIterator[None]:
        """Hold a slot for the length of the block."""
        await self._take(rank, place)
        try:
            yield
        finally:
            self._taken[place] -= 1
            self._let_in()

    async def _take(self, rank: int, place: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._taken.setdefault(place, 0)
        heapq.heappush(self._queues[place], (rank, next(self._arrivals), turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._taken[place] -= 1  # it was let in while it was cancelled
            self._let_in()
            raise

    def _let_in(self) -> None:
        while (place := self._next_place()) is not None:
            _, _, turn = heapq.heappop(self._queues[place])
            self._taken[place] += 1
            turn.set_result(None)

    def _next_place(self) -> str | None:
        """Return the place of the one to be let in now; None where none may be."""
        first: list[tuple[int, int, str]] = []
        for place, queue in self._queues.items():
            while queue and queue[0][-1].done():
                heapq.heappop(queue)
            if queue and self._has_room(place, rank=queue[0][0]):
                first.append((*queue[0][:2], place))
        return min(first)[-1] if first else None

    def _has_room(self, place: str, *, rank: int) -> bool:
        room = self._size
        if self._taken[place]:
            room -= sum(not taken for taken in self._taken.values())
            room -= 0 if rank == LIVE else self._reserved
        return sum(self._taken.values()) < max(room, 1)


class CopyAdmission:
    """``backfill_quota`` bounds what catches up, before it takes a slot; ``quota`` bounds everything.  ``gates`` say to which
    place a topic's copies go, and whether its store answers."""

    def __init__(
        self,
        *,
        slots: CopySlots,
        quota: CopyQuota,
        backfill: Backfill,
        backfill_quota: CopyQuota,
        gates: StoreGates,
    ) -> None:
        self._slots, self._quota = slots, quota
        self._backfill, self._backfill_quota = backfill, backfill_quota
        self._backfill_turn = CopySlots(1)
        self._gates = gates

    def quota_wait_s(self, partition: TopicIdPartition) -> float:
        """Return the seconds for which the quotas hold back its next segment, if nothing else is copied; 0 where they do
        not."""
        backfill_s = 0.0 if self._backfill.rank(partition) == LIVE else self._backfill_quota.wait_s
        return max(backfill_s, self._quota.wait_s)

    @asynccontextmanager
    async def admitted(self, partition: TopicIdPartition, size_bytes: int) -> AsyncIterator[None]:
        """Wait until a segment of ``size_bytes`` may be copied, and keep the slot for the length of the block.

        Raises:
            StoreError: the store of its place is away; no slot was kept while it was asked.
        """
        topic, rank = partition.topic, self._backfill.rank(partition)
        await self._gates.wait_open(topic)
        if rank != LIVE:
            async with self._backfill_turn.taking(rank):
                await self._backfill_quota.admit(size_bytes)
        async with self._slots.taking(rank, self._gates.place_of_topic(topic)):
            self._gates.require_open(topic)  # it may have closed in the queue, and what fails uses up no quota
            await self._quota.admit(size_bytes)
            yield
        if rank != LIVE:
            self._backfill.copied(size_bytes)
