"""What ``tiersidecar undelete`` does, and says afterwards, over a partition in memory (issue 16: trash)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.expiry import HOUR_MS
from tests.support.expiry_world import run
from tests.support.segments import TOPIC_ID_PARTITION
from tests.support.undelete_world import UndeleteWorld, command_config
from tiersidecar.decide.pressure_trim import DiskPressurePolicy
from tiersidecar.decide.trash import TrashDelays, replaced
from tiersidecar.domain.errors import BrokerRefusedError, TrashError
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.trash import TrashEntry, TrashKind


def users_entries(there: UndeleteWorld) -> list[TrashEntry]:
    return [one for one in there.world.state.trash(TOPIC_ID_PARTITION) if one.kind is TrashKind.USER]


@pytest.fixture
def there(tmp_path: Path) -> UndeleteWorld:
    """Eight remote segments of ten offsets; the first start is said."""
    made = UndeleteWorld(command_config(tmp_path))
    run(made.sidecar.round())
    assert made.start == 0
    return made


def test_what_retention_took_comes_back_is_confirmed_by_the_leader_and_is_held(there: UndeleteWorld) -> None:
    there.restart(segments_kept=3)
    run(there.sidecar.round())
    assert (there.start, len(there.world.readable())) == (50, 8)
    (step,) = there.look().steps
    assert "starts at 0 again; 5 remote segments" in step
    (found,) = there.undelete()["came_back"]
    assert found == {"partition": TOPIC_ID_PARTITION.partition, "from_offset": 0, "missing": [], "confirmed": True}
    run(there.sidecar.round())
    assert (there.start, there.world.state.trash(TOPIC_ID_PARTITION)) == (0, [])
    there.release()
    run(there.sidecar.round())
    assert there.start == 50


@pytest.mark.parametrize(("policy", "waits"), [("keep", False), ("trim-copied", True), ("drop-oldest", True)])
def test_where_a_full_disk_takes_what_is_not_due_it_looks_again_later(tmp_path: Path, policy: str, waits: bool) -> None:
    """A sidecar may stand still right before its DeleteRecords; what came back was said to be there, and went."""
    config = command_config(tmp_path).model_copy(update={"disk_pressure_policy": DiskPressurePolicy(policy)})
    there = UndeleteWorld(config)
    run(there.sidecar.round())
    there.delete(30)
    began_ms = there.clock.now_ms()
    notes = there.look().notes
    assert any("may be on its way" in note for note in notes) is waits
    there.undelete()
    assert (there.clock.now_ms() - began_ms >= 30_000) is waits


def test_where_nobody_answers_it_is_done_and_says_so(there: UndeleteWorld) -> None:
    there.delete(30)
    there.clock.rounds = []
    (found,) = there.undelete()["came_back"]
    assert (there.start, found["confirmed"], found["missing"]) == (0, False, [])


def test_a_users_delete_comes_back_within_its_delay_and_never_after_it(there: UndeleteWorld) -> None:
    there.delete(35)
    assert there.undelete()
    assert there.start == 0
    there.delete(35)
    there.pass_time(HOUR_MS)
    run(there.sidecar.round())
    run(there.sidecar.round())
    assert (there.readable(), there.world.state.trash(TOPIC_ID_PARTITION)) == ([30, 40, 50, 60, 70], [])
    there.restart(segments_kept=2)
    run(there.sidecar.round())
    assert there.start == 60
    there.undelete()
    assert there.start == 35, "the segment is there from 30 on"
    assert "users have deleted what is below offset 35" in there.look(to_offset=32).refusal


def test_a_users_delete_below_what_retention_took_outlives_an_undelete(there: UndeleteWorld) -> None:
    there.restart(segments_kept=2)
    run(there.sidecar.round())
    there.delete(36)
    assert [one.kind for one in there.world.state.trash(TOPIC_ID_PARTITION)] == [TrashKind.RETENTION, TrashKind.USER]
    there.pass_time(HOUR_MS)
    run(there.sidecar.round())
    run(there.sidecar.round())
    assert [one.start_offset for one in there.world.readable()] == [30, 40, 50, 60, 70]
    there.undelete()
    assert there.start == 36


def test_of_two_users_deletes_the_one_that_is_carried_out_stands(there: UndeleteWorld) -> None:
    there.delete(25)
    there.pass_time(HOUR_MS)
    run(there.sidecar.round())
    run(there.sidecar.round())
    there.delete(60)
    assert there.undelete()
    assert there.start == 25


def test_what_is_not_undone_waits_in_the_trash_on(there: UndeleteWorld) -> None:
    there.delete(60)
    (before,) = users_entries(there)
    there.undelete(to_offset=36)
    assert there.start == 36
    (kept,) = users_entries(there)
    assert (kept.kind, kept.up_to, kept.due_ms, kept.id.generation) == (TrashKind.USER, 36, before.due_ms, 1)
    there.undelete()
    assert there.start == 0


def test_a_users_delete_that_comes_between_the_look_and_the_deed_stands_and_is_told(there: UndeleteWorld) -> None:
    there.delete(30)
    intent = there.look()
    there.delete(50)
    assert intent.apply is not None
    with pytest.raises(TrashError, match="below offset 50 meanwhile"):
        run(intent.apply())  # type: ignore[arg-type]
    assert there.start == 50


def test_a_users_delete_that_was_on_its_way_meanwhile_is_refused_and_said_again(there: UndeleteWorld) -> None:
    there.restart(segments_kept=2)
    run(there.sidecar.round())
    delete = there.delete_steps(50)
    while delete.send(None) != "state.sent":
        pass
    there.undelete()
    with pytest.raises(BrokerRefusedError):
        run(delete)
    there.delete(50)
    assert there.start == 50


def test_what_went_while_it_was_done_is_named(there: UndeleteWorld) -> None:
    """The leader has sent DELETE_SEGMENT_STARTED before it read that it is undone."""
    there.delete(30)
    there.pass_time(HOUR_MS)
    intent = there.look()
    steps = there.sidecar.round()
    while steps.send(None) != "delete.started.published":
        pass
    there.clock.rounds = []
    assert intent.apply is not None
    with pytest.raises(TrashError, match=r"offsets 0 to 9 were due, and deleted while this was done; the rest"):
        run(intent.apply())  # type: ignore[arg-type]
    run(steps)
    assert (there.start, there.readable()) == (0, [10, 20, 30, 40, 50, 60, 70])


def test_what_was_deleted_before_the_first_copy_stays_away(tmp_path: Path) -> None:
    there = UndeleteWorld(command_config(tmp_path))
    first = there.world.state.partition_state(TOPIC_ID_PARTITION).with_delete(Offset(36), LeaderEpoch(0))
    run(there.world.state.publish_partition_state(TOPIC_ID_PARTITION, first))
    assert (there.look().steps, there.start) == ((), 36)


def test_a_hold_outlives_a_users_delete_and_its_undelete(there: UndeleteWorld) -> None:
    """The second undelete begins from a lower start than the one that the hold lasts to."""
    there.restart(segments_kept=3)
    run(there.sidecar.round())
    assert there.start == 50
    for _ in range(2):
        there.undelete()
        there.delete(5)
        run(there.sidecar.round())
        assert there.start == 5
    there.release()
    run(there.sidecar.round())
    assert there.start == 50


def test_a_hold_that_was_released_lasts_no_longer_than_the_next_one_says(there: UndeleteWorld) -> None:
    there.restart(segments_kept=3)
    run(there.sidecar.round())
    there.undelete()
    there.release()
    there.delete(5)
    there.undelete()
    hold = there.world.state.partition_state(TOPIC_ID_PARTITION).hold
    assert hold is not None
    assert (hold.is_held, hold.until) == (True, 5)


@pytest.mark.parametrize("is_answered", [True, False])
def test_an_undelete_in_part_that_ends_behind_its_start_leaves_what_waits_undeletable(
    there: UndeleteWorld, monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    """Between the start and any other record the command may end: what it kept of the trash comes with the start."""
    there.delete(40)
    with monkeypatch.context() as patch, suppress(ConnectionError):

        async def die(*_: object) -> None:
            raise ConnectionError

        patch.setattr(there.world.state, "put_into_trash", die)
        patch.setattr(there.world.state, "take_out_of_trash", die)
        there.undelete(to_offset=20)
    assert there.start == 20
    if is_answered:
        run(there.sidecar.round())
        run(there.sidecar.round())
    (entry,) = [one for one in users_entries(there) if one.id.generation == 1]
    assert entry.up_to == 20
    assert there.undelete(to_offset=10)
    assert there.undelete(to_offset=0)
    assert there.start == 0


def test_what_an_undelete_kept_is_purged_and_done_once(there: UndeleteWorld) -> None:
    """Nobody has answered; what was purged meanwhile does not come back with the answer."""
    there.delete(40)
    there.clock.rounds = []
    there.undelete(to_offset=20)
    (entry,) = users_entries(there)
    run(there.world.state.put_into_trash(TOPIC_ID_PARTITION, [replace(entry, purged_ms=entry.decided_ms)]))
    for _ in range(3):
        run(there.sidecar.round())
    assert (there.readable(), users_entries(there)) == ([20, 30, 40, 50, 60, 70], [])
    assert there.look(to_offset=0).refusal


def test_an_undelete_that_another_came_before_is_refused(there: UndeleteWorld) -> None:
    there.delete(40)
    intent = there.look(to_offset=20)
    there.undelete(to_offset=30)
    assert intent.apply is not None
    with pytest.raises(TrashError, match="meanwhile; look again"):
        run(intent.apply())  # type: ignore[arg-type]
    assert there.start == 30


def test_what_an_erasure_replaced_stays_in_the_trash_through_an_undelete(there: UndeleteWorld) -> None:
    there.restart(segments_kept=3)
    run(there.sidecar.round())
    first = min(there.world.readable(), key=lambda one: one.start_offset)
    erased = replaced(
        [first],
        LeaderEpoch(0),
        opened_ms=1,
        delays=TrashDelays(user_ms=HOUR_MS),
        now_ms=there.clock.now_ms(),
        by="erase",
    )
    run(there.world.state.put_into_trash(TOPIC_ID_PARTITION, [erased]))
    intent = there.look()
    assert any("1 segments that an erasure replaced do not come back" in note for note in intent.notes)
    there.undelete()
    assert there.start == 10, "nothing else has its offsets"
    assert erased in there.world.state.trash(TOPIC_ID_PARTITION)
    run(there.sidecar.round())
    assert erased in there.world.state.trash(TOPIC_ID_PARTITION), "nor does a round of the leader's sidecar void it"
    assert "an erasure replaced 1 segments" in there.look().refusal
