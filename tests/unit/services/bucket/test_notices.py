"""Segments that the source's events tell of are looked for at once, and again where the bucket lags behind (issue 21)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from tests.support.manual_clock import ManualClock, settle
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.domain.errors import BrokerUnreachableError, StoreError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.ports.bucket_events import FinishedSegment
from tiersidecar.ports.metrics.bucket import BUCKET_EVENTS_FOLLOWED, BUCKET_SERVE_DELAY_SECONDS
from tiersidecar.services.bucket.notices import BucketNotices

ONE, TWO = Uuid(b"segment-id-one.."), Uuid(b"segment-id-two..")


class Source:
    """Gives each round in turn; an error is raised, and asked for again it goes on."""

    def __init__(self, *rounds: Sequence[FinishedSegment] | BrokerUnreachableError) -> None:
        self.rounds = list(rounds)

    async def finished(self) -> AsyncGenerator[Sequence[FinishedSegment], None]:
        while self.rounds:
            one = self.rounds.pop(0)
            if isinstance(one, BrokerUnreachableError):
                raise one
            yield one
        await asyncio.get_running_loop().create_future()


class Follower:
    """A bucket that shows segments from some time on."""

    def __init__(self) -> None:
        self.there: dict[tuple[TopicIdPartition, int | None], set[Uuid]] = {}
        self.asked: list[int | None] = []
        self.error: StoreError | None = None

    async def look_at(self, partition: TopicIdPartition, start_offset: int | None) -> set[Uuid]:
        self.asked.append(start_offset)
        if self.error is not None:
            raise self.error
        return self.there.get((partition, start_offset), set())


class World:
    def __init__(self, *rounds: Sequence[FinishedSegment] | BrokerUnreachableError) -> None:
        self.clock, self.telemetry, self.follower = ManualClock(), RecordedTelemetry(), Follower()
        self.notices = BucketNotices(
            source=Source(*rounds),
            follower=self.follower,  # type: ignore[arg-type]
            clock=self.clock,
            telemetry=self.telemetry,
        )

    def shows(self, start_offset: int | None, *uuids: Uuid) -> None:
        self.follower.there[TOPIC_ID_PARTITION, start_offset] = set(uuids)

    def gauge(self, name: str) -> float | None:
        return self.telemetry.values.get((name, ()))


def finished(uuid: Uuid, start_offset: int | None = 100, finished_ms: int = 1_700_000_000_000) -> FinishedSegment:
    segment_id = RemoteLogSegmentId(topic_id_partition=TOPIC_ID_PARTITION, uuid=uuid)
    return FinishedSegment(segment_id=segment_id, start_offset=start_offset, finished_ms=finished_ms)


async def followed(world: World) -> None:
    """Until the source has nothing more."""
    task = asyncio.create_task(world.notices.follow())
    await settle()
    task.cancel()
    await asyncio.wait([task])


async def test_what_is_finished_is_looked_for_where_it_begins() -> None:
    world = World([], [finished(ONE, finished_ms=1_699_999_999_000), finished(TWO, None)])
    world.shows(100, ONE)
    world.shows(None, TWO)
    await followed(world)
    assert world.follower.asked == [100, None]
    await world.notices.look()
    assert world.follower.asked == [100, None], "found, and wanted no more"
    assert world.gauge(BUCKET_EVENTS_FOLLOWED.name) == 1


async def test_how_long_it_took_is_told() -> None:
    world = World([finished(ONE, finished_ms=1_699_999_999_000)])
    world.shows(100, ONE)
    await followed(world)
    assert world.gauge(BUCKET_SERVE_DELAY_SECONDS.name) == 1.0


@pytest.mark.parametrize("error", [None, StoreError(verb="list", key="", reason="away")])
async def test_what_is_not_there_yet_is_looked_for_again(error: StoreError | None) -> None:
    world = World([finished(ONE), finished(TWO)])
    world.follower.error = error
    await followed(world)
    assert world.follower.asked == [100], "two that begin together are looked for together"
    await world.notices.look()
    assert world.follower.asked == [100], "not at once"
    world.follower.error = None
    world.shows(100, ONE)
    await world.clock.advance(2)
    await world.notices.look()
    world.shows(100, ONE, TWO)
    await world.clock.advance(4)
    await world.notices.look()
    assert world.follower.asked == [100] * 3
    await world.clock.advance(60)
    await world.notices.look()
    assert world.follower.asked == [100] * 3


async def test_what_never_comes_is_given_up() -> None:
    world = World([finished(ONE)])
    await followed(world)
    for _ in range(2000):
        await world.clock.advance(1)
        await world.notices.look()
    assert 30 < len(world.follower.asked) < 40, "every half minute in the end, for a quarter of an hour"


async def test_a_source_that_is_away_is_asked_again() -> None:
    world = World(BrokerUnreachableError(address="source:9092", reason="refused"), [finished(ONE)])
    task = asyncio.create_task(world.notices.follow())
    await settle()
    assert world.gauge(BUCKET_EVENTS_FOLLOWED.name) == 0
    await world.clock.advance(5)
    assert world.gauge(BUCKET_EVENTS_FOLLOWED.name) == 1
    assert world.follower.asked == [100]
    task.cancel()
    await asyncio.wait([task])
