"""What goes into a snapshot, and when (U13)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.metadata_events import FINISHED, added, updated
from tests.unit.adapters.metadata_topic.replicas import FACTS, Topic, owner
from tiersidecar.adapters.metadata_topic.settings import MetadataTopicSettings
from tiersidecar.adapters.metadata_topic.snapshot_keeper import SnapshotKeeper


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "snapshot.db"


def keeper_of(path: Path) -> SnapshotKeeper:
    settings = MetadataTopicSettings(
        bootstrap_servers="broker:9092", topic="metadata", partitions=1, snapshot_path=str(path)
    )
    return SnapshotKeeper(settings, clock=ManualClock(), blocking=InlineBlocking())


def topic_of(path: Path) -> tuple[Topic, SnapshotKeeper]:
    topic, keeper = Topic(), keeper_of(path)
    keeper.keep(topic.replica)
    topic.write(added(1, 0, 9, owner=owner(0)), added(2, 0, 9, owner=owner(1)))
    topic.start([owner(0), owner(1)])
    topic.read_live()
    return topic, keeper


async def test_a_newcomer_that_is_not_live_yet_is_left_out(path: Path) -> None:
    topic, keeper = topic_of(path)
    topic.replica.assign([owner(0), owner(1), owner(2)])
    await keeper.save()
    restored = await keeper_of(path).load()
    assert restored is not None
    assert {partition.topic_id_partition for partition in restored.partitions} == {owner(0), owner(1)}
    assert restored.positions[0].position == 2


async def test_only_what_changed_since_is_imaged_again(path: Path) -> None:
    topic, keeper = topic_of(path)
    await keeper.save()
    topic.write(added(3, 10, 19, owner=owner(0)))
    topic.read_live()
    held = {one.topic_id_partition: one for one in topic.replica.all_held()}
    assert (held[owner(0)].is_dirty, held[owner(1)].is_dirty) == (True, False)
    await keeper.save()
    restored = await keeper_of(path).load()
    assert restored is not None
    assert {partition.topic_id_partition: partition.applied_to for partition in restored.partitions} == {
        owner(0): 2,
        owner(1): 1,
    }


async def test_nothing_is_written_before_contact_and_after_data_was_lost(path: Path) -> None:
    keeper = keeper_of(path)
    await keeper.save()
    keeper.keep(Topic().replica)
    await keeper.save()
    assert not path.exists()
    topic, keeper = topic_of(path)
    await keeper.save()
    before = path.read_bytes()
    topic.cut(1)
    topic.replica.begin_session(replace(FACTS))
    topic.learn_bounds()
    assert topic.replica.is_lost
    await keeper.save()
    assert path.read_bytes() == before


async def test_nothing_is_written_while_a_replay_has_not_shown_yet_whether_segments_are_lost(path: Path) -> None:
    """The topic was truncated and written on.  A process that is stopped in the replay finds in the next one what is lost."""
    topic, keeper = topic_of(path)
    topic.write(updated(1, FINISHED, owner=owner(0)))
    topic.read_live()
    await keeper.save()
    before = path.read_bytes()
    topic.cut(0)
    topic.write(*(added(number, 0, 9, owner=owner(1)) for number in range(10, 20)))
    topic.replica.begin_session(FACTS)
    topic.read_live(3)
    topic.read_live(3)
    assert not topic.is_ready(0)
    await keeper.save()
    assert path.read_bytes() == before

    again = Topic(restored=await keeper_of(path).load())
    again.records = list(topic.records)
    again.start([owner(0), owner(1)])
    again.read_live()
    again.read_live()
    assert "1 finished segments are no longer in it" in str(again.replica.halted_reason)
    assert again.segments(0) == [1]


async def test_a_disk_that_refuses_is_a_warning_and_the_next_time_writes_all(path: Path) -> None:
    topic, keeper = topic_of(path)
    path.mkdir()
    with capture_logs() as logs:
        await keeper.save()
    assert [line["event"] for line in logs] == ["metadata.snapshot.not_written"]
    path.rmdir()
    await keeper.save()
    restored = await keeper_of(path).load()
    assert restored is not None
    assert len(restored.partitions) == len(topic.replica.all_held())


async def test_nothing_is_written_while_nothing_was_read(path: Path) -> None:
    """Issue 20: of thousands of partitions, every few minutes."""
    topic, keeper = topic_of(path)
    await keeper.save()
    path.unlink()
    await keeper.save()
    assert not path.exists()
    topic.write(added(3, 10, 19, owner=owner(2)))  # of nobody that is kept: the position moves all the same
    topic.read_live()
    await keeper.save()
    assert path.exists()
