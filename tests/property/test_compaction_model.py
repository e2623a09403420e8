"""Our cleaner against a plain model: random logs of plain, idempotent and transactional producers, in all codecs (S-244)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.compacted_logs import (
    ABORT,
    COMMIT,
    NOW_MS,
    LogSegment,
    all_records,
    clean,
    committed_records,
    data_batch,
    marker_batch,
    table,
)
from tiersidecar.formats.compaction.cleaning import last_records
from tiersidecar.formats.kafka.producer_state import ProducerStates
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import Record, read_control_marker, read_records

DELETE_RETENTION_MS = 1000
AFTER_HORIZON_MS = NOW_MS + DELETE_RETENTION_MS + 1
KEYS = st.one_of(st.none(), st.sampled_from([b"a", b"b", b"c", b"d", b""]))
RECORDS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=30))), min_size=1, max_size=5)


@dataclass(slots=True)
class Writing:
    """A log as it grows: one producer per id, each with its sequence and perhaps an open transaction."""

    batches: list[bytes] = field(default_factory=list)
    offset: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    open_now: set[int] = field(default_factory=set)

    def data(self, records: list[tuple[bytes | None, bytes | None]], codec: int, producer_id: int) -> None:
        sequence = self.sequences.get(producer_id, 0)
        transactional = producer_id >= 2
        producer = (producer_id, 0, sequence) if producer_id >= 0 else (-1, -1, -1)
        self.batches.append(
            data_batch(self.offset, records, codec=codec, producer=producer, transactional=transactional)
        )
        self.offset += len(records)
        self.sequences[producer_id] = sequence + len(records)
        if transactional:
            self.open_now.add(producer_id)

    def end(self, producer_id: int, kind: int) -> None:
        self.batches.append(marker_batch(self.offset, kind, producer_id=producer_id))
        self.offset += 1
        self.open_now.discard(producer_id)


@st.composite
def logs(draw: st.DrawFn) -> list[LogSegment]:
    """Segments in which every transaction has ended, as below the last stable offset."""
    log = Writing()
    for _ in range(draw(st.integers(1, 14))):
        producer_id = draw(st.integers(-1, 3))
        if producer_id in log.open_now and draw(st.booleans()):
            log.end(producer_id, draw(st.sampled_from([ABORT, COMMIT])))
        else:
            log.data(draw(RECORDS), draw(st.integers(0, 4)), producer_id)
    for producer_id in sorted(log.open_now):
        log.end(producer_id, draw(st.sampled_from([ABORT, COMMIT])))
    cuts = sorted({0, len(log.batches), *draw(st.lists(st.integers(0, len(log.batches)), max_size=3))})
    return [segment_of(log.batches[start:stop]) for start, stop in pairwise(cuts)]


def segment_of(batches: list[bytes]) -> LogSegment:
    data = b"".join(batches)
    headers = [header for _, header in iter_batch_headers(data)]
    return LogSegment(base_offset=headers[0].base_offset, next_base_offset=headers[-1].next_offset, log=data)


def whole(segments: list[LogSegment] | tuple[LogSegment, ...]) -> bytes:
    return b"".join(segment.log for segment in segments)


def data_records(segments: list[LogSegment] | tuple[LogSegment, ...]) -> list[Record]:
    return [record for record in all_records(whole(segments)) if not record.is_control]


def producer_states(segments: list[LogSegment] | tuple[LogSegment, ...]) -> ProducerStates:
    states, log = ProducerStates(), whole(segments)
    for position, header in iter_batch_headers(log):
        if not header.is_control:
            states.add_batch(header)
            continue
        for record in read_records(log[position : position + header.size_bytes]):
            marker = read_control_marker(record)
            if marker is not None:
                states.add_marker(header, marker, record.timestamp_ms)
    return states


@given(logs())
@settings(max_examples=50, deadline=None)
def test_just_the_last_record_of_each_key_stays_as_it_was(segments: list[LogSegment]) -> None:
    expected = sorted(table(committed_records(segments)).values(), key=lambda one: one.offset)
    cleaned = clean(segments, now_ms=NOW_MS, delete_retention_ms=DELETE_RETENTION_MS)
    assert data_records(cleaned.segments) == expected
    assert committed_records(cleaned.segments) == expected
    last = list(iter_batch_headers(cleaned.segments[-1].log))[-1][1]
    assert last.next_offset == cleaned.cleaner_offset == segments[-1].next_base_offset


@given(logs())
@settings(max_examples=40, deadline=None)
def test_tombstones_go_after_their_horizon_and_nothing_else_does(segments: list[LogSegment]) -> None:
    expected = sorted(
        (one for one in table(committed_records(segments)).values() if one.value is not None),
        key=lambda one: one.offset,
    )
    first = clean(segments, now_ms=NOW_MS, delete_retention_ms=DELETE_RETENTION_MS)
    before = clean(first.segments, now_ms=AFTER_HORIZON_MS - 2, delete_retention_ms=DELETE_RETENTION_MS)
    assert data_records(before.segments) == data_records(first.segments)
    after = clean(before.segments, now_ms=AFTER_HORIZON_MS, delete_retention_ms=DELETE_RETENTION_MS)
    assert data_records(after.segments) == expected


@given(logs())
@settings(max_examples=40, deadline=None)
def test_producers_go_on_with_their_next_sequence(segments: list[LogSegment]) -> None:
    states = {one.producer_id: one for one in producer_states(segments).states}
    now_ms, cleaned = NOW_MS, segments
    for _ in range(4):
        cleaned = list(
            clean(
                cleaned,
                now_ms=now_ms,
                delete_retention_ms=DELETE_RETENTION_MS,
                last_records=last_records(states.values()),
            ).segments
        )
        now_ms += 2 * DELETE_RETENTION_MS
    found = {one.producer_id: one for one in producer_states(cleaned).states}
    for producer_id, state in states.items():
        if state.last_offset < 0:
            continue
        kept = found[producer_id]
        assert (kept.epoch, kept.last_sequence, kept.last_offset) == (
            state.epoch,
            state.last_sequence,
            state.last_offset,
        )


@given(logs())
@settings(max_examples=40, deadline=None)
def test_a_map_that_is_too_small_for_all_takes_more_rounds_to_the_same_table(segments: list[LogSegment]) -> None:
    """It is full with five keys, which is what one batch may have."""
    expected = table(committed_records(segments))
    end, first_dirty = segments[-1].next_base_offset, 0
    cleaned: tuple[LogSegment, ...] = tuple(segments)
    for _ in range(60):
        done = clean(cleaned, now_ms=NOW_MS, first_dirty_offset=first_dirty, upper_bound_offset=end, map_bytes=24 * 6)
        assert done.cleaner_offset > first_dirty
        cleaned, first_dirty = done.segments, done.cleaner_offset
        assert table(committed_records(cleaned)) == expected
        if first_dirty >= end:
            break
    assert {record.offset for record in data_records(cleaned)} == {one.offset for one in expected.values()}


@given(logs(), st.integers(100, 400))
@settings(max_examples=25, deadline=None)
def test_groups_make_one_segment_each_that_reads_the_same(segments: list[LogSegment], most_bytes: int) -> None:
    together = clean(segments, now_ms=NOW_MS)
    grouped = clean(segments, now_ms=NOW_MS, segment_bytes=most_bytes)
    assert whole(grouped.segments) == whole(together.segments)
    for segment, beside in zip(grouped.segments, grouped.artefacts, strict=True):
        headers = [header for _, header in iter_batch_headers(segment.log)]
        assert beside.tally.bytes_kept == len(segment.log)
        assert beside.tally.last_offset == (headers[-1].last_offset if headers else -1)
        assert all(segment.base_offset <= one.base_offset < segment.next_base_offset for one in headers)


@given(logs())
@settings(max_examples=25, deadline=None)
def test_cleaning_comes_to_rest(segments: list[LogSegment]) -> None:
    """Once markers have their horizons, a round at the same time changes no byte."""
    cleaned: list[LogSegment] = segments
    for _ in range(3):
        cleaned = list(clean(cleaned, now_ms=NOW_MS).segments)
    again = clean(cleaned, now_ms=NOW_MS)
    assert whole(again.segments) == whole(cleaned)
    assert sum(artefact.tally.batches_kept - artefact.tally.untouched_batches for artefact in again.artefacts) == sum(
        header.record_count == 0 for _, header in iter_batch_headers(whole(cleaned))
    )
