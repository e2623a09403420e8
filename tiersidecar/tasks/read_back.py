"""Prove that remote segments hold what a local segment holds, before the local one is given up (docs/design/0001).

Both sides are read whole: the remote one through its manifest, chunk by chunk, the local one from the broker's disk; every
batch CRC is checked, and the digests over the batches of the range must agree, so leader epochs and CRCs do.

With ``verify.read.back: checksum`` the store's own CRC32C of the object stands for its bytes, where the object is the local
file byte for byte.  In any doubt both are read.

Where that fails, trimming waits before that segment, and nothing else of its partition does (S-063).  A store may give one
wrong byte, once, or have lost an object of a finished segment for good.  Either is reported by name and tried again, later each
time; local data stay until then, so nothing is lost.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

import structlog
from crc32c import crc32c

from tiersidecar.decide.trim import TrimStep
from tiersidecar.domain.errors import (
    CorruptDataError,
    DataKeyError,
    KeyRefusedError,
    KeyServiceError,
    ObjectNotFoundError,
    StoreError,
)
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.formats.kafka.batch_digest import BatchDigest
from tiersidecar.ports.clock import Clock, Ids
from tiersidecar.ports.log_dirs import LogDirs, SegmentFile
from tiersidecar.ports.metrics.retention import TRIM_REFUSALS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.segment_stream import Pace
from tiersidecar.tasks.copy_admission import CopyQuota
from tiersidecar.tasks.lanes import Backoff
from tiersidecar.tasks.partition_table import PartitionTable, UnprovenCopy

log = structlog.get_logger(__name__)

_SLICE_BYTES = 256 * 1024
"""Bytes of the local file that are read and looked at in one go."""
_SLICES_PER_S, _MOST_SLICE_BYTES = 16, 4 * 1024 * 1024
"""Under a rate: as many, and as large, as the parts of the remote side at most."""


def local_slice_bytes(rate: int | None) -> int:
    """Return how much of the local file is in memory at a time, at ``rate`` bytes a second (None: no limit)."""
    return min(max(_SLICE_BYTES, (rate or 0) // _SLICES_PER_S), _MOST_SLICE_BYTES)


async def local_slices(file: SegmentFile, pace: Pace, look: Callable[[memoryview], None]) -> AsyncGenerator[int]:
    """Show ``look`` a local .log from its first byte to its last, and yield the size of each slice."""
    rate = pace.bytes_per_s
    read_into = file.read_into if rate is None else file.read_with_rests
    slice_bytes = local_slice_bytes(rate)
    buffer = memoryview(bytearray(min(slice_bytes, file.size_bytes)))
    for position in range(0, file.size_bytes, slice_bytes):
        part = buffer[: file.size_bytes - position]
        read = await read_into(position, part, lambda _, seen: look(seen))
        file.let_go(position, read)
        yield read


class FeedRemoteLog(Protocol):
    def feed_log(
        self, metadata: RemoteLogSegmentMetadata, look: Callable[[memoryview], None], pace: Pace
    ) -> AsyncGenerator[int]:
        """Show ``look`` the whole .log of a remote segment in order, past every cache, as fast as ``pace`` allows, and yield
        the sizes of its parts; its manifest and sizes are checked on the way."""

    async def stored_checksum(self, metadata: RemoteLogSegmentMetadata) -> int | None:
        """Check the manifest, the sizes and the indexes of a remote segment, and return the CRC32C that the store keeps of its
        .log; None where it keeps none, or the object is not the broker's file byte for byte."""


class ReadBack:
    """Verifies trim steps; remote bytes are charged to the copy quota, and read at ``pace``: the uploads', so that a read-back
    is no burst either (U14).  ``trusts_checksums``: the store's own CRC32C of an object may stand for its bytes."""

    def __init__(
        self,
        *,
        log_dirs: LogDirs,
        remote: FeedRemoteLog,
        quota: CopyQuota,
        pace: Pace,
        trusts_checksums: bool = False,
    ) -> None:
        self._log_dirs, self._remote = log_dirs, remote
        self._quota, self._pace = quota, pace
        self._trusts_checksums = trusts_checksums

    async def verify(self, step: TrimStep) -> None:
        """Return once the remote segments of ``step`` are proven to hold the batches of its local segment, from its
        ``from_offset`` on.

        Raises:
            CorruptDataError: they do not, or cannot be decoded.
            StoreError: they could not be read.
            KeyServiceError, KeyRefusedError, DataKeyError: their data key could not be opened.
            SegmentChangedError: the local segment is gone.
        """
        if self._trusts_checksums and await self._has_checksum_of_the_file(step):
            return
        await self._compare_batches(step)

    async def _has_checksum_of_the_file(self, step: TrimStep) -> bool:
        """Return whether one remote segment is the local file by size and by the store's checksum.  False proves nothing: the
        replica that copied it may have rolled its segments elsewhere."""
        if len(step.remote) != 1 or step.remote[0].segment_size_in_bytes != step.local.size_bytes:
            return False
        stored = await self._remote.stored_checksum(step.remote[0])
        if stored is None:
            return False
        found = _Crc32c()
        async with self._log_dirs.open_segment(step.local) as file:
            if file.size_bytes != step.local.size_bytes:
                return False
            async with aclosing(local_slices(file, self._pace, found.feed)) as slices:
                async for _ in slices:
                    pass
        if (found.value, found.size_bytes) == (stored, step.local.size_bytes):
            return True
        log.warning(
            "read_back.checksum.differs",
            segment=str(step.remote[0].remote_log_segment_id),
            log_path=step.local.log_path,
            consequence="both are read and compared",
        )
        return False

    async def _compare_batches(self, step: TrimStep) -> None:
        start_offset = step.from_offset
        local = BatchDigest(start_offset=start_offset, stop_offset=step.offset)
        remote = BatchDigest(start_offset=start_offset, stop_offset=step.offset)
        async with aclosing(self._feed_local(local, step.local)) as feeding_local:
            ahead_bytes = 0
            for metadata in step.remote:
                async with aclosing(self._feed_remote(remote, metadata)) as feeding_remote:
                    async for remote_bytes in feeding_remote:
                        ahead_bytes += remote_bytes
                        while ahead_bytes > 0 and (local_bytes := await anext(feeding_local, 0)):
                            ahead_bytes -= local_bytes
            async for _ in feeding_local:
                pass
        if local.digest() != remote.digest():
            raise CorruptDataError(
                where=", ".join(str(metadata.remote_log_segment_id) for metadata in step.remote),
                position=0,
                reason=f"its batches of [{start_offset}, {step.offset}) are not those of {step.local.log_path}: "
                "nothing is trimmed",
            )

    async def _feed_local(self, digest: BatchDigest, segment: LocalSegment) -> AsyncGenerator[int]:
        """Feed slice by slice, each with its bytes: the disk is read no faster than the store."""
        async with self._log_dirs.open_segment(segment) as file:
            digest.begin_segment(segment.log_path)
            async with aclosing(local_slices(file, self._pace, digest.feed)) as slices:
                async for read in slices:
                    yield read
            digest.end_segment()

    async def _feed_remote(self, digest: BatchDigest, metadata: RemoteLogSegmentMetadata) -> AsyncGenerator[int]:
        """Feed part by part, each with its bytes, and paid for before it is read."""
        await self._quota.admit(metadata.segment_size_in_bytes)
        digest.begin_segment(str(metadata.remote_log_segment_id))
        async with aclosing(self._remote.feed_log(metadata, digest.feed, self._pace)) as parts:
            async for part_bytes in parts:
                yield part_bytes
        digest.end_segment()


class _Crc32c:
    """The checksum of all that was fed, in order."""

    def __init__(self) -> None:
        self.value = self.size_bytes = 0

    def feed(self, part: memoryview) -> None:
        self.value = crc32c(part, self.value)
        self.size_bytes += len(part)


_BACKOFF, _AWAY = Backoff(initial_s=5.0, maximum_s=300.0), Backoff(initial_s=5.0, maximum_s=30.0)
"""Backoff for what is damaged, and for what the store or the key service does not give: it may be back in a moment."""

NotProven = CorruptDataError | StoreError | DataKeyError | KeyRefusedError | KeyServiceError
"""Errors that another look may mend, or a repair."""


class Unproven:
    """The first such segment of each partition: beyond it nothing is trimmed anyway."""

    def __init__(self, *, table: PartitionTable, clock: Clock, ids: Ids, telemetry: Telemetry) -> None:
        self._table, self._clock, self._ids, self._telemetry = table, clock, ids, telemetry

    def is_resting(self, topic_id_partition: TopicIdPartition, base_offset: int) -> bool:
        """Return whether the local segment at ``base_offset`` cannot be trimmed before the next try is due."""
        found = self._table.record(topic_id_partition).unproven
        return found is not None and base_offset >= found.base_offset and self._clock.monotonic_s() < found.until_s

    def failed(self, topic_id_partition: TopicIdPartition, step: TrimStep, error: NotProven) -> None:
        """Note that the remote copy of ``step`` could not be read back, or holds something else."""
        base_offset, known, reason = (
            step.local.base_offset,
            self._table.record(topic_id_partition).unproven,
            _reason(error),
        )
        failures = known.failures + 1 if known is not None and known.base_offset == base_offset else 1
        delay_s = (_AWAY if _is_away(error) else _BACKOFF).delay_s(failures, self._ids.random())
        self._telemetry.count(TRIM_REFUSALS, topic=topic_id_partition.topic, reason=reason)
        self._table.record(topic_id_partition).unproven = UnprovenCopy(
            base_offset=base_offset,
            failures=failures,
            until_s=self._clock.monotonic_s() + delay_s,
            reason=f"trimming waits before offset {base_offset}, whose remote copy is {reason}: {error}; {_next(error)}",
        )
        log.error(
            "trim.read_back.failed",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            base_offset=base_offset,
            segment_ids=[str(one.remote_log_segment_id) for one in step.remote],
            reason=reason,
            error=str(error),
            failures=failures,
            backoff_ms=int(delay_s * 1000),
        )

    def proven(self, topic_id_partition: TopicIdPartition, step: TrimStep) -> None:
        """Note that all is well with ``step``."""
        found = self._table.record(topic_id_partition).unproven
        if found is None or step.local.base_offset < found.base_offset:
            return
        self._table.record(topic_id_partition).unproven = None
        log.info(
            "trim.read_back.mended",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            base_offset=step.local.base_offset,
        )

    def gone(self, topic_id_partition: TopicIdPartition, log_start_offset: int) -> None:
        """Note that the local log begins at ``log_start_offset``: what lay below it waits for nothing any more."""
        found = self._table.record(topic_id_partition).unproven
        if found is not None and found.base_offset < log_start_offset:
            self._table.record(topic_id_partition).unproven = None


def _reason(error: NotProven) -> str:
    if isinstance(error, ObjectNotFoundError):
        return "missing"
    return "corrupt" if isinstance(error, CorruptDataError) else "unreadable"


def _next(error: NotProven) -> str:
    if not isinstance(error, CorruptDataError | StoreError):
        return "the sidecar tries again"
    if _is_away(error):
        return "the sidecar tries again; `tiersidecar store check` shows how the store answers"
    mends = (
        "the sidecar tries again; `tiersidecar reconcile` (within an hour of the copy with --grace 0) shows the damage, and "
        "`tiersidecar repair` copies the segment again"
    )
    if isinstance(error, ObjectNotFoundError):
        return mends
    return f"{mends}; what `tiersidecar erase` rewrote differs if the log start went back since (docs/operations/erasure.md)"


def _is_away(error: NotProven) -> bool:
    return not isinstance(error, CorruptDataError | ObjectNotFoundError)
