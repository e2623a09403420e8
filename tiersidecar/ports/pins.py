"""Hard links to sealed segments, the disks on which they lie, and the data that only they hold (docs/design/0004-pins.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LocalPartition, LocalSegment, Picture, PictureLook, Pin


@dataclass(frozen=True, slots=True, kw_only=True)
class PinsView:
    """All pins at start.  ``faults`` maps a log dir whose pins could not be read to the reason."""

    pins: tuple[Pin, ...]
    faults: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """The file system of a log dir.  ``device`` is the same for two log dirs on one file system; ``free_bytes`` are those
    that a process without privileges may still take."""

    device: int
    size_bytes: int
    free_bytes: int


class ReadPins(Protocol):
    async def scan(self, *, sweep: bool) -> PinsView:
        """Read every pin in every log dir; with ``sweep``, remove the leftovers of pins that were never whole."""


class MakePins(Protocol):
    async def prepare(self) -> Mapping[str, str]:
        """Find a place for each log dir that has none yet; return the log dirs without one, and why."""

    async def pin(self, local: LocalPartition, segment: LocalSegment) -> Pin:
        """Link the files of a sealed segment of ``local``; one that is pinned already gets the links that it lacks.

        Raises:
            SegmentChangedError: the broker has deleted it; nothing of ours is left.
            PinError: links cannot be made there (now).
        """

    async def hold_all(self, pins: Sequence[Pin], start: Offset, stop: Offset) -> bool:
        """Return whether ``pins``, which ascend, have each offset from ``start`` on and below ``stop`` in their records; False
        where a .log cannot be understood.

        Raises:
            PinError: one cannot be read.
        """

    async def unpin(self, pin: Pin) -> None:
        """Remove its links; those that are gone already are no error.

        Raises:
            PinError: one cannot be removed.
        """


class TakePictures(Protocol):
    async def take_picture(self, local: LocalPartition, segments: Sequence[LocalSegment]) -> Picture:
        """Link sealed segments of ``local``, as they are at one moment.

        Raises:
            SegmentChangedError: the broker's cleaner, or its retention, was at work; nothing of the picture is left.
            PinError: links cannot be made there (now).
        """

    async def first_hole(self, pins: Sequence[Pin], start: Offset, stop: int) -> Offset | None:
        """Return the first offset from ``start`` on and below ``stop`` that ``pins``, which ascend, should have and no record
        has: a cleaner was there.  None where there is none, or where a .log cannot be understood, which its copy will tell.

        Raises:
            PinError: one cannot be read.
        """

    async def last_look(self, local: LocalPartition) -> PictureLook | None:
        """Return the last look given to :meth:`note_look`; None where there is none."""

    async def note_look(self, local: LocalPartition, look: PictureLook) -> None:
        """Keep it beside the pins, for this process and the next, if no segment was sealed since ``local`` was seen.

        Raises:
            PinError: it cannot be written.
        """

    async def forget_look(self, local: LocalPartition) -> None:
        """Forget the last look.

        Raises:
            PinError: it cannot be removed.
        """


class ReadCleanerOffset(Protocol):
    async def cleaner_offset(self, local: LocalPartition) -> int | None:
        """Return up to where the broker's cleaner has cleaned ``local`` (exclusive), as its checkpoint says; -1 where it was
        never there, None where that cannot be read."""

    async def first_cleaned(self, segment: LocalSegment, start: Offset, stop: Offset) -> Offset | None:
        """Return the first offset from ``start`` on and below ``stop`` where a cleaner was: no record has it, or its tombstones
        have been given a time.  None where there is none; ``start`` where that cannot be read."""


class MeasureDisks(Protocol):
    async def disk_spaces(self) -> Mapping[str, DiskSpace]:
        """Return the space by log dir, without log dirs whose space is not known."""


class LookAtLinks(Protocol):
    async def without_other_names(self, pins: Sequence[Pin]) -> Sequence[Pin]:
        """Return those of which the .log has no name but ours: a pin keeps its bytes alone.  Of a log dir that does not answer
        none is known to be so."""


class Pins(ReadPins, MakePins, TakePictures, ReadCleanerOffset, MeasureDisks, LookAtLinks, Protocol):
    """The whole of it, as the composition root builds it."""


ANYWHERE = 2**63 - 1


class PendingCopies(Protocol):
    async def is_pending(self, partition: TopicIdPartition, *, below: int = ANYWHERE) -> bool:
        """Return whether pins may hold what the broker has deleted and the remote tier has not got yet, of segments that begin
        below offset ``below``: pins made before the call, and any, as long as it is not known which there are."""
        ...
