"""A user's delete, said where the state topic was not read to its end (issue 16: trash)."""

from __future__ import annotations

from tests.support.scripted import MemoryStateLog
from tests.support.segments import TIP
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.reading.user_deletes import Asker, UserDelete

ASKER = Asker(by="a user", now_ms=1_000_000, delays=TrashDelays(retention_ms=2_000, user_ms=1_000))
DELETE = UserDelete(offset=Offset(30), leader_epoch=LeaderEpoch(0), trims=False)


async def test_a_delete_that_was_undone_elsewhere_is_said_again() -> None:
    state = MemoryStateLog()
    assert await DELETE.say(state, TIP, ASKER) == 30
    back = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(0), start_generation=1)
    state.publish_elsewhere(TIP, back)
    assert await DELETE.say(state, TIP, ASKER) == 30
    await state.catch_up()
    assert (state.partition_state(TIP).remote_log_start_offset, state.partition_state(TIP).start_generation) == (30, 1)
    assert [one.id.generation for one in state.trash(TIP)] == [0, 1]
