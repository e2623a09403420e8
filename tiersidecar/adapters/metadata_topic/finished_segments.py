"""Follows the metadata topic of another cluster from where it ends: which segments are finished since."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from tiersidecar.adapters.kafka.aiokafka_settings import aiokafka_kwargs
from tiersidecar.adapters.kafka.broker import open_broker
from tiersidecar.adapters.kafka.connection import ConnectionLimits
from tiersidecar.adapters.kafka.security import SecuritySettings
from tiersidecar.adapters.kafka_clients import open_consumer, translated
from tiersidecar.domain.errors import BrokerRefusedError, CorruptDataError
from tiersidecar.domain.ids import RemoteLogSegmentId, topic_name_fault
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemotePartitionDeleteMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.metadata.serde import read_event
from tiersidecar.ports.bucket_events import FinishedSegment

_POLL_MS = 500
_MOST_BEGUN = 100_000
"""Copies of which is kept where they begin; the oldest are forgotten, and looked for in all of their partition."""


class FinishedSegments:
    """It is the :class:`~tiersidecar.ports.bucket_events.FollowFinished`."""

    def __init__(
        self, servers: str, security: SecuritySettings, *, topic: str, client_id: str, request_timeout_s: float
    ) -> None:
        self._servers, self._security, self._topic, self._client_id = servers, security, topic, client_id
        self._limits = ConnectionLimits(request_timeout_s=request_timeout_s)
        self._positions: dict[TopicPartition, int] = {}
        self._begun: dict[RemoteLogSegmentId, int] = {}

    async def begin(self) -> None:
        """Remember where the topic ends: what is finished from now on is yielded.

        Raises:
            BrokerUnreachableError, BrokerRefusedError: it cannot be asked.
        """
        async with self._consumer():
            return

    async def finished(self) -> AsyncGenerator[Sequence[FinishedSegment], None]:
        """Yield what is finished since :meth:`begin` or the last yield, as the records come."""
        async with self._consumer() as consumer:
            while True:
                with translated("Fetch", self._topic, self._servers):
                    batches: Mapping[TopicPartition, Sequence[Any]] = await consumer.getmany(timeout_ms=_POLL_MS)
                found = [one for records in batches.values() for record in records for one in self._finished_by(record)]
                for place, records in batches.items():
                    self._positions[place] = records[-1].offset + 1
                yield found

    def _finished_by(self, record: Any) -> Iterator[FinishedSegment]:
        try:
            event = read_event(record.value or b"", where=f"{record.topic}-{record.partition}@{record.offset}")
        except CorruptDataError:
            return  # the source's sidecars say so; what it would have reported, the next listing shows
        if isinstance(event, RemotePartitionDeleteMetadata):
            return
        if topic_name_fault(event.remote_log_segment_id.topic_id_partition.topic):
            return  # no key begins with it
        if isinstance(event, RemoteLogSegmentMetadata):
            self._begun[event.remote_log_segment_id] = event.start_offset
            if len(self._begun) > _MOST_BEGUN:
                del self._begun[next(iter(self._begun))]
        else:
            start_offset = self._begun.pop(event.remote_log_segment_id, None)
            if event.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                yield FinishedSegment(
                    segment_id=event.remote_log_segment_id, start_offset=start_offset, finished_ms=record.timestamp
                )

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[AIOKafkaConsumer]:
        """Open a consumer that goes on where the last one was, or at the end; what the topic has lost since, listings find."""
        places = await self._partitions()
        kwargs = aiokafka_kwargs(self._security)
        async with open_consumer(self._servers, kwargs, client_id=self._client_id) as consumer:
            with translated("Fetch", self._topic, self._servers):
                consumer.assign(places)
                ends = await consumer.end_offsets(places)
                firsts = await consumer.beginning_offsets(places)
            for place in places:
                known = self._positions.get(place, ends[place])
                self._positions[place] = known if firsts[place] <= known <= ends[place] else ends[place]
                consumer.seek(place, self._positions[place])
            yield consumer

    async def _partitions(self) -> list[TopicPartition]:
        client_id, limits = self._client_id, self._limits
        async with open_broker(self._servers, self._security, client_id=client_id, limits=limits) as broker:
            views = await broker.describe_partitions([self._topic])
        if not views:
            subject = f"topic {self._topic}"
            raise BrokerRefusedError(api="Metadata", subject=subject, error="UNKNOWN_TOPIC_OR_PARTITION")
        return [TopicPartition(self._topic, view.topic_id_partition.partition) for view in views]
