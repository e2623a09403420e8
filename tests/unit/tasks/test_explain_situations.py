"""What explain says of a situation that was made on purpose is what then happens: the same verdict, for the reason that the
sidecar acts by, and at the time that it names and not before (issue 20)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.expiry import segment
from tests.support.explained_world import FIRST_RECORD_MS, HOUR_MS, NOW_MS, ExplainedWorld, open_explained_world
from tiersidecar.decide.expiry_view import ExpiryLimits
from tiersidecar.decide.explain import Finding
from tiersidecar.decide.segment_rows import RowState
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.errors import NotLedHereError
from tiersidecar.domain.ids import RemoteLogSegmentId, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import RetentionMode, TrimHolds
from tiersidecar.domain.segments import RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.ports.state_log import Hold, PartitionState

Act = Callable[[ExplainedWorld], Awaitable[object] | None]
DAY_MS = 24 * HOUR_MS
FIRST_IS_OF_MS, FOURTH_IS_OF_MS = FIRST_RECORD_MS + 48_000, FIRST_RECORD_MS + 195_000
"""When the newest records of the first and of the last sealed segment were written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """``copied``: all that is sealed is remote before ``policy`` holds.  ``given`` makes it, and then a round passes if it
    ``rests``.  ``says`` is part of what explain answers for ``offset``, and ``told`` what the sidecar itself tells as its
    reason.  Unless the answer is "with the next round" or names a time, nothing happens however long one waits, until
    ``mended``; never, where nothing mends it."""

    about: str
    state: RowState
    says: str
    offset: int = 0
    copied: bool = False
    policy: dict[str, Any] = field(default_factory=dict)
    limits: ExpiryLimits | None = None
    delay_h: float = 0.0
    observes: bool = False
    given: Act = lambda world: None
    rests: bool = True
    is_due: bool = False
    at_ms: int | None = None
    told: Callable[[ExplainedWorld], str] = lambda world: ""
    mended: Act | None = None
    deletes: bool = False
    """What is to happen is the deletion, and not that the start moves."""

    def has_happened(self, world: ExplainedWorld) -> bool:
        if self.about == "copy":
            return world.is_copied(self.offset)
        if self.about == "trim":
            return world.is_trimmed(self.offset)
        return world.is_deleted(self.offset) if self.deletes else world.is_given_up(self.offset)


async def do(world: ExplainedWorld, act: Act) -> None:
    done = act(world)
    if done is not None:
        await done


def set_lso(offset: int) -> Act:
    return lambda world: world.shell.broker.last_stable_offsets.update({world.topic_id_partition: offset})


def policy(**wanted: Any) -> Act:
    return lambda world: world.set_policy(**wanted)


def store(*, is_away: bool) -> Act:
    def act(world: ExplainedWorld) -> None:
        world.store.is_away = is_away

    return act


def forbid(reason: str) -> Act:
    def act(world: ExplainedWorld) -> None:
        world.shell.guard.reason_not_to_delete = reason

    return act


def forbid_remote(reason: str) -> Act:
    def act(world: ExplainedWorld) -> None:
        world.shell.guard.remote_delete_blocker = reason

    return act


def broker_has(**settings: str) -> Act:
    return lambda world: world.shell.broker.settings.update(
        {"plain": {name.replace("_", "."): value for name, value in settings.items()}}
    )


def reads(group: str, offset: int, *, shares: bool = False) -> Act:
    def act(world: ExplainedWorld) -> None:
        groups = world.shell.broker.groups
        (groups.shares if shares else groups.consumers)[group] = {("plain", 1): offset}

    return act


def change_a_byte(world: ExplainedWorld) -> Awaitable[None]:
    return world.change_a_byte(0)


async def start_moved(world: ExplainedWorld) -> None:
    await world.shell.state.publish_partition_state(
        world.topic_id_partition, PartitionState().with_start(Offset(49), LeaderEpoch(6))
    )


def hold(serial: int, *, is_held: bool) -> Act:
    one = Hold(serial=serial, is_held=is_held, until=Offset(1000), by="ops", reason="look first")
    return lambda world: world.shell.state.publish_partition_state(world.topic_id_partition, PartitionState(hold=one))


async def add_of_another_history(world: ExplainedWorld) -> None:
    """A deposed leader of epoch 3, which nobody knows, has copied [0, 48] a minute before now."""
    await add(world, epochs=((3, 0),), state=State.COPY_SEGMENT_FINISHED)


async def add_being_deleted(world: ExplainedWorld) -> None:
    await add(world, epochs=((0, 0),), state=State.DELETE_SEGMENT_STARTED)


async def add_being_copied(world: ExplainedWorld) -> None:
    await add(world, epochs=((0, 0),), state=State.COPY_SEGMENT_STARTED)


async def add(world: ExplainedWorld, *, epochs: tuple[tuple[int, int], ...], state: State) -> None:
    made = segment(0, 48, epochs=epochs, age_h=0, uuid=b"x" * 16)
    made = replace(
        made,
        remote_log_segment_id=RemoteLogSegmentId(topic_id_partition=world.topic_id_partition, uuid=Uuid(b"x" * 16)),
        max_timestamp_ms=NOW_MS - 60_000,
        event_timestamp_ms=NOW_MS - 60_000,
        state=State.COPY_SEGMENT_STARTED,
    )
    await world.shell.metadata.publish(made)
    for step in range(1, state + 1):
        await world.shell.metadata.publish(
            RemoteLogSegmentMetadataUpdate(
                remote_log_segment_id=made.remote_log_segment_id,
                broker_id=made.broker_id,
                event_timestamp_ms=NOW_MS - 60_000,
                state=State(step),
            )
        )


async def spend_quota(world: ExplainedWorld) -> None:
    """1,000 bytes a second, and 10,000 were copied just now."""
    world.shell.copy_rate.bytes_per_s = 1_000
    world.shell.copy_rate.record(10_000, world.clock.monotonic_s())


SITUATIONS = [
    # -- copying
    pytest.param(
        Situation(
            about="copy",
            state=RowState.ACTIVE,
            offset=200,
            says="it is copied once the broker has rolled it",
            mended=lambda world: world.roll(),
        ),
        id="the broker still writes it",
    ),
    pytest.param(
        Situation(about="copy", state=RowState.LOCAL, says="it is copied next", rests=False, is_due=True),
        id="sealed a moment ago",
    ),
    pytest.param(
        Situation(
            about="copy",
            state=RowState.LOCAL,
            offset=150,
            says="3 segments of the partition go first",
            rests=False,
            is_due=True,
        ),
        id="three of its partition go first",
    ),
    pytest.param(
        Situation(
            about="copy",
            state=RowState.LOCAL,
            says="last stable offset 30 is below its end 49",
            given=set_lso(30),
            told=lambda world: world.shell.table.record(world.topic_id_partition).copy_held_back,
            mended=set_lso(196),
        ),
        id="an open transaction holds its last records",
    ),
    pytest.param(
        Situation(
            about="copy",
            state=RowState.LOCAL,
            offset=100,
            says="the segment at 49 must be copied first, and waits: last stable offset 60",
            given=set_lso(60),
            told=lambda world: world.shell.table.record(world.topic_id_partition).copy_held_back,
            mended=set_lso(196),
        ),
        id="an open transaction holds a segment before it",
    ),
    pytest.param(
        Situation(
            about="copy",
            state=RowState.LOCAL,
            says="the lag is 2h; ",
            policy={"copy_lag_ms": 2 * HOUR_MS, "copy_lag_bytes": 10**9},
            told=lambda world: world.shell.table.record(world.topic_id_partition).copy_held_back,
            at_ms=FIRST_IS_OF_MS + 2 * HOUR_MS,
        ),
        id="remote.copy.lag.ms is not over",
    ),
    pytest.param(
        Situation(
            about="copy",
            state=RowState.LOCAL,
            offset=150,
            says="the segment at 0 must be copied first",
            policy={"copy_lag_ms": 2 * HOUR_MS, "copy_lag_bytes": 10**9},
            at_ms=FOURTH_IS_OF_MS + 2 * HOUR_MS,
        ),
        id="remote.copy.lag.ms is not over of those before it either",
    ),
    pytest.param(
        Situation(
            about="copy",
            state=RowState.LOCAL,
            says="remote.log.copy.disable is true",
            policy={"copy_disabled": True},
            told=lambda world: world.shell.table.record(world.topic_id_partition).copy_held_back,
            mended=policy(copy_disabled=False),
        ),
        id="copying of the topic is switched off",
    ),
    pytest.param(
        Situation(
            about="copy",
            state=RowState.LOCAL,
            says="nothing is copied: ",
            given=broker_has(cleanup_policy="compact"),
            told=lambda world: world.shell.table.refused_topics["plain"],
            mended=broker_has(cleanup_policy="delete", retention_ms="-1", retention_bytes="-1"),
        ),
        id="the topic is compacted",
    ),
    pytest.param(
        Situation(about="copy", state=RowState.LOCAL, says="nothing is copied: mode is observe", observes=True),
        id="the sidecar only observes",
    ),
    pytest.param(
        Situation(
            about="copy",
            state=RowState.LOCAL,
            says="nothing is copied: ",
            given=store(is_away=True),
            told=lambda world: world.shell.gate.closed_reason,
            mended=store(is_away=False),
        ),
        id="the store is away",
    ),
    pytest.param(
        Situation(
            about="copy",
            state=RowState.LOCAL,
            says="it is copied next, and the copy quota lets the next begin in 10s",
            given=spend_quota,
            at_ms=NOW_MS + 10_000,
        ),
        id="the copy quota is spent",
    ),
    pytest.param(
        Situation(
            about="copy",
            state=RowState.LOCAL,
            says="it is below the remote log start 49: it was given up",
            given=start_moved,
            rests=False,
        ),
        id="it was given up before it was copied",
    ),
    pytest.param(
        Situation(
            about="copy",
            state=RowState.COPYING,
            says="broker 1 has begun to copy it",
            given=add_being_copied,
            rests=False,
            is_due=True,
        ),
        id="a copy that nobody is at has begun",
    ),
    # -- trimming
    pytest.param(
        Situation(
            about="trim",
            state=RowState.ACTIVE,
            offset=200,
            copied=True,
            policy={"local_retention_ms": 0},
            says="never trimmed",
        ),
        id="the active segment stays",
    ),
    pytest.param(
        Situation(
            about="trim",
            state=RowState.LOCAL,
            offset=60,
            policy={"local_retention_ms": 0},
            given=set_lso(60),
            says="not remote yet",
            mended=set_lso(196),
        ),
        id="what is not remote stays",
    ),
    pytest.param(
        Situation(
            about="trim",
            state=RowState.BOTH,
            copied=True,
            policy={"local_retention_ms": 2 * HOUR_MS},
            says="and local.retention.ms is 2h",
            at_ms=FIRST_IS_OF_MS + 2 * HOUR_MS,
        ),
        id="local.retention.ms is not over",
    ),
    pytest.param(
        Situation(
            about="trim",
            state=RowState.BOTH,
            offset=150,
            copied=True,
            policy={"local_retention_ms": 2 * HOUR_MS},
            says="the segment at 0 stays",
            at_ms=FOURTH_IS_OF_MS + 2 * HOUR_MS,
        ),
        id="local data go oldest first",
    ),
    pytest.param(
        Situation(
            about="trim",
            state=RowState.BOTH,
            copied=True,
            policy={"local_retention_bytes": 10**6},
            says="local.retention.bytes is 976.6 KiB",
            mended=policy(local_retention_bytes=50_000),
        ),
        id="the local log is no larger than local.retention.bytes",
    ),
    pytest.param(
        Situation(
            about="trim",
            state=RowState.BOTH,
            copied=True,
            policy={"local_retention_bytes": 50_000},
            says="it is trimmed once its remote copy has been read back",
            rests=False,
            is_due=True,
        ),
        id="the local log is larger than local.retention.bytes",
    ),
    pytest.param(
        Situation(
            about="trim",
            state=RowState.BOTH,
            offset=60,
            copied=True,
            policy={"local_retention_ms": 0, "holds": TrimHolds(groups=("billing",))},
            given=reads("billing", 49),
            says="but it is held: consumer group billing has read up to 49",
            told=lambda world: str(getattr(world.shell.table.record(world.topic_id_partition).trim_hold, "reason", "")),
            mended=reads("billing", 196),
        ),
        id="a consumer group has not read it",
    ),
    pytest.param(
        Situation(
            about="trim",
            state=RowState.BOTH,
            offset=60,
            copied=True,
            policy={"local_retention_ms": 0},
            given=reads("workers", 49, shares=True),
            says="but it is held: share group workers has read up to 49",
            told=lambda world: str(getattr(world.shell.table.record(world.topic_id_partition).trim_hold, "reason", "")),
            mended=reads("workers", 196, shares=True),
        ),
        id="a share group has not read it",
    ),
    pytest.param(
        Situation(
            about="trim",
            state=RowState.BOTH,
            copied=True,
            policy={"local_retention_ms": 0},
            given=change_a_byte,
            says="its remote copy must be proven first",
            told=lambda world: str(getattr(world.shell.table.record(world.topic_id_partition).unproven, "reason", "")),
            mended=change_a_byte,
        ),
        id="its remote copy is corrupt",
    ),
    pytest.param(
        Situation(
            about="trim",
            state=RowState.BOTH,
            copied=True,
            policy={"local_retention_ms": 0},
            given=broker_has(cleanup_policy="delete", retention_ms="1", retention_bytes="-1"),
            says="but nothing of it is trimmed: ",
            told=lambda world: world.shell.table.untrimmable_topics["plain"],
            mended=broker_has(cleanup_policy="delete", retention_ms="-1", retention_bytes="-1"),
        ),
        id="the broker itself deletes by the topic's settings",
    ),
    pytest.param(
        Situation(
            about="trim",
            state=RowState.BOTH,
            copied=True,
            policy={"local_retention_ms": 0},
            given=forbid("deletes.enabled is false"),
            says="but nothing of it is trimmed: deletes.enabled is false",
            mended=forbid(""),
        ),
        id="deletes are switched off, local ones too",
    ),
    pytest.param(
        Situation(
            about="trim",
            state=RowState.BOTH,
            copied=True,
            policy={"mode": RetentionMode.RACE, "local_retention_ms": 0},
            says="in race mode the broker deletes by its own retention",
        ),
        id="in race mode nothing is trimmed",
    ),
    pytest.param(
        Situation(
            about="trim",
            state=RowState.BOTH,
            copied=True,
            policy={"local_retention_ms": 0},
            given=set_lso(196),
            says="once its remote copy has been read back",
            rests=False,
            is_due=True,
        ),
        id="past local retention, and nothing is in the way",
    ),
    pytest.param(
        Situation(
            about="trim",
            state=RowState.BOTH,
            copied=True,
            policy={"local_retention_ms": 0},
            given=lambda world: world.halt_copying(),
            says="once its remote copy has been read back",
            rests=False,
            is_due=True,
        ),
        id="copying of the partition is halted, and trimming is not",
    ),
    # -- total retention, and what is given up
    pytest.param(
        Situation(
            about="expiry",
            state=RowState.BOTH,
            copied=True,
            policy={"retention_ms": 3 * HOUR_MS},
            says="total retention keeps it: ",
            at_ms=FIRST_IS_OF_MS + 3 * HOUR_MS,
        ),
        id="retention.ms is not over",
    ),
    pytest.param(
        Situation(
            about="expiry",
            state=RowState.BOTH,
            copied=True,
            policy={"retention_bytes": 10**6},
            says="retention.bytes is 976.6 KiB",
            mended=policy(retention_bytes=45_000),
        ),
        id="the whole log is no larger than retention.bytes",
    ),
    pytest.param(
        Situation(
            about="expiry",
            state=RowState.LOCAL,
            policy={"retention_ms": 3 * HOUR_MS, "copy_disabled": True},
            says="total retention keeps it: ",
            at_ms=FIRST_IS_OF_MS + 3 * HOUR_MS,
        ),
        id="retention.ms is not over of what was never copied",
    ),
    pytest.param(
        Situation(
            about="expiry",
            state=RowState.REMOTE,
            copied=True,
            policy={"retention_ms": 60_000},
            limits=ExpiryLimits(max_share=0.5, idle_slack_ms=10**12),
            says="nothing of the partition expires: 4 segments are due at once",
            told=lambda world: world.shell.table.record(world.topic_id_partition).expiry_stop,
            mended=lambda world: world.delete_records(196),
        ),
        id="more is due at once than the guard lets go",
    ),
    pytest.param(
        Situation(
            about="expiry",
            state=RowState.BOTH,
            copied=True,
            policy={"retention_ms": 60_000},
            given=forbid("deletes.enabled is false"),
            says="but nothing remote is deleted: deletes.enabled is false",
            mended=forbid(""),
        ),
        id="deletes are switched off",
    ),
    pytest.param(
        Situation(
            about="expiry",
            state=RowState.REMOTE,
            copied=True,
            policy={"retention_ms": 60_000},
            given=forbid_remote("broker 2 has no sidecar"),
            says="but nothing remote is deleted: broker 2 has no sidecar",
            mended=forbid_remote(""),
        ),
        id="a broker of the cluster has no sidecar",
    ),
    pytest.param(
        Situation(
            about="expiry",
            state=RowState.TRASH,
            copied=True,
            policy={"retention_ms": 60_000},
            delay_h=5,
            says="until it is due, `tiersidecar undelete` restores it",
            at_ms=NOW_MS + 5 * HOUR_MS,
            deletes=True,
        ),
        id="retention has given it up, and delete.delay is not over",
    ),
    pytest.param(
        Situation(
            about="expiry",
            state=RowState.TRASH,
            copied=True,
            given=lambda world: world.delete_records(49),
            delay_h=5,
            says="it is given up, decided by a user",
            at_ms=NOW_MS + 5 * HOUR_MS,
            deletes=True,
        ),
        id="a user has deleted it, and user.delete.delay is not over",
    ),
    pytest.param(
        Situation(
            about="expiry",
            state=RowState.REMOTE,
            copied=True,
            policy={"retention_ms": 60_000},
            given=hold(1, is_held=True),
            says="nothing of the partition expires: ops holds it (look first)",
            told=lambda world: world.shell.table.record(world.topic_id_partition).expiry_stop,
            mended=hold(2, is_held=False),
        ),
        id="an operator holds it after an undelete",
    ),
    pytest.param(
        Situation(
            about="expiry",
            state=RowState.OUTSIDE_LINEAGE,
            copied=False,
            policy={"retention_ms": 3 * HOUR_MS, "copy_disabled": True},
            given=add_of_another_history,
            says="it is of a history that lost an election",
            at_ms=NOW_MS - 60_000 + 3 * HOUR_MS,
            deletes=True,
        ),
        id="a deposed leader has copied it",
    ),
    pytest.param(
        Situation(
            about="expiry",
            state=RowState.DELETING,
            policy={"copy_disabled": True},
            given=add_being_deleted,
            says="its deletion has begun",
            rests=False,
            is_due=True,
            deletes=True,
        ),
        id="a sidecar has died while it deleted it",
    ),
]


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_what_it_says_is_what_happens(situation: Situation, tmp_path: Path) -> None:
    delays = TrashDelays(retention_ms=int(situation.delay_h * HOUR_MS), user_ms=int(situation.delay_h * HOUR_MS))
    async with open_explained_world(
        tmp_path, limits=situation.limits, delays=delays, observe_only=situation.observes
    ) as world:
        if situation.copied:
            await world.round()
        await world.set_policy(**situation.policy)
        await do(world, situation.given)
        if situation.rests:
            await world.round()
        finding = await asked(world, situation)
        assert situation.says in finding.says
        assert situation.told(world) in finding.says
        assert (finding.is_due, finding.changes_ms) == (situation.is_due, situation.at_ms)
        assert not situation.has_happened(world)
        await it_happens_then(world, situation, finding)


async def asked(world: ExplainedWorld, situation: Situation) -> Finding:
    explanation = await world.explain(situation.offset)
    account = next(one for one in explanation.accounts if one.row.state is situation.state)
    return next(finding for finding in account.findings if finding.about == situation.about)


async def it_happens_then(world: ExplainedWorld, situation: Situation, finding: Finding) -> None:
    if finding.changes_ms is not None:
        await world.pass_until(finding.changes_ms - 1)
        await world.round()
        assert not situation.has_happened(world), "not before the time that it names"
        await world.pass_ms(1)
    elif not finding.is_due:
        await world.pass_ms(DAY_MS)
        await world.round()
        assert not situation.has_happened(world), "time alone changes nothing"
        if situation.mended is None:
            return
        await do(world, situation.mended)
        await world.pass_ms(10 * 60_000)  # what failed backs off
    await world.round()
    assert situation.has_happened(world)


async def test_what_is_gone_is_said_to_be_gone(tmp_path: Path) -> None:
    async with open_explained_world(tmp_path) as world:
        await world.round()
        await world.delete_records(49)
        await world.round()
        await world.broker_removes()
        explanation = await world.explain(20)
        assert world.is_deleted(20)
        assert "offset 20 is below the remote log start 49: it is gone. Retention or a user has" in explanation.missing


async def test_a_leader_that_is_deposed_says_nothing_and_does_nothing(tmp_path: Path) -> None:
    async with open_explained_world(tmp_path) as world:
        world.shell.depose(world.topic_id_partition)
        with pytest.raises(NotLedHereError):
            await world.explain(0)
        await world.round()
        assert not world.is_copied(0)


async def test_a_gap_is_told_and_what_lies_behind_it_is_copied(tmp_path: Path) -> None:
    async with open_explained_world(tmp_path) as world:
        await world.set_policy(mode=RetentionMode.RACE)
        set_lso(49)(world)
        await world.round()
        world.shell.broker.log_starts[world.topic_id_partition] = 98
        await world.broker_removes()
        set_lso(196)(world)
        explanation = await world.explain(60)
        assert "neither tier holds offset 60: the broker deleted it before it was copied" in explanation.missing
        await world.round()
        assert (world.is_copied(60), world.is_copied(150)) == (False, True)
