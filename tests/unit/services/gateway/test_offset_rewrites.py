"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords over both tiers (S-149, T-48, T-49, T-50, T-51, U7, U17)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from tests.support.faulty_store import FaultyStore
from tests.support.gateway_exchange import rewritten
from tests.support.gateway_world import World, open_world
from tests.support.inline_blocking import InlineBlocking
from tests.support.leaders_sidecar import CLUSTER, LeadersSidecar, lease_of
from tests.support.local_batches import local_batches
from tests.support.remote_runs import behind, load_run
from tests.support.scripted import MemoryStateLog
from tests.unit.formats.wire.entities import of_the_future
from tiersidecar.adapters.clock import SystemClock
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.errors import BrokerUnreachableError, PublishTimeoutError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.lease import Lease
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import LeaderView
from tiersidecar.domain.trash import TrashKind
from tiersidecar.formats.kafka.records import read_records
from tiersidecar.formats.wire.messages import read_message, write_message
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.services.gateway import delete_records_rewrite, list_offsets_rewrite
from tiersidecar.services.gateway.delete_records_rewrite import DeleteRecordsRewrite, SecondSteps
from tiersidecar.services.gateway.exchange import Rewrite
from tiersidecar.services.gateway.leader_epoch_rewrite import OffsetForLeaderEpochRewrite, epoch_end
from tiersidecar.services.gateway.list_offsets_rewrite import ListOffsetsRewrite
from tiersidecar.services.gateway.remote_deletes import Proposer

LOCAL_START, HIGH_WATERMARK = 200, 246
LIST_OFFSETS, DELETE_RECORDS, LEADER_EPOCH = 2, 21, 23
RECORDS = [record for batch in local_batches("plain-0") for record in read_records(batch.data)]


class FixedLineage:
    """``LineageSource`` of one history."""

    def __init__(self, *entries: tuple[int, int]) -> None:
        self.known = Lineage.of(entries)

    async def lineage(self, topic_id_partition: TopicIdPartition, *, max_age_s: float = 30.0) -> Lineage:
        return self.known

    async def refresh(self, topic_id_partition: TopicIdPartition) -> Lineage:
        return self.known

    def last(self, topic_id_partition: TopicIdPartition) -> Lineage | None:
        return self.known

    def log_end_offset(self, topic_id_partition: TopicIdPartition) -> Offset:
        return Offset(HIGH_WATERMARK)


def built(schema: Any, values: dict[str, Any]) -> Any:
    values = {"of_the_future": b"new", **values}
    return schema(**{name: value for name, value in values.items() if name in schema.__dataclass_fields__})


def topics(schema: Any, topic: str, row: dict[str, Any]) -> tuple[Any, ...]:
    topic_type = schema.__dataclass_fields__["topics"].type.__args__[0]
    row_type = topic_type.__dataclass_fields__["partitions"].type.__args__[0]
    rows = (built(row_type, {"partition_index": 0, "partition": 0, **row}),)
    return (built(topic_type, {"name": topic, "topic": topic, "partitions": rows}),)


async def row_after(
    world: World,
    rewrite: Rewrite,
    api_key: int,
    version: int,
    asked: dict[str, Any],
    answered: dict[str, Any],
    between: Callable[[World], None] = lambda world: None,
    *,
    waits_s: float = 0,
    meanwhile: Callable[[World], None] = lambda world: None,
    **request: Any,
) -> Any:
    """The one partition's row that the client gets, where ``between`` happens before the broker's answer is read, which is
    ``waits_s`` after the request was sent.  A delete goes in two steps: ``meanwhile`` happens before the second is answered."""
    topic = world.partition.topic
    schema: Any = load_request_schema(api_key, version)
    answer_schema: Any = load_response_schema(api_key, version)
    if request.pop("tagged", False):
        schema, answer_schema = of_the_future(schema), of_the_future(answer_schema)
    common = {"replica_id": -1, "isolation_level": 0, "timeout": timedelta(seconds=30), **request}
    body = write_message(built(schema, {**common, "topics": topics(schema, topic, asked)}))
    answer = {"throttle_time": timedelta(0), "topics": topics(answer_schema, topic, answered)}
    response = write_message(built(answer_schema, answer))
    exchange = world.exchange(api_key, version, body)
    assert version in rewrite.versions()
    prepared = rewrite.prepare(exchange)
    assert prepared is None or api_key == DELETE_RECORDS

    def second(version: int, body: bytes) -> bytes:
        meanwhile(world)
        return response

    world.upstream.answers[DELETE_RECORDS] = second
    between(world)
    await world.clock.advance(waits_s)
    pieces: Sequence[Any] | None = await rewritten(rewrite.rewrite(exchange, memoryview(response)))
    message, _ = read_message(answer_schema, response if pieces is None else b"".join(pieces))
    return message.topics[0].partitions[0]


def list_offsets(world: World, lineages: FixedLineage | None = None, timeout_ms: int = 30_000) -> ListOffsetsRewrite:
    return ListOffsetsRewrite(
        tiers=world.tiers,
        timestamps=world.path.timestamps,
        lineages=lineages or FixedLineage((0, 0)),
        timeout_ms=timeout_ms,
        blocking=InlineBlocking(),
        clock=world.clock,
    )


async def listed(world: World, timestamp: int, local: tuple[int, int], *, version: int = 11, **request: Any) -> Any:
    """The answer to ListOffsets ``timestamp``, where the broker says ``local``: an offset and a timestamp."""
    asked = {"timestamp": timestamp, "current_leader_epoch": -1}
    answered = {
        "error_code": ErrorCode.none,
        "offset": local[0],
        "timestamp": local[1],
        "leader_epoch": LeaderEpoch(0),
    }
    return await row_after(world, list_offsets(world), LIST_OFFSETS, version, asked, answered, **request)


@pytest.mark.parametrize("version", range(1, 12))
async def test_earliest_is_the_remote_log_start(version: int) -> None:
    run = await load_run("plain")
    partition = run.partition("plain-0")
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        row = await listed(world, -2, (LOCAL_START, -1), version=version)
        assert (row.error_code, row.offset, row.timestamp) == (ErrorCode.none, 0, -1)
        run.log_starts.offsets[partition] = 77
        assert (await listed(world, -2, (LOCAL_START, -1), version=version)).offset == 77


async def test_a_log_that_begins_in_pins_has_no_earliest_offset_to_tell() -> None:
    """U7; cluster seed 15: nothing remote was left, the oldest records were pinned, and a client was sent past them."""
    run = await load_run("plain")
    partition = run.partition("plain-0")
    run.log_starts.offsets[partition] = 250  # all that is remote has expired
    async with open_world(run, partition, local=(300, 400)) as world:
        assert (await listed(world, -2, (300, -1))).offset == 300
        world.pending.are_all = True
        assert (await listed(world, -2, (300, -1))).error_code is ErrorCode.leader_not_available
        assert (await listed(world, -2, (250, -1))).offset == 250, "what is below the log start is nobody's"


async def test_what_a_broker_has_forgotten_to_be_deleted_is_told_to_nobody() -> None:
    """It writes its log start down once a minute: after a crash it begins below a user's delete, until the leader's sidecar has
    told it again."""
    run = await load_run("plain")
    partition = run.partition("plain-0")
    run.log_starts.offsets[partition] = 150
    async with open_world(run, partition, local=(0, HIGH_WATERMARK)) as world:
        row = await listed(world, -2, (0, -1))
        assert (row.error_code, row.offset, row.leader_epoch) == (ErrorCode.none, 150, 0)
        first = next(one for one in RECORDS if one.offset >= 150)
        row = await listed(world, first.timestamp_ms, (80, first.timestamp_ms))
        assert (row.offset, row.timestamp) == (first.offset, first.timestamp_ms)
        row = await listed(world, -3, (80, first.timestamp_ms))
        assert row.error_code is ErrorCode.leader_not_available, "the largest of what is left is not known"


async def test_nor_where_all_that_was_remote_has_gone() -> None:
    run = await load_run("plain")
    partition = run.partition("plain-0")
    run.log_starts.offsets[partition] = 250
    async with open_world(run, partition, local=(0, 400)) as world:
        assert (await listed(world, -2, (0, -1))).offset == 250
        row = await listed(world, 1, (80, 1))
        assert row.error_code is ErrorCode.leader_not_available
    async with open_world(run, partition, local=(0, 200)) as world:
        assert (await listed(world, -2, (0, -1))).offset == 200, "no further than the log reaches"


@pytest.mark.parametrize(
    ("timestamp", "local", "expected"),
    [
        pytest.param(-1, 246, 246, id="latest is the broker's"),
        pytest.param(-4, LOCAL_START, LOCAL_START, id="earliest local is the broker's log start"),
        pytest.param(-5, -1, 244, id="latest tiered is the last remote offset"),
        pytest.param(-6, -1, 245, id="earliest pending upload is the one after"),
    ],
)
async def test_specs_are_answered_as_native_tiered_storage_does(timestamp: int, local: int, expected: int) -> None:
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        row = await listed(world, timestamp, (local, -1))
        assert (row.error_code, row.offset, row.leader_epoch) == (ErrorCode.none, expected, 0)


async def test_every_timestamp_finds_the_first_record_of_both_tiers_that_is_not_earlier() -> None:
    """T-48, with the broker's answer for its own part."""
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        stamps = sorted({record.timestamp_ms for record in RECORDS})
        for stamp in (stamps[0] - 1, *stamps, stamps[-1] + 1):
            matching = [one for one in RECORDS if one.timestamp_ms >= stamp]
            local = next((one for one in matching if one.offset >= LOCAL_START), None)
            row = await listed(world, stamp, (-1, -1) if local is None else (local.offset, local.timestamp_ms))
            first = matching[0] if matching else None
            expected = (-1, -1) if first is None else (first.offset, first.timestamp_ms)
            assert (row.offset, row.timestamp) == expected, stamp


async def test_a_broker_whose_first_file_has_such_records_below_its_log_start_alone_hides_no_later_ones() -> None:
    """Kafka looks into no second file (``UnifiedLog.searchOffsetInLocalLog``), and answers that there is none."""
    run = await load_run("plain")
    partition = run.partition("plain-0")
    start = max(one.start_offset for one in run.metadata.list_remote_log_segments(partition))
    first = next(one for one in RECORDS if one.offset == start)
    run.log_starts.offsets[partition] = start
    async with open_world(run, partition, local=(start, HIGH_WATERMARK)) as world:
        row = await listed(world, first.timestamp_ms, (-1, -1))
        assert (row.error_code, row.offset, row.timestamp) == (ErrorCode.none, first.offset, first.timestamp_ms)


@pytest.mark.parametrize("isolation_level", [0, 1], ids=["read_uncommitted", "read_committed"])
async def test_a_record_past_the_end_that_the_leader_gives_is_told_to_nobody(isolation_level: int) -> None:
    """An unclean election is not known here for a moment; Kafka compares remote answers with that end, too
    (``DelayedRemoteListOffsets``)."""
    run = await load_run("plain")
    partition = run.partition("plain-0")
    last = max(run.metadata.list_remote_log_segments(partition), key=lambda one: one.start_offset)
    start = Offset(last.start_offset - 1)
    stamp = min(one.timestamp_ms for one in RECORDS if one.offset == last.start_offset)
    assert all(one.timestamp_ms < stamp for one in RECORDS if one.offset < last.start_offset)
    async with open_world(run, partition, local=(start, last.start_offset)) as world:
        row = await listed(world, stamp, (-1, -1), isolation_level=isolation_level)
        assert (row.error_code, row.offset, row.timestamp) == (ErrorCode.none, -1, -1)


async def test_a_broker_that_has_the_whole_log_is_believed_that_there_is_none() -> None:
    """No file of it is below its log start.  Its cleaner may have removed what is remote still: a compacted topic is not
    trimmed."""
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(0, HIGH_WATERMARK)) as world:
        row = await listed(world, RECORDS[0].timestamp_ms, (-1, -1))
        assert (row.error_code, row.offset, row.timestamp) == (ErrorCode.none, -1, -1)


async def test_the_largest_timestamp_is_that_of_both_tiers() -> None:
    """U17: natively the remote tier is left out."""
    run = await load_run("plain")
    remote = [one for one in RECORDS if one.offset < LOCAL_START]
    largest = max(one.timestamp_ms for one in remote)
    first = next(one.offset for one in remote if one.timestamp_ms == largest)
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        earlier = await listed(world, -3, (230, largest - 1))
        assert earlier.timestamp >= largest
        later = await listed(world, -3, (230, largest + 10**9))
        assert (later.offset, later.timestamp) == (230, largest + 10**9)
        uncommitted = await listed(world, -3, (-1, -1))
        assert (uncommitted.offset, uncommitted.timestamp) == (-1, -1), (
            "the largest may be one that is committed, or not yet"
        )
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, LOCAL_START)) as world:
        nothing_local = await listed(world, -3, (-1, -1))
        assert nothing_local.timestamp >= largest
        assert nothing_local.offset <= first or nothing_local.timestamp > largest


@pytest.mark.parametrize("timestamp", [RECORDS[-1].timestamp_ms + 1, -3])
async def test_what_lies_between_the_tiers_is_not_passed_over(timestamp: int) -> None:
    """U7; simulation, cluster seeds 0 and 4: what the broker had deleted was not remote yet, and a client was sent past it."""
    run = await load_run("plain")
    partition = run.partition("plain-0")
    local = (300, RECORDS[-1].timestamp_ms + 100)
    async with open_world(run, partition, local=(300, 400)) as world:
        assert (await listed(world, timestamp, local)).error_code is ErrorCode.leader_not_available
        assert (await listed(world, RECORDS[0].timestamp_ms, local)).offset == 0, "what is remote comes first"
    run.log_starts.offsets[partition] = 300  # all that is remote has expired, and what came after it was deleted
    async with open_world(run, partition, local=(300, 400)) as world:
        assert (await listed(world, timestamp, local)).offset == 300
    run.log_starts.offsets[partition] = 250
    async with open_world(run, partition, local=(300, 400)) as world:
        assert (await listed(world, timestamp, local)).offset == 300, "nothing is remote, and nothing is to become so"
        world.pending.are_all = True
        assert (await listed(world, timestamp, local)).error_code is ErrorCode.leader_not_available


@pytest.mark.parametrize("is_reachable", [True, False])
@pytest.mark.parametrize("timestamp", [-2, -3, RECORDS[0].timestamp_ms])
async def test_what_metadata_that_are_behind_do_not_know_is_not_passed_over(timestamp: int, is_reachable: bool) -> None:
    run = await load_run("plain")
    partition = run.partition("plain-0")
    late = await behind(run, is_reachable=is_reachable)
    async with open_world(late, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        local = (LOCAL_START, -1 if timestamp == -2 else RECORDS[-1].timestamp_ms + 100)
        assert (await listed(world, timestamp, local)).error_code is ErrorCode.leader_not_available
        if is_reachable and timestamp != -3:
            assert (await listed(world, timestamp, local)).offset == 0


async def test_while_nothing_is_known_the_broker_s_answer_is_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """U7: its earliest would make a consumer skip what is remote."""
    monkeypatch.setattr(list_offsets_rewrite, "_NEW_WAIT_S", 0.0)
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        world.tiered.is_ready = False
        row = await listed(world, -2, (LOCAL_START, -1))
        assert (row.error_code, row.offset) == (ErrorCode.leader_not_available, -1)
        assert (await listed(world, -1, (246, -1))).offset == 246, "the end is not in question"


async def test_a_lookup_that_takes_too_long_is_timed_out() -> None:
    """S-214, and version 10's own limit, of which 0 is none."""
    run = await load_run("plain")
    store = FaultyStore(run.store)
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK), store=store) as world:
        store.gate.clear()
        row = await listed(world, 5, (-1, -1), timeout=timedelta(milliseconds=1))
        assert (row.error_code, row.offset) == (ErrorCode.request_timed_out, -1)
        store.gate.set()
        assert (await listed(world, 5, (-1, -1), timeout=timedelta(0))).offset == 0


@pytest.mark.parametrize("timestamp", [5, -3])
async def test_a_leader_that_is_too_new_to_tell_its_offsets_is_asked_again(timestamp: int) -> None:
    """KIP-207: it may have answered the client's question, and not the gateway's behind it.  librdkafka's ``offsetsForTimes``
    hands the error to its users, who would take REQUEST_TIMED_OUT for one that has waited as long as it may."""
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        world.broker.error = "OFFSET_NOT_AVAILABLE"
        row = await listed(world, timestamp, (LOCAL_START, RECORDS[-1].timestamp_ms + 100))
        assert (row.error_code, row.offset) == (ErrorCode.leader_not_available, -1)
        world.broker.error = None
        assert (await listed(world, timestamp, (LOCAL_START, RECORDS[-1].timestamp_ms + 100))).offset >= 0


async def test_errors_of_the_broker_followers_and_untiered_topics_are_left_alone() -> None:
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        denied = {
            "error_code": ErrorCode.topic_authorization_failed,
            "offset": -1,
            "timestamp": -1,
            "leader_epoch": -1,
        }
        asked = {"timestamp": -2, "current_leader_epoch": -1}
        row = await row_after(world, list_offsets(world), LIST_OFFSETS, 9, asked, denied)
        assert row.error_code is ErrorCode.topic_authorization_failed
        assert (await listed(world, -2, (LOCAL_START, -1), replica_id=2)).offset == LOCAL_START
        world.tiered.known = []
        assert (await listed(world, -2, (LOCAL_START, -1))).offset == LOCAL_START


# -- OffsetForLeaderEpoch

HISTORY = ((0, 0), (2, 40), (5, 100), (6, 210))


@pytest.mark.parametrize(
    ("leader_epoch", "expected"),
    [(0, (0, 40)), (1, (0, 40)), (2, (2, 100)), (4, (2, 100)), (5, (5, 210)), (6, None), (9, None)],
)
def test_the_end_of_an_epoch_is_the_start_of_the_next(leader_epoch: int, expected: tuple[int, int] | None) -> None:
    assert epoch_end(Lineage.of(HISTORY), leader_epoch) == expected


def leader_epochs(world: World, lineages: FixedLineage) -> OffsetForLeaderEpochRewrite:
    return OffsetForLeaderEpochRewrite(
        tiers=world.tiers,
        lineages=lineages,
        blocking=InlineBlocking(),
        clock=world.clock,
    )


async def test_an_end_that_only_the_broker_s_log_start_tells_is_not_told() -> None:
    """KIP-320; simulation, cluster seed 59: of what lies between the tiers a gateway beside the role tier does not know the
    epochs, and a client that had more of one than is true would not have noticed."""
    run = await load_run("plain")
    answered = {"error_code": ErrorCode.none, "leader_epoch": 0, "end_offset": 300}
    asked = {"leader_epoch": 0, "current_leader_epoch": -1}
    async with open_world(run, run.partition("plain-0"), local=(300, 400)) as world:
        raised = leader_epochs(world, FixedLineage((0, 0), (3, 300)))
        row = await row_after(world, raised, LEADER_EPOCH, 4, asked, answered)
        assert (row.error_code, row.end_offset) == (ErrorCode.not_leader_or_follower, -1)
        local = leader_epochs(world, FixedLineage((0, 0), (3, 320)))
        row = await row_after(world, local, LEADER_EPOCH, 4, asked, answered)
        assert (row.error_code, row.leader_epoch, row.end_offset) == (ErrorCode.none, 0, 320)
        run.log_starts.offsets[world.partition] = 300
        row = await row_after(world, raised, LEADER_EPOCH, 4, asked, answered)
        assert row.end_offset == 300, "nobody may read what is below"


@pytest.mark.parametrize("version", range(2, 5))
async def test_epochs_that_the_broker_has_forgotten_end_where_they_did(version: int) -> None:
    """It answers with its own log start, 200, for all of them."""
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        rewrite = leader_epochs(world, FixedLineage(*HISTORY))
        for asked, broker, expected in ((2, (2, 200), (2, 100)), (6, (6, 246), (6, 246))):
            row = await row_after(
                world,
                rewrite,
                LEADER_EPOCH,
                version,
                {"leader_epoch": asked, "current_leader_epoch": -1},
                {"error_code": ErrorCode.none, "leader_epoch": broker[0], "end_offset": broker[1]},
            )
            assert (row.leader_epoch, row.end_offset) == expected


# -- DeleteRecords


async def deleted(
    world: World,
    offset: int,
    answered: dict[str, Any],
    *,
    version: int = 2,
    lease: Lease | None = None,
    **request: Any,
) -> Any:
    view = LeaderView(
        topic_id_partition=world.partition,
        leader_id=BrokerId(1),
        leader_epoch=LeaderEpoch(4),
        replicas=(BrokerId(1),),
        in_sync_replicas=(BrokerId(1),),
    )
    world.broker.views, world.tiered.leader_epoch = (view,), view.leader_epoch
    delays = TrashDelays(retention_ms=2_000, user_ms=1_000)
    sidecar = LeadersSidecar(broker=world.broker, state=world.state, clock=SystemClock(), delays=delays)
    sidecar.tiers(view)
    if lease is not None:
        world.state.leases["1"] = replace(lease, renewed_ms=SystemClock().now_ms())
    rewrite = DeleteRecordsRewrite(
        second_steps=SecondSteps(),
        tiers=world.tiers,
        state=world.state,
        proposer=Proposer(cluster_id=CLUSTER, broker_id=BrokerId(1), proposals=sidecar),
        broker=world.broker,
        blocking=InlineBlocking(),
        clock=SystemClock(),
    )
    return await row_after(world, rewrite, DELETE_RECORDS, version, {"offset": offset}, answered, **request)


@pytest.mark.parametrize("version", range(3))
async def test_below_the_local_start_the_remote_log_start_moves_and_no_trim_is_claimed(version: int) -> None:
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        row = await deleted(world, 50, {"low_watermark": LOCAL_START, "error_code": ErrorCode.none}, version=version)
        assert (row.low_watermark, row.error_code) == (50, ErrorCode.none)
        (entry,) = world.state.trash(world.partition)
        assert world.state.partition_state(world.partition) == PartitionState().with_delete(
            Offset(50), LeaderEpoch(4), entry.id.opened_ms
        )
        assert (entry.kind, entry.up_to, entry.id.leader_epoch) == (TrashKind.USER, 50, 4)
        assert entry.due_ms - entry.decided_ms == 1_000


async def test_at_or_above_the_local_start_both_move() -> None:
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(220, HIGH_WATERMARK)) as world:
        row = await deleted(world, 220, {"low_watermark": 220, "error_code": ErrorCode.none})
        assert row.low_watermark == 220
        (entry,) = world.state.trash(world.partition)
        said = PartitionState().with_delete(Offset(220), LeaderEpoch(4), entry.id.opened_ms)
        trim = PartitionState(trim_offset=Offset(220), trim_epoch=LeaderEpoch(4))
        assert world.state.partition_state(world.partition) == said.merged_with(trim)


async def test_what_not_all_followers_had_in_time_is_accepted_all_the_same() -> None:
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(220, HIGH_WATERMARK)) as world:
        row = await deleted(world, 220, {"low_watermark": 200, "error_code": ErrorCode.request_timed_out})
        assert row.error_code is ErrorCode.request_timed_out
        assert world.state.partition_state(world.partition).remote_log_start_offset == 220


@pytest.mark.parametrize("error", [ErrorCode.topic_authorization_failed, ErrorCode.policy_violation])
async def test_what_the_broker_refuses_changes_nothing(error: ErrorCode) -> None:
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        row = await deleted(world, 50, {"low_watermark": -1, "error_code": error})
        assert (row.low_watermark, row.error_code) == (-1, error)
        assert not world.state.partition_states


async def test_a_delete_below_what_was_deleted_already_tells_what_is_left() -> None:
    run = await load_run("plain")
    partition = run.partition("plain-0")
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        run.log_starts.offsets[partition] = 90
        await deleted(world, 90, {"low_watermark": LOCAL_START, "error_code": ErrorCode.none})
        row = await deleted(world, 50, {"low_watermark": LOCAL_START, "error_code": ErrorCode.none})
        assert row.low_watermark == 90


@pytest.mark.parametrize(
    ("lease", "error"),
    [
        pytest.param(lease_of(1, decides_proposals=False), ErrorCode.unsupported_version, id="of a former release"),
        pytest.param(replace(lease_of(1), released=True), ErrorCode.request_timed_out, id="away"),
    ],
)
async def test_what_nobody_would_carry_out_is_not_proposed_and_not_told_as_done(lease: Lease, error: ErrorCode) -> None:
    """Rolling upgrade: the leader's sidecar says in its lease what it decides."""
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        row = await deleted(world, 50, {"low_watermark": LOCAL_START, "error_code": ErrorCode.none}, lease=lease)
        assert (row.low_watermark, row.error_code) == (-1, error)
        assert not world.state.partition_states


async def test_what_is_said_already_needs_nobody_to_decide() -> None:
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        said = PartitionState().with_delete(Offset(50), LeaderEpoch(4), 0)
        await world.state.publish_partition_state(world.partition, said)
        lease = lease_of(1, decides_proposals=False)
        row = await deleted(world, 50, {"low_watermark": LOCAL_START, "error_code": ErrorCode.none}, lease=lease)
        assert (row.low_watermark, row.error_code) == (50, ErrorCode.none)


BACK = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(4), start_generation=1)
"""An operator has set the start back."""


async def test_what_was_undone_unseen_is_said_again_and_not_told_as_said() -> None:
    """The gateway's look at the state topic lags: it knows the delete, and not yet that it was undone."""
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        await deleted(world, 50, {"low_watermark": LOCAL_START, "error_code": ErrorCode.none})
        world.state.publish_elsewhere(world.partition, BACK)
        answered = {"low_watermark": LOCAL_START, "error_code": ErrorCode.none}
        row = await deleted(world, 50, answered)
        assert row.error_code is ErrorCode.request_timed_out, (
            "undone between its request and its answer, for all we know"
        )
        row = await deleted(world, 50, answered)
        await world.state.catch_up()
        assert row.error_code is ErrorCode.none
        state = world.state.partition_state(world.partition)
        assert (state.remote_log_start_offset, state.start_generation) == (50, 1)


class CutOff(MemoryStateLog):
    """What was read stands, and counts as ready; what is new is out of reach."""

    async def catch_up(self) -> None:
        raise BrokerUnreachableError(address="127.0.0.1:9092", reason="refused")


async def test_a_gateway_that_is_cut_off_from_the_state_topic_tells_nothing_as_said() -> None:
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        world.state = CutOff()
        said = PartitionState().with_delete(Offset(50), LeaderEpoch(4), 0)
        await world.state.publish_partition_state(world.partition, said)
        row = await deleted(world, 50, {"low_watermark": LOCAL_START, "error_code": ErrorCode.none})
        assert (row.low_watermark, row.error_code) == (-1, ErrorCode.request_timed_out)


class Deaf(MemoryStateLog):
    async def publish_partition_state(self, topic_id_partition: TopicIdPartition, state: PartitionState) -> None:
        raise PublishTimeoutError(subject=str(topic_id_partition), waited_ms=5)


async def test_a_start_said_in_an_earlier_epoch_spares_no_delete() -> None:
    """After an unclean election that start may be of records that are gone: ours would be forgotten with it."""
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        before = PartitionState(remote_log_start_offset=Offset(90), remote_log_start_epoch=LeaderEpoch(3))
        await world.state.publish_partition_state(world.partition, before)
        await deleted(world, 50, {"low_watermark": LOCAL_START, "error_code": ErrorCode.none})
        state = world.state.partition_state(world.partition)
        assert (state.remote_log_start_offset, state.remote_log_start_epoch) == (50, 4)
        assert [(start.offset, start.leader_epoch) for start in state.earlier_starts] == [(90, 3)]


async def test_a_delete_that_a_deposed_leader_accepted_is_not_said_in_the_new_ones_epoch() -> None:
    """An unclean election in between: the new log ends below it, and what is written there next was not meant."""
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        row = await deleted(world, HIGH_WATERMARK + 1, {"low_watermark": LOCAL_START, "error_code": ErrorCode.none})
        assert (row.low_watermark, row.error_code) == (-1, ErrorCode.request_timed_out)
        assert not world.state.partition_states


async def test_a_delete_that_cannot_be_published_is_not_told_as_done(monkeypatch: pytest.MonkeyPatch) -> None:
    for wait in ("_LEAST_WAIT_S", "_MOST_WAIT_S"):
        monkeypatch.setattr(delete_records_rewrite, wait, 0.2)
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        world.state = Deaf()
        row = await deleted(world, 50, {"low_watermark": LOCAL_START, "error_code": ErrorCode.none})
        assert (row.low_watermark, row.error_code) == (-1, ErrorCode.request_timed_out)


async def test_tagged_fields_of_the_future_are_no_reason_to_close_a_connection() -> None:
    """Kafka adds them without a new version (KIP-482); where a row changes, those of the message are left out."""
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(LOCAL_START, HIGH_WATERMARK)) as world:
        assert (await listed(world, -2, (LOCAL_START, -1), tagged=True)).offset == 0
        assert (await listed(world, -1, (HIGH_WATERMARK, -1), tagged=True)).of_the_future == b"new", (
            "the broker's own passes"
        )
        rewrite = leader_epochs(world, FixedLineage(*HISTORY))
        asked = {"leader_epoch": 2, "current_leader_epoch": -1}
        answered = {"error_code": ErrorCode.none, "leader_epoch": 2, "end_offset": 200}
        row = await row_after(world, rewrite, LEADER_EPOCH, 4, asked, answered, tagged=True)
        assert (row.leader_epoch, row.end_offset) == (2, 100)
        row = await deleted(world, 50, {"low_watermark": LOCAL_START, "error_code": ErrorCode.none}, tagged=True)
        assert row.low_watermark == 50
