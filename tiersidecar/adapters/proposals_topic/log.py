"""Write and read the proposals topic (:mod:`tiersidecar.ports.proposals`): one partition, with retention by time.

A gateway only writes to it and needs no other right there.  The tier roles create it and read all of it.  Records are JSON
values with a schema version ``v``, without keys.  A client with Write may write anything, so records are read strictly, and
long ones are ignored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from tiersidecar.adapters.internal_topics import InternalTopic, TopicBroker, TopicFacts, ensure_topic
from tiersidecar.adapters.kafka_clients import KafkaTopicClients, TopicClients, translated
from tiersidecar.adapters.sessions import keep_trying, run_until_one_ends
from tiersidecar.domain.errors import BrokerRefusedError, CorruptDataError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, format_uuid, parse_uuid
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Offset
from tiersidecar.domain.proposals import DeleteProposal, ReceivedProposal
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.clock import Clock, Ids
from tiersidecar.ports.proposals import TakeProposals

SCHEMA_VERSION = 1
MAX_VALUE_BYTES = 24 * 1024
"""A topic's name has at most 249 bytes; names of clients are cut when they are written, and a character may take twelve."""
_MAX_TEXT = 512
_INT64_MAX = 2**63 - 1


def write_proposal(proposal: DeleteProposal) -> bytes:
    """Return the record's value."""
    topic_id_partition = proposal.topic_id_partition
    document = {
        "v": SCHEMA_VERSION,
        "kind": "delete-records",
        "cluster_id": proposal.cluster_id,
        "topic_id": format_uuid(topic_id_partition.topic_id),
        "topic": topic_id_partition.topic,
        "partition": topic_id_partition.partition,
        "offset": proposal.offset,
        "leader_epoch": proposal.leader_epoch,
        "low_watermark": proposal.low_watermark,
        "start_generation": proposal.start_generation,
        "principal": proposal.principal[:_MAX_TEXT],
        "client_id": proposal.client_id[:_MAX_TEXT],
        "address": proposal.address[:_MAX_TEXT],
        "gateway": proposal.gateway,
        "proposed_ms": proposal.proposed_ms,
    }
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def read_proposal(value: bytes | None, *, where: str) -> DeleteProposal:
    """Parse a record's value.

    Raises:
        CorruptDataError: it is none of this version's.
    """
    if value is None or len(value) > MAX_VALUE_BYTES:
        raise _corrupt(where, "no value" if value is None else f"{len(value)} bytes are too many")
    try:
        document = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _corrupt(where, f"no JSON: {type(error).__name__}") from error
    if not isinstance(document, dict):
        raise _corrupt(where, "not an object")
    if (document.get("v"), document.get("kind")) != (SCHEMA_VERSION, "delete-records"):
        raise _corrupt(where, "not of this version and kind")
    try:
        topic_id = parse_uuid(_text(document, "topic_id", where))
    except ValueError as error:
        raise _corrupt(where, "topic_id is not a topic id") from error
    return DeleteProposal(
        cluster_id=_text(document, "cluster_id", where),
        topic_id_partition=TopicIdPartition(
            topic_id=topic_id,
            topic=_text(document, "topic", where),
            partition=_integer(document, "partition", where, at_most=2**31 - 1),
        ),
        offset=Offset(_integer(document, "offset", where)),
        leader_epoch=LeaderEpoch(_integer(document, "leader_epoch", where, at_most=2**31 - 1)),
        low_watermark=Offset(_integer(document, "low_watermark", where, at_least=-1)),
        start_generation=_integer(document, "start_generation", where),
        principal=_text(document, "principal", where),
        client_id=_text(document, "client_id", where),
        address=_text(document, "address", where),
        gateway=BrokerId(_integer(document, "gateway", where, at_most=2**31 - 1)),
        proposed_ms=_integer(document, "proposed_ms", where),
    )


def _text(document: dict[str, Any], name: str, where: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise _corrupt(where, f"{name} is no text of at most {_MAX_TEXT} characters")
    return value


def _integer(document: dict[str, Any], name: str, where: str, *, at_least: int = 0, at_most: int = _INT64_MAX) -> int:
    value = document.get(name)
    if type(value) is not int or not at_least <= value <= at_most:
        raise _corrupt(where, f"{name} is not a number from {at_least} to {at_most}")
    return value


def _corrupt(where: str, reason: str) -> CorruptDataError:
    return CorruptDataError(where=where, position=0, reason=reason)


_POLL_MS = 200
_MAX_RECORDS = 100
_FETCH_MAX_WAIT_MS = 5_000
_PAUSE_S = 0.05
"""After as many records as are taken at once: a flood is read at 2,000 records a second, and costs no more."""
_WATCH_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalsTopicSettings:
    """``security`` are keyword arguments of aiokafka's clients."""

    bootstrap_servers: str
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    topic: str = "__tiersidecar_proposals"
    replication_factor: int = 3
    min_insync_replicas: int = 2
    retention_ms: int = 86_400_000
    retry_interval_ms: int = 100
    retry_max_interval_ms: int = 10_000
    client_id: str = "tiersidecar"

    @property
    def required_topic(self) -> InternalTopic:
        """Return the topic's settings: the broker's time, so that an old record cannot look new; kept for inspection."""
        return InternalTopic(
            name=self.topic,
            partitions=1,
            replication_factor=self.replication_factor,
            min_insync_replicas=self.min_insync_replicas,
            settings={
                "cleanup.policy": "delete",
                "retention.ms": str(self.retention_ms),
                "retention.bytes": str(64 * 1024 * 1024),
                "segment.bytes": str(16 * 1024 * 1024),
                "max.message.bytes": str(64 * 1024),
                "message.timestamp.type": "LogAppendTime",
                "unclean.leader.election.enable": "false",
            },
        )


@asynccontextmanager
async def open_proposals_topic(
    settings: ProposalsTopicSettings,
    *,
    broker: TopicBroker,
    clock: Clock,
    ids: Ids,
    clients: TopicClients | None = None,
) -> AsyncIterator[ProposalsTopic]:
    """Entering does no I/O."""
    clients = clients or KafkaTopicClients(
        settings.bootstrap_servers,
        settings.security,
        client_id=settings.client_id,
        fetch_max_wait_ms=_FETCH_MAX_WAIT_MS,
    )
    topic = ProposalsTopic(settings, broker=broker, clock=clock, ids=ids, clients=clients)
    try:
        yield topic
    finally:
        await topic.close()


class ProposalsTopic:
    """The :class:`~tiersidecar.ports.proposals.Proposals`; made by :func:`open_proposals_topic`."""

    def __init__(
        self, settings: ProposalsTopicSettings, *, broker: TopicBroker, clock: Clock, ids: Ids, clients: TopicClients
    ) -> None:
        self._settings, self._broker, self._clock, self._ids = settings, broker, clock, ids
        self._clients, self._producer = clients, clients.producer()
        self._partition = TopicPartition(settings.topic, 0)
        self._read_to: tuple[bytes, int] | None = None
        self._is_in_use = False

    @property
    def is_in_use(self) -> bool:
        """Return whether there has been a proposal, ever, as far as is known."""
        return self._is_in_use

    async def propose(self, proposal: DeleteProposal) -> None:
        """Return once the proposal is durable (acks=all)."""
        await self._producer.send(
            self._settings.topic,
            partition=0,
            key=None,
            value=write_proposal(proposal),
            timestamp_ms=proposal.proposed_ms,
        )

    async def close(self) -> None:
        await self._producer.close()

    async def keep_reading(self, take: TakeProposals, *, max_age_ms: int) -> None:
        """Create the topic if it is missing; pass ``take`` new proposals and recent ones; never end."""
        await keep_trying(
            lambda connected: self._session(take, max_age_ms, connected),
            topic=self._settings.topic,
            clock=self._clock,
            ids=self._ids,
            first_interval_ms=self._settings.retry_interval_ms,
            max_interval_ms=self._settings.retry_max_interval_ms,
            give_up_after_ms=None,
            on_failure=lambda error: None,
        )

    async def _session(self, take: TakeProposals, max_age_ms: int, connected: Callable[[], None]) -> None:
        facts = await ensure_topic(self._broker, self._settings.required_topic)
        position = await self._position(facts, self._clock.now_ms() - max_age_ms)
        self._is_in_use = await self._offset(facts, OffsetSpec.LATEST) > 0
        connected()
        await run_until_one_ends(
            {
                "proposals": self._read(facts, position, take),
                "proposals, watch": self._watch(facts),
            }
        )

    async def _position(self, facts: TopicFacts, since_ms: int) -> int:
        """Return the offset of the first unread record that is not too old: after hours of isolation none is decided late."""
        found = await self._offset(facts, since_ms)
        position = found if found >= 0 else await self._offset(facts, OffsetSpec.LATEST)
        if self._read_to is None or self._read_to[0] != facts.topic_id:
            return position
        return max(position, self._read_to[1])

    async def _offset(self, facts: TopicFacts, spec: OffsetSpec | int) -> int:
        asked = TopicIdPartition(topic_id=facts.topic_id, topic=self._settings.topic, partition=0)
        answer = (await self._broker.list_offsets({asked: NO_EPOCH}, spec))[asked]
        if answer.error is not None:
            raise BrokerRefusedError(api="ListOffsets", subject=self._settings.topic, error=answer.error)
        return answer.offset

    async def _watch(self, before: TopicFacts) -> None:
        """Watch for a topic that was made anew, or another leader, and begin afresh then."""
        while True:
            await self._clock.sleep(_WATCH_S)
            facts = await ensure_topic(self._broker, self._settings.required_topic, may_create=False)
            if (facts.topic_id, facts.leader_epochs) != (before.topic_id, before.leader_epochs):
                raise BrokerRefusedError(api="Metadata", subject=self._settings.topic, error="leader changed")

    async def _read(self, facts: TopicFacts, position: int, take: TakeProposals) -> None:
        async with self._clients.open_consumer() as consumer:
            consumer.assign([self._partition])
            consumer.seek(self._partition, position)
            while True:
                records = await self._some(consumer)
                await take([self._received(record) for record in records])
                if records:
                    self._is_in_use = True
                    self._read_to = (facts.topic_id, records[-1].offset + 1)
                if len(records) >= _MAX_RECORDS:
                    await self._clock.sleep(_PAUSE_S)

    async def _some(self, consumer: AIOKafkaConsumer) -> list[ConsumerRecord]:
        await asyncio.sleep(0)
        with translated("Fetch", self._settings.topic, self._settings.bootstrap_servers):
            found = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_MAX_RECORDS)
        return [record for records in found.values() for record in records]

    def _received(self, record: ConsumerRecord) -> ReceivedProposal:
        where = f"{self._settings.topic}-0 offset {record.offset}"
        proposal, fault = None, ""
        try:
            proposal = read_proposal(record.value, where=where)
        except CorruptDataError as error:
            fault = error.reason
        return ReceivedProposal(at=record.offset, proposal=proposal, fault=fault)
