"""``handover restore``: a broker's log dirs get back segments from the store, beside its own files, and then in their place.

```
plan ──> lacking_replicas ──> stage      segments under names that a broker passes over, each durable and read again;
         what each one lacks     │       the broker may run
                                 └─> staged.json of each broker
staged.json of all brokers ──> commit    names, then leader epochs and log starts; all brokers are stopped
                               undo      the former log starts, then the names
```
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tiersidecar.adapters.broker_files import sync_directory
from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.log_dirs_fs.log_dir_scan import read_partition_directory
from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.adapters.restored_segment import STAGED, RestoredFile, RestoredSegment, RestoredSegmentWriter, Span
from tiersidecar.app.builders.store import open_key_ring
from tiersidecar.app.builders.untouched_store import open_store_untouched
from tiersidecar.app.config.config import Config
from tiersidecar.app.handover.coverage import Covered, log_holes
from tiersidecar.app.handover.files import LogStarts, begins_later, read_starts
from tiersidecar.app.handover.plan import Plan, PlannedPartition, PlannedPiece
from tiersidecar.app.handover.seam import seam_fault
from tiersidecar.app.handover.staged import StagedPartition
from tiersidecar.decide.back_to_local import uncovered
from tiersidecar.domain.errors import CorruptDataError, HandoverError, LogDirError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.readable import size_text
from tiersidecar.domain.segments import LocalPartition
from tiersidecar.formats.kafka.log_dir_files import LOG_START_OFFSET_CHECKPOINT, DirectoryKind, parse_log_directory
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.remote_objects import ManifestCache
from tiersidecar.reading.segment_stream import SegmentStream

_AT_ONCE = 4
"""Partitions; the segments of each come one after the other, for each needs the producers of the one before."""
_RESERVE = 20
"""A volume keeps one part of so many free."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LackingReplica:
    """A replica and the ``pieces`` that it lacks, below ``local_start``, where its own first segment begins."""

    planned: PlannedPartition
    local: LocalPartition
    local_start: Offset
    pieces: tuple[PlannedPiece, ...]

    @property
    def directory(self) -> Path:
        return Path(self.local.directory)

    @property
    def size_bytes(self) -> int:
        """Return about how many bytes."""
        return sum(
            one.segment.segment_size_in_bytes
            * (one.stop_offset - one.start_offset)
            // (one.segment.next_offset - one.segment.start_offset)
            for one in self.pieces
        )

    @property
    def given_up(self) -> tuple[tuple[int, int], ...]:
        """Return offsets below ``local_start`` that no piece has."""
        spans = [Covered(one.start_offset, one.stop_offset) for one in self.pieces]
        return tuple(uncovered(spans, self.planned.log_start_offset, self.local_start))


def lacking_replicas(plan: Plan, log_dirs: Sequence[Path], faults: list[str]) -> list[LackingReplica]:
    """Return the planned replicas in ``log_dirs``, with what they lack; files that were staged for them do not count.

    What is wrong with one is added to ``faults``.
    """
    found = []
    wanted = plan.of_topic_partition()
    for log_dir in log_dirs:
        starts = read_starts(log_dir / LOG_START_OFFSET_CHECKPOINT)
        for directory in sorted(log_dir.iterdir()):
            name = parse_log_directory(directory.name)
            if name is None or name.kind is not DirectoryKind.CURRENT:
                continue
            planned = wanted.get((name.topic, name.partition))
            if planned is None:
                continue
            replica = _lacking(planned, log_dir, directory, starts)
            if isinstance(replica, str):
                faults.append(f"{directory}: {replica}")
            else:
                found.append(replica)
    return found


def _lacking(planned: PlannedPartition, log_dir: Path, directory: Path, starts: LogStarts) -> LackingReplica | str:
    owner = planned.owner
    try:
        local = read_partition_directory(str(log_dir), str(directory), owner.topic, owner.partition)
    except OSError as error:
        return explain_os_error(error)
    except (LogDirError, CorruptDataError) as error:
        return str(error)
    if local is None or not local.segments:
        return "it has no segment"
    if local.topic_id_partition.topic_id != owner.topic_id:
        return f"it is of another topic of this name, with id {format_uuid(local.topic_id_partition.topic_id)}"
    if fault := begins_later(planned, local, starts.offsets.get((owner.topic, owner.partition))):
        return fault
    local_start = local.segments[0].base_offset
    try:
        for start, stop in log_holes(planned, local, (), local_start):
            return (
                f"its log begins at {local_start}, and lacks the offsets [{start}, {stop}): a restore of it was interrupted. "
                "Take it out with --undo and the plan of that one"
            )
    except OSError as error:
        return explain_os_error(error)
    return _cut_at(planned, local, local_start)


def _cut_at(planned: PlannedPartition, local: LocalPartition, local_start: Offset) -> LackingReplica | str:
    pieces = tuple(
        replace(one, stop_offset=min(one.stop_offset, local_start))
        for one in planned.pieces
        if one.start_offset < local_start
    )
    found = LackingReplica(planned=planned, local=local, local_start=local_start, pieces=pieces)
    for start, stop in found.given_up:
        if not any(first <= start and stop <= end for first, end in planned.gaps):
            return f"its log begins at {local_start}, and no copy has the offsets [{start}, {stop}): plan again"
    return found


def staged_bytes(directory: Path) -> int:
    """Return what an earlier run has staged there, and a new one writes anew."""
    return sum(path.lstat().st_size for path in directory.glob(f"*{STAGED}"))


def room_faults(replicas: Sequence[LackingReplica]) -> Iterator[str]:
    """Yield volumes that have not enough left for what goes there."""
    needed: dict[int, tuple[Path, int]] = {}
    for one in replicas:
        device = one.directory.stat().st_dev
        path, before = needed.get(device, (one.directory, 0))
        needed[device] = path, before + max(one.size_bytes - staged_bytes(one.directory), 0)
    for path, size_bytes in needed.values():
        volume = os.statvfs(path)
        free = volume.f_bavail * volume.f_frsize - volume.f_blocks * volume.f_frsize // _RESERVE
        if size_bytes > free:
            yield (
                f"{path.parent}: {size_text(size_bytes)} go there, and {size_text(max(free, 0))} are left, without a "
                f"{_RESERVE}th of the volume as reserve"
            )


async def stage(
    config: Config, replicas: Sequence[LackingReplica], done: Callable[[StagedPartition], None], say: Say
) -> None:
    """Write what each replica lacks, beside its files; ``done`` is called with each that has all.

    Raises:
        StoreError: an object is missing or could not be read.
        CorruptDataError: what the store has does not fit, or is damaged.
        HandoverError: the broker's log does not go on where the restored one ends.
    """
    places = asyncio.Semaphore(_AT_ONCE)
    async with AsyncExitStack() as stack:
        source = await _open_source(stack, config)

        async def one(replica: LackingReplica) -> None:
            async with places:
                done(await _Staging(source, replica, say).run())

        try:
            async with asyncio.TaskGroup() as group:
                for replica in replicas:
                    group.create_task(one(replica), name=f"restore {replica.planned.owner}")
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    stream: SegmentStream
    blobs: IndexBlobReader
    blocking: ThreadBlocking


async def _open_source(stack: AsyncExitStack, config: Config) -> _Source:
    clock, ring = SystemClock(), open_key_ring(config)
    store = await stack.enter_async_context(
        open_store_untouched(config, clock=clock, ids=SystemIds(), telemetry=NoTelemetry())
    )
    blocking = await stack.enter_async_context(ThreadBlocking(max_threads=2 * _AT_ONCE, name="restore"))
    prefix = config.store.key_prefix
    manifests = ManifestCache(store=store, blocking=blocking, key_prefix=prefix, key_ring=ring)
    stack.push_async_callback(manifests.aclose)
    return _Source(
        stream=SegmentStream(store=store, blocking=blocking, key_prefix=prefix, key_ring=ring),
        blobs=IndexBlobReader(store=store, blocking=blocking, manifests=manifests),
        blocking=blocking,
    )


class _AtOnce:
    """No limit: the broker is stopped, or has its own reads on another disk's cache."""

    bytes_per_s = None

    async def grant(self, wanted_bytes: int) -> int:
        return wanted_bytes


class _Staging:
    """One replica."""

    def __init__(self, source: _Source, replica: LackingReplica, say: Say) -> None:
        self._source, self._replica, self._say = source, replica, say
        self._lineage = Lineage.of(replica.planned.leader_epochs)
        self._like = Path(replica.local.segments[0].log_path).stat()

    async def run(self) -> StagedPartition:
        replica, producers = self._replica, b""
        files: list[RestoredFile] = []
        first = reached = int(replica.planned.log_start_offset)
        has_hole = False
        for number, piece in enumerate(replica.pieces):
            self._say(f"restoring {replica.planned.owner}: segment {number + 1:,} of {len(replica.pieces):,}")
            if piece.start_offset > reached:
                producers, has_hole = b"", True
            made = await self._restore(piece, producers, is_first=piece.start_offset == first, has_hole=has_hole)
            files += made.files
            producers, reached = made.producers, piece.stop_offset
        fault = await self._source.blocking.run(seam_fault, replica.local, replica.local_start, producers)
        if fault:
            raise HandoverError(subject=str(replica.planned.owner), reason=fault)
        sync_directory(replica.directory)
        # The producers' state where the log of the broker begins is the broker's own.
        own = f"{replica.local_start:020d}.snapshot"
        await self._source.blocking.run(partial((replica.directory / f"{own}{STAGED}").unlink, missing_ok=True))
        return StagedPartition(
            owner=replica.planned.owner,
            directory=str(replica.directory),
            local_start=replica.local_start,
            files=tuple(one for one in files if one.name != own),
        )

    async def _restore(
        self, piece: PlannedPiece, producers: bytes, *, is_first: bool, has_hole: bool
    ) -> RestoredSegment:
        segment = piece.segment
        transactions = (await self._source.blobs.read_index_files(segment)).transaction_index if has_hole else b""
        writer = RestoredSegmentWriter(
            self._replica.directory,
            Span(start=piece.start_offset, stop=piece.stop_offset, may_begin_before=is_first),
            lineage=self._lineage,
            producers=producers or None,
            like=self._like,
            where=f"the .log of {segment.remote_log_segment_id}",
        )
        try:
            async for _ in self._source.stream.feed_log(segment, writer.take, _AtOnce()):
                pass
            return await self._source.blocking.run(writer.finish, transactions)
        except OSError as error:
            raise HandoverError(subject=str(self._replica.directory), reason=explain_os_error(error)) from error
        finally:
            writer.abandon()
