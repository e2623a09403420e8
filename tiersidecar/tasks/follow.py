"""The follow lane of a partition, led or followed: pin what is sealed and not remote, unpin what is (S-044, S-053).

It needs no store: an outage is what pins are for.  So what is remote is looked up by the epochs of the live file and of the
pins themselves, not by a lineage whose older part lies in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import structlog

from tiersidecar.decide.pin import PinPlan, PinView, decide_pin
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import BrokerRefusedError, PinError, SegmentChangedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.segments import LocalPartition, LocalSegment, Unpin
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.log_dirs import LogDirs
from tiersidecar.ports.pins import MakePins
from tiersidecar.tasks.edges import Edges, Sources
from tiersidecar.tasks.partition_table import FollowNote, FollowShape
from tiersidecar.tasks.pictures import Pictures
from tiersidecar.tasks.pin_keeper import PinKeeper
from tiersidecar.tasks.trusted_copies import TrustedCopies

log = structlog.get_logger(__name__)


class FollowTask:
    """Works for one partition at a time; ``slots`` bounds how many do so at once."""

    def __init__(
        self,
        *,
        sources: Sources,
        edges: Edges,
        pins: MakePins,
        keeper: PinKeeper,
        log_dirs: LogDirs,
        copies: TrustedCopies,
        slots: asyncio.Semaphore,
        pictures: Pictures,
    ) -> None:
        self._table, self._broker, self._metadata = sources.table, sources.broker, sources.metadata
        self._pins, self._keeper, self._log_dirs = pins, keeper, log_dirs
        self._copies, self._slots, self._failpoints = copies, slots, edges.failpoints
        self._pictures = pictures
        self._looked, self._is_sure = -1, False

    def has_work(self, partition: TieredPartition) -> bool:
        """Return whether anything changed since nothing was left to do: cheap.  To be asked at every look, of which it takes
        note."""
        topic_id_partition = partition.view.topic_id_partition
        local = self._table.local.partitions.get(topic_id_partition)
        if local is None:
            return False
        note = self._note(topic_id_partition)
        note.look(local)
        if not self.may_act(partition):
            return False
        if topic_id_partition.topic in self._table.compacted_topics:
            return True  # that all is pinned counts from the last look on
        has_subject = len(local.segments) > 1 or bool(note.deleted) or bool(self._table.pins.of(topic_id_partition))
        return has_subject and note.settled != self._state(partition, local)

    def may_act(self, partition: TieredPartition) -> bool:
        """Return whether a round may pin and unpin, and knows what is pinned."""
        topic_id_partition = partition.view.topic_id_partition
        local = self._table.local.partitions.get(topic_id_partition)
        return (
            local is not None
            and topic_id_partition.topic not in self._table.refused_topics
            and self._table.pins.are_known(local.log_dir)
        )

    async def run(self, partition: TieredPartition) -> None:
        """Do one round.

        Raises:
            BrokerRefusedError, BrokerUnreachableError: the leader's high watermark could not be had.
            PinError: a link could not be made or removed.
        """
        topic_id_partition = partition.view.topic_id_partition
        local = self._table.local.partitions.get(topic_id_partition)
        if local is None:
            return
        async with self._slots:
            if topic_id_partition.topic in self._table.compacted_topics:
                await self._picture(partition, local)
                return
            state = self._state(partition, local)
            plan = await self._plan(partition, local)
            known = replace(local, leader_epochs=self._note(topic_id_partition).epochs.entries)
            await _do_all(
                *(partial(self._drop, topic_id_partition, unpin) for unpin in plan.drop),
                *(partial(self._pin, topic_id_partition, known, segment) for segment in plan.pin),
            )
            if plan.is_settled:
                self._note(topic_id_partition).settled = state

    async def _picture(self, partition: TieredPartition, local: LocalPartition) -> None:
        topic_id_partition = partition.view.topic_id_partition
        if not self._keeper.can_pin(local.log_dir):
            raise PinError(
                path=local.log_dir, reason="a compacted topic is copied from pins, and none can be made here"
            )
        await self._pictures.round(
            partition,
            replace(local, deleted=self._certain(partition, local)),
            self._table.compacted_topics[topic_id_partition.topic],
            high_watermark=await self._high_watermark(partition),
            drop=self._keeper.drop,
            epochs=self._note(topic_id_partition).epochs,
        )

    async def _plan(self, partition: TieredPartition, local: LocalPartition) -> PinPlan:
        topic_id_partition = partition.view.topic_id_partition
        view = PinView(
            policy=partition.policy,
            local=local,
            pins=self._table.pins.of(topic_id_partition),
            can_pin=self._keeper.can_pin(local.log_dir),
            segments_at=self._copies.segments_at(topic_id_partition),
            deleted=self._deleted(partition),
            refused=self._table.pins.refused_of(topic_id_partition),
            epochs=self._note(topic_id_partition).epochs,
            is_sure=self._copies.are_sure,
        )
        plan = decide_pin(view)
        if not plan.pin:
            return plan
        return plan.below(await self._high_watermark(partition))

    async def _drop(self, topic_id_partition: TopicIdPartition, unpin: Unpin) -> None:
        """Drop a pin; one that others replace only where their records have its offsets.  Of a log that lost a file from its
        middle the one before seems to reach over the hole, and the pin may be the only copy."""
        pin = unpin.pin
        if unpin.instead and not await self._pins.hold_all(unpin.instead, pin.base_offset, pin.next_base_offset):
            log.warning(
                "pin.not_replaced",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                base_offset=pin.base_offset,
                next_base_offset=pin.next_base_offset,
                reason="the segments in its place do not have all of its offsets",
            )
            return
        await self._keeper.drop(unpin)

    async def _pin(self, topic_id_partition: TopicIdPartition, local: LocalPartition, segment: LocalSegment) -> None:
        where = {
            "topic": topic_id_partition.topic,
            "partition": topic_id_partition.partition,
            "base_offset": segment.base_offset,
        }
        try:
            pin = await self._pins.pin(local, segment)
        except SegmentChangedError as error:
            log.info("pin.too_late", **where, reason=error.reason)
            return
        self._table.pins.add(pin)
        await self._failpoints.reach("pin.made")
        log.debug("pin.made", **where, bytes=pin.size_bytes, whole=pin.is_whole)

    async def _high_watermark(self, partition: TieredPartition) -> int:
        """Return the leader's high watermark, exclusive; -1 while it is not known."""
        topic_id_partition = partition.view.topic_id_partition
        if partition.role is PartitionRole.FOLLOWER:
            return (await self._log_dirs.high_watermarks()).get(topic_id_partition, -1)
        answer = (
            await self._broker.list_offsets({topic_id_partition: partition.view.leader_epoch}, OffsetSpec.LATEST)
        )[topic_id_partition]
        if answer.error is not None:
            raise BrokerRefusedError(api="ListOffsets", subject=str(topic_id_partition), error=answer.error)
        return answer.offset

    def _state(self, partition: TieredPartition, local: LocalPartition) -> object:
        """Return all that a plan depends on and that can change, but the bytes of the active segment."""
        topic_id_partition = partition.view.topic_id_partition
        known = None
        if self._metadata.is_ready(topic_id_partition):
            unfinished = sum(1 for _ in self._metadata.list_unfinished_segments(topic_id_partition))
            known = (self._metadata.segment_count(topic_id_partition), unfinished)
        return (
            self._shape(partition, local),
            known,
            self._copies.doubted(topic_id_partition),
            self._are_copies_sure(),
            self._keeper.can_pin(local.log_dir),
        )

    def _shape(self, partition: TieredPartition, local: LocalPartition) -> object:
        """Return the partition's own part of it, its directory and what was deleted of it: as long as they are the same
        objects, it is as it was."""
        note = self._note(partition.view.topic_id_partition)
        if note.shape is None or not _are_same(note.shape.of, (partition, local, note.deleted)):
            ends = tuple((one.base_offset, one.inode) for one in (local.segments[0], local.segments[-1]))
            hands = (partition.role, partition.view.leader_epoch, partition.policy)
            deleted = tuple(segment.base_offset for segment in self._deleted(partition))
            of = (partition, local, note.deleted)
            note.shape = FollowShape(of=of, shape=(ends, deleted, local.leader_epochs, hands))
        return note.shape.shape

    def _are_copies_sure(self) -> bool:
        """Return whether copies are sure, as at this look: it looks at all of the metadata topic, and is asked for each of
        thousands."""
        if self._looked != self._table.looks:
            self._looked, self._is_sure = self._table.looks, self._copies.are_sure
        return self._is_sure

    def _deleted(self, partition: TieredPartition) -> tuple[LocalSegment, ...]:
        """Return what was deleted; a follower's may be what a truncation cut off."""
        if partition.role is not PartitionRole.LEADER:
            return ()
        return self._note(partition.view.topic_id_partition).deleted

    def _certain(self, partition: TieredPartition, local: LocalPartition) -> tuple[LocalSegment, ...]:
        """Return what was deleted, as this very scan has it: of a picture that had only what follows, no later one has it."""
        if partition.role is not PartitionRole.LEADER:
            return ()
        return self._note(partition.view.topic_id_partition).certain_of(local)

    def _note(self, topic_id_partition: TopicIdPartition) -> FollowNote:
        return self._table.record(topic_id_partition).follow


def _are_same(these: tuple[object, ...], those: tuple[object, ...]) -> bool:
    return all(one is other for one, other in zip(these, those, strict=True))


async def _do_all(*steps: Callable[[], Awaitable[None]]) -> None:
    """Do one step after the other.  A file that its disk refuses does not keep the segments after it from being pinned: the
    first error is raised at the end."""
    failure: PinError | None = None
    for step in steps:
        try:
            await step()
        except PinError as error:
            failure = failure or error
    if failure is not None:
        raise failure
