"""A lease that a command holds, and what it writes at its end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.scripted import MemoryStateLog
from tiersidecar.app.held_lease import HeldLease, kept_renewed
from tiersidecar.domain.errors import LeaseHeldError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.lease import Lease, concerns_of

CLAIM = Lease(
    name="repair",
    cluster_id="c",
    broker_id=-1,
    incarnation="a",
    term=1,
    host="h",
    pid=1,
    version="1",
    renewed_ms=0,
    duration_ms=60_000,
)


@pytest.mark.parametrize(("passed_s", "released"), [(54, True), (55, False), (600, False)])
async def test_it_is_released_only_while_nobody_else_can_have_claimed_it(passed_s: float, released: bool) -> None:
    clock, topic = ManualClock(), MemoryStateLog()
    await topic.publish_lease(CLAIM)
    held = HeldLease(topic, clock, CLAIM, sent_s=clock.monotonic_s())
    await clock.advance(passed_s)
    await held.release()
    assert topic.leases["repair"].released is released


async def test_it_is_renewed_for_as_long_as_what_it_is_held_for_lasts() -> None:
    clock, topic = ManualClock(), MemoryStateLog()
    await topic.publish_lease(CLAIM)
    held = HeldLease(topic, clock, CLAIM, sent_s=clock.monotonic_s())
    async with kept_renewed(held, clock):
        for _ in range(60):
            await clock.advance(10)
        held.require()
        assert topic.leases["repair"].renewal
    await clock.advance(60)
    with pytest.raises(LeaseHeldError):
        held.require()


async def test_one_that_another_process_has_taken_is_not_renewed_any_more() -> None:
    clock, topic = ManualClock(), MemoryStateLog()
    await topic.publish_lease(CLAIM)
    held = HeldLease(topic, clock, CLAIM, sent_s=clock.monotonic_s())
    async with kept_renewed(held, clock):
        topic.leases["repair"] = taken = replace(CLAIM, incarnation="another", term=2)
        for _ in range(7):
            await clock.advance(10)
        with pytest.raises(LeaseHeldError):
            held.require()
    assert topic.leases["repair"] == taken


async def test_once_another_process_was_seen_to_have_it_nothing_more_is_done_by_it() -> None:
    """By the time alone it would hold for most of a minute more."""
    clock, topic = ManualClock(), MemoryStateLog()
    await topic.publish_lease(CLAIM)
    held = HeldLease(topic, clock, CLAIM, sent_s=clock.monotonic_s())
    held.require()
    topic.leases["repair"] = taken = replace(CLAIM, incarnation="another", term=2, pid=77)
    with pytest.raises(LeaseHeldError):
        await held.renew_now()
    with pytest.raises(LeaseHeldError, match="process 77"):
        held.require()
    assert held.left_ms <= 0
    await held.release()
    assert topic.leases["repair"] == taken


async def test_one_that_ran_out_while_the_process_was_stopped_is_not_renewed_though_nobody_has_claimed_it() -> None:
    """Sidecars claim nothing: they only wait while it lasts, and have begun meanwhile."""
    clock, topic = ManualClock(), MemoryStateLog()
    await topic.publish_lease(CLAIM)
    held = HeldLease(topic, clock, CLAIM, sent_s=clock.monotonic_s())
    async with kept_renewed(held, clock):
        clock.stand_still(70)
        with pytest.raises(LeaseHeldError):
            await held.renew_now()
        await clock.advance(10)
        with pytest.raises(LeaseHeldError):
            held.require()
    assert topic.leases["repair"] == CLAIM


async def test_a_renewal_that_is_written_after_it_has_run_out_renews_nothing() -> None:
    """The process was stopped, or the topic was away, between its decision to renew it and the record."""
    clock = ManualClock()

    class StoppedTopic(MemoryStateLog):
        async def publish_lease(self, lease: Lease) -> Lease:
            clock.stand_still(70)
            return await super().publish_lease(lease)

    held = HeldLease(StoppedTopic(), clock, CLAIM, sent_s=clock.monotonic_s())
    with pytest.raises(LeaseHeldError):
        await held.renew_now()
    with pytest.raises(LeaseHeldError):
        held.require()


OWNER = TopicIdPartition(topic_id=Uuid(bytes(15) + b"7"), topic="orders", partition=3)


class SlowTopic(MemoryStateLog):
    """Takes its time to write the first record."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on, self.asked = asyncio.Event(), 0

    async def publish_lease(self, lease: Lease) -> Lease:
        self.asked += 1
        if self.asked == 1:
            await self.go_on.wait()
        return await super().publish_lease(lease)


async def test_the_partitions_that_it_names_stay_named_when_it_is_renewed() -> None:
    clock, topic = ManualClock(), MemoryStateLog()
    held = HeldLease(topic, clock, CLAIM, sent_s=clock.monotonic_s())
    await held.concern([OWNER])
    await held.renew_now()
    assert topic.leases["repair"].concerns == concerns_of([OWNER])


async def test_a_renewal_that_is_under_way_does_not_come_after_what_names_other_partitions() -> None:
    """It would let the cleaner of the partition that the command has come to go on."""
    clock, topic = ManualClock(), SlowTopic()
    held = HeldLease(topic, clock, replace(CLAIM, concerns=concerns_of([OWNER])), sent_s=clock.monotonic_s())
    renewing = asyncio.create_task(held.renew_now())
    naming = asyncio.create_task(held.concern([replace(OWNER, partition=4)]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert topic.asked == 1
    topic.go_on.set()
    await asyncio.gather(renewing, naming)
    assert topic.leases["repair"].concerns == concerns_of([replace(OWNER, partition=4)])
