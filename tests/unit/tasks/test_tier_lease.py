"""One tier role per broker: who holds the lease, how long, and what is asked right before each act (finding 5 of issue 16)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock, settle
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import MemoryStateLog
from tiersidecar.domain.errors import BrokerUnreachableError, LeaseLostError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.lease import Lease
from tiersidecar.domain.seen_time import SeenTime, UnseenTime
from tiersidecar.ports.broker import ClusterDescription
from tiersidecar.ports.metrics.process import TIER_LEASE_HELD
from tiersidecar.ports.seen_times import NoSeenTimes
from tiersidecar.ports.state_records import Leases
from tiersidecar.tasks.tier_lease import Contender, TierLease
from tiersidecar.tasks.trash_clock import TrashClock

DURATION_S = 60


class Brokers:
    def __init__(self, *nodes: int) -> None:
        self.nodes = nodes

    async def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription(cluster_id="c", brokers={BrokerId(node): f"{node}:9092" for node in self.nodes})


class Topic(MemoryStateLog):
    away = False

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Lease] = []

    async def publish_lease(self, lease: Lease) -> Lease:
        self.written.append(lease)
        if self.away:
            raise BrokerUnreachableError(address="kafka:9092", reason="connection refused")
        return await super().publish_lease(lease)


class Stage:
    """Sidecars of broker 1 on one topic and one clock."""

    def __init__(self) -> None:
        self.clock, self.topic, self.brokers = ManualClock(), Topic(), Brokers(1)
        self.telemetry = RecordedTelemetry()

    def new_clock(self) -> TrashClock:
        """Of a state.dir that tells nothing."""
        return TrashClock(clock=self.clock, times=NoSeenTimes(), known=None)

    def sidecar(
        self,
        instance: str,
        life: int = 1,
        *,
        node: int = 1,
        without_sidecar: tuple[int, ...] = (),
        duration_s: int = DURATION_S,
        leases: Leases | None = None,
        trash_clock: TrashClock | None = None,
    ) -> TierLease:
        contender = Contender(
            cluster_id="c",
            broker_id=BrokerId(node),
            instance=instance,
            incarnation=f"{instance}/{life}",
            host=f"host-of-{instance}",
            pid=life,
            version="1",
            duration_ms=duration_s * 1000,
            status_address=f"host-of-{instance}:8080",
        )
        return TierLease(
            contender=contender,
            leases=leases or self.topic,
            broker=self.brokers,
            without_sidecar=without_sidecar,
            clock=self.clock,
            trash_clock=trash_clock or self.new_clock(),
            telemetry=self.telemetry,
        )

    async def pass_time(self, seconds: float, *looking: TierLease) -> None:
        """Each of ``looking`` looks every 5 s."""
        for _ in range(int(seconds // 5)):
            await self.clock.advance(5)
            for one in looking:
                await one.look()


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_the_first_one_holds_it_and_the_second_one_stands_by_and_says_for_whom(stage: Stage) -> None:
    first, second = stage.sidecar("a"), stage.sidecar("b")
    await first.look()
    await stage.pass_time(10 * DURATION_S, first, second)
    first.require()
    assert "host-of-a" in second.reason_not_held
    with pytest.raises(LeaseLostError, match="standing by"):
        second.require()


async def test_nobody_holds_it_before_it_was_read_back(stage: Stage) -> None:
    assert stage.sidecar("a").reason_not_held


async def test_a_holder_that_stood_still_does_nothing_more_when_it_goes_on(stage: Stage) -> None:
    """SIGSTOP: the second one takes the role after the duration; the first one finds its lease over before it looks."""
    first, second = stage.sidecar("a"), stage.sidecar("b")
    await first.look()
    await second.look()
    await stage.pass_time(DURATION_S + 5, second)
    second.require()
    with pytest.raises(LeaseLostError):
        first.require()
    await first.look()
    assert not first.is_ours
    assert "host-of-b" in first.reason_not_held
    await stage.pass_time(10 * DURATION_S, first, second)
    second.require()


async def test_at_no_time_do_two_hold_it(stage: Stage) -> None:
    """However long the first one stands still, and whenever it goes on."""
    first, second = stage.sidecar("a"), stage.sidecar("b")
    await first.look()
    await second.look()
    for _ in range(3 * DURATION_S):
        await stage.clock.advance(1)
        await second.look()
        assert bool(first.reason_not_held) or bool(second.reason_not_held)


async def test_a_restart_with_the_same_state_dir_does_not_wait(stage: Stage) -> None:
    await stage.sidecar("a", 1).look()
    after = stage.sidecar("a", 2)
    await after.look()
    after.require()


async def test_a_lost_state_dir_waits_for_the_duration(stage: Stage) -> None:
    await stage.sidecar("a", 1).look()
    after = stage.sidecar("anew", 1)
    await stage.pass_time(DURATION_S - 5, after)
    assert after.reason_not_held
    await stage.pass_time(10, after)
    after.require()


async def test_of_two_that_claim_at_once_the_first_in_the_topic_wins(stage: Stage) -> None:
    first, second = stage.sidecar("a"), stage.sidecar("b")
    await stage.topic.publish_lease(first._contender.claim(1, 0))
    await second._publish(second._contender.claim(1, 0))
    assert second.reason_not_held
    assert not second.is_ours


async def test_while_the_topic_is_away_it_counts_until_it_is_over_and_again_after_the_next_renewal(
    stage: Stage,
) -> None:
    lease = stage.sidecar("a")
    await lease.look()
    stage.topic.away = True
    await stage.clock.advance(DURATION_S * 0.8)
    with pytest.raises(BrokerUnreachableError):
        await lease.look()
    lease.require()
    await stage.clock.advance(DURATION_S * 0.1)
    assert "not been renewed" in lease.reason_not_held
    assert lease.is_ours, "nobody else took it: the lanes go on as soon as the topic is back"
    stage.topic.away = False
    await lease.look()
    lease.require()


async def test_nothing_remote_is_deleted_before_every_live_broker_has_a_sidecar_of_this_version(stage: Stage) -> None:
    stage.brokers.nodes = (1, 2, 3)
    first = stage.sidecar("a", without_sidecar=(3,))
    assert first.remote_delete_blocker
    await first.look()
    assert "brokers 2 have no sidecar of this version" in first.remote_delete_blocker
    await stage.sidecar("b", node=2).look()
    await stage.pass_time(DURATION_S, first)
    assert first.remote_delete_blocker == ""


async def test_who_is_to_stop_says_so_and_renews_as_one_that_does(stage: Stage) -> None:
    lease = stage.sidecar("a")
    await lease.look()
    await lease.announce_stop()
    assert [one.stopping for one in stage.topic.written] == [False, True]
    assert lease.reason_not_held == "", "it works on for a moment"
    await stage.pass_time(DURATION_S / 4, lease)
    await lease.give_back()
    assert [one.stopping for one in stage.topic.written] == [False, True, True, True, False]
    assert stage.topic.written[-1].released
    successor = stage.sidecar("b")
    await successor.look()
    assert not stage.topic.written[-1].stopping


async def test_who_stands_by_announces_nothing(stage: Stage) -> None:
    await stage.sidecar("a").look()
    waiting = stage.sidecar("b")
    await waiting.look()
    await waiting.announce_stop()
    assert len(stage.topic.written) == 1


async def test_a_claim_says_who_holds_it_and_a_renewal_that_it_is_one(stage: Stage) -> None:
    lease = stage.sidecar("a", 7)
    await lease.look()
    claimed_ms = stage.clock.now_ms()
    claim = Lease(
        name="1",
        cluster_id="c",
        broker_id=1,
        incarnation="a/7",
        term=1,
        host="host-of-a",
        pid=7,
        version="1",
        renewed_ms=claimed_ms,
        duration_ms=DURATION_S * 1000,
        decides_proposals=True,
        obeys_pauses=True,
        status_address="host-of-a:8080",
        seen=SeenTime(until_ms=claimed_ms, unseen=(UnseenTime(from_ms=0, to_ms=claimed_ms),)),
    )
    await stage.pass_time(DURATION_S / 4, lease)
    renewed_ms = claimed_ms + DURATION_S * 250
    assert claim.seen is not None
    renewal = replace(claim, renewal=True, renewed_ms=renewed_ms, seen=replace(claim.seen, until_ms=renewed_ms))
    assert stage.topic.written == [claim, renewal]


@pytest.mark.parametrize(
    ("passed_s", "renewals"),
    [
        pytest.param(DURATION_S / 4 - 1, 0, id="not before a quarter of the duration is over"),
        pytest.param(DURATION_S / 4, 1, id="after a quarter of it"),
    ],
)
async def test_a_holder_renews_four_times_in_the_duration(stage: Stage, passed_s: float, renewals: int) -> None:
    lease = stage.sidecar("a")
    await lease.look()
    await stage.clock.advance(passed_s)
    await lease.look()
    assert sum(one.renewal for one in stage.topic.written) == renewals


async def test_each_holder_has_a_term_of_its_own(stage: Stage) -> None:
    for life in (1, 2, 3):
        await stage.sidecar("a", life).look()
    assert [one.holder for one in stage.topic.written] == [(1, "a/1"), (2, "a/2"), (3, "a/3")]


@pytest.mark.parametrize(
    ("passed_s", "slept_s", "is_held"),
    [
        pytest.param(DURATION_S * 5 / 6 - 0.001, 0, True, id="until five sixths of the duration have passed"),
        pytest.param(DURATION_S * 5 / 6, 0, False, id="and no longer"),
        pytest.param(0, DURATION_S * 5 / 6 - 0.001, True, id="by the wall clock as well"),
        pytest.param(0, DURATION_S * 5 / 6, False, id="a machine that slept, whose monotonic clock stood still"),
        pytest.param(DURATION_S * 5 / 6, -DURATION_S, False, id="a wall clock that was set back prolongs nothing"),
    ],
)
async def test_how_long_it_counts_without_a_renewal(
    stage: Stage, passed_s: float, slept_s: float, is_held: bool
) -> None:
    lease = stage.sidecar("a")
    await lease.look()
    await stage.clock.advance(passed_s)
    stage.clock.jump(slept_s)
    assert (lease.reason_not_held == "") is is_held
    assert is_held or lease.reason_not_held == "the lease of broker 1 has not been renewed for 50 s"


@pytest.mark.parametrize(
    ("theirs_s", "ours_s", "waits_s"),
    [
        pytest.param(90, 60, 90, id="the holder's duration, where that is longer"),
        pytest.param(30, 60, 60, id="its own, where that is"),
    ],
)
async def test_a_contender_waits_for_the_longer_duration(
    stage: Stage, theirs_s: int, ours_s: int, waits_s: int
) -> None:
    await stage.sidecar("a", duration_s=theirs_s).look()
    second = stage.sidecar("b", duration_s=ours_s)
    await second.look()
    await stage.clock.advance(waits_s - 0.01)
    await second.look()
    assert not second.is_ours
    await stage.clock.advance(0.01)
    await second.look()
    assert second.is_ours


async def test_what_the_holder_released_is_free_at_once(stage: Stage) -> None:
    await stage.sidecar("a").look()
    stage.topic.leases["1"] = replace(stage.topic.leases["1"], released=True)
    second = stage.sidecar("b")
    await second.look()
    second.require()


async def test_what_the_holder_gives_back_is_free_at_once_and_its_own_no_more(stage: Stage) -> None:
    first, second = stage.sidecar("a"), stage.sidecar("b")
    await first.look()
    await second.look()
    assert not second.is_ours
    await first.give_back()
    assert (stage.topic.leases["1"].released, stage.topic.leases["1"].term) == (True, 1)
    assert first.reason_not_held == "the lease of broker 1 has been given back"
    await second.look()
    second.require()
    assert stage.topic.leases["1"].term == 2


async def test_it_is_not_held_any_more_before_the_release_is_on_its_way(stage: Stage) -> None:
    first, held = stage.sidecar("a"), list[bool]()
    await first.look()
    publish = stage.topic.publish_lease

    async def watched(lease: Lease) -> Lease:
        if lease.released:
            held.append(first.is_ours)
        return await publish(lease)

    stage.topic.publish_lease = watched  # type: ignore[method-assign]
    await first.give_back()
    assert held == [False]


async def test_a_release_follows_a_renewal_so_that_nobody_claims_it_meanwhile(stage: Stage) -> None:
    first = stage.sidecar("a")
    await first.look()
    await stage.clock.advance(DURATION_S / 2)
    stage.topic.written.clear()
    await first.give_back()
    assert [(one.renewal, one.released) for one in stage.topic.written] == [(True, False), (True, True)]
    assert stage.topic.written[1].seen == stage.topic.written[0].seen


@pytest.mark.parametrize(
    "state", ["stood still", "another claim is read", "never held", "another claim is not read yet"]
)
async def test_who_may_not_hold_it_any_more_gives_nothing_back(stage: Stage, state: str) -> None:
    """As the last record of the key, once compaction has taken the other's claim, a release would let a third one in."""
    first, second = stage.sidecar("a"), stage.sidecar("b")
    await first.look()
    match state:
        case "stood still":
            await second.look()
            await stage.clock.advance(DURATION_S + 1)
            await second.look()
            assert second.is_ours
        case "another claim is read":
            await stage.topic.publish_lease(second._contender.claim(2, stage.clock.now_ms()))
        case "another claim is not read yet":
            publish = stage.topic.publish_lease

            async def behind(lease: Lease) -> Lease:
                await publish(second._contender.claim(2, stage.clock.now_ms()))
                return await publish(lease)

            stage.topic.publish_lease = behind  # type: ignore[method-assign]
        case _:
            first = second
    stage.topic.written.clear()
    await first.give_back()
    assert not any(one.released for one in stage.topic.written)
    with pytest.raises(LeaseLostError):
        first.require()


@pytest.mark.parametrize("away_for", ["renewal", "release"])
async def test_where_the_topic_is_away_it_runs_out_by_itself(stage: Stage, away_for: str) -> None:
    first, second = stage.sidecar("a"), stage.sidecar("b")
    await first.look()
    publish, fails = stage.topic.publish_lease, []

    async def failing(lease: Lease) -> Lease:
        if lease.released or away_for == "renewal":
            fails.append(lease)
            raise BrokerUnreachableError(address="kafka:9092", reason="connection refused")
        return await publish(lease)

    stage.topic.publish_lease = failing  # type: ignore[method-assign]
    with capture_logs() as logged:
        await first.give_back()
    assert len(fails) == 1
    assert [one["event"] for one in logged] == ["tier_lease.not_given_back"]
    stage.topic.publish_lease = publish  # type: ignore[method-assign]
    await stage.pass_time(DURATION_S - 5, second)
    assert not second.is_ours
    await stage.pass_time(10, second)
    assert second.is_ours


async def test_a_renewal_that_comes_too_late_tells_that_another_holds_it(stage: Stage) -> None:
    """The other one's claim lies before it in the topic, and had not been read yet."""
    first, second = stage.sidecar("a"), stage.sidecar("b")
    await first.look()
    await stage.topic.publish_lease(second._contender.claim(2, stage.clock.now_ms()))
    await first._publish(replace(first._contender.claim(1, stage.clock.now_ms()), renewal=True))
    assert not first.is_ours
    assert "standing by: process 1 on host-of-b is the sidecar of broker 1 (incarnation b/1)" in first.reason_not_held


async def test_who_waits_for_the_role_goes_on_as_soon_as_it_is_won_or_lost(stage: Stage) -> None:
    first = stage.sidecar("a")
    won = asyncio.create_task(first.wait_while(ours=False))
    await settle()
    assert not won.done()
    await first.look()
    await settle()
    assert won.done()
    lost = asyncio.create_task(first.wait_while(ours=True))
    await settle()
    assert not lost.done()
    await stage.topic.publish_lease(stage.sidecar("b")._contender.claim(2, stage.clock.now_ms()))
    await first.look()
    await settle()
    assert lost.done()


async def test_it_is_kept_for_as_long_as_the_process_lives_and_measured(stage: Stage) -> None:
    lease = stage.sidecar("a")
    keeping = asyncio.create_task(lease.keep())
    await stage.clock.advance(10 * DURATION_S)
    lease.require()
    assert stage.telemetry.value(TIER_LEASE_HELD) == 1
    await end(keeping)


async def test_a_contender_looks_twice_in_a_second(stage: Stage) -> None:
    await stage.sidecar("a").look()
    contender = stage.sidecar("b")
    keeping = asyncio.create_task(contender.keep())
    await stage.clock.advance(DURATION_S - 0.1)
    assert stage.telemetry.value(TIER_LEASE_HELD) == 0
    await stage.clock.advance(0.6)
    assert stage.telemetry.value(TIER_LEASE_HELD) == 1
    await end(keeping)


async def test_a_holder_looks_twelve_times_in_the_duration(stage: Stage) -> None:
    lease = stage.sidecar("a")
    keeping = asyncio.create_task(lease.keep())
    await stage.clock.advance(DURATION_S / 4 + DURATION_S / 12)
    assert len(stage.topic.written) == 2
    (renewed,) = (one for one in stage.topic.written if one.renewal)
    first_look_ms = stage.topic.written[0].renewed_ms + DURATION_S * 250
    assert renewed.renewed_ms == first_look_ms
    await end(keeping)


async def test_a_topic_that_is_away_is_told_once_and_again_the_next_time(stage: Stage) -> None:
    lease = stage.sidecar("a")
    stage.topic.away = True
    with capture_logs() as told:
        keeping = asyncio.create_task(lease.keep())
        await stage.clock.advance(10)
        assert [one["event"] for one in told if one["log_level"] == "warning"] == ["tier_lease.retry"]
        stage.topic.away = False
        await stage.clock.advance(10)
        lease.require()
        stage.topic.away = True
        await stage.clock.advance(DURATION_S)
        assert [one["event"] for one in told if one["log_level"] == "warning"] == ["tier_lease.retry"] * 2
        stage.topic.away = False
        await stage.clock.advance(10)
        lease.require()
    await end(keeping)


async def test_a_new_state_dir_goes_on_from_what_the_lease_tells_was_seen(stage: Stage) -> None:
    first = stage.sidecar("a")
    await first.look()
    begun_ms = stage.clock.now_ms()
    await stage.pass_time(10 * DURATION_S, first)
    trash_clock = stage.new_clock()
    await stage.pass_time(DURATION_S + 5, stage.sidecar("anew", trash_clock=trash_clock))
    assert trash_clock.now().unseen == (UnseenTime(from_ms=0, to_ms=begun_ms),), (
        "and the first one from its own start on"
    )


@pytest.mark.parametrize("of", ["another cluster", "another broker"])
async def test_what_was_seen_beside_another_broker_does_not_count(stage: Stage, of: str) -> None:
    first = stage.sidecar("a")
    await first.look()
    lease = stage.topic.lease("1")
    assert lease is not None
    other = (
        replace(lease, released=True, cluster_id="d")
        if of == "another cluster"
        else replace(lease, released=True, broker_id=2)
    )
    await stage.topic.publish_lease(other)
    await stage.clock.advance(DURATION_S)
    trash_clock = stage.new_clock()
    second = stage.sidecar("b", trash_clock=trash_clock)
    await second.look()
    second.require()
    assert trash_clock.now().unseen == (UnseenTime(from_ms=0, to_ms=stage.clock.now_ms()),)


async def end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class ReadLate:
    """One process's view of the topic: what others write comes only when it reads to the end."""

    def __init__(self, topic: Topic) -> None:
        self._topic, self._read = topic, topic.lease("1")

    def lease(self, name: str) -> Lease | None:
        return self._read

    async def catch_up(self) -> None:
        self._read = self._topic.lease("1")

    async def publish_lease(self, lease: Lease) -> Lease:
        self._read = await self._topic.publish_lease(lease)
        return self._read


async def test_a_contender_that_heard_nothing_reads_to_the_end_before_it_takes_the_silence_for_one(
    stage: Stage,
) -> None:
    """It stood still (SIGSTOP), or was cut off: the holder has renewed all the time."""
    first = stage.sidecar("a")
    await first.look()
    deaf = stage.sidecar("b", leases=ReadLate(stage.topic))
    await deaf.look()
    await stage.pass_time(2 * DURATION_S, first)
    await deaf.look()
    first.require()
    assert "host-of-a" in deaf.reason_not_held
    await stage.pass_time(DURATION_S)  # and now nobody renews it
    await deaf.look()
    deaf.require()


async def test_a_holder_acts_no_more_as_soon_as_another_claim_is_read(stage: Stage) -> None:
    """Not only when it looks next, five seconds later."""
    first = stage.sidecar("a")
    await first.look()
    await stage.topic.publish_lease(replace(stage.topic.written[0], term=2, incarnation="b/1", host="host-of-b"))
    with pytest.raises(LeaseLostError, match="host-of-b"):
        first.require()
