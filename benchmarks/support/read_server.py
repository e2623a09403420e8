"""The read service in a process of its own, so that its memory can be told.

``python -m benchmarks.support.read_server DIRECTORY``: the directory has the store's files and ``metadata.pickle``; the first
line printed is the service's URL.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
import uvloop

from benchmarks.support.our_copy import filesystem_store
from benchmarks.support.our_read import open_service
from tests.support.memory_metadata_log import MemoryMetadataLog
from tiersidecar.adapters.process_limits import reuse_freed_memory
from tiersidecar.domain.segments import MetadataEvent, RemotePartitionDeleteMetadata
from tiersidecar.reading.read_path import ReadSettings
from tiersidecar.services.reader.server import ReaderServiceSettings

_EVENTS = "metadata.pickle"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadServer:
    url: str
    process_id: int

    @property
    def read_bytes(self) -> int:
        """What it has read so far, from files and from connections."""
        lines = Path(f"/proc/{self.process_id}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))

    @property
    def peak_rss_bytes(self) -> int:
        """The most memory that was ever resident."""
        status = Path(f"/proc/{self.process_id}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


@asynccontextmanager
async def running_read_server(directory: Path, events: Sequence[MetadataEvent]) -> AsyncIterator[ReadServer]:
    """The service over the filesystem store in ``directory``; killed at the end.

    Raises:
        RuntimeError: it did not come up.
    """
    (directory / _EVENTS).write_bytes(pickle.dumps(list(events)))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.support.read_server", str(directory), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
        if not url:
            raise RuntimeError("the read service did not come up")
        yield ReadServer(url=url, process_id=process.pid)
    finally:
        process.kill()
        await process.wait()


def allow_open_files() -> None:
    """As many descriptors as this process may have: a thousand readers are a thousand sockets."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(directory: Path) -> None:
    metadata = MemoryMetadataLog()
    for event in pickle.loads((directory / _EVENTS).read_bytes()):
        if not isinstance(event, RemotePartitionDeleteMetadata):
            await metadata.assign([event.remote_log_segment_id.topic_id_partition])
            await metadata.publish(event)
    # Above the reader pool's 110, so that it is the pool that sheds.
    service = ReaderServiceSettings(port=0, max_requests=2000)
    async with (
        filesystem_store(directory) as store,
        open_service(store, metadata, ReadSettings(), service) as server,
    ):
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    reuse_freed_memory()  # as the daemon does at its start
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    allow_open_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(Path(sys.argv[1])))
