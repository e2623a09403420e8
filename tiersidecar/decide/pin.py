"""Choice of the sealed segments of a partition that are pinned, and of pins that have served (docs/design/0004-pins.md).

Followers decide as leaders do: the next leader must be able to copy what the last one did not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tiersidecar.domain.offsets import Lineage
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
    cut_off = [pin for pin in view.pins if is_cut_off(pin, view.local)]
    kept = tuple(pin for pin in view.pins if pin not in cut_off)
    live = view.epochs.extended_by(view.local.leader_epochs)
    lineage = Lineage(epochs_with_pins(live.entries, kept))
    remote = [pin for pin in kept if _is_remote(view, lineage, pin.segment)]
    whole = {pin.base_offset for pin in kept if pin.is_whole}
    subjects = (*view.deleted, *view.local.sealed_segments) if _may_pin(view) else ()
    wanted = tuple(
        subject
        for subject in subjects
        if subject.base_offset not in whole
        and (subject.base_offset, subject.next_base_offset) not in view.refused
        and not _is_remote(view, lineage, subject)
    )
    return PinPlan(
        drop=(
            *(Unpin(pin=pin, reason=DropReason.TRUNCATED) for pin in cut_off),
            *(Unpin(pin=pin, reason=DropReason.REMOTE) for pin in remote if view.is_sure),
        ),
        pin=wanted,
        is_settled=not wanted and view.segments_at is not None,
    )


def is_cut_off(pin: Pin, local: LocalPartition, *, merges: bool = False) -> bool:
    """Return whether the partition's history no longer has what the pin holds.

    A truncation makes the segment that it falls into the active one, so that an active segment at or below the pin shows
    it; so does a sealed one of the same base with another end, but where a cleaner ``merges`` segments; so do epochs that
    contradict.
    """
    if local.segments[-1].base_offset <= pin.base_offset:
        return True
    twin = next((segment for segment in local.segments if segment.base_offset == pin.base_offset), None)
    if not merges and twin is not None and twin.next_base_offset != pin.next_base_offset:
        return True
    known, live = len(pin.leader_epochs), local.leader_epochs
    following = live[known].start_offset if len(live) > known else pin.next_base_offset
    if known == 0 or (live[:known] == pin.leader_epochs and following >= pin.next_base_offset):
        return False
    before = Lineage.of(pin.leader_epochs)
    now = before.extended_by(live)
    covered = (pin.base_offset, pin.next_base_offset)
    return now.entries_in_range(*covered) != before.entries_in_range(*covered)


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
