"""Copying real segments of a real broker into the memory store: what is published and stored, and what stops it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.recopy_requests import always_wanted
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.remote_events import fold, in_state
from tests.support.tier_shell import PARTITIONS, TierShell
from tiersidecar.adapters.clock import SystemIds, ThreadBlocking
from tiersidecar.adapters.key_wrapping.service_keys import ServiceKeys
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.adapters.stores.placed import Place, PlacedStore
from tiersidecar.decide.cleanup import Removal
from tiersidecar.domain.data_keys import KeyContext, WrappedKey
from tiersidecar.domain.errors import (
    BrokerRefusedError,
    CorruptDataError,
    CustomMetadataTooLargeError,
    KeyRefusedError,
    KeyServiceError,
    PublishTimeoutError,
    SegmentChangedError,
    StoreError,
    TiersidecarError,
)
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import CustomMetadata, CustomMetadataField, read_custom_metadata
from tiersidecar.ports.metrics.retention import TRIM_REFUSALS
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.store import BytesBody
from tiersidecar.reading.remote_objects import recorded_keys
from tiersidecar.tasks.segment_objects import LayoutSettings


@pytest.fixture
async def blocking() -> AsyncIterator[ThreadBlocking]:
    async with ThreadBlocking(max_threads=4) as threads:
        yield threads


@pytest.fixture
async def shell(tmp_path: Path, blocking: ThreadBlocking) -> TierShell:
    return await opened(tmp_path, blocking)


async def opened(
    directory: Path,
    blocking: ThreadBlocking,
    *,
    partitions: Collection[str] = PARTITIONS,
    layout: LayoutSettings | None = None,
) -> TierShell:
    policy = TopicPolicy(local_retention_bytes=0)
    shell = TierShell(directory, blocking, layout or LayoutSettings(), policy, partitions=partitions)
    await shell.look()
    return shell


async def keys_of(shell: TierShell) -> list[str]:
    return [stored.key async for stored in shell.store.list_objects()]


def states(shell: TierShell) -> list[State]:
    return [event.state for event in shell.metadata.events]  # type: ignore[misc]


@pytest.mark.parametrize(
    "name",
    ["plain-0", "plain-1", "transactions-0", "epochs-0", "retention.deleted_x-0", "compressed-0", "deleted-prefix-0"],
)
async def test_every_sealed_segment_below_the_lso_is_finished_once(
    tmp_path: Path, blocking: ThreadBlocking, name: str
) -> None:
    """S-014, S-015, S-031, S-036: in order, STARTED before FINISHED, three objects each, no hole."""
    shell = await opened(tmp_path, blocking, partitions=[name])
    topic_id_partition = shell.topic_id_partition(name)
    await shell.copy.run(shell.tiered(topic_id_partition))
    finished = in_state(fold(shell.metadata.events), State.COPY_SEGMENT_FINISHED)
    local = shell.table.local.partitions[topic_id_partition]
    stable = shell.broker.last_stable_offsets[topic_id_partition]
    expected = [s for s in local.sealed_segments if (s.next_base_offset or 0) <= stable]
    assert [s.start_offset for s in finished] == [s.base_offset for s in expected]
    assert [s.next_offset for s in finished] == [s.next_base_offset for s in expected]
    assert len(await keys_of(shell)) == 3 * len(finished)
    assert states(shell) == [State.COPY_SEGMENT_STARTED, State.COPY_SEGMENT_FINISHED] * len(finished)


async def in_places(directory: Path, blocking: ThreadBlocking) -> tuple[TierShell, MemoryStore, MemoryStore]:
    """A shell whose topics go to place cold, with both of its stores."""
    clock, ids = ManualClock(), SystemIds()
    hot, cold = MemoryStore(clock=clock, ids=ids), MemoryStore(clock=clock, ids=ids)
    layout = LayoutSettings(
        key_prefix="hot/",
        place_of_topic=lambda topic: "cold",
        place_key_prefixes={"cold": "cold/"},
        custom_metadata_fields=frozenset({CustomMetadataField.OBJECT_PREFIX}),
    )
    store = PlacedStore(hot, {"cold": Place(store=cold, key_prefix="cold/")})
    policy = TopicPolicy(local_retention_bytes=0)
    shell = TierShell(directory, blocking, layout, policy, partitions=["plain-0"], store=store)
    await shell.look()
    return shell, hot, cold


async def test_a_segment_goes_to_the_place_of_its_topic_and_its_metadata_name_it_from_the_first_event(
    tmp_path: Path, blocking: ThreadBlocking
) -> None:
    """S-293, S-295: Kafka carries the bytes; the plugin finds its own fields where they always were."""
    shell, hot, cold = await in_places(tmp_path, blocking)
    await shell.copy.run(shell.tiered(shell.topic_id_partition("plain-0")))
    segments = in_state(fold(shell.metadata.events), State.COPY_SEGMENT_FINISHED)
    assert segments
    events = [event for event in shell.metadata.events if not isinstance(event, RemotePartitionDeleteMetadata)]
    assert {read_custom_metadata(event.custom_metadata) for event in events} == {
        CustomMetadata(place="cold"),
        CustomMetadata(object_prefix="cold/", place="cold"),
    }
    keys = sorted(key for one in segments for key in recorded_keys(one, "hot/").in_upload_order)
    assert [f"@cold/{one.key.removeprefix('cold/')}" async for one in cold.list_objects("cold/")] == keys
    assert [one.key async for one in hot.list_objects()] == []
    for segment in segments:
        assert (await shell.manifests.open(segment)).metadata == segment


async def test_what_a_copy_to_a_place_leaves_half_done_is_found_there(tmp_path: Path, blocking: ThreadBlocking) -> None:
    shell, _, cold = await in_places(tmp_path, blocking)

    async def end_here() -> None:
        raise StoreError(verb="put", key="@cold/x", reason="the process ends")

    shell.failpoints.actions["copy.indexes.stored"] = end_here
    with pytest.raises(StoreError):
        await shell.copy.run(shell.tiered(shell.topic_id_partition("plain-0")))
    (begun,) = fold(shell.metadata.events)
    assert begun.state is State.COPY_SEGMENT_STARTED
    assert len([one async for one in cold.list_objects()]) == 2
    await shell.remover.remove(Removal(metadata=begun, reason="a dead copy"))
    assert [one async for one in cold.list_objects()] == []


async def test_a_second_run_copies_nothing(shell: TierShell) -> None:
    """S-025."""
    tiered = shell.tiered(shell.topic_id_partition("plain-0"))
    await shell.copy.run(tiered)
    events = len(shell.metadata.events)
    await shell.copy.run(tiered)
    assert len(shell.metadata.events) == events


async def test_nothing_at_or_above_the_lso(tmp_path: Path, blocking: ThreadBlocking) -> None:
    """S-022, T-18: an open transaction holds the segment back that it begins in (S-158)."""
    shell = await opened(tmp_path, blocking, partitions=["transactions-0"])
    topic_id_partition = shell.topic_id_partition("transactions-0")
    shell.broker.last_stable_offsets[topic_id_partition] = 211
    await shell.copy.run(shell.tiered(topic_id_partition))
    assert max(s.end_offset for s in fold(shell.metadata.events)) == 179


PLACES = ["copy.started.published", "copy.log.stored", "copy.indexes.stored", "copy.manifest.stored"]


@pytest.mark.parametrize("place", PLACES)
async def test_a_truncation_in_the_middle_of_a_copy_abandons_it(shell: TierShell, place: str) -> None:
    """A pin is not a snapshot."""
    topic_id_partition = shell.topic_id_partition("plain-0")
    log = Path(shell.table.local.partitions[topic_id_partition].segments[0].log_path)

    async def truncate() -> None:
        os.truncate(log, log.stat().st_size - 100)

    shell.failpoints.actions[place] = truncate
    with pytest.raises((SegmentChangedError, StoreError)):
        await shell.copy.run(shell.tiered(topic_id_partition))
    assert states(shell) == [State.COPY_SEGMENT_STARTED]


@pytest.mark.parametrize("place", PLACES)
async def test_a_deposed_leader_does_not_finish(shell: TierShell, place: str) -> None:
    """S-236."""
    topic_id_partition = shell.topic_id_partition("plain-0")

    async def depose() -> None:
        shell.depose(topic_id_partition)

    shell.failpoints.actions[place] = depose
    with pytest.raises(SegmentChangedError, match="changed hands"):
        await shell.copy.run(shell.tiered(topic_id_partition))
    assert states(shell) == [State.COPY_SEGMENT_STARTED]


async def test_a_flipped_bit_never_becomes_an_object(shell: TierShell) -> None:
    """A second attempt reads first, and publishes nothing."""
    topic_id_partition = shell.topic_id_partition("plain-0")
    log = Path(shell.table.local.partitions[topic_id_partition].segments[1].log_path)
    data = bytearray(log.read_bytes())
    data[200] ^= 1
    log.write_bytes(data)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match=r"00000000000000000035\.log"):
            await shell.copy.run(shell.tiered(topic_id_partition))
    assert states(shell) == [State.COPY_SEGMENT_STARTED, State.COPY_SEGMENT_FINISHED, State.COPY_SEGMENT_STARTED]
    assert len(await keys_of(shell)) == 3, "the first segment went before it"


async def test_custom_metadata_over_the_limit_deletes_what_was_copied(tmp_path: Path, blocking: ThreadBlocking) -> None:
    """T-21, S-040, S-296: the deletion bears the custom metadata, nothing is finished, the partition is halted (S-118)."""
    layout = LayoutSettings(
        custom_metadata_fields=frozenset({CustomMetadataField.OBJECT_KEY}), custom_metadata_max_bytes=10
    )
    shell = await opened(tmp_path, blocking, layout=layout)
    with pytest.raises(CustomMetadataTooLargeError, match="limit of 10"):
        await shell.copy.run(shell.tiered(shell.topic_id_partition("plain-0")))
    assert states(shell) == [State.COPY_SEGMENT_STARTED, State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED]
    assert shell.metadata.events[1].custom_metadata  # type: ignore[union-attr]
    assert await keys_of(shell) == []


async def test_while_the_store_is_away_no_copy_is_begun(shell: TierShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-233: hours of outage must not swell the metadata topic by an event per retry (S-195)."""
    tiered = shell.tiered(shell.topic_id_partition("plain-0"))
    await shell.gate.wait_open()

    async def away(*_: object, **__: object) -> None:
        raise StoreError(verb="put", key="k", reason="away")

    with monkeypatch.context() as outage:
        outage.setattr(shell.store, "put_object", away)
        outage.setattr(shell.store, "check_writable", away)
        for _ in range(5):
            with pytest.raises(StoreError):
                await shell.copy.run(tiered)
    assert states(shell) == [State.COPY_SEGMENT_STARTED]
    await shell.copy.run(tiered)
    assert states(shell).count(State.COPY_SEGMENT_FINISHED) == len(
        shell.table.local.partitions[tiered.view.topic_id_partition].sealed_segments
    )


async def test_trim_goes_no_further_than_what_was_read_back(shell: TierShell) -> None:
    """S-048: intended offset published, then DeleteRecords, at a segment boundary."""
    topic_id_partition = shell.topic_id_partition("plain-0")
    tiered = shell.tiered(topic_id_partition)
    await shell.copy.run(tiered)
    await shell.copy.run(tiered)
    await shell.trim.run(tiered)
    active = shell.table.local.partitions[topic_id_partition].segments[-1].base_offset
    assert shell.broker.deleted == [(topic_id_partition, active)]
    assert shell.state.partition_state(topic_id_partition).trim_offset == active


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        pytest.param("another epoch", "corrupt", id="batches of another epoch: outside the batch's CRC"),
        pytest.param("a byte", "corrupt", id="one wrong byte"),
        pytest.param("gone", "missing", id="an object of a finished segment is gone"),
        pytest.param("zeros", "corrupt", id="its leader epochs are zeros, as many as there were bytes"),
    ],
)
async def test_trimming_waits_before_a_segment_whose_remote_copy_cannot_be_proven(
    tmp_path: Path, blocking: ThreadBlocking, damage: str, reason: str
) -> None:
    """Batch epochs and CRCs of the local range equal the remote copy's.  What comes before goes, the lane
    is not halted, so expiry goes on; it is looked at again later, and later still."""
    clock, telemetry = ManualClock(), RecordedTelemetry()
    shell = TierShell(
        tmp_path,
        blocking,
        LayoutSettings(),
        TopicPolicy(local_retention_bytes=0),
        clock=clock,
        telemetry=telemetry,
    )
    await shell.look()
    topic_id_partition = shell.topic_id_partition("plain-0")
    tiered = shell.tiered(topic_id_partition)
    await shell.copy.run(tiered)
    kind = ".indexes" if damage == "zeros" else ".log"
    (key,) = [key for key in await keys_of(shell) if key.endswith(kind) and "00000000000000000035-" in key]
    whole = await shell.store.fetch_object(key, max_bytes=2**30)
    if damage == "gone":
        await shell.store.delete_objects([key])
    elif damage == "zeros":
        await shell.store.put_object(key, BytesBody(bytes(len(whole))))
    else:
        log = bytearray(whole)
        log[12 + 3 if damage == "another epoch" else 700] ^= 1
        await shell.store.put_object(key, BytesBody(bytes(log)))
    for rest_s in (0, 6, 12):
        await clock.advance(rest_s)
        for _ in range(2):  # the second finds it resting
            await shell.trim.run(tiered)
    assert shell.broker.deleted == [(topic_id_partition, 35)]
    assert not shell.trim.may_have_work(tiered)
    assert telemetry.value(TRIM_REFUSALS, topic=topic_id_partition.topic, reason=reason) == 3
    unproven = shell.table.record(topic_id_partition).unproven
    assert unproven is not None
    assert f"before offset 35, whose remote copy is {reason}" in unproven.reason
    if damage != "gone":
        await shell.store.delete_objects([key])
    await shell.store.put_object(key, BytesBody(whole))
    await clock.advance(30)
    assert shell.trim.may_have_work(tiered)
    await shell.trim.run(tiered)
    assert (
        shell.broker.log_starts[topic_id_partition]
        == shell.table.local.partitions[topic_id_partition].segments[-1].base_offset
    )
    assert shell.table.record(topic_id_partition).unproven is None


@pytest.mark.parametrize("place", ["trim.verified", "trim.intended.published"])
async def test_a_metadata_topic_that_loses_data_stops_the_trim(shell: TierShell, place: str) -> None:
    """Rule 1: what it says to be remote may be in no record any more; a read-back takes long enough for that."""
    topic_id_partition = shell.topic_id_partition("plain-0")
    tiered = shell.tiered(topic_id_partition)
    await shell.copy.run(tiered)

    async def lose() -> None:
        shell.guard.reason_not_to_delete = "the topic lost data"

    shell.failpoints.actions[place] = lose
    await shell.trim.run(tiered)
    assert shell.broker.deleted == []


async def test_broker_retention_put_back_stops_the_trim(shell: TierShell) -> None:
    """Settings are looked at right before each trim."""
    topic_id_partition = shell.topic_id_partition("plain-0")
    tiered = shell.tiered(topic_id_partition)
    await shell.copy.run(tiered)

    async def put_back() -> None:
        shell.broker.settings[topic_id_partition.topic] = {"retention.ms": "1000", "retention.bytes": "-1"}

    shell.failpoints.actions["trim.intended.published"] = put_back
    await shell.trim.run(tiered)
    assert shell.broker.deleted == []
    assert "retention.ms is 1000" in shell.table.untrimmable_topics[topic_id_partition.topic]


async def test_what_a_deposed_leader_finished_just_before_our_started_is_not_copied_again(shell: TierShell) -> None:
    """S-043, S-181: read back, STARTED shows all that came before it; seen on real brokers, where the other's FINISHED waited
    in its producer for the metadata topic's next leader."""
    topic_id_partition = shell.topic_id_partition("plain-0")
    first = shell.table.local.partitions[topic_id_partition].segments[0]

    async def finished_by_another() -> None:
        shell.failpoints.actions.clear()
        (ours,) = shell.metadata.events
        assert isinstance(ours, RemoteLogSegmentMetadata)
        theirs = RemoteLogSegmentId(topic_id_partition=topic_id_partition, uuid=Uuid(b"a deposed leader"))
        begun = replace(ours, remote_log_segment_id=theirs, broker_id=BrokerId(2))
        await shell.metadata.publish(begun)
        await shell.metadata.publish(
            RemoteLogSegmentMetadataUpdate(
                remote_log_segment_id=theirs,
                broker_id=BrokerId(2),
                event_timestamp_ms=begun.event_timestamp_ms,
                state=State.COPY_SEGMENT_FINISHED,
            )
        )

    shell.failpoints.actions["copy.started.published"] = finished_by_another
    with pytest.raises(SegmentChangedError, match="a copy of it was finished meanwhile"):
        await shell.copy.run(shell.tiered(topic_id_partition))
    assert await keys_of(shell) == [], "nothing was uploaded for it"
    await shell.copy.run(shell.tiered(topic_id_partition))
    finished = in_state(fold(shell.metadata.events), State.COPY_SEGMENT_FINISHED)
    assert [one.broker_id for one in finished if one.start_offset == first.base_offset] == [2]
    assert len({one.start_offset for one in finished}) == len(finished)


async def test_a_hole_that_two_lanes_fill_at_once_is_copied_once(shell: TierShell) -> None:
    """U12: the recopy lane on request, the copy lane by itself.  Seen beside a real broker: both began, so that the late one
    left a STARTED, which a stop right behind it kept from being cleared away."""
    topic_id_partition = shell.topic_id_partition("plain-0")
    tiered = shell.tiered(topic_id_partition)
    await shell.copy.run(tiered)
    hole = in_state(fold(shell.metadata.events), State.COPY_SEGMENT_FINISHED)[0]
    await shell.remover.remove(Removal(metadata=hole, reason="a hole is wanted"))
    before, lineage = len(shell.metadata.events), await shell.lineages.lineage(topic_id_partition)
    sealed = shell.table.local.partitions[topic_id_partition].sealed_segments
    local = next(one for one in sealed if one.base_offset == hole.start_offset)
    late: list[asyncio.Task[RemoteLogSegmentMetadata]] = []

    async def copy_lane_begins() -> None:
        shell.failpoints.actions.clear()
        late.append(asyncio.create_task(shell.uploader.upload(tiered, local, lineage)))
        await asyncio.sleep(0)

    shell.failpoints.actions["copy.checked"] = copy_lane_begins
    await shell.uploader.upload_again(tiered, local, lineage, always_wanted)
    with pytest.raises(SegmentChangedError, match="a copy of it was finished meanwhile"):
        await late[0]
    begun = [event for event in shell.metadata.events[before:] if isinstance(event, RemoteLogSegmentMetadata)]
    assert [one.start_offset for one in begun] == [hole.start_offset], "one copy was begun"


async def test_a_copy_that_asks_between_two_others_looks_first_whether_it_is_still_wanted(shell: TierShell) -> None:
    """One has just ended, the other has not begun yet: at that moment nobody has the turn."""
    topic_id_partition = shell.topic_id_partition("plain-0")
    tiered, lineage = shell.tiered(topic_id_partition), await shell.lineages.lineage(topic_id_partition)
    first, second, *_ = shell.table.local.partitions[topic_id_partition].sealed_segments
    waiting: list[asyncio.Task[RemoteLogSegmentMetadata]] = []

    async def other_lane_begins() -> None:
        shell.failpoints.actions.clear()
        waiting.append(asyncio.create_task(shell.uploader.upload_again(tiered, second, lineage, always_wanted)))
        await asyncio.sleep(0)

    shell.failpoints.actions["copy.checked"] = other_lane_begins
    await shell.gate.wait_open()
    await shell.uploader.upload(tiered, first, lineage)
    with pytest.raises(SegmentChangedError, match="a copy of it was finished meanwhile"):
        await shell.uploader.upload(tiered, second, lineage)
    assert waiting[0].done()
    begun = [event.start_offset for event in shell.metadata.events if isinstance(event, RemoteLogSegmentMetadata)]
    assert begun == [first.base_offset, second.base_offset], "one copy of each was begun"


async def test_what_an_undelete_brought_back_is_copied_below_what_is_remote(shell: TierShell) -> None:
    """It was given up before it was remote: what lies behind it was copied meanwhile (issue 16, trash)."""
    topic_id_partition = shell.topic_id_partition("plain-0")
    bases = [segment.base_offset for segment in shell.table.local.partitions[topic_id_partition].sealed_segments]
    start = PartitionState(remote_log_start_offset=bases[2], remote_log_start_epoch=LeaderEpoch(0))
    await shell.state.publish_partition_state(topic_id_partition, start)
    await shell.copy.run(shell.tiered(topic_id_partition))
    assert [one.start_offset for one in in_state(fold(shell.metadata.events), State.COPY_SEGMENT_FINISHED)] == bases[2:]
    back = replace(start, remote_log_start_offset=Offset(0), start_generation=1)
    await shell.state.publish_partition_state(topic_id_partition, back)
    await shell.copy.run(shell.tiered(topic_id_partition))
    finished = in_state(fold(shell.metadata.events), State.COPY_SEGMENT_FINISHED)
    assert sorted(one.start_offset for one in finished) == bases


async def test_a_finish_whose_answer_is_lost_is_said_again_and_nobody_takes_the_copy_for_interrupted(
    shell: TierShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-092; seed 295 of ``make faults``: durable, and not read back in time, it was deleted as a leftover and copied again."""
    topic_id_partition, publish = shell.topic_id_partition("plain-0"), shell.metadata.publish
    doubtful = set[RemoteLogSegmentId]()

    async def answer_lost(event: MetadataEvent) -> None:
        segment_id = None if isinstance(event, RemotePartitionDeleteMetadata) else event.remote_log_segment_id
        await publish(event)
        if event.state is State.COPY_SEGMENT_FINISHED and segment_id not in doubtful:
            assert segment_id in shell.in_flight.ids
            doubtful.add(segment_id)
            raise PublishTimeoutError(subject=str(topic_id_partition), waited_ms=1)

    monkeypatch.setattr(shell.metadata, "publish", answer_lost)
    await shell.copy.run(shell.tiered(topic_id_partition))
    finished = in_state(fold(shell.metadata.events), State.COPY_SEGMENT_FINISHED)
    assert {one.remote_log_segment_id for one in finished} == doubtful
    assert len(finished) == len(shell.table.local.partitions[topic_id_partition].sealed_segments)


async def test_a_deposed_leader_does_not_insist_on_its_finish(
    shell: TierShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is durable is for the next leader to find out."""
    topic_id_partition, publish, said = shell.topic_id_partition("plain-0"), shell.metadata.publish, list[State]()
    tiered = shell.tiered(topic_id_partition)

    async def never_answered(event: MetadataEvent) -> None:
        said.append(event.state)  # type: ignore[arg-type]
        if event.state is State.COPY_SEGMENT_FINISHED:
            shell.depose(topic_id_partition)
            raise PublishTimeoutError(subject=str(topic_id_partition), waited_ms=1)
        await publish(event)

    monkeypatch.setattr(shell.metadata, "publish", never_answered)
    with pytest.raises(PublishTimeoutError):
        await shell.copy.run(tiered)
    assert said == [State.COPY_SEGMENT_STARTED, State.COPY_SEGMENT_FINISHED]
    assert not shell.in_flight.ids


async def test_a_process_that_stood_still_before_its_delete_records_trims_nobody_elses_log(shell: TierShell) -> None:
    """DeleteRecords carries no epoch: frozen between its last look and the request, the process wakes up
    when another leads, whose history may be another one."""
    topic_id_partition = shell.topic_id_partition("plain-0")
    tiered = shell.tiered(topic_id_partition)
    await shell.copy.run(tiered)

    async def elected_meanwhile() -> None:
        shell.broker.leader_epochs[topic_id_partition] = tiered.view.leader_epoch + 1

    shell.failpoints.actions["trim.allowed"] = elected_meanwhile
    with pytest.raises(BrokerRefusedError, match="FENCED_LEADER_EPOCH"):
        await shell.trim.run(tiered)
    assert shell.broker.deleted == []


async def test_a_partition_is_in_the_state_topic_before_anything_of_it_is_remote(shell: TierShell) -> None:
    """S-183; found by make chaos: a topic deleted before its first expiry left its remote data behind for ever."""
    topic_id_partition = shell.topic_id_partition("plain-0")
    known: list[bool] = []

    async def look() -> None:
        known.append(topic_id_partition in shell.state.partitions())

    shell.failpoints.actions["copy.checked"] = look
    assert shell.state.partitions() == ()
    await shell.copy.run(shell.tiered(topic_id_partition))
    assert known
    assert all(known)


class KmsDown:
    """``KeyWrapping`` of a service that gives no key, or, if it ``wraps``, none that it opens again."""

    def __init__(self, error: TiersidecarError, *, wraps: bool = False) -> None:
        self.error, self.wraps, self.asked = error, wraps, 0

    def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
        self.asked += 1
        if self.wraps:
            return WrappedKey("k", b"ciphertext")
        raise self.error

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        raise self.error


@pytest.mark.parametrize(
    ("error", "wraps"),
    [
        pytest.param(KeyServiceError(service="KMS", verb="wrap", reason="no answer"), False, id="away"),
        pytest.param(KeyRefusedError(verb="wrap", key_id="k", reason="enable the key again"), False, id="refuses"),
        pytest.param(
            KeyRefusedError(verb="unwrap", key_id="k", reason="no right"), True, id="wraps, but opens nothing"
        ),
    ],
)
async def test_without_a_data_key_no_copy_is_begun_and_the_service_is_left_alone(
    tmp_path: Path, blocking: ThreadBlocking, error: TiersidecarError, *, wraps: bool
) -> None:
    """Each attempt published a COPY_SEGMENT_STARTED, which then had to be deleted; and what was copied under a key that nobody
    could open was trimmed locally."""
    down = KmsDown(error, wraps=wraps)
    ring = ServiceKeys("kms", down, keep_s=1, now_s=lambda: 0.0)
    shell = await opened(tmp_path, blocking, partitions=["plain-0"], layout=LayoutSettings(key_ring=ring))
    tiered = shell.tiered(shell.topic_id_partition("plain-0"))
    for _ in range(3):
        with pytest.raises(type(error)):
            await shell.copy.run(tiered)
    assert (states(shell), await keys_of(shell), down.asked) == ([], [], 1)
    assert ring.closed_reason == str(error)
