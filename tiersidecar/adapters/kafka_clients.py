"""aiokafka's clients, set up as internal topics need them, and its errors as ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, NodeNotReadyError, RequestTimedOutError

from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError

_REQUEST_TIMEOUT_MS = 15_000
_RETRY_BACKOFF_MS = 100
_MAX_PARTITION_FETCH_BYTES = 1024 * 1024
_STOP_TIMEOUT_S = 10
_UNREACHABLE = (KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError, RequestTimedOutError)


class SendRecord(Protocol):
    """What is asked of :class:`KeptProducer`."""

    async def send(
        self, topic: str, *, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: int
    ) -> int: ...

    async def close(self) -> None: ...


class TopicClients(Protocol):
    """Clients of an internal topic: aiokafka's, or simulated ones."""

    def producer(self) -> SendRecord: ...

    def open_consumer(self) -> AbstractAsyncContextManager[Any]:
        """``assign``, ``seek``, ``getmany`` and ``position`` are asked of it, as of :class:`AIOKafkaConsumer`."""


class KafkaTopicClients:
    """The real ones."""

    def __init__(self, bootstrap_servers: str, security: Mapping[str, Any], *, client_id: str) -> None:
        self._bootstrap_servers, self._security, self._client_id = bootstrap_servers, security, client_id

    def producer(self) -> KeptProducer:
        return KeptProducer(self._bootstrap_servers, self._security, client_id=self._client_id)

    def open_consumer(self) -> AbstractAsyncContextManager[AIOKafkaConsumer]:
        return open_consumer(self._bootstrap_servers, self._security, client_id=self._client_id)


@asynccontextmanager
async def open_consumer(
    bootstrap_servers: str, security: Mapping[str, Any], *, client_id: str
) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer without a group, that commits nothing and never resets an offset by itself (S-093).

    Raises:
        BrokerUnreachableError: no broker of ``bootstrap_servers`` answers.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        client_id=client_id,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_uncommitted",
        max_partition_fetch_bytes=_MAX_PARTITION_FETCH_BYTES,
        request_timeout_ms=_REQUEST_TIMEOUT_MS,
        retry_backoff_ms=_RETRY_BACKOFF_MS,
        **security,
    )
    try:
        with translated("Fetch", "metadata", bootstrap_servers):
            await consumer.start()
        yield consumer
    finally:
        await _stop(consumer.stop(), consumer._client)  # noqa: SLF001 - see _stop


class KeptProducer:
    """An idempotent producer with acks=all, started when it is first needed and again after an error that it cannot
    survive (S-090)."""

    def __init__(self, bootstrap_servers: str, security: Mapping[str, Any], *, client_id: str) -> None:
        self._bootstrap_servers, self._security, self._client_id = bootstrap_servers, security, client_id
        self._starting = asyncio.Lock()
        self._producer: AIOKafkaProducer | None = None

    async def send(
        self, topic: str, *, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: int
    ) -> int:
        """Write one record and return its offset.  Cancelled, the record may be written all the same.

        Raises:
            BrokerUnreachableError: the leader does not answer.
            BrokerRefusedError: it says no; too few in-sync replicas, for example.
        """
        producer = await self._started()
        with translated("Produce", f"{topic}-{partition}", self._bootstrap_servers):
            try:
                sent = await producer.send(topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms)
                # Shielded: cancelling the future itself would fail the whole batch under the sender's hands.
                return int((await asyncio.shield(_looked_at(sent))).offset)
            except KafkaError as error:
                if not error.retriable:
                    await self._give_up(producer)
                raise

    async def close(self) -> None:
        """Stop, after what is under way has been written or refused."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await _stop(producer.stop(), producer.client)

    async def _started(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is None:
                self._producer = await self._start()
            return self._producer

    async def _start(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap_servers,
            client_id=self._client_id,
            acks="all",
            enable_idempotence=True,
            compression_type=None,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            retry_backoff_ms=_RETRY_BACKOFF_MS,
            **self._security,
        )
        try:
            with translated("InitProducerId", "metadata", self._bootstrap_servers):
                await producer.start()
        except BaseException:
            await _stop(producer.stop(), producer.client)
            raise
        return producer

    async def _give_up(self, producer: AIOKafkaProducer) -> None:
        if producer is self._producer:
            self._producer = None
        await _stop(producer.stop(), producer.client)  # no matter how often


@contextmanager
def translated(api: str, subject: str, bootstrap_servers: str) -> Iterator[None]:
    """A block whose aiokafka errors become ours."""
    try:
        yield
    except (*_UNREACHABLE, OSError) as error:
        raise BrokerUnreachableError(address=bootstrap_servers, reason=_sentence(error)) from error
    except KafkaError as error:
        raise BrokerRefusedError(
            api=api, subject=subject, error=_sentence(error), retriable=bool(error.retriable)
        ) from error


async def _stop(stop: Coroutine[Any, Any, None], client: Any) -> None:
    """Stop one of aiokafka's clients, in bounded time.

    aiokafka 0.14's consumer awaits the fetches that it cancels: one that had not begun yet cancels whoever awaits ``stop``,
    before the connections are closed.  So a task of its own takes that, and the connections are closed here.
    """
    stopping = asyncio.create_task(stop)
    await asyncio.wait([stopping], timeout=_STOP_TIMEOUT_S)
    if stopping.done() and not stopping.cancelled() and stopping.exception() is None:
        return
    stopping.cancel()
    await client.close()


def _looked_at(sent: asyncio.Future[Any]) -> asyncio.Future[Any]:
    # When its waiter is cancelled nobody else asks for the outcome: that is no complaint of asyncio's.
    sent.add_done_callback(lambda done: done.cancelled() or done.exception())
    return sent


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
