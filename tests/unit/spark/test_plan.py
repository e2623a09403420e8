"""Shares cover what is wanted, once, and are no larger than asked."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import ByteRange, EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.spark.datasource import plan
from tiersidecar.spark.datasource.plan import SegmentSlice, plan_shares

CHUNK = plan.CUT_AT_MULTIPLES_OF_BYTES


def segment_slices_of(partition: int, sizes: list[int], begins: list[int]) -> list[SegmentSlice]:
    """One per segment, 100 offsets each, from some byte of it."""
    topic_id_partition = TopicIdPartition(topic_id=Uuid(b"plan-topic-id-00"), topic="planned", partition=partition)
    found = []
    for number, (size, begin) in enumerate(zip(sizes, begins, strict=True)):
        metadata = RemoteLogSegmentMetadata(
            remote_log_segment_id=RemoteLogSegmentId(
                topic_id_partition=topic_id_partition, uuid=Uuid(b"%08d%08d" % (partition, number))
            ),
            start_offset=Offset(number * 100),
            end_offset=Offset(number * 100 + 99),
            max_timestamp_ms=0,
            broker_id=BrokerId(1),
            event_timestamp_ms=0,
            segment_size_in_bytes=size,
            segment_leader_epochs=(EpochEntry(LeaderEpoch(0), Offset(number * 100)),),
        )
        found.append(
            SegmentSlice(
                metadata=metadata,
                start_offset=metadata.start_offset,
                stop_offset=metadata.next_offset,
                byte_range=ByteRange(min(begin, size), size),
            )
        )
    return found


sizes = st.integers(1, 40 * CHUNK)
partitions = st.lists(st.lists(st.tuples(sizes, st.just(0) | sizes), max_size=6), max_size=4)


@given(partitions, st.integers(1, 50 * CHUNK), st.none() | st.integers(1, 60))
def test_every_byte_is_in_one_share(
    wanted: list[list[tuple[int, int]]], max_bytes: int, min_shares: int | None
) -> None:
    max_bytes = max(max_bytes, 1000)  # no test of ten thousands of shares
    given_segment_slices = [
        segment_slices_of(number, [size for size, _ in one], [begin for _, begin in one])
        for number, one in enumerate(wanted)
    ]
    if sum(len(one.byte_range) for some in given_segment_slices for one in some) // max_bytes > 5000:
        max_bytes = CHUNK
    shares = plan_shares(given_segment_slices, max_bytes=max_bytes, min_shares=min_shares)
    planned = [segment_slice for share in shares for segment_slice in share.segment_slices]
    for original in (one for some in given_segment_slices for one in some):
        parts = [one for one in planned if one.metadata is original.metadata]
        assert parts[0].byte_range.start == original.byte_range.start
        assert parts[-1].byte_range.stop == original.byte_range.stop
        assert all(a.byte_range.stop == b.byte_range.start for a, b in pairwise(parts))
        assert {(part.start_offset, part.stop_offset) for part in parts} == {
            (original.start_offset, original.stop_offset)
        }
        assert all(part.byte_range.start % CHUNK == 0 for part in parts[1:]) or max_bytes < CHUNK or min_shares
    assert [one.metadata for one in planned] == sorted(
        (one.metadata for one in planned),
        key=lambda one: (one.topic_id_partition.partition, one.start_offset),
    )
    for share in shares:
        assert len({one.metadata.topic_id_partition for one in share.segment_slices}) == 1
        assert share.size_bytes <= max_bytes


def test_there_are_as_many_shares_as_asked_for_where_there_are_bytes_enough() -> None:
    segment_slices = segment_slices_of(0, [64 * CHUNK], [0])
    assert len(plan_shares([segment_slices], max_bytes=128 * CHUNK)) == 1
    assert len(plan_shares([segment_slices], max_bytes=128 * CHUNK, min_shares=16)) == 16


def test_small_segments_of_a_partition_share_a_task_and_those_of_two_do_not() -> None:
    shares = plan_shares(
        [segment_slices_of(0, [100] * 10, [0] * 10), segment_slices_of(1, [100] * 3, [0] * 3)], max_bytes=500
    )
    assert [len(share.segment_slices) for share in shares] == [5, 5, 3]
