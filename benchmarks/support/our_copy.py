"""Our copy of a log dir, as the daemon does it: everything but the broker, whose answers and metadata topic are in memory."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.support.log_dir import LogDir
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.remote_events import fold, in_state
from tests.support.tier_shell import TierShell
from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.bounded import BoundedStore, StoreLimits
from tiersidecar.adapters.stores.filesystem import open_filesystem_store
from tiersidecar.adapters.stores.metered import MeteredStore
from tiersidecar.adapters.stores.paced import PacedStore, UploadPace
from tiersidecar.adapters.stores.s3 import open_s3_store
from tiersidecar.adapters.stores.s3_settings import S3Settings
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.tasks.segment_objects import LayoutSettings

THREADS = 16


@asynccontextmanager
async def filesystem_store(root: Path) -> AsyncIterator[Store]:
    async with ThreadBlocking(max_threads=THREADS, name="store") as blocking:
        root.mkdir(parents=True, exist_ok=True)
        async with open_filesystem_store(
            root=str(root), blocking=blocking, clock=SystemClock(), ids=SystemIds()
        ) as store:
            yield store


@asynccontextmanager
async def s3_store(settings: S3Settings) -> AsyncIterator[Store]:
    async with (
        ThreadBlocking(max_threads=THREADS, name="store") as blocking,
        open_s3_store(settings, blocking=blocking, clock=SystemClock(), ids=SystemIds()) as store,
    ):
        yield store


async def copy_all(
    log_dir: LogDir, store: Store, settings: LayoutSettings | None = None, *, rate_bytes_per_s: int | None = None
) -> MemoryMetadataLog:
    """Every sealed segment of every partition, the partitions at once as their lanes are; gives what was published.

    Raises:
        RuntimeError: not every segment was finished.
    """
    clock = SystemClock()
    limits = BoundedStore(MeteredStore(store, NoTelemetry()), limits=StoreLimits(), clock=clock)
    wrapped = PacedStore(limits, UploadPace(rate_bytes_per_s, clock))
    async with ThreadBlocking(max_threads=THREADS) as blocking:
        with tempfile.TemporaryDirectory() as scratch:
            shell = TierShell(
                Path(scratch),
                blocking,
                settings or LayoutSettings(),
                TopicPolicy(),
                store=wrapped,
                log_dir=log_dir.path,
            )
            await shell.look()
            await asyncio.gather(*(shell.copy.run(tiered) for tiered in shell.table.assignment.values()))
    finished = in_state(fold(shell.metadata.events), State.COPY_SEGMENT_FINISHED)
    if len(finished) != len(log_dir.files):
        raise RuntimeError(f"{len(finished)} of {len(log_dir.files)} segments were finished")
    return shell.metadata
