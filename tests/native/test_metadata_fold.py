"""The native core folds remote log metadata as Python does: the same caches, and the same errors with their text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.native.test_walks import on_both
from tests.support.golden import GOLDEN
from tests.support.metadata_events import DELETED, DELETING, FINISHED, STARTED, added, updated
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.unit.adapters.metadata_topic.replicas import FACTS, FakeRecord, Topic, owner
from tests.unit.formats.metadata.events import added_segments, events, updates
from tiersidecar.adapters.metadata_topic.held import HeldPartition, partition_key
from tiersidecar.adapters.metadata_topic.partition_replica import PartitionReplica, Record
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from tiersidecar.domain.states import RemotePartitionDeleteState
from tiersidecar.formats import native
from tiersidecar.formats.metadata.serde import read_event, write_event

SEEDS = 1500
KEPT, OTHERS = range(3), range(3, 5)
SEGMENTS = 12
STATES = (STARTED, FINISHED, FINISHED, FINISHED, DELETING, DELETING, DELETED, DELETED)
CUSTOM = (None, None, None, b"", b"\x01", b"c" * 126, b"c" * 127, b"c" * 200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Records of a metadata partition, and how they come."""

    records: Sequence[FakeRecord]
    batches: Sequence[int] = ()
    is_loaded: bool = False
    is_compared: bool = False
    looks: bool = False
    applied_to: int = -1
    logs: bool = True


def contents(cache: RemoteLogMetadataCache) -> dict[str, Any]:
    """All that a cache is made of."""
    rows = cache._rows
    return {
        "data": bytes(rows._data),
        "custom": list(rows._custom),
        "numbers": list(rows._number_of.items()),
        "free": list(rows._free),
        "size": rows.size_bytes,
        "pending": sorted(cache._pending),
        "epochs": [
            (epoch, list(one.starts), list(one.ends), list(one.rows), one.highest_offset, one.superseded, one._runs)
            for epoch, one in cache._epochs.items()
        ],
        "maps": list(cache._maps),
        "maps by epochs": list(cache._maps_by_epochs.items()),
        "mark": cache._mark,
        "is loaded": cache.is_loaded,
        "delete state": cache.delete_state,
    }


def folded(story: Story) -> object:
    """All that is left behind by the fold of ``story``, and all that was said meanwhile."""
    telemetry = RecordedTelemetry()
    replica = PartitionReplica(topic="metadata", number=7, telemetry=telemetry)
    holders = {partition_key(owner(number)): HeldPartition(owner(number)) for number in KEPT}
    for held in holders.values():
        if story.is_loaded:
            held.cache.mark_loaded()
        if story.is_compared:
            held.begin_again()
        held.is_dirty, held.applied_to = False, story.applied_to
    seen: list[object] = []
    with capture_logs() as logs:
        for batch in cut(story.records, story.batches):
            if story.looks:
                seen += [(held.cache.mark, held.cache.finished_runs(0), held.is_dirty) for held in holders.values()]
            replica._fold(holders, batch, logs=story.logs)
    return {
        "held": [(held.applied_to, held.is_dirty, held._deleted, contents(held.cache)) for held in holders.values()],
        "segments": [list(held.cache.list_remote_log_segments()) for held in holders.values()],
        "seen": seen,
        "changes": replica.changes,
        "counts": telemetry.values,
        "logs": logs,
        "fates": [(offset, type(error), str(error)) for offset, error in replica.read_back._fates.items()],
    }


def cut(records: Sequence[FakeRecord], sizes: Iterable[int]) -> list[list[Record]]:
    batches: list[list[Record]] = []
    at = 0
    for size in sizes:
        batches.append(list(records[at : at + size]))
        at += size
    return [*batches, list(records[at:])]


def some_event(lots: Random) -> MetadataEvent:
    of = owner(lots.choice([*KEPT, *KEPT, *OTHERS]))
    number = lots.randrange(SEGMENTS)
    kind = lots.random()
    if kind < 0.01:
        return RemotePartitionDeleteMetadata(
            topic_id_partition=of,
            broker_id=updated(1, FINISHED).broker_id,
            event_timestamp_ms=5,
            state=lots.choice(list(RemotePartitionDeleteState)),
        )
    if kind < 0.4:
        start = lots.choice([number * 10, lots.randrange(100)])
        end = start + lots.choice([0, 9, 9, 25])
        border = start + lots.randrange(1, 12)
        epochs = {lots.randrange(2): start} | ({2: border} if lots.random() < 0.3 else {})
        if lots.random() < 0.05:  # out of order, by a foreign writer
            epochs = {0: lots.randrange(100), 1: lots.randrange(100), 3: lots.randrange(100)}
        event = added(
            number,
            start,
            end,
            epochs,
            owner=of,
            state=lots.choice([STARTED] * 9 + [FINISHED]),
            broker=lots.randrange(-1, 3),
            size=lots.choice([0, 1000, -1, 2**31 - 1]),
            txn_index_empty=lots.random() < 0.5,
        )
        return replace(event, custom_metadata=lots.choice(CUSTOM))
    return updated(number, lots.choice(STATES), owner=of, broker=lots.randrange(3), custom=lots.choice(CUSTOM))


def life(lots: Random, number: int, of: TopicIdPartition) -> list[MetadataEvent]:
    """What a segment goes through, as far as it comes."""
    start = number * 10
    steps: list[MetadataEvent] = [added(number, start, start + 9, {number // 5: start}, owner=of)]
    steps += [updated(number, state, owner=of, custom=lots.choice(CUSTOM)) for state in (FINISHED, DELETING, DELETED)]
    return steps[: lots.choice([1, 2, 2, 2, 4])]


def some_value(lots: Random, event: MetadataEvent) -> bytes | None:
    """The event's bytes, sometimes not as we write them."""
    value = write_event(event, knows_txn_index_empty=lots.random() < 0.8)
    chance = lots.random()
    if chance < 0.9:
        return value
    if chance < 0.92:
        return value[: lots.randrange(len(value))]
    if chance < 0.94:
        return value + bytes([lots.randrange(256)])
    if chance < 0.96:  # a tag that nobody knows
        return value[:-1] + bytes([1, 9, 2, 7, 7]) if value[-1] == 0 else value
    if chance < 0.97:
        return lots.choice([None, b"", lots.randbytes(40)])
    at = lots.randrange(len(value))
    return value[:at] + bytes([value[at] ^ 1 << lots.randrange(8)]) + value[at + 1 :]


def some_story(lots: Random) -> Story:
    if lots.random() < 0.4:
        lives = [life(lots, number, owner(lots.choice(KEPT))) for number in range(lots.randrange(1, 25))]
        told = []
        while lives:  # copies overlap
            one = lots.choice(lives[:3])
            told.append(one.pop(0))
            lives = [one for one in lives if one]
    else:
        told = [some_event(lots) for _ in range(lots.randrange(1, 80))]
    offsets, offset = [], 0
    for _ in told:
        offset = max(0, offset + lots.choice([1, 1, 1, 1, 2, 0, -3]))
        offsets.append(offset)
    return Story(
        records=[FakeRecord(offset, some_value(lots, event)) for offset, event in zip(offsets, told, strict=True)],
        batches=[lots.randrange(30) for _ in range(lots.choice([0, 0, 2, 6]))],
        is_loaded=lots.random() < 0.5,
        is_compared=lots.random() < 0.3,
        looks=lots.random() < 0.3,
        applied_to=lots.choice([-1, -1, 10]),
        logs=lots.random() < 0.8,
    )


def test_stories_of_all_kinds() -> None:
    for seed in range(SEEDS):
        on_both(partial(folded, some_story(Random(seed))), seed)


def test_what_kafka_wrote() -> None:
    for path in (GOLDEN / "remote-log-metadata").glob("*.jsonl"):
        values = [bytes.fromhex(json.loads(line)["value"]) for line in path.read_text(encoding="utf-8").splitlines()]
        on_both(partial(_folded_into_its_owners, values))


def _folded_into_its_owners(values: Sequence[bytes]) -> object:
    replica = PartitionReplica(topic="metadata", number=0, telemetry=RecordedTelemetry())
    owners = {_owner_of(read_event(value, where="")) for value in values}
    holders = {partition_key(one): HeldPartition(one) for one in sorted(owners)}
    replica._fold(holders, [FakeRecord(at, value) for at, value in enumerate(values)], logs=True)
    return [(held.applied_to, contents(held.cache)) for held in holders.values()]


def _owner_of(event: MetadataEvent) -> TopicIdPartition:
    if isinstance(event, RemotePartitionDeleteMetadata):
        return event.topic_id_partition
    return event.remote_log_segment_id.topic_id_partition


@given(value=st.binary(max_size=200) | st.binary(max_size=200).map(lambda rest: b"\x01\x00\x00\x07orders" + rest))
def test_any_bytes(value: bytes) -> None:
    on_both(partial(folded, Story(records=[FakeRecord(0, value)])))


@given(event=events, knows=st.booleans(), position=st.integers(0, 800), mask=st.integers(0, 255))
def test_any_event_with_any_byte_changed(event: MetadataEvent, knows: bool, position: int, mask: int) -> None:
    value = bytearray(write_event(event, knows_txn_index_empty=knows))
    value[position % len(value)] ^= mask
    on_both(partial(_folded_alone, bytes(value), _owner_of(event)))


@given(metadata=added_segments(), update=updates, knows=st.booleans())
def test_any_segment_and_an_update_of_it(
    metadata: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate, knows: bool
) -> None:
    update = replace(update, remote_log_segment_id=metadata.remote_log_segment_id)
    metadata = replace(metadata, state=STARTED)
    values = [write_event(event, knows_txn_index_empty=knows) for event in (metadata, update)]
    on_both(partial(_folded_into_its_owners_or_error, values))


def _folded_into_its_owners_or_error(values: Sequence[bytes]) -> object:
    try:
        return _folded_into_its_owners(values)
    except OverflowError as error:  # epochs that begin beyond all offsets: the arrays cannot hold where they end
        return type(error)


def _folded_alone(value: bytes, kept: TopicIdPartition) -> object:
    telemetry = RecordedTelemetry()
    replica = PartitionReplica(topic="metadata", number=0, telemetry=telemetry)
    held = HeldPartition(kept)
    with capture_logs() as logs:
        replica._fold({partition_key(kept): held}, [FakeRecord(0, value)], logs=True)
    return held.applied_to, held.is_dirty, contents(held.cache), telemetry.values, logs


def test_a_flipped_bit_anywhere_gives_the_same_error() -> None:
    told: list[MetadataEvent] = [
        replace(added(1, 0, 9, {0: 0, 1: 5}), custom_metadata=b"c" * 130),
        added(2, 10, 19),
        updated(1, FINISHED, custom=b"c" * 130),
        updated(2, FINISHED, custom=b"c"),
        updated(3, STARTED),
    ]
    values = [write_event(event, knows_txn_index_empty=True) for event in told]
    for at, value in enumerate(values):
        for bit in range(len(value) * 8):
            flipped = bytearray(value)
            flipped[bit // 8] ^= 1 << bit % 8
            damaged = [*values[:at], bytes(flipped), *values[at + 1 :]]
            on_both(partial(folded, Story(records=[FakeRecord(*one) for one in enumerate(damaged)])), bit)


@pytest.mark.parametrize("length", [1, 63, 126, 127, 249])
@pytest.mark.parametrize("custom", CUSTOM)
def test_names_of_any_length_and_damaged_ones(length: int, custom: bytes | None) -> None:
    of = replace(owner(0), topic="n" * length)
    told: list[MetadataEvent] = [
        replace(added(1, 0, 9, {0: 0}, owner=of), custom_metadata=custom),
        added(2, 10, 19, {0: 10, 1: 12}, owner=of),
        updated(1, FINISHED, owner=of, custom=custom),
    ]
    values = [write_event(event, knows_txn_index_empty=True) for event in told]
    for at in range(3, 8):
        for byte in (0, 1, 0x7F, 0x80, 0xFF):
            damaged = [value[:at] + bytes([byte]) + value[at + 1 :] for value in values]
            on_both(partial(folded, Story(records=[FakeRecord(*one) for one in enumerate(values + damaged)])))


def test_native_code_takes_all_that_a_partition_goes_through() -> None:
    lots = Random(1)
    told = [event for number in range(200) for event in life(lots, number, owner(number % 3))]
    records = [FakeRecord(at, write_event(event, knows_txn_index_empty=True)) for at, event in enumerate(told)]
    holders = {partition_key(owner(number)): HeldPartition(owner(number)) for number in KEPT}
    core = native.core.walks
    assert core is not None
    batch = core.read_metadata(records)
    assert batch.fold(holders, 0) == (len(records), len(records), 0)
    assert batch.fold(holders, 0) == (len(records), 0, len(records)), "each counts once"
    assert core.read_metadata(records).fold({}, 0) == (len(records), 0, len(records))


@pytest.mark.parametrize("offsets", [(-1, 99), (-5, -2), (9, 8), (0, 0), (2**63 - 1, 2**63 - 1)])
@pytest.mark.parametrize("epochs", [{0: 77}, {0: 77, 1: 80}], ids=["one epoch", "two epochs"])
def test_offsets_that_no_segment_has(offsets: tuple[int, int], epochs: dict[int, int]) -> None:
    value = write_event(added(1, 77, 99, epochs, owner=owner(0)), knows_txn_index_empty=True)
    marks, wanted = (b"".join(one.to_bytes(8, "big", signed=True) for one in pair) for pair in ((77, 99), offsets))
    records = [FakeRecord(0, value.replace(marks, wanted, 1))]
    assert records[0].value != value
    on_both(partial(folded, Story(records=records)))


def test_an_update_of_a_segment_that_was_gone_leaves_the_mark_of_the_cache() -> None:
    told: list[MetadataEvent] = [added(1, 0, 9, owner=owner(0)), updated(2, DELETING, owner=owner(0))]
    records = [FakeRecord(at, write_event(event, knows_txn_index_empty=True)) for at, event in enumerate(told)]
    on_both(partial(folded, Story(records=records, batches=[1], looks=True)))


def test_of_a_segment_with_many_epochs_and_long_custom_metadata_nothing_is_left_to_python() -> None:
    epochs = {epoch: epoch * 10 for epoch in range(200)}
    told: list[MetadataEvent] = [
        replace(added(1, 0, 5000, epochs, owner=owner(0)), custom_metadata=b"c" * 20_000),
        updated(1, FINISHED, owner=owner(0), custom=b"c" * 20_000),
    ]
    records = [FakeRecord(at, write_event(event, knows_txn_index_empty=True)) for at, event in enumerate(told)]
    core = native.core.walks
    assert core is not None
    held = HeldPartition(owner(0))
    assert core.read_metadata(records).fold({partition_key(owner(0)): held}, 0) == (2, 2, 0)
    on_both(partial(folded, Story(records=records)))


def test_a_replica_is_fed_as_without_the_native_core() -> None:
    for seed in range(100):
        on_both(partial(_replayed, seed), seed)


def _replayed(seed: int) -> object:
    """Several assignments, a side replay, and a topic that is truncated and written on."""
    lots, topic = Random(seed), Topic()
    topic.write(*(some_value(lots, some_event(lots)) for _ in range(60)))
    topic.start([owner(0), owner(1)])
    topic.read_live(20)
    topic.replica.assign([owner(number) for number in KEPT])
    topic.read_live(20)
    topic.read_separately(15)
    topic.read_live()
    topic.read_separately()
    kept = lots.randrange(1, 60)
    topic.cut(kept)
    topic.write(*(some_value(lots, some_event(lots)) for _ in range(60 - kept + lots.randrange(20))))
    topic.replica.begin_session(replace(FACTS, leader_epochs={0: 4}))
    for _ in range(3):
        topic.read_live()
        topic.read_separately()
    return (
        topic.replica.halted_reason,
        topic.replica.changes,
        [(held.is_ready, held.applied_to, contents(held.cache)) for held in topic.replica.all_held()],
    )


def test_an_epoch_that_begins_too_far_from_the_segment_is_left_to_python() -> None:
    wide = RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(topic_id_partition=owner(0), uuid=Uuid(bytes(16))),
        start_offset=Offset(2**63 - 2),
        end_offset=Offset(2**63 - 1),
        max_timestamp_ms=0,
        broker_id=added(1, 0, 1).broker_id,
        event_timestamp_ms=0,
        segment_size_in_bytes=1,
        segment_leader_epochs=(EpochEntry(LeaderEpoch(0), Offset(-(2**63))),),
    )
    value = write_event(wide, knows_txn_index_empty=True)
    core = native.core.walks
    assert core is not None
    batch = core.read_metadata([FakeRecord(0, value)])
    assert batch.fold({partition_key(owner(0)): HeldPartition(owner(0))}, 0) == (0, 0, 0)
    on_both(partial(folded, Story(records=[FakeRecord(0, value)])))
