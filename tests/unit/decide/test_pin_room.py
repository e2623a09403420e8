"""Which pins go for time and for space (U8)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.pins import LOG_DIR, local_partition, pin_of
from tests.support.segments import local_segments
from tiersidecar.decide.pin_room import (
    Disk,
    PinLimits,
    decide_room,
    has_moved,
    is_given_up,
    is_there_anew,
    pins_alone,
    room_bytes,
)
from tiersidecar.domain.segments import DropReason, LocalPartition, Pin

PINS = [pin_of(base, base + 50, modified_ms=base) for base in (0, 50, 100, 150)]  # 100 bytes each


def disk(*, size: int = 1000, free: int = 1000, log_dirs: tuple[str, ...] = (LOG_DIR,)) -> Disk:
    return Disk(log_dirs=frozenset(log_dirs), size_bytes=size, free_bytes=free)


def dropped(
    pins: list[Pin], disks: list[Disk], limits: PinLimits, remote: frozenset[int] = frozenset()
) -> list[tuple[int, str]]:
    plan = decide_room(pins, disks, limits, lambda pin: DropReason.REMOTE if pin.base_offset in remote else None)
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


def test_only_the_last_three_reasons_are_a_loss() -> None:
    """Issue 16, finding 6: a pin of a partition that has left the broker may be the only copy."""
    assert {reason for reason in DropReason if reason.is_loss} == {
        DropReason.PARTITION_GONE,
        DropReason.PINS_MAX_BYTES,
        DropReason.DISK_RESERVE,
    }


@pytest.mark.parametrize(
    ("start_offset", "expected"),
    [
        pytest.param(-1, False, id="nobody has said where the remote log starts"),
        pytest.param(49, False, id="the remote log start is within it"),
        pytest.param(50, True, id="wholly below the remote log start"),
    ],
)
def test_given_up(start_offset: int, expected: bool) -> None:
    assert is_given_up(pin_of(0, 50, max_timestamp_ms=1000), start_offset) is expected


MOVED = replace(local_partition(local_segments(0, 50)), log_dir="/logs2")


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        pytest.param(MOVED, True, id="the broker has it in another log dir"),
        pytest.param(local_partition(local_segments(0, 50)), False, id="the broker has it in the pin's log dir"),
        pytest.param(replace(local_partition(local_segments(50)), log_dir="/logs2"), False, id="it has it no more"),
        pytest.param(replace(local_partition(local_segments(0)), log_dir="/logs2"), False, id="not sealed there"),
        pytest.param(None, False, id="the partition is gone"),
    ],
)
def test_moved(local: LocalPartition | None, expected: bool) -> None:
    assert has_moved(pin_of(0, 50), local) is expected


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
        pytest.param(MOVED, True, id="finding 6: the partition has left the pin's log dir"),
        pytest.param(None, True, id="the partition's directory is gone"),
    ],
)
def test_alone(local: LocalPartition | None, expected: bool) -> None:
    pin = pin_of(0, 50)
    present = {} if local is None else {pin.owner: local}
    assert pins_alone([pin], present) == pins_alone([pin], present, {pin.owner}) == [pin] * expected


REBUILT = local_partition(local_segments(0, 40, 90, 140))


@pytest.mark.parametrize(
    ("pin", "is_alone", "is_there"),
    [
        pytest.param(pin_of(0, 40), False, True, id="it is the broker's file"),
        pytest.param(pin_of(0, 40, inode=7), True, True, id="another file of the same offsets"),
        pytest.param(pin_of(50, 100, inode=7), True, True, id="rolled elsewhere"),
        pytest.param(pin_of(100, 150, inode=7), True, False, id="not all of it is sealed yet"),
        pytest.param(pin_of(200, 250, inode=7), True, False, id="not fetched yet: no limit would see it otherwise"),
    ],
)
def test_of_a_log_that_was_built_anew_old_files_count(pin: Pin, is_alone: bool, is_there: bool) -> None:
    present = {pin.owner: REBUILT}
    assert pins_alone([pin], present, {pin.owner}) == [pin] * is_alone
    assert is_there_anew(pin, REBUILT) is is_there
    assert pins_alone([pin], present) == [], "no limit takes what a cleaner has rewritten from a picture"


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


def test_a_log_dir_whose_disk_does_not_answer_has_no_room() -> None:
    assert room_bytes({LOG_DIR: 200}, LOG_DIR, [disk(log_dirs=("/other",))], PinLimits()) == 0


def test_a_pin_on_a_disk_with_room_does_not_end_the_search_on_others() -> None:
    pins = [pin_of(0, 50, modified_ms=1), pin_of(50, 100, modified_ms=2, log_dir="/full")]
    assert dropped(pins, [disk(), disk(free=0, log_dirs=("/full",))], PinLimits()) == [(50, "disk_reserve")]


def test_no_pin_is_asked_about_while_nothing_must_go() -> None:
    def is_needless(pin: Pin) -> DropReason | None:
        raise AssertionError(pin)

    assert decide_room(PINS, [disk(free=100)], PinLimits(max_bytes=400), is_needless) == ()
