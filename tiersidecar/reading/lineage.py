"""The history that decides which remote segments may be read, copied after, or deleted, and its start (docs/design/0003).

The broker's leader-epoch-checkpoint has forgotten the epochs below its log start.  What it has forgotten stands in the epoch
blob of a remote segment: of the last finished one that agrees with the live file, because every blob has all epochs from
the first remote segment on.  Of what is not remote and yet deleted by the broker, pins keep the epochs.

All segments of a partition, which may have a hundred thousand, are made without holding up the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import structlog

from tiersidecar.domain.errors import CorruptDataError, MetadataNotReadyError, ObjectNotFoundError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.metadata_cache_rows import SegmentPicture
from tiersidecar.domain.offsets import EpochEntry, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import replaced_segments
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.metadata_log import CountMetadata, MetadataView, ReadEpochs
from tiersidecar.ports.state_log import StateLog
from tiersidecar.ports.state_records import TrashLog
from tiersidecar.reading.remote_objects import ByteLru, SingleFlight

T = TypeVar("T")

_MADE_ON_THE_LOOP = 256
"""One or two milliseconds."""


async def pictured_segments(
    picture: SegmentPicture, blocking: Blocking, *, from_offset: int = 0
) -> tuple[RemoteLogSegmentMetadata, ...]:
    """Return :meth:`SegmentPicture.segments`; made in a thread where there are many."""
    if len(picture) <= _MADE_ON_THE_LOOP:
        return picture.segments(from_offset)
    return await blocking.run(picture.segments, from_offset)


async def of_pictured(
    picture: SegmentPicture,
    blocking: Blocking,
    found_in: Callable[[Sequence[RemoteLogSegmentMetadata]], T],
    *,
    from_offset: int = 0,
) -> T:
    """Return ``found_in(segments)``; called in a thread, too, where there are many: it must look at nothing that changes."""
    if len(picture) <= _MADE_ON_THE_LOOP:
        return found_in(picture.segments(from_offset))
    return await blocking.run(lambda: found_in(picture.segments(from_offset)))


class LogStarts(Protocol):
    """The remote log start: ours to keep (docs/design/0003)."""

    def remote_log_start_offset(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> Offset:
        """Return the first offset of the history ``lineage`` that a reader may have at all; -1 while nothing moved it."""

    def held_offset(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> Offset:
        """Return the offset up to which trims of the history ``lineage`` gave up remote data; -1 while none did."""

    def log_start_for(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> Offset:
        """Return the first offset that a reader may have of what ``leader_epoch`` wrote; -1 while nothing moved it."""

    def replaced_segments(self, topic_id_partition: TopicIdPartition) -> frozenset[Uuid]:
        """Return segments that an erasure has replaced, or will: they are not given out where others hold their offsets."""


class StateAndTrash(StateLog, TrashLog, Protocol):
    """The source of remote log starts, and of what an erasure has replaced."""


class StateLogStarts:
    """Remote log starts from ``__tiersidecar_state``."""

    def __init__(self, state_log: StateAndTrash) -> None:
        self._state_log = state_log

    def remote_log_start_offset(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> Offset:
        """Return the first offset of the history ``lineage`` that a reader may have at all."""
        return self._state_log.partition_state(topic_id_partition).start_in(lineage)

    def held_offset(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> Offset:
        """Return the offset up to which trims of the history ``lineage`` gave up remote data."""
        return self._state_log.partition_state(topic_id_partition).held_in(lineage)

    def log_start_for(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> Offset:
        """Return the first offset that a reader may have of what ``leader_epoch`` wrote."""
        return self._state_log.partition_state(topic_id_partition).start_for(leader_epoch)

    def replaced_segments(self, topic_id_partition: TopicIdPartition) -> frozenset[Uuid]:
        """Return segments that an erasure has replaced, or will."""
        return replaced_segments(self._state_log.trash(topic_id_partition))


log = structlog.get_logger(__name__)

_BLOBS_KEPT = 10_000


class LiveLog(Protocol):
    """A partition's epochs by the local broker's files."""

    def leader_epochs(self, topic_id_partition: TopicIdPartition) -> Sequence[EpochEntry]:
        """Return the live leader-epoch-checkpoint; empty when this process sees no log dir of the partition."""

    def pinned_leader_epochs(self, topic_id_partition: TopicIdPartition) -> Sequence[EpochEntry]:
        """Return what pins have kept of the epochs that the live file has dropped; empty where there are none."""


class NoLiveLog:
    """A process with the read role and no log dirs."""

    def leader_epochs(self, topic_id_partition: TopicIdPartition) -> Sequence[EpochEntry]:
        return ()

    def pinned_leader_epochs(self, topic_id_partition: TopicIdPartition) -> Sequence[EpochEntry]:
        return ()


class KeptEpochs:
    """Epoch blobs that were read before are not read again: no object ever changes."""

    def __init__(self, epochs: ReadEpochs) -> None:
        self._epochs = epochs
        self._kept: ByteLru[RemoteLogSegmentId, Sequence[EpochEntry]] = ByteLru(_BLOBS_KEPT)

    async def read_leader_epochs(self, metadata: RemoteLogSegmentMetadata) -> Sequence[EpochEntry]:
        """Read the segment's leader epochs (:class:`~tiersidecar.ports.metadata_log.ReadEpochs`)."""
        found = self._kept.get(metadata.remote_log_segment_id)
        if found is None:
            found = await self._epochs.read_leader_epochs(metadata)
            self._kept.put(metadata.remote_log_segment_id, found, 1)
        return found


class LineageSource(Protocol):
    """The lineage of each partition."""

    async def lineage(self, topic_id_partition: TopicIdPartition, *, max_age_s: float = 30.0) -> Lineage:
        """Return the lineage for the live file as it is now.  Without one, remote segments count after ``max_age_s`` at most.

        Raises:
            MetadataNotReadyError: the partition has not been replayed.
            StoreError: an epoch blob could not be read.
        """

    async def refresh(self, topic_id_partition: TopicIdPartition) -> Lineage:
        """Return :meth:`lineage`, chosen anew from every segment that is finished now: before a decision rests on it."""

    def last(self, topic_id_partition: TopicIdPartition) -> Lineage | None:
        """Return the last lineage given out, which may be out of date; None where there was none."""
        ...

    def log_end_offset(self, topic_id_partition: TopicIdPartition) -> Offset:
        """Return the end of the remote log (exclusive)."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A lineage, when its blob was chosen and among how many finished segments.  It ``meets`` the live file if the blob has
    the epoch that the live file begins with: then nothing is missing before it, and its start is the true one.  ``applied_to``
    is -1 where changes are not counted."""

    lineage: Lineage
    made_at_s: float
    meets: bool
    finished: int
    applied_to: int


_Sources = tuple[Lineage, tuple[EpochEntry, ...], tuple[EpochEntry, ...]]
"""The entries by remote segments, pins and the live file."""


class LineageKeeper:
    """Build lineages from the live files and the epoch blobs.

    A lineage is extended with each change of the live file, for as long as the two meet: choosing the blob again means
    listing the partition's segments, of which there may be a hundred thousand.  Where there are no live files at all, as of
    what another cluster copies, ``changes`` shows whether there is anything new to choose by: as long as there is not, a
    lineage holds whatever its age.  The store is asked for the blob only of an epoch that is new.
    """

    def __init__(
        self,
        *,
        metadata: MetadataView,
        epochs: ReadEpochs,
        live: LiveLog,
        blocking: Blocking,
        clock: Clock,
        changes: CountMetadata | None = None,
    ) -> None:
        self._metadata, self._changes = metadata, changes
        self._blocking = blocking
        self._epochs = epochs
        self._live = live
        self._clock = clock
        self._known: dict[TopicIdPartition, _Known] = {}
        self._extensions: dict[TopicIdPartition, tuple[_Sources, Lineage]] = {}
        self._flights: SingleFlight[TopicIdPartition, _Known] = SingleFlight("lineage", max_flights=10_000)

    async def lineage(self, topic_id_partition: TopicIdPartition, *, max_age_s: float = 30.0) -> Lineage:
        """Return the lineage for the live file as it is now."""
        self._require_ready(topic_id_partition)
        known = self._known.get(topic_id_partition)
        if known is not None and self._is_as_it_was(topic_id_partition, known):
            return known.lineage
        live = tuple(self._live.leader_epochs(topic_id_partition))
        if known is None or not self._holds(topic_id_partition, known, live, max_age_s):
            known = await self._flights.run(topic_id_partition, lambda: self._build(topic_id_partition))
        return self._keep(
            topic_id_partition, replace(known, lineage=self._extended(topic_id_partition, known.lineage, live))
        )

    async def refresh(self, topic_id_partition: TopicIdPartition) -> Lineage:
        """Return :meth:`lineage`, chosen anew from every segment that is finished now."""
        # Not by a flight that began earlier: it may have missed the segment that the caller knows of.
        return self._keep(topic_id_partition, await self._build(topic_id_partition, is_anew=True))

    def last(self, topic_id_partition: TopicIdPartition) -> Lineage | None:
        """Return the last lineage given out, which may be out of date; None where there was none."""
        known = self._known.get(topic_id_partition)
        return None if known is None else known.lineage

    def log_end_offset(self, topic_id_partition: TopicIdPartition) -> Offset:
        """Return the end of the remote log (exclusive)."""
        known = self._known.get(topic_id_partition)
        if known is None:
            return _end_offset(_finished(self._metadata.list_remote_log_segments(topic_id_partition)))
        # By what is finished by now: a lineage outlives many copies.
        by_epoch = (
            self._metadata.highest_offset_for_epoch(topic_id_partition, entry.epoch)
            for entry in reversed(known.lineage.entries)
        )
        return Offset(next((highest + 1 for highest in by_epoch if highest is not None), 0))

    def forget(self, topic_id_partition: TopicIdPartition) -> None:
        """Forget a partition that is no longer ours."""
        self._known.pop(topic_id_partition, None)
        self._extensions.pop(topic_id_partition, None)

    async def aclose(self) -> None:
        """Give up what is in flight."""
        await self._flights.aclose()

    def _holds(
        self, topic_id_partition: TopicIdPartition, known: _Known, live: tuple[EpochEntry, ...], max_age_s: float
    ) -> bool:
        # What pins kept may be finished when the broker's log begins far behind it: only then its epochs are known.
        if not known.meets and self._finished_count(topic_id_partition) != known.finished:
            return False
        if not live:
            return self._changes is None and self._clock.monotonic_s() - known.made_at_s < max_age_s
        # Epochs between our last one and the live file's first may have come and gone unseen: only a blob has them.
        return any(entry.epoch == live[0].epoch for entry in known.lineage.entries)

    def _is_as_it_was(self, topic_id_partition: TopicIdPartition, known: _Known) -> bool:
        return self._changes is not None and self._changes.applied_to(topic_id_partition) == known.applied_to

    def _require_ready(self, topic_id_partition: TopicIdPartition) -> None:
        if not self._metadata.is_ready(topic_id_partition):
            raise MetadataNotReadyError(subject=str(topic_id_partition))

    def _keep(self, topic_id_partition: TopicIdPartition, known: _Known) -> Lineage:
        self._known[topic_id_partition] = known
        return known.lineage

    async def _build(self, topic_id_partition: TopicIdPartition, *, is_anew: bool = False) -> _Known:
        self._require_ready(topic_id_partition)
        made_at_s = self._clock.monotonic_s()
        picture = self._metadata.picture(topic_id_partition)
        applied_to = -1 if self._changes is None else self._changes.applied_to(topic_id_partition)
        live = tuple(self._live.leader_epochs(topic_id_partition))
        finished = _finished(await pictured_segments(picture, self._blocking))
        remote = None if is_anew else self._unchanged_remote(topic_id_partition, finished)
        if remote is None:
            remote = await _remote_lineage(finished, Lineage.of(live), self._epochs)
        return _Known(
            lineage=self._extended(topic_id_partition, remote, live),
            made_at_s=made_at_s,
            meets=not live or _meets(remote, Lineage.of(live)),
            finished=len(finished),
            applied_to=applied_to,
        )

    def _unchanged_remote(
        self, topic_id_partition: TopicIdPartition, finished: Sequence[RemoteLogSegmentMetadata]
    ) -> Lineage | None:
        """Return the lineage as it was, without live files: an epoch has one history, whichever of its segments has it."""
        known = self._known.get(topic_id_partition)
        if self._changes is None or known is None or not known.lineage or not finished:
            return None
        latest = max(segment.segment_leader_epochs[-1].epoch for segment in finished)
        return known.lineage if latest == known.lineage.latest_epoch else None

    def _finished_count(self, topic_id_partition: TopicIdPartition) -> int:
        """Count the finished segments.  Those that have only begun do not count: the end of a copy would change no number."""
        unfinished = sum(1 for _ in self._metadata.list_unfinished_segments(topic_id_partition))
        return self._metadata.segment_count(topic_id_partition) - unfinished

    def _extended(self, topic_id_partition: TopicIdPartition, remote: Lineage, live: tuple[EpochEntry, ...]) -> Lineage:
        """Return ``remote`` with the epochs of pins and the live file.  The last result stands while none changes."""
        pins = tuple(self._live.pinned_leader_epochs(topic_id_partition))
        sources, made = self._extensions.get(topic_id_partition, (None, remote))
        if sources != (remote, pins, live):
            pinned = Lineage.of(pins)
            made = (_around(remote, pinned) if pinned else remote).extended_by(live)
            self._extensions[topic_id_partition] = ((remote, pins, live), made)
        return made


def _finished(segments: Iterable[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    return [segment for segment in segments if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED]


def agrees(blob: Lineage, live: Lineage) -> bool:
    """Return whether ``blob`` can be the past of the ``live`` file: no epoch of either is missing in the other, or starts
    elsewhere, as far as both reach."""
    if not live or not _entries_fit(blob.entries, live):
        return not live
    known = {entry.epoch for entry in blob.entries}
    between = (entry.epoch for entry in live.entries[1:] if entry.epoch < blob.latest_epoch)
    return all(epoch in known for epoch in between)


def newest_first(finished: Sequence[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    """Return segments by their last leader epoch, then by their end: a deposed leader's last segment may end higher than its
    successor's, but its epoch is lower."""
    return sorted(
        finished, key=lambda segment: (segment.segment_leader_epochs[-1].epoch, segment.end_offset), reverse=True
    )


def _entries_fit(entries: Sequence[EpochEntry], live: Lineage) -> bool:
    """Return whether ``entries`` fit the live file.  Its first entry may start later than it did, because a moved log start
    raises it; those before it have been dropped."""
    head = live.entries[0]
    starts = {entry.epoch: entry.start_offset for entry in live.entries}
    for entry in entries:
        if entry.epoch < head.epoch:
            fits = entry.start_offset < head.start_offset
        elif entry.epoch == head.epoch:
            fits = entry.start_offset <= head.start_offset
        else:
            fits = starts.get(entry.epoch) == entry.start_offset
        if not fits:
            return False
    return True


async def _remote_lineage(finished: Sequence[RemoteLogSegmentMetadata], live: Lineage, epochs: ReadEpochs) -> Lineage:
    unreadable: CorruptDataError | ObjectNotFoundError | None = None
    for segment in newest_first(finished):
        # A segment's own epochs are in its metadata (all but the start of the first): most that do not fit need no blob.
        if live and not _entries_fit(segment.segment_leader_epochs[1:], live):
            continue
        try:
            blob = Lineage.of(await epochs.read_leader_epochs(segment))
        except (CorruptDataError, ObjectNotFoundError) as error:
            unreadable = unreadable or error
            log.warning("lineage.blob.unreadable", segment_id=str(segment.remote_log_segment_id), error=str(error))
            if not live:
                break  # an older one would have to meet the live file
            continue
        # An older blob than the one that cannot be read must meet the live file: between the two no epoch is missing then.
        if agrees(blob, live) and (unreadable is None or _meets(blob, live)):
            return blob
    if unreadable is None or _has_all_of(live, finished):
        return Lineage()
    lineage = _by_metadata(live, finished)
    if lineage is None:
        raise unreadable
    return lineage


def _meets(blob: Lineage, live: Lineage) -> bool:
    return bool(live) and any(entry.epoch == live.entries[0].epoch for entry in blob.entries)


def _has_all_of(live: Lineage, finished: Sequence[RemoteLogSegmentMetadata]) -> bool:
    """Return whether the live file begins no later than what is remote: then no blob knows more of it."""
    return bool(live) and live.entries[0].start_offset <= min(segment.start_offset for segment in finished)


def _by_metadata(live: Lineage, finished: Sequence[RemoteLogSegmentMetadata]) -> Lineage | None:
    """Return the entries that an unreadable blob must have had: where one segment reaches from the first remote offset to an
    epoch of the live file, its metadata have every epoch from there on.  Else nothing would be copied after a lost first
    segment, once a user has deleted into it (simulation, cluster seed 221)."""
    first_offset = min(one.start_offset for one in finished)
    for segment in finished:
        own = Lineage.of(segment.segment_leader_epochs)
        if segment.start_offset == first_offset and agrees(own, live) and _meets(own, live):
            return own
    return None


def _around(remote: Lineage, pinned: Lineage) -> Lineage:
    """Return ``remote`` with the epochs of pins beyond its ends: of holes before the first remote segment, and of what the
    broker has deleted since the last.  Where both know an epoch, ``remote`` counts: a pin's first may begin too late."""
    later = [entry for entry in pinned.entries if entry.epoch >= remote.latest_epoch]
    return pinned.extended_by(remote.entries).extended_by(later)


def _end_offset(finished: Sequence[RemoteLogSegmentMetadata]) -> Offset:
    newest = max(
        finished, key=lambda segment: (segment.segment_leader_epochs[-1].epoch, segment.end_offset), default=None
    )
    return newest.next_offset if newest else Offset(0)
