"""Choice of pins that go because of the remote log start, or for space: over all partitions (docs/design/0004-pins.md; U8)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tiersidecar.domain.policy import UNLIMITED
from tiersidecar.domain.segments import DropReason, LocalPartition, Pin, PinnedPartition, Unpin


@dataclass(frozen=True, slots=True, kw_only=True)
class PinLimits:
    """``max_bytes`` that pins alone may keep on the disks (-1: without limit); ``disk_reserve_percent`` of each file system
    that stays free of them."""

    max_bytes: int = UNLIMITED
    disk_reserve_percent: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A file system: the log dirs on it, its size, and what is free."""

    log_dirs: frozenset[str]
    size_bytes: int
    free_bytes: int

    def above_reserve_bytes(self, limits: PinLimits) -> int:
        """Return the free bytes above the reserve; negative below it."""
        return self.free_bytes - self.size_bytes * limits.disk_reserve_percent // 100


def pins_alone(
    pins: Iterable[Pin],
    present: Mapping[PinnedPartition, LocalPartition],
    uncleaned: Container[PinnedPartition] = frozenset(),
) -> list[Pin]:
    """Return those of ``pins`` that alone keep their segment's bytes on its disk: the broker's directory has their file no
    more, is gone itself, or lies in another log dir.

    A log that was built anew has other files of the same offsets: so it is the file that counts, its base offset and inode,
    where the partition is known to be ``uncleaned``.  Else it is the offset, since what a cleaner has rewritten stays part of a
    picture.

    A file that the broker has only renamed yet (``.deleted``) still counts as the broker's: dropping the pin would free nothing
    for now, and the next round, which finds as little room as this one, would drop another.
    """
    files: dict[PinnedPartition, frozenset[tuple[int, int]]] = {}
    found = []
    for pin in pins:
        local = present.get(pin.owner)
        if local is None or pin.log_dir != local.log_dir:
            found.append(pin)
        elif pin.owner not in uncleaned:
            is_renamed = any(pin.base_offset == one.base_offset for one in local.deleted)
            if pin.base_offset < local.segments[0].base_offset and not is_renamed:
                found.append(pin)
        else:
            there = files.get(pin.owner)
            if there is None:
                brokers = (*local.deleted, *local.segments)
                there = files[pin.owner] = frozenset((one.base_offset, one.inode) for one in brokers)
            if (pin.base_offset, pin.segment.inode) not in there:
                found.append(pin)
    return found


def has_moved(pin: Pin, local: LocalPartition | None) -> bool:
    """Return whether the broker has the segment in another log dir than the pin's: it is pinned anew there."""
    if local is None or pin.log_dir == local.log_dir:
        return False
    return local.segments[0].base_offset <= pin.base_offset < local.segments[-1].base_offset


def is_there_anew(pin: Pin, local: LocalPartition | None) -> bool:
    """Return whether the broker's log, built anew in the pin's log dir, has sealed segments at the pin's offsets."""
    if local is None or pin.log_dir != local.log_dir:
        return False
    first, active = local.segments[0].base_offset, local.segments[-1].base_offset
    return first <= pin.base_offset and pin.next_base_offset <= active


def is_given_up(pin: Pin, remote_log_start_offset: int) -> bool:
    """Return whether no reader has a right to the data any more: it lies wholly below the remote log start.

    Its age does not matter here.  Data past its total retention is given up by the leader's expiry, which moves that
    start, and stops where a clock or a retention is not trusted: the pin may be the only copy.
    """
    return pin.next_base_offset <= remote_log_start_offset


def decide_room(
    alone: Sequence[Pin], disks: Sequence[Disk], limits: PinLimits, needless: Callable[[Pin], DropReason | None]
) -> tuple[Unpin, ...]:
    """Choose which of the pins that alone keep their bytes must go: first those whose data is elsewhere too, then the oldest.

    ``needless`` returns why a pin may go without loss, None where it may not; it is called only when something must go.
    """
    excess_bytes = sum(pin.size_bytes for pin in alone) - limits.max_bytes if limits.max_bytes != UNLIMITED else 0
    missing = {disk: -disk.above_reserve_bytes(limits) for disk in disks}
    if excess_bytes <= 0 and all(bytes_ <= 0 for bytes_ in missing.values()):
        return ()
    disk_of = {log_dir: disk for disk in missing for log_dir in disk.log_dirs}
    dropped: list[Unpin] = []
    for without_loss, pin in _in_order(alone, needless):
        disk = disk_of.get(pin.log_dir)
        if excess_bytes > 0:
            reason = DropReason.PINS_MAX_BYTES
        elif disk is not None and missing[disk] > 0:
            reason = DropReason.DISK_RESERVE
        else:
            continue
        dropped.append(Unpin(pin=pin, reason=without_loss or reason))
        excess_bytes -= pin.size_bytes
        if disk is not None:
            missing[disk] -= pin.size_bytes
    return tuple(dropped)


def room_bytes(alone: Mapping[str, int], log_dir: str, disks: Sequence[Disk], limits: PinLimits) -> int:
    """Return the bytes that pins in ``log_dir`` may still take before one must go; ``alone`` are those kept by log dir."""
    rooms = [disk.above_reserve_bytes(limits) for disk in disks if log_dir in disk.log_dirs]
    if limits.max_bytes != UNLIMITED:
        rooms.append(limits.max_bytes - sum(alone.values()))
    return max(min(rooms, default=0), 0)


def _in_order(
    alone: Sequence[Pin], needless: Callable[[Pin], DropReason | None]
) -> list[tuple[DropReason | None, Pin]]:
    rated = [(needless(pin), pin) for pin in alone]
    return sorted(rated, key=lambda one: (one[0] is None, one[1].segment.modified_ms, one[1].base_offset))
