"""The simulated brokers' cleaner leaves what ours does, which is compared with Kafka's class (``test_kafka_cleaner``), batch
for batch, in random logs, round after round (S-242, S-255)."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.property.test_compaction_model import Writing, producer_states, segment_of, whole
from tests.simulation.broker_cleaner import CleanerConfig, clean_replica
from tests.simulation.cleaner_model import CleanerModel, Round, batches_of
from tests.simulation.records import Marker, data_batch, marker_batch
from tests.simulation.replica_log import ReplicaLog
from tests.support.compacted_logs import ABORT, COMMIT, NOW_MS, LogSegment, aborted_of, clean
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.formats.compaction.cleaning import last_records

RETENTION_MS, ROUNDS = 1000, 3
OWNER = TopicIdPartition(topic_id=Uuid(b"simulated-topic!"), topic="orders", partition=0)


def write_more(log: Writing, draw: random.Random) -> list[LogSegment]:
    """Two segments, at whose end no transaction is open."""
    begun = len(log.batches)
    for _ in range(draw.randint(4, 16)):
        producer_id = draw.randint(-1, 4)
        if producer_id in log.open_now and draw.random() < 0.5:
            log.end(producer_id, draw.choice([ABORT, COMMIT]))
        else:
            records: list[tuple[bytes | None, bytes | None]] = [
                (
                    None if draw.random() < 0.05 else b"key-%d" % draw.randrange(6),
                    None if draw.random() < 0.3 else draw.randbytes(5),
                )
                for _ in range(draw.randint(1, 4))
            ]
            log.data(records, 0, producer_id)
    for producer_id in sorted(log.open_now):
        log.end(producer_id, draw.choice([ABORT, COMMIT]))
    cut = draw.randint(begun + 1, len(log.batches) - 1)
    return [segment_of(log.batches[begun:cut]), segment_of(log.batches[cut:])]


@pytest.mark.parametrize("seed", range(30))
def test_both_leave_the_same(seed: int) -> None:
    draw, log, kept = random.Random(seed), Writing(), list[LogSegment]()
    for number in range(ROUNDS):
        first_dirty = kept[-1].next_base_offset if kept else 0
        segments = [*kept, *write_more(log, draw)]
        producers, aborted = last_records(producer_states(segments).states), aborted_of(segments)
        now_ms = NOW_MS + number * 2 * RETENTION_MS
        ours = clean(
            segments,
            now_ms=now_ms,
            delete_retention_ms=RETENTION_MS,
            first_dirty_offset=first_dirty,
            last_records=producers,
            aborted=aborted,
        )
        batches = batches_of(whole(segments))
        model = CleanerModel(
            batches,
            aborted,
            Round(
                first_dirty=first_dirty,
                end=ours.cleaner_offset,
                now_ms=now_ms,
                delete_retention_ms=RETENTION_MS,
                last_data={producer: one.data_offset for producer, one in producers.items()},
                last_epochs={producer: one.epoch for producer, one in producers.items()},
            ),
        )
        assert b"".join(model.clean(header, data) for header, data in batches) == whole(ours.segments)
        assert tuple(model.take_retained()) == tuple(one for part in ours.aborted for one in part)
        kept = list(ours.segments)


@pytest.fixture
def replicas(tmp_path: Path) -> list[ReplicaLog]:
    stamps = iter(range(10**18, 10**19))
    return [
        ReplicaLog(
            tmp_path / name,
            OWNER,
            segment_bytes=size,
            stamp_ns=lambda: next(stamps),
            later=lambda after_s, what: what(),
            changed=lambda: None,
        )
        for name, size in (("leader", 400), ("follower", 500))
    ]


CONFIG = CleanerConfig(segment_bytes=1000, delete_retention_ms=RETENTION_MS, min_compaction_lag_ms=0)


def fill(log: ReplicaLog, batches: int) -> None:
    """Values of two keys, and a transaction that is aborted now and then."""
    for number in range(batches):
        now_ms, base = NOW_MS + log.log_end_offset, log.log_end_offset
        if number % 7 == 6:
            log.append(marker_batch(base, Marker.ABORT, leader_epoch=0, timestamp_ms=now_ms, producer_id=101))
        else:
            records = [(now_ms, b"v" * 20), (now_ms, None if number % 4 == 3 else b"w" * 20)]
            keys = [b"a", b"b" if number % 2 else b"c"]
            producer_id = 101 if number % 7 == 5 else -1
            log.append(data_batch(base, records, leader_epoch=0, producer_id=producer_id, keys=keys))
        log.high_watermark = log.log_end_offset


def logs_of(log: ReplicaLog) -> bytes:
    """Return the bytes of all its .log files."""
    return b"".join(path.read_bytes() for path in sorted(log.directory.glob("*.log")))


def test_the_files_are_those_of_what_is_left(replicas: list[ReplicaLog]) -> None:
    leader, _ = replicas
    fill(leader, 40)
    sealed = leader.segments[-1]
    before = len(leader.segments)
    assert clean_replica(leader, CONFIG, NOW_MS + 1000) == sealed == leader.cleaner_offset
    assert len(leader.segments) < before, "small ones are merged"
    names = {int(path.stem) for path in leader.directory.glob("*.log")}
    assert names == set(leader.segments)
    held = b"".join(leader.data_of(batch) for batch in leader.held(0, leader.log_end_offset))
    assert held == logs_of(leader)
    assert clean_replica(leader, CONFIG, NOW_MS + 1000) is None, "nothing is dirty"


def test_a_follower_gets_what_the_leader_has_left(replicas: list[ReplicaLog]) -> None:
    leader, follower = replicas
    fill(leader, 30)
    clean_replica(leader, CONFIG, NOW_MS + 1000)
    fill(leader, 10)
    while follower.log_end_offset < leader.log_end_offset:
        follower.append_fetched(leader.batches, leader.segments, 3, leader.left)
        assert follower.data_of(follower.batches[-1]), "it ends with a batch that it has"
    assert [follower.data_of(one) for one in follower.batches] == [leader.data_of(one) for one in leader.batches]
    assert logs_of(follower) == logs_of(leader)


def test_nothing_that_is_open_or_young_is_cleaned(replicas: list[ReplicaLog]) -> None:
    leader, _ = replicas
    fill(leader, 13)
    open_from = leader.log_end_offset
    records: list[tuple[int, bytes | None]] = [(NOW_MS + open_from, b"open")]
    leader.append(data_batch(open_from, records, leader_epoch=0, producer_id=102, keys=[b"a"]))
    fill(leader, 14)
    assert clean_replica(leader, replace(CONFIG, min_compaction_lag_ms=10_000), NOW_MS + 1000) is None
    end = clean_replica(leader, CONFIG, NOW_MS + 1000)
    assert end is not None
    assert end <= open_from == leader.last_stable_offset()
