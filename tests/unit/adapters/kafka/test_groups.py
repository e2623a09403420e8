"""A list of groups that may not be whole is never taken for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.adapters.kafka import answers
from tests.unit.adapters.kafka.scripted_peer import NO_WAIT, Conversation, scripted_peer
from tiersidecar.adapters.kafka.broker import open_broker
from tiersidecar.adapters.kafka.groups import COORDINATORS_TOPIC
from tiersidecar.domain.cluster_topics import Commit
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.offsets import Offset
from tiersidecar.ports.broker import GroupAnswer, GroupType
from tiersidecar.ports.cluster_snapshots import GroupCommits

DESCRIBE_BIT = 1 << 8
KEY = ("t", 0)


@dataclass(slots=True)
class Coordinator:
    """The one broker of a cluster; ``groups`` are listed with their types, ``offsets`` are what each has committed of t-0."""

    groups: dict[str, str] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    operations: int = DESCRIBE_BIT
    leaders: list[list[int]] = field(default_factory=lambda: [[1, 1]])
    topic_error: ErrorCode = ErrorCode.none
    list_error: ErrorCode = ErrorCode.none
    group_error: ErrorCode = ErrorCode.none
    found_error: ErrorCode = ErrorCode.none
    commit_error: ErrorCode = ErrorCode.none
    heard: list[int] = field(default_factory=list)
    committed: list[object] = field(default_factory=list)
    share_starts: dict[tuple[str, int], int | ErrorCode] = field(default_factory=dict)

    async def script(self, talk: Conversation) -> None:
        address = "{}:{}".format(*talk.writer.get_extra_info("sockname")[:2])
        await talk.tell_versions()
        while True:
            header, request = await talk.hear()
            self.heard.append(header.api_key)
            made = answers.schema(header)
            match header.api_key:
                case 3:
                    leaders = self.leaders.pop(0) if len(self.leaders) > 1 else self.leaders[0]
                    topics = {"errors": {COORDINATORS_TOPIC: self.topic_error}} if self.topic_error else {}
                    known = {} if self.topic_error or not request.topics else {COORDINATORS_TOPIC: leaders}
                    answer = answers.metadata(header, address=address, leaders=known, **topics)  # type: ignore[arg-type]
                case 10:
                    host, port = address.rsplit(":", 1)
                    rows = [
                        made.Coordinator(
                            key=key,
                            node_id=1,
                            host=host,
                            port=int(port),
                            error_code=self.found_error,
                            error_message=None,
                        )
                        for key in request.coordinator_keys
                    ]
                    answer = made.FindCoordinatorResponse(throttle_time=NO_WAIT, coordinators=tuple(rows))
                case 9:
                    answer = made.OffsetFetchResponse(
                        throttle_time=NO_WAIT,
                        groups=tuple(self._group(made, group.group_id) for group in request.groups),
                    )
                case 90:
                    answer = self._share_starts(made, request)
                case 8:
                    self.committed.append(request)
                    answer = self._committed(made, request)
                case 16:
                    listed = [
                        made.ListedGroup(group_id=name, protocol_type="", group_state="Stable", group_type=kind)
                        for name, kind in self.groups.items()
                    ]
                    answer = made.ListGroupsResponse(
                        throttle_time=NO_WAIT, error_code=self.list_error, groups=tuple(listed)
                    )
                case 60:
                    answer = made.DescribeClusterResponse(
                        throttle_time=NO_WAIT,
                        error_code=ErrorCode.none,
                        cluster_id="c",
                        brokers=(),
                        cluster_authorized_operations=self.operations,
                    )
                case _:
                    return
            talk.answer(header, answer)

    def _share_starts(self, made: Any, request: Any) -> Any:
        """As Kafka 4.3 answers who asks for all: the partitions that the group has been given, and no others."""
        topics = tuple(
            made.DescribeShareGroupOffsetsResponseTopic(
                topic_name=topic,
                topic_id=None,
                partitions=(
                    made.DescribeShareGroupOffsetsResponsePartition(
                        partition_index=partition,
                        start_offset=-1 if isinstance(start, ErrorCode) else start,
                        leader_epoch=0,
                        error_code=start if isinstance(start, ErrorCode) else ErrorCode.none,
                        error_message=None,
                    ),
                ),
            )
            for (topic, partition), start in self.share_starts.items()
        )
        assert all(group.topics is None for group in request.groups)
        groups = tuple(
            made.DescribeShareGroupOffsetsResponseGroup(
                group_id=group.group_id, topics=topics, error_code=self.group_error, error_message=None
            )
            for group in request.groups
        )
        return made.DescribeShareGroupOffsetsResponse(throttle_time=NO_WAIT, groups=groups)

    def _committed(self, made: Any, request: Any) -> Any:
        topics = tuple(
            made.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    made.OffsetCommitResponsePartition(
                        partition_index=row.partition_index, error_code=self.commit_error
                    )
                    for row in topic.partitions
                ),
            )
            for topic in request.topics
        )
        return made.OffsetCommitResponse(throttle_time=NO_WAIT, topics=topics)

    def _group(self, made: object, group: str) -> object:
        row = made.OffsetFetchResponsePartitions(  # type: ignore[attr-defined]
            partition_index=0,
            committed_offset=self.offsets.get(group, -1),
            metadata=None,
            error_code=ErrorCode.none,
        )
        topic = made.OffsetFetchResponseTopics(name="t", partitions=(row,))  # type: ignore[attr-defined]
        return made.OffsetFetchResponseGroup(group_id=group, topics=(topic,), error_code=self.group_error)  # type: ignore[attr-defined]


async def test_all_groups_by_type() -> None:
    """ListGroups says Consumer, Classic, Streams and Share."""
    cluster = Coordinator(groups={"a": "Classic", "b": "Consumer", "c": "Share", "d": "Streams"})
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address) as broker:
        found = await broker.groups.list_groups()
        shares = await broker.groups.list_share_groups()
    assert found == dict.fromkeys("abd", GroupType.CONSUMER) | {"c": GroupType.SHARE}
    assert shares == ("c",)


@pytest.mark.parametrize(
    ("cluster", "answer"),
    [
        pytest.param(
            Coordinator(share_starts={("t", 0): 7, ("t", 1): 9}),
            GroupAnswer(offsets={("t", 0): Offset(7)}),
            id="a start offset is told from the first acknowledgement on; what was not asked for is left out",
        ),
        pytest.param(
            Coordinator(share_starts={("t", 0): -1}),
            GroupAnswer(offsets={}, begun=frozenset({("t", 0)})),
            id="what the group has been given without a start offset it has begun",
        ),
        pytest.param(Coordinator(), GroupAnswer(offsets={}), id="what it has not been given it does not read"),
        pytest.param(
            Coordinator(share_starts={("t", 0): ErrorCode.not_coordinator}),
            GroupAnswer(offsets={}, error="t-0: NOT_COORDINATOR"),
            id="a partition that cannot be told makes the group unknown",
        ),
        pytest.param(
            Coordinator(share_starts={("gone", 0): ErrorCode.unknown_topic_or_partition, ("t", 0): 7}),
            GroupAnswer(offsets={("t", 0): Offset(7)}),
            id="one that was not asked for does not",
        ),
        pytest.param(
            Coordinator(share_starts={("t", 0): -1}, group_error=ErrorCode.group_authorization_failed),
            GroupAnswer(offsets={}, error="GROUP_AUTHORIZATION_FAILED"),
            id="a group that may not be described is unknown",
        ),
    ],
)
async def test_where_a_share_group_begins(cluster: Coordinator, answer: GroupAnswer) -> None:
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address) as broker:
        assert await broker.groups.share_start_offsets(["queue"], [("t", 0)]) == {"queue": answer}


async def test_where_no_group_has_ever_been_nobody_is_asked() -> None:
    cluster = Coordinator(topic_error=ErrorCode.unknown_topic_or_partition)
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address) as broker:
        assert await broker.groups.list_groups() == {}
    assert 16 not in cluster.heard


@pytest.mark.parametrize(
    ("cluster", "error"),
    [
        pytest.param(
            lambda: Coordinator(operations=0),
            "without Describe on the cluster some groups may not be shown",
            id="without the right a list shows some groups, and does not say so",
        ),
        pytest.param(
            lambda: Coordinator(leaders=[[1, -1]]),
            "__consumer_offsets-1 .no leader.: COORDINATOR_NOT_AVAILABLE",
            id="groups of a coordinator that is away are in nobody's list",
        ),
        pytest.param(
            lambda: Coordinator(leaders=[[1, 1], [1]]),
            "coordinators moved meanwhile",
            id="a group may have moved from a broker not asked yet to one asked already",
        ),
        pytest.param(
            lambda: Coordinator(topic_error=ErrorCode.topic_authorization_failed),
            "TOPIC_AUTHORIZATION_FAILED",
            id="without a look at the coordinators nobody knows whether all are there",
        ),
        pytest.param(
            lambda: Coordinator(list_error=ErrorCode.coordinator_load_in_progress),
            "COORDINATOR_LOAD_IN_PROGRESS",
            id="a coordinator that still loads its groups",
        ),
    ],
)
async def test_a_list_that_may_not_be_whole_is_refused(cluster: Callable[[], Coordinator], error: str) -> None:
    async with scripted_peer(cluster().script) as peer, open_broker(peer.address) as broker:
        with pytest.raises(BrokerRefusedError, match=error):
            await broker.groups.list_groups()


async def test_committed_offsets_of_many_groups_and_of_none() -> None:
    cluster = Coordinator(offsets={f"g{n}": n for n in range(1200)})
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address) as broker:
        found = await broker.groups.committed_offsets([*cluster.offsets, "stranger"], [KEY])
        assert await broker.groups.committed_offsets([], [KEY]) == {}
    assert len(found) == 1201
    assert found["g7"] == GroupAnswer(offsets={KEY: Offset(7)})
    assert found["stranger"] == GroupAnswer(offsets={})
    assert cluster.heard.count(9) == 3, "in requests of bounded size"


@pytest.mark.parametrize(
    ("cluster", "answer"),
    [
        pytest.param(
            Coordinator(found_error=ErrorCode.group_authorization_failed),
            GroupAnswer(offsets={}, error="GROUP_AUTHORIZATION_FAILED"),
            id="a group that we may not see",
        ),
        pytest.param(
            Coordinator(group_error=ErrorCode.not_coordinator),
            GroupAnswer(offsets={}, error="NOT_COORDINATOR"),
            id="a coordinator that moved",
        ),
        pytest.param(
            Coordinator(group_error=ErrorCode.group_id_not_found), GroupAnswer(offsets={}), id="a group that is gone"
        ),
    ],
)
async def test_what_keeps_one_group_from_being_told_is_its_own(cluster: Coordinator, answer: GroupAnswer) -> None:
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address) as broker:
        assert await broker.groups.committed_offsets(["g"], [KEY]) == {"g": answer}


async def test_commits_are_read_with_all_that_a_client_gave() -> None:
    """Issue 21: they are restored as they were."""
    cluster = Coordinator(offsets={"g": 7})
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address) as broker:
        found = await broker.groups.commits(["g", "stranger"])
    assert found["g"] == GroupCommits(commits={KEY: Commit(offset=7)})
    assert found["stranger"] == GroupCommits()


@pytest.mark.parametrize(
    ("cluster", "wanted"),
    [
        pytest.param(
            Coordinator(found_error=ErrorCode.group_authorization_failed), "GROUP_AUTHORIZATION_FAILED", id="unseen"
        ),
        pytest.param(
            Coordinator(group_error=ErrorCode.not_coordinator), "NOT_COORDINATOR", id="a coordinator that moved"
        ),
        pytest.param(Coordinator(group_error=ErrorCode.group_id_not_found), "", id="gone"),
    ],
)
async def test_what_keeps_commits_from_being_read_is_named(cluster: Coordinator, wanted: str) -> None:
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address) as broker:
        assert await broker.groups.commits(["g"]) == {"g": GroupCommits(error=wanted)}


async def test_commits_are_restored_on_behalf_of_no_member() -> None:
    cluster = Coordinator()
    commits = {KEY: Commit(offset=7, leader_epoch=3, metadata="m"), ("t", 1): Commit(offset=9)}
    async with scripted_peer(cluster.script) as peer, open_broker(peer.address) as broker:
        assert await broker.groups.commit("g", commits) == ""
        cluster.commit_error = ErrorCode.unknown_member_id
        assert await broker.groups.commit("g", commits) == "UNKNOWN_MEMBER_ID", "the group has members"
    request: Any = cluster.committed[0]
    assert (request.group_id, request.generation_id_or_member_epoch, request.member_id) == ("g", -1, "")
    (topic,) = request.topics
    rows = [
        (row.partition_index, row.committed_offset, row.committed_leader_epoch, row.committed_metadata)
        for row in topic.partitions
    ]
    assert (topic.name, rows) == ("t", [(0, 7, 3, "m"), (1, 9, -1, "")])
