"""The follow lane and the pin keeper over pins in memory, a scripted broker and log dirs that a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tests.support.lane_parts import edges_of, sources_of
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.pins import LOG_DIR, MemoryPins, local_partition
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import MemoryStateLog, ScriptedBroker, ScriptedFailpoints
from tests.support.segments import TOPIC_ID_PARTITION, local_segments, remote_segment
from tiersidecar.decide.pin_room import PinLimits
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView, Pin, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.tasks.follow import FollowTask
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.pictures import Pictures
from tiersidecar.tasks.pin_keeper import PinKeeper, PinSettings
from tiersidecar.tasks.trusted_copies import TrustedCopies

BROKER = BrokerId(1)


class HighWatermarks:
    """The part of ``ports.log_dirs.LogDirs`` that a follower asks for."""

    def __init__(self) -> None:
        self.offsets: dict[TopicIdPartition, int] = {}

    async def high_watermarks(self) -> Mapping[TopicIdPartition, int]:
        return self.offsets


class PinShell:
    """One tiered partition, ``TIP``, led in epoch 0; its metadata is ready, its pins have been read."""

    def __init__(
        self, *pins: Pin, limits: PinLimits | None = None, makes_pins: bool = True, drops_pins: bool = True
    ) -> None:
        self.pins, self.table, self.clock = MemoryPins(*pins), PartitionTable(), ManualClock()
        self.written_ms = self.clock.now_ms()
        self.metadata, self.state, self.broker = MemoryMetadataLog(), MemoryStateLog(), ScriptedBroker()
        self.log_dirs, self.telemetry, self.failpoints = HighWatermarks(), RecordedTelemetry(), ScriptedFailpoints()
        self.broker.last_stable_offsets[TOPIC_ID_PARTITION] = 10_000
        self.table.watch_trouble = ""
        self.settings = PinSettings(
            limits=limits or PinLimits(disk_reserve_percent=0), makes_pins=makes_pins, drops_pins=drops_pins
        )
        sources = sources_of(table=self.table, broker=self.broker, metadata=self.metadata, state=self.state)
        edges = edges_of(self.clock, telemetry=self.telemetry, failpoints=self.failpoints)
        copies = TrustedCopies(self.metadata, self.state)
        self.keeper = PinKeeper(sources=sources, edges=edges, settings=self.settings, pins=self.pins, copies=copies)
        self.follow = FollowTask(
            sources=sources,
            edges=edges,
            pins=self.pins,
            keeper=self.keeper,
            log_dirs=self.log_dirs,  # type: ignore[arg-type]
            copies=copies,
            slots=asyncio.Semaphore(2),
            pictures=Pictures(sources=sources, edges=edges, pins=self.pins, copies=copies),
        )
        self.tiered = TieredPartition(view=_view(0), role=PartitionRole.LEADER, policy=TopicPolicy())

    async def open(self, *bases: int, ready: bool = True) -> None:
        """Have the directory show segments at ``bases``, and do one round of the keeper."""
        self.see(*bases)
        if ready:
            await self.metadata.assign([TOPIC_ID_PARTITION])
        await self.keeper.keep()

    def see(
        self,
        *bases: int,
        epochs: Iterable[tuple[int, int]] = ((0, 0),),
        faults: Iterable[str] = (),
        deleted: tuple[int, ...] = (),
    ) -> None:
        """Set what a scan shows from now on, last written at ``written_ms``; no bases: no directory.  ``deleted`` are bases of
        segments with other names."""
        written = tuple(replace(segment, modified_ms=self.written_ms) for segment in local_segments(*bases))
        found = local_partition(written, epochs=epochs)
        renamed = [replace(segment, file_suffix=".deleted") for segment in local_segments(*deleted, *bases[:1])[:-1]]
        partitions = {TOPIC_ID_PARTITION: replace(found, deleted=tuple(renamed))} if bases else {}
        self.table.local = LogDirsView(partitions=partitions, faults=dict.fromkeys(faults, "unreadable"))
        self.table.assignment = {TOPIC_ID_PARTITION: self.tiered} if bases else {}

    def be(self, *, role: PartitionRole | None = None, epoch: int = 0, policy: TopicPolicy | None = None) -> None:
        """Take another role, epoch or policy from now on."""
        self.tiered = replace(
            self.tiered,
            view=_view(epoch),
            role=role or self.tiered.role,
            policy=policy or self.tiered.policy,
        )
        self.table.assignment = {TOPIC_ID_PARTITION: self.tiered}

    async def round(self) -> None:
        """Run the follow lane, if it has work."""
        if self.follow.has_work(self.tiered):
            await self.follow.run(self.tiered)

    async def finish_copy(self, start: int, end: int) -> None:
        """Add a remote segment of [start, end], both inclusive."""
        started = remote_segment(start, end, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)
        await self.metadata.publish(started)
        await self.metadata.publish(
            RemoteLogSegmentMetadataUpdate(
                remote_log_segment_id=started.remote_log_segment_id,
                broker_id=BROKER,
                event_timestamp_ms=0,
                state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            )
        )

    @property
    def known(self) -> list[tuple[int, int]]:
        """Return offsets of the pins that the table has."""
        return [(pin.base_offset, pin.next_base_offset) for pin in self.table.pins]


def _view(epoch: int) -> LeaderView:
    return LeaderView(
        topic_id_partition=TOPIC_ID_PARTITION,
        leader_id=BROKER,
        leader_epoch=LeaderEpoch(epoch),
        replicas=(BROKER,),
        in_sync_replicas=(BROKER,),
    )


__all__ = ["LOG_DIR", "PinShell"]
