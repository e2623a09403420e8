"""Plan for handing one partition over to native tiering, or taking it over from it (docs/design/0018-handover.md).

To native: two forecasts (:mod:`tiersidecar.decide.native_tiering`).  ``naive`` is what a broker would do if it were switched on
with the files that it has: its log start is where the sidecar trimmed to, and its epochs begin there.  ``prepared`` is what it
does once its files have the sidecar's knowledge: the users' log start, and the whole history of leader epochs.  A hand-over
goes on only if the second deletes nothing but what retention gives up, and reads all that the sidecar reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

from tiersidecar.decide.mount import EPOCHS_APART
from tiersidecar.decide.native_tiering import (
    Deletion,
    DeletionReason,
    Forecast,
    NativeLog,
    NativeRetention,
    foretell,
)
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.offsets import EpochEntry, Lineage, Offset
from tiersidecar.domain.segments import NO_LOG_END, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State


class Obstacle(StrEnum):
    """Conditions that keep a partition from being handed over."""

    UNFINISHED_COPY = "unfinished-copy"
    UNFINISHED_DELETE = "unfinished-delete"
    TRASH = "trash"
    ERASURE = "erasure"
    UNANSWERED_UNDELETE = "unanswered-undelete"
    RECOPY = "recopy"
    MOUNT = "mount"
    NO_START = "no-start"
    GAP = "gap"
    HISTORY = "history"
    CUT = "cut"
    ELSEWHERE = "elsewhere"
    DISPLACED = "displaced"
    RETENTION = "retention"


REMEDIES: Mapping[Obstacle, str] = {
    Obstacle.UNFINISHED_COPY: "let the copies finish (`tiersidecar pause TOPIC --copies` starts no others), or let the sidecar "
    "that began them clean them up: a native broker never does before their retention is over",
    Obstacle.UNFINISHED_DELETE: "let the sidecar finish what it deletes: a native broker would",
    Obstacle.TRASH: "`tiersidecar undelete TOPIC` what is to stay, `tiersidecar trash purge TOPIC` the rest, and wait until it "
    "is gone; or give it up with --accept trash: a native broker has no trash, and deletes it in its first round",
    Obstacle.ERASURE: "`tiersidecar trash purge TOPIC`, and wait until these segments are gone: an erasure has replaced them, "
    "and a native broker keeps their objects, with what was erased, until the retention is over",
    Obstacle.UNANSWERED_UNDELETE: "wait until the leader's sidecar has answered the last undelete",
    Obstacle.RECOPY: "wait until the leader's sidecar has copied again what the store has lost",
    Obstacle.MOUNT: "wait until the sidecar has copied the segment behind them: `tiersidecar mount` ended open transactions "
    "there, which only the index of the sidecar's copy will have; by the broker's own a native broker would give their "
    "records as committed",
    Obstacle.NO_START: "run the sidecar until it has recorded the remote log start of the partition",
    Obstacle.GAP: "wait until the sidecar has copied it, or, where copies overlap, until retention has deleted the shorter; or "
    "give it up with --accept gap: a native broker never copies what lies below the last copy, and deletes what is only "
    "local there",
    Obstacle.HISTORY: "a sidecar that leads the partition must finish a copy in this history first",
    Obstacle.CUT: "wait until retention has deleted these segments, or delete what users may do without "
    "(`tiersidecar delete-records TOPIC`, up to behind them): the log was cut within them by an unclean election, and a native "
    "broker gives readers the records of the lost branch, and then leaves out those that took their offsets",
    Obstacle.ELSEWHERE: "wait until retention has deleted these segments, with a rule that places new ones in section store: "
    "the plugin knows one store, and would not find them there",
    Obstacle.DISPLACED: "publish COPY_SEGMENT_FINISHED of these segments again: `handover to-native --write-plan` does it",
    Obstacle.RETENTION: "raise the topic's retention, or give up what is past it with --accept retention",
}
"""How to remove each; TOPIC stands for the topic's name."""

ACCEPTABLE = frozenset({Obstacle.TRASH, Obstacle.RETENTION, Obstacle.GAP})
"""Obstacles that an operator may accept: the first two are given up already, or in the next round; a gap may be lost data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One obstacle, and what it consists of."""

    obstacle: Obstacle
    detail: str

    @property
    def remedy(self) -> str:
        return REMEDIES[self.obstacle]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverView:
    """The known state of a partition.

    ``segments`` are Kafka's fold of all its events.  ``lineage`` is the whole history as the sidecar knows it.  ``broker`` is
    the leader's log as its files have it now.  ``remote_log_start_offset`` is the users' log start, -1 while it is not set.
    ``retention`` is that of the native topic.  ``in_trash`` are finished segments that entries of the trash cover,
    ``erased`` all that entries of erasures name, ``recopied`` those that the store has lost in part.
    ``open_at_mounts`` are those of :func:`last_before_mounts` at whose end a transaction was open.
    ``elsewhere`` are, by the name of a place, the segments that lie there, and not where the plugin looks.
    """

    owner: TopicIdPartition
    segments: NativeSegments
    lineage: Lineage
    broker: NativeLog
    remote_log_start_offset: Offset
    retention: NativeRetention
    in_trash: frozenset[Uuid] = frozenset()
    erased: frozenset[Uuid] = frozenset()
    recopied: frozenset[Uuid] = frozenset()
    awaits_answer: bool = False
    open_at_mounts: tuple[RemoteLogSegmentMetadata, ...] = ()
    elsewhere: Mapping[str, Sequence[RemoteLogSegmentMetadata]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHandover:
    """The plan for one partition.

    ``log_start_offset`` and ``leader_epochs`` must be in the broker's files; ``displaced`` are finished segments whose
    offsets a native broker does not find: to be published as finished once more, in this order.
    """

    owner: TopicIdPartition
    naive: Forecast
    prepared: Forecast
    log_start_offset: Offset
    leader_epochs: tuple[EpochEntry, ...]
    findings: tuple[Finding, ...] = ()
    displaced: tuple[RemoteLogSegmentMetadata, ...] = ()

    @property
    def lost_naively(self) -> tuple[Deletion, ...]:
        """Return what would be lost with the broker's present files, retention aside."""
        kept = {one.segment.remote_log_segment_id for one in self.prepared.deletions}
        return tuple(one for one in self.naive.deletions if one.segment.remote_log_segment_id not in kept)


def decide_handover(view: HandoverView, now_ms: int, accepted: frozenset[Obstacle] = frozenset()) -> PartitionHandover:
    """Return both forecasts of the partition, what its broker's files must say, and the obstacles.

    ``accepted`` obstacles, of :data:`ACCEPTABLE` alone, are none.
    """
    start = _users_log_start(view)
    prepared_log = replace(
        view.broker,
        log_start_offset=Offset(start),
        leader_epochs=Lineage(view.lineage.entries_in_range(start, NO_LOG_END)),
    )
    segments, displaced = _mended(view.segments, prepared_log)
    prepared = foretell(segments, prepared_log, view.retention, now_ms)
    holes = _holes(segments, prepared_log)
    findings = [*_of_segments(view), *_of_state(view), *_of_forecast(view, prepared_log, prepared, holes)]
    gone = frozenset(_uuid(one.segment) for one in prepared.deletions)
    if cut := _cut(segments, prepared_log, gone):
        findings.append(Finding(obstacle=Obstacle.CUT, detail=_named(cut)))
    if displaced:
        findings.append(Finding(obstacle=Obstacle.DISPLACED, detail=_named(displaced)))
    return PartitionHandover(
        owner=view.owner,
        naive=foretell(view.segments, view.broker, view.retention, now_ms),
        prepared=prepared,
        log_start_offset=Offset(start),
        leader_epochs=view.lineage.entries,
        findings=tuple(one for one in findings if one.obstacle not in accepted & ACCEPTABLE),
        displaced=displaced,
    )


def decide_epochs(planned: Sequence[EpochEntry], live: Sequence[EpochEntry]) -> tuple[EpochEntry, ...] | None:
    """Return what a replica's leader-epoch-checkpoint must say: the planned history, continued by its ``live`` file.

    None where the live file has another history than the plan: an election has changed it since.
    """
    joined = Lineage.of(planned).extended_by(live)
    latest = Lineage.of(live).latest_epoch
    # A replica that was not in sync may lack the last epochs of the plan: it gets them from its leader, not from us.
    expected = [entry for entry in planned if entry.epoch <= latest]
    return joined.entries if list(joined.entries[: len(expected)]) == expected else None


def last_before_mounts(
    segments: NativeSegments, lineage: Lineage, log_start_offset: int
) -> list[RemoteLogSegmentMetadata]:
    """Return finished segments that end where a new cluster mounted the log, as far as users have them and nothing behind is
    copied.

    Leader epochs leap there (:mod:`tiersidecar.decide.mount`)."""
    mounts = {
        later.start_offset
        for before, later in pairwise(lineage.entries)
        if later.epoch - before.epoch >= EPOCHS_APART and later.start_offset > log_start_offset
    }
    finished = [one for one in segments if one.state is State.COPY_SEGMENT_FINISHED]
    left = {at for at in mounts if not any(one.start_offset <= at <= one.end_offset for one in finished)}
    return [one for one in finished if one.end_offset + 1 in left]


def _users_log_start(view: HandoverView) -> int:
    """Return the state topic's; without one, where the broker's log begins: nothing was tiered, and users deleted there."""
    if view.remote_log_start_offset >= 0:
        return view.remote_log_start_offset
    return 0 if len(view.segments) else view.broker.log_start_offset


def _of_segments(view: HandoverView) -> Iterator[Finding]:
    copying = [one for one in view.segments if one.state is State.COPY_SEGMENT_STARTED]
    deleting = [one for one in view.segments if one.state is State.DELETE_SEGMENT_STARTED]
    finished = [one for one in view.segments if one.state is State.COPY_SEGMENT_FINISHED]
    erased = [one for one in finished if _uuid(one) in view.erased]
    thrown = [one for one in finished if _uuid(one) in view.in_trash - view.erased]
    lost = [one for one in finished if _uuid(one) in view.recopied]
    for obstacle, segments in (
        (Obstacle.UNFINISHED_COPY, copying),
        (Obstacle.UNFINISHED_DELETE, deleting),
        (Obstacle.TRASH, thrown),
        (Obstacle.ERASURE, erased),
        (Obstacle.RECOPY, lost),
    ):
        if segments:
            yield Finding(obstacle=obstacle, detail=_named(segments))


def _of_state(view: HandoverView) -> Iterator[Finding]:
    for place, segments in view.elsewhere.items():
        yield Finding(obstacle=Obstacle.ELSEWHERE, detail=f"in place {place}: {_named(segments)}")
    if view.awaits_answer:
        yield Finding(obstacle=Obstacle.UNANSWERED_UNDELETE, detail="the remote log start was set back")
    if view.open_at_mounts:
        yield Finding(obstacle=Obstacle.MOUNT, detail=f"transactions were open behind {_named(view.open_at_mounts)}")
    if view.remote_log_start_offset < 0 and len(view.segments):
        yield Finding(obstacle=Obstacle.NO_START, detail="the state topic has no remote log start of it")


def _of_forecast(
    view: HandoverView, log: NativeLog, forecast: Forecast, holes: Sequence[tuple[int, int]]
) -> Iterator[Finding]:
    # A segment of a known earlier epoch is of a branch that lost: only the log start hides its epoch.
    unknown = [
        one.segment
        for one in forecast.deletions
        if one.reason is DeletionReason.UNKNOWN_EPOCHS
        and one.segment.segment_leader_epochs[-1].epoch < view.lineage.entries[0].epoch
    ]
    start = log.leader_epochs.entries[0].start_offset if log.leader_epochs else log.log_end_offset
    if len(view.segments) and start > log.log_start_offset:
        yield Finding(obstacle=Obstacle.HISTORY, detail=f"no leader epoch is known below offset {start}")
    elif reaching := [one for one in unknown if one.end_offset >= log.log_start_offset]:
        yield Finding(obstacle=Obstacle.HISTORY, detail=_named(reaching))
    retention = {DeletionReason.RETENTION_TIME, DeletionReason.RETENTION_SIZE}
    if expired := [one.segment for one in forecast.deletions if one.reason in retention]:
        yield Finding(obstacle=Obstacle.RETENTION, detail=_named(expired))
    if gaps := [hole for hole in holes if hole[1] > start]:
        detail = ", ".join(f"[{first}, {stop})" for first, stop in gaps[:_SHOWN])
        yield Finding(
            obstacle=Obstacle.GAP, detail=f"a native broker finds no segment for offsets {detail}{_more(len(gaps))}"
        )


def _cut(segments: NativeSegments, log: NativeLog, gone: frozenset[Uuid]) -> list[RemoteLogSegmentMetadata]:
    """Return segments that are read at some offset of this history, and reach beyond the end of an epoch:
    ``RemoteLogManager.read`` finds a segment by one epoch and offset, and returns all that follows in it."""
    found: dict[Uuid, RemoteLogSegmentMetadata] = {}
    for entry in log.leader_epochs.entries:
        stop = log.leader_epochs.end_offset_of(entry.epoch, log.log_end_offset) or 0
        for start, following in pairwise([*segments.read_starts_in(entry.epoch), stop]):
            segment = segments.segment_for(entry.epoch, start)
            if segment is None or _uuid(segment) in gone or _is_whole_from(segment, entry.epoch, log):
                continue
            first = max(start, entry.start_offset, log.log_start_offset)
            if first < min(following, stop, segments.end_in(segment, entry.epoch) + 1):
                found[_uuid(segment)] = segment
    return list(found.values())


def _is_whole_from(segment: RemoteLogSegmentMetadata, epoch: int, log: NativeLog) -> bool:
    """Return whether all that it has from ``epoch`` on is of this history, as far as the log goes."""
    spans = [one for one in segment.segment_leader_epochs if one.epoch >= epoch]
    ends = [NativeSegments.end_in(segment, one.epoch) for one in spans]
    later = zip(spans[1:], ends[1:], strict=True)
    return (
        segment.end_offset < log.log_end_offset
        and log.leader_epochs.epoch_for_offset(ends[0]) == epoch
        and all(
            log.leader_epochs.epoch_for_offset(offset) == one.epoch
            for one, end in later
            for offset in (one.start_offset, end)
        )
    )


def _holes(segments: NativeSegments, log: NativeLog) -> tuple[tuple[int, int], ...]:
    """Return offsets from the users' log start on that no segment has, before retention, and before the broker raises its log
    start to the first segment that it lists: what it skips by that is lost silently."""
    return foretell(segments, log, NativeRetention(is_copying=False), now_ms=0).unreadable


def _mended(segments: NativeSegments, log: NativeLog) -> tuple[NativeSegments, tuple[RemoteLogSegmentMetadata, ...]]:
    """Return ``segments`` with as few holes as publishing finished ones again can leave, and what is published, in order.

    A segment that takes its place again may displace a longer one in another epoch, so that it takes some rounds.  One that
    begins within another, and hides what the other has beyond its end, stays: only what reaches as far as the epoch moves it.
    """
    now, published = segments, list[RemoteLogSegmentMetadata]()
    best = _size(_holes(now, log)), now, 0
    for _ in range(_MOST_ROUNDS):
        again = _displaced(now, log, _holes(now, log))
        now = now.copy()
        for segment in again:
            now.finish_again(segment)
        published += again
        best = min(best, (_size(_holes(now, log)), now, len(published)), key=lambda one: one[0])
        if not again or best[0] == 0:
            break
    return best[1], tuple(published[: best[2]])


def _displaced(
    segments: NativeSegments, log: NativeLog, holes: Sequence[tuple[int, int]]
) -> list[RemoteLogSegmentMetadata]:
    """Return finished segments of this history that hold what a native broker does not find: a shorter one, finished later or
    deleted since, has taken their place (``RemoteLogLeaderEpochState``).  Ends ascend, so that none displaces a longer one."""
    found = [
        one
        for one in segments
        if one.state is State.COPY_SEGMENT_FINISHED
        and one.is_within(log.leader_epochs, log.log_end_offset)
        and any(one.start_offset < stop and first <= one.end_offset for first, stop in holes)
    ]
    return sorted(found, key=lambda one: (one.end_offset, -one.start_offset))


def _size(holes: Sequence[tuple[int, int]]) -> int:
    return sum(stop - first for first, stop in holes)


def _uuid(segment: RemoteLogSegmentMetadata) -> Uuid:
    return segment.remote_log_segment_id.uuid


_SHOWN = 5
_MOST_ROUNDS = 5


def _more(count: int) -> str:
    return f" and {count - _SHOWN} more" if count > _SHOWN else ""


def _named(segments: Sequence[RemoteLogSegmentMetadata]) -> str:
    """Return the number of segments, and the offsets of the first few."""
    ordered = sorted(segments, key=lambda one: one.start_offset)
    ranges = ", ".join(f"{one.start_offset} to {one.end_offset}" for one in ordered[:_SHOWN])
    count = f"{len(ordered)} segment{'s' if len(ordered) > 1 else ''}"
    return f"{count}: offsets {ranges}{_more(len(ordered))}"
