"""A cluster in memory for expiry: topics and store shared, and sidecars whose every await can be interleaved or be the last.

Nothing here suspends but :func:`pause`, so a sidecar's round is a coroutine that a test steps by hand: in any order with
others, and abandoned where it stands, as by ``kill -9``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import coroutine
from typing import Any

from tests.support.delete_switch import DeleteSwitch
from tests.support.expiry import NOW_MS
from tests.support.held_journal import HeldJournal
from tests.support.lane_parts import actor_of, edges_of, sources_of
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.scripted import MemoryStateLog, ScriptedBroker
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.decide.expiry_view import ExpiryLimits
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.decide.trash import NO_DELAYS, TrashDelays
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import (
    LeaderView,
    LocalPartition,
    LocalSegment,
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
)
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.keys import planned_keys
from tiersidecar.ports.broker import OffsetAnswer, OffsetSpec, TrimAnswer
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.state_log import PartitionState, TopicState
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.tasks.expire import ExpireTask
from tiersidecar.tasks.expiry_look import ExpirySettings
from tiersidecar.tasks.ownership import UNQUESTIONED, InFlight, Ownership
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.removal import SegmentRemover
from tiersidecar.tasks.topic_checks import TopicChecks


@coroutine
def pause(name: str) -> Generator[str, None, None]:
    """Yield a place where another may run, or where the process may end."""
    yield name


def run(steps: Coroutine[Any, Any, None]) -> list[str]:
    """Step a round to its end; the places it passed."""
    passed: list[str] = []
    while True:
        try:
            passed.append(steps.send(None))
        except StopIteration:
            return passed


def run_until(steps: Coroutine[Any, Any, None], place: str, nth: int = 1) -> None:
    """Step a round up to the ``nth`` passing of ``place``, and abandon it there."""
    try:
        while nth:
            nth -= steps.send(None) == place
    except StopIteration:
        raise AssertionError(f"the round ended before {place}") from None
    steps.close()


class StoppedClock:
    """Wall and monotonic clock, moved by hand; ``skew_ms`` is how far the wall clock is off."""

    def __init__(self, now_ms: int = NOW_MS, skew_ms: int = 0) -> None:
        self.true_ms, self.skew_ms = now_ms, skew_ms

    def now_ms(self) -> int:
        return self.true_ms + self.skew_ms

    def monotonic_s(self) -> float:
        return self.true_ms / 1000

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here sleeps")


class PausingMetadataLog(MemoryMetadataLog):
    """Durable somewhere between the two places; a crash between shows neither."""

    async def publish(self, event: MetadataEvent, *, until_s: float | None = None) -> None:
        await pause("metadata.sent")
        await super().publish(event)
        await pause("metadata.read_back")


class PausingStateLog(MemoryStateLog):
    async def publish_partition_state(self, topic_id_partition: TopicIdPartition, state: PartitionState) -> None:
        await pause("state.sent")
        await super().publish_partition_state(topic_id_partition, state)
        await pause("state.read_back")

    async def publish_topic_state(self, topic_id: Uuid, state: TopicState) -> None:
        await super().publish_topic_state(topic_id, state)


@dataclass(slots=True)
class PausingStore:
    """Keys only.  ``broken`` answers every request with an error; ``held`` keys are never deleted."""

    keys: set[str] = field(default_factory=set)
    deletes: list[tuple[str, ...]] = field(default_factory=list)
    broken: bool = False
    held: set[str] = field(default_factory=set)

    async def delete_objects(self, keys: Sequence[str]) -> None:
        self.deletes.append(tuple(keys))
        for key in keys:
            await pause("store.delete")
            if self.broken or key in self.held:
                raise StoreError(verb="delete", key=key, reason="it is broken")
            self.keys.discard(key)


class PausingBroker(ScriptedBroker):
    async def list_offsets(
        self,
        partitions: Mapping[TopicIdPartition, LeaderEpoch],
        spec: OffsetSpec | int,
        *,
        read_committed: bool = False,
    ) -> dict[TopicIdPartition, OffsetAnswer]:
        await pause("broker.asked")
        return await super().list_offsets(partitions, spec, read_committed=read_committed)

    async def delete_records(
        self,
        offsets: Mapping[TopicIdPartition, Offset],
        *,
        leader_epochs: Mapping[TopicIdPartition, LeaderEpoch] | None = None,
    ) -> dict[TopicIdPartition, TrimAnswer]:
        await pause("broker.trimmed")
        return await super().delete_records(offsets, leader_epochs=leader_epochs)


class PausingFailpoints:
    async def reach(self, name: str) -> None:
        await pause(name)


@dataclass(slots=True)
class FixedLineage:
    """``reading.lineage.LineageSource`` that always knows."""

    known: Lineage

    async def lineage(self, topic_id_partition: TopicIdPartition, *, max_age_s: float = 30.0) -> Lineage:
        return self.known

    async def refresh(self, topic_id_partition: TopicIdPartition) -> Lineage:
        return self.known

    def last(self, topic_id_partition: TopicIdPartition) -> Lineage | None:
        return self.known

    def log_end_offset(self, topic_id_partition: TopicIdPartition) -> Offset:
        return Offset(0)


class World:
    """The parts that survive every sidecar: metadata, state and objects of one partition."""

    def __init__(self, topic_id_partition: TopicIdPartition = TOPIC_ID_PARTITION) -> None:
        self.topic_id_partition = topic_id_partition
        self.metadata, self.state, self.store = PausingMetadataLog(), PausingStateLog(), PausingStore()
        self._journals: defaultdict[int, HeldJournal] = defaultdict(HeldJournal)
        run(self.metadata.assign([topic_id_partition]))

    def journal(self, broker_id: int) -> HeldJournal:
        """Return what the sidecars beside this broker have begun."""
        return self._journals[broker_id]

    def add(self, segment: RemoteLogSegmentMetadata, *, objects: bool = True, native: bool = False) -> None:
        """Publish all events that bring ``segment`` into its state; copied by a sidecar, unless it is ``native``."""
        if not native:
            self.journal(segment.broker_id).begun.add(segment.remote_log_segment_id.uuid)
        run(self.metadata.publish(_in_state(segment, RemoteLogSegmentState.COPY_SEGMENT_STARTED)))
        if objects:
            self.store.keys |= set(planned_keys(segment).in_upload_order)
        for state in range(1, segment.state + 1):
            self.update(segment, RemoteLogSegmentState(state))

    def finish(self, segment: RemoteLogSegmentMetadata) -> None:
        """Publish COPY_SEGMENT_FINISHED of a segment that was added as started."""
        self.update(segment, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        return list(self.metadata.list_remote_log_segments(self.topic_id_partition))

    def readable(self) -> list[RemoteLogSegmentMetadata]:
        """Return finished segments with all their objects."""
        return [
            segment
            for segment in self.segments()
            if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            and self.store.keys.issuperset(planned_keys(segment).in_upload_order)
        ]

    async def is_whole(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Return it as ``reading.segment_presence`` does."""
        return self.store.keys.issuperset(planned_keys(metadata).in_upload_order)

    def orphans(self) -> set[str]:
        """Return objects that no event names any more."""
        return self.store.keys - {key for one in self.segments() for key in planned_keys(one).in_upload_order}

    @property
    def start(self) -> int:
        return self.state.partition_state(self.topic_id_partition).remote_log_start_offset

    def update(self, segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState) -> None:
        """Publish that it is in ``state``."""
        run(
            self.metadata.publish(
                RemoteLogSegmentMetadataUpdate(
                    remote_log_segment_id=segment.remote_log_segment_id,
                    broker_id=segment.broker_id,
                    event_timestamp_ms=segment.event_timestamp_ms,
                    custom_metadata=segment.custom_metadata,
                    state=state,
                )
            )
        )


class Sidecar:
    """One that believes to lead the partition in ``leader_epoch``; started anew by making another."""

    def __init__(
        self,
        world: World,
        *,
        policy: TopicPolicy,
        lineage: Lineage,
        clock: StoppedClock,
        broker_id: int = 1,
        leader_epoch: int = 0,
        local: tuple[LocalSegment, ...] = (),
        limits: ExpiryLimits | None = None,
        delays: TrashDelays = NO_DELAYS,
        telemetry: Telemetry | None = None,
        observe_only: bool = False,
        ownership: Ownership = UNQUESTIONED,
        has_failed: Callable[[TopicIdPartition], bool] = lambda topic_id_partition: False,
        tiers_compacted: bool = False,
    ) -> None:
        self.world, self.policy, self.clock = world, policy, clock
        self.leader_epoch, self.broker_id = LeaderEpoch(leader_epoch), BrokerId(broker_id)
        self.broker, self.table = PausingBroker(), PartitionTable()
        self.broker.last_stable_offsets[world.topic_id_partition] = 1 << 40
        telemetry = telemetry or NoTelemetry()
        self.in_flight = InFlight(clock=clock, telemetry=telemetry, journal=world.journal(broker_id))
        self.lineages, self.guard = FixedLineage(lineage), DeleteSwitch()
        failpoints = PausingFailpoints()
        self.table.assignment = {world.topic_id_partition: self.partition}
        self.table.local = LogDirsView(partitions={world.topic_id_partition: self._local(local or _EMPTY)}, faults={})
        self.remover = SegmentRemover(
            metadata_log=world.metadata,
            store=world.store,
            key_prefix="",
            clock=clock,
            failpoints=failpoints,
            telemetry=telemetry,
            broker_id=self.broker_id,
            ownership=UNQUESTIONED,
        )
        self.expire = ExpireTask(
            sources=sources_of(
                table=self.table,
                broker=self.broker,
                metadata=world.metadata,
                state=world.state,
                lineages=self.lineages,
            ),
            edges=edges_of(clock, telemetry=telemetry, failpoints=failpoints),
            actor=actor_of(self.guard, broker_id=self.broker_id, ownership=ownership, observe_only=observe_only),
            settings=ExpirySettings(
                limits=limits or ExpiryLimits(max_share=1.0), delays=delays, interval_s=30.0, has_failed=has_failed
            ),
            presence=world,
            in_flight=self.in_flight,
            remover=self.remover,
            checks=TopicChecks(
                broker=self.broker,
                table=self.table,
                policy_for=lambda topic: self.policy,
                max_name_bytes=None,
                clock=clock,
                telemetry=telemetry,
                tiers_compacted=tiers_compacted,
            ),
        )

    @property
    def partition(self) -> TieredPartition:
        view = LeaderView(
            topic_id_partition=self.world.topic_id_partition,
            leader_id=self.broker_id,
            leader_epoch=self.leader_epoch,
            replicas=(self.broker_id,),
            in_sync_replicas=(self.broker_id,),
        )
        return TieredPartition(view=view, role=PartitionRole.LEADER, policy=self.policy)

    def round(self) -> Coroutine[Any, Any, None]:
        """Return one round of expiry, to be stepped."""
        return self.expire.run(self.partition)

    def resign(self) -> None:
        """Have the watch see that another leads."""
        self.table.assignment = {}

    def _local(self, segments: tuple[LocalSegment, ...]) -> LocalPartition:
        return LocalPartition(
            topic_id_partition=self.world.topic_id_partition,
            log_dir="/logs",
            directory="/logs/x",
            segments=segments,
            leader_epochs=(EpochEntry(self.leader_epoch, Offset(0)),),
        )


_EMPTY = (
    LocalSegment(
        directory="/logs/x", base_offset=Offset(1 << 40), next_base_offset=None, size_bytes=0, modified_ms=1 << 50
    ),
)
"""Where all is remote: the broker has the active segment only."""


def _in_state(segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState) -> RemoteLogSegmentMetadata:
    return replace(segment, state=state)
