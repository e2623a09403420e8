"""All pins of the broker: read at start, kept within their bounds, and let go with what they are of (U8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from tiersidecar.decide.pin import is_remote
from tiersidecar.decide.pin_room import (
    Disk,
    PinLimits,
    decide_room,
    has_moved,
    is_given_up,
    is_there_anew,
    pins_alone,
    room_bytes,
)
from tiersidecar.decide.trash import kept_from
from tiersidecar.domain.errors import MetadataNotReadyError, RetriableError
from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import NO_LOG_END, DropReason, LocalPartition, Pin, PinnedPartition, Unpin
from tiersidecar.ports.metrics.copying import PINS_BYTES, PINS_DROPPED, PINS_ROOM_BYTES, PINS_SEGMENTS, PINS_UNAVAILABLE
from tiersidecar.ports.pins import Pins
from tiersidecar.tasks.disk_watch import measure
from tiersidecar.tasks.edges import Edges, Sources
from tiersidecar.tasks.trusted_copies import TrustedCopies

log = structlog.get_logger(__name__)

KEEP_INTERVAL_S = 5.0
GONE_GRACE_S = 60.0
"""A directory moves between log dirs, and becomes stray, in steps: one that is missing for so long is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinSettings:
    """``makes_pins``: new ones are made (pins.enabled).  ``drops_pins``: old ones go (not in observe mode)."""

    limits: PinLimits
    makes_pins: bool
    drops_pins: bool


@dataclass(slots=True)
class _Places:
    """The last message about each log dir, so that it is logged once."""

    without: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)


class PinKeeper:
    """One per process.  Of the state topic it reads the remote log starts."""

    def __init__(
        self, *, sources: Sources, edges: Edges, settings: PinSettings, pins: Pins, copies: TrustedCopies
    ) -> None:
        self._table, self._metadata, self._state = sources.table, sources.metadata, sources.state
        self._settings, self._pins, self._copies = settings, pins, copies
        self._blocking, self._clock, self._trash_clock = edges.blocking, edges.clock, edges.trash_clock
        self._failpoints, self._telemetry = edges.failpoints, edges.telemetry
        self._places = _Places()
        self._missing_since_s: dict[PinnedPartition, float] = {}
        for reason in DropReason:  # a series that begins with its first event shows no increase
            edges.telemetry.count(PINS_DROPPED, 0, reason=reason.value)

    def can_pin(self, log_dir: str) -> bool:
        """Return whether new pins are made in ``log_dir``."""
        return self._settings.makes_pins and log_dir not in self._places.without

    async def run(self) -> None:
        """Keep, every interval; never ends by itself."""
        while True:
            await self.keep()
            await self._clock.sleep(KEEP_INTERVAL_S)

    async def keep(self) -> None:
        """Do one round: find places, read what has not been read, drop what has no right or no room, report how much there
        is."""
        await self._find_places()
        if self._table.pins.unread is None or self._table.pins.unread:
            await self._load()
        if self._settings.drops_pins:
            for unpin in self._gone():
                await self._drop_if_possible(unpin)
            await self._drop_given_up()
        self._forget_refused()
        disks = await measure(self._pins)
        for unpin in self._without_room(disks) if self._settings.drops_pins else ():
            await self._drop_if_possible(unpin)
        self._report(disks, await self._replaced())

    async def drop(self, unpin: Unpin) -> None:
        """Remove a pin, and log it.

        Raises:
            PinError: its links cannot be removed.
        """
        pin, loss = unpin.pin, unpin.reason.is_loss
        if not self._settings.drops_pins:
            return
        await self._pins.unpin(pin)
        self._table.pins.remove(pin)
        if unpin.reason is DropReason.BELOW_LOG_START:
            self._table.pins.refuse(pin)
        self._telemetry.count(PINS_DROPPED, reason=unpin.reason.value)
        say = log.error if loss else log.info
        if unpin.reason is DropReason.REMOTE:  # every segment's usual end
            say = log.debug
        say(
            "pin.dropped",
            topic=self._topic_of(pin.owner),
            topic_id=format_uuid(pin.owner.topic_id),
            partition=pin.owner.partition,
            base_offset=pin.base_offset,
            next_base_offset=pin.next_base_offset,
            bytes=pin.size_bytes,
            reason=unpin.reason.value,
            data_lost=loss,
        )
        await self._failpoints.reach("pin.dropped")

    async def _drop_if_possible(self, unpin: Unpin) -> None:
        try:
            await self.drop(unpin)
        except RetriableError as error:
            log.warning("pin.drop_failed", error=str(error), base_offset=unpin.pin.base_offset)

    async def _find_places(self) -> None:
        if not self._settings.makes_pins:
            return
        without = await self._pins.prepare()
        for log_dir, reason in without.items():
            if self._places.without.get(log_dir) != reason:
                log.warning("pins.unavailable", log_dir=log_dir, reason=reason)
        for log_dir in without.keys() | self._places.without.keys():
            self._telemetry.gauge(PINS_UNAVAILABLE, 1 if log_dir in without else 0, log_dir=log_dir)
        self._places.without = without

    async def _load(self) -> None:
        view = await self._pins.scan(sweep=self._settings.drops_pins)
        for log_dir, reason in view.faults.items():
            if self._places.faults.get(log_dir) != reason:
                log.error("pins.unreadable", log_dir=log_dir, reason=reason)
        before, self._places.faults = self._table.pins.unread, view.faults
        found = [pin for pin in view.pins if before is None or pin.log_dir in before]
        self._table.pins.add_all(found)
        self._table.pins.unread = frozenset(view.faults)
        if found:
            log.info("pins.found", segments=len(found), bytes=sum(pin.size_bytes for pin in found))

    def _gone(self) -> list[Unpin]:
        """Return pins of partitions whose directory has been missing from healthy log dirs for the whole grace."""
        now_s, present = self._clock.monotonic_s(), self._present()
        missing = set(self._table.pins.partitions) - present.keys()
        if self._table.watch_trouble or self._table.local.faults:
            missing = set()
        self._missing_since_s = {owner: self._missing_since_s.get(owner, now_s) for owner in missing}
        topics = set(self._table.topic_ids.values())
        return [
            Unpin(pin=pin, reason=DropReason.PARTITION_GONE if owner.topic_id in topics else DropReason.TOPIC_GONE)
            for owner, since_s in self._missing_since_s.items()
            if now_s - since_s >= GONE_GRACE_S
            for pin in self._table.pins.of_owner(owner)
        ]

    def _forget_refused(self) -> None:
        present = self._present()
        for owner in self._table.pins.refused_partitions:
            local = present.get(owner)
            first = NO_LOG_END if local is None else (*local.deleted, *local.segments)[0].base_offset
            self._table.pins.forget_refused(owner, first)

    async def _drop_given_up(self) -> None:
        """Drop them, looking again right before each: while one goes, an undelete may come and the leader answer with what is
        pinned."""
        for topic_id_partition in list(self._table.assignment):
            for pin in self._given_up(topic_id_partition, self._table.pins.of(topic_id_partition)):
                if self._given_up(topic_id_partition, [pin]):
                    await self._drop_if_possible(Unpin(pin=pin, reason=DropReason.BELOW_LOG_START))

    def _given_up(self, topic_id_partition: TopicIdPartition, pins: Sequence[Pin]) -> list[Pin]:
        """Return those of ``pins`` that nothing can bring back any more; none while the state topic is not read."""
        if not pins:
            return []
        try:
            start_offset = self._kept_from(topic_id_partition)
        except MetadataNotReadyError:
            return []
        return [pin for pin in pins if is_given_up(pin, start_offset)]

    def _kept_from(self, topic_id_partition: TopicIdPartition) -> Offset:
        """Return from where on what is only here is kept: the remote log start, or below it what can still be undone."""
        state, lineage = (
            self._state.partition_state(topic_id_partition),
            self._table.lineage_on_disk(topic_id_partition),
        )
        return kept_from(
            self._state.trash(topic_id_partition),
            user_deletes=state.user_deletes,
            generation=state.start_generation,
            lineage=lineage,
            start_offset=state.start_in(lineage),
            time=self._trash_clock.now(),
        )

    def _without_room(self, disks: tuple[Disk, ...]) -> tuple[Unpin, ...]:
        alone = self._alone()
        if not alone:  # mostly so, and partitions are thousands
            return ()
        topic_id_partitions = {
            PinnedPartition.of(topic_id_partition): topic_id_partition for topic_id_partition in self._table.assignment
        }
        present = self._present()

        def needless(pin: Pin) -> DropReason | None:
            if self._is_remote(topic_id_partitions.get(pin.owner), pin):
                return DropReason.REMOTE
            if has_moved(pin, present.get(pin.owner)):
                return DropReason.MOVED
            local = present.get(pin.owner)
            is_uncleaned = local is not None and self._table.is_uncleaned(local)
            return DropReason.REPLACED if is_uncleaned and is_there_anew(pin, local) else None

        return decide_room(alone, disks, self._settings.limits, needless)

    def _alone(self) -> list[Pin]:
        present = self._present()
        uncleaned = {owner for owner, local in present.items() if self._table.is_uncleaned(local)}
        return pins_alone(self._table.pins, present, uncleaned)

    async def _replaced(self) -> Sequence[Pin]:
        """Return pins of pictures of which the broker's cleaner has put another file in the place of its own: by their offsets
        the directory still has them.  No limit lets them go, for a picture without them would not be one."""
        if not self._table.compacted_topics:
            return ()
        owners = {
            PinnedPartition.of(topic_id_partition)
            for topic_id_partition in self._table.assignment
            if topic_id_partition.topic in self._table.compacted_topics
        }
        return await self._pins.without_other_names([pin for pin in self._table.pins if pin.owner in owners])

    def _is_remote(self, topic_id_partition: TopicIdPartition | None, pin: Pin) -> bool:
        segments_at = (
            None
            if topic_id_partition is None or not pin.leader_epochs
            else self._copies.segments_at(topic_id_partition)
        )
        if topic_id_partition is None or segments_at is None:
            return False
        highest = self._metadata.highest_offset_for_epoch(topic_id_partition, pin.leader_epochs[-1].epoch)
        if highest is None or highest < pin.next_base_offset - 1:
            return False
        return is_remote(self._table.lineage_on_disk(topic_id_partition), segments_at, pin.segment)

    def _report(self, disks: tuple[Disk, ...], replaced: Sequence[Pin]) -> None:
        log_dirs = {log_dir for disk in disks for log_dir in disk.log_dirs}
        alone = dict.fromkeys(log_dirs, 0)
        segments = dict.fromkeys(log_dirs, 0)
        for pin in self._alone():
            alone[pin.log_dir] = alone.get(pin.log_dir, 0) + pin.size_bytes
        kept = dict(alone)
        for pin in set(replaced).difference(self._alone()):
            kept[pin.log_dir] = kept.get(pin.log_dir, 0) + pin.size_bytes
        for pin in self._table.pins:
            segments[pin.log_dir] = segments.get(pin.log_dir, 0) + 1
        for log_dir in log_dirs:
            self._telemetry.gauge(PINS_BYTES, kept[log_dir], log_dir=log_dir)
            self._telemetry.gauge(PINS_SEGMENTS, segments[log_dir], log_dir=log_dir)
            room = room_bytes(alone, log_dir, disks, self._settings.limits)
            self._telemetry.gauge(PINS_ROOM_BYTES, room, log_dir=log_dir)

    def _present(self) -> dict[PinnedPartition, LocalPartition]:
        """Return log directories by owner, of those that have or had pins at least: mostly none has, and thousands are here."""
        if not self._table.pins.partitions and not self._table.pins.refused_partitions:
            return {}
        return {
            PinnedPartition.of(topic_id_partition): local
            for topic_id_partition, local in self._table.local.partitions.items()
        }

    def _topic_of(self, owner: PinnedPartition) -> str | None:
        """Return the topic's name, where it is still here."""
        return next(
            (
                topic_id_partition.topic
                for topic_id_partition in self._table.local.partitions
                if PinnedPartition.of(topic_id_partition) == owner
            ),
            None,
        )
