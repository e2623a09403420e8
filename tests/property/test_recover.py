"""A partition lives, its topic is lost, and it is made anew: what was live is so again, and nothing deleted returns.

The model does what sidecars do, in their order: STARTED, objects, FINISHED; DELETE_STARTED, objects away, DELETE_FINISHED.  A
snapshot is taken in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from tests.support.metadata_events import DELETED, DELETING, FINISHED, ORDERS, STARTED, segment_id
from tiersidecar.adapters.snapshots.codec import read_partition_snapshot, write_partition_snapshot
from tiersidecar.decide.recover import (
    RecoveryView,
    SnapshotSegments,
    StoredObjects,
    decide_recovery,
    events_of,
    wanted_manifests,
)
from tiersidecar.domain.ids import BrokerId, Uuid
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.formats.metadata.serde import read_event, write_event
from tiersidecar.ports.partition_snapshots import PartitionSnapshot, SnapshotVersion, state_with
from tiersidecar.ports.state_log import PartitionState

WHOLE = StoredObjects(start_offset=0, has_log=True, has_indexes=True, has_manifest=True)
COPIED, EXPIRED, LEAKED = ("start", "put", "finish"), ("delete", "remove", "end"), ("delete", "leave")
SINGLE = st.sampled_from(["start", "put", "finish", "new epoch", "again", "delete", "remove", "end", "leave"])
STEPS = SINGLE.map(lambda step: (step,)) | st.sampled_from([COPIED, COPIED, EXPIRED, LEAKED])
CUSTOM = st.none() | st.binary(max_size=8)


@dataclass
class Partition:
    """``sizes`` and ``custom`` are drawn for each segment; ``now_ms`` rises with each step."""

    custom: Sequence[bytes | None]
    cache: RemoteLogMetadataCache = field(default_factory=lambda: RemoteLogMetadataCache(ORDERS))
    epoch: int = 0
    epoch_start: int = 0
    next_offset: int = 0
    now_ms: int = 0
    serial: int = 0
    stored: dict[Uuid, StoredObjects] = field(default_factory=dict)
    manifests: dict[Uuid, RemoteLogSegmentMetadata] = field(default_factory=dict)
    deleted: set[Uuid] = field(default_factory=set)

    def all_in(self, state: int) -> list[RemoteLogSegmentMetadata]:
        return [segment for segment in self.cache.list_remote_log_segments() if segment.state == state]

    def do(self, step: str) -> None:
        self.now_ms += 1
        getattr(self, step.replace(" ", "_"))()

    def start(self) -> None:
        """A copy of the next offsets begins; a new epoch begins within a segment."""
        end = self.next_offset + 4
        entries = {self.epoch: max(self.epoch_start, self.next_offset)}
        if self.epoch > 0 and self.epoch_start > self.next_offset:
            entries[self.epoch - 1] = self.next_offset
        self._begin(self.next_offset, end, entries)
        self.next_offset = end + 1

    def again(self) -> None:
        """A live segment is copied once more, as a repair does."""
        if live := self.all_in(FINISHED):
            self._begin(live[0].start_offset, live[0].end_offset, dict(live[0].segment_leader_epochs))

    def _begin(self, start: int, end: int, epochs: dict[int, int]) -> None:
        self.serial += 1
        self.cache.apply(
            RemoteLogSegmentMetadata(
                remote_log_segment_id=segment_id(self.serial),
                start_offset=Offset(start),
                end_offset=Offset(end),
                max_timestamp_ms=7 * end,
                broker_id=BrokerId(self.serial % 3),
                event_timestamp_ms=self.now_ms,
                segment_size_in_bytes=100 + self.serial,
                segment_leader_epochs=tuple(
                    EpochEntry(LeaderEpoch(epoch), Offset(offset)) for epoch, offset in sorted(epochs.items())
                ),
                state=STARTED,
                txn_index_empty=self.serial % 2 == 0,
            )
        )

    def new_epoch(self) -> None:
        if self.epoch_start <= self.next_offset:  # one at most in a segment
            self.epoch, self.epoch_start = self.epoch + 1, self.next_offset + 2

    def put(self) -> None:
        for segment in self.all_in(STARTED)[:1]:
            uuid = segment.remote_log_segment_id.uuid
            self.stored[uuid] = replace(WHOLE, start_offset=segment.start_offset)
            self.manifests[uuid] = replace(segment, state=FINISHED)

    def finish(self) -> None:
        for segment in self.all_in(STARTED)[:1]:
            if segment.remote_log_segment_id.uuid in self.stored:
                self._update(segment, FINISHED, self.custom[self.serial % len(self.custom)])

    def delete(self) -> None:
        for segment in self.all_in(FINISHED)[:1]:
            self._update(segment, DELETING, segment.custom_metadata)

    def remove(self) -> None:
        for segment in self.all_in(DELETING)[:1]:
            objects = self.stored.pop(segment.remote_log_segment_id.uuid, None)
            if objects is not None and objects.has_log:  # one after the other
                self.stored[segment.remote_log_segment_id.uuid] = replace(objects, has_log=False)

    def end(self) -> None:
        for segment in self.all_in(DELETING)[:1]:
            self.stored.pop(segment.remote_log_segment_id.uuid, None)
            self._update(segment, DELETED, segment.custom_metadata)
            self.deleted.add(segment.remote_log_segment_id.uuid)

    def leave(self) -> None:
        """A store that keeps what it said was deleted."""
        for segment in self.all_in(DELETING)[:1]:
            uuid = segment.remote_log_segment_id.uuid
            self.stored[uuid] = replace(WHOLE, start_offset=segment.start_offset)
            self._update(segment, DELETED, segment.custom_metadata)
            self.deleted.add(uuid)

    def _update(self, one: RemoteLogSegmentMetadata, state: int, custom: bytes | None) -> None:
        self.cache.apply(
            RemoteLogSegmentMetadataUpdate(
                remote_log_segment_id=one.remote_log_segment_id,
                broker_id=one.broker_id,
                event_timestamp_ms=self.now_ms,
                state=type(one.state)(state),
                custom_metadata=custom,
            )
        )

    def snapshot(self) -> PartitionSnapshot:
        """As it comes back from the store."""
        highest = {epoch: self.cache.highest_offset_for_epoch(epoch) for epoch in range(self.epoch + 1)}
        taken = PartitionSnapshot(
            cluster_id="ours",
            topic_id_partition=ORDERS,
            version=SnapshotVersion(leader_epoch=LeaderEpoch(self.epoch), serial=1),
            written_ms=self.now_ms,
            broker_id=1,
            incarnation="",
            segments=tuple(self.cache.list_remote_log_segments()),
            highest_offsets={epoch: offset for epoch, offset in highest.items() if offset is not None},
            state=PartitionState(),
        )
        return read_partition_snapshot(write_partition_snapshot(taken), where="snapshot")

    def rebuilt(self, snapshot: PartitionSnapshot | None) -> RemoteLogMetadataCache:
        """The topic is lost; what is published goes through Kafka's bytes into an empty cache."""
        listed = None
        if snapshot is not None:
            listed = SnapshotSegments(
                written_ms=snapshot.written_ms,
                segments={one.remote_log_segment_id.uuid: one for one in snapshot.segments},
                highest_offsets=snapshot.highest_offsets,
            )
        wanted = wanted_manifests({}, listed, self.stored)
        view = RecoveryView(
            known={},
            snapshot=listed,
            stored=self.stored,
            manifests={uuid: self.manifests[uuid] for uuid in wanted},
        )
        cache = RemoteLogMetadataCache(ORDERS)
        for segment in decide_recovery(view).segments:
            for event in events_of(segment):
                cache.apply(_through_kafka(event))
        return cache


def _through_kafka(event: MetadataEvent) -> MetadataEvent:
    return read_event(write_event(event, knows_txn_index_empty=True), where="event")


def lived(before: list[str], after: list[str], custom: list[bytes | None]) -> tuple[Partition, PartitionSnapshot]:
    partition = Partition(custom=custom)
    for step in before:
        partition.do(step)
    snapshot = partition.snapshot()
    for step in after:
        partition.do("end" if step == "leave" else step)
    return partition, snapshot


LIFE = st.lists(STEPS, max_size=25).map(lambda parts: [step for part in parts for step in part])
CUSTOMS = st.lists(CUSTOM, min_size=1, max_size=5)


def held(cache: RemoteLogMetadataCache, epochs: int) -> list[tuple[int, int, int]]:
    return [(epoch, *run) for epoch in range(epochs + 1) for run in cache.finished_runs(epoch)]


@given(LIFE, LIFE, CUSTOMS)
def test_what_was_live_is_live_again_with_all_fields(
    before: list[str], after: list[str], custom: list[bytes | None]
) -> None:
    partition, snapshot = lived(before, after, custom)
    rebuilt = partition.rebuilt(snapshot)
    listed = {one.remote_log_segment_id.uuid for one in snapshot.segments if one.state is FINISHED}
    for one in partition.all_in(FINISHED):
        if one.remote_log_segment_id.uuid in listed:
            assert rebuilt.segment(one.remote_log_segment_id.uuid) == one
    live = held(partition.cache, partition.epoch)
    back = held(rebuilt, partition.epoch)
    for epoch, start, stop in live:
        assert any(e == epoch and s <= start and stop <= t for e, s, t in back), "offsets that were live are held again"


@given(LIFE, LIFE, CUSTOMS)
def test_nothing_deleted_returns(before: list[str], after: list[str], custom: list[bytes | None]) -> None:
    partition, snapshot = lived(before, after, custom)
    rebuilt = partition.rebuilt(snapshot)
    back = {one.remote_log_segment_id.uuid for one in rebuilt.list_remote_log_segments()}
    assert not back & partition.deleted
    for one in snapshot.segments:
        found = rebuilt.segment(one.remote_log_segment_id.uuid)
        assert found is None or found.state >= one.state, "what was being deleted stays so"


@given(LIFE.map(lambda steps: [step for step in steps if step not in ("leave", "again")]))
def test_without_a_snapshot_all_that_manifests_hold_is_equal(steps: list[str]) -> None:
    partition = Partition(custom=[None])
    for step in steps:
        partition.do(step)
    rebuilt = partition.rebuilt(None)
    for one in partition.all_in(FINISHED):
        found = rebuilt.segment(one.remote_log_segment_id.uuid)
        assert found is not None
        assert replace(found, event_timestamp_ms=0) == replace(one, event_timestamp_ms=0)


@given(LIFE, CUSTOMS)
def test_done_again_it_finds_nothing_to_do(steps: list[str], custom: list[bytes | None]) -> None:
    partition, snapshot = lived(steps, [], custom)
    known = {segment.remote_log_segment_id.uuid: segment for segment in partition.cache.list_remote_log_segments()}
    listed = SnapshotSegments(
        written_ms=snapshot.written_ms,
        segments={segment.remote_log_segment_id.uuid: segment for segment in snapshot.segments},
        highest_offsets=snapshot.highest_offsets,
    )
    wanted = wanted_manifests(known, listed, partition.stored)
    manifests = {uuid: partition.manifests[uuid] for uuid in wanted}
    found = decide_recovery(RecoveryView(known=known, snapshot=listed, stored=partition.stored, manifests=manifests))
    assert (found.segments, found.updates, found.equal) == ((), (), len(known))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "delete", "undelete"]), st.integers(0, 9), st.integers(0, 3), st.booleans()
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_state_that_lost_nothing_adds_nothing_to_itself(steps: list[tuple[str, int, int, bool]]) -> None:
    known, told, epoch = PartitionState(), list[PartitionState](), 0
    for kind, at, opened_ms, is_later in steps:
        epoch += is_later
        offset, leader_epoch = Offset(at), LeaderEpoch(epoch)
        if kind == "start":
            record = known.with_start(offset, leader_epoch)
        elif kind == "delete":
            record = known.with_delete(offset, leader_epoch, opened_ms)
        else:
            record = replace(
                PartitionState(remote_log_start_offset=offset, remote_log_start_epoch=leader_epoch),
                start_generation=known.start_generation + 1,
                undone=known.user_deletes,
            )
        known = known.merged_with(record)
        told.append(known)
    for snapshot in told:
        merged = state_with(snapshot, known)
        assert (merged.highest_start, merged.start_generation) == (known.highest_start, known.start_generation)
        assert known.merged_with(merged).user_deletes == known.user_deletes
        lost = PartitionState().with_start(Offset(0), LeaderEpoch(epoch + 1))  # a topic made anew, and its first leader
        back = lost.merged_with(state_with(snapshot, lost))
        assert back.highest_start >= snapshot.highest_start
