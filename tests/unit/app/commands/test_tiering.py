"""What ``tiersidecar disable`` takes for remote, over a scripted broker and a state topic in memory (U10)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.recopy_requests import request_for
from tests.support.scripted import MemoryStateLog, ScriptedBroker
from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.adapters.clock import SystemClock
from tiersidecar.app.commands.carry_out import Intent
from tiersidecar.app.commands.session import Session
from tiersidecar.app.commands.tiering import look_at_disabling
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.segments import LeaderView, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashEntry, TrashId, TrashKind
from tiersidecar.ports.broker import EpochEndAnswer, OffsetAnswer, OffsetSpec
from tiersidecar.ports.state_log import TopicState

HIGH_WATERMARK, SEGMENT_BYTES = 300, 1000
BORDERS = {OffsetSpec.EARLIEST: 0, OffsetSpec.LATEST: HIGH_WATERMARK}


class Broker(ScriptedBroker):
    """A log of three segments; the third is active and all that a ``retention.ms`` of a second would keep."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = {0: HIGH_WATERMARK}

    async def end_of_epochs(self, asked: Any) -> Any:
        last = max(epoch for epoch in self.ends if epoch <= asked[TOPIC_ID_PARTITION].epoch)
        return {
            TOPIC_ID_PARTITION: EpochEndAnswer(
                epoch=LeaderEpoch(last), end_offset=Offset(self.ends[last]), error=self.error
            )
        }

    async def list_offsets(self, partitions: Any, spec: Any, *, read_committed: bool = False) -> Any:
        offset = BORDERS.get(spec, 200)
        return {TOPIC_ID_PARTITION: OffsetAnswer(offset=Offset(offset), timestamp_ms=-1, leader_epoch=LeaderEpoch(0))}

    async def describe_topic_overrides(self, topic: str) -> dict[str, str | None]:
        return {"retention.ms": "-1", "retention.bytes": "-1"}

    async def describe_log_sizes(self, topic: str) -> dict[int, int]:
        return {TOPIC_ID_PARTITION.partition: 2 * SEGMENT_BYTES + 10}


class Topic:
    """Enabled, with remote segments [0, 100) and [100, 200)."""

    def __init__(self, directory: Path) -> None:
        self.state, self.metadata, self.broker = MemoryStateLog(), MemoryMetadataLog(), Broker()
        leader = BrokerId(1)
        self.broker.views = (
            LeaderView(
                topic_id_partition=TOPIC_ID_PARTITION,
                leader_id=leader,
                leader_epoch=LeaderEpoch(0),
                replicas=(leader,),
                in_sync_replicas=(leader,),
            ),
        )
        self.session = Session(
            config=load(directory, LEAST),
            broker=self.broker,  # type: ignore[arg-type]
            state=self.state,
            metadata=self.metadata,
            clock=SystemClock(),
        )

    async def fill(self) -> None:
        await self.metadata.assign([TOPIC_ID_PARTITION])
        for start in (0, 100):
            await self.copy(start)

    async def copy(self, start: int, uuid: bytes | None = None) -> None:
        segment = remote_segment(
            start, start + 99, state=State.COPY_SEGMENT_STARTED, size_bytes=SEGMENT_BYTES, uuid=uuid
        )
        await self.metadata.publish(segment)
        await self.metadata.publish(
            RemoteLogSegmentMetadataUpdate(
                remote_log_segment_id=segment.remote_log_segment_id,
                broker_id=segment.broker_id,
                event_timestamp_ms=0,
                state=State.COPY_SEGMENT_FINISHED,
            )
        )

    async def lose(self, start: int) -> None:
        """The store has lost something of the segment at ``start``, and ``repair`` has asked for another copy."""
        segment = next(
            one for one in self.metadata.list_remote_log_segments(TOPIC_ID_PARTITION) if one.start_offset == start
        )
        await self.state.request_recopy(request_for(segment))

    async def disabling(self, **former: str | None) -> Intent:
        """What disable would do about a topic that had these settings."""
        settings = {name.replace("_", "."): value for name, value in former.items()}
        state = TopicState(topic=TOPIC_ID_PARTITION.topic, mode="strict", former_settings=settings)
        await self.state.publish_topic_state(TOPIC_ID_PARTITION.topic_id, state)
        return await look_at_disabling(self.session, TOPIC_ID_PARTITION.topic, delete_remote=False)


@pytest.fixture
async def topic(tmp_path: Path) -> Topic:
    made = Topic(tmp_path)
    await made.fill()
    return made


async def test_what_is_remote_may_be_deleted_by_the_restored_retention(topic: Topic) -> None:
    for former in ({"retention_ms": "1000"}, {"retention_bytes": "100"}):
        intent = await topic.disabling(**former)
        assert (intent.refusal, len(intent.steps)) == ("", 2)


async def test_a_segment_that_is_to_be_copied_again_is_not_remote(topic: Topic) -> None:
    """The store has lost something of it: the broker's own segment, which the restored retention would delete, may be the only
    copy of its records."""
    await topic.lose(100)
    intent = await topic.disabling(retention_ms="1000")
    assert "offsets [100, 200) of partition 3 are not remote" in intent.refusal
    intent = await topic.disabling(retention_bytes="100")
    assert "of which 1000 are remote" in intent.refusal


async def test_what_an_unclean_election_has_ended_is_not_remote(topic: Topic) -> None:
    """Nothing of the new leader's epoch is copied yet: the deposed one's copies hold offsets that the new log has other records
    at."""
    topic.broker.ends = {0: 150, 1: HIGH_WATERMARK}
    intent = await topic.disabling(retention_ms="1000")
    assert "offsets [150, 200) of partition 3 are not remote" in intent.refusal
    intent = await topic.disabling(retention_bytes="100")
    assert "of which 1500 are remote" in intent.refusal


async def test_nothing_is_disabled_where_the_leader_does_not_tell(topic: Topic) -> None:
    topic.broker.error = "FENCED_LEADER_EPOCH"
    with pytest.raises(BrokerRefusedError, match="OffsetForLeaderEpoch"):
        await topic.disabling(retention_ms="1000")


async def test_once_copied_again_it_is_remote_though_the_request_still_stands(topic: Topic) -> None:
    await topic.lose(100)
    await topic.copy(100, uuid=b"the second copy!")
    assert (await topic.disabling(retention_ms="1000")).refusal == ""


@pytest.mark.parametrize("enabled_between", [True, False])
async def test_a_delete_of_everything_that_was_called_off_makes_the_next_one_due_by_nothing(
    topic: Topic, enabled_between: bool
) -> None:
    """Whether or not a sidecar looked in between: by a former entry the next deletion would be due at once (issue 16)."""
    former = TrashEntry(
        id=TrashId(generation=0, leader_epoch=LeaderEpoch(0), kind=TrashKind.DISABLE, opened_ms=0),
        decided_ms=0,
        due_ms=1,
        up_to=Offset(200),
    )
    users = replace(former, id=replace(former.id, kind=TrashKind.USER))
    await topic.state.put_into_trash(TOPIC_ID_PARTITION, [former, users])
    before = "strict" if enabled_between else "detached"
    await topic.state.publish_topic_state(
        TOPIC_ID_PARTITION.topic_id, TopicState(topic=TOPIC_ID_PARTITION.topic, mode=before)
    )
    intent = await look_at_disabling(topic.session, TOPIC_ID_PARTITION.topic, delete_remote=True)
    assert intent.apply is not None
    await intent.apply()
    assert topic.state.trash(TOPIC_ID_PARTITION) == [users]
    await topic.state.put_into_trash(TOPIC_ID_PARTITION, [former])
    again = await look_at_disabling(topic.session, TOPIC_ID_PARTITION.topic, delete_remote=True)
    assert again.apply is not None
    await again.apply()
    assert topic.state.trash(TOPIC_ID_PARTITION) == [former, users], "said once more, it goes on waiting"
