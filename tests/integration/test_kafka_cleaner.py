"""Our cleaner and the class that Kafka's broker runs (``Cleaner``), over the same random logs, with the same clock, without a
broker: batch for batch the same is left (S-242, S-255, S-257, S-258, S-259, S-260)."""

from __future__ import annotations

import random
import subprocess
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.property.test_compaction_model import Writing, producer_states, segment_of, whole
from tests.support.compacted_logs import ABORT, COMMIT, NOW_MS, CleanedLog, LogSegment, aborted_of, clean
from tests.support.kafka_jars import java_program, kafka_classpath
from tiersidecar.formats.compaction.cleaning import LastRecord, last_records
from tiersidecar.formats.kafka.indexes import AbortedTransaction, write_transaction_index
from tiersidecar.formats.kafka.record_batches import Compression, iter_batch_headers
from tiersidecar.formats.kafka.records import read_records

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

LOGS, ROUNDS = 24, 3
RETENTION_MS = 1000
MAP_BYTES = 24 * 1000
SOURCE = Path(__file__).parents[1] / "support" / "KafkaCleaner.java"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A log, and the terms of a round over it; in later rounds what earlier ones left is in it."""

    segments: tuple[LogSegment, ...]
    aborted: tuple[AbortedTransaction, ...]
    producers: dict[int, LastRecord]
    now_ms: int
    first_dirty: int

    def cleaned(self) -> CleanedLog:
        return clean(
            self.segments,
            now_ms=self.now_ms,
            delete_retention_ms=RETENTION_MS,
            first_dirty_offset=self.first_dirty,
            last_records=self.producers,
            map_bytes=MAP_BYTES,
            aborted=self.aborted,
        )

    def terms(self) -> str:
        aborted = [number for one in self.aborted for number in one]
        producers = [
            number
            for producer_id, one in self.producers.items()
            for number in (producer_id, -1 if one.data_offset is None else one.data_offset, one.epoch)
        ]
        rows = {
            "bases": [one.base_offset for one in self.segments],
            "ends": [one.next_base_offset for one in self.segments],
            "first.dirty": [self.first_dirty],
            "bound": [self.segments[-1].next_base_offset],
            "now": [self.now_ms],
            "delete.retention": [RETENTION_MS],
            "map.bytes": [MAP_BYTES],
            "aborted": aborted,
            "producers": producers,
        }
        return "".join(f"{name}={','.join(map(str, values))}\n" for name, values in rows.items())


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
def rounds(tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[Case, LogSegment, bytes, int]]]:
    """Per round and log: the case, and what Kafka's cleaner left: segment, transaction index, latest offset of its map.

    Each round begins with what Kafka's cleaner left of the former, and is late enough for the horizons of the one before.
    """
    new = [random_log(random.Random(seed)) for seed in range(LOGS)]
    kept: list[tuple[LogSegment, ...]] = [() for _ in new]
    found = []
    for number in range(ROUNDS):
        cases = [_case(kept[at], log[number], NOW_MS + number * 2 * RETENTION_MS) for at, log in enumerate(new)]
        done = _cleaned_by_kafka(tmp_path_factory.mktemp(f"round-{number}"), cases)
        kept = [(one[1],) for one in done]
        found.append(done)
    return found


def _case(kept: tuple[LogSegment, ...], new: list[LogSegment], now_ms: int) -> Case:
    segments = (*kept, *new)
    return Case(
        segments=segments,
        aborted=aborted_of(segments),
        producers=last_records(producer_states(segments).states),
        now_ms=now_ms,
        first_dirty=kept[0].next_base_offset if kept else 0,
    )


def _cleaned_by_kafka(directory: Path, cases: list[Case]) -> list[tuple[Case, LogSegment, bytes, int]]:
    for number, case in enumerate(cases):
        own = directory / f"{number:04d}"
        own.mkdir()
        for segment in case.segments:
            (own / f"{segment.base_offset:020d}.log").write_bytes(segment.log)
        (own / "terms.properties").write_text(case.terms())
    command = [java_program(), "-XX:TieredStopAtLevel=1", "-cp", kafka_classpath(), str(SOURCE), str(directory)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = []
    for number, case in enumerate(cases):
        own = directory / f"{number:04d}"
        index = own / "cleaned.txnindex"
        segment = LogSegment(
            base_offset=case.segments[0].base_offset,
            next_base_offset=case.segments[-1].next_base_offset,
            log=(own / "cleaned.log").read_bytes(),
        )
        transactions = index.read_bytes() if index.exists() else b""
        found.append((case, segment, transactions, int((own / "latest").read_text())))
    return found


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
def test_both_leave_the_same(rounds: list[list[tuple[Case, LogSegment, bytes, int]]], number: int) -> None:
    for seed, (case, kafkas, index, latest) in enumerate(rounds[number]):
        ours = case.cleaned()
        assert comparable(whole(ours.segments)) == comparable(kafkas.log), f"seed {seed}"
        assert ours.cleaner_offset == latest + 1, f"seed {seed}"
        assert _entries(ours) == index, f"seed {seed}"


def _entries(ours: CleanedLog) -> bytes:
    return b"".join(write_transaction_index(one) for one in ours.aborted)


def test_the_logs_have_what_there_is_to_see(rounds: list[list[tuple[Case, LogSegment, bytes, int]]]) -> None:
    """Or the comparison would say little."""
    before = [header for case, *_ in rounds[0] for _, header in iter_batch_headers(whole(case.segments))]
    after = [header for _, one, *_ in rounds[-1] for _, header in iter_batch_headers(one.log)]
    assert {one.compression for one in before} == set(Compression)
    assert any(one.record_count == 0 for one in after)
    assert {one.is_control for one in after if one.attributes & 0x40} == {True, False}
    assert any(index for _, _, index, _ in rounds[0]), "aborted transactions that are still hidden"
