"""Ask coordinators for the offsets of their groups (:class:`~tiersidecar.ports.broker.ReadGroups`)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.apis import Api
from tiersidecar.adapters.kafka.connection import BrokerConnection, refused
from tiersidecar.adapters.kafka.routes import Routes
from tiersidecar.domain.cluster_topics import Commit, TopicPartition
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import Offset
from tiersidecar.ports.broker import GroupAnswer, GroupType
from tiersidecar.ports.cluster_snapshots import GroupCommits

COORDINATORS_TOPIC = "__consumer_offsets"
"""Each of its partitions' leaders coordinates the groups of that partition."""
_GROUPS_PER_REQUEST = 500
_DESCRIBE_BIT = 1 << 8
"""``AclOperation.DESCRIBE`` among the authorized operations (KIP-430)."""

Partitions = Collection[tuple[str, int]]
_Leaders = tuple[tuple[int, int], ...]


class KafkaGroups:
    """Groups by their coordinators, all coordinators at once.  Retries nothing."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    async def list_groups(self) -> dict[str, GroupType]:
        """Return every group of the cluster.

        A broker answers ListGroups without an error also where it shows only some groups, and groups whose coordinator is
        away are in no broker's answer.  So we first ask whether we may see all, and who coordinates before and after.
        """
        await self._demand_describe_on_cluster()
        before = await self._coordinators()
        listed = await asyncio.gather(*(self._list(BrokerId(leader)) for leader in {leader for leader, _ in before}))
        if await self._coordinators() != before:
            raise refused(apis.LIST_GROUPS, "the cluster", ErrorCode.not_coordinator, "coordinators moved meanwhile")
        return {group: kind for groups in listed for group, kind in groups.items()}

    async def list_share_groups(self) -> tuple[str, ...]:
        connection = await self._routes.any()
        if connection.newest_version(apis.DESCRIBE_SHARE_GROUP_OFFSETS) < 0:
            return ()
        return tuple(group for group, kind in (await self.list_groups()).items() if kind is GroupType.SHARE)

    async def committed_offsets(self, groups: Collection[str], partitions: Partitions) -> dict[str, GroupAnswer]:
        """Return the committed offsets of these consumer groups; of one that does not exist, nothing."""
        wanted = _by_topic(partitions)

        async def ask(connection: BrokerConnection, chunk: Sequence[str]) -> dict[str, GroupAnswer]:
            response = await connection.ask(
                apis.OFFSET_FETCH, lambda version: apis.offset_fetch(version, chunk, wanted)
            )
            return {
                group.group_id: _answer(
                    group.error_code,
                    (
                        (topic.name, row.partition_index, row.committed_offset, row.error_code)
                        for topic in group.topics
                        for row in topic.partitions
                    ),
                )
                for group in response.groups
            }

        return await self._ask_coordinators(apis.OFFSET_FETCH, groups, ask)

    async def commits(self, groups: Collection[str]) -> dict[str, GroupCommits]:
        """Return all that these consumer groups have committed; of one that does not exist, nothing."""
        found: dict[str, GroupCommits] = {}

        async def ask(connection: BrokerConnection, chunk: Sequence[str]) -> dict[str, GroupAnswer]:
            response = await connection.ask(apis.OFFSET_FETCH, lambda version: apis.offset_fetch_all(version, chunk))
            found.update((group.group_id, _commits(group)) for group in response.groups)
            return {}

        unasked = await self._ask_coordinators(apis.OFFSET_FETCH, groups, ask)
        return {
            group: found.get(group) or GroupCommits(error=answer.error or "UNKNOWN_SERVER_ERROR")
            for group, answer in unasked.items()
        }

    async def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> str:
        """Commit offsets on behalf of a group that has no member; return Kafka's name of the first error, empty without one.

        Raises:
            BrokerUnreachableError: no broker named its coordinator.
        """
        by_topic: defaultdict[str, dict[int, tuple[int, int, str]]] = defaultdict(dict)
        for (topic, partition), one in commits.items():
            by_topic[topic][partition] = one.offset, one.leader_epoch, one.metadata
        errors: list[str] = []

        async def ask(connection: BrokerConnection, chunk: Sequence[str]) -> dict[str, GroupAnswer]:
            response = await connection.ask(
                apis.OFFSET_COMMIT, lambda version: apis.offset_commit(version, group, by_topic)
            )
            rows = [row for topic in response.topics for row in topic.partitions]
            errors.extend(row.error_code.name.upper() for row in rows if row.error_code is not ErrorCode.none)
            return {group: GroupAnswer(offsets={})}

        answer = (await self._ask_coordinators(apis.OFFSET_COMMIT, [group], ask))[group]
        return next(iter(errors), answer.error or "")

    async def share_start_offsets(self, groups: Collection[str], partitions: Partitions) -> dict[str, GroupAnswer]:
        """Return where these share groups begin: all before it is acknowledged or archived."""
        wanted = frozenset(partitions)

        async def ask(connection: BrokerConnection, chunk: Sequence[str]) -> dict[str, GroupAnswer]:
            response = await connection.ask(
                apis.DESCRIBE_SHARE_GROUP_OFFSETS,
                lambda version: apis.describe_share_group_offsets(version, chunk),
            )
            return {group.group_id: _share_answer(group, wanted) for group in response.groups}

        return await self._ask_coordinators(apis.DESCRIBE_SHARE_GROUP_OFFSETS, groups, ask)

    async def members(self, groups: Collection[str]) -> dict[str, list[tuple[str, str]]]:
        """Return client id and host of each member, by group, from their coordinators: of groups of both consumer protocols.
        A group that no coordinator returns has none; the host of a client of a gateway is the gateway's."""
        found: dict[str, list[tuple[str, str]]] = {}
        for api, make in (
            (apis.DESCRIBE_GROUPS, apis.describe_groups),
            (apis.CONSUMER_GROUP_DESCRIBE, apis.consumer_group_describe),
        ):
            left = [group for group in groups if not found.get(group)]
            if left and (await self._routes.any()).newest_version(api) >= api.oldest:
                found |= await self._members(api, make, left)
        return found

    async def _members(
        self, api: Api[Any], make: Callable[[int, Sequence[str]], Any], groups: Collection[str]
    ) -> dict[str, list[tuple[str, str]]]:
        found: dict[str, list[tuple[str, str]]] = {}

        async def ask(connection: BrokerConnection, chunk: Sequence[str]) -> dict[str, GroupAnswer]:
            response = await connection.ask(api, lambda version: make(version, chunk))
            for group in response.groups:
                if group.error_code is ErrorCode.none:
                    found[group.group_id] = [
                        (member.client_id, member.client_host.lstrip("/")) for member in group.members
                    ]
            return {}

        await self._ask_coordinators(api, groups, ask)
        return found

    async def _demand_describe_on_cluster(self) -> None:
        connection = await self._routes.any()
        response = await connection.ask(apis.DESCRIBE_CLUSTER, apis.describe_cluster)
        if response.error_code is not ErrorCode.none:
            raise refused(apis.DESCRIBE_CLUSTER, "the cluster", response.error_code, response.error_message)
        if not response.cluster_authorized_operations & _DESCRIBE_BIT:
            needed = "without Describe on the cluster some groups may not be shown"
            raise refused(apis.LIST_GROUPS, "the cluster", ErrorCode.cluster_authorization_failed, needed)

    async def _coordinators(self) -> _Leaders:
        """Return leader and epoch of each partition of the topic; none while there has never been a group."""
        response = await self._routes.metadata((COORDINATORS_TOPIC,))
        (topic,) = response.topics
        if topic.error_code is ErrorCode.unknown_topic_or_partition:
            return ()
        if topic.error_code is not ErrorCode.none:
            raise refused(apis.METADATA, f"topic {COORDINATORS_TOPIC}", topic.error_code)
        for row in topic.partitions:
            if row.leader_id < 0:
                what = f"{COORDINATORS_TOPIC}-{row.partition_index}"
                raise refused(apis.LIST_GROUPS, what, ErrorCode.coordinator_not_available, "no leader")
        ordered = sorted(topic.partitions, key=lambda row: row.partition_index)
        return tuple((row.leader_id, row.leader_epoch) for row in ordered)

    async def _list(self, broker_id: BrokerId) -> dict[str, GroupType]:
        connection = await self._routes.broker(broker_id)
        response = await connection.ask(apis.LIST_GROUPS, apis.list_groups)
        if response.error_code is not ErrorCode.none:
            raise refused(apis.LIST_GROUPS, f"broker {broker_id}", response.error_code)
        return {
            group.group_id: GroupType.SHARE if group.group_type.lower() == "share" else GroupType.CONSUMER
            for group in response.groups
        }

    async def _ask_coordinators(
        self, api: Api[Any], groups: Collection[str], ask: Callable[[BrokerConnection, Sequence[str]], Any]
    ) -> dict[str, GroupAnswer]:
        """Return each group's answer; a group without one has the reason as its ``error``.

        Raises:
            BrokerUnreachableError: no broker returned the coordinators.
        """
        if not groups:
            return {}
        connection = await self._routes.any()
        names = sorted(groups)
        found = await connection.ask(apis.FIND_COORDINATOR, lambda version: apis.find_coordinator(version, names))
        answers: dict[str, GroupAnswer] = {}
        chunks: defaultdict[BrokerId, list[str]] = defaultdict(list)
        for row in found.coordinators:
            if row.error_code is ErrorCode.none:
                chunks[BrokerId(row.node_id)].append(row.key)
            else:
                answers[row.key] = _unknown(row.error_code.name.upper())

        async def ask_one(broker_id: BrokerId, chunk: list[str]) -> Mapping[str, GroupAnswer]:
            try:
                answered: Mapping[str, GroupAnswer] = await ask(await self._routes.broker(broker_id), chunk)
            except (BrokerUnreachableError, BrokerRefusedError) as error:
                return {group: _unknown(f"{api.name}: {error}") for group in chunk}
            return answered

        asked = [
            ask_one(broker_id, members[start : start + _GROUPS_PER_REQUEST])
            for broker_id, members in chunks.items()
            for start in range(0, len(members), _GROUPS_PER_REQUEST)
        ]
        for chunk_answers in await asyncio.gather(*asked):
            answers.update(chunk_answers)
        return {group: answers.get(group, _unknown("UNKNOWN_SERVER_ERROR")) for group in names}


def _by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        topics[topic].append(partition)
    return topics


def _answer(error_code: ErrorCode, rows: Iterable[tuple[str, int, int, ErrorCode]]) -> GroupAnswer:
    if error_code is ErrorCode.group_id_not_found:  # also for a group of another type
        return GroupAnswer(offsets={})
    if error_code is not ErrorCode.none:
        return _unknown(error_code.name.upper())
    offsets: dict[tuple[str, int], Offset] = {}
    for topic, partition, offset, row_error in rows:
        if row_error is not ErrorCode.none:
            return _unknown(f"{topic}-{partition}: {row_error.name.upper()}")
        if offset >= 0:
            offsets[topic, partition] = Offset(offset)
    return GroupAnswer(offsets=offsets)


def _share_answer(group: Any, wanted: Collection[tuple[str, int]]) -> GroupAnswer:
    """Return the answer: the broker's has only partitions given to the group, -1 where nothing of one is acknowledged."""
    rows = {
        (topic.topic_name, row.partition_index): row
        for topic in group.topics
        for row in topic.partitions
        if (topic.topic_name, row.partition_index) in wanted
    }
    answer = _answer(group.error_code, ((*key, row.start_offset, row.error_code) for key, row in rows.items()))
    if answer.error:
        return answer
    return replace(answer, begun=frozenset(rows.keys() - answer.offsets.keys()))


def _commits(group: Any) -> GroupCommits:
    if group.error_code is ErrorCode.group_id_not_found:
        return GroupCommits()
    if group.error_code is not ErrorCode.none:
        return GroupCommits(error=group.error_code.name.upper())
    return GroupCommits(
        commits={
            (topic.name, row.partition_index): Commit(
                offset=row.committed_offset, leader_epoch=row.committed_leader_epoch, metadata=row.metadata or ""
            )
            for topic in group.topics
            for row in topic.partitions
            if row.error_code is ErrorCode.none and row.committed_offset >= 0
        }
    )


def _unknown(error: str) -> GroupAnswer:
    return GroupAnswer(offsets={}, error=error)
