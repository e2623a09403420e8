"""Pins, which keep a sealed segment readable after the broker has deleted it (docs/design/0004-pins.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import EpochEntry, Lineage, Offset
from tiersidecar.domain.segments import LocalPartition, LocalSegment


class PinnedPartition(NamedTuple):
    """Partition of a pin, by its file names: they have no room for the topic's name."""

    topic_id: Uuid
    partition: int

    @classmethod
    def of(cls, topic_id_partition: TopicIdPartition) -> PinnedPartition:
        return cls(topic_id_partition.topic_id, topic_id_partition.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Links to the files of one sealed segment.

    ``segment`` is the segment as its links show it: ``pinned``, with a ``next_base_offset``.  ``log_dir`` is the one that it
    was pinned in.  ``leader_epochs`` are the broker's entries below the next base offset at that time; empty when
    unreadable.  ``max_timestamp_ms`` is the last of its time index, or its time of change.  ``is_whole`` says that no
    companion is missing that a sealed segment always has.
    """

    owner: PinnedPartition
    log_dir: str
    segment: LocalSegment
    leader_epochs: tuple[EpochEntry, ...]
    max_timestamp_ms: int
    is_whole: bool

    @property
    def base_offset(self) -> Offset:
        return self.segment.base_offset

    @property
    def next_base_offset(self) -> Offset:
        """Return the exclusive end of its offsets."""
        assert self.segment.next_base_offset is not None, "only sealed segments are pinned"
        return self.segment.next_base_offset

    @property
    def size_bytes(self) -> int:
        """Return the size of the .log."""
        return self.segment.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLook:
    """A look at which all that was sealed of a compacted partition, up to ``end_offset`` (exclusive), was pinned or remote."""

    end_offset: Offset
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Pins that were made at one moment.  ``cleaner_offset`` is up to where the broker's cleaner had been when they were whole,
    -1 where it never was there, None where that cannot be read."""

    pins: tuple[Pin, ...]
    cleaner_offset: int | None


class DropReason(StrEnum):
    """Reason why a pin goes; the values are those of the label ``reason``."""

    REMOTE = "remote"
    TRUNCATED = "truncated"
    BELOW_LOG_START = "below_log_start"
    MOVED = "moved"
    TOPIC_GONE = "topic_gone"
    PARTITION_GONE = "partition_gone"
    PINS_MAX_BYTES = "pins_max_bytes"
    DISK_RESERVE = "disk_reserve"

    @property
    def is_loss(self) -> bool:
        """Return whether data went that a reader may still have a right to: it is not known whether another replica of a
        partition that has left this broker, or the store, has it too."""
        return self in (DropReason.PARTITION_GONE, DropReason.PINS_MAX_BYTES, DropReason.DISK_RESERVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpin:
    """A pin to be dropped, and why."""

    pin: Pin
    reason: DropReason


def with_pins(local: LocalPartition, pins: Sequence[Pin]) -> LocalPartition:
    """Return the partition with its pins: those that begin below the directory's first segment come first.  ``pins`` ascend
    by base offset."""
    first = local.segments[0].base_offset
    older = tuple(pin.segment for pin in pins if pin.base_offset < first)
    return replace(local, segments=(*older, *local.segments)) if older else local


def gone_below(
    log_start_offset: Offset, segments: Sequence[LocalSegment], pins: Sequence[Pin]
) -> tuple[LocalSegment, ...]:
    """Return the segments with those that the broker has deleted as their pins hold them: where its log starts it says at
    once, and a scan shows it later."""
    held = {(pin.base_offset, pin.next_base_offset): pin.segment for pin in pins}
    return tuple(
        held.get((one.base_offset, one.next_base_offset), one)
        if one.next_base_offset is not None and one.next_base_offset <= log_start_offset
        else one
        for one in segments
    )


def pictured(local: LocalPartition, pins: Sequence[Pin]) -> LocalPartition:
    """Return a compacted partition as it was pinned: what its directory has by now, but for the active segment, is of another
    moment.  A pin whose successor ends earlier comes after it."""
    ordered = sorted(pins, key=lambda pin: (pin.next_base_offset, pin.base_offset))
    return replace(local, segments=(*(pin.segment for pin in ordered), local.segments[-1]))


def epochs_with_pins(live: Sequence[EpochEntry], pins: Sequence[Pin]) -> tuple[EpochEntry, ...]:
    """Return the live leader-epoch-checkpoint, and before it the entries that the broker has dropped since the pins were made.

    Not a union: where pins and live file disagree, the live file counts, and what lies at or above its first entry goes.
    """
    lineage = Lineage()
    for pin in pins:
        if lineage.entries[: len(pin.leader_epochs)] != pin.leader_epochs:
            lineage = lineage.extended_by(pin.leader_epochs)
    return lineage.extended_by(live).entries
