"""What is read back before a trim goes at the pace of uploads, on both sides (U14)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock, settle
from tests.support.remote_events import fold
from tests.support.tier_shell import TierShell
from tiersidecar.decide.trim import TrimStep
from tiersidecar.domain.errors import TruncatedDataError
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.store import Buffer
from tiersidecar.reading.segment_stream import SegmentStream
from tiersidecar.tasks.read_back import ReadBack
from tiersidecar.tasks.segment_objects import LayoutSettings


class Scene:
    """One copied segment, what was read of it remotely, and a verifier with a pace of its own."""

    def __init__(self, shell: TierShell, clock: ManualClock) -> None:
        self.shell, self.clock, self.remote_bytes = shell, clock, 0
        self.keeps_bytes: int | None = None
        tip = shell.tip("plain-0")
        local = shell.board.local.partitions[tip].segments[0]
        remote = [one for one in fold(shell.metadata.events) if one.topic_id_partition == tip]
        self.step = TrimStep(local=local, remote=(remote[0],), reason="size")
        self._stream = SegmentStream(store=shell.store, blocking=shell.blocking, key_prefix="", key_ring=None)

    async def stream_log(self, metadata: RemoteLogSegmentMetadata) -> AsyncIterator[Buffer]:
        async for chunk in self._stream.stream_log(metadata):
            if self.remote_bytes == self.keeps_bytes:
                return
            self.remote_bytes += len(chunk)
            yield chunk

    async def verify(self) -> None:
        verifier = ReadBack(
            log_dirs=self.shell.log_dirs,
            remote=self,
            blocking=self.shell.blocking,
            quota=self.shell.quota,
            pace=self.shell.pace,
        )
        await verifier.verify(self.step, 0)


@pytest.fixture
async def scene(tmp_path: Path) -> Scene:
    clock = ManualClock()
    shell = TierShell(tmp_path, InlineBlocking(), LayoutSettings(chunk_size=1024), TopicPolicy(), clock=clock)
    await shell.look()
    await shell.copy.run(shell.tiered(shell.tip("plain-0")))
    return Scene(shell, clock)


async def test_a_read_back_is_no_burst(scene: Scene) -> None:
    size_bytes = scene.step.local.size_bytes
    scene.shell.pace.bytes_per_s = size_bytes // 4
    verifying = asyncio.create_task(scene.verify())
    await scene.clock.advance(1)
    assert 0 < scene.remote_bytes < size_bytes // 2
    await scene.clock.advance(2.5)
    assert not verifying.done(), "four seconds' worth of bytes"
    await scene.clock.advance(1)
    await settle()
    await verifying
    assert scene.remote_bytes == size_bytes


async def test_one_that_is_abandoned_leaves_no_file_open(scene: Scene) -> None:
    scene.shell.pace.bytes_per_s = scene.step.local.size_bytes // 4
    log_path = Path(scene.step.local.log_path)
    verifying = asyncio.create_task(scene.verify())
    await scene.clock.advance(1)
    assert log_path in open_files()
    verifying.cancel()
    await asyncio.wait([verifying])
    assert verifying.cancelled()
    assert log_path not in open_files()


async def test_a_remote_segment_that_ends_early_is_told(scene: Scene) -> None:
    scene.keeps_bytes = 1024
    with pytest.raises(TruncatedDataError):
        await scene.verify()


def open_files() -> set[Path]:
    """What this process has open."""
    return {link.readlink() for link in Path("/proc/self/fd").iterdir() if link.exists()}
