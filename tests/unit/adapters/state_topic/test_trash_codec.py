"""Entries of the trash, as records of the state topic."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.metadata_events import ORDERS
from tiersidecar.adapters.state_topic.codec import partition_key, write_state
from tiersidecar.adapters.state_topic.fold import StateFold
from tiersidecar.adapters.state_topic.record_codecs import read_trash_key, trash_key, write_trash_entry
from tiersidecar.decide.trash_time import TrashTime
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.trash import MOST_DECIDERS, TrashEntry, TrashId, TrashKind
from tiersidecar.ports.state_log import PartitionState, SeenGeneration

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
    by=st.sampled_from(["x", "y", "z"]),
)
BOTH = replace(ENTRY, by="x", up_to=Offset(50)).merged_with(replace(ENTRY, decided_ms=1_600, by="y", up_to=Offset(60)))


def written(entry: TrashEntry, **former: Any) -> bytes:
    return write_trash_entry(ORDERS, entry, former)


def folded(*several: TrashEntry) -> StateFold:
    fold = StateFold()
    for entry in several:
        fold.apply(trash_key(ORDERS, entry.id), written(entry), where="test")
    return fold


def test_keys_can_be_read_by_people_and_sort_by_generation() -> None:
    assert trash_key(ORDERS, ID) == partition_key(ORDERS).replace(b"partition", b"trash") + b"/1/4/retention/1000"


@pytest.mark.parametrize(
    "entry", [ENTRY, NAMED, replace(ENTRY, purged_ms=1_500), BOTH], ids=["offset", "segments", "purged", "of two"]
)
def test_an_entry_comes_back_as_it_was(entry: TrashEntry) -> None:
    fold = folded(entry)
    assert fold.trash(ORDERS) == [entry]
    assert fold.trash_partitions() == (ORDERS,)
    assert fold.trash_value(ORDERS, entry) is None


@given(several=st.lists(entries, min_size=1, max_size=4))
def test_decisions_of_one_entry_merge_in_whatever_order_and_however_often(several: list[TrashEntry]) -> None:
    folds = [folded(*order) for order in permutations(several)]
    (merged,) = {fold.trash(ORDERS)[0] for fold in folds}
    assert all(merged.contains(entry) for entry in several)
    assert merged.due_ms == max(entry.due_ms for entry in several), "nothing of it is due before its last decision is"
    for fold, order in zip(folds, permutations(several), strict=True):
        assert folded(*order, *order).trash(ORDERS) == [merged]
        value = fold.mended_value(trash_key(ORDERS, ID)) or written(order[-1])
        alone = StateFold()
        alone.apply(trash_key(ORDERS, ID), value, where="test")
        assert alone.trash(ORDERS) == [merged], "compaction leaves only the last record"


def test_what_was_decided_after_a_purge_is_not_purged() -> None:
    purged = replace(ENTRY, purged_ms=ENTRY.decided_ms)
    assert TrashTime(now_ms=0).is_due(purged)
    later = purged.merged_with(replace(ENTRY, decided_ms=1_600, due_ms=9_100, up_to=Offset(80)))
    assert not TrashTime(now_ms=9_099).is_due(later)
    assert TrashTime(now_ms=9_100).is_due(later)


def test_an_entry_of_several_names_each() -> None:
    assert BOTH.all_by == "x; y"
    assert [(decision.by, decision.decided_ms, decision.up_to) for decision in BOTH.decisions] == [
        ("x", 1_500, 50),
        ("y", 1_600, 60),
    ]
    again = BOTH.merged_with(replace(ENTRY, decided_ms=1_700, by="x", up_to=Offset(55)))
    assert [(decision.by, decision.decided_ms, decision.up_to) for decision in again.decisions] == [
        ("y", 1_600, 60),
        ("x", 1_700, 55),
    ]


def test_of_very_many_the_latest_are_named() -> None:
    several = [replace(ENTRY, decided_ms=number, by=f"user {number}") for number in range(MOST_DECIDERS + 5)]
    (merged,) = folded(*several).trash(ORDERS)
    assert merged.decisions[0].by == "user 5"
    assert len(merged.decisions) == MOST_DECIDERS
    assert folded(*several[::-1], *several).trash(ORDERS) == [merged]


def test_a_sidecar_of_a_former_release_that_decides_last_is_named_with_those_before_it() -> None:
    """It carries along what it does not know."""
    former = json.loads(written(BOTH)) | {"by": "z", "decided_ms": 1_700, "up_to": 80}
    fold = StateFold()
    fold.apply(trash_key(ORDERS, ID), json.dumps(former).encode(), where="test")
    (entry,) = fold.trash(ORDERS)
    assert [(decision.by, decision.up_to) for decision in entry.decisions] == [("x", 50), ("y", 60), ("z", -1)]
    assert fold.trash_value(ORDERS, entry) is None


@pytest.mark.parametrize("deciders", [None, 7, "x", [7], [[1, 2]], [["x", 2, "y"]], [[1, None, "y"]]])
def test_names_that_cannot_be_read_take_no_decision_away(deciders: object) -> None:
    fold = StateFold()
    value = json.dumps(json.loads(written(BOTH)) | {"deciders": deciders}).encode()
    fold.apply(trash_key(ORDERS, ID), value, where="test")
    assert fold.trash(ORDERS) == [replace(BOTH, deciders=())]


def test_a_record_of_the_former_format_names_one() -> None:
    former = {name: value for name, value in json.loads(written(ENTRY)).items() if name != "deciders"}
    fold = StateFold()
    fold.apply(trash_key(ORDERS, ID), json.dumps(former).encode(), where="test")
    assert fold.trash(ORDERS) == [ENTRY]


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


UNDONE_IN_PART = PartitionState(start_generation=1, kept=(ENTRY,))
"""What ``undelete --to-offset`` says: a start of generation 1, and what of the trash stands in it."""


def said(fold: StateFold, *states: PartitionState) -> StateFold:
    for state in states:
        value = fold.merged_value(ORDERS, state)
        assert value is not None
        fold.apply(partition_key(ORDERS), value, where="test")
    return fold


def test_what_an_undelete_kept_counts_with_its_start_until_the_leader_has_answered() -> None:
    fold = said(StateFold(), UNDONE_IN_PART)
    assert (fold.trash(ORDERS), fold.trash_partitions()) == ([ENTRY], (ORDERS,))
    purged = replace(ENTRY, purged_ms=ENTRY.decided_ms)
    fold.apply(trash_key(ORDERS, ID), fold.trash_value(ORDERS, purged), where="test")
    assert fold.trash(ORDERS) == [purged], "with what was decided on it meanwhile"
    said(fold, PartitionState(seen=SeenGeneration(generation=1, leader_epoch=LeaderEpoch(4))))
    fold.apply(trash_key(ORDERS, ID), None, where="test")
    assert (fold.trash(ORDERS), fold.trash_partitions(), fold.partition_state(ORDERS).kept) == ([], (), ())


ANSWERED = SeenGeneration(generation=1, leader_epoch=LeaderEpoch(4))
LATER = replace(ENTRY, id=replace(ID, generation=2))


@pytest.mark.parametrize(
    ("states", "kept"),
    [
        pytest.param([UNDONE_IN_PART], (ENTRY,), id="until somebody answers"),
        pytest.param([UNDONE_IN_PART, PartitionState(seen=ANSWERED)], (), id="an answer ends it"),
        pytest.param(
            [UNDONE_IN_PART, PartitionState(seen=replace(ANSWERED, generation=0))],
            (ENTRY,),
            id="no answer to an earlier one",
        ),
        pytest.param(
            [UNDONE_IN_PART, PartitionState(start_generation=2)], (), id="a later undelete that keeps nothing"
        ),
        pytest.param(
            [UNDONE_IN_PART, PartitionState(start_generation=2, kept=(LATER,))], (LATER,), id="a later one's own"
        ),
        pytest.param(
            [UNDONE_IN_PART, PartitionState(start_generation=2, kept=(LATER,)), PartitionState(seen=ANSWERED)],
            (LATER,),
            id="a later one's, which nobody has answered",
        ),
        pytest.param(
            [UNDONE_IN_PART, replace(UNDONE_IN_PART, kept=(replace(ENTRY, up_to=Offset(75)),))],
            (replace(ENTRY, up_to=Offset(75)),),
            id="of two at once both",
        ),
        pytest.param(
            [UNDONE_IN_PART, PartitionState(start_generation=1)], (ENTRY,), id="who says nothing of it ends nothing"
        ),
    ],
)
def test_what_is_kept_is_what_the_last_undelete_kept_and_nobody_has_answered(
    states: list[PartitionState], kept: tuple[TrashEntry, ...]
) -> None:
    for order in permutations(states):
        fold = StateFold()
        for one in order:
            fold.apply(partition_key(ORDERS), write_state(one, {"topic": ORDERS.topic}), where="test")
        assert fold.partition_state(ORDERS).kept == kept
        value = fold.mended_value(partition_key(ORDERS)) or write_state(order[-1], {"topic": ORDERS.topic})
        alone = StateFold()
        alone.apply(partition_key(ORDERS), value, where="test")
        assert alone.trash(ORDERS) == list(kept), "compaction leaves only the last record"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b'"due_ms":9000', b'"due_ms":"9000"', id="a time that is text"),
        pytest.param(b'"kind":"retention"', b'"kind":"whim"', id="a kind of a later version"),
        pytest.param(b'"opened_ms":1000', b'"opened":1000', id="no time that names it"),
        pytest.param(b'"kept":[{', b'"kept":[7,{', id="a number among them"),
    ],
)
def test_a_partitions_record_whose_kept_entries_cannot_be_read_counts_for_nothing(old: bytes, new: bytes) -> None:
    value = write_state(UNDONE_IN_PART, {})
    assert old in value
    fold = StateFold()
    fold.apply(partition_key(ORDERS), value.replace(old, new), where="test")
    assert (fold.partition_state(ORDERS), fold.trash(ORDERS)) == (PartitionState(), [])
