"""Ids from the system are such as Kafka would hand out."""

from __future__ import annotations

from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.domain.ids import is_acceptable_random_uuid


def test_uuids_are_version_4_and_never_begin_with_a_dash() -> None:
    ids = [SystemIds().random_uuid() for _ in range(2000)]  # one in 64 would begin with a dash
    assert len(set(ids)) == 2000
    assert all(is_acceptable_random_uuid(uuid) and uuid[6] >> 4 == 4 for uuid in ids)


def test_random_numbers_and_bytes_are_as_asked() -> None:
    assert len(SystemIds().random_bytes(32)) == 32
    assert all(0 <= SystemIds().random() < 1 for _ in range(100))


def test_the_monotonic_clock_does_not_go_back() -> None:
    readings = [SystemClock().monotonic_s() for _ in range(100)]
    assert readings == sorted(readings)


async def test_the_wall_clock_counts_milliseconds() -> None:
    before = SystemClock().now_ms()
    await SystemClock().sleep(0)
    assert 1_600_000_000_000 < before <= SystemClock().now_ms() < 10_000_000_000_000
