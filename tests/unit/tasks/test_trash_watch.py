"""What is kept beyond its time is told: nobody would notice a trash that never becomes due."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.expiry import HOUR_MS
from tests.support.expiry_world import run
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.segments import TOPIC_ID_PARTITION
from tests.support.undelete_world import DELAYS, UndeleteWorld, command_config
from tiersidecar.domain.seen_time import SeenTime
from tiersidecar.ports.metrics.retention import TRASH_OVERDUE_SECONDS
from tiersidecar.ports.seen_times import NoSeenTimes
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.trash_clock import TrashClock, TrashWatch


@pytest.fixture
def there(tmp_path: Path) -> UndeleteWorld:
    made = UndeleteWorld(command_config(tmp_path))
    made.delete(20)
    return made


def seconds_of(there: UndeleteWorld, *, known: SeenTime | None, table: PartitionTable | None = None) -> float | None:
    """By a process that starts now."""
    telemetry = RecordedTelemetry()
    watch = TrashWatch(
        table=table or there.sidecar.table,
        state=there.world.state,
        trash_clock=TrashClock(clock=there.clock, times=NoSeenTimes(), known=known),
        clock=there.clock,
        telemetry=telemetry,
    )
    run(watch.look())
    return telemetry.value(TRASH_OVERDUE_SECONDS)


def test_what_a_process_without_memory_keeps_is_told_from_when_it_would_have_been_due(there: UndeleteWorld) -> None:
    there.pass_time(DELAYS.user_ms)
    assert seconds_of(there, known=None) == 0
    there.pass_time(2 * HOUR_MS)
    assert seconds_of(there, known=None) == 2 * 3600


def test_what_is_due_or_not_yet_is_no_matter(there: UndeleteWorld) -> None:
    assert seconds_of(there, known=None) == 0
    there.pass_time(3 * HOUR_MS)
    assert seconds_of(there, known=SeenTime(until_ms=there.clock.now_ms())) == 0


def test_nor_is_what_was_undone(there: UndeleteWorld) -> None:
    run(there.sidecar.round())
    there.undelete()
    there.pass_time(3 * HOUR_MS)
    assert seconds_of(there, known=None) == 0


def test_what_another_broker_leads_is_for_its_sidecar_to_tell_and_a_deleted_topic_for_all(there: UndeleteWorld) -> None:
    there.pass_time(3 * HOUR_MS)
    elsewhere = PartitionTable(topic_ids={TOPIC_ID_PARTITION.topic: TOPIC_ID_PARTITION.topic_id})
    assert seconds_of(there, known=None, table=elsewhere) == 0
    assert seconds_of(there, known=None, table=PartitionTable()) == 2 * 3600
