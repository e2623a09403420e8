"""What ``disable`` takes for remote is of the leader's very log, whatever elections there were (U10)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.support.segments import remote_segment
from tiersidecar.decide.switching import copied_bytes, copied_stop, parts_of_history
from tiersidecar.domain.segments import RemoteLogSegmentMetadata

Log = list[int]
"""The leader epoch of each record."""


@st.composite
def elections(draw: st.DrawFn) -> tuple[Log, list[RemoteLogSegmentMetadata]]:
    """The last leader's log, and what it and those before it copied: each begins with a prefix of some log before."""
    logs: list[Log] = [[]]
    copied: list[RemoteLogSegmentMetadata] = []
    for epoch in range(draw(st.integers(1, 5))):
        former = draw(st.sampled_from(logs))
        kept = draw(st.one_of(st.just(len(former)), st.integers(0, len(former))))
        log = former[:kept] + [epoch] * draw(st.integers(0, 12))
        logs.append(log)
        for uuid in range(draw(st.integers(0, 3)) if log else 0):
            start = draw(st.integers(0, len(log) - 1))
            end = draw(st.integers(start, len(log) - 1))
            copied.append(segment_of(log, start, end, uuid=f"{epoch:08d}{uuid:08d}".encode()))
    return logs[-1], copied


def segment_of(log: Log, start: int, end: int, *, uuid: bytes) -> RemoteLogSegmentMetadata:
    """Of 10 bytes a record."""
    epochs = tuple((epoch, log.index(epoch)) for epoch in sorted(set(log[start : end + 1])))
    return remote_segment(start, end, epochs=epochs, uuid=uuid, size_bytes=10 * (end - start + 1))


def holds(segments: Sequence[RemoteLogSegmentMetadata], log: Log, offset: int) -> bool:
    """Whether one has the log's record at ``offset``: a leader writes one record at an offset."""
    return any(
        segment.start_offset <= offset <= segment.end_offset
        and max(entry.epoch for entry in segment.segment_leader_epochs if entry.start_offset <= offset) == log[offset]
        for segment in segments
    )


@given(elections(), st.data())
def test_nothing_that_only_another_history_copied_counts_as_remote(
    history: tuple[Log, list[RemoteLogSegmentMetadata]], data: st.DataObject
) -> None:
    log, copied = history
    log_start = data.draw(st.integers(0, len(log)))
    ends = {epoch: len(log) - log[::-1].index(epoch) for epoch in set(log)}
    parts = parts_of_history(copied, ends)
    stop = copied_stop(parts, log_start)
    held = [holds(copied, log, offset) for offset in range(len(log))]
    assert stop == next((offset for offset in range(log_start, len(log)) if not held[offset]), len(log))
    assert copied_bytes(parts, log_start, stop) <= 10 * (stop - log_start)
