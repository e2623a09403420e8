from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.adapters.kafka import answers
from tests.unit.adapters.kafka.scripted_peer import NO_WAIT, Conversation, Script, scripted_peer
from tiersidecar.adapters.kafka.broker import KafkaBroker, open_broker
from tiersidecar.adapters.kafka.routes import addresses
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.formats.wire.framing import write_frame
from tiersidecar.ports.broker import OffsetSpec

PARTITION = TopicIdPartition(topic_id=Uuid(answers.TOPIC_ID.bytes), topic="t", partition=0)
UNFENCED = LeaderEpoch(-1)


class Cluster:
    """One scripted broker that leads partition 0 of topic ``t``; ``heard`` has the API keys in their order."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.offset_error = ErrorCode.none
        self.leader = 1
        self.next_leaders: list[int] = []
        self.address = ""
        self.is_deaf_to_offsets = False

    async def script(self, talk: Conversation) -> None:
        self.address = "{}:{}".format(*talk.writer.get_extra_info("sockname")[:2])
        await talk.tell_versions()
        while True:
            header, request = await talk.hear()
            self.heard.append(header.api_key)
            made = answers.schema(header)
            if header.api_key == 3:
                self.leader = self.next_leaders.pop(0) if self.next_leaders else self.leader
                said: Any = answers.metadata(header, address=self.address, leaders={"t": [self.leader]})
                talk.answer(header, replace(said, controller_id=len(self.heard)))
            elif header.api_key == 2 and not self.is_deaf_to_offsets:
                assert request.topics[0].partitions[0].current_leader_epoch == -1
                row = made.ListOffsetsPartitionResponse(partition_index=0, error_code=self.offset_error, offset=42)
                topic = made.ListOffsetsTopicResponse(name="t", partitions=(row,))
                talk.answer(header, made.ListOffsetsResponse(throttle_time=NO_WAIT, topics=(topic,)))
            elif header.api_key == 21:
                await self.before_deleting()
                row = made.DeleteRecordsPartitionResult(
                    partition_index=0, low_watermark=request.topics[0].partitions[0].offset, error_code=ErrorCode.none
                )
                topic = made.DeleteRecordsTopicResult(name="t", partitions=(row,))
                talk.answer(header, made.DeleteRecordsResponse(throttle_time=NO_WAIT, topics=(topic,)))
            else:
                return

    async def before_deleting(self) -> None:
        """Whatever keeps a real one from answering."""


async def offset_of(broker: KafkaBroker) -> tuple[int, str | None]:
    answer = (await broker.list_offsets({PARTITION: UNFENCED}, OffsetSpec.LATEST))[PARTITION]
    return answer.offset, answer.error


async def test_a_known_leader_is_asked_without_looking_it_up_again() -> None:
    cluster = Cluster()
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address, monotonic_s=lambda: 0.0) as broker:
        assert [await offset_of(broker), await offset_of(broker)] == [(42, None)] * 2
    assert cluster.heard == [3, 2, 2]
    assert peer.connections == 1


async def test_what_was_learnt_grows_stale() -> None:
    cluster, now_s = Cluster(), 0.0
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address, monotonic_s=lambda: now_s) as broker:
        await offset_of(broker)
        now_s = 5.0
        await offset_of(broker)
    assert cluster.heard == [3, 2, 3, 2]


async def test_a_leader_that_moved_is_looked_up_before_the_next_request() -> None:
    cluster = Cluster()
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address, monotonic_s=lambda: 0.0) as broker:
        cluster.offset_error = ErrorCode.not_leader_or_follower
        assert (await offset_of(broker))[1] == "NOT_LEADER_OR_FOLLOWER"
        cluster.offset_error = ErrorCode.none
        assert await offset_of(broker) == (42, None)
    assert cluster.heard == [3, 2, 3, 2]


async def test_records_are_never_deleted_on_old_knowledge() -> None:
    """DeleteRecords carries neither epoch nor topic id (DESIGN section 5): id and leader are looked up right before."""
    cluster = Cluster()
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address, monotonic_s=lambda: 0.0) as broker:
        await broker.describe_partitions(["t"])
        found = await broker.delete_records({PARTITION: Offset(7)})
    assert (found[PARTITION].low_watermark, found[PARTITION].error) == (7, None)
    assert cluster.heard == [3, 3, 21]


async def test_records_are_never_deleted_of_a_leader_that_the_caller_does_not_know() -> None:
    """The request has no epoch: what Metadata says right before it decides, and nothing is sent."""
    cluster = Cluster()
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address) as broker:
        (view,) = await broker.describe_partitions(["t"])
        before, now = LeaderEpoch(view.leader_epoch - 1), view.leader_epoch
        fenced = await broker.delete_records({PARTITION: Offset(7)}, leader_epochs={PARTITION: before})
        found = await broker.delete_records({PARTITION: Offset(7)}, leader_epochs={PARTITION: now})
    assert fenced[PARTITION].error == "FENCED_LEADER_EPOCH"
    assert (found[PARTITION].low_watermark, found[PARTITION].error) == (7, None)
    assert cluster.heard == [3, 3, 3, 21]


async def test_nothing_is_sent_for_a_partition_without_a_leader() -> None:
    cluster = Cluster()
    cluster.leader = -1
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address) as broker:
        found = await broker.delete_records({PARTITION: Offset(7)})
    assert found[PARTITION].error == "LEADER_NOT_AVAILABLE"
    assert cluster.heard == [3]


async def test_no_leader_answering_at_all_is_unreachable() -> None:
    """A partition's own error would hide that nothing works."""

    class Silent(Cluster):
        async def script(self, talk: Conversation) -> None:
            self.address = "127.0.0.1:1"
            await talk.tell_versions()
            header, _ = await talk.hear()
            talk.answer(header, answers.metadata(header, address=self.address, leaders={"t": [1]}))
            await talk.until_closed()

    async with scripted_peer(Silent().script) as peer, open_broker(peer.address) as broker:
        with pytest.raises(BrokerUnreachableError, match=r"127\.0\.0\.1:1 "):
            await offset_of(broker)


async def test_an_answer_without_the_partition_is_a_server_error() -> None:
    cluster = Cluster()
    beyond = TopicIdPartition(topic_id=PARTITION.topic_id, topic="t", partition=1)

    async def two_partitions(talk: Conversation) -> None:
        address = "{}:{}".format(*talk.writer.get_extra_info("sockname")[:2])
        await talk.tell_versions()
        header, _ = await talk.hear()
        talk.answer(header, answers.metadata(header, address=address, leaders={"t": [1, 1]}))
        header, _ = await talk.hear()
        made = answers.schema(header)
        talk.answer(header, made.ListOffsetsResponse(throttle_time=NO_WAIT, topics=()))

    async with scripted_peer(two_partitions) as peer, open_broker(peer.address) as broker:
        found = await broker.list_offsets({PARTITION: UNFENCED, beyond: UNFENCED}, OffsetSpec.LATEST)
    assert {answer.error for answer in found.values()} == {"UNKNOWN_SERVER_ERROR"}
    assert cluster.heard == []


async def test_the_next_bootstrap_server_is_asked_when_the_first_is_away() -> None:
    cluster = Cluster()
    async with scripted_peer(cluster.script) as peer, open_broker(["127.0.0.1:1", peer.address]) as broker:
        assert (await broker.describe_cluster()).cluster_id == "c"
        assert (await broker.describe_cluster()).brokers == {BrokerId(1): peer.address}
    assert peer.connections == 1


async def test_all_bootstrap_servers_away_are_all_named() -> None:
    async with open_broker("127.0.0.1:1,127.0.0.1:2") as broker:
        with pytest.raises(BrokerUnreachableError, match=r"127\.0\.0\.1:1: .*; 127\.0\.0\.1:2: "):
            await broker.describe_cluster()


def refusing(error_code: ErrorCode) -> Script:
    async def script(talk: Conversation) -> None:
        await talk.tell_versions()
        header, _ = await talk.hear()
        talk.answer(header, answers.metadata(header, errors={"t": error_code}))
        await talk.until_closed()

    return script


async def test_a_named_topic_that_we_may_not_see_is_refused_not_missing() -> None:
    """Else a metadata topic without its ACL would look like one that must be created."""
    async with (
        scripted_peer(refusing(ErrorCode.topic_authorization_failed)) as peer,
        open_broker(peer.address) as broker,
    ):
        with pytest.raises(BrokerRefusedError, match=r"topic t.*TOPIC_AUTHORIZATION_FAILED"):
            await broker.describe_partitions(["t"])


async def test_a_broker_that_is_no_longer_of_the_cluster_is_left() -> None:
    """KIP-1102: a broker that says REBOOTSTRAP_REQUIRED is not to be asked again over this connection."""

    async def script(talk: Conversation) -> None:
        await talk.tell_versions()
        header, _ = await talk.hear()
        again = peer.connections > 1
        error_code = ErrorCode.none if again else ErrorCode.rebootstrap_required
        talk.answer(header, answers.metadata(header, error_code=error_code))
        await talk.until_closed()

    async with scripted_peer(script) as peer, open_broker(peer.address) as broker:
        with pytest.raises(BrokerRefusedError, match="REBOOTSTRAP_REQUIRED"):
            await broker.describe_cluster()
        assert (await broker.describe_cluster()).cluster_id == "c"
    assert peer.connections == 2


@pytest.mark.parametrize(
    ("servers", "expected"),
    [("a:1", ("a:1",)), ("a:1, b:2,", ("a:1", "b:2")), (["a:1", "b:2,c:3"], ("a:1", "b:2", "c:3"))],
)
def test_bootstrap_servers_are_split(servers: str | list[str], expected: tuple[str, ...]) -> None:
    assert addresses(servers) == expected


@pytest.mark.parametrize("servers", ["", " , ", []])
def test_no_bootstrap_servers_are_told(servers: str | list[str]) -> None:
    with pytest.raises(ValueError, match="no bootstrap servers"):
        addresses(servers)


class TestAllPartitions:
    """Issue 20: of thousands of partitions nothing is decoded where the broker says what it said last time."""

    async def test_an_answer_that_says_nothing_new_gives_the_same_views_and_renews_what_is_known(self) -> None:
        cluster, now_s = Cluster(), 0.0
        async with (
            scripted_peer(cluster.script) as peer,
            open_broker(peer.address, monotonic_s=lambda: now_s) as broker,
        ):
            first = await broker.describe_partitions()
            now_s = 4.0
            again = await broker.describe_partitions()
            now_s = 8.0
            await offset_of(broker)
        assert again is first
        assert [view.leader_id for view in first] == [1]
        assert cluster.heard == [3, 3, 2], "each answer named another controller"

    async def test_another_leader_shows_at_the_next_answer(self) -> None:
        cluster = Cluster()
        async with scripted_peer(cluster.script) as peer, open_broker(peer.address) as broker:
            seen = []
            for leader in (1, 2, 2, 1):
                cluster.leader = leader
                seen += [view.leader_id for view in await broker.describe_partitions()]
        assert seen == [1, 2, 2, 1]

    async def test_leaders_are_those_of_the_last_answer_where_two_are_under_way(self) -> None:
        """The second of them says what was known before both were asked for, and not what the first one says."""
        cluster = Cluster()
        cluster.next_leaders = [1, 2, 1]
        async with (
            scripted_peer(cluster.script) as peer,
            open_broker(peer.address, monotonic_s=lambda: 0.0) as broker,
        ):
            await broker.describe_partitions()
            first, second = await asyncio.gather(broker.describe_partitions(), broker.describe_partitions())
            assert [view.leader_id for view in (*first, *second)] == [2, 1]
            assert await offset_of(broker) == (42, None)
        assert cluster.heard == [3, 3, 3, 2]

    async def test_an_answer_that_cannot_be_read_ends_the_connection(self) -> None:
        async def script(talk: Conversation) -> None:
            await talk.tell_versions()
            header, _ = await talk.hear()
            talk.say(write_frame(header.correlation_id.to_bytes(4, "big") + bytes(4)))
            await talk.until_closed()

        async with scripted_peer(script, Cluster().script) as peer, open_broker(peer.address) as broker:
            with pytest.raises(BrokerUnreachableError, match="not a valid answer"):
                await broker.describe_partitions()
            assert len(await broker.describe_partitions()) == 1
