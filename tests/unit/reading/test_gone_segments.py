"""Chunks of deleted segments go from memory and from the disk (issue 23: what was erased is in no cache)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.remote_runs import RemoteRun, load_run, open_run, segments_of
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.reading.chunk_files import ChunkFilesLayer, open_chunk_files_cache
from tiersidecar.reading.disk_cache import DiskCacheSettings
from tiersidecar.reading.gone_segments import GoneSegments, cached_segment, dropping
from tiersidecar.reading.read_path import ReadPath

SOON_S = 30.0
"""Within this time a file is gone: a look, the delay of files that were dropped, and the next tidying."""


@dataclass
class Metadata:
    """The run's metadata, whose partitions may be not ready."""

    run: RemoteRun
    is_ready: bool = True

    @property
    def changes(self) -> int:
        return self.run.metadata.changes

    def segment(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        if not self.is_ready:
            raise MetadataNotReadyError(subject=str(segment_id))
        return self.run.metadata.segment(segment_id)


@dataclass
class Setting:
    """A process that reads, with a cache on its disk."""

    run: RemoteRun
    directory: Path
    metadata: Metadata
    clock: ManualClock = field(default_factory=ManualClock)
    assigned: list[TopicIdPartition] = field(default_factory=list)

    @property
    def segments(self) -> list[RemoteLogSegmentMetadata]:
        return segments_of(self.run, self.run.partition("plain-0"))

    @asynccontextmanager
    async def process(self) -> AsyncIterator[tuple[ReadPath, ChunkFilesLayer]]:
        settings = DiskCacheSettings(directory=str(self.directory), ttl_ms=-1)
        async with (
            open_chunk_files_cache(settings, blocking=InlineBlocking(), clock=self.clock) as layer,
            open_run(self.run, chunk_layers=[layer]) as path,
        ):
            gone = GoneSegments(
                [path.chunks, layer], metadata=self.metadata, assigned=lambda: self.assigned, clock=self.clock
            )
            async with dropping(gone):
                yield path, layer

    async def read(self, path: ReadPath, segment: RemoteLogSegmentMetadata) -> None:
        await path.chunks.get_chunk(await path.manifests.open(segment), 0)

    async def delete(self, segment: RemoteLogSegmentMetadata) -> None:
        for state in (State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED):
            await self.run.metadata.publish(
                RemoteLogSegmentMetadataUpdate(
                    remote_log_segment_id=segment.remote_log_segment_id,
                    broker_id=segment.broker_id,
                    event_timestamp_ms=segment.event_timestamp_ms + 1,
                    state=state,
                    custom_metadata=None,
                )
            )

    def on_disk(self, segment: RemoteLogSegmentMetadata) -> bool:
        uuid = format_uuid(segment.remote_log_segment_id.uuid)
        return any(uuid in path.name for path in self.directory.iterdir())


@pytest.fixture
async def setting(tmp_path: Path) -> Setting:
    run = await load_run("plain")
    return Setting(run=run, directory=tmp_path, metadata=Metadata(run), assigned=[run.partition("plain-0")])


async def test_what_is_deleted_goes_from_memory_and_disk_and_all_else_stays(setting: Setting) -> None:
    first, second = setting.segments[:2]
    async with setting.process() as (path, _):
        for segment in (first, second):
            await setting.read(path, segment)
        await setting.clock.advance(SOON_S)
        assert (setting.on_disk(first), setting.on_disk(second)) == (True, True)
        await setting.delete(first)
        await setting.clock.advance(SOON_S)
        assert (setting.on_disk(first), setting.on_disk(second)) == (False, True)
        assert await path.chunks.segments() == {cached_segment(second.remote_log_segment_id)}


async def test_what_an_earlier_process_left_of_a_segment_deleted_since_goes_too(setting: Setting) -> None:
    first, second = setting.segments[:2]
    async with setting.process() as (path, _):
        for segment in (first, second):
            await setting.read(path, segment)
    await setting.delete(first)
    async with setting.process():
        await setting.clock.advance(SOON_S)
        assert (setting.on_disk(first), setting.on_disk(second)) == (False, True)


async def test_a_fetch_that_ends_after_the_deletion_leaves_nothing_for_long(setting: Setting) -> None:
    first = setting.segments[0]
    async with setting.process() as (path, _):
        opened = await path.manifests.open(first)
        await setting.delete(first)
        await setting.clock.advance(240)
        await path.chunks.get_chunk(opened, 0)
        assert setting.on_disk(first)
        await setting.clock.advance(SOON_S)
        assert not setting.on_disk(first)


async def test_chunks_of_a_partition_that_this_process_no_longer_follows_go(setting: Setting) -> None:
    """It would never learn of their deletion."""
    first = setting.segments[0]
    async with setting.process() as (path, _):
        await setting.read(path, first)
        setting.assigned = [setting.run.partition("transactions-0")]
        await setting.clock.advance(SOON_S)
        assert not setting.on_disk(first)


async def test_as_long_as_no_partition_is_assigned_nothing_is_dropped(setting: Setting) -> None:
    first = setting.segments[0]
    async with setting.process() as (path, _):
        await setting.read(path, first)
    setting.assigned = []
    async with setting.process():
        await setting.clock.advance(SOON_S)
        assert setting.on_disk(first)


async def test_of_a_partition_that_is_not_ready_nothing_is_dropped_until_it_is(setting: Setting) -> None:
    """It may become ready by what a snapshot has, without a further event."""
    first = setting.segments[0]
    async with setting.process() as (path, _):
        await setting.read(path, first)
    await setting.delete(first)
    setting.metadata.is_ready = False
    async with setting.process():
        await setting.clock.advance(3600)
        assert setting.on_disk(first)
        setting.metadata.is_ready = True
        await setting.clock.advance(SOON_S)
        assert not setting.on_disk(first)


async def test_a_damaged_chunk_that_is_not_fetched_again_leaves_the_disk_as_well(setting: Setting) -> None:
    first = setting.segments[0]
    async with setting.process() as (path, layer):
        await setting.read(path, first)
        path.chunks.discard(await path.manifests.open(first), 0)
        assert await layer.segments() == set()
        await setting.clock.advance(SOON_S)
        assert not setting.on_disk(first)
