"""The metadata topic as it grows, read in a thread of its own: to act in the middle of a copy, one has to see it begin."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from aiokafka import AIOKafkaConsumer, TopicPartition

from tiersidecar.domain.segments import MetadataEvent
from tiersidecar.formats.metadata.serde import read_event


class MetadataTail:
    """Follows ``topic``, which must be there, from its start, whoever leads its partitions."""

    def __init__(self, client_settings: Mapping[str, str], topic: str, *, partitions: int) -> None:
        self._client_settings, self._topic, self._partitions = client_settings, topic, partitions
        self._events: list[MetadataEvent] = []
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tail of {topic}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(20)

    def events(self, start: int = 0) -> list[MetadataEvent]:
        """All events so far but the first ``start``, in order per user partition."""
        if self._failure is not None:
            raise AssertionError(f"the metadata topic cannot be followed: {self._failure!r}") from self._failure
        return self._events[start:]

    def _run(self) -> None:
        try:
            asyncio.run(self._follow())
        except BaseException as error:  # noqa: BLE001 - told by events, in the test's own thread
            self._failure = error

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
            while not self._stopping.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    self._events += [read_event(record.value, where=self._topic) for record in records]
