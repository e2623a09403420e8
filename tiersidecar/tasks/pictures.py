"""Pictures of compacted partitions: all that is sealed is pinned at one moment, and then copied (docs/design/0017)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

import structlog

from tiersidecar.decide.picture import (
    PicturePlan,
    PictureView,
    decide_picture,
    is_excused,
    may_lack_tombstones,
    reason_missed,
)
from tiersidecar.decide.pin import cut_off_pins, is_remote
from tiersidecar.decide.topics import CleanerSettings, PartitionRole, TieredPartition
from tiersidecar.domain.errors import CleanedBeforePinnedError, PinError, SegmentChangedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.segments import (
    NO_LOG_END,
    NO_TIMESTAMP_MS,
    DropReason,
    LocalPartition,
    Picture,
    PictureLook,
    Pin,
    Unpin,
)
from tiersidecar.ports.pins import MakePins, TakePictures
from tiersidecar.tasks.copy_admission import copied_offset_of
from tiersidecar.tasks.edges import Edges, Sources
from tiersidecar.tasks.trusted_copies import TrustedCopies

log = structlog.get_logger(__name__)

_COMPANION_WAIT_S = 10.0
"""A broker writes the producer snapshot at the end of a segment soon after it has opened the next one."""

NO_EPOCHS = Lineage()
DropPin = Callable[[Unpin], Awaitable[None]]


class MakePictures(MakePins, TakePictures, Protocol):
    """Pins, one by one and together."""


class Pictures:
    """Takes them, one partition at a time; leaders and followers alike."""

    def __init__(self, *, sources: Sources, edges: Edges, pins: MakePictures, copies: TrustedCopies) -> None:
        self._table, self._metadata = sources.table, sources.metadata
        self._pins, self._copies = pins, copies
        self._clock, self._blocking, self._failpoints = edges.clock, edges.blocking, edges.failpoints
        self._lacking_since_s: dict[TopicIdPartition, float] = {}

    async def round(
        self,
        partition: TieredPartition,
        local: LocalPartition,
        settings: CleanerSettings,
        *,
        high_watermark: int,
        drop: DropPin,
        epochs: Lineage = NO_EPOCHS,
    ) -> None:
        """Let go what is remote, and pin what is not; where the cleaner is at work the next round tries again.

        Of ``local``, deleted are those that retention or a user took, as far as that is certain; ``epochs`` has the epochs that
        its file has dropped since.

        Raises:
            CleanedBeforePinnedError: tombstones may have gone from what was to be pinned: nothing of it is.
            PinError: a link could not be made or removed.
        """
        topic_id_partition, began_ms = partition.view.topic_id_partition, self._clock.now_ms()
        view = await self._view(partition, local, high_watermark)
        if view is None:
            return
        plan = decide_picture(view)
        for unpin in plan.drop:
            if self._copies.are_sure or unpin.reason is not DropReason.REMOTE:
                await drop(unpin)
        if partition.policy.copy_disabled:
            return
        if plan.take:
            try:
                known = replace(local, leader_epochs=epochs.extended_by(local.leader_epochs).entries)
                plan = await self._take(partition, known, plan, settings, is_first=not view.remote_end)
            except SegmentChangedError as error:
                log.debug(
                    "picture.later",
                    topic=topic_id_partition.topic,
                    partition=topic_id_partition.partition,
                    reason=error.reason,
                )
                return
        self._table.record(topic_id_partition).is_pictured = True
        if high_watermark >= 0:  # what is sealed above it counts as well: no cleaner goes there
            look = PictureLook(end_offset=plan.end, at_ms=began_ms, delete_retention_ms=settings.delete_retention_ms)
            await self._pins.note_look(local, look)

    async def _view(self, partition: TieredPartition, local: LocalPartition, high_watermark: int) -> PictureView | None:
        """Return the view; None while it is not known what is remote."""
        topic_id_partition = partition.view.topic_id_partition
        segments_at = self._copies.segments_at(topic_id_partition)
        if segments_at is None:
            return None
        lineage = self._table.lineage_on_disk(topic_id_partition)
        pins = self._table.pins.of(topic_id_partition)
        copied = await copied_offset_of(self._metadata, topic_id_partition, lineage, self._blocking)
        return PictureView(
            local=local,
            pins=pins,
            remote=tuple(pin for pin in pins if is_remote(lineage, segments_at, pin.segment)),
            cut_off=cut_off_pins(pins, local, is_compacted=True),
            remote_end=Offset(copied + 1),
            high_watermark=high_watermark,
            refused=self._table.pins.refused_of(topic_id_partition),
        )

    async def _take(
        self,
        partition: TieredPartition,
        local: LocalPartition,
        plan: PicturePlan,
        settings: CleanerSettings,
        *,
        is_first: bool,
    ) -> PicturePlan:
        """Return the plan as it was carried out."""
        topic_id_partition = partition.view.topic_id_partition
        last = await self._pins.last_look(local)
        plan, picture = await self._linked(local, plan)
        if not plan.take:
            return plan
        excused = is_excused(plan, last, now_ms=self._clock.now_ms(), delete_retention_ms=settings.delete_retention_ms)
        begins_at = written_from(partition, local) if excused else NO_LOG_END
        hole = await self._hole(partition, plan, picture, settings, begins_at)
        missed = reason_missed(
            plan,
            hole=hole,
            cleaner_offset=picture.cleaner_offset,
            last=last,
            now_ms=self._clock.now_ms(),
            delete_retention_ms=settings.delete_retention_ms,
        )
        if missed:
            await self._give_up(picture.pins)
            if hole is not None:
                # Soon this broker's own cleaner will have been there: no look of before may excuse what is missing then.
                await self._pins.forget_look(local)
            if is_first and not self._table.record(topic_id_partition).is_pictured:
                # Nothing is remote, and nothing of it was copied by this process: what a killed one left is no loss.
                await self._give_up(self._table.pins.of(topic_id_partition))
                raise SegmentChangedError(path=local.directory, reason=f"a picture was left unfinished: {missed}")
            raise CleanedBeforePinnedError(subject=str(topic_id_partition), reason=missed)
        if not all(pin.is_whole for pin in picture.pins) and self._waits(topic_id_partition):
            await self._give_up(picture.pins)
            raise SegmentChangedError(path=local.directory, reason="the broker has not written all of its files yet")
        self._lacking_since_s.pop(topic_id_partition, None)
        for pin in picture.pins:
            self._table.pins.add(pin)
        await self._failpoints.reach("picture.taken")
        log.info(
            "picture.taken",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            start_offset=plan.known_end,
            stop_offset=plan.end,
            segments=len(picture.pins),
            bytes=sum(pin.size_bytes for pin in picture.pins),
        )
        return plan

    async def _linked(self, local: LocalPartition, plan: PicturePlan) -> tuple[PicturePlan, Picture]:
        """Link what is to be taken.  A renamed segment of which it is not certain where it ended is lost, and what lies before
        it: it holds up nothing else."""
        while plan.take:
            try:
                return plan, await self._pins.take_picture(local, plan.take)
            except SegmentChangedError as error:
                if not plan.is_renamed(error.path):
                    raise
                log.info(
                    "pin.too_late",
                    topic=local.topic_id_partition.topic,
                    partition=local.topic_id_partition.partition,
                    base_offset=plan.take[0].base_offset,
                    reason=error.reason,
                )
                plan = plan.after(error.path)
        return plan, Picture(pins=(), cleaner_offset=None)

    async def _hole(
        self,
        partition: TieredPartition,
        plan: PicturePlan,
        picture: Picture,
        settings: CleanerSettings,
        begins_at: int,
    ) -> Offset | None:
        """Return an offset below ``begins_at`` that a cleaner took away, and may have twice; None where there is none."""
        topic_id_partition = partition.view.topic_id_partition
        is_doubtful = may_lack_tombstones(
            plan,
            cleaner_offset=picture.cleaner_offset,
            written_from=begins_at,
            newest_known_ms=self._newest_known_ms(topic_id_partition, plan.known_end),
            now_ms=self._clock.now_ms(),
            delete_retention_ms=settings.delete_retention_ms,
        )
        if not is_doubtful:
            return None
        start = max(
            plan.known_end, plan.take[0].base_offset
        )  # what lies between is not the cleaner's: retention took it
        try:
            return await self._pins.first_hole(picture.pins, start, begins_at)
        except PinError:
            await self._give_up(picture.pins)
            raise

    def _newest_known_ms(self, topic_id_partition: TopicIdPartition, known_end: Offset) -> int:
        """Return the last timestamp of what ends at ``known_end``, which is pinned or remote; -1 where it has none."""
        pinned = [one for one in self._table.pins.of(topic_id_partition) if one.next_base_offset == known_end]
        if pinned:
            return pinned[-1].segment.max_timestamp_ms
        segments_at = self._copies.segments_at(topic_id_partition)
        epoch = self._table.lineage_on_disk(topic_id_partition).epoch_for_offset(known_end - 1)
        if segments_at is None or epoch is None:
            return NO_TIMESTAMP_MS
        return max((one.max_timestamp_ms for one in segments_at(epoch, known_end - 1)), default=NO_TIMESTAMP_MS)

    def _waits(self, topic_id_partition: TopicIdPartition) -> bool:
        """Return whether a companion that is missing may still come."""
        now_s = self._clock.monotonic_s()
        return now_s - self._lacking_since_s.setdefault(topic_id_partition, now_s) < _COMPANION_WAIT_S

    async def _give_up(self, pins: tuple[Pin, ...]) -> None:
        for pin in pins:
            await self._pins.unpin(pin)
            self._table.pins.remove(pin)


def written_from(partition: TieredPartition, local: LocalPartition) -> int:
    """Return the offset from which on this broker has written the log as its leader; all else it may have fetched."""
    last = local.leader_epochs[-1] if local.leader_epochs else None
    is_leader = partition.role is PartitionRole.LEADER
    return (
        last.start_offset
        if is_leader and last is not None and last.epoch == partition.view.leader_epoch
        else NO_LOG_END
    )
