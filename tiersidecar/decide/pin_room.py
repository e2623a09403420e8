"""Which pins go for time and for space: over all partitions of the broker (docs/design/0004-pins.md; U8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tiersidecar.decide.expiry_stops import longest_silence_ms
from tiersidecar.decide.expiry_view import ExpiryLimits
from tiersidecar.domain.pins import DropReason, Pin, Unpin
from tiersidecar.domain.policy import UNLIMITED, TopicPolicy
from tiersidecar.domain.segments import LocalPartition


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
        """Free bytes above the reserve; negative below it."""
        return self.free_bytes - self.size_bytes * limits.disk_reserve_percent // 100


def is_alone(pin: Pin, local: LocalPartition | None) -> bool:
    """Whether only the pin keeps the segment's bytes: the broker's directory has it no more, or is gone itself.

    What the broker has only renamed yet (``.deleted``) it still has: to drop the pin would free nothing for now, and the next
    round, which finds as little room as this one, would drop another.
    """
    if local is None:
        return True
    is_renamed = any(pin.base_offset == one.base_offset for one in local.deleted)
    return pin.base_offset < local.segments[0].base_offset and not is_renamed


def reason_expired(
    pin: Pin, policy: TopicPolicy, remote_log_start_offset: int, now_ms: int | None
) -> DropReason | None:
    """Why nobody has a right to the data any more: past the total retention, or below the remote log start.

    ``now_ms`` is None while the clock is not to be believed: then nothing is past its retention.
    """
    if pin.next_base_offset <= remote_log_start_offset:
        return DropReason.BELOW_LOG_START
    if now_ms is None or policy.retention_ms == UNLIMITED:
        return None
    if pin.max_timestamp_ms < now_ms - policy.retention_ms:
        return DropReason.EXPIRED
    return None


def is_time_in_doubt(policy: TopicPolicy, times_ms: Iterable[int], now_ms: int) -> bool:
    """Whether nothing may be taken for past its retention: expiry stops for the same two reasons (docs/design/0003).

    A retention of 0 may be a configuration that lost its value.  A silence longer than the retention and its slack, between the
    partition's ``times_ms`` and up to ``now_ms``, says that the clock jumped while no process saw it: a pin that is still there
    would have gone before.
    """
    slack_ms = ExpiryLimits().idle_slack_ms
    return policy.retention_ms == 0 or longest_silence_ms(times_ms, now_ms) > policy.retention_ms + slack_ms


def decide_room(
    alone: Sequence[Pin], disks: Sequence[Disk], limits: PinLimits, is_remote: Callable[[Pin], bool]
) -> tuple[Unpin, ...]:
    """Of the pins that alone keep their bytes, those that must go: the ones already remote first, then the oldest.

    ``is_remote`` is asked only when something must go.
    """
    excess_bytes = sum(pin.size_bytes for pin in alone) - limits.max_bytes if limits.max_bytes != UNLIMITED else 0
    missing = {disk: -disk.above_reserve_bytes(limits) for disk in disks}
    if excess_bytes <= 0 and all(bytes_ <= 0 for bytes_ in missing.values()):
        return ()
    disk_of = {log_dir: disk for disk in missing for log_dir in disk.log_dirs}
    dropped: list[Unpin] = []
    for remote, pin in _in_order(alone, is_remote):
        disk = disk_of.get(pin.log_dir)
        if excess_bytes > 0:
            reason = DropReason.PINS_MAX_BYTES
        elif disk is not None and missing[disk] > 0:
            reason = DropReason.DISK_RESERVE
        else:
            continue
        dropped.append(Unpin(pin=pin, reason=DropReason.REMOTE if remote else reason))
        excess_bytes -= pin.size_bytes
        if disk is not None:
            missing[disk] -= pin.size_bytes
    return tuple(dropped)


def room_bytes(alone: Mapping[str, int], log_dir: str, disks: Sequence[Disk], limits: PinLimits) -> int:
    """Bytes that pins in ``log_dir`` may still come to keep before one must go; ``alone`` are those kept by log dir."""
    rooms = [disk.above_reserve_bytes(limits) for disk in disks if log_dir in disk.log_dirs]
    if limits.max_bytes != UNLIMITED:
        rooms.append(limits.max_bytes - sum(alone.values()))
    return max(min(rooms, default=0), 0)


def _in_order(alone: Sequence[Pin], is_remote: Callable[[Pin], bool]) -> list[tuple[bool, Pin]]:
    rated = [(is_remote(pin), pin) for pin in alone]
    return sorted(rated, key=lambda one: (not one[0], one[1].segment.modified_ms, one[1].base_offset))
