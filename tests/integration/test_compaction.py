"""Our cleaner and the broker's own clean the same log: batch for batch the same is left (S-242, S-257, S-258, S-259, S-260).

The topic is cleanup.policy=delete while it is written, so that records without a key are taken and nothing is cleaned before
we have copied the segments; then it becomes a compacted one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from tests.support.compacted_logs import CleanedLog, LogSegment, aborted_of, clean, committed_records, table
from tests.support.compacted_topic import cleaner_offset, read_segments, wait_until_cleaned, write_at_random
from tests.support.kafka_cluster import KafkaCluster
from tiersidecar.formats.compaction.cleaning import LastRecord, last_records
from tiersidecar.formats.compaction.rewriting import delete_horizon_ms
from tiersidecar.formats.kafka.producer_state import ProducerStates
from tiersidecar.formats.kafka.record_batches import Compression, RecordBatchHeader, iter_batch_headers
from tiersidecar.formats.kafka.records import read_control_marker, read_records

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

TOPIC, PARTITIONS, SEGMENT_BYTES = "compacted", 4, 16 * 1024
DELETE_RETENTION_MS = 200
CLEANED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001"}
PAUSED = {"min.cleanable.dirty.ratio": "1.0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One partition's log before and after a round of the broker, and after ours with the same clock."""

    before: tuple[LogSegment, ...]
    brokers: tuple[LogSegment, ...]
    ours: CleanedLog
    brokers_offset: int | None


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[list[Round]]]:
    """By round and partition.  Both cleaners begin the second round with what the broker's has left of the first."""
    properties = {"log.cleaner.backoff.ms": "200"}
    with KafkaCluster(tmp_path_factory.mktemp("compaction"), properties=properties) as kafka:
        configs = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "delete.retention.ms": str(DELETE_RETENTION_MS),
        }
        kafka.create_topic(TOPIC, partitions=PARTITIONS, segment_bytes=SEGMENT_BYTES, configs=configs)
        former: list[Round] = []
        found = []
        for number in range(2):
            asyncio.run(_write(kafka, seed=number))
            former = _cleaned_by_both(kafka, former)
            found.append(former)
            kafka.admin.alter_topic(TOPIC, {**CLEANED, **PAUSED, "cleanup.policy": "delete"})
        yield found


async def _write(kafka: KafkaCluster, *, seed: int) -> None:
    await asyncio.gather(
        *(
            write_at_random(
                kafka.client_settings, TOPIC, partition, random.Random(seed * 10 + partition), steps=150, keys=40
            )
            for partition in range(PARTITIONS)
        )
    )


def _cleaned_by_both(kafka: KafkaCluster, former: Sequence[Round]) -> list[Round]:
    before = [read_segments(kafka[1], TOPIC, partition) for partition in range(PARTITIONS)]
    kafka.admin.alter_topic(TOPIC, CLEANED)
    wait_until_cleaned(kafka[1], TOPIC, [segments[-1].base_offset for segments in before])
    rounds = []
    for partition, segments in enumerate(before):
        brokers = read_segments(kafka[1], TOPIC, partition)[:-1]
        first_dirty = former[partition].ours.cleaner_offset if former else 0
        ours = clean(
            segments[:-1],
            now_ms=_clock_of(brokers, former[partition].brokers if former else ()),
            delete_retention_ms=DELETE_RETENTION_MS,
            first_dirty_offset=first_dirty,
            last_records=_active_producers(segments),
            aborted=aborted_of(segments),  # a marker may be in the active segment
            segment_bytes=SEGMENT_BYTES,
        )
        brokers_offset = cleaner_offset(kafka[1], TOPIC, partition)
        rounds.append(Round(before=segments, brokers=brokers, ours=ours, brokers_offset=brokers_offset))
    return rounds


def _clock_of(brokers: Sequence[LogSegment], former: Sequence[LogSegment]) -> int:
    """When the broker's cleaner began its round: new horizons are that time and the retention."""
    horizons = {delete_horizon_ms(header) for header in _headers(brokers)} - {None}
    new = horizons - {delete_horizon_ms(header) for header in _headers(former)}
    (horizon_ms,) = new
    assert horizon_ms is not None
    return horizon_ms - DELETE_RETENTION_MS


def _active_producers(segments: Sequence[LogSegment]) -> dict[int, LastRecord]:
    states = ProducerStates()
    for segment in segments:
        for position, header in iter_batch_headers(segment.log):
            if not header.is_control:
                states.add_batch(header)
                continue
            for record in read_records(segment.log[position : position + header.size_bytes]):
                marker = read_control_marker(record)
                if marker is not None:
                    states.add_marker(header, marker, record.timestamp_ms)
    return last_records(states.states)


def _headers(segments: Sequence[LogSegment]) -> list[RecordBatchHeader]:
    return [header for segment in segments for _, header in iter_batch_headers(segment.log)]


def _comparable(segments: Sequence[LogSegment]) -> list[object]:
    """Bytes where nothing is compressed; else all but what the codec's own version decides."""
    found: list[object] = []
    for segment in segments:
        for position, header in iter_batch_headers(segment.log):
            batch = segment.log[position : position + header.size_bytes]
            if header.compression is Compression.NONE:
                found.append((header, batch))
            else:
                found.append((replace(header, batch_length=0, crc=0), read_records(batch)))
    return found


@pytest.mark.parametrize("partition", range(PARTITIONS))
@pytest.mark.parametrize("number", range(2), ids=["first round", "second round"])
def test_both_leave_the_same_batches(rounds: list[list[Round]], number: int, partition: int) -> None:
    done = rounds[number][partition]
    assert _comparable(done.ours.segments) == _comparable(done.brokers)
    assert done.ours.cleaner_offset == done.brokers_offset


@pytest.mark.parametrize("partition", range(PARTITIONS))
def test_both_group_segments_alike(rounds: list[list[Round]], partition: int) -> None:
    for done in (rounds[0][partition], rounds[1][partition]):
        assert [segment.base_offset for segment in done.ours.segments] == [one.base_offset for one in done.brokers]
    second = rounds[1][partition]
    assert len(second.brokers) < len(second.before) - 1, "several became one: the first round had made them small"


@pytest.mark.parametrize("partition", range(PARTITIONS))
def test_each_key_has_the_value_that_it_had(rounds: list[list[Round]], partition: int) -> None:
    for done in (rounds[0][partition], rounds[1][partition]):
        end = done.ours.cleaner_offset
        before = table(record for record in committed_records(done.before) if record.offset < end)
        after = table(committed_records(done.ours.segments))
        gone = before.keys() - after.keys()
        assert after == {key: record for key, record in before.items() if key not in gone}
        assert all(before[key].value is None for key in gone), "tombstones alone go, after their horizon"


def test_the_workload_has_what_there_is_to_see(rounds: list[list[Round]]) -> None:
    """Or the comparison would say little."""
    before = _headers([segment for done in rounds[0] for segment in done.before])
    after = _headers([segment for done in rounds[1] for segment in done.brokers])
    assert {one.compression for one in before} == set(Compression)
    assert {one.is_transactional for one in before} == {True, False}
    assert any(one.record_count == 0 for one in after)
    assert any(one.is_control and delete_horizon_ms(one) is not None for one in after)
    assert any(not one.is_control and delete_horizon_ms(one) is not None for one in after)
    gone = [
        record
        for first, second in zip(rounds[0], rounds[1], strict=True)
        for record in table(committed_records(first.brokers)).values()
        if record.value is None and record not in committed_records(second.brokers)
    ]
    assert gone, "tombstones whose horizon was over in the second round"
