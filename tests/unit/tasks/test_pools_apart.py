"""Copies and deletions wait for nothing of each other's: neither can use up what the other needs (S-171, S-179)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.delete_switch import DeleteSwitch
from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import settle
from tests.support.tier_shell import TierShell
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.decide.cleanup import Removal
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.ports.store import ObjectBody, StoredObject
from tiersidecar.tasks.retain import RetainTask
from tiersidecar.tasks.segment_objects import LayoutSettings

BUSY = ("plain-0", "plain-1", "compressed-0", "fine-index-0")
OTHER = "transactions-0"
SLOTS = 2


class HangingStore(MemoryStore):
    """Puts, or deletions, that begin while their switch is on never end."""

    puts_hang = deletes_hang = False
    hanging = 0

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        await self._maybe_hang(hangs=self.puts_hang)
        return await super().put_object(key, body, if_absent=if_absent)

    async def delete_objects(self, keys: Sequence[str]) -> None:
        await self._maybe_hang(hangs=self.deletes_hang)
        await super().delete_objects(keys)

    async def _maybe_hang(self, *, hangs: bool) -> None:
        if hangs:
            self.hanging += 1
            await asyncio.Event().wait()


class DeletesAll:
    """In the place of the decision what expires: everything that is finished, by the real remover."""

    def __init__(self, shell: TierShell) -> None:
        self._shell = shell

    def may_have_work(self, partition: TieredPartition) -> bool:
        return True

    async def run(self, partition: TieredPartition) -> None:
        for segment in finished(self._shell, str(partition.view.topic_id_partition)):
            await self._shell.remover.remove(Removal(metadata=segment, reason="told to"))


def finished(shell: TierShell, name: str) -> list[RemoteLogSegmentMetadata]:
    segments = shell.metadata.list_remote_log_segments(shell.topic_id_partition(name))
    return [segment for segment in segments if segment.state is State.COPY_SEGMENT_FINISHED]


class Stage:
    """A sidecar with as many slots for copies as for retention."""

    def __init__(self, directory: Path) -> None:
        self.store = HangingStore(clock=SystemClock(), ids=SystemIds())
        self.shell = TierShell(
            directory, InlineBlocking(), LayoutSettings(), TopicPolicy(), store=self.store, partitions=(*BUSY, OTHER)
        )
        self.shell.copy_slots.size = SLOTS
        self.retain = RetainTask(
            expire=DeletesAll(self.shell),  # type: ignore[arg-type]
            trim=self.shell.trim,
            guard=DeleteSwitch(),
            slots=asyncio.Semaphore(SLOTS),
        )

    async def copy(self, name: str) -> None:
        await self.shell.copy.run(self.shell.tiered(self.shell.topic_id_partition(name)))

    async def delete(self, name: str) -> None:
        await self.retain.run(self.shell.tiered(self.shell.topic_id_partition(name)))

    @asynccontextmanager
    async def all_slots_taken(self, work: Callable[[str], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
        """Every slot of ``work`` by a request that never ends, and others wait for one."""
        tasks = [asyncio.create_task(work(name)) for name in BUSY]
        await settle(500)
        assert self.store.hanging == SLOTS
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    await stage.shell.look()
    return stage


async def test_deletions_go_on_while_every_copy_hangs(stage: Stage) -> None:
    await stage.copy(OTHER)
    assert finished(stage.shell, OTHER)
    stage.store.puts_hang = True
    async with stage.all_slots_taken(stage.copy), asyncio.timeout(60):
        await stage.delete(OTHER)
    assert finished(stage.shell, OTHER) == []


async def test_copies_go_on_while_every_deletion_hangs(stage: Stage) -> None:
    for name in BUSY:
        await stage.copy(name)
    stage.store.deletes_hang = True
    async with stage.all_slots_taken(stage.delete), asyncio.timeout(60):
        await stage.copy(OTHER)
    assert finished(stage.shell, OTHER)


def test_each_pool_has_its_own_size(tmp_path: Path) -> None:
    """Ten of each, as Kafka has them, and of readers; each its own key (S-171, S-172)."""
    config = load(tmp_path, LEAST)
    assert config.remote_log_manager_copier_thread_pool_size == 10
    assert config.remote_log_manager_expiration_thread_pool_size == 10
    assert config.remote_log_manager_follower_thread_pool_size == 2
    assert (config.remote_log_reader_threads, config.remote_log_reader_max_pending_tasks) == (10, 100)
