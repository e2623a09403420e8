"""A partition's trash over its leader's rounds, in memory: nothing goes before its own delay, whatever dies or is refused
between the steps (issue 16: trash)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.expiry import HOUR_MS
from tests.support.expiry_world import run
from tests.support.segments import TOPIC_ID_PARTITION
from tests.support.undelete_world import DELAYS, UndeleteWorld, command_config
from tiersidecar.app.commands.trash import look_at_purge
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.trash import FINAL, TrashKind
from tiersidecar.reading.user_deletes import Asker, UserDelete


@pytest.fixture
def there(tmp_path: Path) -> UndeleteWorld:
    made = UndeleteWorld(command_config(tmp_path))
    run(made.sidecar.round())
    assert made.start == 0
    return made


async def die(*_: object) -> None:
    raise ConnectionError


def test_a_users_delete_that_died_behind_its_entry_makes_nothing_of_retentions_due(
    there: UndeleteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker = Asker(by="a user", now_ms=there.clock.now_ms(), delays=replace(DELAYS, user_ms=0))
    delete = UserDelete(offset=Offset(60), leader_epoch=LeaderEpoch(0), trims=False)
    with monkeypatch.context() as patch, suppress(ConnectionError):
        patch.setattr(there.world.state, "publish_partition_state", die)
        run(delete.say(there.world.state, TOPIC_ID_PARTITION, asker))  # type: ignore[arg-type]
    assert there.start == 0
    there.restart(segments_kept=3)
    run(there.sidecar.round())
    run(there.sidecar.round())
    assert there.start == 50
    assert len(there.world.readable()) == 8
    there.pass_time(DELAYS.retention_ms)
    run(there.sidecar.round())
    run(there.sidecar.round())
    assert len(there.world.readable()) == 3
    assert there.world.state.trash(TOPIC_ID_PARTITION) == [], "nor does what nobody said stay in the trash for ever"


def test_the_delay_counts_from_when_the_start_follows(there: UndeleteWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delay of 5 min; the process dies behind the entry, and the next one comes 9 min later."""
    monkeypatch.setattr("tests.support.undelete_world.DELAYS", TrashDelays(retention_ms=300_000, user_ms=300_000))
    there.restart(segments_kept=3)
    with monkeypatch.context() as patch, suppress(ConnectionError):
        patch.setattr(there.world.state, "publish_partition_state", die)
        run(there.sidecar.round())
    assert there.start == 0
    there.pass_time(540_000)
    run(there.sidecar.round())
    run(there.sidecar.round())
    assert there.start == 50
    assert len(there.world.readable()) == 8
    there.pass_time(300_000)
    run(there.sidecar.round())
    assert len(there.world.readable()) == 3


def test_what_is_decided_while_the_clock_is_back_waits_its_delay_once_the_clock_is_right(there: UndeleteWorld) -> None:
    """A delete of everything asks for no sound clock."""
    there.clock.skew_ms = -25 * HOUR_MS
    there.sidecar.policy = replace(there.sidecar.policy, delete_remote=True)
    run(there.sidecar.round())
    decided = [one for one in there.world.state.trash(TOPIC_ID_PARTITION) if one.kind is TrashKind.DISABLE]
    assert [one.decided_ms for one in decided] == [there.clock.true_ms]
    there.clock.skew_ms = 0
    there.pass_time(60_000)
    run(there.sidecar.round())
    assert len(there.world.readable()) == 8
    there.pass_time(25 * HOUR_MS)
    run(there.sidecar.round())
    assert len(there.world.readable()) == 8, "a clock that was once in doubt is, until the sidecar is restarted"
    there.restart(segments_kept=8)
    there.sidecar.policy = replace(there.sidecar.policy, delete_remote=True)
    run(there.sidecar.round())
    assert there.world.readable() == []


def purge(there: UndeleteWorld) -> None:
    async def work() -> None:
        intent = await look_at_purge(there.session, TOPIC_ID_PARTITION.topic, None, None)
        assert intent.apply is not None
        await intent.apply()

    run(work())


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("seconds", [0, 1])
def test_what_was_purged_is_not_undone_with_a_later_delete_of_its_window(
    there: UndeleteWorld, rounds: int, seconds: int
) -> None:
    there.delete(20)
    purge(there)
    assert there.world.state.partition_state(TOPIC_ID_PARTITION).user_deletes[-1].opened_ms == FINAL
    for _ in range(rounds):
        run(there.sidecar.round())
    assert there.look(to_offset=0).refusal
    there.pass_time(seconds * 1000)
    there.delete(30)
    there.undelete()
    assert there.start == 20
    assert there.look(to_offset=5).refusal


def test_a_purge_that_dies_leaves_no_purged_delete_that_can_be_undone(
    there: UndeleteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.delete(20)
    with monkeypatch.context() as patch, suppress(ConnectionError):
        patch.setattr(there.world.state, "put_into_trash", die)
        purge(there)
    run(there.sidecar.round())
    assert len(there.world.readable()) == 8, "it waits its delay, as nobody purged it"
    assert there.look(to_offset=0).refusal
    there.pass_time(DELAYS.user_ms)
    run(there.sidecar.round())
    assert len(there.world.readable()) == 6


def test_a_purge_by_a_former_release_is_not_undone_either(there: UndeleteWorld) -> None:
    """It marked the entry alone."""
    there.delete(20)
    entries = there.world.state.trash(TOPIC_ID_PARTITION)
    run(
        there.world.state.put_into_trash(
            TOPIC_ID_PARTITION, [replace(entry, purged_ms=entry.decided_ms) for entry in entries]
        )
    )
    there.pass_time(1000)
    there.delete(30)
    there.undelete()
    assert there.start == 20
