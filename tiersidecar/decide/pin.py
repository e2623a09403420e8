"""Choice of the sealed segments of a partition that are pinned, and of pins that have served (docs/design/0004-pins.md).

Followers decide as leaders do: the next leader must be able to copy what the last one did not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.domain.segments import (
    NO_LOG_END,
    DropReason,
    LocalPartition,
    LocalSegment,
    Pin,
    RemoteLogSegmentMetadata,
    Unpin,
    epochs_with_pins,
)

SegmentsAt = Callable[[int, int], Iterable[RemoteLogSegmentMetadata]]
"""The COPY_SEGMENT_FINISHED segments that hold an offset as written in an epoch: (epoch, offset).  The one that is read may be
longer than the epoch became, since a deposed leader copied it: the one that counts then follows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinView:
    """A tiered partition as the pin decision sees it.

    ``local`` is its directory without pins; ``pins`` ascend by base offset; ``can_pin`` says that links can be made there;
    ``segments_at`` is None while the metadata has not been replayed.  ``deleted`` are those of ``local.deleted`` that retention
    took, as far as that is certain; ``refused`` are offsets (base, next base) of segments that no reader has a right to.
    ``epochs`` are the live file's with what it has dropped meanwhile.  Not ``is_sure``: the metadata may have lost events,
    or may yet lose them, so that no pin goes because of a copy.
    """

    policy: TopicPolicy
    local: LocalPartition
    pins: tuple[Pin, ...]
    can_pin: bool
    segments_at: SegmentsAt | None
    deleted: tuple[LocalSegment, ...] = ()
    refused: frozenset[tuple[int, int]] = frozenset()
    epochs: Lineage = Lineage()  # noqa: RUF009 - frozen
    is_sure: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPlan:
    """``drop`` comes first, then ``pin``, oldest first: segments without a pin, and those whose pin lacks a companion.

    ``is_settled`` says that nothing will be left to do until the directory or the metadata changes.
    """

    drop: tuple[Unpin, ...]
    pin: tuple[LocalSegment, ...]
    is_settled: bool

    def below(self, high_watermark: int) -> PinPlan:
        """Return the plan with only segments wholly below ``high_watermark`` (exclusive): others may yet be cut off."""
        return replace(
            self, pin=tuple(segment for segment in self.pin if (segment.next_base_offset or 0) <= high_watermark)
        )


def decide_pin(view: PinView) -> PinPlan:
    """Return the plan for one partition, before its high watermark is asked for."""
    cut_off = cut_off_pins(view.pins, view.local)
    gone = set(map(_offsets, cut_off))
    kept = tuple(pin for pin in view.pins if _offsets(pin) not in gone)
    live = view.epochs.extended_by(view.local.leader_epochs)
    lineage = _with_epochs_ahead(Lineage(epochs_with_pins(live.entries, kept)), kept)
    remote = [pin for pin in kept if _is_remote(view, lineage, pin.segment)] if view.is_sure else []
    gone.update(map(_offsets, remote))
    replaced = [unpin for unpin in _replaced(kept, view.local) if _offsets(unpin.pin) not in gone]
    whole = _whole(kept)
    subjects = (*view.deleted, *view.local.sealed_segments) if _may_pin(view) else ()
    wanted = tuple(
        subject
        for subject in subjects
        if (subject.base_offset, subject.next_base_offset) not in view.refused
        and _pin_of(subject, whole, view.local.log_dir) is None
        and not _is_remote(view, lineage, subject)
    )
    return PinPlan(
        drop=(
            *(Unpin(pin=pin, reason=DropReason.TRUNCATED) for pin in cut_off),
            *(Unpin(pin=pin, reason=DropReason.REMOTE) for pin in remote),
            *replaced,
        ),
        pin=wanted,
        is_settled=not wanted and view.segments_at is not None,
    )


def _with_epochs_ahead(lineage: Lineage, pins: Sequence[Pin]) -> Lineage:
    """Return the lineage with the later epochs that only ``pins`` have: a log that is built anew has not fetched them yet, and
    what an earlier leader copied of their offsets would pass for theirs."""
    if not lineage:
        return lineage
    last = lineage.entries[-1]
    ahead = {
        entry
        for pin in pins
        for entry in pin.leader_epochs
        if entry.epoch > last.epoch and entry.start_offset > last.start_offset
    }
    return Lineage.of([*lineage.entries, *sorted(ahead)]) if ahead else lineage


def cut_off_pins(pins: Sequence[Pin], local: LocalPartition, *, is_compacted: bool = False) -> tuple[Pin, ...]:
    """Return those of ``pins``, which ascend, that hold what the partition's history has no more, or a file that is no longer
    what was pinned.

    A truncation makes the segment that it falls into the active one.  Its file is cut, for pins as well, and grows again.
    Above it the broker deletes files, which pins keep.  A replica that lost its directory shows the same, an active segment
    below its pins, but the leader whose log it fetches may have deleted what they hold: so a position alone contradicts only
    a pin of this very log, which is older than what the pin's file has, and one that has no epochs.  It must: the follower
    may never fetch the epoch that cut it off, if its leader has deleted that by then.  Of a compacted partition all that
    follows goes as well, since nothing is pinned again below what is.
    """
    twins, now = {segment.base_offset: segment for segment in local.segments}, Lineage.of(local.leader_epochs)
    found = [_is_cut_off(pin, local, twins.get(pin.base_offset), now, merges=is_compacted) for pin in pins]
    if is_compacted and True in found:
        first = found.index(True)
        return tuple(pins[first:])
    return tuple(pin for pin, is_cut_off in zip(pins, found, strict=True) if is_cut_off)


def _is_cut_off(pin: Pin, local: LocalPartition, twin: LocalSegment | None, now: Lineage, *, merges: bool) -> bool:
    """Return whether the pin is cut off; a cleaner that ``merges`` segments gives one another end.  ``twin`` is the segment of
    its base offset, ``now`` the live epochs."""
    active = local.segments[-1]
    has_other_end = (
        twin is not None and twin.next_base_offset != pin.next_base_offset and not (merges and twin is not active)
    )
    is_below = active.base_offset <= pin.base_offset
    if not pin.leader_epochs:
        return is_below or has_other_end
    if is_below and _is_of_this_log(pin, local):
        return True
    if twin is not None and has_other_end and pin.is_of(twin, local.log_dir):
        return True
    return _contradicts(now, active.base_offset, pin)


def _is_of_this_log(pin: Pin, local: LocalPartition) -> bool:
    """Return whether the pin's file was written in the directory that is there now: the broker makes it before any of them."""
    return pin.log_dir == local.log_dir and 0 <= local.made_ms <= pin.segment.modified_ms


def _contradicts(now: Lineage, known_end: Offset, pin: Pin) -> bool:
    """Return whether the live epochs show that an offset of the pin was, or will be, written in another one.

    The live file may have forgotten older epochs, and may not have fetched later ones yet: so an earlier epoch than the pin's
    says something only where the log has the offset, below ``known_end``, a later one everywhere.
    """
    last = pin.leader_epochs[-1]
    ends = {now.epoch_for_offset(pin.base_offset), now.epoch_for_offset(pin.next_base_offset - 1)}
    if last.start_offset <= pin.base_offset and ends == {last.epoch}:
        return False  # mostly so, and pins may be many thousands
    covered, then = (pin.base_offset, pin.next_base_offset), _own_epochs(pin)
    were, are = then.entries_in_range(*covered), now.entries_in_range(*covered)
    for offset in {pin.base_offset, *(entry.start_offset for entry in (*were, *are))}:
        was, live_epoch = then.epoch_for_offset(offset), now.epoch_for_offset(offset)
        if was is None or live_epoch is None:
            continue
        if live_epoch > was or (live_epoch < was and offset < known_end):
            return True
    return False


def _own_epochs(pin: Pin) -> Lineage:
    """Return the epochs from the one on that the pin's first offset is of: those before may be a thousand, of each pin."""
    first = len(pin.leader_epochs) - 1
    while first > 0 and pin.leader_epochs[first].start_offset > pin.base_offset:
        first -= 1
    return Lineage.of(pin.leader_epochs[first:])


_ByOffsets = Mapping[tuple[Offset, Offset | None], Pin]


def _whole(pins: Iterable[Pin]) -> _ByOffsets:
    return {_offsets(pin): pin for pin in pins if pin.is_whole}


def _pin_of(segment: LocalSegment, whole: _ByOffsets, log_dir: str) -> Pin | None:
    """Return the pin that holds this very file; one in another log dir holds the same, until space is short."""
    pin = whole.get((segment.base_offset, segment.next_base_offset))
    return pin if pin is not None and (pin.log_dir != log_dir or pin.is_of(segment, log_dir)) else None


def _replaced(pins: Sequence[Pin], local: LocalPartition) -> list[Unpin]:
    """Return pins of files that the broker has no more, of which it has every offset in files that are pinned whole: a log
    that was built anew has rolled elsewhere.  A file that is gone from the middle of a log looks the same, for the one before
    it seems to reach over its offsets: those that are there ``instead`` have to be looked into."""
    files = {(one.base_offset, one.next_base_offset): one for one in local.sealed_segments}
    live: list[Pin] = []
    others: list[Pin] = []
    for pin in pins:
        if pin.log_dir == local.log_dir:
            file = files.get(_offsets(pin)) if pin.is_whole else None
            (live if file is not None and pin.is_of(file, local.log_dir) else others).append(pin)
    starts = [pin.base_offset for pin in live]  # ascending: these are the broker's segments, one behind the other
    found = []
    for pin in others:
        first = max(bisect_right(starts, pin.base_offset) - 1, 0)
        instead = tuple(live[first : bisect_left(starts, pin.next_base_offset)])
        if _cover(instead, pin):
            found.append(Unpin(pin=pin, reason=DropReason.REPLACED, instead=instead))
    return found


def _cover(pins: Sequence[Pin], other: Pin) -> bool:
    offset = other.base_offset
    for pin in pins:
        if pin.base_offset <= offset < pin.next_base_offset:
            offset = pin.next_base_offset
    return offset >= other.next_base_offset


def _offsets(pin: Pin) -> tuple[Offset, Offset]:
    return pin.base_offset, pin.next_base_offset


def is_remote(lineage: Lineage, segments_at: SegmentsAt, segment: LocalSegment, *, from_offset: int = 0) -> bool:
    """Return whether finished segments of ``lineage`` hold every offset of a sealed segment from ``from_offset`` on, each in
    the epoch that wrote it.

    Offsets below the lineage have no epoch that is still known: the rest of the segment stands for them.
    """
    if segment.next_base_offset is None or not lineage:
        return False
    offset = max(segment.base_offset, lineage.entries[0].start_offset, from_offset)
    if offset >= segment.next_base_offset:
        return False
    while offset < segment.next_base_offset:
        epoch = lineage.epoch_for_offset(offset)
        there = () if epoch is None else segments_at(epoch, offset)
        held = next((one for one in there if one.is_within(lineage)), None)
        if epoch is None or held is None:
            return False
        offset = min(held.next_offset, lineage.end_offset_of(epoch, NO_LOG_END) or offset)
    return True


def without_remote_pins(
    segments: Sequence[LocalSegment], lineage: Lineage, segments_at: SegmentsAt
) -> tuple[LocalSegment, ...]:
    """Return ``segments`` without those that are pinned and remote: a finished copy is known before its pin is dropped."""
    return tuple(segment for segment in segments if not (segment.pinned and is_remote(lineage, segments_at, segment)))


def _is_remote(view: PinView, lineage: Lineage, segment: LocalSegment) -> bool:
    return view.segments_at is not None and is_remote(lineage, view.segments_at, segment)


def _may_pin(view: PinView) -> bool:
    """Return whether pins are due: while nothing is known to be remote, only where the broker deletes on its own."""
    if view.policy.copy_disabled or not view.can_pin:
        return False
    return view.segments_at is not None or view.policy.mode is RetentionMode.RACE
