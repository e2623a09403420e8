"""A led partition whose sidecar copies, expires and trims by its own tasks, and is asked to explain itself at any moment.

Time is a manual clock, files are read within the loop, and the broker, the store and the topics are in memory: what the sidecar
does in a round it has done when :meth:`ExplainedWorld.round` returns, unless it waits for the clock.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.tier_shell import TierShell
from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.decide.expiry_view import ExpiryLimits
from tiersidecar.decide.explain import Account, Explanation
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.decide.trash import NO_DELAYS, TrashDelays
from tiersidecar.domain.errors import SegmentWithoutEpochError, StoreError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.ports.store import BytesBody, ObjectBody, StoredObject
from tiersidecar.reading.remote_objects import SegmentPresence, recorded_keys
from tiersidecar.reading.user_deletes import Asker, UserDelete
from tiersidecar.tasks.catch_up import CatchUp
from tiersidecar.tasks.expire import ExpireTask
from tiersidecar.tasks.expiry_look import ExpirySettings
from tiersidecar.tasks.explain import ExplainTask
from tiersidecar.tasks.lanes import Backoff, Lane, Lanes
from tiersidecar.tasks.retain import RetainTask
from tiersidecar.tasks.segment_objects import LayoutSettings

TOPIC, NAME = "plain", "plain-1"
"""Segments [0, 48], [49, 97], [98, 146], [147, 195], and the active one from 196 on."""
FIRST_RECORD_MS = 1_700_000_000_000
"""Each later record is a second younger."""
HOUR_MS = 3_600_000
NOW_MS = FIRST_RECORD_MS + HOUR_MS
_LOOKS_IN_A_ROUND = 6
_TURNS = 5_000


class StoreThatMayBeAway(MemoryStore):
    """``is_away``: it refuses whatever is to be written or deleted."""

    is_away = False

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        if self.is_away:
            raise StoreError(verb="put", key=key, reason="it is away")
        return await super().put_object(key, body, if_absent=if_absent)


def expire_of(shell: TierShell, limits: ExpiryLimits, delays: TrashDelays, *, observe_only: bool = False) -> ExpireTask:
    """Return the shell's expiry, which has a round at each look."""
    return ExpireTask(
        sources=shell.sources,
        edges=shell.edges,
        actor=replace(shell.actor, observe_only=observe_only),
        settings=ExpirySettings(limits=limits, delays=delays, interval_s=0.0),
        presence=SegmentPresence(shell.store, shell.settings.key_prefix),
        in_flight=shell.in_flight,
        remover=shell.remover,
        checks=shell.checks,
    )


class ExplainedWorld:
    """``shell`` is the sidecar's, beside a broker that obeys."""

    def __init__(
        self, shell: TierShell, lanes: Lanes, limits: ExpiryLimits, delays: TrashDelays, *, observe_only: bool
    ) -> None:
        assert isinstance(shell.clock, ManualClock)
        self.shell, self.lanes, self.clock, self._delays = shell, lanes, shell.clock, delays
        expire = expire_of(shell, limits, delays, observe_only=observe_only)
        self._retain = RetainTask(expire=expire, trim=shell.trim, guard=shell.guard, slots=asyncio.Semaphore(4))
        self._task = ExplainTask(
            sources=shell.sources,
            edges=shell.edges,
            actor=replace(shell.actor, observe_only=observe_only),
            lanes=lanes,
            caught_up=CatchUp(shell.metadata, shell.state),
            copy=shell.copy,
            retain=self._retain,
            stores=shell.gates,
        )

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.shell.topic_id_partition(NAME)

    @property
    def store(self) -> StoreThatMayBeAway:
        assert isinstance(self.shell.store, StoreThatMayBeAway)
        return self.shell.store

    async def explain(self, offset: int) -> Explanation:
        return await self._task.explain(TOPIC, 1, offset)

    async def account(self, offset: int) -> Account:
        """Return the account of the first segment that holds ``offset``."""
        return (await self.explain(offset)).accounts[0]

    async def set_policy(self, **wanted: Any) -> None:
        self.shell.policy = replace(self.shell.policy, **wanted)
        await self.shell.look()

    async def round(self) -> None:
        """Take as many looks of the watch as it takes for what is done to lead to what is done next."""
        for _ in range(_LOOKS_IN_A_ROUND):
            await self.shell.checks.check([TOPIC])
            tiered = self.shell.table.assignment[self.topic_id_partition]
            if tiered.role is PartitionRole.LEADER:
                self._start(tiered)
            for _ in range(_TURNS):
                if not self.lanes.any_running():
                    break
                await asyncio.sleep(0)

    async def pass_ms(self, milliseconds: float) -> None:
        await self.clock.advance(milliseconds / 1000)
        await self.shell.look()

    async def pass_until(self, at_ms: int) -> None:
        await self.pass_ms(at_ms - self.clock.now_ms())

    def _start(self, tiered: TieredPartition) -> None:
        # As the watch does (tasks/watch.py): a copy lane where something is sealed, and the retain lane where it has work.
        if TOPIC not in self.shell.table.refused_topics:
            self.lanes.start(self.topic_id_partition, Lane.COPY, lambda: self.shell.copy.run(tiered), "copy")
        if self._retain.has_work(tiered):
            self.lanes.start(self.topic_id_partition, Lane.RETAIN, lambda: self._retain.run(tiered), "retain")

    # -- what happened

    def remote_at(self, offset: int) -> list[RemoteLogSegmentMetadata]:
        """Return what the metadata have of an offset, in any state but deleted."""
        held = self.shell.metadata.list_remote_log_segments(self.topic_id_partition)
        return [
            one
            for one in held
            if one.start_offset <= offset <= one.end_offset and one.state is not State.DELETE_SEGMENT_FINISHED
        ]

    def is_copied(self, offset: int) -> bool:
        return any(segment.state is State.COPY_SEGMENT_FINISHED for segment in self.remote_at(offset))

    def is_trimmed(self, offset: int) -> bool:
        return self.shell.broker.log_starts[self.topic_id_partition] > offset

    def is_given_up(self, offset: int) -> bool:
        return self.shell.state.partition_state(self.topic_id_partition).remote_log_start_offset > offset

    def is_deleted(self, offset: int) -> bool:
        return not self.remote_at(offset)

    # -- what befalls it

    def roll(self, *, records: int = 50) -> None:
        """Seal the active segment, which is known to end ``records`` after its begin by now."""
        directory, base = self.shell.log_dir / NAME, 196 + records
        for suffix in ("log", "index", "timeindex"):
            (directory / f"{base:020d}.{suffix}").touch()
        shutil.copy(directory / f"{196:020d}.snapshot", directory / f"{base:020d}.snapshot")
        self.shell.broker.last_stable_offsets[self.topic_id_partition] = base

    async def broker_removes(self) -> None:
        """Remove the files of what lies below its log start."""
        for path in (self.shell.log_dir / NAME).glob("0*.*"):
            if (
                int(path.name.split(".")[0]) < self.shell.broker.log_starts[self.topic_id_partition]
                and path.suffix != ".snapshot"
            ):
                path.unlink()
        await self.shell.look()

    async def change_a_byte(self, offset: int) -> None:
        """Change a byte of the .log in the store; done twice it is as it was."""
        key = recorded_keys(self.remote_at(offset)[0], self.shell.settings.key_prefix).log
        changed = bytearray(await self.store.fetch_object(key, max_bytes=2**30))
        changed[200] ^= 1
        await self.store.put_object(key, BytesBody(bytes(changed)))

    def halt_copying(self) -> None:
        """Halt it by what only another leader epoch, or a repair, mends."""

        async def halt() -> None:
            raise SegmentWithoutEpochError(
                subject=str(self.topic_id_partition), reason="records from before Kafka 0.11"
            )

        self.lanes.start(self.topic_id_partition, Lane.COPY, halt, "halted")

    async def delete_records(self, offset: int) -> None:
        """Delete by a user, through the gateway or the command."""
        view = self.shell.table.assignment[self.topic_id_partition].view
        asker = Asker(by="a user", now_ms=self.clock.now_ms(), delays=self._delays)
        delete = UserDelete(offset=offset, leader_epoch=view.leader_epoch, trims=False)  # type: ignore[arg-type]
        await delete.say(self.shell.state, self.topic_id_partition, asker)


@asynccontextmanager
async def open_explained_world(
    directory: Path,
    *,
    limits: ExpiryLimits | None = None,
    delays: TrashDelays = NO_DELAYS,
    observe_only: bool = False,
) -> AsyncIterator[ExplainedWorld]:
    """Begin where nothing is remote, nothing has a limit, and the store has been tried."""
    clock = ManualClock(now_ms=NOW_MS)
    shell = TierShell(
        directory,
        InlineBlocking(),
        LayoutSettings(),
        TopicPolicy(),
        clock=clock,
        store=StoreThatMayBeAway(clock=SystemClock(), ids=SystemIds()),
        partitions=[NAME],
        observe_only=observe_only,
    )
    await shell.look()
    await shell.gate.wait_open()
    backoff = Backoff(initial_s=1.0, maximum_s=1.0, halted_s=60.0)
    async with Lanes(clock=clock, ids=shell.ids, telemetry=shell.telemetry, backoff=backoff) as lanes:
        wide = ExpiryLimits(max_share=1.0, idle_slack_ms=10**12)
        yield ExplainedWorld(shell, lanes, limits or wide, delays, observe_only=observe_only)
