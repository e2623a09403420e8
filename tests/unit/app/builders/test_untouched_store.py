"""A store that is opened to be read alone: what is half written there stays."""

from __future__ import annotations

import os
from pathlib import Path

from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.filesystem import TEMPORARY_DIRECTORY
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import open_store
from tiersidecar.app.builders.untouched_store import open_store_untouched
from tiersidecar.app.config.serve import ServeConfig
from tiersidecar.app.config.store import FilesystemStore
from tiersidecar.ports.telemetry import NoTelemetry


async def test_a_reader_sweeps_nothing(tmp_path: Path) -> None:
    config = ServeConfig(store=FilesystemStore(type="filesystem", root=str(tmp_path)))
    clock, left = SystemClock(), tmp_path / TEMPORARY_DIRECTORY / "half-written"
    left.parent.mkdir()
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    async with open_store_untouched(config, clock=clock, ids=SystemIds(), telemetry=NoTelemetry()) as store:
        assert [one.key async for one in store.list_objects()] == []
        assert left.exists()
    pace = UploadPace(None, clock)
    async with open_store(config, pace=pace, clock=clock, ids=SystemIds(), telemetry=NoTelemetry()):
        assert not left.exists(), "a sidecar removes it"
