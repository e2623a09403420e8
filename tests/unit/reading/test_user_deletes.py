"""A user's delete, said where the state topic was not read to its end (issue 16: trash)."""

from __future__ import annotations

import pytest

from tests.support.scripted import MemoryStateLog
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.trash import FINAL, SaidDelete, TrashKind
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.reading.user_deletes import Asker, UserDelete

ASKER = Asker(by="a user", now_ms=1_000_000, delays=TrashDelays(retention_ms=2_000, user_ms=1_000))
DELETE = UserDelete(offset=Offset(30), leader_epoch=LeaderEpoch(0), trims=False)


async def test_a_delete_that_was_undone_elsewhere_is_said_again() -> None:
    state = MemoryStateLog()
    assert await DELETE.say(state, TOPIC_ID_PARTITION, ASKER) == 30
    back = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(0), start_generation=1)
    state.publish_elsewhere(TOPIC_ID_PARTITION, back)
    assert await DELETE.say(state, TOPIC_ID_PARTITION, ASKER) == 30
    await state.catch_up()
    assert (
        state.partition_state(TOPIC_ID_PARTITION).remote_log_start_offset,
        state.partition_state(TOPIC_ID_PARTITION).start_generation,
    ) == (30, 1)
    assert [one.id.generation for one in state.trash(TOPIC_ID_PARTITION)] == [0, 1]


def known(*, start: tuple[int, int], deletes: tuple[tuple[int, int], ...], trim: tuple[int, int]) -> PartitionState:
    """Each as leader epoch and offset."""
    return PartitionState(
        remote_log_start_epoch=LeaderEpoch(start[0]),
        remote_log_start_offset=Offset(start[1]),
        user_deletes=tuple(SaidDelete(leader_epoch=LeaderEpoch(epoch), offset=Offset(to)) for epoch, to in deletes),
        trim_epoch=LeaderEpoch(trim[0]),
        trim_offset=Offset(trim[1]),
    )


NEVER = (-1, -1)


@pytest.mark.parametrize(
    ("start", "deletes", "trim", "trims", "is_said"),
    [
        pytest.param(NEVER, (), NEVER, False, False, id="nobody has said anything"),
        pytest.param((5, 30), ((5, 30),), NEVER, False, True, id="it was said, just so"),
        pytest.param((6, 40), ((6, 40),), NEVER, False, True, id="more was deleted later"),
        pytest.param((5, 29), ((5, 29),), NEVER, False, False, id="one record less was deleted"),
        pytest.param((4, 30), ((4, 30),), NEVER, False, False, id="an earlier leader said it, maybe of a history cut off"),
        pytest.param((5, 30), (), NEVER, False, False, id="retention moved the start there, which can be undone"),
        pytest.param((5, 30), ((5, 20),), NEVER, False, False, id="a user deleted a part, retention the rest"),
        pytest.param((5, 30), ((4, 30),), NEVER, False, False, id="an earlier leader's delete, and retention's start now"),
        pytest.param((5, 30), ((4, 40), (5, 20)), NEVER, False, False, id="no single delete is of this leader and so far"),
        pytest.param((5, 20), ((5, 30),), NEVER, False, False, id="the start is not there, whatever was deleted"),
        pytest.param((4, 30), ((5, 30),), NEVER, False, False, id="the start is an earlier leader's"),
        pytest.param((5, 30), ((5, 30),), NEVER, True, False, id="the broker's start is to move too, and nobody said so"),
        pytest.param((5, 30), ((5, 30),), (5, 30), True, True, id="the broker's start was said to move there"),
        pytest.param((5, 30), ((5, 30),), (6, 50), True, True, id="it was said to move further, by a later leader"),
        pytest.param((5, 30), ((5, 30),), (5, 29), True, False, id="it was said to move less far"),
        pytest.param((5, 30), ((5, 30),), (4, 30), True, False, id="an earlier leader said that it moves"),
        pytest.param(NEVER, (), (5, 30), True, False, id="a trim of ours is no delete"),
    ],
)  # fmt: skip
def test_whether_a_delete_need_not_be_said_any_more(
    start: tuple[int, int], deletes: tuple[tuple[int, int], ...], trim: tuple[int, int], *, trims: bool, is_said: bool
) -> None:
    delete = UserDelete(offset=Offset(30), leader_epoch=LeaderEpoch(5), trims=trims)
    assert delete.is_said(known(start=start, deletes=deletes, trim=trim)) is is_said


async def test_what_goes_is_in_the_trash_with_where_it_began_and_the_delete_names_its_entry() -> None:
    state, epoch = MemoryStateLog(), LeaderEpoch(3)
    await state.publish_partition_state(TOPIC_ID_PARTITION, PartitionState().with_start(Offset(10), LeaderEpoch(2)))
    await UserDelete(offset=Offset(30), leader_epoch=epoch, trims=True).say(state, TOPIC_ID_PARTITION, ASKER)
    (entry,) = state.trash(TOPIC_ID_PARTITION)
    assert (entry.from_offset, entry.up_to, entry.by) == (10, 30, "a user")
    assert (entry.id.kind, entry.id.leader_epoch, entry.decided_ms, entry.due_ms) == (
        TrashKind.USER,
        epoch,
        1_000_000,
        1_001_000,
    )
    said = state.partition_state(TOPIC_ID_PARTITION)
    assert said.user_deletes == (SaidDelete(opened_ms=entry.id.opened_ms, leader_epoch=epoch, offset=Offset(30)),)
    assert (said.trim_offset, said.trim_epoch) == (30, epoch)


@pytest.mark.parametrize(
    ("retention_ms", "user_ms", "entries"),
    [
        pytest.param(0, 0, 0, id="deletes are done at once: nothing could ever be undone"),
        pytest.param(0, 1_000, 1, id="users' deletes wait"),
        pytest.param(2_000, 0, 1, id="a part of it retention would keep for longer"),
    ],
)
async def test_a_delete_is_in_the_trash_where_any_delay_is(retention_ms: int, user_ms: int, entries: int) -> None:
    state = MemoryStateLog()
    asker = Asker(by="a user", now_ms=1_000_000, delays=TrashDelays(retention_ms=retention_ms, user_ms=user_ms))
    await DELETE.say(state, TOPIC_ID_PARTITION, asker)
    assert len(state.trash(TOPIC_ID_PARTITION)) == entries
    assert state.partition_state(TOPIC_ID_PARTITION).trim_offset == -1, "nobody said that the broker's own start moves"
    (said,) = state.partition_state(TOPIC_ID_PARTITION).user_deletes
    assert (said.opened_ms == FINAL) is (entries == 0)


async def test_a_delete_shares_no_entry_with_one_whose_entry_is_gone() -> None:
    """It was carried out: undoing the later one would undo with it what was purged."""
    state = MemoryStateLog()
    await DELETE.say(state, TOPIC_ID_PARTITION, ASKER)
    (first,) = state.trash(TOPIC_ID_PARTITION)
    state.entries.clear()
    await UserDelete(offset=Offset(40), leader_epoch=LeaderEpoch(0), trims=False).say(state, TOPIC_ID_PARTITION, ASKER)
    (second,) = state.trash(TOPIC_ID_PARTITION)
    assert second.id.opened_ms > first.id.opened_ms


async def test_a_delete_shares_the_entry_of_one_that_can_still_be_undone() -> None:
    state = MemoryStateLog()
    await state.publish_partition_state(TOPIC_ID_PARTITION, PartitionState().with_start(Offset(0), LeaderEpoch(0)))
    await DELETE.say(state, TOPIC_ID_PARTITION, ASKER)
    await UserDelete(offset=Offset(40), leader_epoch=LeaderEpoch(0), trims=False).say(state, TOPIC_ID_PARTITION, ASKER)
    assert [(one.up_to, one.from_offset) for one in state.trash(TOPIC_ID_PARTITION)] == [(40, 0)]


async def test_a_delete_of_a_deposed_leader_is_refused_when_a_later_one_has_said_less() -> None:
    state = MemoryStateLog()
    await state.publish_partition_state(TOPIC_ID_PARTITION, PartitionState().with_start(Offset(20), LeaderEpoch(1)))
    with pytest.raises(BrokerRefusedError, match=r"DeleteRecords.*FENCED_LEADER_EPOCH"):
        await DELETE.say(state, TOPIC_ID_PARTITION, ASKER)


async def test_what_is_said_is_not_said_again() -> None:
    state = MemoryStateLog()
    await DELETE.say(state, TOPIC_ID_PARTITION, ASKER)
    before = state.partition_state(TOPIC_ID_PARTITION)
    state.entries.clear()
    assert await DELETE.say(state, TOPIC_ID_PARTITION, ASKER) == 30
    assert (state.partition_state(TOPIC_ID_PARTITION), state.trash(TOPIC_ID_PARTITION)) == (before, [])
