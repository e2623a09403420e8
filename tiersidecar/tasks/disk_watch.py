"""Watches how full the disks of the log dirs are: the alarm, the time to full, and what may go below ``disk.reserve``."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog

from tiersidecar.decide.disk_pressure import DiskSample, DiskState, decide_state, seconds_to_full, with_sample
from tiersidecar.decide.pin import SegmentsAt, is_remote
from tiersidecar.decide.pin_room import Disk, PinLimits, pins_alone
from tiersidecar.decide.pressure_trim import DiskPressurePolicy, PressedPartition, PressureTrim, decide_pressure
from tiersidecar.decide.topics import PartitionRole
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.policy import RetentionMode
from tiersidecar.domain.segments import NO_LOG_END, LocalPartition, LocalSegment, PinnedPartition
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.retention import DISK_FREE_BYTES, DISK_SECONDS_TO_FULL, DISK_SIZE_BYTES, DISK_STATE
from tiersidecar.ports.pins import MeasureDisks
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.ownership import MayDelete
from tiersidecar.tasks.partition_table import DiskNote, PartitionTable
from tiersidecar.tasks.trusted_copies import TrustedCopies

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S = 5.0
_GIB = 1024**3
_PARTITIONS_IN_ONE_GO = 32
"""About a millisecond, with 25 segments each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSettings:
    """``alarm_s``: a disk that is full sooner is an alarm."""

    limits: PinLimits
    policy: DiskPressurePolicy
    alarm_s: float


@dataclass(slots=True)
class _Watched:
    samples: tuple[DiskSample, ...] = ()
    state: DiskState = DiskState.OK


async def measure(disks: MeasureDisks) -> tuple[Disk, ...]:
    """Return each file system once; with the last answer where log dirs on it were asked one after the other."""
    spaces = await disks.disk_spaces()
    by_device = {space.device: space for space in spaces.values()}
    return tuple(
        Disk(
            log_dirs=frozenset(log_dir for log_dir, space in spaces.items() if space.device == device),
            size_bytes=space.size_bytes,
            free_bytes=space.free_bytes,
        )
        for device, space in by_device.items()
    )


class DiskWatch:
    """One per process.  On the table it keeps ``disk_troubles`` for the status page and ``pressure_trims`` for the retain
    lanes; ``why_halted`` says why nothing is trimmed of a partition, empty where it is, ``guard`` of which an operator lets
    nothing be deleted."""

    def __init__(
        self,
        *,
        settings: DiskSettings,
        table: PartitionTable,
        disks: MeasureDisks,
        copies: TrustedCopies,
        why_halted: Callable[[TopicIdPartition], str],
        guard: MayDelete,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._settings, self._table, self._disks, self._copies = settings, table, disks, copies
        self._why_halted, self._guard, self._clock, self._telemetry = why_halted, guard, clock, telemetry
        self._watched: dict[frozenset[str], _Watched] = {}

    async def run(self) -> None:
        """Look, every interval; never ends by itself."""
        while True:
            await self.look()
            await self._clock.sleep(LOOK_INTERVAL_S)

    async def look(self) -> None:
        """Look once."""
        trims: dict[TopicIdPartition, PressureTrim] = {}
        troubles: dict[str, str] = {}
        notes: list[DiskNote] = []
        disks = await measure(self._disks)
        for gone in self._watched.keys() - {disk.log_dirs for disk in disks}:
            del self._watched[gone]
        for disk in disks:
            state, full_in_s = self._state_of(disk)
            notes.append(
                DiskNote(
                    log_dirs=tuple(sorted(disk.log_dirs)),
                    size_bytes=disk.size_bytes,
                    free_bytes=disk.free_bytes,
                    full_in_s=full_in_s,
                    state=state,
                )
            )
            if state is not DiskState.OK:
                troubles[", ".join(sorted(disk.log_dirs))] = self._sentence(disk, state, full_in_s)
            trims |= await self._pressure_trims(disk)
        self._table.disk_troubles, self._table.pressure_trims = troubles, trims
        self._table.disks = notes

    def _state_of(self, disk: Disk) -> tuple[DiskState, float]:
        watched = self._watched.setdefault(disk.log_dirs, _Watched())
        sample = DiskSample(at_s=self._clock.monotonic_s(), free_bytes=disk.free_bytes)
        watched.samples = with_sample(watched.samples, sample)
        full_in_s = seconds_to_full(watched.samples, disk.free_bytes)
        before = watched.state
        watched.state = decide_state(before, disk, self._settings.limits, full_in_s, self._settings.alarm_s)
        for log_dir in disk.log_dirs:
            self._telemetry.gauge(DISK_FREE_BYTES, disk.free_bytes, log_dir=log_dir)
            self._telemetry.gauge(DISK_SIZE_BYTES, disk.size_bytes, log_dir=log_dir)
            self._telemetry.gauge(DISK_SECONDS_TO_FULL, full_in_s, log_dir=log_dir)
            for state in DiskState:
                self._telemetry.gauge(DISK_STATE, state is watched.state, log_dir=log_dir, state=state.value)
        if watched.state is not before:
            say = log.info if watched.state is DiskState.OK else log.warning
            say(
                "disk.pressure",
                log_dirs=sorted(disk.log_dirs),
                state=watched.state.value,
                free_bytes=disk.free_bytes,
                size_bytes=disk.size_bytes,
                seconds_to_full=round(full_in_s) if math.isfinite(full_in_s) else None,
                policy=self._settings.policy.value,
            )
        return watched.state, full_in_s

    def _sentence(self, disk: Disk, state: DiskState, full_in_s: float) -> str:
        free = f"{disk.free_bytes / _GIB:.1f} of {disk.size_bytes / _GIB:.1f} GiB are free"
        when = f", full in {full_in_s / 3600:.1f} h at this rate" if math.isfinite(full_in_s) else ""
        if state is DiskState.FILLING:
            return free + when
        reserve = f"less than disk.reserve ({self._settings.limits.disk_reserve_percent}%)"
        return f"{free}, {reserve}{when}; disk.pressure.policy is {self._settings.policy.value}"

    async def _pressure_trims(self, disk: Disk) -> dict[TopicIdPartition, PressureTrim]:
        policy, limits = self._settings.policy, self._settings.limits
        if policy is DiskPressurePolicy.KEEP or disk.above_reserve_bytes(limits) >= 0:
            return {}
        here = [local for local in self._table.local.partitions.values() if local.log_dir in disk.log_dirs]
        going_bytes = self._pinned_alone(disk) + sum(self._going_bytes(local) for local in here)
        return decide_pressure(policy, disk, limits, going_bytes, await self._pressed(here))

    def _pinned_alone(self, disk: Disk) -> int:
        present = {
            PinnedPartition.of(topic_id_partition): local
            for topic_id_partition, local in self._table.local.partitions.items()
        }
        pins = [pin for pin in self._table.pins if pin.log_dir in disk.log_dirs]
        uncleaned = {owner for owner, local in present.items() if self._table.is_uncleaned(local)}
        return sum(pin.size_bytes for pin in pins_alone(pins, present, uncleaned))

    def _going_bytes(self, local: LocalPartition) -> int:
        """Return what lies below the log start, or is renamed already: the broker takes minutes to delete it."""
        start = self._table.record(local.topic_id_partition).log_start_offset
        trimmed = (segment for segment in local.sealed_segments if (segment.next_base_offset or 0) <= start)
        return sum(one.size_bytes for one in (*trimmed, *local.deleted))

    async def _pressed(self, here: Iterable[LocalPartition]) -> list[PressedPartition]:
        found = []
        for number, local in enumerate(here, 1):
            if number % _PARTITIONS_IN_ONE_GO == 0:
                await asyncio.sleep(0)
            topic_id_partition = local.topic_id_partition
            tiered = self._table.assignment.get(topic_id_partition)
            segments_at = self._copies.segments_at(topic_id_partition)
            if tiered is None or tiered.role is not PartitionRole.LEADER:
                continue  # its leader's sidecar trims it
            if tiered.policy.mode is not RetentionMode.STRICT or segments_at is None:
                continue
            if topic_id_partition.topic in self._table.untrimmable_topics or self._guard.reason_not_to_delete_of(
                topic_id_partition.topic_id
            ):
                continue  # what it is to give will not come: the others have to give it
            if topic_id_partition.topic in self._table.compacted_topics:
                continue  # it gives what its cleaners allow, and no more
            start = self._table.record(topic_id_partition).log_start_offset
            sealed = [segment for segment in local.sealed_segments if (segment.next_base_offset or 0) > start]
            # A partition that is halted for a removed place gives nothing but to drop-oldest: first what is remote elsewhere.
            removed_place = self._table.record(topic_id_partition).removed_place
            is_kept = removed_place and self._settings.policy is not DiskPressurePolicy.DROP_OLDEST
            remote = 0 if is_kept else self._remote(topic_id_partition, sealed, segments_at, start)
            found.append(
                PressedPartition(
                    topic_id_partition=topic_id_partition,
                    sealed=sealed,
                    remote=remote,
                    is_stuck=self._why_halted(topic_id_partition) not in ("", removed_place),
                )
            )
        return found

    def _remote(
        self,
        topic_id_partition: TopicIdPartition,
        sealed: Sequence[LocalSegment],
        segments_at: SegmentsAt,
        log_start_offset: int,
    ) -> int:
        """Return how many of them, from the first, are remote, or given up, and may go.  What cannot be trimmed relieves no
        disk: were it counted on, nothing else would be looked for.

        The first may begin below both starts, where nothing is remote any more and nothing is read: it goes with what lies
        above them, or it would keep the whole log on the disk (simulation, cluster seed 800571).
        """
        lineage = self._table.lineage_on_disk(topic_id_partition)
        stop, given_up = self._held_from(topic_id_partition), self._table.record(topic_id_partition).remote_log_start
        readable_from = max(log_start_offset, given_up, 0)

        def may_go(segment: LocalSegment) -> bool:
            stops = segment.next_base_offset or 0
            if stops <= given_up:
                return True
            return stops <= stop and is_remote(lineage, segments_at, segment, from_offset=readable_from)

        return next((number for number, one in enumerate(sealed) if not may_go(one)), len(sealed))

    def _held_from(self, topic_id_partition: TopicIdPartition) -> int:
        """Return the first offset that stays: its remote copy could not be read back a moment ago, or a group holds it, unless
        drop-oldest passes any group.  It is counted on again once another look is due: nothing else may be there to have it
        looked at, and one wrong byte, read once, would fill the disk (simulation, cluster seed 608)."""
        record = self._table.record(topic_id_partition)
        unproven, hold = record.unproven, record.trim_hold
        is_resting = unproven is not None and self._clock.monotonic_s() < unproven.until_s
        stops = [unproven.base_offset if unproven is not None and is_resting else NO_LOG_END]
        if hold is not None and self._settings.policy is not DiskPressurePolicy.DROP_OLDEST:
            stops += [-1 if holder.offset is None else holder.offset for holder, _ in hold.holders]
        return min(stops)
