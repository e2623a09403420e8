"""Which partitions of a request are tiered, as the gateway sees them, and which of their records are deleted; and the log
start, high watermark and last stable offset of the broker's logs, remembered for a moment.

A broker gives records that no client may have any more (docs/design/0006): it writes its log start down once a minute, and
after a crash it begins again below what a user, or retention, has deleted, until the leader's sidecar has trimmed it once more.
The remote log start is known here, in memory, as far as this process has read the state topic.  Of which history it is, the
batch's leader epoch says.  So an election that is not known here yet sends no client past what the new leader
has written.

The broker's OFFSET_OUT_OF_RANGE has no log start, high watermark or last stable offset (all are -1), and a consumer of remote
data gets them with each fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from tiersidecar.domain.errors import (
    BrokerRefusedError,
    CorruptDataError,
    MetadataNotReadyError,
    OffsetBetweenTiersError,
    RetriableError,
    TruncatedDataError,
)
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Offset
from tiersidecar.formats.kafka.record_batches import read_batch_header
from tiersidecar.formats.wire.fetch import (
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FilledPartition,
    PartitionKey,
)
from tiersidecar.ports.broker import ListOffsets, OffsetSpec
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.pins import PendingCopies
from tiersidecar.ports.state_log import StateLog
from tiersidecar.reading.remote_log_reader import RemoteLogReader
from tiersidecar.reading.segment_lookup import OffsetBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredView:
    """A tiered partition that the broker replicates."""

    topic_id_partition: TopicIdPartition
    leader_epoch: LeaderEpoch


class Moment(Protocol):
    """The tiered partitions as known at a moment."""

    def find(self, topic: str, partition: int) -> TieredView | None:
        """Find a partition by its topic's name; None where it was not known to be tiered."""
        ...


@dataclass(slots=True, kw_only=True)
class Asker:
    """The client for which a partition is looked for.

    ``topic_ids`` are the ids, by name, that it has got from the broker.  ``asked_at`` is what was known when its request was
    sent, by which the broker has answered: a partition of another topic or leader epoch since then was not asked about.
    """

    topic_ids: dict[str, Uuid] = field(default_factory=dict)
    asked_at: Moment | None = None

    def check(self, view: TieredView) -> None:
        """
        Raises:
            MetadataNotReadyError: its request was about another topic, or leader epoch, than ``view`` is of.
        """
        partition = view.topic_id_partition
        if self.asked_at is not None and self.asked_at.find(partition.topic, partition.partition) != view:
            raise MetadataNotReadyError(subject=f"{partition}, which was another when it was asked for")


ANYBODY = Asker()
"""A client that has got no ids yet."""


class TieredPartitions(Protocol):
    def find(self, topic: str | bytes, partition: int, asker: Asker = ANYBODY) -> TieredView | None:
        """Find it by its topic's name, or the 16 bytes of its id.  None: it is not tiered, and the broker's answer stands.

        Raises:
            MetadataNotReadyError: it may be tiered, and nothing is known of it yet; or the name is another topic's by now than
                what is known is of; or what is known has changed since ``asker`` has asked.
        """
        ...

    def may_be_tiered(self, topic: str) -> bool:
        """Return whether partitions of it are tiered, or may turn out to be: of all others the broker's word stands.  Asked
        before the broker has said what a client may know: it takes as long whether or not there is such a topic."""
        ...

    def find_on_disk(self, topic: str, partition: int) -> TieredView | None:
        """Find it by its topic's name as the broker has it on disk now, whether or not a look at the cluster has met it; None
        where it is not there, or no rule tiers it.  Reads a small file."""
        ...

    def now(self) -> Moment:
        """Return what is known now: it takes no time, however many partitions there are."""
        ...

    def topic_id(self, topic: str) -> Uuid | None:
        """Return the id of a topic, tiered or not, as last seen; None where there was none."""
        ...


class DeletedRecords:
    """Each Fetch is looked at: nearly always one look-up in memory for each partition with records, and no more."""

    def __init__(self, *, tiered: TieredPartitions, state: StateLog) -> None:
        self._tiered, self._state = tiered, state

    def suspects(
        self, rows: Sequence[FetchedPartition], asked: Mapping[PartitionKey, FetchPartition]
    ) -> list[FetchedPartition]:
        """Return those of ``rows`` whose records may begin with deleted ones.  Where the asked offset is unknown, the log
        start that the broker reports is below it."""
        found = []
        for row in rows:
            if row.records_bytes:
                known = asked.get(row.key)
                if self.is_suspect(row.key, row.log_start_offset if known is None else known.fetch_offset):
                    found.append(row)
        return found

    def is_any_suspect(self, request: FetchRequest) -> bool:
        """Return whether records that ``request`` names a partition of may begin with deleted ones."""
        if request.is_of_follower:
            return False
        return any(self.is_suspect(key, partition.fetch_offset) for key, partition in request.partitions.items())

    def is_suspect(self, key: PartitionKey, offset: int) -> bool:
        """Return whether ``offset`` lies below a start that was said, of whatever history."""
        topic, partition = key
        topic_id = Uuid(topic) if isinstance(topic, bytes) else self._tiered.topic_id(topic)
        return topic_id is not None and offset < self._state.highest_start(topic_id, partition)

    def classify(
        self, key: PartitionKey, offset: int, records: memoryview, asker: Asker = ANYBODY
    ) -> FilledPartition | None:
        """Return what a client gets instead of ``records``, asked for from ``offset`` on; None: it gets them.

        Out of range is what natively would be, by the offset alone: of a batch around the log start the client skips what lies
        before it.
        """
        try:
            view = self._tiered.find(*key, asker)
            if view is None:
                return None  # what the broker says of it stands, of its log start, too
            leader_epoch = read_batch_header(records).partition_leader_epoch
            start = self._state.partition_state(view.topic_id_partition).start_for(leader_epoch)
        except MetadataNotReadyError:
            return FilledPartition(error_code=NOT_LEADER_OR_FOLLOWER)
        except (TruncatedDataError, CorruptDataError):
            return None  # no client can read a record of it
        return FilledPartition(error_code=OFFSET_OUT_OF_RANGE, log_start_offset=start) if offset < start else None


_KEPT_PARTITIONS = 100_000
_MOUNTED_AFTER_S = 10.0
"""``refresh_after_s`` of what is mounted read-only, whose log is watched as well: fifty clients that wait at ends would have
their broker asked a hundred times a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOffsets:
    """The leader's offsets.  ``log_start_offset`` is inclusive, the others are exclusive.  ``is_mounted``: clients do not see
    its log, which counts as an empty one at the end of the remote log."""

    log_start_offset: Offset
    high_watermark: Offset
    last_stable_offset: Offset
    asked_at_s: float
    is_mounted: bool = False


class Mounts(Protocol):
    """The partitions that are mounted read-only: all that the gateway has to know of such a mount."""

    are_any: bool
    """True where any partition is mounted, or may be."""

    def is_mounted(self, partition: TopicIdPartition) -> bool:
        """Return whether it is one of them."""
        ...

    def halted(self, partition: TopicIdPartition) -> str:
        """Return why it is not readable any more; empty where it is."""
        ...

    def is_mounted_topic(self, topic: str | bytes) -> bool:
        """Return whether partitions of it are, by its name or the 16 bytes of its id."""
        ...

    async def seen(self, partition: TopicIdPartition, offsets: BrokerOffsets) -> BrokerOffsets | None:
        """Return the offsets that clients are to see, by those that its leader has reported; None while they are unknown."""
        ...

    async def seen_at(self, partition: TopicIdPartition, known: BrokerOffsets, bounds: OffsetBounds) -> BrokerOffsets:
        """Return :meth:`seen` of a moment ago, ``known``, as of ``bounds``."""
        ...


class NoMounts:
    """The mounts of a gateway whose partitions are all its own cluster's: none."""

    are_any = False

    def is_mounted(self, partition: TopicIdPartition) -> bool:
        return False

    def halted(self, partition: TopicIdPartition) -> str:
        return ""

    def is_mounted_topic(self, topic: str | bytes) -> bool:
        return False

    async def seen(self, partition: TopicIdPartition, offsets: BrokerOffsets) -> BrokerOffsets | None:
        return offsets  # not asked, where there are none

    async def seen_at(self, partition: TopicIdPartition, known: BrokerOffsets, bounds: OffsetBounds) -> BrokerOffsets:
        return known


class BrokerOffsetsCache:
    """Asks the leaders, as the sidecar itself, for many partitions at once."""

    def __init__(
        self,
        *,
        broker: ListOffsets,
        clock: Clock,
        mounts: Mounts | None = None,
        refresh_after_s: float = 1.0,
        max_age_s: float = 30.0,
    ) -> None:
        self._broker, self._clock, self._mounts = broker, clock, mounts or NoMounts()
        self._refresh_after_s, self._max_age_s = refresh_after_s, max_age_s
        self._known: dict[TopicIdPartition, BrokerOffsets] = {}
        self._asking: dict[TopicIdPartition, asyncio.Task[None]] = {}
        self._next: tuple[dict[TopicIdPartition, LeaderEpoch], asyncio.Task[None]] | None = None  # about to begin

    async def recent(
        self, partitions: Collection[TopicIdPartition], *, within_s: float | None = None
    ) -> dict[TopicIdPartition, BrokerOffsets]:
        """Return known offsets, at most ``max_age_s`` old.  Those older than ``refresh_after_s`` are refreshed in the
        background.  Partitions whose leader did not answer are left out, and so are those unknown ``within_s``."""
        now_s = self._clock.monotonic_s()
        self._ask([partition for partition in partitions if self._is_to_be_asked_for(partition, now_s)])
        unknown = [partition for partition in partitions if self._age_s(partition, now_s) >= self._max_age_s]
        await self._wait(unknown, within_s)
        return self._found(partitions, now_s - self._max_age_s)

    def remembered(self, partition: TopicIdPartition) -> BrokerOffsets | None:
        """Return :meth:`recent` for one partition without waiting; None where :meth:`recent` would have to ask first."""
        known, now_s = self._known.get(partition), self._clock.monotonic_s()
        if known is None or now_s - known.asked_at_s >= self._max_age_s:
            return None
        if self._is_to_be_asked_for(partition, now_s):
            self._ask((partition,))
        return known

    async def current(self, partitions: Collection[TopicIdPartition]) -> dict[TopicIdPartition, BrokerOffsets]:
        """Return what leaders say that are asked after this call; partitions whose leader did not answer are left out."""
        now_s = self._clock.monotonic_s()
        await self._wait(partitions)  # those may have been asked before
        self._ask([partition for partition in partitions if self._age_s(partition, now_s) > 0])
        await self._wait(partitions)
        return self._found(partitions, now_s)

    async def current_of(self, partition: TopicIdPartition) -> BrokerOffsets:
        """Return :meth:`current` of one partition.

        Raises:
            BrokerRefusedError: its leader does not know its high watermark yet, as after each election (KIP-207).
        """
        known = (await self.current([partition])).get(partition)
        if known is None:
            raise BrokerRefusedError(api="ListOffsets", subject=str(partition), error="LEADER_NOT_AVAILABLE")
        return known

    async def as_of(self, partition: TopicIdPartition, known: BrokerOffsets, bounds: OffsetBounds) -> BrokerOffsets:
        """Return ``known`` as it is with the remote log that ``bounds`` show, which may have grown since.

        Raises:
            MetadataNotReadyError: it is mounted, and its source has lost it since the caller found it.
        """
        if known.is_mounted and (reason := self._mounts.halted(partition)):
            raise MetadataNotReadyError(subject=reason)
        if not known.is_mounted or known.high_watermark == bounds.log_end:
            return known
        return await self._mounts.seen_at(partition, known, bounds)

    def is_mounted(self, partition: TopicIdPartition) -> bool:
        """Return whether it is mounted read-only: then what its broker says of its own log is nothing for clients."""
        return self._mounts.is_mounted(partition)

    @property
    def has_mounts(self) -> bool:
        """Return whether any partition may be."""
        return self._mounts.are_any

    async def aclose(self) -> None:
        """Give up what is being asked."""
        asking = set(self._asking.values())
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def _is_to_be_asked_for(self, partition: TopicIdPartition, now_s: float) -> bool:
        """Return whether what is known is old.  Of a mounted partition it changes with the remote log alone: :meth:`as_of`."""
        known = self._known.get(partition)
        after_s = _MOUNTED_AFTER_S if known is not None and known.is_mounted else self._refresh_after_s
        return self._age_s(partition, now_s) >= after_s

    def _age_s(self, partition: TopicIdPartition, now_s: float) -> float:
        known = self._known.get(partition)
        return float("inf") if known is None else now_s - known.asked_at_s

    def _found(self, partitions: Iterable[TopicIdPartition], since_s: float) -> dict[TopicIdPartition, BrokerOffsets]:
        found = ((partition, self._known.get(partition)) for partition in partitions)
        return {one: known for one, known in found if known is not None and known.asked_at_s >= since_s}

    async def _wait(self, partitions: Collection[TopicIdPartition], within_s: float | None = None) -> None:
        """Wait for the leaders' offsets, and where there are mounts, then for what clients see of them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                for _ in range(2 if self._mounts.are_any else 1):
                    asking = {task for partition in partitions if (task := self._asking.get(partition)) is not None}
                    if asking:
                        await asyncio.wait(asking)  # a caller that gives up cancels nothing

    def _ask(self, partitions: Collection[TopicIdPartition]) -> None:
        """Ask together for all callers of one turn of the loop: a thousand partitions, each from a task of its own, then take
        three requests to a leader instead of three thousand."""
        wanted = [partition for partition in partitions if partition not in self._asking]
        if not wanted:
            return
        if self._next is None:
            together = dict[TopicIdPartition, LeaderEpoch]()
            task = asyncio.create_task(self._fetch(together), name="gateway: offsets of the broker")
            self._next = together, task
        self._next[0].update(dict.fromkeys(wanted, NO_EPOCH))
        self._asking.update(dict.fromkeys(wanted, self._next[1]))

    async def _fetch(self, wanted: dict[TopicIdPartition, LeaderEpoch]) -> None:
        self._next = None
        asked_at_s = self._clock.monotonic_s()
        found = dict[TopicIdPartition, BrokerOffsets]()
        try:
            starts, watermarks, stables = await asyncio.gather(
                self._broker.list_offsets(wanted, OffsetSpec.EARLIEST),
                self._broker.list_offsets(wanted, OffsetSpec.LATEST),
                self._broker.list_offsets(wanted, OffsetSpec.LATEST, read_committed=True),
            )
            for partition in wanted:
                answers = (starts[partition], watermarks[partition], stables[partition])
                if all(answer.error is None for answer in answers):
                    found[partition] = BrokerOffsets(
                        log_start_offset=starts[partition].offset,
                        high_watermark=watermarks[partition].offset,
                        last_stable_offset=stables[partition].offset,
                        asked_at_s=asked_at_s,
                    )
        except RetriableError:
            return  # waiting callers find nothing, and ask again with their next request
        finally:
            for partition in wanted:
                del self._asking[partition]
        for partition, offsets in found.items():
            if self._mounts.are_any:
                seeing = self._see(partition, offsets)
                self._asking[partition] = asyncio.create_task(seeing, name="gateway: offsets of a mounted log")
            else:
                self._remember(partition, offsets)

    async def _see(self, partition: TopicIdPartition, offsets: BrokerOffsets) -> None:
        """Look at one mounted partition on its own: a store that hangs must not hold up what is known of the others."""
        try:
            seen = await self._mounts.seen(partition, offsets)
        except RetriableError:
            return
        finally:
            del self._asking[partition]
        self._remember(partition, seen)

    def _remember(self, partition: TopicIdPartition, known: BrokerOffsets | None) -> None:
        self._known.pop(partition, None)
        if known is not None:
            self._known[partition] = known
        while len(self._known) > _KEPT_PARTITIONS:
            del self._known[next(iter(self._known))]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BothTiers:
    """Where a rewrite learns what either tier has: which partitions are tiered, the remote log, the broker's own offsets, and
    what is on its way from one tier to the other."""

    tiered: TieredPartitions
    reader: RemoteLogReader
    offsets: BrokerOffsetsCache
    pending: PendingCopies


async def check_gap(
    partition: TopicIdPartition,
    bounds: OffsetBounds,
    local_start: Offset,
    pending: PendingCopies,
    reader: RemoteLogReader,
) -> None:
    """Raise if ``offset`` lies between the tiers: nothing is known of it for now, and no client may skip it.

    ``bounds`` are of the remote tier, the broker's log begins at ``local_start``.

    Raises:
        OffsetBetweenTiersError: there is such a gap, or there was none that we knew of.
        RetriableError: it is not known yet.
    """
    if bounds.end >= local_start or bounds.log_start >= local_start:
        return
    if bounds.start >= bounds.end:
        bounds = await reader.current_bounds(partition)
    if bounds.start < bounds.end or await pending.is_pending(partition, below=local_start):
        raise OffsetBetweenTiersError(
            subject=str(partition), offset=bounds.end, remote_end=bounds.end, local_start=local_start
        )
