"""Limit of trimming a partition's local log at the broker: strict mode (docs/design/0001).

The answer is always a boundary between two local segments; everything below it is past local retention and held, without
a hole, by finished segments of this lineage.  Whether those really hold it (read back, same batches) is checked by the
shell before it acts.

Trims wait for groups: consumer groups by committed offsets, share groups by start offsets.  What is not known is never taken
for "has read all": a group that cannot be asked, or was named and has committed nothing, holds every trim of the partition, and
the hold says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from tiersidecar.decide.expiry_view import local_time_ms
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.policy import UNLIMITED, RetentionMode, TopicPolicy, TrimHolds
from tiersidecar.domain.segments import NO_LOG_END, LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimView:
    """A led partition as the trim decision sees it.

    ``log_start_offset`` is the broker's, the local start; ``segments`` ascend and end with the active one;
    ``remote_segments`` are those of any state, ascending by start offset.  The disk is short of room up to two offsets: below
    ``pressure_offset`` local retention does not count, below ``drop_offset`` it does not matter either whether the data is
    remote or which groups have read it (``disk.pressure.policy``).  What ends below ``given_up_offset``, the remote log start,
    may not be read: it is in the trash, and gives way to the pressure first.  ``last_resort_offset``: as
    :class:`~.pressure_trim.PressureTrim` has it.  ``erased`` are segments that an erasure has replaced: they prove nothing.
    ``is_compacted``: the broker's cleaner rewrites it.  Nothing goes that ends above ``stop_offset``; ``untrimmable`` says why
    nothing goes at all, empty where it may.
    """

    policy: TopicPolicy
    lineage: Lineage
    segments: tuple[LocalSegment, ...]
    log_start_offset: int
    remote_segments: Sequence[RemoteLogSegmentMetadata]
    now_ms: int
    pressure_offset: int = -1
    drop_offset: int = -1
    last_resort_offset: int = -1
    given_up_offset: int = -1
    erased: Set[Uuid] = frozenset()
    is_compacted: bool = False
    stop_offset: int = NO_LOG_END
    untrimmable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimStep:
    """One local segment that may go, and the remote segments that hold its offsets from ``from_offset`` on, in order; none
    where it is lost.

    ``forced``: it goes even if the store cannot be asked for those, and past any group.  ``is_last_resort``: then also if they
    turn out to be damaged.  ``from_trash``: below ``from_offset`` it is not remote, and was given up: an undelete will not find
    it.  ``is_compacted``: the remote segments need not be what was copied, but must have each record of the local one.
    """

    local: LocalSegment
    remote: tuple[RemoteLogSegmentMetadata, ...]
    reason: str
    from_offset: Offset
    forced: bool = False
    is_last_resort: bool = False
    from_trash: bool = False
    is_compacted: bool = False

    @property
    def offset(self) -> Offset:
        """Return where the log may start once this step is done: the next segment's base."""
        assert self.local.next_base_offset is not None  # only sealed segments become steps
        return self.local.next_base_offset


def decide_trim(view: TrimView) -> tuple[TrimStep, ...]:
    """Return local segments to give up, oldest first; each may be given up only after all before it."""
    if view.policy.mode is not RetentionMode.STRICT or view.untrimmable:
        return ()
    finished = [segment for segment in view.remote_segments if counts(view, segment)]
    left_bytes = excess_bytes(view)
    steps: list[TrimStep] = []
    for segment in view.segments:
        if segment.next_base_offset is None or segment.next_base_offset > view.stop_offset:
            break
        if segment.next_base_offset <= view.log_start_offset:
            continue  # trimmed already: the broker deletes the files in its own time
        start, cover, from_trash = _held(view, segment, finished)
        forced = (from_trash and not cover) or segment.next_base_offset <= view.drop_offset
        if not cover and not forced:
            break
        reason = _breach(view, segment, cover, left_bytes)
        if not reason:
            break
        is_last_resort = forced and segment.next_base_offset <= view.last_resort_offset
        steps.append(
            TrimStep(
                local=segment,
                remote=cover,
                reason=reason,
                from_offset=Offset(start),
                forced=forced,
                is_last_resort=is_last_resort,
                from_trash=from_trash,
                is_compacted=view.is_compacted,
            )
        )
        left_bytes -= segment.size_bytes
    return tuple(steps)


def reason_behind_trash(view: TrimView) -> str:
    """Return why nothing is trimmed although something is due: what lies before it is not remote, and in the trash.  A trim
    takes a prefix, and would delete for good what an undelete is to bring back."""
    sealed = [segment for segment in view.segments if (segment.next_base_offset or -1) > view.log_start_offset]
    if view.policy.mode is not RetentionMode.STRICT or not sealed:
        return ""
    first = sealed[0]
    finished = [segment for segment in view.remote_segments if counts(view, segment)]
    start = max(first.base_offset, view.log_start_offset)
    if covering_segments(finished, start, first.next_base_offset or 0):
        return ""
    if _behind_trash(view, first, finished, start) is None:
        return ""
    return (
        f"what the broker has below offset {view.given_up_offset} is not remote, and in the trash: what follows is trimmed "
        "once that is due, or purged"
    )


def covering_segments(
    finished: Sequence[RemoteLogSegmentMetadata], start_offset: int, stop_offset: int
) -> tuple[RemoteLogSegmentMetadata, ...]:
    """Return segments that together hold every offset of [start_offset, stop_offset), fewest first; empty if there is a hole.

    ``finished`` ascends by start offset; overlaps are normal after elections.
    """
    chosen: list[RemoteLogSegmentMetadata] = []
    next_needed = start_offset
    while next_needed < stop_offset:
        holders = [s for s in finished if s.start_offset <= next_needed <= s.end_offset]
        if not holders:
            return ()
        best = max(holders, key=lambda segment: segment.end_offset)
        chosen.append(best)
        next_needed = best.next_offset
    return tuple(chosen)


def _held(
    view: TrimView, segment: LocalSegment, finished: Sequence[RemoteLogSegmentMetadata]
) -> tuple[int, tuple[RemoteLogSegmentMetadata, ...], bool]:
    """Return the first offset of a sealed segment that must be remote, what holds it from there on, and whether what lies
    before is in the trash, and goes for room on the disk."""
    start, stop = max(segment.base_offset, view.log_start_offset), segment.next_base_offset or 0
    cover = covering_segments(finished, start, stop)
    readable = _behind_trash(view, segment, finished, start) if not cover and stop <= view.pressure_offset else None
    return (start, cover, False) if readable is None else (*readable, True)


def _behind_trash(
    view: TrimView, segment: LocalSegment, finished: Sequence[RemoteLogSegmentMetadata], start_offset: int
) -> tuple[int, tuple[RemoteLogSegmentMetadata, ...]] | None:
    """Return where the readable part of a segment begins, whose front is in the trash, and what holds it from there on:
    nothing, where the trash has it whole.  None: its front is not in the trash, or the rest is not remote.

    A replica's segments begin elsewhere than the copies: the remote log start may lie within one.
    """
    if segment.next_base_offset is None or start_offset >= view.given_up_offset:
        return None
    readable_from = min(view.given_up_offset, segment.next_base_offset)
    cover = covering_segments(finished, readable_from, segment.next_base_offset)
    return (readable_from, cover) if cover or readable_from == segment.next_base_offset else None


def counts(view: TrimView, segment: RemoteLogSegmentMetadata) -> bool:
    """Return whether a local segment may be given up because of ``segment``."""
    return (
        segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        and segment.end_offset >= view.log_start_offset
        and segment.remote_log_segment_id.uuid not in view.erased
        and segment.is_within(view.lineage)
    )


def excess_bytes(view: TrimView) -> int:
    """Return the bytes of the local log above local.retention.bytes; a segment may go only if it fits in them whole."""
    limit = view.policy.effective_local_retention_bytes
    if limit == UNLIMITED:
        return 0
    live = (
        segment.size_bytes
        for segment in view.segments
        if segment.next_base_offset is None or segment.next_base_offset > view.log_start_offset
    )
    return sum(live) - limit


def newest_ms(view: TrimView, segment: LocalSegment, cover: tuple[RemoteLogSegmentMetadata, ...]) -> int:
    """Return the time of the newest record; where records have no time, or one of the future, of the last write (S-027)."""
    times = [held.max_timestamp_ms for held in cover if 0 <= held.max_timestamp_ms <= view.now_ms]
    return max(times) if len(times) == len(cover) else max([*times, local_time_ms(segment, view.now_ms)])


def _breach(view: TrimView, segment: LocalSegment, cover: tuple[RemoteLogSegmentMetadata, ...], left_bytes: int) -> str:
    assert segment.next_base_offset is not None  # only sealed segments are asked about
    limit_ms = view.policy.effective_local_retention_ms
    if cover and limit_ms != UNLIMITED and newest_ms(view, segment, cover) <= view.now_ms - limit_ms:
        return "local.retention.ms"
    # An empty segment, which the cleaner may leave, must not stop what lies behind it.
    if left_bytes > 0 and segment.size_bytes <= left_bytes:
        return "local.retention.bytes"
    return "disk.reserve" if segment.next_base_offset <= max(view.pressure_offset, view.drop_offset) else ""


_NAMED_IN_A_REASON = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRead:
    """The known state of one group: the next offset it will read, by (topic, partition); ``problem`` is why that is not known.
    ``begun`` are the partitions that a share group has been given and has acknowledged nothing of."""

    group: str
    offsets: Mapping[tuple[str, int], Offset]
    problem: str = ""
    begun: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsView:
    """All groups that topics here may wait for.  ``consumers_problem`` and ``shares_problem`` say why the groups of that kind
    could not be listed: there may be more than those given."""

    consumers: Sequence[GroupRead] = ()
    shares: Sequence[GroupRead] = ()
    consumers_problem: str = ""
    shares_problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A group that a partition's trims may not pass: ``offset`` is the first that must stay, None where nothing may go.
    ``group`` is empty where it is not known which group."""

    group: str
    offset: Offset | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimHold:
    """``allowed`` may be trimmed now; ``held_bytes`` may not, because of ``holders``, each with the bytes that it alone
    would hold."""

    allowed: tuple[TrimStep, ...]
    held_bytes: int = 0
    holders: tuple[tuple[Holder, int], ...] = ()

    @property
    def reason(self) -> str:
        """Return one sentence; empty when nothing is held back."""
        shown = [holder.reason for holder, _ in self.holders[:_NAMED_IN_A_REASON]]
        more = len(self.holders) - len(shown)
        return "; ".join(shown) + (f"; and {more} more" if more else "")


def holders_of(holds: TrimHolds, topic: str, partition: int, view: GroupsView) -> tuple[Holder, ...]:
    """Return the groups that trims of this partition wait for.

    A group that is named counts whatever it has done.  One that only the pattern matches counts once it has committed an offset
    of any partition of the topic: from then on a partition without one is a partition that it has not begun.  A share group
    counts where it has been given the partition: until it has acknowledged a record of it, its members' records are not known.
    """
    found: list[Holder] = []
    for read in view.consumers:
        is_named = read.group in holds.groups
        if not is_named and not is_matching(holds.groups_pattern, read.group):
            continue
        if is_named or read.problem or any(of_topic == topic for of_topic, _ in read.offsets):
            found.append(_holder("consumer group", read, topic, partition))
    if holds.groups_pattern and view.consumers_problem:
        found.append(Holder(group="", offset=None, reason=f"consumer groups are not known: {view.consumers_problem}"))
    if holds.share:
        if view.shares_problem:
            found.append(Holder(group="", offset=None, reason=f"share groups are not known: {view.shares_problem}"))
        found += [
            _holder("share group", read, topic, partition)
            for read in view.shares
            if read.problem or (topic, partition) in read.offsets or (topic, partition) in read.begun
        ]
    return tuple(found)


def decide_hold(steps: Sequence[TrimStep], holders: Iterable[Holder]) -> TrimHold:
    """Return the steps that no group holds, oldest first; and the holders of the others, the one that holds most first."""
    holding = [(holder, _held_bytes(steps, holder)) for holder in holders]
    holding = [(holder, held) for holder, held in holding if not _lets_go(holder, steps)]
    holding.sort(key=lambda one: (-one[1], one[0].group))
    allowed = tuple(step for step in steps if all(_may_go(step, holder) for holder, _ in holding))
    held_bytes = sum(step.local.size_bytes for step in steps[len(allowed) :])
    return TrimHold(allowed=allowed, held_bytes=held_bytes, holders=tuple(holding))


def _holder(kind: str, read: GroupRead, topic: str, partition: int) -> Holder:
    offset = None if read.problem else read.offsets.get((topic, partition))
    if read.problem:
        reason = f"what {kind} {read.group} has read is not known: {read.problem}"
    elif (topic, partition) in read.begun:
        reason = f"{kind} {read.group} has begun and acknowledged nothing"
    elif offset is None:
        reason = f"{kind} {read.group} has no committed offset"
    else:
        reason = f"{kind} {read.group} has read up to {offset}"
    return Holder(group=read.group, offset=offset, reason=reason)


def is_matching(pattern: str, group: str) -> bool:
    """Return whether the whole name matches; an empty pattern matches none."""
    return bool(pattern) and re.fullmatch(pattern, group) is not None


def _may_go(step: TrimStep, holder: Holder) -> bool:
    return step.forced or (holder.offset is not None and step.offset <= holder.offset)


def _lets_go(holder: Holder, steps: Sequence[TrimStep]) -> bool:
    return all(_may_go(step, holder) for step in steps)


def _held_bytes(steps: Sequence[TrimStep], holder: Holder) -> int:
    return sum(step.local.size_bytes for step in steps if not _may_go(step, holder))
