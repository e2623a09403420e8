"""The broker's log.dirs on this machine's disks; read only.

Many callers, one scan at a time.

Reading which topic a partition's directory is of at this very moment: a name may be given to another topic at any time.
"""

from __future__ import annotations

import asyncio
import math
import operator
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from tiersidecar.adapters.log_dirs_fs.directory_watch import DirectoryWatch
from tiersidecar.adapters.log_dirs_fs.log_dir_scan import LogDirScan, LogDirScanner
from tiersidecar.adapters.log_dirs_fs.segment_file import OpenSegmentFile, read_segment_artefacts, translated
from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.domain.errors import CorruptDataError, LogDirError, UnformattedLogDirError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.segments import LocalPartition, LocalSegment
from tiersidecar.formats.kafka.log_dir_files import (
    LEADER_EPOCH_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    REPLICATION_OFFSET_CHECKPOINT,
    read_leader_epochs,
    read_meta_properties,
    read_offset_checkpoint,
    read_partition_metadata,
)
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.log_dirs import LogDirIdentity, LogDirsView, SegmentArtefacts

_log = structlog.get_logger(__name__)
_MOST_KNOWN = 100_000
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_Identity = tuple[int, int, int]
"""Device, inode and time of change: the broker writes the file once, and under another name first."""


class TopicIdsNow:
    """Looks at the inode each time, and reads a file only when it is another: some microseconds."""

    def __init__(self, log_dirs: Sequence[str]) -> None:
        self._log_dirs = log_dirs
        self._known: dict[str, tuple[str, _Identity, Uuid]] = {}

    def find(self, topic: str, partition: int) -> Uuid | None:
        """Return the topic id; None: there is no such directory, or the broker has not written down yet which topic it is
        of."""
        directory = f"{topic}-{partition}"
        known = self._known.get(directory)
        if known is not None and _identity(known[0]) == known[1]:
            return known[2]
        for log_dir in self._log_dirs if _is_legal(topic, partition) else ():
            path = os.path.join(log_dir, directory, PARTITION_METADATA)  # noqa: PTH118 - of a path that is made each time
            identity = _identity(path)
            topic_id = None if identity is None else _read(path)
            if identity is not None and topic_id is not None:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[directory] = (path, identity, topic_id)
                return topic_id
        self._known.pop(directory, None)
        return None

    def leader_epoch(self, topic: str, partition: int) -> tuple[Uuid, LeaderEpoch] | None:
        """Return topic id and latest leader epoch in the files, or None where they cannot be read."""
        topic_id = self.find(topic, partition)
        if topic_id is None:
            return None
        path = Path(self._known[f"{topic}-{partition}"][0]).with_name(LEADER_EPOCH_CHECKPOINT)
        try:
            entries = read_leader_epochs(path.read_bytes(), where=str(path))
        except (OSError, CorruptDataError):
            return None
        return (topic_id, entries[-1].epoch) if entries else None


def _is_legal(topic: str, partition: int) -> bool:
    """Return whether Kafka's ``Topic.validate`` allows it: any other name, which a client may send, could lead out of the log
    dir."""
    return _TOPIC_NAME.fullmatch(topic) is not None and topic not in (".", "..") and partition >= 0


def _identity(path: str) -> _Identity | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - it takes a third of what a Path takes
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _read(path: str) -> Uuid | None:
    try:
        return read_partition_metadata(Path(path).read_bytes(), where=path)
    except (OSError, CorruptDataError):
        return None


class ScanQueue:
    """Runs ``scan`` so that each caller gets one that began after it asked: callers that come while one runs share the next.

    A scan that hangs is waited for, not doubled.
    """

    def __init__(self, scan: Callable[[], Awaitable[LogDirScan]]) -> None:
        self._scan = scan
        self._running: asyncio.Task[LogDirScan] | None = None
        self._next: asyncio.Task[LogDirScan] | None = None

    def next_scan(self) -> asyncio.Task[LogDirScan]:
        """Return the task of the next scan.  The caller must not cancel it: others share it."""
        if self._running is None or self._running.done():
            self._running, self._next = self._next, None
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(), name="scan log dir")
            return self._running
        if self._next is None:
            self._next = asyncio.create_task(self._run_after(self._running), name="scan log dir next")
        return self._next

    async def _run(self) -> LogDirScan:
        return await self._scan()

    async def _run_after(self, before: asyncio.Task[LogDirScan]) -> LogDirScan:
        await asyncio.wait([before])
        return await self._scan()


_REPORTED_WITHIN_S = 2.0
"""A file event comes within milliseconds, if it comes at all."""
_DISTRUSTED_S = 3600.0


class LogDirReader:
    """Reads one log dir, whole or where file events report changes, many callers one after the other.

    Events are believed until a whole scan finds changes that none reported, as on a file system that another machine writes:
    then every scan is a whole one, for an hour.
    """

    def __init__(self, log_dir: str, *, blocking: Blocking, clock: Clock, whole_every_s: float) -> None:
        self._log_dir, self._clock, self._whole_every_s = log_dir, clock, whole_every_s
        self._blocking, self._scanner = blocking, LogDirScanner(log_dir, now_ms=clock.now_ms)
        self._queue = ScanQueue(self._scan)
        self._wanted: set[str] | None = None
        """Directories to be read by the next scan; None for all."""
        self._whole_at_s = -math.inf
        self._reported: set[str] | None = None
        """Directories that events have reported since the last scan began; None where they may have reported less than there
        was."""
        self._unreported_since_s: dict[str, float] = {}
        self._distrusted_until_s = -math.inf

    def scan(self) -> asyncio.Task[LogDirScan]:
        """Read all, in a scan that began after this call and that callers share (:meth:`ScanQueue.next_scan`)."""
        self._wanted = self._reported = None
        return self._queue.next_scan()

    def scan_again(self, reported: frozenset[str] | None) -> asyncio.Task[LogDirScan]:
        """Read ``reported`` (:meth:`DirectoryWatch.take`); all of it where that is None, or the last whole scan was long
        ago."""
        now_s = self._clock.monotonic_s()
        self._check_events(reported, now_s)
        is_due = now_s - self._whole_at_s >= self._whole_every_s
        self._reported = None if reported is None or self._reported is None else self._reported | reported
        if reported is None or is_due or now_s < self._distrusted_until_s:
            self._wanted = None
        elif self._wanted is not None:
            self._wanted |= reported
        return self._queue.next_scan()

    async def _scan(self) -> LogDirScan:
        wanted, reported, self._wanted, self._reported = self._wanted, self._reported, set(), set()
        try:
            if wanted is not None:
                return await self._blocking.run(self._scanner.scan_again, wanted)
            now_s = self._clock.monotonic_s()
            scan = await self._blocking.run(self._scanner.scan)
        except BaseException:
            self._wanted = None
            raise
        self._whole_at_s = now_s
        if reported is not None:
            self._unreported_since_s |= dict.fromkeys(scan.changed - reported, self._clock.monotonic_s())
        return scan

    def _check_events(self, reported: frozenset[str] | None, now_s: float) -> None:
        """Believe events no longer where a scan has found what they have not reported since."""
        unreported = (
            {} if reported is None else {one: s for one, s in self._unreported_since_s.items() if one not in reported}
        )
        late = sorted(directory for directory, since_s in unreported.items() if now_s - since_s >= _REPORTED_WITHIN_S)
        self._unreported_since_s = {} if late else unreported
        if late:
            if now_s >= self._distrusted_until_s:
                _log.warning("log_dirs.watch.untold", directory=self._log_dir, changed=late[:_NAMED], count=len(late))
            self._distrusted_until_s = now_s + _DISTRUSTED_S


_NAMED = 3
_MOVED_WITHIN_S = 5.0
"""How long a partition may be in two log dirs: a broker that moves one renames the new directory, then the old."""

_Name = tuple[str, int]
"""Topic and partition."""


class FilesystemLogDirs:
    """``log.dirs`` as the broker is configured with them.

    ``segment_blocking`` are the threads that read segments, those of ``blocking`` unless given: reads may be made to wait
    behind the broker's, the scans must not.
    Each log dir is scanned in a thread of its own turn, all of it every ``whole_every_s`` at least; one that does not answer
    within ``scan_timeout_s`` is a fault until it does, and is not asked again before.  A partition in two log dirs is a fault
    once that has lasted for 5 s.
    """

    def __init__(
        self,
        log_dirs: Sequence[str],
        *,
        blocking: Blocking,
        clock: Clock,
        segment_blocking: Blocking | None = None,
        debounce_ms: int = 200,
        scan_timeout_s: float = 30.0,
        whole_every_s: float = 30.0,
    ) -> None:
        self._log_dirs = tuple(str(Path(log_dir)) for log_dir in log_dirs)
        self._blocking, self._clock, self._scan_timeout_s = blocking, clock, scan_timeout_s
        self._segment_blocking = segment_blocking or blocking
        self._readers = {
            log_dir: LogDirReader(log_dir, blocking=blocking, clock=clock, whole_every_s=whole_every_s)
            for log_dir in self._log_dirs
        }
        self._watch = DirectoryWatch(self._log_dirs, clock=clock, debounce_s=debounce_ms / 1000)
        self._topic_ids_now = TopicIdsNow(self._log_dirs)
        self._scans: tuple[LogDirScan, ...] = ()
        self._view = LogDirsView(partitions={}, faults={})
        self._double_since_s: dict[_Name, float] = {}

    async def identities(self) -> tuple[LogDirIdentity, ...]:
        found: list[LogDirIdentity] = []
        unreadable: list[str] = []
        for log_dir in self._log_dirs:
            try:
                found.append(await self._blocking.run(_read_identity, log_dir))
            except OSError as error:
                unreadable.append(explain_os_error(error))
        if not found:
            raise LogDirError(path=", ".join(self._log_dirs), reason="; ".join(unreadable))
        return tuple(found)

    async def scan(self) -> LogDirsView:
        return await self._view_of({log_dir: reader.scan() for log_dir, reader in self._readers.items()})

    async def scan_changed(self) -> LogDirsView:
        return await self._view_of(
            {log_dir: reader.scan_again(self._watch.take(log_dir)) for log_dir, reader in self._readers.items()}
        )

    async def _view_of(self, scanning: Mapping[str, asyncio.Task[LogDirScan]]) -> LogDirsView:
        scans = await asyncio.gather(*(self._in_time(log_dir, scan) for log_dir, scan in scanning.items()))
        before, self._scans = self._scans, tuple(scans)
        if all(map(operator.is_, scans, before)) and before and not self._double_since_s:
            return self._view
        # Asked for anew with each scan of everything, also where it has found nothing: a log dir may be another one by now.
        self._watch.want(directory for scan in scans for directory in scan.directories)
        if not self._has_found_the_same(before):
            partitions, faults = self._join(scans)
            self._view = LogDirsView(partitions=partitions, faults=faults)
        return self._view

    def _has_found_the_same(self, before: Sequence[LogDirScan]) -> bool:
        """Return whether the view stays the same object, which then need not be compared with the one before.  A partition in
        two log dirs is decided by time."""
        return bool(before) and not self._double_since_s and all(map(_are_same, self._scans, before))

    def changes(self) -> AsyncIterator[None]:
        """Yield when something came or went in the partition directories that the last :meth:`scan` saw."""
        return self._watch.changes()

    @asynccontextmanager
    async def open_segment(self, segment: LocalSegment) -> AsyncIterator[OpenSegmentFile]:
        file = OpenSegmentFile(segment, blocking=self._segment_blocking)
        try:
            await file.open()
            yield file
        finally:
            await file.close()

    async def read_artefacts(self, segment: LocalSegment) -> SegmentArtefacts:
        with translated(segment.log_path):
            return await self._blocking.run(read_segment_artefacts, segment)

    def topic_id_now(self, topic: str, partition: int) -> Uuid | None:
        return self._topic_ids_now.find(topic, partition)

    def leader_epoch_now(self, topic: str, partition: int) -> tuple[Uuid, LeaderEpoch] | None:
        return self._topic_ids_now.leader_epoch(topic, partition)

    async def high_watermarks(self) -> Mapping[TopicIdPartition, int]:
        """Read those of the partitions that the last :meth:`scan` saw: the file knows names only, and a name may come back."""
        known = {
            (topic_id_partition.topic, topic_id_partition.partition, at.log_dir): topic_id_partition
            for topic_id_partition, at in self._view.partitions.items()
        }
        found: dict[TopicIdPartition, int] = {}
        for log_dir in self._log_dirs:
            for (topic, partition), offset in (await self._blocking.run(_read_high_watermarks, log_dir)).items():
                topic_id_partition = known.get((topic, partition, log_dir))
                if topic_id_partition is not None:
                    found[topic_id_partition] = offset
        return found

    def _join(self, scans: Sequence[LogDirScan]) -> tuple[dict[TopicIdPartition, LocalPartition], dict[str, str]]:
        """Join the scans into one view of all log dirs.

        A partition found in two is where it was: a broker that moves one has both for a moment, and the scans are not of
        the same.  When that lasts it is in neither: a broker refuses to start on that.
        """
        partitions: dict[TopicIdPartition, LocalPartition] = {}
        faults = {directory: reason for scan in scans for directory, reason in scan.faults.items()}
        by_name: dict[_Name, list[LocalPartition]] = {}
        for scan in scans:
            for partition in scan.partitions:
                topic_id_partition = partition.topic_id_partition
                by_name.setdefault((topic_id_partition.topic, topic_id_partition.partition), []).append(partition)
        now_s = self._clock.monotonic_s()
        doubles = {name: found for name, found in by_name.items() if len(found) > 1}
        self._double_since_s = {name: self._double_since_s.get(name, now_s) for name in doubles}
        for name, found in by_name.items():
            if name in doubles and now_s - self._double_since_s[name] >= _MOVED_WITHIN_S:
                everywhere = " and ".join(partition.directory for partition in found)
                faults.update({partition.directory: f"the same partition is in {everywhere}" for partition in found})
                continue
            for one in found:
                if name not in doubles or self._was_there(one):
                    partitions[one.topic_id_partition] = one
        return partitions, faults

    def _was_there(self, partition: LocalPartition) -> bool:
        before = self._view.partitions.get(partition.topic_id_partition)
        return before is not None and before.directory == partition.directory

    async def _in_time(self, log_dir: str, scanning: asyncio.Task[LogDirScan]) -> LogDirScan:
        done, _ = await asyncio.wait([scanning], timeout=self._scan_timeout_s)
        if done:
            return scanning.result()
        return LogDirScan(faults={log_dir: f"it has not answered for {self._scan_timeout_s:g} s: its disk hangs"})


def _are_same(scan: LogDirScan, other: LogDirScan) -> bool:
    """Return whether nothing has changed between two scans of a log dir: what has not is the same object."""
    return (
        scan.faults == other.faults
        and len(scan.partitions) == len(other.partitions)
        and all(map(operator.is_, scan.partitions, other.partitions))
    )


def _read_identity(log_dir: str) -> LogDirIdentity:
    path = Path(log_dir, META_PROPERTIES)
    Path(log_dir).stat()
    try:
        properties = read_meta_properties(path.read_bytes(), where=str(path))
    except FileNotFoundError as error:
        reason = f"it has no {META_PROPERTIES}: not a log dir of a broker, or its volume is not mounted"
        raise UnformattedLogDirError(path=log_dir, reason=reason) from error
    except CorruptDataError as error:
        raise LogDirError(path=log_dir, reason=str(error)) from error
    return LogDirIdentity(
        log_dir=log_dir,
        cluster_id=properties.cluster_id,
        node_id=properties.node_id,
        directory_id=properties.directory_id,
    )


def _read_high_watermarks(log_dir: str) -> Mapping[tuple[str, int], int]:
    """Read them; empty when the file is not there, cannot be read or is damaged: a bound that is missing holds work back, no
    more."""
    path = Path(log_dir, REPLICATION_OFFSET_CHECKPOINT)
    try:
        return read_offset_checkpoint(path.read_bytes(), where=str(path))
    except (OSError, CorruptDataError):
        return {}
