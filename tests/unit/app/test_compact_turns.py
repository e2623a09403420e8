"""When a compaction by command leaves the cleaner lanes their turn, and by whose clocks tombstones go (S-250, S-273)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import pytest

from tests.support.compacted_logs import LogSegment
from tests.support.manual_clock import ManualClock
from tests.unit.app.test_compact_run import NOTHING_LEFT, Beside, at_once, beside
from tests.unit.tasks.test_clean import puts, random_log
from tiersidecar.app.compact_turns import Turns
from tiersidecar.app.held_lease import HeldLease
from tiersidecar.app.repair_run import LEASE
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.lease import Lease, concerns_of
from tiersidecar.domain.seen_time import SeenTime
from tiersidecar.domain.states import RemoteLogSegmentState as State

__all__ = ["beside"]  # the fixture

DAY_S = 86_400
SETTLE_S = 30.0


async def another_partition(beside: Beside, *segments: LogSegment) -> TopicIdPartition:
    """Let the topic have a partition 1, with these segments."""
    world, first = beside.world, beside.world.partition.view
    second = replace(first, topic_id_partition=replace(first.topic_id_partition, partition=1))
    beside.broker.views = (first, second)
    beside.broker.last_stable_offsets[second.topic_id_partition] = beside.broker.end
    world.builder.partition = second.topic_id_partition
    await world.add(*segments)
    world.builder.partition = first.topic_id_partition
    return second.topic_id_partition


async def test_the_partition_that_it_has_come_to_is_named_and_the_next_and_each_is_waited_for_once(
    beside: Beside,
) -> None:
    world, first = beside.world, beside.world.owner
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2")))
    second = await another_partition(beside, puts(0, (b"c", b"1")))
    waited, during = list[str](), list[str]()

    async def wait() -> None:
        waited.append(world.state.leases[LEASE].concerns)

    async def look() -> None:
        during.append(world.state.leases[LEASE].concerns)

    at_once(beside, SETTLE_S, wait)
    done = await beside.compactor({"clean.finished": look}, settle_s=SETTLE_S).apply()
    assert [(one.owner.partition, one.left, one.cleaner_offset) for one in done] == [(0, "", 3), (1, "", 1)]
    both = concerns_of([first, second])
    assert waited == [both, concerns_of([second])], "no time has passed in this test: the second is waited for as long"
    assert set(during) == {both}


async def test_a_partition_with_nothing_to_clean_is_neither_named_nor_waited_for(beside: Beside) -> None:
    """Or a topic of a thousand partitions would take hours, whatever there is to do."""
    await another_partition(beside, puts(0, (b"c", b"1")))
    waited = list[str]()

    async def wait() -> None:
        waited.append(beside.world.state.leases[LEASE].concerns)

    at_once(beside, SETTLE_S, wait)
    done = await beside.compactor(settle_s=SETTLE_S).apply()
    assert [(one.owner.partition, one.stopped, one.left) for one in done] == [
        (0, NOTHING_LEFT, ""),
        (1, NOTHING_LEFT, ""),
    ]
    assert waited == [concerns_of([done[1].owner])]


async def test_one_that_failed_stays_named_for_what_it_has_sent_may_still_arrive(beside: Beside) -> None:
    world = beside.world
    await world.add(*random_log(1))
    second = await another_partition(beside, *random_log(1))
    waited = list[str]()

    async def wait() -> None:
        waited.append(world.state.leases[LEASE].concerns)

    async def away() -> None:
        raise MetadataNotReadyError(subject="the topic is away")

    at_once(beside, SETTLE_S, wait)
    with pytest.raises(MetadataNotReadyError):
        await beside.compactor({"clean.rewritten": away}, settle_s=SETTLE_S).apply()
    owners = [world.owner, second]
    assert waited == [concerns_of(owners), concerns_of(owners)]


async def begin_later(beside: Beside, *, retention_ms: int) -> None:
    """Add five segments that a round rewrites; the broker's log begins at the last one."""
    beside.world.configure(cleanup_policy="compact,delete", delete_retention_ms=str(retention_ms))
    await beside.world.add(*(puts(2 * n, (b"a-%d" % n, None), (b"b-%d" % n, b"1")) for n in range(5)))
    beside.broker.log_starts[beside.world.owner] = 8


async def test_where_the_brokers_log_begins_later_chunks_are_the_lanes(beside: Beside) -> None:
    await begin_later(beside, retention_ms=DAY_S * 1000)
    beside.world.configure(segment_bytes="14")
    done = await beside.compact()
    assert (done.left, done.cleaner_offset) == ("", 10)
    assert len(done.rounds) > 1
    beside.broker.log_starts.clear()
    await beside.world.add(*(puts(10 + 2 * n, (b"c-%d" % n, None), (b"d-%d" % n, b"1")) for n in range(5)))
    done = await beside.compact()
    assert (done.left, done.cleaner_offset, len(done.rounds)) == ("", 20, 1), "elsewhere one is enough"


async def test_where_the_brokers_log_begins_later_a_round_leaves_the_lane_its_time(beside: Beside) -> None:
    beside.world.builder.event_timestamp_ms = beside.world.clock.now_ms()
    await begin_later(beside, retention_ms=DAY_S * 1000)
    world = beside.world
    swapped = 0

    async def take_long() -> None:
        nonlocal swapped
        swapped += 1
        world.clock.jump(DAY_S / 8 + 1)  # of a half of half a day

    done = await beside.compact({"clean.trashed": take_long})
    assert "the sidecar's cleaner, which waits meanwhile, goes on from here" in done.left
    assert (swapped, done.cleaner_offset) == (2, 4)
    assert (await world.clean()).cleaner_offset == 10


async def test_what_is_late_already_is_cleaned_to_its_end(beside: Beside) -> None:
    await begin_later(beside, retention_ms=1000)
    beside.world.clock.jump(DAY_S)

    async def take_long() -> None:
        beside.world.clock.jump(DAY_S / 8)

    done = await beside.compact({"clean.trashed": take_long})
    assert (done.left, done.cleaner_offset) == ("", 10)


def say_that_a_sidecar_has_seen(beside: Beside, until_ms: int) -> None:
    beside.world.state.leases["1"] = Lease(
        name="1",
        cluster_id="scripted",
        broker_id=1,
        incarnation="sidecar",
        term=1,
        host="broker-1",
        pid=1,
        version="1",
        renewed_ms=until_ms,
        duration_ms=60_000,
        seen=SeenTime(until_ms=until_ms),
    )


@pytest.mark.parametrize(
    ("seen_later_s", "stays"),
    [
        pytest.param(5 * DAY_S, True, id="by the sidecars' clocks, which are five days ahead of this machine's"),
        pytest.param(0, False, id="by this machine's clock, which is right"),
    ],
)
async def test_tombstones_stay_for_their_whole_time(beside: Beside, seen_later_s: int, stays: bool) -> None:
    world = beside.world
    await world.add(puts(0, (b"a", b"1")), puts(1, (b"a", None)), puts(2, (b"b", b"1")))
    say_that_a_sidecar_has_seen(beside, world.clock.now_ms() + seen_later_s * 1000)
    assert (await beside.compact()).left == ""
    world.clock.jump(5 * DAY_S + 60)
    await world.add(puts(3, (b"c", b"1")))
    assert (await world.clean()).cleaner_offset == 4
    assert (b"a" in await world.table_read()) is stays


@pytest.mark.parametrize(
    ("seen_earlier_s", "stays"),
    [
        pytest.param(
            5 * DAY_S, True, id="while the sidecars have not seen their time pass, whatever this machine says"
        ),
        pytest.param(0, False, id="no longer where the sidecars have seen it pass"),
    ],
)
async def test_tombstones_of_the_lane_stay(beside: Beside, seen_earlier_s: int, stays: bool) -> None:
    world = beside.world
    world.configure(delete_retention_ms=str(DAY_S * 1000))
    await world.add(puts(0, (b"a", b"1")), puts(1, (b"a", None)), puts(2, (b"b", b"1")))
    assert (await world.clean()).cleaner_offset == 3
    world.clock.jump(5 * DAY_S)
    say_that_a_sidecar_has_seen(beside, world.clock.now_ms() - seen_earlier_s * 1000)
    await world.add(puts(3, (b"c", b"1")))
    done = await beside.compact()
    assert (done.left, done.cleaner_offset) == ("", 4)
    assert (b"a" in await world.table_read()) is stays


@pytest.mark.parametrize("ahead_s", [5 * DAY_S, 0], ids=["this machine is five days ahead", "its clock is right"])
async def test_records_stay_for_the_least_lag_by_the_sidecars_clocks(beside: Beside, ahead_s: int) -> None:
    world = beside.world
    world.configure(min_compaction_lag_ms=str(DAY_S * 1000))
    await world.add(puts(0, (b"a", b"1")), puts(1, (b"a", b"2")))
    say_that_a_sidecar_has_seen(beside, world.clock.now_ms())
    world.clock.jump(ahead_s)
    done = await beside.compact()
    why = f"{NOTHING_LEFT}: the one from offset 0 on has records within min.compaction.lag.ms"
    assert (done.cleaner_offset, done.stopped) == (None, why)


@pytest.mark.parametrize("ahead_s", [5 * DAY_S, -5 * DAY_S], ids=["five days ahead", "five days behind"])
async def test_the_lanes_time_is_that_of_the_sidecars_clocks(beside: Beside, ahead_s: int) -> None:
    world = beside.world
    world.builder.event_timestamp_ms = world.clock.now_ms()
    await begin_later(beside, retention_ms=DAY_S * 1000)
    say_that_a_sidecar_has_seen(beside, world.clock.now_ms())
    world.clock.jump(ahead_s)

    async def take_long() -> None:
        world.clock.jump(DAY_S / 8 + 1)  # of a half of half a day

    done = await beside.compact({"clean.trashed": take_long})
    assert "the sidecar's cleaner, which waits meanwhile, goes on from here" in done.left
    assert done.cleaner_offset == 4


async def test_new_segments_are_no_older_than_the_sidecars_clocks(beside: Beside) -> None:
    """They would take one that is hours old, and not finished, for the rest of a copy that was given up, and delete it."""
    await beside.world.add(*random_log(1))
    seen_ms = beside.world.clock.now_ms() + DAY_S * 1000
    say_that_a_sidecar_has_seen(beside, seen_ms)
    begun = list[int]()

    async def look() -> None:
        begun.extend(one.event_timestamp_ms for one in beside.world.segments(State.COPY_SEGMENT_STARTED))

    assert (await beside.compact({"clean.started": look})).left == ""
    assert begun
    assert min(begun) >= seen_ms


async def test_a_round_on_a_machine_whose_wall_clock_stands_still_is_left_all_the_same(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiersidecar.tasks.clean.LONGEST_ROUND_MS", 600_000)
    await beside.world.add(*random_log(4, steps=60))

    async def take_long() -> None:
        await beside.world.clock.advance(601)
        beside.world.clock.jump(-601)

    assert "too long" in (await beside.compact({"clean.trashed": take_long})).left


class Naming:
    """Stands in for the lease: how many it has named at most, and since when it names each without a gap."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.most, self.since_s = clock, 0, dict[int, float]()

    async def concern(self, owners: Iterable[TopicIdPartition]) -> None:
        now_s = self.clock.monotonic_s()
        self.since_s = {one.partition: self.since_s.get(one.partition, now_s) for one in owners}
        self.most = max(self.most, len(self.since_s))


@pytest.mark.parametrize(
    ("each_s", "most_named", "within_s"),
    [
        pytest.param(0.5, 62, 250, id="quick ones: named as many ahead as take the time to settle"),
        pytest.param(3600, 2, 300 * 3600 + 31, id="slow ones: only the next one"),
    ],
)
async def test_of_many_partitions_the_wait_for_one_is_the_work_on_others(
    each_s: float, most_named: int, within_s: float
) -> None:
    """A topic of a thousand partitions would take hours of waits."""
    clock = ManualClock()
    lease = Naming(clock)
    owners = [TopicIdPartition(topic_id=Uuid(bytes(16)), topic="orders", partition=number) for number in range(300)]

    async def sleep(seconds: float) -> None:
        clock.stand_still(seconds)

    clock.sleep = sleep  # type: ignore[method-assign]
    began_s = clock.monotonic_s()
    turns = Turns(cast("HeldLease", lease), clock, SETTLE_S, lambda text: None)
    for place, owner in enumerate(owners):
        await turns.take_over(owner, [], owners[place + 1 :])
        assert clock.monotonic_s() - lease.since_s[owner.partition] >= SETTLE_S - 1e-6
        clock.stand_still(each_s)
    assert lease.most <= most_named
    assert clock.monotonic_s() - began_s <= within_s
