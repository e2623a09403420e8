"""aiokafka's clients, set up as internal topics need them, and its errors as ours."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from itertools import chain
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, NodeNotReadyError, RequestTimedOutError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.produce import ProduceRequest

from tiersidecar.adapters.clock import SystemClock
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError

_REQUEST_TIMEOUT_MS = 15_000
_RETRY_BACKOFF_MS = 100
_MAX_PARTITION_FETCH_BYTES = 1024 * 1024
_STOP_TIMEOUT_S = 10
_CANCEL_TIMEOUT_S = 1.0
"""How long a cancelled send waits for the answer that is mostly on its way."""
_MOST_HEADER_BYTES = 64
"""The header of a batch, and of a record."""
_NOT_COMPRESSED = 0
_TOO_LATE = "too late to send what was to be sent: the process was stopped, or there was no connection"
_UNREACHABLE = (KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError, RequestTimedOutError)


Sent = Awaitable[asyncio.Future[Any]]
"""aiokafka's: it has the record when that is over, and the future is its answer."""


class SendRecord(Protocol):
    """The used part of :class:`KeptProducer`."""

    async def send(
        self,
        topic: str,
        *,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        until_s: float | None = None,
    ) -> int: ...

    async def send_batch(
        self,
        topic: str,
        *,
        partition: int,
        values: Sequence[bytes],
        timestamp_ms: int,
        until_s: float | None = None,
    ) -> int: ...

    async def close(self) -> None: ...


class TopicClients(Protocol):
    """Clients of an internal topic: aiokafka's, or simulated ones."""

    def producer(self) -> SendRecord: ...

    def open_consumer(self) -> AbstractAsyncContextManager[Any]:
        """``assign``, ``seek``, ``getmany`` and ``position`` are asked of it, as of :class:`AIOKafkaConsumer`."""


class KafkaTopicClients:
    """The real ones.  ``fetch_max_wait_ms`` is how long a broker holds a Fetch for which it has nothing: new records end it at
    once, but partitions that are assigned anew have to wait for its end."""

    def __init__(
        self, bootstrap_servers: str, security: Mapping[str, Any], *, client_id: str, fetch_max_wait_ms: int
    ) -> None:
        self._bootstrap_servers, self._security, self._client_id = bootstrap_servers, security, client_id
        self._fetch_max_wait_ms = fetch_max_wait_ms

    def producer(self) -> KeptProducer:
        return KeptProducer(self._bootstrap_servers, self._security, client_id=self._client_id)

    def open_consumer(self) -> AbstractAsyncContextManager[AIOKafkaConsumer]:
        return open_consumer(
            self._bootstrap_servers,
            self._security,
            client_id=self._client_id,
            fetch_max_wait_ms=self._fetch_max_wait_ms,
        )


@asynccontextmanager
async def open_consumer(
    bootstrap_servers: str,
    security: Mapping[str, Any],
    *,
    client_id: str,
    isolation: str = "read_uncommitted",
    fetch_max_wait_ms: int = 500,
) -> AsyncIterator[AIOKafkaConsumer]:
    """Open a consumer without a group, which commits nothing and never resets an offset by itself (S-093).

    Raises:
        BrokerUnreachableError: no broker of ``bootstrap_servers`` answers.
    """
    consumer = _UnflushedConsumer(
        bootstrap_servers=bootstrap_servers,
        client_id=client_id,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level=isolation,
        fetch_max_wait_ms=fetch_max_wait_ms,
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


class _UnflushedConsumer(AIOKafkaConsumer):  # type: ignore[misc]
    """One whose connections end at once: there is nothing to flush.

    aiokafka 0.14's ``stop`` waits until each connection is lost.  Over TLS that is when the broker has closed its side, too,
    and a broker reads nothing of a connection while it holds a Fetch of it.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        _create_no_topics(self._client)
        self._close_client = self._client.close
        self._client.close = self._abort_and_close

    async def _abort_and_close(self) -> None:
        _abort_connections(self._client)
        await self._close_client()


class KeptProducer:
    """An idempotent producer with acks=all, started when it is first needed and again after an error that it cannot
    survive (S-090), or after a send that was given up.

    An idempotent producer never lets a record expire.  So it is given up with the send: what its caller has stopped to wait
    for must not be written when the broker is back.  Nor must it be written when our own process is back, that was stopped
    or suspended with the record in hand: no timer runs in such a process, so a send may have a moment, ``until_s`` by
    :meth:`SystemClock.monotonic_s`, that is looked at right before the bytes go to the connection.
    """

    def __init__(self, bootstrap_servers: str, security: Mapping[str, Any], *, client_id: str) -> None:
        self._bootstrap_servers, self._security, self._client_id = bootstrap_servers, security, client_id
        self._starting = asyncio.Lock()
        self._producer: _DroppableProducer | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._turns: dict[tuple[str, int], asyncio.Lock] = {}

    async def send(
        self,
        topic: str,
        *,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        until_s: float | None = None,
    ) -> int:
        """Write one record and return its offset.  Cancelled, it waits a moment for the answer, and then gives the producer
        up: the record is not sent after that, nor after ``until_s``.  If it was on its way to the broker, it may be written all
        the same.

        Raises:
            BrokerUnreachableError: the leader does not answer, or this or another send was given up, and all with it.
            BrokerRefusedError: it says no; too few in-sync replicas, for example.
        """
        return await self._send(
            f"{topic}-{partition}",
            lambda producer: producer.send(topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms),
            until_s,
        )

    async def send_batch(
        self,
        topic: str,
        *,
        partition: int,
        values: Sequence[bytes],
        timestamp_ms: int,
        until_s: float | None = None,
    ) -> int:
        """Write records without keys as one batch, all or none, and return the offset of the first; else as :meth:`send`.

        Raises:
            BrokerUnreachableError, BrokerRefusedError: as of :meth:`send`.
        """
        batch = _batch_of(values, timestamp_ms)
        # aiokafka 0.14 gives up a batch that waits 15 s for those before it, however soon the partition has a leader again.
        async with self._turns.setdefault((topic, partition), asyncio.Lock()):
            return await self._send(
                f"{topic}-{partition}", lambda producer: producer.send_batch(batch, topic, partition=partition), until_s
            )

    async def _send(self, subject: str, begin: Callable[[AIOKafkaProducer], Sent], until_s: float | None) -> int:
        producer = await self._started()
        with translated("Produce", subject, self._bootstrap_servers), producer.sending_until(until_s):
            try:
                return int((await self._answer(producer, _looked_at(await begin(producer)))).offset)
            except KafkaError as error:
                if not error.retriable:
                    await self._give_up(producer)
                raise

    async def close(self) -> None:
        """Stop, after what is under way has been written or refused, or after a time without it."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop_or_drop()
        if self._closing:
            await asyncio.wait(self._closing, timeout=_STOP_TIMEOUT_S)

    async def _answer(self, producer: _DroppableProducer, sent: asyncio.Future[Any]) -> Any:
        try:
            # Shielded: cancelling the future itself would fail the whole batch under the sender's hands.
            return await asyncio.shield(sent)
        except asyncio.CancelledError:
            try:
                await asyncio.wait([sent], timeout=_CANCEL_TIMEOUT_S)
            finally:
                if not sent.done():
                    self._drop(producer)
            raise

    def _drop(self, producer: _DroppableProducer) -> None:
        if producer is self._producer:
            self._producer = None
        if producer.is_dropped:
            return
        producer.drop()
        closing = asyncio.create_task(producer.client.close(), name="close of a producer that was given up")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _started(self) -> _DroppableProducer:
        async with self._starting:
            if self._producer is None:
                self._producer = await self._start()
            return self._producer

    async def _start(self) -> _DroppableProducer:
        producer = _DroppableProducer(
            self._drop,
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
            await producer.stop_or_drop()
            raise
        return producer

    async def _give_up(self, producer: _DroppableProducer) -> None:
        if producer is self._producer:
            self._producer = None
        await producer.stop_or_drop()  # no matter how often


class _DroppableProducer(AIOKafkaProducer):  # type: ignore[misc]
    """One that can also end without a flush.

    aiokafka 0.14's ``stop`` waits until all is written, and its sender, cancelled, awaits the requests that it began: one that
    waits for a connection would be sent when there is one.  So the requests are cancelled here, one by one.
    """

    def __init__(self, give_up: Callable[[_DroppableProducer], None], **settings: Any) -> None:
        super().__init__(**settings)
        _create_no_topics(self.client)
        self._give_up = give_up
        self.is_dropped = False
        self._clock = SystemClock()
        self._untils_s = Counter[float]()
        self._requests: set[asyncio.Task[Any]] = set()
        self._send_request = self._sender._send_produce_req  # noqa: SLF001 - as the class says
        self._sender._send_produce_req = self._send_unless_dropped  # noqa: SLF001 - as above
        self._send_to = self.client.send
        self.client.send = self._send_unless_late

    @contextmanager
    def sending_until(self, until_s: float | None) -> Iterator[None]:
        """Send nothing after ``until_s`` while the body runs, by :meth:`SystemClock.monotonic_s`: then the producer is given
        up, since of what it has in hand it is not known which record is whose."""
        if until_s is None:
            yield
            return
        self._untils_s[until_s] += 1
        try:
            yield
        finally:
            self._untils_s[until_s] -= 1
            if not self._untils_s[until_s]:
                del self._untils_s[until_s]

    async def stop_or_drop(self) -> None:
        """Flush and stop, in bounded time; what is not written then is not written any more."""
        try:
            await _stop(self.stop(), self.client)
        finally:
            self.drop()

    def drop(self) -> None:
        """Send nothing from now on, not even what is in a connection's buffer; callers that wait for an answer get an error.
        The client is to be closed by the caller."""
        if self.is_dropped:
            return
        self.is_dropped = self._closed = True
        for request in self._requests:
            request.cancel()
        if self._sender.sender_task is not None:
            self._sender.sender_task.cancel()
        _abort_connections(self.client)
        self._fail_all()

    def _fail_all(self) -> None:
        accumulator = self._message_accumulator
        batches = [*accumulator._pending_batches, *chain(*accumulator._batches.values())]  # noqa: SLF001
        accumulator.fail_all(KafkaConnectionError("the producer was given up, with another send that had no answer"))
        for batch in batches:
            batch._drain_waiter.exception()  # noqa: SLF001 - asyncio complains of an exception never retrieved

    async def _send_unless_dropped(self, node_id: int, batches: Mapping[Any, Any]) -> None:
        if self.is_dropped:
            return
        request = asyncio.current_task()
        assert request is not None, "the sender makes a task of each"
        self._requests.add(request)
        try:
            await self._send_request(node_id, batches)
        finally:
            self._requests.discard(request)

    async def _send_unless_late(self, node_id: int, request: Any, **group: Any) -> Any:
        """Look at the time once there is a connection: the original then writes without waiting for anything."""
        if isinstance(request, ProduceRequest) and self._untils_s:
            if not await self.client.ready(node_id, **group):
                raise NodeNotReadyError(f"node {node_id} is not ready")  # the original would connect, and write later
            if min(self._untils_s) <= self._clock.monotonic_s():
                self._give_up(self)
                raise KafkaConnectionError(_TOO_LATE)
        return await self._send_to(node_id, request, **group)


@contextmanager
def translated(api: str, subject: str, bootstrap_servers: str) -> Iterator[None]:
    """Translate the aiokafka errors of the block into ours."""
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

    aiokafka 0.14's consumer awaits the fetches that it cancels: one that had not begun yet cancels the caller of ``stop``,
    before the connections are closed.  So a task of its own takes that, and the connections are closed here.
    """
    stopping = asyncio.create_task(stop)
    await asyncio.wait([stopping], timeout=_STOP_TIMEOUT_S)
    if stopping.done() and not stopping.cancelled() and stopping.exception() is None:
        return
    stopping.cancel()
    await client.close()


def _create_no_topics(client: Any) -> None:
    """Let no broker create a topic that ``client`` asks for.

    aiokafka 0.14 always allows it.  By Kafka's default settings an internal topic that was deleted under us would come back
    empty, with one partition, and without the settings that it needs.
    """
    get_connection = client._get_conn  # noqa: SLF001 - there is no setting for it

    async def get_modest_connection(*where: Any, **how: Any) -> Any:
        connection = await get_connection(*where, **how)
        if connection is not None and "send" not in vars(connection):
            connection.send = _ask_modestly(connection.send)
        return connection

    client._get_conn = get_modest_connection  # noqa: SLF001 - as above


def _ask_modestly(send: Callable[..., Any]) -> Callable[..., Any]:
    def send_modestly(request: Any, *how: Any, **options: Any) -> Any:
        if isinstance(request, MetadataRequest):
            request._allow_auto_topic_creation = False  # noqa: SLF001 - as above
        return send(request, *how, **options)

    return send_modestly


def _abort_connections(client: Any) -> None:
    for connection in client._conns.values():  # noqa: SLF001 - closing one would flush its buffer
        if connection._writer is not None:  # noqa: SLF001 - as above
            connection._writer.transport.abort()  # noqa: SLF001 - as above


def _batch_of(values: Sequence[bytes], timestamp_ms: int) -> BatchBuilder:
    """Return a batch that aiokafka cannot cut: the batches of its own have the size that its producer is set to."""
    size_bytes = _MOST_HEADER_BYTES + sum(len(value) + _MOST_HEADER_BYTES for value in values)
    batch = BatchBuilder(size_bytes, _NOT_COMPRESSED)
    for value in values:
        appended = batch.append(timestamp=timestamp_ms, key=None, value=value)
        assert appended is not None, "there is room for all"
    batch.close()
    return batch


def _looked_at(sent: asyncio.Future[Any]) -> asyncio.Future[Any]:
    # When its waiter is cancelled nothing else asks for the outcome: asyncio is not to complain of that.
    sent.add_done_callback(lambda done: done.cancelled() or done.exception())
    return sent


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
