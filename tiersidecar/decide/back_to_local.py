"""The way back of a partition's remote part to the brokers' disks, and what hinders it (docs/design/0026).

A broker that has all of its log again needs nothing but files: segments from the users' log start up to its own first one,
the leader epochs of that history, and a log start that is no later.  Each remote segment gives the offsets that readers of the
sidecar get from it; an unclean election's cuts are cuts here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import EpochEntry, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata


class Hindrance(StrEnum):
    """Conditions that keep a topic from going back."""

    NATIVE = "native"
    COMPACTED = "compacted"
    NOT_DETACHED = "not-detached"
    RETENTION = "retention"
    DELETES = "deletes"
    UNANSWERED_UNDELETE = "unanswered-undelete"
    RECOPY = "recopy"
    NO_START = "no-start"
    HISTORY = "history"
    GAP = "gap"
    OBJECTS = "objects"


REMEDIES: Mapping[Hindrance, str] = {
    Hindrance.NATIVE: "brokers tier it themselves (remote.storage.enable): `tiersidecar handover from-native` comes first",
    Hindrance.COMPACTED: "a compacted topic does not go back: the cleaner would not know what it has cleaned. Take `compact` "
    "out of cleanup.policy, or copy its records into another topic through the gateway",
    Hindrance.NOT_DETACHED: "`tiersidecar disable TOPIC`: else the sidecar trims what is put back",
    Hindrance.RETENTION: "set retention.ms=-1 and retention.bytes=-1 on the topic (kafka-configs), after `disable`: else the "
    "broker deletes what is put back, at once",
    Hindrance.DELETES: "`tiersidecar pause TOPIC --deletes`, or stop the sidecars: what they expire meanwhile would be missing",
    Hindrance.UNANSWERED_UNDELETE: "wait until the leader's sidecar has answered the last undelete",
    Hindrance.RECOPY: "the store has lost a part of these segments: `tiersidecar repair`, while some broker still has them",
    Hindrance.NO_START: "run the sidecar until it has recorded the remote log start of the partition",
    Hindrance.HISTORY: "no leader epoch is known of the first offsets: a sidecar that leads the partition must finish a copy "
    "in this history first",
    Hindrance.GAP: "no finished copy has these offsets, and readers will pass over them: --accept gap gives them up",
    Hindrance.OBJECTS: "the store lacks objects of these segments: `tiersidecar reconcile`",
}
"""How to remove each; TOPIC stands for the topic's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindering:
    """One hindrance, and what it consists of."""

    hindrance: Hindrance
    detail: str

    @property
    def remedy(self) -> str:
        return REMEDIES[self.hindrance]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The offsets, [``start``, ``stop``), that readers are given from one remote segment."""

    start: Offset
    stop: Offset
    segment: RemoteLogSegmentMetadata

    @property
    def size_bytes(self) -> int:
        """Return about how many bytes they are, as if all offsets of the segment were of one size."""
        offsets = self.segment.next_offset - self.segment.start_offset
        return self.segment.segment_size_in_bytes * (self.stop - self.start) // offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnView:
    """The known state of a partition.

    ``log_start_offset`` is the users' by the state topic, -1 while it is not set; ``broker_log_start_offset`` where the
    leader's log begins now.  ``pieces`` are what remote segments give readers from the former on, ascending.  ``recopied`` and
    ``incomplete`` are segments that the store has lost in part, by the state topic or a listing.
    """

    owner: TopicIdPartition
    lineage: Lineage
    log_start_offset: Offset
    broker_log_start_offset: Offset
    high_watermark: Offset
    pieces: tuple[Piece, ...] = ()
    recopied: frozenset[Uuid] = frozenset()
    incomplete: frozenset[Uuid] = frozenset()
    awaits_answer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReturn:
    """The plan for one partition: ``log_start_offset`` and ``leader_epochs`` are what brokers' files must say, ``pieces`` what
    they get as far as they lack it, ``gaps`` the offsets below the leader's log that nothing has."""

    owner: TopicIdPartition
    log_start_offset: Offset
    leader_epochs: tuple[EpochEntry, ...]
    pieces: tuple[Piece, ...]
    gaps: tuple[tuple[int, int], ...]
    hindrances: tuple[Hindering, ...]

    @property
    def copied_stop(self) -> Offset:
        """Return the end (exclusive) of the copies; 0 without any."""
        return self.pieces[-1].stop if self.pieces else Offset(0)


def decide_return(view: ReturnView, *, accepts_gaps: bool = False) -> PartitionReturn:
    """Return the part of the partition that goes back, and what hinders it."""
    start = _users_log_start(view)
    pieces = tuple(_clipped(view.pieces, start, view.high_watermark))
    gaps = tuple(uncovered(pieces, start, max(view.broker_log_start_offset, start)))
    found = [*_of_state(view, pieces), *_of_history(view, pieces)]
    if gaps and not accepts_gaps:
        found.append(Hindering(hindrance=Hindrance.GAP, detail=_ranges(gaps)))
    return PartitionReturn(
        owner=view.owner,
        log_start_offset=start,
        leader_epochs=view.lineage.entries,
        pieces=pieces,
        gaps=gaps,
        hindrances=tuple(found),
    )


class Covers(Protocol):
    """A range of offsets, [``start``, ``stop``)."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...


def uncovered(pieces: Iterable[Covers], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the offsets of [``start``, ``stop``) that no piece has."""
    reached = start
    for piece in pieces:
        if piece.start > reached and reached < stop:
            yield reached, min(piece.start, stop)
        reached = max(reached, piece.stop)
    if reached < stop:
        yield reached, stop


def _users_log_start(view: ReturnView) -> Offset:
    """Return the users' log start; without one, where the broker's log begins: nothing below it was ever tiered."""
    return view.log_start_offset if view.log_start_offset >= 0 else view.broker_log_start_offset


def _clipped(pieces: Sequence[Piece], start: Offset, stop: Offset) -> Iterator[Piece]:
    for one in pieces:
        first, end = max(one.start, start), min(one.stop, stop)
        if first < end:
            yield Piece(start=first, stop=end, segment=one.segment)


def _of_state(view: ReturnView, pieces: Sequence[Piece]) -> Iterator[Hindering]:
    if view.awaits_answer:
        yield Hindering(hindrance=Hindrance.UNANSWERED_UNDELETE, detail="the remote log start was set back")
    if view.log_start_offset < 0 and view.pieces:
        yield Hindering(hindrance=Hindrance.NO_START, detail="the state topic has no remote log start of it")
    for hindrance, uuids in ((Hindrance.RECOPY, view.recopied), (Hindrance.OBJECTS, view.incomplete - view.recopied)):
        if lost := [one for one in pieces if one.segment.remote_log_segment_id.uuid in uuids]:
            yield Hindering(hindrance=hindrance, detail=_ranges([(one.start, one.stop) for one in lost]))


def _of_history(view: ReturnView, pieces: Sequence[Piece]) -> Iterator[Hindering]:
    known = view.lineage.entries[0].start_offset if view.lineage else view.high_watermark
    if pieces and known > pieces[0].start:
        yield Hindering(hindrance=Hindrance.HISTORY, detail=f"no leader epoch is known below offset {known}")


_SHOWN = 5


def _ranges(ranges: Sequence[tuple[int, int]]) -> str:
    more = f" and {len(ranges) - _SHOWN} more" if len(ranges) > _SHOWN else ""
    return f"offsets {', '.join(f'[{start}, {stop})' for start, stop in ranges[:_SHOWN])}{more}"
