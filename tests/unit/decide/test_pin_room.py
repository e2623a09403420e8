"""Which pins go for time and for space (U8; DESIGN.md section 5, disk full)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.pins import LOG_DIR, local_partition, pin_of
from tests.support.segments import local_segments
from tiersidecar.decide.pin_room import Disk, PinLimits, decide_room, is_alone, reason_expired, room_bytes
from tiersidecar.domain.pins import DropReason, Pin
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LocalPartition

PINS = [pin_of(base, base + 50, modified_ms=base) for base in (0, 50, 100, 150)]  # 100 bytes each


def disk(*, size: int = 1000, free: int = 1000, log_dirs: tuple[str, ...] = (LOG_DIR,)) -> Disk:
    return Disk(log_dirs=frozenset(log_dirs), size_bytes=size, free_bytes=free)


def dropped(
    pins: list[Pin], disks: list[Disk], limits: PinLimits, remote: frozenset[int] = frozenset()
) -> list[tuple[int, str]]:
    plan = decide_room(pins, disks, limits, lambda pin: pin.base_offset in remote)
    return [(unpin.pin.base_offset, unpin.reason.value) for unpin in plan]


@pytest.mark.parametrize(
    ("disks", "limits", "remote", "expected"),
    [
        pytest.param([disk()], PinLimits(), (), [], id="room for all"),
        pytest.param([disk()], PinLimits(max_bytes=400), (), [], id="exactly pins.max.bytes"),
        pytest.param(
            [disk()],
            PinLimits(max_bytes=399),
            (),
            [(0, "pins_max_bytes")],
            id="a byte more: the oldest goes, with loss",
        ),
        pytest.param(
            [disk()],
            PinLimits(max_bytes=200),
            (),
            [(0, "pins_max_bytes"), (50, "pins_max_bytes")],
            id="until it fits, and no further",
        ),
        pytest.param(
            [disk()],
            PinLimits(max_bytes=200),
            (150,),
            [(150, "remote"), (0, "pins_max_bytes")],
            id="what is remote goes first, without loss",
        ),
        pytest.param(
            [disk()], PinLimits(max_bytes=0), (), [(b, "pins_max_bytes") for b in (0, 50, 100, 150)], id="none"
        ),
        pytest.param([disk(free=100)], PinLimits(), (), [], id="exactly disk.reserve is free"),
        pytest.param([disk(free=99)], PinLimits(), (), [(0, "disk_reserve")], id="a byte below disk.reserve"),
        pytest.param(
            [disk(free=0)],
            PinLimits(disk_reserve_percent=15),
            (),
            [(0, "disk_reserve"), (50, "disk_reserve")],
            id="as many as the reserve needs",
        ),
        pytest.param(
            [disk(free=0)],
            PinLimits(max_bytes=300, disk_reserve_percent=20),
            (),
            [(0, "pins_max_bytes"), (50, "disk_reserve")],
            id="what goes for one reason counts for the other",
        ),
        pytest.param([disk(free=0)], PinLimits(disk_reserve_percent=0), (), [], id="disk.reserve 0 % is no reserve"),
        pytest.param([disk(free=0, log_dirs=("/other",))], PinLimits(), (), [], id="another disk's trouble"),
        pytest.param([], PinLimits(), (), [], id="a disk that does not answer drops nothing"),
    ],
)
def test_room(disks: list[Disk], limits: PinLimits, remote: tuple[int, ...], expected: list[tuple[int, str]]) -> None:
    assert dropped(PINS, disks, limits, frozenset(remote)) == expected


def test_two_log_dirs_on_one_disk_share_its_reserve() -> None:
    pins = [pin_of(0, 50, modified_ms=2), pin_of(50, 100, modified_ms=1, log_dir="/logs2")]
    shared = disk(free=99, log_dirs=(LOG_DIR, "/logs2"))
    assert dropped(pins, [shared], PinLimits()) == [(50, "disk_reserve")]


def test_only_the_last_two_reasons_are_a_loss() -> None:
    assert {reason for reason in DropReason if reason.is_loss} == {DropReason.PINS_MAX_BYTES, DropReason.DISK_RESERVE}


@pytest.mark.parametrize(
    ("policy", "start_offset", "now_ms", "expected"),
    [
        pytest.param(TopicPolicy(), -1, 10**15, None, id="without a limit nothing expires"),
        pytest.param(TopicPolicy(retention_ms=10), -1, 1010, None, id="as old as retention.ms is not past it"),
        pytest.param(TopicPolicy(retention_ms=10), -1, 1011, DropReason.EXPIRED, id="U8 past the total retention"),
        pytest.param(TopicPolicy(), 49, 0, None, id="the remote log start is within it"),
        pytest.param(TopicPolicy(), 50, 0, DropReason.BELOW_LOG_START, id="wholly below the remote log start"),
    ],
)
def test_expired(policy: TopicPolicy, start_offset: int, now_ms: int, expected: DropReason | None) -> None:
    assert reason_expired(pin_of(0, 50, max_timestamp_ms=1000), policy, start_offset, now_ms) is expected


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        pytest.param(local_partition(local_segments(0, 50)), False, id="the broker still has the segment"),
        pytest.param(local_partition(local_segments(50)), True, id="the broker has deleted it"),
        pytest.param(
            replace(local_partition(local_segments(50)), deleted=local_segments(0, 50)[:1]),
            False,
            id="the broker has renamed it and not removed it yet: to drop the pin frees nothing",
        ),
        pytest.param(None, True, id="the partition's directory is gone"),
    ],
)
def test_alone(local: LocalPartition | None, expected: bool) -> None:
    assert is_alone(pin_of(0, 50), local) is expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param(PinLimits(), 300, id="what is free above the reserve"),
        pytest.param(PinLimits(max_bytes=250), 50, id="pins.max.bytes is nearer"),
        pytest.param(PinLimits(max_bytes=100), 0, id="never negative"),
    ],
)
def test_room_that_is_left(limits: PinLimits, expected: int) -> None:
    assert room_bytes({LOG_DIR: 200}, LOG_DIR, [disk(free=400)], limits) == expected
