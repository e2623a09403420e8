"""Our cleaner and the class that Kafka's broker runs (``Cleaner``), over the same random logs, with the same clock, without a
broker: batch for batch the same is left (S-242, S-255, S-257, S-258, S-259, S-260)."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.property.test_compaction_model import Writing, producer_states, segment_of, whole
from tests.simulation.cleaner_model import CleanerModel, Round, batches_of
from tests.support.compacted_logs import (
    ABORT,
    COMMIT,
    NOW_MS,
    CleanedLog,
    LogSegment,
    aborted_of,
    clean,
    committed_records,
)
from tests.support.kafka_cleaner import CleanerCase, KafkaCleaned, clean_by_kafka
from tiersidecar.formats.compaction.cleaning import last_records
from tiersidecar.formats.kafka.indexes import write_transaction_index
from tiersidecar.formats.kafka.record_batches import COMPRESSION_MASK, Compression, iter_batch_headers
from tiersidecar.formats.kafka.records import read_records

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

LOGS, ROUNDS = 24, 3
RETENTION_MS = 1000
MAP_BYTES = 24 * 1000


def cleaned_by_us(case: CleanerCase) -> CleanedLog:
    return clean(
        case.segments,
        now_ms=case.now_ms,
        delete_retention_ms=case.delete_retention_ms,
        first_dirty_offset=case.first_dirty,
        last_records=case.producers,
        map_bytes=case.map_bytes,
        aborted=case.aborted,
    )


def random_log(draw: random.Random) -> list[list[LogSegment]]:
    """Per round its new segments: plain, idempotent and transactional batches of all codecs, transactions overlap."""
    log, rounds = Writing(), []
    for _ in range(ROUNDS):
        begun = len(log.batches)
        for _ in range(draw.randint(5, 40)):
            producer_id = draw.randint(-1, 4)
            if producer_id in log.open_now and draw.random() < 0.5:
                log.end(producer_id, draw.choice([ABORT, COMMIT]))
            else:
                records = [(_key(draw), _value(draw)) for _ in range(draw.randint(1, 8))]
                log.data(records, draw.randint(0, 4), producer_id)
        for producer_id in sorted(log.open_now):
            log.end(producer_id, draw.choice([ABORT, COMMIT]))
        cuts = sorted({begun, len(log.batches), draw.randint(begun, len(log.batches))})
        rounds.append([segment_of(log.batches[start:stop]) for start, stop in pairwise(cuts)])
    return rounds


def _key(draw: random.Random) -> bytes | None:
    return None if draw.random() < 0.05 else b"key-%d" % draw.randrange(15)


def _value(draw: random.Random) -> bytes | None:
    return None if draw.random() < 0.25 else draw.randbytes(10) + b"text " * draw.randrange(40)


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[CleanerCase, KafkaCleaned]]]:
    """Per round and log: the case, and what Kafka's cleaner left.

    Each round begins with what Kafka's cleaner left of the former, and is late enough for the horizons of the one before.
    """
    new = [random_log(random.Random(seed)) for seed in range(LOGS)]
    kept: list[tuple[LogSegment, ...]] = [() for _ in new]
    found = []
    for number in range(ROUNDS):
        cases = [_case(kept[at], log[number], NOW_MS + number * 2 * RETENTION_MS) for at, log in enumerate(new)]
        done = clean_by_kafka(tmp_path_factory.mktemp(f"round-{number}"), cases)
        kept = [(one.segment,) for one in done]
        found.append(list(zip(cases, done, strict=True)))
    return found


def _case(kept: tuple[LogSegment, ...], new: list[LogSegment], now_ms: int) -> CleanerCase:
    segments = (*kept, *new)
    return CleanerCase(
        segments=segments,
        aborted=aborted_of(segments),
        producers=last_records(producer_states(segments).states),
        now_ms=now_ms,
        delete_retention_ms=RETENTION_MS,
        map_bytes=MAP_BYTES,
        first_dirty=kept[0].next_base_offset if kept else 0,
    )


def comparable(log: bytes) -> list[object]:
    """Bytes where nothing is compressed; else all but what the codec's own version decides."""
    found: list[object] = []
    for position, header in iter_batch_headers(log):
        batch = log[position : position + header.size_bytes]
        if header.compression is Compression.NONE:
            found.append((header, batch))
        else:
            found.append((replace(header, batch_length=0, crc=0), read_records(batch)))
    return found


@pytest.mark.parametrize("number", range(ROUNDS), ids=["first round", "second round", "third round"])
def test_both_leave_the_same(rounds: list[list[tuple[CleanerCase, KafkaCleaned]]], number: int) -> None:
    for seed, (case, kafkas) in enumerate(rounds[number]):
        ours = cleaned_by_us(case)
        assert comparable(whole(ours.segments)) == comparable(kafkas.segment.log), f"seed {seed}"
        assert ours.cleaner_offset == kafkas.latest_offset + 1, f"seed {seed}"
        assert _entries(ours) == kafkas.transaction_index, f"seed {seed}"


@pytest.mark.parametrize("number", range(ROUNDS), ids=["first round", "second round", "third round"])
def test_the_brokers_of_the_simulation_leave_the_same(
    rounds: list[list[tuple[CleanerCase, KafkaCleaned]]], number: int
) -> None:
    """The model shares no code with our cleaner (docs/design/0008-simulation.md).  It writes no codec: what was compressed is
    compared opened."""
    for seed, (case, kafkas) in enumerate(rounds[number]):
        log = batches_of(whole(case.segments))
        model = CleanerModel(
            log,
            case.aborted,
            Round(
                first_dirty=case.first_dirty,
                end=case.segments[-1].next_base_offset,
                now_ms=case.now_ms,
                delete_retention_ms=case.delete_retention_ms,
                last_data={producer: one.data_offset for producer, one in case.producers.items()},
                last_epochs={producer: one.epoch for producer, one in case.producers.items()},
            ),
        )
        left = b"".join(model.clean(header, data) for header, data in log)
        assert opened(left) == opened(kafkas.segment.log), f"seed {seed}"
        assert write_transaction_index(model.take_retained()) == kafkas.transaction_index, f"seed {seed}"


def opened(log: bytes) -> list[object]:
    """What does not depend on the codec, of each batch."""
    return [
        (
            replace(header, batch_length=0, crc=0, attributes=header.attributes & ~COMPRESSION_MASK),
            read_records(log[position : position + header.size_bytes]),
        )
        for position, header in iter_batch_headers(log)
    ]


@pytest.mark.parametrize("value", [b"newer", None], ids=["a value", "a tombstone"])
def test_what_a_producer_commits_after_an_abort_below_the_dirty_part_counts(
    tmp_path: Path, value: bytes | None
) -> None:
    """Of an abort that ended below it the first pass reads no marker: it may not hide what the same producer commits next.

    Were it to, the tombstone would go in the last round, and its key's older value would be the last one again.
    """
    log = Writing()
    log.data([(b"key", b"older"), (b"other", b"1")], 0, -1)
    log.data([(b"other", b"aborted")], 0, 2)
    log.end(2, ABORT)
    log.data([(b"key", value)], 0, 2)
    log.end(2, COMMIT)
    log.data([(b"last", b"1")], 0, -1)
    new = [segment_of(log.batches[start:stop]) for start, stop in ((0, 3), (3, 5), (5, 6))]
    kept: tuple[LogSegment, ...] = ()
    for number, segment in enumerate(new):
        case = _case(kept, [segment], NOW_MS + number * 2 * RETENTION_MS)
        directory = tmp_path / f"round-{number}"
        directory.mkdir()
        (kafkas,) = clean_by_kafka(directory, [case])
        ours = cleaned_by_us(case)
        assert comparable(whole(ours.segments)) == comparable(kafkas.segment.log), f"round {number}"
        assert _entries(ours) == kafkas.transaction_index
        kept = (kafkas.segment,)
    left = {record.key: record.value for record in committed_records(kept)}
    assert left.get(b"key") == value
    assert left[b"other"] == b"1"


def _entries(ours: CleanedLog) -> bytes:
    return b"".join(write_transaction_index(one) for one in ours.aborted)


def test_the_logs_have_what_there_is_to_see(rounds: list[list[tuple[CleanerCase, KafkaCleaned]]]) -> None:
    """Or the comparison would say little."""
    before = [header for case, _ in rounds[0] for _, header in iter_batch_headers(whole(case.segments))]
    after = [header for _, one in rounds[-1] for _, header in iter_batch_headers(one.segment.log)]
    assert {one.compression for one in before} == set(Compression)
    assert any(one.record_count == 0 for one in after)
    assert {one.is_control for one in after if one.attributes & 0x40} == {True, False}
    assert any(one.transaction_index for _, one in rounds[0]), "aborted transactions that are still hidden"
