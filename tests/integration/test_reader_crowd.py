"""The short form of ``benchmarks/readers.py``: many readers are served or shed within bounded memory (S-140; DESIGN rule 8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.support.crowd import read_as_crowd, targets_in
from benchmarks.support.log_dir import make_log_dir
from benchmarks.support.our_copy import copy_all, filesystem_store
from benchmarks.support.read_server import allow_open_files, running_read_server
from tiersidecar.reading.read_path import ReadSettings

pytestmark = [pytest.mark.server, pytest.mark.alone]

MIB = 1024 * 1024


async def test_a_thousand_readers_are_served_or_shed_within_bounded_memory(tmp_path: Path) -> None:
    allow_open_files()
    log_dir = make_log_dir(tmp_path / "logs", partitions=4, segments=8, segment_bytes=32 * MIB, batch_bytes=16 * 1024)
    async with filesystem_store(tmp_path / "store") as store:
        metadata = await copy_all(log_dir, store)
    async with running_read_server(tmp_path / "store", metadata.events) as server:
        tally = await read_as_crowd(server.url, targets_in(metadata), readers=1000, seconds=3)
        peak_bytes = server.peak_rss_bytes
    assert tally.faults == []
    assert tally.reads > 0
    assert tally.shed > 0, "the pool has 110 places"
    assert peak_bytes < ReadSettings().chunk_cache_bytes + 200 * MIB
