"""Edges of the second pass, one by one; random logs are in tests/property/test_compaction_model.py
(S-256, S-258, S-259, S-260, S-261)."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.batches import legacy_message
from tests.support.compacted_logs import ABORT, COMMIT, NOW_MS, LogSegment, all_records, clean, data_batch, marker_batch
from tiersidecar.domain.errors import CorruptDataError, TruncatedDataError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.compaction.cleaning import LastRecord
from tiersidecar.formats.compaction.rewriting import RewrittenBatch, delete_horizon_ms
from tiersidecar.formats.compaction.segments import SegmentRewriter
from tiersidecar.formats.kafka.record_batches import (
    Compression,
    RecordBatchHeader,
    TimestampType,
    iter_batch_headers,
)
from tiersidecar.formats.kafka.records import read_records

RETENTION_MS = 1000


def segment(*batches: bytes, base_offset: int = 0) -> LogSegment:
    data = b"".join(batches)
    last = list(iter_batch_headers(data))[-1][1]
    return LogSegment(base_offset=base_offset, next_base_offset=last.next_offset, log=data)


def headers(*segments: LogSegment) -> list[RecordBatchHeader]:
    return [header for one in segments for _, header in iter_batch_headers(one.log)]


def cleaned(log: LogSegment, *, now_ms: int = NOW_MS, last: dict[int, LastRecord] | None = None) -> LogSegment:
    # Nothing ends at offset 1000: no batch stays for the round's last offset alone.
    done = clean([log], now_ms=now_ms, delete_retention_ms=RETENTION_MS, upper_bound_offset=1000, last_records=last)
    return done.segments[0]


def test_a_batch_of_which_all_stays_is_the_same_bytes_whatever_its_codec() -> None:
    for codec in range(5):
        log = segment(data_batch(0, [(b"a", b"1"), (b"b", b"2")], codec=codec))
        assert cleaned(log).log == log.log


@pytest.mark.parametrize("codec", list(Compression))
def test_what_stays_of_a_batch_keeps_offsets_times_headers_and_codec(codec: Compression) -> None:
    records = [(b"key-%d" % n, b"value " * 40_000 if n == 5 else b"v") for n in range(8)]
    first = data_batch(0, records, codec=codec, producer=(9, 3, 20))
    log = segment(first, data_batch(8, [(b"key-0", b"new"), (b"key-7", b"new")]))
    new = cleaned(log)
    before, after = headers(log)[0], headers(new)[0]
    kept = [record for record in read_records(first) if record.offset not in (0, 7)]
    assert read_records(new.log) == kept
    assert after == dataclasses.replace(
        before,
        batch_length=after.batch_length,
        crc=after.crc,
        record_count=6,
        base_timestamp=kept[0].timestamp_ms,
        max_timestamp=kept[-1].timestamp_ms,
    )
    assert after.compression is codec
    assert after.last_sequence == before.last_sequence


def test_a_tombstone_gets_a_horizon_once_and_goes_when_it_is_over() -> None:
    log = segment(data_batch(0, [(b"a", b"1"), (b"b", None)]))
    new = cleaned(log)
    (header,) = headers(new)
    assert delete_horizon_ms(header) == NOW_MS + RETENTION_MS
    assert read_records(new.log) == read_records(log.log), "with their own timestamps"
    assert cleaned(new, now_ms=NOW_MS + RETENTION_MS - 1).log == new.log
    assert [record.key for record in all_records(cleaned(new, now_ms=NOW_MS + RETENTION_MS).log)] == [b"a"]
    # Without the tombstone the batch keeps the horizon it has.
    assert delete_horizon_ms(headers(cleaned(new, now_ms=NOW_MS + RETENTION_MS))[0]) == NOW_MS + RETENTION_MS


def test_a_retention_for_ever_sets_the_last_horizon_that_there_is() -> None:
    log = segment(data_batch(0, [(b"a", b"1"), (b"b", None)]))
    new = clean([log], now_ms=NOW_MS, delete_retention_ms=(1 << 63) - 1, upper_bound_offset=1000).segments[0]
    assert delete_horizon_ms(headers(new)[0]) == (1 << 63) - 1
    assert read_records(new.log) == read_records(log.log), "with their own timestamps"
    assert cleaned(new, now_ms=LATE_MS).log == new.log


LATE_MS = NOW_MS + 10 * RETENTION_MS


def renewed(log: LogSegment, renews_from: int) -> LogSegment:
    """Long after every horizon is over; one more segment comes behind it."""
    end = log.next_base_offset
    behind = LogSegment(base_offset=end, next_base_offset=end + 1, log=data_batch(end, [(b"behind", b"1")]))
    done = clean(
        [log, behind],
        segment_bytes=1,
        now_ms=LATE_MS,
        delete_retention_ms=RETENTION_MS,
        upper_bound_offset=1000,
        renews_from=renews_from,
        first_dirty_offset=renews_from,
    )
    return done.segments[0]


def test_a_horizon_of_another_cleaner_counts_for_nothing_in_the_dirty_part() -> None:
    """The broker's cleaner set it, in its own log: a reader that has just read the value here must still meet the tombstone."""
    broker_cleaned = cleaned(segment(data_batch(0, [(b"a", None), (b"b", b"1")])))
    new = renewed(broker_cleaned, renews_from=0)
    assert read_records(new.log) == read_records(broker_cleaned.log), "with their own timestamps"
    assert delete_horizon_ms(headers(new)[0]) == LATE_MS + RETENTION_MS
    assert [record.key for record in all_records(renewed(broker_cleaned, renews_from=2).log)] == [b"b"], "clean before"


def test_a_marker_with_such_a_horizon_stays_too_and_has_none_while_its_transaction_has_a_batch() -> None:
    first = cleaned(segment(marker_batch(1, ABORT, producer_id=5), base_offset=1))
    assert delete_horizon_ms(headers(first)[0]) == NOW_MS + RETENTION_MS
    assert delete_horizon_ms(headers(renewed(first, renews_from=0))[0]) == LATE_MS + RETENTION_MS
    assert headers(renewed(first, renews_from=2)) == []
    data = data_batch(0, [(b"a", b"1")], producer=(5, 0, 0), transactional=True)
    whole = renewed(LogSegment(base_offset=0, next_base_offset=2, log=data + first.log), renews_from=0)
    assert [(one.base_offset, delete_horizon_ms(one)) for one in headers(whole)] == [(1, None)], (
        "its data went in this very round"
    )


def test_a_tombstone_of_an_old_format_stays_in_the_dirty_part() -> None:
    log = segment(legacy_message(0, b"a", None, magic=1))
    assert cleaned(log).log == b""
    assert [record.key for record in all_records(renewed(log, renews_from=0).log)] == [b"a"]


def test_log_append_time_stays() -> None:
    plain = bytearray(data_batch(0, [(b"a", b"1"), (b"b", b"2")]))
    log = segment(_with_attributes(bytes(plain), 0x08), data_batch(2, [(b"a", b"3")]))
    new = cleaned(log)
    before, after = headers(log)[0], headers(new)[0]
    assert after.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert after.max_timestamp == before.max_timestamp
    assert {record.timestamp_ms for record in all_records(new.log) if record.offset < 2} == {before.max_timestamp}


def test_a_commit_marker_stays_while_a_batch_of_its_transaction_does() -> None:
    log = segment(
        data_batch(0, [(b"a", b"1")], producer=(5, 0, 0), transactional=True),
        marker_batch(1, COMMIT, producer_id=5),
        data_batch(2, [(b"a", b"2")]),
    )
    first = cleaned(log)
    assert [header.base_offset for header in headers(first)] == [1, 2], (
        "the data are gone, the marker was needed in this round"
    )
    assert delete_horizon_ms(headers(first)[0]) is None
    second = cleaned(first)
    assert delete_horizon_ms(headers(second)[0]) == NOW_MS + RETENTION_MS
    assert [header.base_offset for header in headers(cleaned(second, now_ms=NOW_MS + RETENTION_MS))] == [2]


def test_aborted_records_go_whatever_their_keys_are_and_are_in_the_new_transaction_index() -> None:
    log = segment(
        data_batch(0, [(b"only", b"1")], producer=(5, 0, 0), transactional=True),
        data_batch(1, [(b"other", b"1")]),
        marker_batch(2, ABORT, producer_id=5),
    )
    done = clean([log], now_ms=NOW_MS, upper_bound_offset=1000)
    assert [header.base_offset for header in headers(*done.segments)] == [1, 2]
    assert [(one.producer_id, one.first_offset, one.last_offset) for one in done.aborted[0]] == [(5, 0, 2)]
    again = clean(done.segments, now_ms=NOW_MS, upper_bound_offset=1000, aborted=done.aborted[0])
    assert again.aborted == ((),), "nothing of it is left to hide"


def test_the_last_batch_of_an_active_producer_stays_empty() -> None:
    log = segment(
        data_batch(0, [(b"a", b"1"), (b"b", b"1")], codec=4, producer=(5, 2, 40)),
        data_batch(2, [(b"a", b"2"), (b"b", b"2")]),
    )
    kept = cleaned(log, last={5: LastRecord(data_offset=1, epoch=2)})
    first = headers(kept)[0]
    assert (first.record_count, first.base_offset, first.last_offset) == (0, 0, 1)
    assert (first.producer_id, first.producer_epoch, first.base_sequence, first.last_sequence) == (5, 2, 40, 41)
    assert first.compression is Compression.NONE
    assert [header.base_offset for header in headers(cleaned(log))] == [2], "without an active producer it goes"


def test_the_marker_of_a_producer_without_data_stays_for_its_epoch() -> None:
    log = segment(marker_batch(0, ABORT, producer_id=5, epoch=4), data_batch(1, [(b"a", b"1")]))
    first = cleaned(log, last={5: LastRecord(data_offset=None, epoch=4)})
    late = cleaned(first, now_ms=NOW_MS + RETENTION_MS, last={5: LastRecord(data_offset=None, epoch=4)})
    assert [(header.base_offset, header.record_count, header.producer_epoch) for header in headers(late)] == [
        (0, 0, 4),
        (1, 1, -1),
    ]


def test_records_above_the_map_are_not_judged() -> None:
    log = segment(data_batch(0, [(b"a", b"1")]), data_batch(1, [(None, b"no key"), (b"a", b"2")]))
    offset_map_of_one_batch = clean([log], now_ms=NOW_MS, upper_bound_offset=1000, map_bytes=24 * 2)
    assert offset_map_of_one_batch.cleaner_offset == 1
    assert [record.offset for record in all_records(offset_map_of_one_batch.segments[0].log)] == [0, 1, 2]


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_become_format_2(magic: int) -> None:
    log = segment(
        legacy_message(0, b"a", b"1", magic=magic, timestamp=NOW_MS - 5),
        legacy_message(1, b"b", None, magic=magic, timestamp=NOW_MS - 4),
        legacy_message(2, b"a", b"2", magic=magic, timestamp=NOW_MS - 3),
    )
    new = cleaned(log)
    assert {header.magic for header in headers(new)} == {2}
    times = [NOW_MS - 4, NOW_MS - 3] if magic else [-1, -1]
    expected = [(1, b"b", None), (2, b"a", b"2")] if magic else [(2, b"a", b"2")]
    found = all_records(new.log)
    assert [(one.offset, one.key, one.value) for one in found] == expected
    assert [one.timestamp_ms for one in found] == times[-len(expected) :]


def test_damage_is_told_and_nothing_is_made_of_it() -> None:
    log = bytearray(data_batch(0, [(b"a", b"1")]))
    log[-1] ^= 1
    rewriter = SegmentRewriter(lambda batch, _header, _position: _untouched(batch), base_offset=Offset(0))
    with pytest.raises(CorruptDataError, match="checksum"):
        list(rewriter.feed(log, where="log"))


def test_a_source_that_ends_within_a_batch_is_told() -> None:
    rewriter = SegmentRewriter(lambda batch, _header, _position: _untouched(batch), base_offset=Offset(0))
    list(rewriter.feed(data_batch(0, [(b"a", b"1")])[:-1], where="log"))
    with pytest.raises(TruncatedDataError, match="ends within a batch"):
        rewriter.end_of_source(where="log")


def test_offsets_too_far_for_an_index_are_told() -> None:
    rewriter = SegmentRewriter(lambda batch, _header, _position: _untouched(batch), base_offset=Offset(0))
    with pytest.raises(CorruptDataError, match="above base offset 0"):
        list(rewriter.feed(data_batch(2**31, [(b"a", b"1")]), where="log"))


def _untouched(batch: memoryview) -> RewrittenBatch:
    return RewrittenBatch(data=batch, read=1, kept=1)


def _with_attributes(batch: bytes, attributes: int) -> bytes:
    """The same batch with these, and its checksum."""
    from crc32c import crc32c

    covered = attributes.to_bytes(2, "big") + batch[23:]
    return batch[:17] + crc32c(covered).to_bytes(4, "big") + covered
