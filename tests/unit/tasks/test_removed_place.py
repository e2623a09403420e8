"""A full disk and segments in a place that was taken out of the configuration: drop-oldest waits for no place, and takes what
others have to give first (S-293)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.tier_shell import TierShell
from tests.unit.tasks.test_disk_watch import DROP, FOREVER, SIZE, TRIM, Pressed, older_and_other
from tiersidecar.adapters.clock import SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.adapters.stores.placed import Place, PlacedStore
from tiersidecar.decide.pressure_trim import DiskPressurePolicy
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.errors import PlaceRemovedError
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.tasks.place_checks import PlaceChecks
from tiersidecar.tasks.retain import RetainTask
from tiersidecar.tasks.segment_objects import LayoutSettings
from tiersidecar.tasks.trusted_copies import TrustedCopies


class NeverExpires:
    """An expiry that has nothing to do: where a place was removed it must not even be asked."""

    async def run(self, partition: TieredPartition) -> None:
        raise AssertionError(f"{partition.view.topic_id_partition} expires")


class Removed(Pressed):
    """A sidecar that was restarted without the place of ``first``, whose segments are the oldest; ``other`` is in no place."""

    def __init__(self, shell: TierShell, first: TieredPartition, other: TieredPartition) -> None:
        super().__init__(shell)
        self.first, self.other = first, other
        lane: Any = RetainTask(
            expire=NeverExpires(),  # type: ignore[arg-type]
            trim=shell.trim,
            guard=shell.guard,
            slots=asyncio.Semaphore(1),
        )
        self.copies = TrustedCopies(shell.metadata, shell.state, places=())
        checks = PlaceChecks(shell.metadata, InlineBlocking(), shell.table, places=())
        self._retain = checks.before(lane.run, otherwise=lane.make_room)

    async def retain(self) -> None:
        """Run the retain lane of the first one, which halts it."""
        with pytest.raises(PlaceRemovedError) as raised:
            await self._retain(self.first)
        self.halted = {self.first.view.topic_id_partition.topic: str(raised.value)}

    async def look(self, policy: DiskPressurePolicy) -> set[str]:
        """Look at the disk; return which partitions are to give something."""
        await self.watch(policy).look()
        return {str(topic_id_partition) for topic_id_partition in self.shell.table.pressure_trims}

    @property
    def end(self) -> int:
        return self.shell.table.local.partitions[self.first.view.topic_id_partition].segments[-1].base_offset


@pytest.fixture
async def removed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Removed]:
    """The first ``request.param`` segments, none if it is not given, were copied before a rule named the place."""
    async with ThreadBlocking(max_threads=2) as blocking:
        clock, ids = ManualClock(now_ms=2_000_000_000_000), SystemIds()
        hot, cold = MemoryStore(clock=clock, ids=ids), MemoryStore(clock=clock, ids=ids)
        rule: dict[str, str] = {}
        settings = LayoutSettings(place_of_topic=lambda topic: rule.get(topic, ""), place_key_prefixes={"cold": "c/"})
        shell = TierShell(
            tmp_path,
            blocking,
            settings,
            FOREVER,
            clock=clock,
            store=PlacedStore(hot, {"cold": Place(store=cold, key_prefix="c/")}),
            partitions=("plain-0", "compressed-0"),
        )
        await shell.look()
        if before := getattr(request, "param", 0):
            plain = shell.topic_id_partition("plain-0")
            segments = shell.table.local.partitions[plain].segments
            shell.broker.last_stable_offsets[plain] = segments[before].base_offset
            await shell.copy.run(shell.tiered(plain))
            shell.broker.last_stable_offsets[plain] = segments[-1].base_offset
        rule["plain"] = "cold"
        first, other = await older_and_other(Pressed(shell))
        monkeypatch.setattr(shell.store, "_places", {})
        shell.lineages.forget(first.view.topic_id_partition)
        yield Removed(shell, first, other)


async def test_it_is_halted_and_gives_nothing_where_others_have_enough(removed: Removed) -> None:
    removed.disks.free_bytes = SIZE // 10 - 1
    await removed.retain()
    for policy in (TRIM, DROP):
        assert await removed.look(policy) == {"compressed-0"}
        await removed.retain()
    assert removed.shell.broker.deleted == []


async def test_trim_copied_never_takes_it_for_a_copy(removed: Removed) -> None:
    removed.disks.free_bytes = 0
    await removed.retain()
    assert await removed.look(TRIM) == {"compressed-0"}
    await removed.retain()
    assert removed.shell.broker.deleted == []


async def test_drop_oldest_drops_it_when_nothing_else_is_enough_and_says_so(removed: Removed) -> None:
    removed.disks.free_bytes = 0
    await removed.retain()
    assert await removed.look(DROP) == {"plain-0", "compressed-0"}
    with capture_logs() as logs:
        await removed.retain()
    assert removed.shell.broker.deleted == [(removed.first.view.topic_id_partition, removed.end)]
    lost = [log for log in logs if log["event"] == "segment.dropped"]
    assert len(lost) == len(removed.shell.table.local.partitions[removed.first.view.topic_id_partition].sealed_segments)
    assert all(log["data_lost"] for log in lost)
    told = [log["error"] for log in logs if log["event"] == "trim.read_back.failed"]
    assert told
    assert all("'cold', which the configuration does not name" in error for error in told)


async def test_it_goes_by_age_among_what_is_lost(removed: Removed) -> None:
    """Not last of all: its copies are there once the place is back, those of others that are not remote are nowhere."""
    owner = removed.other.view.topic_id_partition
    nothing = removed.shell.metadata._caches[owner] = RemoteLogMetadataCache(owner)
    nothing.mark_loaded()
    await removed.retain()
    removed.disks.free_bytes = SIZE // 10 - 1
    assert await removed.look(DROP) == {"plain-0"}


@pytest.mark.parametrize("removed", [1], indirect=True)
async def test_what_lies_in_places_that_are_there_goes_before_anything_is_lost(removed: Removed) -> None:
    """Only what the removed place has is no copy; of the other partition nothing is remote, and its segments are the oldest."""
    table, owner = removed.shell.table, removed.other.view.topic_id_partition
    nothing = removed.shell.metadata._caches[owner] = RemoteLogMetadataCache(owner)
    nothing.mark_loaded()
    local = table.local.partitions[owner]
    oldest = replace(local, segments=tuple(replace(segment, modified_ms=-1) for segment in local.segments))
    table.local = replace(table.local, partitions={**table.local.partitions, owner: oldest})
    await removed.retain()
    removed.disks.free_bytes = SIZE // 10 - 1
    assert await removed.look(TRIM) == set()
    assert await removed.look(DROP) == {"plain-0"}
    with capture_logs() as logs:
        await removed.retain()
    first = table.local.partitions[removed.first.view.topic_id_partition].segments[0]
    assert removed.shell.broker.deleted == [(removed.first.view.topic_id_partition, first.next_base_offset)]
    assert [log for log in logs if log["event"] == "segment.dropped"] == []


async def test_a_partition_that_is_halted_for_something_else_too_is_counted_on_last(removed: Removed) -> None:
    await removed.retain()
    removed.halted = {"plain": "it is another cluster's"}
    removed.disks.free_bytes = SIZE // 10 - 1
    assert await removed.look(DROP) == {"compressed-0"}
