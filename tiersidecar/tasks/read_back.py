"""Prove that remote segments hold what a local segment holds, before the local one is given up (DESIGN.md section 5).

Both sides are read whole: the remote one through its manifest, chunk by chunk, the local one from the broker's disk; every
batch CRC is checked, and the digests over the batches of the range must agree, so leader epochs and CRCs do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from tiersidecar.decide.trim import TrimStep
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.formats.kafka.batch_digest import BatchDigest
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.log_dirs import LogDirs
from tiersidecar.ports.store import Buffer
from tiersidecar.tasks.copy_quota import CopyQuota

_SLICE_BYTES = 4 * 1024 * 1024


class StreamRemoteLog(Protocol):
    def stream_log(self, metadata: RemoteLogSegmentMetadata) -> AsyncIterator[Buffer]:
        """The whole .log of a remote segment in order, past every cache; its manifest and sizes are checked on the way."""


class ReadBack:
    """Verifies trim steps; remote bytes are charged to the copy quota."""

    def __init__(self, *, log_dirs: LogDirs, remote: StreamRemoteLog, blocking: Blocking, quota: CopyQuota) -> None:
        self._log_dirs, self._remote, self._blocking, self._quota = log_dirs, remote, blocking, quota

    async def verify(self, step: TrimStep, log_start_offset: int) -> None:
        """Return once the remote segments of ``step`` are proven to hold the batches of its local segment.

        Raises:
            CorruptDataError: they do not, or cannot be decoded.
            StoreError: they could not be read.
            SegmentChangedError: the local segment is gone.
        """
        start_offset = max(step.local.base_offset, log_start_offset)
        local = BatchDigest(start_offset=start_offset, stop_offset=step.offset)
        await self._feed_local(local, step.local)
        remote = BatchDigest(start_offset=start_offset, stop_offset=step.offset)
        for metadata in step.remote:
            await self._feed_remote(remote, metadata)
        if local.digest() != remote.digest():
            raise CorruptDataError(
                where=", ".join(str(metadata.remote_log_segment_id) for metadata in step.remote),
                position=0,
                reason=f"its batches of [{start_offset}, {step.offset}) are not those of {step.local.log_path}: "
                "nothing is trimmed",
            )

    async def _feed_local(self, digest: BatchDigest, segment: LocalSegment) -> None:
        async with self._log_dirs.open_segment(segment) as file:
            digest.begin_segment(segment.log_path)
            for position in range(0, file.size_bytes, _SLICE_BYTES):
                buffer = memoryview(bytearray(min(_SLICE_BYTES, file.size_bytes - position)))
                read = await file.read_into(position, buffer)
                await self._blocking.run(digest.feed, buffer[:read])
                file.let_go(position, read)
            digest.end_segment()

    async def _feed_remote(self, digest: BatchDigest, metadata: RemoteLogSegmentMetadata) -> None:
        await self._quota.admit(metadata.segment_size_in_bytes)
        digest.begin_segment(str(metadata.remote_log_segment_id))
        async for chunk in self._remote.stream_log(metadata):
            await self._blocking.run(digest.feed, chunk)
        digest.end_segment()
