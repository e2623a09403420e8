"""The metadata topic as it grows, read in a thread of its own: to act in the middle of a copy, one has to see it begin."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.support.background_thread import BackgroundThread
from tiersidecar.domain.segments import MetadataEvent
from tiersidecar.formats.metadata.serde import read_event


class MetadataTail(BackgroundThread):
    """Follows ``topic``, which must be there, from its start, whichever broker leads its partitions."""

    def __init__(self, client_settings: Mapping[str, str], topic: str, *, partitions: int) -> None:
        super().__init__(f"tail of {topic}", ends_within_s=20)
        self._client_settings, self._topic, self._partitions = client_settings, topic, partitions
        self._events: list[MetadataEvent] = []

    def events(self, start: int = 0) -> list[MetadataEvent]:
        """Return all events so far but the first ``start``, in order per user partition."""
        self.raise_failure()
        return self._events[start:]

    def work(self) -> None:
        asyncio.run(self._follow())

    async def _follow(self) -> None:
        partitions = [TopicPartition(self._topic, number) for number in range(self._partitions)]
        consumer = AIOKafkaConsumer(
            **self._client_settings,
            auto_offset_reset="none",
            enable_auto_commit=False,
            metadata_max_age_ms=1_000,
            fetch_max_wait_ms=100,
        )
        async with consumer:
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 0)
            while not self.stopping.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    self._events += [read_event(record.value, where=self._topic) for record in records]
