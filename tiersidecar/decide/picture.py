"""Choice of the segments of a compacted partition that are pinned together: a picture of one moment (docs/design/0017).

A broker's cleaner rewrites and merges segments at any time, and takes a tombstone away once it is ``delete.retention.ms`` old.
So what is copied one after the other must have been pinned at one moment: else a value is copied today and its tombstone is
gone before the copy gets there.  Later segments may follow in a picture of their own, if no tombstone of theirs can have gone
before it was taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import DropReason, LocalPartition, LocalSegment, PictureLook, Pin, Unpin

_LATEST_SHARE = 0.8
"""A share of ``delete.retention.ms``: a picture that comes later may lack a tombstone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureView:
    """``local`` is the directory without pins; its ``deleted`` are those that retention or a user took, as far as that is
    certain.  ``remote_end`` is the end (exclusive) of what is remote in this history; ``remote`` are those of ``pins`` of which
    every offset is, ``cut_off`` those that the history no longer has.  ``high_watermark`` is exclusive; ``refused`` are offsets
    (base, next base) of segments that no reader has a right to."""

    local: LocalPartition
    pins: tuple[Pin, ...]
    remote: tuple[Pin, ...]
    cut_off: tuple[Pin, ...]
    remote_end: Offset
    high_watermark: int
    refused: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PicturePlan:
    """``drop`` comes first, then ``take``, all of it at one moment, ascending: first those that the broker has renamed, then
    those that it has.  ``known_end`` (exclusive) is up to where all is remote or pinned."""

    drop: tuple[Unpin, ...]
    take: tuple[LocalSegment, ...]
    known_end: Offset

    @property
    def end(self) -> Offset:
        """Return up to where all is remote or pinned once ``take`` is, exclusive."""
        return Offset(max([self.known_end, *map(_end, self.take)]))

    def is_renamed(self, log_path: str) -> bool:
        """Return whether the segment to be taken at ``log_path`` is one that the broker has renamed."""
        return any(one.log_path == log_path for one in self.take if one.file_suffix)

    def after(self, log_path: str) -> PicturePlan:
        """Return the plan without the segment at ``log_path`` and those before it."""
        number = next(number for number, one in enumerate(self.take) if one.log_path == log_path)
        return replace(self, take=self.take[number + 1 :])


def decide_picture(view: PictureView) -> PicturePlan:
    """Return the plan for one partition.

    The active segment of a quiet topic is rolled and renamed in one step once its last record is past ``retention.ms``, so that
    it is never seen sealed.  What the cleaner has replaced is renamed too: where it is below the directory's first segment, it
    was pinned before, or is as it was written.
    """
    kept = [pin for pin in view.pins if pin not in view.cut_off]
    known_end = max([view.remote_end, *(pin.next_base_offset for pin in kept)])
    there = [
        one
        for one in (*view.local.deleted, *view.local.sealed_segments)
        if (one.base_offset, one.next_base_offset) not in view.refused
    ]
    return PicturePlan(
        drop=(
            *(Unpin(pin=pin, reason=DropReason.TRUNCATED) for pin in view.cut_off),
            *(Unpin(pin=pin, reason=DropReason.REMOTE) for pin in view.remote if pin not in view.cut_off),
        ),
        take=tuple(one for one in there if known_end < _end(one) <= view.high_watermark),
        known_end=known_end,
    )


def may_lack_tombstones(
    plan: PicturePlan,
    *,
    cleaner_offset: int | None,
    written_from: int,
    newest_known_ms: int,
    now_ms: int,
    delete_retention_ms: int,
) -> bool:
    """Return whether offsets that are missing from what ``plan`` has taken would show that another broker's cleaner may have
    taken tombstones from it, before this broker fetched it.

    What it has written itself, from ``written_from`` on, no other one had.  The caller says that of no offset if
    :func:`is_excused` does not hold: then this broker's own cleaner may have been there, in rounds that were cut short.  Where
    a round of it has ended, that may be why they are missing; ``reason_missed`` goes by the looks there.  And nothing that was
    written a short time ago was cleaned twice: all of it is later than ``newest_known_ms``, the last timestamp of what is
    known, -1 where there is none.  Producers choose it: one in the future, by more than the share that is left, says nothing,
    or a single record would for years.
    """
    if not plan.take or plan.known_end == 0 or plan.known_end >= written_from:
        return False
    if cleaner_offset is None or cleaner_offset > plan.known_end:
        return False
    age_ms = now_ms - newest_known_ms
    is_recent = -delete_retention_ms * (1 - _LATEST_SHARE) < age_ms < delete_retention_ms * _LATEST_SHARE
    return newest_known_ms < 0 or not is_recent


def is_excused(plan: PicturePlan, last: PictureLook | None, *, now_ms: int, delete_retention_ms: int) -> bool:
    """Return whether all was pinned a shorter time ago than a tombstone stays, by the setting of then or of now: this broker's
    cleaner has taken none, however often it was there."""
    if last is None or last.end_offset > plan.known_end:
        return False
    least_ms = min(last.delete_retention_ms, delete_retention_ms)
    return 0 <= now_ms - last.at_ms < least_ms * _LATEST_SHARE


def reason_missed(
    plan: PicturePlan,
    *,
    hole: int | None = None,
    cleaner_offset: int | None,
    last: PictureLook | None,
    now_ms: int,
    delete_retention_ms: int,
) -> str:
    """Return why a tombstone may have gone from what ``plan`` has taken, before it was taken; empty where none can have.

    ``cleaner_offset`` is the broker's own, up to where it has cleaned by the end of the picture, -1 where it never did, None
    where that is not known.  ``hole`` is an offset that is missing, where that tells of another broker's cleaner.  ``last`` is
    the last look at which all that the cleaner might touch was pinned or remote.

    One round of a cleaner takes no tombstone: it gives them their horizon.  So nothing is missed while no round has ended that
    went beyond what was known; nor if all was pinned a shorter time ago than a tombstone stays.
    """
    if not plan.take or plan.known_end == 0:
        return ""
    if hole is not None:
        return (
            f"offsets {hole} to {plan.end - 1} were not pinned before another broker's cleaner had been there, or a round of "
            "this one's that was cut short"
        )
    if cleaner_offset is not None and cleaner_offset <= plan.known_end:
        return ""
    where = f"offsets {plan.known_end} to {plan.end - 1} were not pinned before the broker's cleaner had been there"
    if last is None or last.end_offset > plan.known_end:
        return f"{where}, and it is not known since when"
    if is_excused(plan, last, now_ms=now_ms, delete_retention_ms=delete_retention_ms):
        return ""
    least_ms = min(last.delete_retention_ms, delete_retention_ms)
    return f"{where}, and the last look was {now_ms - last.at_ms} ms ago, with delete.retention.ms of {least_ms}"


def _end(segment: LocalSegment) -> Offset:
    assert segment.next_base_offset is not None, "only sealed segments are asked"
    return segment.next_base_offset
