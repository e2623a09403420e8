"""Erasure by key: what has the key is gone from the bytes, and all else is as it was."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_compaction_model import logs, producer_states, whole
from tests.support.batches import legacy_message
from tests.support.compacted_logs import LogSegment, all_records, committed_records
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.compaction.erasing import erase_keys
from tiersidecar.formats.compaction.segments import SegmentRewriter
from tiersidecar.formats.kafka.record_batches import iter_batch_headers


def erased(segment: LogSegment, keys: frozenset[bytes]) -> LogSegment:
    rewriter = SegmentRewriter(
        lambda batch, header, position: erase_keys(batch, header, keys, where="log", position=position),
        base_offset=Offset(segment.base_offset),
    )
    log = b"".join(bytes(piece) for piece in rewriter.feed(segment.log, where="log"))
    rewriter.end_of_source(where="log")
    tally = rewriter.finish().tally
    assert tally.batches_kept == tally.batches_read
    return LogSegment(base_offset=segment.base_offset, next_base_offset=segment.next_base_offset, log=log)


@given(logs(), st.frozensets(st.sampled_from([b"a", b"b", b"c", b"d", b""])))
@settings(max_examples=50, deadline=None)
def test_what_has_the_key_goes_and_nothing_else(segments: list[LogSegment], keys: frozenset[bytes]) -> None:
    after = [erased(segment, keys) for segment in segments]
    gone = {record.offset for record in all_records(whole(segments)) if record.key in keys and not record.is_control}
    assert all_records(whole(after)) == [record for record in all_records(whole(segments)) if record.offset not in gone]
    assert committed_records(after) == [record for record in committed_records(segments) if record.offset not in gone]
    for before, now in zip(segments, after, strict=True):
        pairs = zip(iter_batch_headers(before.log), iter_batch_headers(now.log), strict=True)
        for (old_position, old), (new_position, new) in pairs:
            assert (new.base_offset, new.last_offset) == (old.base_offset, old.last_offset)
            assert (new.producer_id, new.producer_epoch, new.base_sequence) == (
                old.producer_id,
                old.producer_epoch,
                old.base_sequence,
            )
            assert (new.partition_leader_epoch, new.is_transactional) == (
                old.partition_leader_epoch,
                old.is_transactional,
            )
            if gone.isdisjoint(range(old.base_offset, old.next_offset)):
                batch = before.log[old_position : old_position + old.size_bytes]
                assert now.log[new_position : new_position + new.size_bytes] == batch


@given(logs(), st.frozensets(st.sampled_from([b"a", b"b", b"c", b"d", b""])))
@settings(max_examples=25, deadline=None)
def test_producers_and_transactions_are_the_same_afterwards(segments: list[LogSegment], keys: frozenset[bytes]) -> None:
    def sequences(log: list[LogSegment]) -> list[tuple[int, int, int, int]]:
        return [
            (state.producer_id, state.epoch, state.last_sequence, state.last_offset)
            for state in producer_states(log).states
        ]

    after = [erased(segment, keys) for segment in segments]
    assert sequences(after) == sequences(segments)
    assert producer_states(after).aborted == producer_states(segments).aborted


def test_a_marked_key_and_its_value_are_in_no_byte() -> None:
    mark, other = b"M" * 32, b"V" * 32
    messages = [
        legacy_message(n, mark if n % 2 else b"other", other if n % 2 else b"kept", magic=n % 2) for n in range(4)
    ]
    segment = LogSegment(base_offset=0, next_base_offset=4, log=b"".join(messages))
    after = erased(segment, frozenset({mark})).log
    assert mark not in after
    assert other not in after
    assert [record.offset for record in all_records(after)] == [0, 2]
    assert [header.last_offset for _, header in iter_batch_headers(after)] == [0, 1, 2, 3]
    assert after.startswith(messages[0]), "a message without the key stays as it is"
