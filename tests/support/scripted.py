"""Ports that do what a test asks of them: a broker with given offsets, failpoints that act, a state log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tests.support.topic_settings import with_names
from tiersidecar.domain.cleaner import CleanerClaim, merged_claims
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.lease import Lease, accepted_lease
from tiersidecar.domain.offsets import NO_OFFSET, LeaderEpoch, Offset
from tiersidecar.domain.policy import Pause, PausedThing, PauseKind, why_paused
from tiersidecar.domain.segments import LeaderView
from tiersidecar.domain.trash import TrashEntry, TrashId, merged_entries
from tiersidecar.ports.broker import (
    ClusterDescription,
    EpochAsked,
    EpochEndAnswer,
    GroupAnswer,
    GroupType,
    OffsetAnswer,
    OffsetSpec,
    ReplicaStarts,
    TrimAnswer,
)
from tiersidecar.ports.state_log import ForeignState, PartitionOfTopic, PartitionState, TopicState
from tiersidecar.ports.state_records import RecopyRequest

STRICT_SETTINGS: Mapping[str, str | None] = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
    "remote.storage.enable": "false",
}


class ScriptedGroups:
    """Groups with given offsets by topic and partition; ``error`` answers the lists, ``errors`` single groups."""

    def __init__(self) -> None:
        self.consumers: dict[str, dict[tuple[str, int], int]] = {}
        self.shares: dict[str, dict[tuple[str, int], int]] = {}
        self.errors: dict[str, str] = {}
        self.error: str | None = None
        self.asked: list[str] = []

    async def list_groups(self) -> dict[str, GroupType]:
        self.asked.append("list")
        self._refuse()
        return dict.fromkeys(self.consumers, GroupType.CONSUMER) | dict.fromkeys(self.shares, GroupType.SHARE)

    async def list_share_groups(self) -> tuple[str, ...]:
        self.asked.append("list shares")
        self._refuse()
        return tuple(self.shares)

    async def committed_offsets(
        self, groups: Collection[str], partitions: Collection[tuple[str, int]]
    ) -> dict[str, GroupAnswer]:
        self.asked.append("committed")
        return {group: self._answer(group, self.consumers.get(group, {}), partitions) for group in groups}

    async def share_start_offsets(
        self, groups: Collection[str], partitions: Collection[tuple[str, int]]
    ) -> dict[str, GroupAnswer]:
        self.asked.append("share starts")
        return {group: self._answer(group, self.shares[group], partitions) for group in groups}

    def _refuse(self) -> None:
        if self.error is not None:
            raise BrokerRefusedError(api="ListGroups", subject="the cluster", error=self.error)

    def _answer(
        self, group: str, offsets: Mapping[tuple[str, int], int], partitions: Collection[tuple[str, int]]
    ) -> GroupAnswer:
        asked = {key: Offset(offset) for key, offset in offsets.items() if key in partitions}
        return GroupAnswer(offsets=asked, error=self.errors.get(group))


class ScriptedBroker:
    """``last_stable_offsets`` and ``log_starts`` by partition; an ``error`` name answers everything that is fenced, and
    ``leader_epochs`` are those of partitions that are led by now in another epoch than before; ``epochs`` are those that a
    log knows, all of which end at ``epoch_ends``."""

    def __init__(self) -> None:
        self.last_stable_offsets: dict[TopicIdPartition, int] = {}
        self.log_starts: dict[TopicIdPartition, int] = {}
        self.settings: dict[str, Mapping[str, str | None]] = {}
        self.hides_settings = False
        self.views: tuple[LeaderView, ...] = ()
        self.error: str | None = None
        self.leader_epochs: dict[TopicIdPartition, int] = {}
        self.epochs: dict[TopicIdPartition, tuple[int, ...]] = {}
        self.epoch_ends: dict[TopicIdPartition, int] = {}
        self.groups = ScriptedGroups()
        self.deleted: list[tuple[TopicIdPartition, int]] = []
        self.replica_starts: dict[int, int | str] = {}
        self.refuses_deletes: str | None = None

    async def kafka_version(self) -> tuple[int, int]:
        return (4, 3)

    async def replica_log_starts(self, views: Sequence[LeaderView]) -> dict[TopicIdPartition, ReplicaStarts]:
        """Return for every partition those of ``replica_starts``: by broker where its log starts, or why it does not say."""
        starts = {BrokerId(one): Offset(start) for one, start in self.replica_starts.items() if isinstance(start, int)}
        silent = {BrokerId(one): why for one, why in self.replica_starts.items() if isinstance(why, str)}
        return {view.topic_id_partition: ReplicaStarts(starts=starts, silent=silent) for view in views}

    async def list_offsets(
        self,
        partitions: Mapping[TopicIdPartition, LeaderEpoch],
        spec: OffsetSpec | int,
        *,
        read_committed: bool = False,
    ) -> dict[TopicIdPartition, OffsetAnswer]:
        known = self.log_starts if spec == OffsetSpec.EARLIEST else self.last_stable_offsets
        return {
            topic_id_partition: OffsetAnswer(
                offset=Offset(known.get(topic_id_partition, 0)),
                timestamp_ms=-1,
                leader_epoch=LeaderEpoch(0),
                error=self.error,
            )
            for topic_id_partition in partitions
        }

    async def end_of_epochs(
        self, asked: Mapping[TopicIdPartition, EpochAsked]
    ) -> dict[TopicIdPartition, EpochEndAnswer]:
        """Answer as the logs in ``epochs`` do; one that is not there knows its leader's epoch."""
        return {topic_id_partition: self._end_of(topic_id_partition, one) for topic_id_partition, one in asked.items()}

    def _end_of(self, topic_id_partition: TopicIdPartition, asked: EpochAsked) -> EpochEndAnswer:
        known = self.epochs.get(topic_id_partition, (asked.current_epoch,))
        if self.error is not None or asked.epoch > max(known, default=-1):
            return EpochEndAnswer(epoch=LeaderEpoch(-1), end_offset=Offset(-1), error=self.error)
        last = max((one for one in known if one <= asked.epoch), default=asked.epoch)
        return EpochEndAnswer(epoch=LeaderEpoch(last), end_offset=Offset(self.epoch_ends.get(topic_id_partition, 0)))

    async def delete_records(
        self,
        offsets: Mapping[TopicIdPartition, Offset],
        *,
        leader_epochs: Mapping[TopicIdPartition, LeaderEpoch] | None = None,
    ) -> dict[TopicIdPartition, TrimAnswer]:
        asked = leader_epochs or {}
        if any(
            self.leader_epochs.get(topic_id_partition, asked.get(topic_id_partition)) != asked.get(topic_id_partition)
            for topic_id_partition in offsets
        ):
            return {
                topic_id_partition: TrimAnswer(low_watermark=Offset(-1), error="FENCED_LEADER_EPOCH")
                for topic_id_partition in offsets
            }
        if self.refuses_deletes is not None:
            refused = TrimAnswer(low_watermark=Offset(-1), error=self.refuses_deletes)
            return dict.fromkeys(offsets, refused)
        self.deleted += list(offsets.items())
        self.log_starts.update(offsets)
        return {topic_id_partition: TrimAnswer(low_watermark=offset) for topic_id_partition, offset in offsets.items()}

    async def describe_topic_configs(
        self, topics: Iterable[str], *, names: Sequence[str] | None = None
    ) -> dict[str, dict[str, str | None]]:
        if self.hides_settings:
            return {}
        return {topic: with_names(self.settings.get(topic, STRICT_SETTINGS), names) for topic in topics}

    async def describe_broker_configs(self, broker_id: int) -> dict[str, str | None]:
        return {}

    async def describe_partitions(self, topics: Sequence[str] | None = None) -> tuple[LeaderView, ...]:
        return self.views

    async def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription(cluster_id="scripted", brokers={})


class ScriptedFailpoints:
    """Calls ``actions[name]`` when a place is passed, and notes all names in ``passed``."""

    def __init__(self, actions: Mapping[str, Callable[[], Awaitable[None]]] | None = None) -> None:
        self.actions, self.passed = dict(actions or {}), []  # type: ignore[var-annotated]

    async def reach(self, name: str) -> None:
        self.passed.append(name)
        action = self.actions.get(name)
        if action is not None:
            await action()


class MemoryStateLog:
    """``ports.state_log.StateLog`` that keeps what is published.  What another process publishes is seen by a read-back or a
    :meth:`catch_up`, and not before."""

    halted_reason: str | None = None
    readiness_reason: str | None = None
    missing_right: BrokerRefusedError | None = None
    topic_id: str = "state-topic-id"

    def __init__(self) -> None:
        self.losses: set[str] = set()
        self.paused: dict[PausedThing, Pause] = {}
        self.partition_states: dict[TopicIdPartition, PartitionState] = {}
        self.of_the_first_format: set[TopicIdPartition] = set()
        self.topics: dict[Uuid, TopicState] = {}
        self.requests: list[RecopyRequest] = []
        self.leases: dict[str, Lease] = {}
        self.entries: dict[tuple[TopicIdPartition, TrashId], TrashEntry] = {}
        self.claims: dict[TopicIdPartition, tuple[CleanerClaim, ...]] = {}
        self._unread: list[tuple[TopicIdPartition, PartitionState]] = []
        self.said: list[frozenset[PartitionOfTopic] | None] = []
        """The partitions that each record is of; None for what may concern any."""

    def accepted_losses(self) -> Collection[str]:
        return self.losses

    def why_paused(self, topic_id: Uuid | None, kind: PauseKind) -> str:
        return why_paused(self.paused, topic_id, kind)

    def pauses(self) -> Sequence[Pause]:
        return list(self.paused.values())

    async def publish_pause(self, pause: Pause) -> None:
        self.paused[pause.thing] = pause
        self.said.append(None)

    async def forget_pause(self, pause: Pause) -> None:
        self.paused.pop(pause.thing, None)
        self.said.append(None)

    async def accept_losses(self, topic_ids: Mapping[str, str], *, by: str) -> None:
        self.losses |= set(topic_ids.values())
        self.said.append(None)

    async def catch_up(self) -> None:
        self._read()

    def publish_elsewhere(self, topic_id_partition: TopicIdPartition, state: PartitionState) -> None:
        """Take another process's publish, durable at once."""
        self._unread.append((topic_id_partition, state))

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        for topic_id_partition, state in unread:
            self.partition_states[topic_id_partition] = self.partition_state(topic_id_partition).merged_with(state)
            self._note(topic_id_partition)

    def _note(self, topic_id_partition: TopicIdPartition) -> None:
        self.said.append(frozenset({(topic_id_partition.topic_id, topic_id_partition.partition)}))

    @property
    def changes(self) -> int:
        return len(self.said)

    def changed_since(self, changes: int) -> frozenset[PartitionOfTopic] | None:
        said = self.said[changes:] if changes >= 0 else [None]
        return None if None in said else frozenset[PartitionOfTopic]().union(*(one for one in said if one is not None))

    async def advanced(self) -> None:
        """Wait for ever: what others write, they write while no caller waits for it."""
        await asyncio.Event().wait()

    def partition_state(self, topic_id_partition: TopicIdPartition) -> PartitionState:
        return self.partition_states.get(topic_id_partition, PartitionState())

    def highest_start(self, topic_id: Uuid, partition: int) -> Offset:
        states = self.partition_states.items()
        return max(
            (
                state.highest_start
                for topic_id_partition, state in states
                if (topic_id_partition.topic_id, topic_id_partition.partition) == (topic_id, partition)
            ),
            default=NO_OFFSET,
        )

    def topic_state(self, topic_id: Uuid) -> TopicState | None:
        return self.topics.get(topic_id)

    def partitions(self) -> Sequence[TopicIdPartition]:
        return tuple(self.partition_states)

    def is_ours(self, topic_id_partition: TopicIdPartition) -> bool:
        return topic_id_partition in self.partition_states and topic_id_partition not in self.of_the_first_format

    def foreign_partitions(self) -> Mapping[TopicIdPartition, ForeignState]:
        return {}

    async def publish_partition_state(self, topic_id_partition: TopicIdPartition, state: PartitionState) -> None:
        self._read()
        self.partition_states[topic_id_partition] = self.partition_state(topic_id_partition).merged_with(state)
        self.of_the_first_format.discard(topic_id_partition)
        self._note(topic_id_partition)

    async def publish_topic_state(self, topic_id: Uuid, state: TopicState) -> None:
        self.topics[topic_id] = state
        self.said.append(None)

    async def forget_partition(self, topic_id_partition: TopicIdPartition) -> None:
        self.partition_states.pop(topic_id_partition, None)
        self.claims.pop(topic_id_partition, None)
        self.said.append(None)
        await self.take_out_of_trash(topic_id_partition, self.trash(topic_id_partition))

    async def forget_topic(self, topic_id: Uuid) -> None:
        self.topics.pop(topic_id, None)
        self.said.append(None)

    def recopies(self, topic_id_partition: TopicIdPartition) -> Sequence[RecopyRequest]:
        return [request for request in self.requests if request.topic_id_partition == topic_id_partition]

    async def request_recopy(self, request: RecopyRequest) -> None:
        await self.forget_recopy(request)
        self.requests.append(request)
        self._note(request.topic_id_partition)

    async def decline_recopy(self, request: RecopyRequest, broker_id: BrokerId, reason: str) -> None:
        self.requests = [
            replace(one, declined={**one.declined, broker_id: reason}) if one.is_same(request) else one
            for one in self.requests
        ]
        self._note(request.topic_id_partition)

    async def forget_recopy(self, request: RecopyRequest) -> None:
        self.requests = [one for one in self.requests if not one.is_same(request)]
        self.said.append(None)

    def lease(self, name: str) -> Lease | None:
        return self.leases.get(name)

    def known_leases(self) -> Sequence[Lease]:
        return list(self.leases.values())

    async def publish_lease(self, lease: Lease) -> Lease:
        self.leases[lease.name] = accepted_lease(self.leases.get(lease.name), lease)
        return self.leases[lease.name]

    def cleaner_claims(self, topic_id_partition: TopicIdPartition) -> Sequence[CleanerClaim]:
        return self.claims.get(topic_id_partition, ())

    async def publish_cleaner_claim(self, topic_id_partition: TopicIdPartition, claim: CleanerClaim) -> None:
        self.claims[topic_id_partition] = merged_claims([*self.cleaner_claims(topic_id_partition), claim])

    def trash(self, topic_id_partition: TopicIdPartition) -> Sequence[TrashEntry]:
        entries = (entry for (owner, _), entry in self.entries.items() if owner == topic_id_partition)
        return list(merged_entries([*entries, *self.partition_state(topic_id_partition).kept]))

    def trash_partitions(self) -> Sequence[TopicIdPartition]:
        return sorted(
            {topic_id_partition for topic_id_partition, _ in self.entries}
            | {topic_id_partition for topic_id_partition, state in self.partition_states.items() if state.kept}
        )

    async def put_into_trash(self, topic_id_partition: TopicIdPartition, entries: Iterable[TrashEntry]) -> None:
        for entry in entries:
            known = self.entries.get((topic_id_partition, entry.id), entry)
            self.entries[topic_id_partition, entry.id] = known.merged_with(entry)
            self._note(topic_id_partition)

    async def take_out_of_trash(self, topic_id_partition: TopicIdPartition, entries: Iterable[TrashEntry]) -> None:
        for entry in entries:
            known = self.entries.get((topic_id_partition, entry.id), entry)
            if entry.contains(known):
                self.entries.pop((topic_id_partition, entry.id), None)
                self._note(topic_id_partition)
