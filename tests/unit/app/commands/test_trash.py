"""What `tiersidecar trash` and `release` find, say and do, over a state topic in memory (issue 16: trash)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.scripted import MemoryStateLog, ScriptedBroker
from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.app.commands.session import Session
from tiersidecar.app.commands.trash import listed, look_at_purge
from tiersidecar.app.commands.undelete import look_at_release
from tiersidecar.app.trash_export import directory_of, export_topic
from tiersidecar.decide.trash import TrashDelays, deleted_topic, user_delete
from tiersidecar.domain.errors import TrashError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.segments import LeaderView, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashEntry
from tiersidecar.ports.state_log import Hold, PartitionState

DELAYS = TrashDelays(retention_ms=60_000, user_ms=30_000)


class Metadata(MemoryMetadataLog):
    async def wait_until_ready(self, topic_id_partition: object) -> None:
        return None

    async def catch_up(self, topic_id_partition: object) -> None:
        return None


class Command:
    """Segments [0, 99], [100, 199], [200, 299]; the start is at 200, in ``generation``."""

    def __init__(self, directory: Path) -> None:
        self.state, self.metadata, self.clock = MemoryStateLog(), Metadata(), ManualClock()
        broker = ScriptedBroker()
        broker.views = (_led(),)
        self.session = Session(
            config=load(directory, LEAST),
            broker=broker,  # type: ignore[arg-type]
            state=self.state,
            metadata=self.metadata,
            clock=self.clock,
        )

    async def open(self) -> None:
        await self.metadata.assign([TOPIC_ID_PARTITION])
        for start in (0, 100, 200):
            await self.metadata.publish(remote_segment(start, start + 99, state=State.COPY_SEGMENT_STARTED))
            await self.metadata.publish(_finished(start))
        await self.start_is(200)

    async def start_is(self, offset: int, *, generation: int = 0) -> None:
        said = PartitionState(
            remote_log_start_offset=Offset(offset),
            remote_log_start_epoch=LeaderEpoch(0),
            start_generation=generation,
        )
        await self.state.publish_partition_state(TOPIC_ID_PARTITION, said)

    async def users_delete(self, offset: int = 200, generation: int = 0, by: str = "ann") -> TrashEntry:
        now_ms = self.clock.now_ms()
        entry = user_delete(Offset(offset), LeaderEpoch(0), generation=generation, delays=DELAYS, now_ms=now_ms, by=by)
        await self.state.put_into_trash(TOPIC_ID_PARTITION, [entry])
        return entry

    async def rows(self) -> list[dict[str, Any]]:
        return await listed(self.session, None)

    async def purge(self, topic_id: str | None = None) -> tuple[str, ...]:
        """Do it; what it said it would do."""
        intent = await look_at_purge(self.session, TOPIC_ID_PARTITION.topic, None, topic_id)
        assert intent.apply is not None
        await intent.apply()
        return intent.steps


def _led() -> LeaderView:
    one = BrokerId(1)
    return LeaderView(
        topic_id_partition=TOPIC_ID_PARTITION,
        leader_id=one,
        leader_epoch=LeaderEpoch(0),
        replicas=(one,),
        in_sync_replicas=(one,),
    )


def _finished(start: int) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=remote_segment(start, start + 99).remote_log_segment_id,
        broker_id=BrokerId(1),
        event_timestamp_ms=0,
        state=State.COPY_SEGMENT_FINISHED,
    )


@pytest.fixture
async def command(tmp_path: Path) -> Command:
    made = Command(tmp_path)
    await made.open()
    return made


async def test_an_entry_is_listed_with_what_waits_for_it_and_until_when(command: Command) -> None:
    await command.users_delete()
    (row,) = await command.rows()
    assert (row["topic"], row["partition"], row["kind"], row["up_to"]) == (
        TOPIC_ID_PARTITION.topic,
        TOPIC_ID_PARTITION.partition,
        "user",
        200,
    )
    assert (row["segments"], row["state"], row["by"]) == (2, "waiting", "ann")
    assert row["bytes"] == 2 * remote_segment(0, 99).segment_size_in_bytes
    assert row["decided"] < row["due"]
    assert row["topic_id"] == format_uuid(TOPIC_ID_PARTITION.topic_id)
    await command.clock.advance(30)
    assert [row["state"] for row in await command.rows()] == ["due"]
    assert await listed(command.session, "another") == []


async def test_a_segment_is_counted_once_and_never_above_the_start(command: Command) -> None:
    await command.users_delete(100)
    await command.clock.advance(5)
    await command.users_delete(300)
    assert [(row["up_to"], row["segments"]) for row in await command.rows()] == [(100, 1), (300, 1)]


async def test_two_users_whose_deletes_share_an_entry_are_both_named(command: Command) -> None:
    await command.users_delete(100, by="ann")
    await command.clock.advance(1)
    await command.users_delete(200, by="bob")
    (row,) = await command.rows()
    assert row["by"] == "ann; bob"
    assert [(one["by"], one["up_to"]) for one in row["deciders"]] == [("ann", 100), ("bob", 200)]
    assert row["deciders"][0]["decided"] < row["deciders"][1]["decided"] == row["decided"]


async def test_what_was_undone_is_listed_so_and_not_purged(command: Command) -> None:
    entry = await command.users_delete()
    await command.start_is(0, generation=1)
    assert [row["state"] for row in await command.rows()] == ["undone"]
    assert await command.purge() == ()
    assert command.state.trash(TOPIC_ID_PARTITION) == [entry]


async def test_a_deleted_topic_is_not_undone_by_an_undelete_before_it(command: Command) -> None:
    """Its entry is of no generation."""
    await command.start_is(0, generation=1)
    await command.state.put_into_trash(
        TOPIC_ID_PARTITION, [deleted_topic(delays=DELAYS, now_ms=command.clock.now_ms(), by="broker 1")]
    )
    (row,) = await command.rows()
    assert (row["kind"], row["state"], row["segments"]) == ("topic", "waiting", 3)
    (step,) = await command.purge()
    assert "3 remote segments" in step
    assert [row["state"] for row in await command.rows()] == ["purged"]


async def test_a_purge_waits_for_nothing_and_is_of_what_was_decided_by_then(command: Command) -> None:
    await command.users_delete()
    (step,) = await command.purge()
    assert "2 remote segments" in step
    assert "for good" in step
    assert [one.is_purged for one in command.state.trash(TOPIC_ID_PARTITION)] == [True]
    assert await command.purge() == (), "nothing is left to purge"
    await command.clock.advance(1)
    await command.users_delete()
    assert not any(
        one.is_purged for one in command.state.trash(TOPIC_ID_PARTITION) if one.decided_ms == command.clock.now_ms()
    )


async def test_a_purge_of_nothing_is_refused(command: Command) -> None:
    with pytest.raises(TrashError, match="nothing of it is in the trash"):
        await command.purge()
    await command.users_delete()
    with pytest.raises(TrashError):
        await command.purge(topic_id=format_uuid(Uuid(bytes([7]) * 16)))
    assert not any(one.is_purged for one in command.state.trash(TOPIC_ID_PARTITION))


async def test_only_a_topic_that_was_tiered_is_exported(command: Command, tmp_path: Path) -> None:
    unknown = Uuid(bytes([7]) * 16)
    with pytest.raises(TrashError, match="no sidecar has tiered a topic of this id"):
        await export_topic(command.session, unknown, tmp_path / "out", as_ndjson=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("topic", ["../../etc/cron.d/x", "/etc/x", "a/b", "", "a\0b", "orders\n", "é"])
def test_an_export_stays_in_its_directory_whatever_the_state_topic_calls_a_topic(tmp_path: Path, topic: str) -> None:
    topic_id_partition = TopicIdPartition(topic_id=TOPIC_ID_PARTITION.topic_id, topic=topic, partition=3)
    assert directory_of(tmp_path, topic_id_partition) == tmp_path / f"{format_uuid(TOPIC_ID_PARTITION.topic_id)}-3"


@pytest.mark.parametrize("topic", ["orders", "a.b_c-D9", ".", ".."])
def test_an_export_has_a_directory_for_each_partition(tmp_path: Path, topic: str) -> None:
    topic_id_partition = TopicIdPartition(topic_id=TOPIC_ID_PARTITION.topic_id, topic=topic, partition=3)
    assert directory_of(tmp_path, topic_id_partition) == tmp_path / f"{topic}-3"


async def test_a_hold_is_released_once(command: Command) -> None:
    held = PartitionState(hold=Hold(serial=3, is_held=True, until=Offset(200), by="ann", reason="undelete"))
    await command.state.publish_partition_state(TOPIC_ID_PARTITION, held)
    intent = await look_at_release(command.session, TOPIC_ID_PARTITION.topic, TOPIC_ID_PARTITION.partition)
    assert intent.apply is not None
    assert intent.steps == (f"partition {TOPIC_ID_PARTITION.partition}: retention moves its start again",)
    await intent.apply()
    hold = command.state.partition_state(TOPIC_ID_PARTITION).hold
    assert hold is not None
    assert (hold.serial, hold.is_held, hold.by) == (4, False, "ann")
    assert (await look_at_release(command.session, TOPIC_ID_PARTITION.topic, None)).steps == ()
