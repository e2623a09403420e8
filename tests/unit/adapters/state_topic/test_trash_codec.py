"""Entries of the trash, as records of the state topic."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.metadata_events import ORDERS
from tiersidecar.adapters.state_topic.codec import partition_key
from tiersidecar.adapters.state_topic.fold import StateFold
from tiersidecar.adapters.state_topic.trash_codec import read_trash_key, trash_key, write_trash_entry
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.trash import TrashEntry, TrashId, TrashKind

ID = TrashId(generation=1, leader_epoch=LeaderEpoch(4), kind=TrashKind.RETENTION, opened_ms=1_000)
ENTRY = TrashEntry(
    id=ID, decided_ms=1_500, due_ms=9_000, up_to=Offset(70), reason="retention.ms of 5 is over", by="broker 1"
)
NAMED = TrashEntry(
    id=replace(ID, kind=TrashKind.OUTSIDE_LINEAGE),
    decided_ms=1_500,
    due_ms=9_000,
    segments=frozenset({Uuid(bytes(range(16))), Uuid(bytes(15) + b"\x07")}),
)

entries = st.builds(
    TrashEntry,
    id=st.just(ID),
    decided_ms=st.integers(0, 3),
    due_ms=st.integers(0, 3),
    up_to=st.integers(-1, 3),
    segments=st.frozensets(st.sampled_from([bytes(15) + b"\x07", bytes(15) + b"\x08"])),
    purged_ms=st.integers(-1, 3),
    reason=st.sampled_from(["a", "b"]),
    by=st.sampled_from(["x", "y"]),
)


def written(entry: TrashEntry, **former: Any) -> bytes:
    return write_trash_entry(ORDERS, entry, former)


def folded(*several: TrashEntry) -> StateFold:
    fold = StateFold()
    for entry in several:
        fold.apply(trash_key(ORDERS, entry.id), written(entry), where="test")
    return fold


def test_keys_can_be_read_by_people_and_sort_by_generation() -> None:
    assert trash_key(ORDERS, ID) == partition_key(ORDERS).replace(b"partition", b"trash") + b"/1/4/retention/1000"


@pytest.mark.parametrize("entry", [ENTRY, NAMED, replace(ENTRY, purged_ms=1_500)], ids=["offset", "segments", "purged"])
def test_an_entry_comes_back_as_it_was(entry: TrashEntry) -> None:
    fold = folded(entry)
    assert fold.trash(ORDERS) == [entry]
    assert fold.trash_partitions() == (ORDERS,)
    assert fold.trash_value(ORDERS, entry) is None


@given(several=st.lists(entries, min_size=1, max_size=4))
def test_decisions_of_one_entry_merge_in_whatever_order_and_however_often(several: list[TrashEntry]) -> None:
    folds = [folded(*order) for order in permutations(several)]
    (merged,) = {fold.trash(ORDERS)[0] for fold in folds}
    assert all(merged.contains(one) for one in several)
    assert merged.due_ms == max(one.due_ms for one in several), "nothing of it is due before its last decision is"
    for fold, order in zip(folds, permutations(several), strict=True):
        assert folded(*order, *order).trash(ORDERS) == [merged]
        value = fold.mended_value(trash_key(ORDERS, ID)) or written(order[-1])
        alone = StateFold()
        alone.apply(trash_key(ORDERS, ID), value, where="test")
        assert alone.trash(ORDERS) == [merged], "compaction leaves only the last record"


def test_what_was_decided_after_a_purge_is_not_purged() -> None:
    purged = replace(ENTRY, purged_ms=ENTRY.decided_ms)
    assert purged.is_due(0)
    later = purged.merged_with(replace(ENTRY, decided_ms=1_600, due_ms=9_100, up_to=Offset(80)))
    assert not later.is_due(9_099)
    assert later.is_due(9_100)


def test_a_tombstone_ends_an_entry_and_its_neighbours_stay() -> None:
    fold = folded(ENTRY, NAMED)
    fold.apply(trash_key(ORDERS, ENTRY.id), None, where="test")
    assert fold.trash(ORDERS) == [NAMED]
    fold.apply(trash_key(ORDERS, NAMED.id), None, where="test")
    assert (fold.trash(ORDERS), fold.trash_partitions()) == ([], ())


def test_fields_of_a_later_version_are_carried_along() -> None:
    fold = StateFold()
    fold.apply(trash_key(ORDERS, ID), written(ENTRY, v=7, vault="b"), where="test")
    value = fold.trash_value(ORDERS, replace(ENTRY, decided_ms=1_600))
    assert value is not None
    assert b'"v":7' in value
    assert b'"vault":"b"' in value


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(b"trash/x/0/0/0/retention/1", id="no topic id"),
        pytest.param(partition_key(ORDERS).replace(b"partition", b"trash"), id="no entry"),
        pytest.param(trash_key(ORDERS, ID).replace(b"retention", b"whim"), id="a kind of a later version"),
        pytest.param(b"\xff/a/b/c/d/e/f", id="not text"),
    ],
)
def test_keys_of_something_else_are_left_alone(key: bytes) -> None:
    assert read_trash_key(key) is None
    fold = StateFold()
    fold.apply(key, written(ENTRY), where="test")
    assert fold.trash_partitions() == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b'"due_ms":9000', b'"due_ms":"9000"', id="a time that is text"),
        pytest.param(b'"due_ms":9000', b'"due_ms":true', id="a time that is a truth value"),
        pytest.param(b'"up_to":70', b'"to":70', id="no offset"),
        pytest.param(b'"segments":[]', b'"segments":["x"]', id="a segment id that is none"),
        pytest.param(b'"segments":[]', b'"segments":7', id="segments that are a number"),
        pytest.param(b'"purged_ms":-1', b'"purged_ms":1e3', id="a purge that is no integer"),
    ],
)
def test_what_cannot_be_read_counts_for_nothing(old: bytes, new: bytes) -> None:
    """So nothing of it becomes due: what it was about is decided anew."""
    value = written(ENTRY)
    assert old in value
    fold = StateFold()
    fold.apply(trash_key(ORDERS, ID), value.replace(old, new), where="test")
    assert fold.trash(ORDERS) == []
