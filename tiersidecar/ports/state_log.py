"""``__tiersidecar_state``: records that Kafka's metadata topic has no place for (docs/design/0002).

A compacted topic.  Offsets in it only rise within a leader epoch, and a later epoch's record counts: a write that would
lower one, or of an earlier epoch, is a no-op.  A later epoch's lower remote log start hides no earlier one: see
:meth:`PartitionState.start_in`.  A publish returns after read-back, so that a delete may act on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_EPOCH, NO_OFFSET, EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import GuardStop, Pause, PauseKind, later_stop
from tiersidecar.domain.trash import FINAL, SaidDelete, TrashEntry, merged_deletes, merged_entries, without

MOST_EPOCHS = 8
"""Epochs of a history that are recorded: more than begin between the last copy and now, unless a store is away for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidStart:
    """A remote log start, and the leader epoch that said it."""

    leader_epoch: LeaderEpoch
    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Hold:
    """Keeps retention off a partition, or says that it no longer does: of two the one with the higher ``serial`` counts.

    It holds until the remote log start is again at ``until``, the highest start before any set-back since there was last no
    hold, or until it is released.
    ``since_ms``, ``by`` and ``reason`` are for the operator.
    """

    serial: int
    is_held: bool
    until: Offset = NO_OFFSET
    since_ms: int = -1
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SeenGeneration:
    """Says that the leader of ``leader_epoch`` no longer acts on what was decided in a generation before ``generation``.

    ``pinned`` are the offsets, [from, to), that only its pins hold, ascending.
    """

    generation: int
    leader_epoch: LeaderEpoch
    pinned: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The state of one partition.

    ``remote_log_start_offset`` is the first offset a reader may have at all, -1 while it is not set (before the first
    copy).
    ``trim_offset`` is the highest offset that a DeleteRecords of ours was meant to reach, published before the request
    is sent; -1 before the first.  All come with the leader epoch that published them.
    ``held_offset`` is the highest up to which such a DeleteRecords gave up what was remote: the metadata have its segments, or
    they are not whole.  Above it only data held nowhere else was given up (``disk.pressure.policy``).  -1 while it is not set:
    then all that was trimmed was remote (:meth:`held_in`).
    ``accepted_loss_epoch`` is the leader epoch in which, an operator has confirmed, the log began anew: segments of the
    history before it may expire; -1 while no confirmation was needed.
    ``earlier_starts`` are higher starts that were said before, in earlier epochs, ascending by epoch, each with a lower offset
    than the one before it.  The later leader may have had another history, or not have read them yet: only a lineage decides.
    ``start_generation`` rises when an operator sets the start back (``tiersidecar undelete``): starts of an earlier generation
    no longer count.  ``hold`` keeps retention from moving the start again.
    ``guard_stop`` is the last stop of expiry by the guard, None where there was none, or none is recorded.
    ``user_deletes`` are what users deleted, and what was deleted before the first copy: the remote log start is never below
    them, whatever its generation.  ``undone`` are those that the present generation undid; one that was said meanwhile is not.
    ``seen`` is the leader's answer to the last undelete.  ``kept`` are the entries of the trash that the undelete let stand.
    They come with its start, since the command may end between two records, and count as if they were in the trash until the
    leader answers: by then it has put them there.
    ``owner_seen_ms`` is when the owner object was first seen in the store while segments of the partition were remote, -1 while
    it was not, or in records of a release that made no such object.  If the object is missing after that, the store is another
    one.
    ``places_seen`` are the places besides the default one of which the same was seen, ascending.
    ``leader_epochs`` are the last ones of a leader's history, as it was when the start was said.  The broker's file forgets
    where an epoch began when its records go, which may be before any of them are remote.
    """

    remote_log_start_offset: Offset = NO_OFFSET
    remote_log_start_epoch: LeaderEpoch = NO_EPOCH
    trim_offset: Offset = NO_OFFSET
    trim_epoch: LeaderEpoch = NO_EPOCH
    held_offset: Offset = NO_OFFSET
    held_epoch: LeaderEpoch = NO_EPOCH
    accepted_loss_epoch: LeaderEpoch = NO_EPOCH
    owner_seen_ms: int = -1
    earlier_starts: tuple[SaidStart, ...] = ()
    start_generation: int = 0
    hold: Hold | None = None
    guard_stop: GuardStop | None = None
    user_deletes: tuple[SaidDelete, ...] = ()
    undone: tuple[SaidDelete, ...] = ()
    seen: SeenGeneration | None = None
    kept: tuple[TrashEntry, ...] = ()
    leader_epochs: tuple[EpochEntry, ...] = ()
    places_seen: tuple[str, ...] = ()

    def with_start(self, offset: Offset, leader_epoch: LeaderEpoch) -> PartitionState:
        """Return a record that the remote log starts at ``offset``, decided by this state: a start that was set back since then
        outranks it."""
        return PartitionState(
            remote_log_start_offset=offset,
            remote_log_start_epoch=leader_epoch,
            start_generation=self.start_generation,
        )

    def with_epochs(self, lineage: Lineage) -> PartitionState:
        """Return this with the history in which it is said."""
        return replace(self, leader_epochs=lineage.entries[-MOST_EPOCHS:])

    def with_trim(self, offset: Offset, leader_epoch: LeaderEpoch, held_offset: Offset | None) -> PartitionState:
        """Return a record that a trim is to reach ``offset``, and gives up what is remote up to ``held_offset``; None: nothing
        of it is remote."""
        said = PartitionState(trim_offset=offset, trim_epoch=leader_epoch)
        if held_offset is not None:
            return replace(said, held_offset=held_offset, held_epoch=leader_epoch)
        if self.held_offset >= 0:
            return said
        if self.trim_offset >= 0:
            return replace(said, held_offset=self.trim_offset, held_epoch=self.trim_epoch)
        return replace(said, held_offset=Offset(0), held_epoch=leader_epoch)

    def held_in(self, lineage: Lineage) -> Offset:
        """Return how far our trims gave up what was remote, as far as it holds in the history ``lineage``; -1 if none did."""
        if self.held_offset >= 0:
            return lineage.as_of(self.held_offset, self.held_epoch)
        return lineage.as_of(self.trim_offset, self.trim_epoch)

    def with_delete(self, offset: Offset, leader_epoch: LeaderEpoch, opened_ms: int = FINAL) -> PartitionState:
        """Return :meth:`with_start` by a user, or because it was so before the first copy: no later decision lowers it."""
        said = SaidDelete(opened_ms=opened_ms, leader_epoch=leader_epoch, offset=offset)
        return replace(self.with_start(offset, leader_epoch), user_deletes=(said,))

    @property
    def awaits_answer(self) -> bool:
        """Return whether the start was set back, and no leader has acknowledged it yet."""
        return self.start_generation > (0 if self.seen is None else self.seen.generation)

    def hold_in(self, lineage: Lineage) -> Hold | None:
        """Return the hold that keeps retention off the history ``lineage``; None where there is none."""
        if self.hold is None or not self.hold.is_held or self.start_in(lineage) >= self.hold.until:
            return None
        return self.hold

    def start_in(self, lineage: Lineage) -> Offset:
        """Return the remote log start of the history ``lineage``: the highest that was said, each as far as it holds there."""
        return max((lineage.as_of(one.offset, one.leader_epoch) for one in self._said()), default=NO_OFFSET)

    @property
    def highest_start(self) -> Offset:
        """Return the highest remote log start of any epoch: from there on nothing is deleted, in whatever history."""
        return max(one.offset for one in self._said())

    def start_for(self, leader_epoch: int) -> Offset:
        """Return the remote log start for records of epoch ``leader_epoch``, without a lineage: the highest that was said in
        that epoch or in a later one.  A later epoch's records were not there yet when the others were said."""
        return max((one.offset for one in self._said() if one.leader_epoch >= leader_epoch), default=NO_OFFSET)

    def merged_with(self, later: PartitionState) -> PartitionState:
        """Return both merged: of each offset the one of the later leader epoch, of the same epoch the higher.  A deposed leader
        changes nothing; a later generation's start counts alone.

        ``later`` comes later in the topic.  A later leader may say a lower offset, where the earlier one referred to a history
        that an unclean election ended, or was not read yet: the earlier one is kept among ``earlier_starts``.
        """
        start = max(self, later, key=_rank_of_start)
        seen = max((one for one in (self.seen, later.seen) if one is not None), default=None)
        trim = max(self, later, key=lambda one: (one.trim_epoch, one.trim_offset))
        held = max(self, later, key=lambda one: (one.held_epoch, one.held_offset))
        return PartitionState(
            remote_log_start_offset=start.remote_log_start_offset,
            remote_log_start_epoch=start.remote_log_start_epoch,
            trim_offset=trim.trim_offset,
            trim_epoch=trim.trim_epoch,
            held_offset=held.held_offset,
            held_epoch=held.held_epoch,
            accepted_loss_epoch=max(self.accepted_loss_epoch, later.accepted_loss_epoch),
            owner_seen_ms=max(self.owner_seen_ms, later.owner_seen_ms),
            earlier_starts=self._earlier_starts_with(later),
            start_generation=start.start_generation,
            hold=max((one for one in (self.hold, later.hold) if one is not None), default=None),
            guard_stop=later_stop(self.guard_stop, later.guard_stop),
            user_deletes=self._user_deletes_with(later),
            undone=self._undone_with(later),
            seen=seen,
            kept=self._kept_with(later, seen),
            leader_epochs=max(self.leader_epochs, later.leader_epochs, key=lambda known: Lineage(known).latest_epoch),
            places_seen=tuple(sorted({*self.places_seen, *later.places_seen})),
        )

    def _user_deletes_with(self, later: PartitionState) -> tuple[SaidDelete, ...]:
        """Return the users' deletes of both.  A deposed leader's changes nothing; an undelete undoes none that it did not
        know."""
        if later.start_generation < self.start_generation:
            return self.user_deletes
        if later.start_generation > self.start_generation:
            return merged_deletes((*later.user_deletes, *without(self.user_deletes, later.undone)))
        heard = [delete for delete in later.user_deletes if delete.leader_epoch >= self.remote_log_start_epoch]
        heard += [
            delete for delete in later.user_deletes if any(delete.is_end_of(known) for known in self.user_deletes)
        ]
        return merged_deletes((*self.user_deletes, *heard))

    def _undone_with(self, later: PartitionState) -> tuple[SaidDelete, ...]:
        if later.start_generation == self.start_generation:
            return merged_deletes((*self.undone, *later.undone))
        return max(self, later, key=lambda one: one.start_generation).undone

    def _kept_with(self, later: PartitionState, seen: SeenGeneration | None) -> tuple[TrashEntry, ...]:
        generation = max(self.start_generation, later.start_generation)
        if seen is not None and seen.generation >= generation:
            return ()
        return merged_entries([*self.kept, *later.kept], generation=generation)

    def _earlier_starts_with(self, later: PartitionState) -> tuple[SaidStart, ...]:
        if later.start_generation > self.start_generation:
            return later.earlier_starts
        ours, theirs = _rank_of_start(self)[:2], _rank_of_start(later)[:2]
        if theirs < ours:
            return self.earlier_starts
        return _earlier(max(self, later, key=_rank_of_start), (*self._starts(), *later.earlier_starts))

    def _starts(self) -> tuple[SaidStart, ...]:
        last = SaidStart(leader_epoch=self.remote_log_start_epoch, offset=self.remote_log_start_offset)
        return (*self.earlier_starts, last)

    def _said(self) -> tuple[SaidStart | SaidDelete, ...]:
        return (*self._starts(), *self.user_deletes)


def _rank_of_start(state: PartitionState) -> tuple[int, int, int]:
    return state.start_generation, state.remote_log_start_epoch, state.remote_log_start_offset


def _earlier(start: PartitionState, said: Iterable[SaidStart]) -> tuple[SaidStart, ...]:
    """Return those of ``said`` that a later epoch did not reach: no lineage makes any other count."""
    kept: list[SaidStart] = []
    reached = start.remote_log_start_offset
    for one in sorted(said, key=lambda one: (one.leader_epoch, one.offset), reverse=True):
        if one.offset > reached:
            kept.append(one)
            reached = one.offset
    return tuple(reversed(kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """State of one topic id: how it is tiered, and the broker's settings before (for ``disable``).

    ``mode`` is ``strict`` or ``race``, or, once tiering is switched off, ``detached`` (nothing is copied or trimmed, what is
    remote stays readable and expires) or ``deleting`` (all that is remote goes).  ``former_settings`` maps settings of the
    topic to its overrides before, None where it had none.
    """

    topic: str
    mode: str
    retention_ms: int = -1
    retention_bytes: int = -1
    local_retention_ms: int = -2
    local_retention_bytes: int = -2
    former_settings: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignState:
    """A partition's state by a sidecar of another cluster, in a record that came with a mirrored topic."""

    cluster_id: str
    state: PartitionState


class CatchUpState(Protocol):
    async def catch_up(self) -> None:
        """Return once every record is applied that was durable when this was called, whichever process wrote it.

        Raises:
            MetadataNotReadyError: the topic was not read that far in time.
            BrokerUnreachableError: the topic is out of reach.
            BrokerRefusedError: its leader does not say how far it goes.
        """


PartitionOfTopic = tuple[Uuid, int]
"""Topic id and number of a partition."""


class StateChanges(Protocol):
    @property
    def changes(self) -> int:
        """Return how many records were applied so far that say something of topics or partitions: leases, which are renewed
        all the time, do not."""
        ...

    def changed_since(self, changes: int) -> frozenset[PartitionOfTopic] | None:
        """Return the partitions of which something was said since :attr:`changes` was that; None if something was that may
        concern any."""

    async def advanced(self) -> None:
        """Return once more of the topic has been applied than when this was called; while nothing is written, never."""


class Pauses(Protocol):
    def why_paused(self, topic_id: Uuid | None, kind: PauseKind) -> str:
        """Return why ``kind`` stands still for the topic, or, with None, for all topics; empty where it does not.

        Raises:
            MetadataNotReadyError: the state topic has not been replayed to its end yet.
        """
        ...

    def pauses(self) -> Sequence[Pause]:
        """Return all of them, that of all topics first, then by topic; raise what :meth:`why_paused` does."""
        ...


class StateLog(CatchUpState, Pauses, Protocol):
    def partition_state(self, topic_id_partition: TopicIdPartition) -> PartitionState:
        """Return the state as read back; the empty one where nothing was published.

        Raises:
            MetadataNotReadyError: the topic has not been replayed to its end yet.
        """

    def highest_start(self, topic_id: Uuid, partition: int) -> Offset:
        """Return :attr:`PartitionState.highest_start`, by one look-up: every Fetch through the gateway asks.  Before the topic
        has been replayed to its end, by what was read so far; -1 where nothing was."""
        ...

    def topic_state(self, topic_id: Uuid) -> TopicState | None:
        """Return the topic's state like :meth:`partition_state`; None where nothing was published."""

    def partitions(self) -> Sequence[TopicIdPartition]:
        """Return every partition with a state, of topics that exist and of those that are gone.

        Raises:
            MetadataNotReadyError: as :meth:`partition_state`.
        """

    def is_ours(self, topic_id_partition: TopicIdPartition) -> bool:
        """Return whether a sidecar of this very cluster has written the partition's state: it was led here.  Records of the
        first format do not say, and those of other clusters, from a mirrored topic, are not among the states at all.

        Raises:
            MetadataNotReadyError: as :meth:`partition_state`.
        """

    def foreign_partitions(self) -> Mapping[TopicIdPartition, ForeignState]:
        """Return partitions that only records of other clusters name.

        Raises:
            MetadataNotReadyError: as :meth:`partition_state`.
        """
        ...

    async def publish_partition_state(self, topic_id_partition: TopicIdPartition, state: PartitionState) -> None:
        """Merge ``state`` with what is known (:meth:`PartitionState.merged_with`), write it, return after read-back: the result
        is in :meth:`partition_state`.  An empty one makes the partition known, among :meth:`partitions`.

        Raises:
            PublishTimeoutError: not read back in time.
        """

    async def publish_topic_state(self, topic_id: Uuid, state: TopicState) -> None:
        """Replace the topic's state; return after read-back."""

    async def forget_partition(self, topic_id_partition: TopicIdPartition) -> None:
        """Remove the partition's state (a tombstone); return after read-back.  One that has none is no error."""

    async def forget_topic(self, topic_id: Uuid) -> None:
        """Remove the topic's state (a tombstone); return after read-back.  One that has none is no error."""

    @property
    def readiness_reason(self) -> str | None:
        """Return why the topic has not been replayed to its end yet, for the operator; None when it has."""

    @property
    def missing_right(self) -> BrokerRefusedError | None:
        """Return the refusal for want of a right by which contact was lost last; None without one, or with contact."""

    @property
    def halted_reason(self) -> str | None:
        """Return why nothing may be trimmed or deleted because of this topic (weak settings, lost data), else None."""


class PauseLog(Pauses, Protocol):
    async def publish_pause(self, pause: Pause) -> None:
        """Begin it, in place of one of the same thing; return after read-back."""

    async def forget_pause(self, pause: Pause) -> None:
        """End it (a tombstone); return after read-back.  One that has ended is no error."""
