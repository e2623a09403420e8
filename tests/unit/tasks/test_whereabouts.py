"""What is told of led partitions whose directory is not here, or not the broker's, and when."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock
from tests.support.pins import local_partition
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import ScriptedBroker
from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import BrokerUnreachableError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.metrics.process import MISPLACED_PARTITIONS
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.watch import Whereabouts

LED = TieredPartition(
    view=LeaderView(
        topic_id_partition=TOPIC_ID_PARTITION,
        leader_id=BrokerId(1),
        leader_epoch=LeaderEpoch(5),
        replicas=(BrokerId(1),),
        in_sync_replicas=(BrokerId(1),),
    ),
    role=PartitionRole.LEADER,
    policy=TopicPolicy(),
)
FOLLOWED = replace(LED, role=PartitionRole.FOLLOWER)


class Stage:
    def __init__(self) -> None:
        self.table, self.clock, self.telemetry = PartitionTable(), ManualClock(), RecordedTelemetry()
        self.broker = ScriptedBroker()
        self.whereabouts = Whereabouts(table=self.table, broker=self.broker, clock=self.clock, telemetry=self.telemetry)

    def see(self, *epochs: tuple[int, int], tiered: TieredPartition = LED) -> None:
        """A directory with these leader epochs; without any it is not here."""
        present = {TOPIC_ID_PARTITION: local_partition(local_segments(0, 100), epochs=epochs)} if epochs else {}
        self.table.local = LogDirsView(partitions=present, faults={})
        self.table.assignment = {TOPIC_ID_PARTITION: tiered} if epochs else {}
        self.table.unseen = {} if epochs else {TOPIC_ID_PARTITION: tiered}

    async def look_after(self, seconds: float) -> list[str]:
        """The events."""
        await self.clock.advance(seconds)
        with capture_logs() as told:
            await self.whereabouts.look()
        return [one["event"] for one in told]

    @property
    def shown(self) -> dict[str, float]:
        return self.telemetry.by_label(MISPLACED_PARTITIONS, "partition")


@pytest.mark.parametrize(
    "epochs", [pytest.param((), id="it is not here"), pytest.param(((0, 0), (3, 9)), id="another's")]
)
async def test_what_lasts_for_a_minute_is_told_once_and_shown_until_it_is_over(
    epochs: tuple[tuple[int, int], ...],
) -> None:
    stage = Stage()
    stage.see(*epochs)
    assert await stage.look_after(0) == []
    assert await stage.look_after(59.9) == []
    assert (stage.table.misplaced, stage.shown) == ({}, {})
    assert await stage.look_after(0.1) == ["partition.misplaced"]
    assert (list(stage.table.misplaced), stage.shown) == ([TOPIC_ID_PARTITION], {str(TOPIC_ID_PARTITION.partition): 1})
    assert await stage.look_after(600) == []
    stage.see((5, 0))
    assert await stage.look_after(5) == ["partition.misplaced.cleared"]
    assert (stage.table.misplaced, stage.shown) == ({}, {})


async def test_a_new_partition_and_an_election_are_not_told() -> None:
    """And the minute begins anew each time."""
    stage = Stage()
    for epochs in ((), ((5, 0),), ((4, 0),), ((4, 0), (5, 9))) * 3:
        stage.see(*epochs)
        assert await stage.look_after(50) == []


@pytest.mark.parametrize(
    "epochs",
    [pytest.param(((5, 0),), id="what leads in its own epoch"), pytest.param(((4, 0),), id="a follower's file")],
)
async def test_nothing_is_told_of(epochs: tuple[tuple[int, int], ...]) -> None:
    stage = Stage()
    stage.see(*epochs, tiered=LED if epochs == ((5, 0),) else FOLLOWED)
    assert [await stage.look_after(100) for _ in range(3)] == [[], [], []]


async def test_a_topic_that_cannot_be_tiered_is_missed_nowhere() -> None:
    stage = Stage()
    stage.see()
    stage.table.refused_topics[TOPIC_ID_PARTITION.topic] = "cleanup.policy has compact"
    assert [await stage.look_after(100) for _ in range(3)] == [[], [], []]


async def test_a_topic_that_can_be_tiered_again_is_looked_at_again() -> None:
    """Assignment and files are what they were."""
    stage = Stage()
    stage.see((5, 0), (6, 9))
    stage.table.refused_topics[TOPIC_ID_PARTITION.topic] = "cleanup.policy has compact"
    assert [await stage.look_after(100) for _ in range(2)] == [[], []]
    del stage.table.refused_topics[TOPIC_ID_PARTITION.topic]
    assert await stage.look_after(0) == []
    assert await stage.look_after(60) == ["partition.misplaced"]


def test_nobody_leads_by_a_directory_that_is_not_proven() -> None:
    stage = Stage()
    for epochs, is_led in (((), False), (((3, 0),), False), (((3, 0), (5, 9)), True), (((5, 0), (6, 9)), False)):
        stage.see(*epochs)
        stage.table.assignment = {TOPIC_ID_PARTITION: LED}
        assert stage.table.leads(TOPIC_ID_PARTITION, LeaderEpoch(5)) is is_led
    stage.see((3, 0), tiered=FOLLOWED)
    assert stage.table.is_proven(FOLLOWED), "a follower's file has its leader's epoch with the first batch of it only"


@pytest.mark.parametrize(
    ("epochs", "end", "high_watermark", "is_proven"),
    [
        pytest.param((0, 3), 250, 250, True, id="the broker's log does not know the epoch either"),
        pytest.param((0, 3, 5), 250, 250, False, id="the broker's log knows its epoch, and our file does not"),
        pytest.param((0, 3), 250, 251, False, id="the broker's log goes on after our last epoch"),
        pytest.param((0, 2), 250, 250, False, id="the broker's log does not know ours"),
        pytest.param((0, 3), 50, 50, False, id="the broker's log ends below what we have sealed"),
    ],
)
async def test_the_broker_is_asked_of_an_epoch_in_which_nothing_was_written(
    epochs: tuple[int, ...], end: int, high_watermark: int, is_proven: bool
) -> None:
    stage = Stage()
    stage.see((0, 0), (3, 90))
    stage.broker.epochs, stage.broker.epoch_ends = {TOPIC_ID_PARTITION: epochs}, {TOPIC_ID_PARTITION: end}
    stage.broker.last_stable_offsets = {TOPIC_ID_PARTITION: high_watermark}
    await stage.look_after(0)
    assert stage.table.leads(TOPIC_ID_PARTITION, LeaderEpoch(5)) is is_proven
    assert (await stage.look_after(600) == []) is is_proven


async def test_what_the_broker_said_of_an_epoch_holds_while_it_is_away_and_no_longer_than_the_file() -> None:
    stage = Stage()
    stage.see((0, 0), (3, 90))
    stage.broker.epochs, stage.broker.epoch_ends = {TOPIC_ID_PARTITION: (0, 3)}, {TOPIC_ID_PARTITION: 250}
    await stage.look_after(0)
    with patch.object(stage.broker, "end_of_epochs", side_effect=BrokerUnreachableError(address="b", reason="gone")):
        assert await stage.look_after(600) == ["unwritten_epochs.not_told"]
        assert stage.table.leads(TOPIC_ID_PARTITION, LeaderEpoch(5))
        stage.see((3, 90), (5, 250))
        await stage.look_after(5)
        assert stage.table.leads(TOPIC_ID_PARTITION, LeaderEpoch(5))
        stage.see((0, 0), (3, 90))
        await stage.look_after(5)
        assert not stage.table.leads(TOPIC_ID_PARTITION, LeaderEpoch(5)), "another disk again"
