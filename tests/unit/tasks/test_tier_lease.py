"""One tier role per broker: who holds the lease, how long, and what is asked right before each act (finding 5 of issue 16)."""

from __future__ import annotations

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.scripted import MemoryStateLog
from tiersidecar.domain.errors import BrokerUnreachableError, LeaseLostError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.lease import Lease
from tiersidecar.ports.broker import ClusterDescription
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.tasks.tier_lease import Contender, TierLease

DURATION_S = 60


class Brokers:
    def __init__(self, *nodes: int) -> None:
        self.nodes = nodes

    async def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription(cluster_id="c", brokers={BrokerId(node): f"{node}:9092" for node in self.nodes})


class Topic(MemoryStateLog):
    away = False

    async def publish_lease(self, lease: Lease) -> Lease:
        if self.away:
            raise BrokerUnreachableError(address="kafka:9092", reason="connection refused")
        return await super().publish_lease(lease)


class Stage:
    """Sidecars of broker 1 on one topic and one clock."""

    def __init__(self) -> None:
        self.clock, self.topic, self.brokers = ManualClock(), Topic(), Brokers(1)

    def sidecar(
        self, instance: str, life: int = 1, *, node: int = 1, without_sidecar: tuple[int, ...] = ()
    ) -> TierLease:
        contender = Contender(
            cluster_id="c",
            broker_id=BrokerId(node),
            instance=instance,
            incarnation=f"{instance}/{life}",
            host=f"host-of-{instance}",
            pid=life,
            version="1",
            duration_ms=DURATION_S * 1000,
        )
        return TierLease(
            contender=contender,
            leases=self.topic,
            broker=self.brokers,
            without_sidecar=without_sidecar,
            clock=self.clock,
            telemetry=NoTelemetry(),
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
