"""Topics that were made a moment ago: of those, what a client may do waits until they are known here.

A client knows a new topic as soon as its broker does, the sidecar only once it has looked at the cluster.  What the broker
answers about a topic that is not known here proves nothing of the topic that is known later.  So a request that needs such
proof waits before it is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v10.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v10.response import MetadataResponse
from kio.schema.types import TopicName

from tiersidecar.domain.ids import BrokerId, Uuid
from tiersidecar.formats.wire.messages import read_message, write_message
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.services.gateway.exchange import Exchange, UpstreamClosedError
from tiersidecar.services.gateway.messages import RowKey
from tiersidecar.services.gateway.request_heads import ApiKey
from tiersidecar.services.gateway.tiered_partitions import TieredPartitions

log = structlog.get_logger(__name__)

_METADATA_VERSION = 10
"""The first that tells topic ids."""
_LOOK_AGAIN_S = 0.05
"""At what is known of a new topic: the cluster is looked at for it about as often."""


class NewTopics:
    """Of the partitions that ``broker_id``, the broker behind this gateway, leads."""

    def __init__(self, *, broker_id: BrokerId, tiered: TieredPartitions, blocking: Blocking, clock: Clock) -> None:
        self._broker_id, self._tiered = broker_id, tiered
        self._blocking, self._clock = blocking, clock

    async def become_known(
        self, exchange: Exchange, keys: Collection[RowKey], is_unknown: Callable[[RowKey], bool], wait_s: float
    ) -> None:
        """Return once none of ``keys`` that this broker leads is unknown, or ``wait_s`` are over.

        Which it leads, the broker tells the client itself: so nobody learns by waiting that a topic exists, and what the
        broker refuses anyway, it refuses at once.

        Raises:
            UpstreamClosedError: a topic was made anew meanwhile, and the client has asked for the former; or the broker
                connection is gone.
            MalformedMessageError: the broker's answer is none.
        """
        led, waiting = dict[RowKey, Uuid](), set(keys)
        try:
            async with asyncio.timeout(wait_s):
                led = await self._led(exchange, {topic for topic, _ in keys}, wait_s)
                waiting &= led.keys()
                while waiting := {key for key in waiting if is_unknown(key)}:
                    await self._clock.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            log.warning("gateway.new_topic.unknown", topics=sorted({topic for topic, _ in waiting})[:_MOST_NAMED])
        for (topic, _), topic_id in led.items():
            if self._tiered.topic_id(topic) not in (None, topic_id):
                raise UpstreamClosedError(f"topic {topic} was made anew while a request about it waited")

    async def _led(self, exchange: Exchange, topics: Collection[str], wait_s: float) -> dict[RowKey, Uuid]:
        request = MetadataRequest(
            topics=tuple(MetadataRequestTopic(topic_id=None, name=TopicName(topic)) for topic in sorted(topics)),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        body = await self._blocking.run(write_message, request)
        answer = await exchange.upstream.ask(ApiKey.METADATA, _METADATA_VERSION, body, timeout_s=wait_s)
        return await self._blocking.run(self._led_in, bytes(answer))

    def _led_in(self, answer: bytes) -> dict[RowKey, Uuid]:
        message, _ = read_message(MetadataResponse, answer)
        return {
            (str(topic.name), int(row.partition_index)): Uuid(topic.topic_id.bytes)
            for topic in message.topics
            if topic.error_code is ErrorCode.none and topic.topic_id is not None
            for row in topic.partitions
            if int(row.leader_id) == int(self._broker_id)
        }


_MOST_NAMED = 20
