"""Which users' deletes are kept in a partition's state, and for how long they are told apart (issue 16: undelete)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.trash import FINAL, MOST_NAMED, SaidDelete, merged_deletes, without


def said(offset: int, opened_ms: int = FINAL, leader_epoch: int = 0) -> SaidDelete:
    return SaidDelete(opened_ms=opened_ms, leader_epoch=LeaderEpoch(leader_epoch), offset=Offset(offset))


deletes = st.lists(st.builds(said, st.integers(0, 20), st.integers(-1, 3), st.integers(0, 3)), max_size=12)


@given(deletes, deletes)
def test_in_whatever_order_and_however_often_they_are_merged_the_result_is_the_same(
    ours: list[SaidDelete], theirs: list[SaidDelete]
) -> None:
    merged = merged_deletes([*ours, *theirs])
    assert merged_deletes([*theirs, *ours]) == merged
    assert merged_deletes([*merged_deletes(ours), *merged_deletes(theirs)]) == merged
    assert merged_deletes(merged) == merged


@given(deletes)
def test_none_is_forgotten(found: list[SaidDelete]) -> None:
    merged = merged_deletes(found)
    assert all(any(delete.is_within(other) for other in merged) for delete in found)


def test_of_too_many_the_oldest_become_final() -> None:
    """They can no longer be undone: that a user's delete comes back is worse."""
    merged = merged_deletes([said(number + 1, opened_ms=number) for number in range(MOST_NAMED + 2)])
    assert merged[0] == said(2)
    assert (len(merged), merged[1].opened_ms) == (MOST_NAMED + 1, 2)


def test_a_delete_that_grew_since_is_not_undone() -> None:
    assert without([said(9, 1), said(5, 2), said(5)], [said(8, 1), said(5, 2)]) == [said(9, 1), said(5)]
