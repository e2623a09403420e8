"""A copy that is stuck is given up, begun again under a new id, and holds up nobody else (U1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock, settle
from tests.support.remote_events import fold
from tests.support.tier_shell import TierShell
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.bounded import BoundedStore, StoreLimits
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.domain.errors import StoreStalledError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.ports.metrics.copying import COPY_OLDEST_AGE
from tiersidecar.ports.store import ObjectBody, StoredObject
from tiersidecar.ports.telemetry import Metric, NoTelemetry
from tiersidecar.tasks.lanes import Backoff, Lane, Lanes
from tiersidecar.tasks.segment_objects import LayoutSettings


class StickyStore(MemoryStore):
    """A put of a key that ``sticks`` is true for never comes back."""

    sticks: Callable[[str], bool] = staticmethod(lambda _: False)
    stuck = 0

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        if self.sticks(key):
            self.stuck += 1
            await asyncio.Event().wait()
        return await super().put_object(key, body, if_absent=if_absent)


def nothing(_: str) -> bool:
    return False


def everything(_: str) -> bool:
    return True


class Gauges(NoTelemetry):
    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        self.values[metric.name] = value


class Stage:
    """A tier shell on a manual clock, whose store can stick."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.backend = StickyStore(clock=self.clock, ids=SystemIds())
        store = BoundedStore(self.backend, limits=StoreLimits(), clock=self.clock)
        self.shell = TierShell(
            directory,
            InlineBlocking(),
            LayoutSettings(),
            TopicPolicy(),
            clock=self.clock,
            store=store,
            partitions=("plain-0", "plain-1", "epochs-0"),
        )

    @asynccontextmanager
    async def lanes(self) -> AsyncIterator[Lanes]:
        backoff = Backoff(initial_s=0.5, maximum_s=30)
        async with Lanes(clock=self.clock, ids=SystemIds(), telemetry=NoTelemetry(), backoff=backoff) as lanes:
            yield lanes
            for topic_id_partition in self.shell.table.local.partitions:
                lanes.stop(topic_id_partition)

    def start(self, lanes: Lanes, topic_id_partition: TopicIdPartition) -> bool:
        return lanes.start(
            topic_id_partition,
            Lane.COPY,
            lambda: self.shell.copy.run(self.shell.tiered(topic_id_partition)),
            f"copy {topic_id_partition}",
        )

    def finished(self, topic_id_partition: TopicIdPartition) -> int:
        events = [event for event in self.shell.metadata.events if _topic_id_partition(event) == topic_id_partition]
        return sum(one.state is State.COPY_SEGMENT_FINISHED for one in fold(events))

    def sealed(self, topic_id_partition: TopicIdPartition) -> int:
        return len(self.shell.table.local.partitions[topic_id_partition].sealed_segments)


def _topic_id_partition(event: object) -> TopicIdPartition:
    return event.remote_log_segment_id.topic_id_partition  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
async def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    await stage.shell.look()
    return stage


@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
async def test_each_object_of_a_segment_may_stick(stage: Stage, suffix: str) -> None:
    topic_id_partition = stage.shell.topic_id_partition("plain-0")
    stage.backend.sticks = lambda key: key.endswith(f".{suffix}")
    copying = asyncio.ensure_future(stage.shell.copy.run(stage.shell.tiered(topic_id_partition)))
    await stage.clock.advance(119)
    assert not copying.done()
    await stage.clock.advance(2)
    with pytest.raises(StoreStalledError, match="nothing of it moved for 120 s"):
        await copying
    assert not stage.shell.in_flight.ids, "cleanup may take what it left"


async def test_a_stuck_copy_is_begun_again_under_a_new_id(stage: Stage) -> None:
    topic_id_partition = stage.shell.topic_id_partition("plain-0")
    stage.backend.sticks = lambda key: f"{35:020d}-" in key
    async with stage.lanes() as lanes:
        assert stage.start(lanes, topic_id_partition)
        await settle(200)
        await stage.clock.advance(121)
        assert "moved" in lanes.trouble(topic_id_partition)
        stage.backend.sticks = nothing
        await stage.clock.advance(1)
        assert stage.start(lanes, topic_id_partition)
        await settle(2000)
        assert stage.finished(topic_id_partition) == stage.sealed(topic_id_partition)
    started = [event for event in stage.shell.metadata.events if event.state is State.COPY_SEGMENT_STARTED]
    of_it = {one.remote_log_segment_id for one in started if one.start_offset == 35}  # type: ignore[union-attr]
    assert len(of_it) == 2


async def test_a_stuck_copy_holds_up_no_other_partition(stage: Stage) -> None:
    """Not even the slots: they are for segments, and there are ten."""
    stuck, others = (
        stage.shell.topic_id_partition("plain-0"),
        [stage.shell.topic_id_partition(name) for name in ("plain-1", "epochs-0")],
    )
    stage.backend.sticks = everything
    stage.shell.gate._closed_by = None
    async with stage.lanes() as lanes:
        assert stage.start(lanes, stuck)
        await settle(50)
        assert stage.backend.stuck == 1
        stage.backend.sticks = nothing
        for topic_id_partition in others:
            assert stage.start(lanes, topic_id_partition)
        await settle(3000)
        assert [stage.finished(topic_id_partition) for topic_id_partition in others] == [
            stage.sealed(topic_id_partition) for topic_id_partition in others
        ]
        assert stage.finished(stuck) == 0


async def test_the_age_of_the_oldest_copy_is_told_while_it_is_stuck(stage: Stage) -> None:
    gauges = Gauges()
    stage.shell.in_flight._telemetry = gauges
    topic_id_partition = stage.shell.topic_id_partition("plain-0")
    stage.backend.sticks = everything
    stage.shell.gate._closed_by = None
    copying = asyncio.ensure_future(stage.shell.copy.run(stage.shell.tiered(topic_id_partition)))
    await stage.clock.advance(90)
    stage.shell.in_flight.report_age()
    assert gauges.values[COPY_OLDEST_AGE.name] == 90
    await stage.clock.advance(60)
    with pytest.raises(StoreStalledError):
        await copying
    assert gauges.values[COPY_OLDEST_AGE.name] == 0


async def test_a_store_that_hangs_gets_no_more_copies_until_a_probe_succeeds(stage: Stage) -> None:
    """S-233: one STARTED event, however often the lanes try."""
    topic_id_partitions = [stage.shell.topic_id_partition(name) for name in ("plain-0", "plain-1")]
    await stage.shell.gate.wait_open()
    stage.backend.sticks = everything
    async with stage.lanes() as lanes:
        for _ in range(10):
            for topic_id_partition in topic_id_partitions:
                stage.start(lanes, topic_id_partition)
            await stage.clock.advance(125)
            await settle(100)
        assert len([event for event in stage.shell.metadata.events if event.state is State.COPY_SEGMENT_STARTED]) == 2
        stage.backend.sticks = nothing
        await stage.clock.advance(31)
        for topic_id_partition in topic_id_partitions:
            stage.start(lanes, topic_id_partition)
        await settle(3000)
        assert [stage.finished(topic_id_partition) for topic_id_partition in topic_id_partitions] == [
            stage.sealed(topic_id_partition) for topic_id_partition in topic_id_partitions
        ]
