"""Open transactions that hold up copying or readers: named with offset, producer and since when, and said once to hang."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.tier_shell import TierShell
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.formats.kafka.producer_state import ProducerState, read_open_producers
from tiersidecar.ports.metrics.copying import OPEN_TRANSACTION_SECONDS
from tiersidecar.tasks.partition_table import HeldUp
from tiersidecar.tasks.segment_objects import LayoutSettings
from tiersidecar.tasks.transaction_waits import wait_sentence

MINUTE_S = 60.0
OPEN = ProducerState(producer_id=9, epoch=4, current_transaction_first_offset=50)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def shell(tmp_path: Path, clock: ManualClock) -> AsyncIterator[TierShell]:
    async with ThreadBlocking(max_threads=2) as blocking:
        shell = TierShell(
            tmp_path,
            blocking,
            LayoutSettings(),
            TopicPolicy(),
            clock=clock,
            partitions=("transactions-0",),
            telemetry=RecordedTelemetry(),
        )
        await shell.look()
        yield shell


def open_at_a_border(shell: TierShell, topic_id_partition: TopicIdPartition) -> tuple[int, ProducerState]:
    """The first segment behind which a transaction is open, by its base offset, and the oldest such transaction."""
    for segment in shell.table.local.partitions[topic_id_partition].segments[:-1]:
        snapshot = Path(segment.directory, f"{segment.next_base_offset:020d}.snapshot").read_bytes()
        found = read_open_producers(snapshot)
        if found:
            return segment.base_offset, min(found, key=lambda one: one.current_transaction_first_offset)
    raise AssertionError("the golden log has a transaction over a border")


def hanging(logs: list[Any]) -> list[Any]:
    return [log for log in logs if log["event"] == "transaction.hangs"]


async def test_what_holds_back_copying_is_named_and_said_once_to_hang(shell: TierShell, clock: ManualClock) -> None:
    """A wait bounded by transaction.max.timeout.ms: then it is reported, once, and copying goes on as soon as it is ended."""
    topic_id_partition = shell.topic_id_partition("transactions-0")
    base_offset, producer = open_at_a_border(shell, topic_id_partition)
    first_offset = producer.current_transaction_first_offset
    shell.broker.last_stable_offsets[topic_id_partition] = first_offset
    with capture_logs() as logs:
        await shell.copy.run(shell.tiered(topic_id_partition))
        (wait,) = shell.table.record(topic_id_partition).transaction_waits or ()
        assert (wait.held_up, wait.producer_id, wait.first_offset) == (
            HeldUp.COPYING,
            producer.producer_id,
            first_offset,
        )
        told = wait_sentence(shell.table.record(topic_id_partition).transaction_waits or ())
        assert (
            f"producer {producer.producer_id} (epoch {producer.epoch}) that is open from offset {first_offset}" in told
        )
        await clock.advance(15 * MINUTE_S)
        await shell.copy.run(shell.tiered(topic_id_partition))
        shell.waits.report()
        assert hanging(logs) == []
        await clock.advance(1)
        for _ in range(3):
            await shell.copy.run(shell.tiered(topic_id_partition))
            shell.waits.report()
    shell.table.forget(topic_id_partition)  # another broker led for a moment
    await shell.copy.run(shell.tiered(topic_id_partition))
    assert len(shell.table.record(topic_id_partition).transaction_waits or ()) == 1
    (said,) = hanging(logs)
    assert (said["producer_id"], said["first_offset"], said["waiting"]) == (
        producer.producer_id,
        first_offset,
        "copying",
    )
    assert seconds(shell, topic_id_partition) == 901
    assert all(
        segment.start_offset < base_offset for segment in shell.metadata.list_remote_log_segments(topic_id_partition)
    )

    del shell.broker.last_stable_offsets[topic_id_partition]
    await shell.look()
    await shell.copy.run(shell.tiered(topic_id_partition))
    shell.waits.report()
    assert shell.table.record(topic_id_partition).transaction_waits is None
    assert seconds(shell, topic_id_partition) == 0


async def test_a_last_stable_offset_that_waits_for_replicas_is_no_transaction(shell: TierShell) -> None:
    topic_id_partition = shell.topic_id_partition("transactions-0")
    _, producer = open_at_a_border(shell, topic_id_partition)
    shell.broker.last_stable_offsets[topic_id_partition] = producer.current_transaction_first_offset + 1
    await shell.copy.run(shell.tiered(topic_id_partition))
    assert not shell.table.record(topic_id_partition).transaction_waits


@pytest.mark.parametrize(
    ("told", "limit_s"),
    [
        pytest.param({"transaction.max.timeout.ms": "60000"}, 60, id="as the broker has it"),
        pytest.param({}, 900, id="Kafka's default where it does not say"),
        pytest.param(None, 900, id="and where we may not see it"),
    ],
)
async def test_what_the_broker_has_lost_is_reported_until_its_marker_is_copied(
    shell: TierShell, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, told: dict[str, str] | None, limit_s: int
) -> None:
    """Copying goes on meanwhile; readers of committed records wait at the border (docs/design/0011)."""

    async def describe(broker_id: int) -> dict[str, str]:
        if told is None:
            raise BrokerRefusedError(api="DescribeConfigs", subject="broker 1", error="CLUSTER_AUTHORIZATION_FAILED")
        return told

    monkeypatch.setattr(shell.broker, "describe_broker_configs", describe)
    topic_id_partition = shell.topic_id_partition("transactions-0")
    shell.table.record(topic_id_partition).copied_offset = 99
    with capture_logs() as logs:
        await shell.waits.lost(topic_id_partition, 200, [OPEN])
        await shell.waits.lost(topic_id_partition, 300, [OPEN])
        await shell.waits.lost(topic_id_partition, 100, [])  # a segment below the border is copied again
        shell.waits.report()
        await clock.advance(limit_s)
        shell.waits.report()
        assert hanging(logs) == []
        await clock.advance(1)
        shell.waits.report()
        shell.waits.report()
    assert [log["first_offset"] for log in logs if log["event"] == "segment.transactions.undecided"] == [50]
    assert [one["waiting"] for one in hanging(logs)] == ["read_committed readers"]
    assert seconds(shell, topic_id_partition) == limit_s + 1
    await shell.waits.lost(topic_id_partition, 400, [])
    shell.waits.report()
    assert seconds(shell, topic_id_partition) == 0


def seconds(shell: TierShell, topic_id_partition: TopicIdPartition) -> float | None:
    assert isinstance(shell.telemetry, RecordedTelemetry)
    return shell.telemetry.value(
        OPEN_TRANSACTION_SECONDS, topic=topic_id_partition.topic, partition=str(topic_id_partition.partition)
    )
