"""A segment's deletion: what of it is measured and told, and what is not known of one that was cut short."""

from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from tests.support.expiry import NOW_MS, segments
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import ScriptedFailpoints
from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tiersidecar.decide.cleanup import Removal
from tiersidecar.domain.errors import LeaseLostError, NotOwnedError, PublishTimeoutError, StoreError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import CustomMetadata, planned_keys, write_custom_metadata
from tiersidecar.ports.metrics.retention import DELETE_ERRORS, DELETE_REQUESTS
from tiersidecar.tasks.ownership import Unquestioned
from tiersidecar.tasks.removal import SegmentRemover

OTHER = replace(TOPIC_ID_PARTITION, partition=9)
(SEGMENT,) = segments(1)
OBJECTS = list(planned_keys(SEGMENT, "now/").in_upload_order)


class Store:
    def __init__(self) -> None:
        self.deleted: list[list[str]] = []
        self.broken = False

    async def delete_objects(self, keys: list[str]) -> None:
        if self.broken:
            raise StoreError(verb="delete", key=keys[0], reason="it is broken")
        self.deleted.append(list(keys))


class Topic(MemoryMetadataLog):
    late = False

    async def publish(self, event: MetadataEvent, *, until_s: float | None = None) -> None:
        if self.late:
            raise PublishTimeoutError(subject=str(TOPIC_ID_PARTITION), waited_ms=1)
        await super().publish(event)


class Owner(Unquestioned):
    """Asked before each act; ``lost`` is from which question on the role is another's."""

    def __init__(self) -> None:
        self.asked, self.lost, self.is_foreign = 0, 1 << 30, False
        self.places: list[str | None] = []

    def require_role(self) -> None:
        self.asked += 1
        if self.asked >= self.lost:
            raise LeaseLostError(reason="standing by")

    async def confirm(
        self, topic_id_partition: TopicIdPartition, *, anew: bool = False, place: str | None = None
    ) -> None:
        self.places.append(place)
        if self.is_foreign:
            raise NotOwnedError(topic=topic_id_partition.topic, key="owner", reason="is another cluster's")


class Stage:
    def __init__(self) -> None:
        self.topic, self.store, self.owner = Topic(), Store(), Owner()
        self.telemetry, self.failpoints = RecordedTelemetry(), ScriptedFailpoints()
        self.remover = SegmentRemover(
            metadata_log=self.topic,
            store=self.store,  # type: ignore[arg-type]
            key_prefix="now/",
            clock=ManualClock(NOW_MS),
            failpoints=self.failpoints,
            telemetry=self.telemetry,
            broker_id=BrokerId(7),
            ownership=self.owner,
        )

    async def add(self, segment: RemoteLogSegmentMetadata) -> Removal:
        await self.topic.assign([segment.topic_id_partition])
        await self.topic.publish(replace(segment, state=State.COPY_SEGMENT_STARTED))
        await self.topic.publish(_update(segment, State.COPY_SEGMENT_FINISHED))
        self.topic.events.clear()
        return Removal(metadata=segment, reason="retention.ms is over")

    def counted(self) -> tuple[float, float]:
        return tuple(self.telemetry.value(one, topic="orders") or 0 for one in (DELETE_REQUESTS, DELETE_ERRORS))  # type: ignore[return-value]


def _update(segment: RemoteLogSegmentMetadata, state: State) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=segment.remote_log_segment_id,
        broker_id=BrokerId(7),
        event_timestamp_ms=NOW_MS,
        state=state,
        custom_metadata=segment.custom_metadata,
    )


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.parametrize("place", ["", "cold"])
async def test_the_store_that_is_asked_for_its_owner_is_the_one_that_is_deleted_from(stage: Stage, place: str) -> None:
    """S-293: another bucket in the place of a place has nothing to delete, and says that it is deleted."""
    custom_metadata = write_custom_metadata(CustomMetadata(place=place)) if place else None
    await stage.remover.remove(await stage.add(replace(SEGMENT, custom_metadata=custom_metadata)))
    assert stage.owner.places == [place]


async def test_a_deletion_is_told_with_what_went_and_why(stage: Stage) -> None:
    removal = await stage.add(SEGMENT)
    with capture_logs() as told:
        await stage.remover.remove(removal)
    assert [dict(one) for one in told] == [
        {
            "event": "segment.deleted",
            "log_level": "info",
            "topic": "orders",
            "partition": 3,
            "segment_id": str(SEGMENT.remote_log_segment_id),
            "start_offset": 0,
            "end_offset": 99,
            "bytes": 1024,
            "reason": "retention.ms is over",
        }
    ]
    assert stage.counted() == (1, 0)
    assert stage.store.deleted == [OBJECTS]
    assert stage.topic.events == [
        _update(SEGMENT, State.DELETE_SEGMENT_STARTED),
        _update(SEGMENT, State.DELETE_SEGMENT_FINISHED),
    ]


async def test_one_that_had_begun_goes_on_from_there(stage: Stage) -> None:
    removal = await stage.add(SEGMENT)
    await stage.topic.publish(_update(SEGMENT, State.DELETE_SEGMENT_STARTED))
    begun = replace(removal, metadata=replace(SEGMENT, state=State.DELETE_SEGMENT_STARTED))

    async def undone() -> bool:
        raise AssertionError("what has begun cannot be undone any more")

    await stage.remover.remove(begun, undone)
    assert "delete.begun" not in stage.failpoints.passed
    assert stage.store.deleted == [OBJECTS]


async def test_what_was_undone_is_neither_deleted_nor_told_nor_an_error(stage: Stage) -> None:
    removal = await stage.add(SEGMENT)

    async def undone() -> bool:
        return True

    with capture_logs() as told:
        await stage.remover.remove(removal, undone)
    assert (stage.topic.events, stage.store.deleted, told) == ([], [], [])
    assert stage.counted() == (1, 0)


async def test_a_store_that_refuses_is_an_error_and_the_deletion_stays_begun(stage: Stage) -> None:
    removal = await stage.add(SEGMENT)
    stage.store.broken = True
    with pytest.raises(StoreError):
        await stage.remover.remove(removal)
    assert stage.counted() == (1, 1)
    assert [event.state for event in stage.topic.events] == [State.DELETE_SEGMENT_STARTED]


@pytest.mark.parametrize(
    ("lost", "events", "deleted"),
    [
        pytest.param(1, [], 0, id="before it begins"),
        pytest.param(2, [State.DELETE_SEGMENT_STARTED], 0, id="before its objects go"),
    ],
)
async def test_a_process_that_lost_its_role_does_no_more(
    stage: Stage, lost: int, events: list[State], deleted: int
) -> None:
    removal = await stage.add(SEGMENT)
    stage.owner.lost = lost
    with pytest.raises(LeaseLostError):
        await stage.remover.remove(removal)
    assert ([event.state for event in stage.topic.events], len(stage.store.deleted)) == (events, deleted)


async def test_another_clusters_data_stays(stage: Stage) -> None:
    removal = await stage.add(SEGMENT)
    stage.owner.is_foreign = True
    with pytest.raises(NotOwnedError):
        await stage.remover.remove(removal)
    assert (stage.topic.events, stage.store.deleted) == ([], [])


async def test_another_that_was_faster_is_told_and_no_error(stage: Stage) -> None:
    removal = await stage.add(SEGMENT)
    for state in (State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED):
        await stage.topic.publish(_update(SEGMENT, state))
    with capture_logs() as told:
        await stage.remover.remove(removal)
    assert [(one["event"], one["topic"]) for one in told] == [("segment.delete.done_by_another", "orders")]
    assert stage.counted() == (1, 0)


async def test_a_begin_that_nobody_read_back_is_unsure_until_the_topic_tells(stage: Stage) -> None:
    removal = await stage.add(SEGMENT)
    other = await stage.add(remote_segment(0, 99, topic_id_partition=OTHER))
    stage.topic.late = True
    for one in (removal, other):
        with pytest.raises(PublishTimeoutError):
            await stage.remover.remove(one)
    assert stage.store.deleted == []
    assert stage.remover.unsure(TOPIC_ID_PARTITION) == {SEGMENT.remote_log_segment_id}
    assert stage.remover.unsure(OTHER) == {other.metadata.remote_log_segment_id}
    stage.remover.settle(stage.remover.unsure(OTHER))
    assert (len(stage.remover.unsure(TOPIC_ID_PARTITION)), stage.remover.unsure(OTHER)) == (1, frozenset())
    stage.topic.late = False
    await stage.remover.remove(removal)
    assert stage.remover.unsure(TOPIC_ID_PARTITION) == frozenset()


async def test_once_the_prefix_was_changed_all_three_objects_go_where_they_were_written() -> None:
    """The plugin looks for a manifest under the prefix that is configured now, and leaves the one that it has written."""
    stage = Stage()
    recorded = write_custom_metadata(CustomMetadata(object_prefix="then/"))
    removal = await stage.add(replace(SEGMENT, custom_metadata=recorded))
    await stage.remover.remove(removal)
    assert stage.store.deleted == [list(planned_keys(SEGMENT, "then/").in_upload_order)]
