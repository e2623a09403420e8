"""What the state topic's records add up to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from sys import intern
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.metadata_events import ORDERS
from tiersidecar.adapters.state_topic.codec import (
    partition_key,
    read_partition_state,
    read_value,
    topic_key,
    write_state,
)
from tiersidecar.adapters.state_topic.fold import StateFold
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset
from tiersidecar.domain.trash import SaidDelete
from tiersidecar.ports.state_log import Hold, PartitionState, SaidStart, TopicState

KEY, TOPIC_KEY = partition_key(ORDERS), topic_key(ORDERS.topic_id)
TOPIC = TopicState(topic="orders", mode="strict", retention_ms=5, former_settings={"retention.ms": "7", "x": None})


def state(
    start: int = -1,
    start_epoch: int = -1,
    trim: int = -1,
    trim_epoch: int = -1,
    earlier: Sequence[tuple[int, int]] = (),
    generation: int = 0,
    hold: Hold | None = None,
    deletes: Sequence[tuple[int, int, int]] = (),
    undone: Sequence[tuple[int, int, int]] = (),
) -> PartitionState:
    """A delete is (opened_ms, leader epoch, offset)."""
    return PartitionState(
        remote_log_start_offset=Offset(start),
        remote_log_start_epoch=LeaderEpoch(start_epoch),
        trim_offset=Offset(trim),
        trim_epoch=LeaderEpoch(trim_epoch),
        earlier_starts=tuple(said(*one) for one in earlier),
        start_generation=generation,
        hold=hold,
        user_deletes=tuple(deleted(*delete) for delete in deletes),
        undone=tuple(deleted(*one) for one in undone),
    )


def deleted(opened_ms: int, leader_epoch: int, offset: int) -> SaidDelete:
    return SaidDelete(opened_ms=opened_ms, leader_epoch=LeaderEpoch(leader_epoch), offset=Offset(offset))


def said(offset: int, leader_epoch: int) -> SaidStart:
    return SaidStart(leader_epoch=LeaderEpoch(leader_epoch), offset=Offset(offset))


HELD = Hold(serial=1, is_held=True, until=Offset(20), since_ms=5, by="ops", reason="undelete")
RELEASED = replace(HELD, serial=2, is_held=False)

states = st.builds(state, *(st.integers(-1, 5) for _ in range(4)))
holds = st.none() | st.builds(Hold, serial=st.integers(0, 2), is_held=st.booleans(), until=st.integers(0, 5))
states_of_generations = st.builds(
    state, *(st.integers(-1, 5) for _ in range(4)), generation=st.integers(0, 2), hold=holds
)


def folded(*values: bytes | None, key: bytes = KEY) -> StateFold:
    fold = StateFold()
    for value in values:
        fold.apply(key, value, where="test")
    return fold


def written(value: PartitionState | TopicState, **more: Any) -> bytes:
    return write_state(value, more)


@pytest.mark.parametrize(
    ("trims", "held"),
    [
        pytest.param([(100, 1, 100)], 100, id="all of it was remote"),
        pytest.param([(100, 1, None)], 0, id="nothing of it was: the disk was full"),
        pytest.param([(100, 1, 100), (300, 1, None)], 100, id="then what was not"),
        pytest.param([(100, 1, 100), (300, 2, None)], 100, id="then what was not, by a later leader"),
        pytest.param([(300, 1, None), (400, 2, 400)], 400, id="what was not, and then what was"),
        pytest.param([(300, 2, None), (100, 1, 100)], 0, id="a deposed leader's word comes late"),
        pytest.param([(500, 1, 400)], 400, id="its last segments were not"),
        pytest.param([(500, 1, 450), (600, 2, 600)], 600, id="a later leader's"),
    ],
)
def test_how_far_trims_gave_up_what_was_remote(trims: list[tuple[int, int, int | None]], held: int) -> None:
    """A guard against a lost metadata topic: what nobody held proves nothing, and hides nothing."""
    known = PartitionState()
    for offset, epoch, held_offset in trims:
        said_held = None if held_offset is None else Offset(held_offset)
        known = known.merged_with(known.with_trim(Offset(offset), LeaderEpoch(epoch), said_held))
    assert known.held_in(Lineage.of([(0, 0)])) == held


def test_what_a_former_release_trimmed_was_remote() -> None:
    former = state(trim=100, trim_epoch=1)
    assert former.held_in(Lineage.of([(0, 0)])) == 100
    dropped = former.merged_with(former.with_trim(Offset(300), LeaderEpoch(2), None))
    assert (dropped.trim_offset, dropped.held_in(Lineage.of([(0, 0)]))) == (300, 100)
    assert dropped.held_in(Lineage.of([(0, 0), (3, 60)])) == 60, "as of another history"


def test_keys_and_values_can_be_read_by_people() -> None:
    assert KEY.decode() == f"partition/{format_uuid(ORDERS.topic_id)}/0"
    assert TOPIC_KEY.decode() == f"topic/{format_uuid(ORDERS.topic_id)}"
    value = StateFold().merged_value(ORDERS, state(10, 1))
    assert value is not None
    assert json.loads(value) == {
        "v": 1,
        "topic": "orders",
        "remote_log_start_offset": 10,
        "remote_log_start_epoch": 1,
        "trim_offset": -1,
        "held_epoch": -1,
        "held_offset": -1,
        "trim_epoch": -1,
        "accepted_loss_epoch": -1,
        "owner_seen_ms": -1,
        "earlier_starts": [],
        "start_generation": 0,
        "hold": None,
        "guard_stop": None,
        "user_deletes": [],
        "undone": [],
        "seen": None,
        "kept": [],
        "leader_epochs": [],
        "places_seen": [],
    }


def test_places_are_seen_by_whoever_says_so_in_whichever_order() -> None:
    """And a record without them, of a former release, forgets none (S-293)."""
    cold, far, none = (PartitionState(places_seen=places) for places in (("cold",), ("far",), ()))
    for one, other, last in permutations((cold, far, none)):
        assert one.merged_with(other).merged_with(last).places_seen == ("cold", "far")
    fold = StateFold()
    for number, one in enumerate((cold, far)):
        fold.apply(KEY, fold.merged_value(ORDERS, one), where=f"record {number}")
    former = json.loads(write_state(PartitionState(), {"topic": "orders"}))
    del former["places_seen"]
    fold.apply(KEY, json.dumps(former).encode(), where="record 3")
    assert fold.partition_state(ORDERS).places_seen == ("cold", "far")


@pytest.mark.parametrize("said", ["cold", [1], {}])
def test_places_that_are_no_list_of_names_are_no_record(said: object) -> None:
    document = json.loads(write_state(PartitionState(), {"topic": "orders"})) | {"places_seen": said}
    with pytest.raises(CorruptDataError, match="places_seen is"):
        read_partition_state(document, where="a test")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param(state(10, 1), state(20, 1), state(20, 1), id="an offset rises within an epoch"),
        pytest.param(state(20, 2), state(10, 2), state(20, 2), id="a lower offset of the same epoch is a no-op"),
        pytest.param(state(20, 2), state(30, 1), state(20, 2), id="whatever an earlier epoch says is a no-op"),
        pytest.param(
            state(20, 1),
            state(10, 2),
            state(10, 2, earlier=[(20, 1)]),
            id="a later epoch counts, after an unclean election too; a higher start of an earlier one is not forgotten",
        ),
        pytest.param(
            state(10, 2, earlier=[(20, 1)]),
            state(20, 2),
            state(20, 2),
            id="what the later epoch has reached need not be remembered",
        ),
        pytest.param(
            state(10, 2, earlier=[(20, 1)]),
            state(15, 3),
            state(15, 3, earlier=[(20, 1)]),
            id="an epoch that reached further than the one before leaves only the higher start of the first",
        ),
        pytest.param(
            state(10, 2, earlier=[(20, 1)]),
            state(30, 1),
            state(10, 2, earlier=[(20, 1)]),
            id="what an earlier epoch says too late is not remembered",
        ),
        pytest.param(state(10, 1), state(trim=5, trim_epoch=1), state(10, 1, 5, 1), id="the two offsets are apart"),
        pytest.param(
            state(20, 1, deletes=[(5, 1, 20)]),
            state(10, 1, deletes=[(9, 1, 10)]),
            state(20, 1, deletes=[(5, 1, 20), (9, 1, 10)]),
            id="users' deletes are told apart while each can be undone",
        ),
        pytest.param(
            state(20, 1, deletes=[(5, 1, 20)]),
            state(10, 1, deletes=[(5, 1, 10)]),
            state(20, 1, deletes=[(5, 1, 20)]),
            id="of those that share an entry the highest",
        ),
        pytest.param(
            state(20, 1, deletes=[(-1, 1, 20)]),
            state(30, 1, deletes=[(5, 1, 20), (6, 1, 30)]),
            state(30, 1, deletes=[(-1, 1, 20), (6, 1, 30)]),
            id="what a final delete contains needs no mention",
        ),
        pytest.param(
            state(20, 2),
            state(30, 1, deletes=[(5, 1, 30)]),
            state(20, 2),
            id="a user's delete that a deposed leader says is none",
        ),
        pytest.param(
            state(20, 2, deletes=[(5, 1, 20)]),
            state(deletes=[(-1, 1, 20)]),
            state(20, 2, deletes=[(-1, 1, 20)]),
            id="a purge makes final what an earlier leader said",
        ),
        pytest.param(
            state(20, 2, deletes=[(5, 1, 20)]),
            state(deletes=[(-1, 1, 10)]),
            state(20, 2, deletes=[(-1, 1, 10), (5, 1, 20)]),
            id="and no more of it than was purged",
        ),
        pytest.param(
            state(30, 1, deletes=[(-1, 1, 10), (5, 1, 30)]),
            state(10, 1, generation=1, deletes=[(-1, 1, 10)], undone=[(5, 1, 30)]),
            state(10, 1, generation=1, deletes=[(-1, 1, 10)], undone=[(5, 1, 30)]),
            id="an undelete takes back the deletes that it names",
        ),
        pytest.param(
            state(30, 1, deletes=[(5, 1, 30), (6, 1, 20)]),
            state(0, 1, generation=1, undone=[(5, 1, 25)]),
            state(0, 1, generation=1, deletes=[(5, 1, 30), (6, 1, 20)], undone=[(5, 1, 25)]),
            id="and none that it had not heard of",
        ),
        pytest.param(
            state(0, 1, generation=1, undone=[(5, 1, 30)]),
            state(30, 1, deletes=[(5, 1, 30), (6, 1, 40)]),
            state(0, 1, generation=1, undone=[(5, 1, 30)]),
            id="one that is said in the generation before is none: it is refused, and said again",
        ),
        pytest.param(
            state(20, 2, earlier=[(30, 1)]),
            state(5, 2, generation=1),
            state(5, 2, generation=1),
            id="a later generation sets the start back, and forgets what earlier epochs said",
        ),
        pytest.param(
            state(5, 2, generation=1),
            state(30, 3),
            state(5, 2, generation=1),
            id="what a leader of any epoch says in an earlier generation is a no-op",
        ),
        pytest.param(
            state(5, 2, generation=1),
            state(7, 3, generation=1),
            state(7, 3, generation=1),
            id="within a generation epochs count as ever",
        ),
        pytest.param(state(5, 2), state(hold=HELD), state(5, 2, hold=HELD), id="a hold leaves the offsets alone"),
        pytest.param(
            state(5, 2, hold=RELEASED),
            state(hold=HELD),
            state(5, 2, hold=RELEASED),
            id="a hold that was released stays released",
        ),
    ],
)
def test_a_deposed_leader_changes_nothing(
    first: PartitionState, second: PartitionState, expected: PartitionState
) -> None:
    fold = folded(written(first), written(second))
    assert fold.partition_state(ORDERS) == expected
    assert (KEY in fold.lowered) is (second != expected)


@given(several=st.lists(states, min_size=1, max_size=4))
def test_but_for_what_earlier_epochs_said_no_order_of_records_matters(several: list[PartitionState]) -> None:
    folds = [folded(*map(written, order)).partition_state(ORDERS) for order in permutations(several)]
    assert len({replace(final, earlier_starts=()) for final in folds}) == 1
    assert all(final.merged_with(one) == final for final in folds for one in (*several, final))


@given(several=st.lists(states_of_generations, min_size=1, max_size=4))
def test_the_latest_generation_counts_in_whatever_order_and_however_often(several: list[PartitionState]) -> None:
    folds = [folded(*map(written, order)).partition_state(ORDERS) for order in permutations(several)]
    assert len({replace(final, earlier_starts=()) for final in folds}) == 1
    latest = max(one.start_generation for one in several)
    of_latest = [one for one in several if one.start_generation == latest]
    for final in folds:
        assert final.start_generation == latest
        assert final.highest_start <= max(one.highest_start for one in of_latest)
        assert all(final.merged_with(one) == final for one in (*several, final))


@given(several=st.lists(states_of_generations, min_size=1, max_size=5))
def test_the_last_record_alone_says_all_once_it_is_mended(several: list[PartitionState]) -> None:
    """Compaction leaves nothing else."""
    fold = folded(*map(written, several))
    value = fold.mended_value(KEY) or written(several[-1])
    assert folded(value).partition_state(ORDERS) == fold.partition_state(ORDERS)


def test_a_start_decided_before_it_was_set_back_does_not_count() -> None:
    before = state(20, 2)
    decided = before.with_start(Offset(30), LeaderEpoch(3))
    set_back = before.merged_with(state(5, 2, generation=1))
    assert set_back.merged_with(decided) == set_back
    assert set_back.merged_with(set_back.with_start(Offset(30), LeaderEpoch(3))) == state(
        30, 3, generation=1, earlier=[]
    )


@pytest.mark.parametrize(
    ("known", "held"),
    [
        pytest.param(state(5, 2), False, id="nobody holds it"),
        pytest.param(state(5, 2, hold=HELD), True, id="held below where the start was"),
        pytest.param(state(20, 2, hold=HELD), False, id="a user deleted up to there again: it ends by itself"),
        pytest.param(state(5, 2, hold=RELEASED), False, id="released"),
    ],
)
def test_a_hold_ends_by_its_release_or_by_a_delete_that_reaches_as_far(known: PartitionState, held: bool) -> None:
    assert (known.hold_in(Lineage.of([(0, 0)])) is not None) is held


@given(several=st.lists(states, min_size=1, max_size=5), starts=st.lists(st.integers(0, 6), min_size=6, max_size=6))
def test_the_start_of_a_history_never_falls_whoever_speaks(several: list[PartitionState], starts: list[int]) -> None:
    """A new leader that had not heard the old one takes nothing back (S-067; simulation, cluster seed 922)."""
    lineage = Lineage.of(enumerate(starts))
    known = PartitionState()
    for one in several:
        merged = known.merged_with(one)
        assert merged.start_in(lineage) >= known.start_in(lineage)
        known = merged


@given(several=st.lists(states, min_size=1, max_size=5), starts=st.lists(st.integers(0, 6), min_size=6, max_size=6))
def test_a_batch_tells_by_its_epoch_what_a_lineage_tells_of_its_offset(
    several: list[PartitionState], starts: list[int]
) -> None:
    lineage, fold = Lineage.of(enumerate(starts)), folded(*map(written, several))
    known = fold.partition_state(ORDERS)
    for offset in range(lineage.entries[0].start_offset, 8):
        epoch = lineage.epoch_for_offset(offset)
        assert epoch is not None
        is_deleted = offset < known.start_in(lineage)
        assert (offset < known.start_for(epoch)) is is_deleted
        assert not is_deleted or offset < fold.highest_start(ORDERS.topic_id, ORDERS.partition)


def test_the_highest_start_is_forgotten_with_its_partition() -> None:
    fold = folded(written(state(20, 1)), written(state(10, 2)))
    assert fold.highest_start(ORDERS.topic_id, ORDERS.partition) == 20
    assert fold.highest_start(ORDERS.topic_id, ORDERS.partition + 1) == -1
    fold.apply(KEY, None, where="test")
    assert fold.highest_start(ORDERS.topic_id, ORDERS.partition) == -1


@pytest.mark.parametrize(
    ("epochs", "start"),
    [
        pytest.param([(1, 0), (2, 200)], 92, id="the new leader has all of the old one's log: the delete holds"),
        pytest.param(
            [(1, 0), (2, 80)], 80, id="an unclean election cut the log at 80: what is new from there on was not deleted"
        ),
        pytest.param([(2, 0)], 0, id="all replicas were lost and the log began anew: nothing of it was deleted"),
    ],
)
def test_a_start_that_a_new_leader_had_not_heard_of_counts_as_far_as_the_history_goes(
    epochs: list[tuple[int, int]], start: int
) -> None:
    fold = folded(written(state(92, 1)), written(state(0, 2)))
    assert fold.partition_state(ORDERS).start_in(Lineage.of(epochs)) == start
    value = fold.mended_value(KEY)
    assert value is not None, "compaction would leave only the last record"
    assert folded(value).partition_state(ORDERS).start_in(Lineage.of(epochs)) == start


def test_what_a_deposed_leader_lowered_is_mended_by_one_record() -> None:
    """After compaction only the last record of a key is left, so that one must be the highest."""
    fold = folded(written(state(20, 2, 30, 2)), written(state(10, 1)))
    value = fold.mended_value(KEY)
    assert value is not None
    assert folded(value).partition_state(ORDERS) == state(20, 2, 30, 2)
    fold.apply(KEY, value, where="test")
    assert fold.mended_value(KEY) is None


def test_a_state_that_says_nothing_makes_the_partition_known_and_is_written_once() -> None:
    fold = StateFold()
    value = fold.merged_value(ORDERS, PartitionState())
    assert value is not None
    fold.apply(KEY, value, where="test")
    assert fold.partitions() == (ORDERS,)
    assert fold.partition_state(ORDERS) == PartitionState()
    assert fold.merged_value(ORDERS, PartitionState()) is None


def test_nothing_is_written_when_it_is_known() -> None:
    fold = folded(written(state(20, 2, 5, 1)))
    assert fold.merged_value(ORDERS, state(10, 2)) is None
    assert fold.merged_value(ORDERS, state(trim=5)) is None
    fold.apply(TOPIC_KEY, written(TOPIC), where="test")
    assert fold.topic_value(ORDERS.topic_id, TOPIC) is None


def test_the_epochs_of_the_latest_leader_count_and_its_first_word_of_them() -> None:
    def epochs(*entries: tuple[int, int]) -> PartitionState:
        return PartitionState().with_epochs(Lineage.of(entries))

    fold = folded(
        *(written(one) for one in (epochs((3, 0), (6, 450)), epochs((3, 0), (7, 336)), epochs((3, 0), (6, 450))))
    )
    assert fold.partition_state(ORDERS).leader_epochs == ((3, 0), (7, 336))
    fold.apply(KEY, written(epochs((7, 657))), where="test")
    fold.apply(KEY, written(state(10, 8)), where="test")
    assert fold.partition_state(ORDERS).leader_epochs == ((3, 0), (7, 336)), "the file has forgotten by then"
    many = PartitionState().with_epochs(Lineage.of((one, 10 * one) for one in range(20)))
    assert many.leader_epochs == tuple((one, 10 * one) for one in range(12, 20)), "the last of them"


def test_topic_state_is_replaced_and_removed() -> None:
    fold = folded(written(TOPIC), key=TOPIC_KEY)
    assert fold.topic_state(ORDERS.topic_id) == TOPIC
    other = TopicState(topic="orders", mode="race")
    value = fold.topic_value(ORDERS.topic_id, other)
    fold.apply(TOPIC_KEY, value, where="test")
    assert fold.topic_state(ORDERS.topic_id) == other
    fold.apply(TOPIC_KEY, None, where="test")
    fold.apply(KEY, None, where="test")
    assert fold.topic_state(ORDERS.topic_id) is None
    assert fold.topic_state(Uuid(bytes(16))) is None


def test_all_partitions_are_listed_with_their_topics_names() -> None:
    other = replace(ORDERS, partition=7)
    fold = folded(written(state(20, 2), topic="orders"))
    fold.apply(partition_key(other), written(state(1, 1), topic="orders"), where="test")
    fold.apply(b"partition/not-a-uuid/1", written(state(1, 1)), where="test")
    assert set(fold.partitions()) == {ORDERS, other}
    fold.apply(KEY, None, where="test")
    assert fold.partitions() == (other,)


def test_a_partition_that_is_removed_begins_anew() -> None:
    fold = folded(written(state(20, 2)), written(state(10, 1)), None)
    assert fold.partition_state(ORDERS) == state()
    assert not fold.lowered


def test_upgrade_a_record_without_the_fields_of_this_version_is_read() -> None:
    """Schema versions: one back.  A release that knew of no trash did not tell what a user deleted: none of it is undone."""
    known = folded(b'{"v":0,"remote_log_start_offset":7}').partition_state(ORDERS)
    assert known == state(7, deletes=[(-1, -1, 7)])


def test_downgrade_fields_of_the_next_version_are_carried_along() -> None:
    """Schema versions: one ahead.  A sidecar of this version beside a newer one must not drop what that one wrote."""
    fold = folded(b'{"v":2,"topic":"orders","remote_log_start_offset":7,"user_deletes":[],"cleaner_offset":99}')
    assert fold.partition_state(ORDERS) == state(7)
    value = fold.merged_value(ORDERS, state(8, 1))
    assert value is not None
    assert json.loads(value).items() >= {"v": 2, "cleaner_offset": 99, "remote_log_start_offset": 8}.items()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(None, b"{}", id="no key"),
        pytest.param(KEY, b"\xff", id="not text"),
        pytest.param(KEY, b"[1]", id="not an object"),
        pytest.param(KEY, b"{}", id="no version"),
        pytest.param(KEY, b'{"v":1,"trim_offset":"9"}', id="an offset that is a string"),
        pytest.param(KEY, b'{"v":1,"trim_offset":true}', id="an offset that is a truth value"),
        pytest.param(KEY, b'{"v":1,"earlier_starts":7}', id="earlier starts that are a number"),
        pytest.param(KEY, b'{"v":1,"earlier_starts":[{"leader_epoch":1}]}', id="an earlier start without its offset"),
        pytest.param(KEY, b'{"v":1,"hold":7}', id="a hold that is a number"),
        pytest.param(KEY, b'{"v":1,"hold":{"serial":1,"is_held":true}}', id="a hold that does not say until when"),
        pytest.param(KEY, b'{"v":1,"leader_epochs":7}', id="leader epochs that are a number"),
        pytest.param(KEY, b'{"v":1,"leader_epochs":[[1]]}', id="a leader epoch without its start"),
        pytest.param(KEY, b'{"v":1,"leader_epochs":[[2,0],[1,5]]}', id="leader epochs that do not ascend"),
        pytest.param(KEY, b'{"v":1,"x":' + b"[" * 100_000, id="nested beyond all bounds: it ended every sidecar"),
        pytest.param(TOPIC_KEY, b'{"v":1,"topic":"orders"}', id="a topic without its mode"),
        pytest.param(TOPIC_KEY, b'{"v":1,"topic":"orders","mode":7}', id="a mode that is a number"),
        pytest.param(b"topic/not-a-uuid", b'{"v":1}', id="a topic key without a topic id"),
        pytest.param(b"cluster/switches", b'{"v":3}', id="a key of a later version"),
        pytest.param(b"\xff\xfe", b'{"v":3}', id="a key that is not text"),
    ],
)
def test_what_cannot_be_read_is_passed_over(key: bytes | None, value: bytes) -> None:
    fold = folded(written(state(20, 2)))
    fold.apply(TOPIC_KEY, written(TOPIC), where="test")
    fold.apply(key, value, where="test")
    assert fold.partition_state(ORDERS) == state(20, 2)
    assert fold.topic_state(ORDERS.topic_id) == TOPIC


def test_texts_of_many_documents_are_kept_once_and_not_for_good() -> None:
    """An interned text outlives its documents on CPython 3.12.0 to 3.12.6."""
    value = json.dumps({"v": 1, "incarnation": "a life of a process"}).encode()
    one, other = (read_value(value, where="here")["incarnation"] for _ in range(2))
    assert one is other
    equal = " ".join(one.split())
    assert equal is not one
    assert intern(equal) is equal, "nobody had interned it before"
