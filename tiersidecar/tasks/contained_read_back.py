"""Prove that remote segments have every record of a local segment of a compacted topic, before the local one is given up.

The broker's cleaner may have replaced the local file since it was copied, and ours the remote segment: no digest of either
would agree.  So both are read whole, and compared record by record.  That says more than the digests taken at the upload:
those prove that the store has kept what was copied, perhaps by another replica, and not that this replica has nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

from tiersidecar.decide.trim import TrimStep
from tiersidecar.domain.errors import UncleanedError
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.compaction.containment import HeldBatch, first_lacking
from tiersidecar.formats.compaction.whole_batches import WholeBatches
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.log_dirs import LogDirs
from tiersidecar.reading.segment_stream import Pace
from tiersidecar.tasks.copy_admission import CopyQuota
from tiersidecar.tasks.read_back import FeedRemoteLog, local_slices


class ContainedReadBack:
    """Verifies trim steps of compacted topics; remote bytes are charged to the copy quota, and read at ``pace``.

    In memory are a slice of the local file, a part of the remote one, and the batches in which they overlap.
    """

    def __init__(
        self, *, log_dirs: LogDirs, remote: FeedRemoteLog, quota: CopyQuota, pace: Pace, blocking: Blocking
    ) -> None:
        self._log_dirs, self._remote, self._quota, self._pace = log_dirs, remote, quota, pace
        self._blocking = blocking

    async def verify(self, step: TrimStep) -> None:
        """Return once every record of the local segment, from ``from_offset`` on, was found in the remote ones.

        Raises:
            UncleanedError: one was not, or it is a tombstone: the local log stays until the broker's cleaner was there.
            CorruptDataError: a remote record is another one, or a segment cannot be decoded.
            StoreError, KeyServiceError, KeyRefusedError, DataKeyError: as of any read-back.
            SegmentChangedError: the broker's cleaner has replaced the file meanwhile.
        """
        waiting, held = deque[HeldBatch](), deque[HeldBatch]()
        async with aclosing(self._local_batches(step)) as local, aclosing(self._remote_batches(step)) as remote:
            async for part in remote:
                held.extend(part)
                await self._compare(step, local, waiting, held)
            await self._require(step, list(waiting), list(held))
            async for left in local:
                await self._require(step, left, list(held))

    async def _compare(
        self,
        step: TrimStep,
        local: AsyncGenerator[Sequence[HeldBatch]],
        waiting: deque[HeldBatch],
        held: deque[HeldBatch],
    ) -> None:
        """Compare all local batches that the remote ones reach; drop remote ones that no later local batch needs."""
        while held:
            if not waiting:
                waiting.extend(await anext(local, []))  # a tuple would be taken for arguments of StopIteration
            if not waiting:
                held.clear()  # the local segment has ended, and the rest is the remote log's alone
                return
            reached, ready = held[-1][0].last_offset, list[HeldBatch]()
            while waiting and waiting[0][0].last_offset <= reached:
                ready.append(waiting.popleft())
            await self._require(step, ready, list(held))
            if waiting:
                while held and held[0][0].last_offset < waiting[0][0].base_offset:
                    held.popleft()
                return

    async def _require(self, step: TrimStep, local: Sequence[HeldBatch], remote: Sequence[HeldBatch]) -> None:
        where = ", ".join(str(one.remote_log_segment_id) for one in step.remote)
        look = partial(first_lacking, local, remote, start_offset=step.from_offset, where=where)
        if local and (lacking := await self._blocking.run(look)):
            raise UncleanedError(subject=step.local.log_path, offset=lacking.offset, reason=lacking.reason)

    async def _local_batches(self, step: TrimStep) -> AsyncGenerator[Sequence[HeldBatch]]:
        """Yield the batches from ``from_offset`` on, slice by slice; never an empty slice."""
        where = step.local.log_path
        batches = _Batches(where, step.from_offset)
        async with (
            self._log_dirs.open_segment(step.local) as file,
            aclosing(local_slices(file, self._pace, batches.look)) as slices,
        ):
            async for _ in slices:
                if found := batches.take():
                    yield found
        batches.end()

    async def _remote_batches(self, step: TrimStep) -> AsyncGenerator[Sequence[HeldBatch]]:
        for metadata in step.remote:
            async with aclosing(self._batches_of(metadata, step.from_offset)) as parts:
                async for part in parts:
                    yield part

    async def _batches_of(
        self, metadata: RemoteLogSegmentMetadata, start_offset: int
    ) -> AsyncGenerator[Sequence[HeldBatch]]:
        await self._quota.admit(metadata.segment_size_in_bytes)
        batches = _Batches(str(metadata.remote_log_segment_id), start_offset)
        async with aclosing(self._remote.feed_log(metadata, batches.look, self._pace)) as parts:
            async for _ in parts:
                if found := batches.take():
                    yield found
        batches.end()


class _Batches:
    """Keeps the batches of a .log that streams past, from an offset on, until they are taken."""

    def __init__(self, where: str, start_offset: int) -> None:
        self._where, self._start_offset = where, start_offset
        self._whole, self._found = WholeBatches(), list[HeldBatch]()

    def look(self, part: memoryview) -> None:
        for batch, header, _ in self._whole.feed(part, where=self._where):
            if header.last_offset >= self._start_offset:
                self._found.append((header, bytes(batch)))

    def take(self) -> list[HeldBatch]:
        found, self._found = self._found, []
        return found

    def end(self) -> None:
        self._whole.end(where=self._where)
