"""The short way to tell a segment's validity says what Kafka's check says (T-09, T-10, T-11, T-12, T-13, T-14)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.segments import remote_segment
from tiersidecar.decide.expiry_standing import standings
from tiersidecar.domain.offsets import Lineage

OFFSETS = st.integers(min_value=0, max_value=60)
ENTRIES = st.lists(st.tuples(st.integers(min_value=0, max_value=6), OFFSETS), min_size=1, max_size=5)


@given(lineage=ENTRIES, epochs=ENTRIES, start=OFFSETS, length=st.integers(min_value=1, max_value=30))
def test_validity_is_kafkas_and_what_is_served_is_of_this_history(
    lineage: list[tuple[int, int]], epochs: list[tuple[int, int]], start: int, length: int
) -> None:
    history = Lineage.of(lineage)
    end = start + length - 1
    own = Lineage.of([(epoch, max(offset, start)) for epoch, offset in epochs if offset <= end] or [(0, start)])
    first = own.entries[0]
    segment = remote_segment(start, end, epochs=((first.epoch, start), *own.entries[1:]))
    (standing,) = standings([segment], history)
    assert standing.is_valid == segment.is_within(history)
    if standing.is_valid:
        assert standing.served_end == end
        return
    theirs = Lineage.of(segment.segment_leader_epochs)
    shared = [o for o in range(start, end + 1) if theirs.epoch_for_offset(o) == history.epoch_for_offset(o)]
    assert standing.served_end == max(shared, default=-1)
