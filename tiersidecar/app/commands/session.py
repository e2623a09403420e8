"""Open what a command works with: broker, state topic, and the metadata of the partitions concerned."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.kafka.broker import KafkaBroker, open_broker
from tiersidecar.adapters.kafka.connection import ConnectionLimits
from tiersidecar.app.builders.logs import open_metadata_log, open_state_log
from tiersidecar.app.builders.security import bootstrap_servers, broker_security
from tiersidecar.app.config.config import Config
from tiersidecar.domain.errors import BrokerRefusedError, MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView, RemoteLogSegmentMetadata
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metadata_log import MetadataLog
from tiersidecar.ports.state_log import TopicState
from tiersidecar.ports.state_records import RequestingStateLog
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.tasks.policies import resolved_policy

T = TypeVar("T")

_READY_TIMEOUT_S = 60.0
_LOOK_AGAIN_S = 0.05


def operator(command: str) -> str:
    """Return the author for state records: the user's name and the command."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        name = "an operator"
    return f"{name}, {command}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Connections of one command, open while it runs."""

    config: Config
    broker: KafkaBroker
    state: RequestingStateLog
    metadata: MetadataLog | None
    clock: Clock

    async def partitions(self, topic: str) -> tuple[LeaderView, ...]:
        """Return all partitions of a topic, ascending.

        Raises:
            BrokerRefusedError: there is no such topic.
        """
        views = await self.broker.describe_partitions([topic])
        if not views:
            raise BrokerRefusedError(api="Metadata", subject=f"topic {topic}", error="UNKNOWN_TOPIC_OR_PARTITION")
        return views

    async def partition(self, topic: str, partition: int) -> LeaderView:
        """Return one partition.

        Raises:
            BrokerRefusedError: the topic has no partition of this number.
        """
        for view in await self.partitions(topic):
            if view.topic_id_partition.partition == partition:
                return view
        raise BrokerRefusedError(api="Metadata", subject=f"{topic}-{partition}", error="UNKNOWN_TOPIC_OR_PARTITION")

    def topic_state(self, topic_id: Uuid) -> TopicState | None:
        """Return the state topic's record of the topic."""
        return self.state.topic_state(topic_id)

    def policy(self, topic: str, topic_id: Uuid) -> TopicPolicy | None:
        """Return how the topic is tiered; None if it is not."""
        return resolved_policy(self.config.policy_for(topic), self.topic_state(topic_id), self.config.unnamed_policy)

    async def offset(self, view: LeaderView, spec: OffsetSpec | int) -> Offset:
        """Return an offset of the partition, fenced by its leader epoch; -1 if no record has that time.

        Raises:
            BrokerRefusedError: with the partition's error.
        """
        topic_id_partition = view.topic_id_partition
        answer = (await self.broker.list_offsets({topic_id_partition: view.leader_epoch}, spec))[topic_id_partition]
        if answer.error is not None:
            raise BrokerRefusedError(api="ListOffsets", subject=str(topic_id_partition), error=answer.error)
        return answer.offset

    async def remote_segments(
        self, partitions: Iterable[TopicIdPartition]
    ) -> dict[TopicIdPartition, list[RemoteLogSegmentMetadata]]:
        """Return the remote segments of each partition, ascending by start offset.

        Raises:
            MetadataNotReadyError: the metadata topic could not be replayed in time.
        """
        wanted = list(partitions)
        metadata = await self.follow(wanted)
        return {
            topic_id_partition: list(metadata.list_remote_log_segments(topic_id_partition))
            for topic_id_partition in wanted
        }

    async def unless_refused(self, work: Coroutine[object, object, T]) -> T:
        """Return what ``work``, which waits for the metadata, does; a right that is missing ends it.

        Raises:
            BrokerRefusedError: a right on the metadata topic is missing.
        """
        assert self.metadata is not None, "the command was opened without metadata"
        working = asyncio.ensure_future(work)
        try:
            while not working.done():
                if (refusal := self.metadata.missing_right) is not None:
                    raise refusal
                await asyncio.wait([working], timeout=_LOOK_AGAIN_S)
            return await working
        finally:
            working.cancel()

    async def follow(self, partitions: Sequence[TopicIdPartition]) -> MetadataLog:
        """Return the metadata of only these partitions, replayed to the end that the topic has now.

        Raises:
            MetadataNotReadyError: the metadata topic could not be replayed in time.
            BrokerRefusedError: a right on it is missing.
        """
        assert self.metadata is not None, "the command was opened without metadata"
        await self.metadata.assign(partitions)
        for topic_id_partition in partitions:
            try:
                async with asyncio.timeout(_READY_TIMEOUT_S):
                    await self.unless_refused(self.metadata.wait_until_ready(topic_id_partition))
                    await self.metadata.catch_up(topic_id_partition)  # one that was followed before is ready at once
            except TimeoutError:
                reason = self.metadata.readiness_reason or "it was not replayed in time"
                raise MetadataNotReadyError(subject=f"{topic_id_partition} ({reason})") from None
        return self.metadata


@asynccontextmanager
async def open_session(config: Config, *, with_metadata: bool) -> AsyncIterator[Session]:
    """Connect, and wait until the state topic has been replayed.

    Raises:
        MetadataNotReadyError: it was not, in time.
        BrokerRefusedError: a right is missing.
        ConfigError: it is the configuration of a read-only mount.
    """
    config.require_own()
    clock, ids, telemetry = SystemClock(), SystemIds(), NoTelemetry()
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(
            open_broker(
                bootstrap_servers(config.broker),
                broker_security(config.broker),
                client_id=f"{config.broker.client_id}-command",
                limits=ConnectionLimits(request_timeout_s=config.broker.request_timeout_ms / 1000),
            )
        )
        await broker.describe_cluster()  # says at once what stands in the way
        state = await stack.enter_async_context(
            open_state_log(config, broker=broker, clock=clock, ids=ids, telemetry=telemetry)
        )
        metadata = None
        if with_metadata:
            blocking = await stack.enter_async_context(ThreadBlocking(max_threads=2))
            metadata = await stack.enter_async_context(
                open_metadata_log(
                    config,
                    frozenset(),
                    broker=broker,
                    kafka_version=await broker.kafka_version(),
                    blocking=blocking,
                    clock=clock,
                    ids=ids,
                    telemetry=telemetry,
                )
            )
        await _until_ready(state, clock)
        yield Session(config=config, broker=broker, state=state, metadata=metadata, clock=clock)


async def _until_ready(state: RequestingStateLog, clock: Clock) -> None:
    """Wait: an outage may pass within the time limit; a missing right is reported at once."""
    try:
        async with asyncio.timeout(_READY_TIMEOUT_S):
            while state.readiness_reason is not None:
                if (refusal := state.missing_right) is not None:
                    raise refusal
                await clock.sleep(_LOOK_AGAIN_S)
    except TimeoutError:
        raise MetadataNotReadyError(subject=f"the state topic ({state.readiness_reason})") from None
