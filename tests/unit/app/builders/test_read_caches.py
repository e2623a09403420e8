"""The read role's disk caches are where and as the configuration says (S-124, S-125)."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.remote_runs import load_run, open_run, segments_of
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.app.builders.read_path import open_chunk_cache, open_index_cache
from tiersidecar.app.config.config import Config
from tiersidecar.app.tuning import initial_tuning
from tiersidecar.domain.errors import ConfigError
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.reading.index_blobs import IndexFiles, IndexFilesSource

FILES = IndexFiles(offset_index=b"o" * 40, time_index=b"t" * 60, transaction_index=b"")


class CountingSource:
    """``IndexFilesSource``."""

    def __init__(self) -> None:
        self.reads = 0

    async def read_index_files(self, metadata: RemoteLogSegmentMetadata) -> IndexFiles:
        self.reads += 1
        return FILES

    def discard(self, segment_id: object) -> None:
        return None


def configured(tmp_path: Path, text: str = "") -> Config:
    return load(tmp_path, f"{LEAST}\nstate.dir: {tmp_path / 'state'}\n{text}")


def open_index(
    config: Config, source: IndexFilesSource, clock: ManualClock
) -> AbstractAsyncContextManager[IndexFilesSource]:
    bound = initial_tuning(config, clock).index_cache
    return open_index_cache(config, source, bound=bound, blocking=InlineBlocking(), clock=clock)


async def segment() -> RemoteLogSegmentMetadata:
    run = await load_run("plain")
    return segments_of(run, run.partition("plain-0"))[0]


async def test_indexes_are_found_again_by_the_next_process(tmp_path: Path) -> None:
    config, source, clock = configured(tmp_path), CountingSource(), ManualClock()
    for _ in range(2):
        async with open_index(config, source, clock) as cache:
            assert await cache.read_index_files(await segment()) == FILES
    assert source.reads == 1
    assert len(list((tmp_path / "state" / "remote-log-index-cache").iterdir())) == 4


async def test_the_index_cache_keeps_no_more_than_its_configured_bytes(tmp_path: Path) -> None:
    config = configured(tmp_path, "remote.log.index.file.cache.total.size.bytes: 99\n")
    source = CountingSource()
    async with open_index(config, source, ManualClock()) as cache:
        for _ in range(2):
            await cache.read_index_files(await segment())
    assert source.reads == 2
    assert list((tmp_path / "state" / "remote-log-index-cache").iterdir()) == []


@pytest.mark.parametrize(("disk_bytes", "are_kept"), [("1MiB", True), ("0", False)])
async def test_chunks_go_to_disk_only_where_that_is_configured(tmp_path: Path, disk_bytes: str, are_kept: bool) -> None:
    directory = tmp_path / "state" / "remote-log-chunk-cache"
    directory.mkdir(parents=True)
    none = "A" * 22
    (directory / f"{none}-0-{none}-0.chunk").write_bytes(b"of an earlier process")
    (directory / f"{none}-0.chunk").write_bytes(b"of an earlier release")
    config = configured(tmp_path, f"read:\n  chunk.cache.disk.bytes: {disk_bytes}\n")
    run, clock, telemetry = await load_run("plain"), ManualClock(), RecordedTelemetry()
    async with (
        open_chunk_cache(config, blocking=InlineBlocking(), clock=clock, telemetry=telemetry) as layers,
        open_run(run, chunk_layers=layers) as path,
    ):
        await path.reader.read_batches(run.partition("plain-0"), 0, max_bytes=1000)
    kept = {name.name for name in directory.iterdir() if name.suffix == ".chunk"}
    assert len(kept) == (2 if are_kept else 0)


async def test_a_directory_that_cannot_be_used_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    config = configured(tmp_path)
    (tmp_path / "state").write_text("a file")
    with pytest.raises(ConfigError, match=r"state.dir: .*remote-log-index-cache cannot be used: not a directory"):
        async with open_index(config, CountingSource(), ManualClock()):
            pass
    with pytest.raises(ConfigError, match="remote-log-chunk-cache"):
        async with open_chunk_cache(
            config, blocking=InlineBlocking(), clock=ManualClock(), telemetry=RecordedTelemetry()
        ):
            pass
