"""Choice of the sealed segments of a partition that are pinned, and of pins that have served (docs/design/0004-pins.md).

Followers decide as leaders do: the next leader must be able to copy what the last one did not.
"""

from __future__ import annotations

from bisect import bisect_right
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
    replaced = [pin for pin in _replaced(kept, view.local) if _offsets(pin) not in gone]
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
            *(Unpin(pin=pin, reason=DropReason.REPLACED) for pin in replaced),
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
    by_base = {segment.base_offset: segment for segment in local.segments}
    found = [_is_cut_off(pin, by_base.get(pin.base_offset), local, merges=is_compacted) for pin in pins]
    if is_compacted and True in found:
        first = found.index(True)
        return tuple(pins[first:])
    return tuple(pin for pin, is_cut_off in zip(pins, found, strict=True) if is_cut_off)


def _is_cut_off(pin: Pin, twin: LocalSegment | None, local: LocalPartition, *, merges: bool) -> bool:
    """Return whether the pin is cut off; ``twin`` is the broker's segment of its base offset.  A cleaner that ``merges``
    segments gives one another end."""
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
    return _contradicts(local, pin)


def _is_of_this_log(pin: Pin, local: LocalPartition) -> bool:
    """Return whether the pin's file was written in the directory that is there now: the broker makes it before any of them."""
    return pin.log_dir == local.log_dir and 0 <= local.made_ms <= pin.segment.modified_ms


def _contradicts(local: LocalPartition, pin: Pin) -> bool:
    """Return whether the live epochs show that an offset of the pin was, or will be, written in another one.

    The live file may have forgotten older epochs, and may not have fetched later ones yet: so an earlier epoch than the pin's
    says something only where the log has the offset, a later one everywhere.
    """
    known, live = len(pin.leader_epochs), local.leader_epochs
    following = live[known].start_offset if len(live) > known else pin.next_base_offset
    if live[:known] == pin.leader_epochs and following >= pin.next_base_offset:
        return False  # mostly so
    then, now = Lineage.of(pin.leader_epochs), Lineage.of(live)
    starts = (entry.start_offset for entry in (*then.entries, *now.entries))
    known_end = local.segments[-1].base_offset
    for offset in {pin.base_offset, *(start for start in starts if pin.base_offset < start < pin.next_base_offset)}:
        was, live_epoch = then.epoch_for_offset(offset), now.epoch_for_offset(offset)
        if was is None or live_epoch is None:
            continue
        if live_epoch > was or (live_epoch < was and offset < known_end):
            return True
    return False


_ByOffsets = Mapping[tuple[Offset, Offset | None], Pin]


def _whole(pins: Iterable[Pin]) -> _ByOffsets:
    return {_offsets(pin): pin for pin in pins if pin.is_whole}


def _pin_of(segment: LocalSegment, whole: _ByOffsets, log_dir: str) -> Pin | None:
    """Return the pin that holds this very file; one in another log dir holds the same, until space is short."""
    pin = whole.get((segment.base_offset, segment.next_base_offset))
    return pin if pin is not None and (pin.log_dir != log_dir or pin.is_of(segment, log_dir)) else None


def _replaced(pins: Sequence[Pin], local: LocalPartition) -> list[Pin]:
    """Return pins of files that the broker has no more, of which it has every offset in files that are pinned whole: a log
    that was built anew has rolled elsewhere."""
    here = [pin for pin in pins if pin.log_dir == local.log_dir]
    whole = _whole(here)
    found = (_pin_of(segment, whole, local.log_dir) for segment in local.sealed_segments)
    live = [_offsets(pin) for pin in found if pin is not None]
    if len(live) == len(here):  # mostly so
        return []
    runs: list[tuple[Offset, Offset]] = []
    for base, following in live:
        begin = runs.pop()[0] if runs and runs[-1][1] == base else base
        runs.append((begin, following))
    known = set(live)
    return [pin for pin in here if _offsets(pin) not in known and _is_covered(pin, runs)]


def _is_covered(pin: Pin, runs: Sequence[tuple[Offset, Offset]]) -> bool:
    """Return whether one of ``runs``, which ascend, has all of the pin's offsets."""
    number = bisect_right(runs, pin.base_offset, key=lambda run: run[0]) - 1
    return number >= 0 and pin.next_base_offset <= runs[number][1]


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
