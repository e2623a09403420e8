"""The copy quota: back-pressure by whole segments, in the order of coming, apart from reads
(S-046, S-161, S-164, S-165, S-168).
"""

from __future__ import annotations

import asyncio

from tests.support.manual_clock import ManualClock, settle
from tests.support.recorded_telemetry import RecordedTelemetry
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.read_path import ConfiguredFetchQuota
from tiersidecar.decide.quota import RateQuota
from tiersidecar.ports.metrics.copying import COPY_THROTTLE_SECONDS
from tiersidecar.tasks.copy_admission import LIVE, CopyQuota, CopySlots


async def test_a_segment_is_charged_whole_and_the_next_ones_wait_in_their_order() -> None:
    """T-27, T-28."""
    clock, admitted = ManualClock(), list[str]()
    telemetry = RecordedTelemetry()
    quota = CopyQuota(quota=RateQuota(bytes_per_s=100), clock=clock, telemetry=telemetry)

    async def copy(name: str, size_bytes: int) -> None:
        await quota.admit(size_bytes)
        admitted.append(name)

    copies = [asyncio.create_task(copy(name, 500)) for name in ("first", "second", "third")]
    await settle()
    assert admitted == ["first"], "a quota that nothing was charged to admits any size"
    await clock.advance(4.9)
    assert admitted == ["first"]
    await clock.advance(1.2)
    assert admitted == ["first", "second"]
    await clock.advance(6)
    assert admitted == ["first", "second", "third"]
    await asyncio.gather(*copies)
    waited_s = telemetry.value(COPY_THROTTLE_SECONDS)
    assert waited_s is not None
    assert 10 <= waited_s <= 12, "S-227: for two segments of five seconds each"


async def test_a_higher_rate_is_noticed_within_a_second() -> None:
    clock, rate = ManualClock(), RateQuota(bytes_per_s=1)
    quota = CopyQuota(quota=rate, clock=clock)
    await quota.admit(1000)
    waiting = asyncio.create_task(quota.admit(1))
    await clock.advance(2)
    assert not waiting.done()
    rate.bytes_per_s = 10_000
    await clock.advance(1)
    assert waiting.done()


async def test_one_who_stops_waiting_holds_up_nobody() -> None:
    """T-29."""
    clock = ManualClock()
    quota = CopyQuota(quota=RateQuota(bytes_per_s=100), clock=clock)
    await quota.admit(500)
    gone, next_one = asyncio.create_task(quota.admit(500)), asyncio.create_task(quota.admit(1))
    await settle()
    gone.cancel()
    await clock.advance(6)
    assert next_one.done()


async def test_copying_uses_up_nothing_of_what_reads_may_have() -> None:
    clock = ManualClock()
    copies, reads = RateQuota(bytes_per_s=100), RateQuota(bytes_per_s=100)
    await CopyQuota(quota=copies, clock=clock).admit(10_000)
    assert ConfiguredFetchQuota(reads, clock).throttle_s() == 0
    assert copies.throttle_s(clock.monotonic_s()) > 0


async def copy_for(seconds: int, *, quota_bytes_per_s: float, rate_bytes_per_s: int) -> list[int]:
    """Bytes that go out in each second, by six copies at once of segments of 500 bytes, in slices of 25."""
    clock = ManualClock()
    quota, pace = (
        CopyQuota(quota=RateQuota(bytes_per_s=quota_bytes_per_s), clock=clock),
        UploadPace(rate_bytes_per_s, clock),
    )
    slots, sent = CopySlots(6), [0] * seconds

    async def copy_on() -> None:
        while True:
            async with slots.taking(LIVE):
                await quota.admit(500)
                left = 500
                while left:
                    count = await pace.grant(min(left, 25))
                    left -= count
                    second = int(clock.monotonic_s() - began_s)
                    if second < seconds:
                        sent[second] += count

    began_s = clock.monotonic_s()
    copies = [asyncio.create_task(copy_on()) for _ in range(6)]
    for _ in range(seconds * 20):
        await clock.advance(0.05)
    for copy in copies:
        copy.cancel()
    await asyncio.gather(*copies, return_exceptions=True)
    return sent


async def test_a_quota_of_twice_the_upload_rate_leaves_the_pace_to_the_rate() -> None:
    """S-170: the coarse limit, by segments, stops pile-ups; the fine one, by slices, makes the steady stream."""
    layered = (await copy_for(60, quota_bytes_per_s=200, rate_bytes_per_s=100))[30:]
    assert max(layered) - min(layered) <= 25, "one slice more or less"
    assert abs(sum(layered) / 30 - 100) <= 1
    alone = (await copy_for(60, quota_bytes_per_s=100, rate_bytes_per_s=1_000_000))[30:]
    assert max(alone) >= 500, "whole segments at once, and then nothing"
    assert min(alone) == 0


async def test_who_comes_while_another_waits_queues_behind_it_though_there_is_room_by_then() -> None:
    """A rate that was raised is noticed each second: a small segment that comes in between must not be let in first, or one hot
    partition starves the others."""
    clock, rate, admitted = ManualClock(), RateQuota(bytes_per_s=1), list[str]()
    quota = CopyQuota(quota=rate, clock=clock)
    await quota.admit(1000)

    async def copy(name: str) -> None:
        await quota.admit(1)
        admitted.append(name)

    first = asyncio.create_task(copy("first"))
    await clock.advance(2.5)
    rate.bytes_per_s = 1_000_000
    second = asyncio.create_task(copy("second"))
    await settle()
    assert admitted == [], "the one that waits looks again at the full second"
    await clock.advance(1)
    await asyncio.gather(first, second)
    assert admitted == ["first", "second"]
