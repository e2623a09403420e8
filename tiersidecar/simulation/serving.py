"""What clients reach of a process: its gateway in front of the broker, and its read service, both as they are wired."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from enum import Enum

from tiersidecar.app.build_gateway_fill import fill_rewrites, open_remote_tier
from tiersidecar.app.parts import Parts
from tiersidecar.domain.errors import (
    BrokerRefusedError,
    OffsetOutOfRangeError,
    PartitionHaltedError,
    RetriableError,
)
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import ControlKind, aborted_ranges, read_control_marker, read_records
from tiersidecar.formats.wire.fetch_requests import FETCH_API_KEY, read_fetch_request, write_single_fetch
from tiersidecar.formats.wire.fetch_responses import (
    KAFKA_STORAGE_ERROR,
    NO_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    FilledPartition,
    read_fetch_response,
)
from tiersidecar.ports.broker import Credentials, OffsetAnswer, OffsetSpec
from tiersidecar.reading.remote_log_reader import RemoteBatches
from tiersidecar.services.gateway.advertised import AdvertisedAddresses
from tiersidecar.services.gateway.api_keys import ApiKey
from tiersidecar.services.gateway.exchange import ConnectionState, Exchange, Rewrites, UpstreamClosedError
from tiersidecar.services.gateway.limits import ResponseMemory
from tiersidecar.services.reader.continuous_log import ContinuousLog, LogRead
from tiersidecar.simulation.broker_port import SimulatedBroker
from tiersidecar.simulation.virtual_time import Process
from tiersidecar.simulation.wire import (
    LIST_OFFSETS_VERSION,
    fetch_response,
    key_of,
    list_offsets_request,
    list_offsets_response,
    listed_offset,
    records_in,
)

_MEMORY_BYTES = 100_000
_MAX_WAIT_MS = 500
_CLIENT_TRIES_AGAIN = frozenset({NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR})


class Fate(Enum):
    """How a read ended.  ``DAMAGED`` is what the read service says with 500, and a Kafka client takes for retriable."""

    READ = "read"
    TRY_AGAIN = "try again"
    DAMAGED = "damaged"
    OUT_OF_RANGE = "out of range"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a client got: whole batches, the offsets of them that a read_committed client shows (None for the other level), and
    how it ended, after them; ``offset`` is the one that was out of range."""

    fate: Fate
    data: bytes = b""
    shown: list[int] | None = None
    offset: int = -1
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """``max_bytes`` bounds a Fetch, ``stop_offset`` (exclusive) a read by HTTP; ``version`` is Fetch's."""

    partition: TopicIdPartition
    offset: int
    read_committed: bool
    max_bytes: int
    stop_offset: int
    version: int


class Serving:
    """Of one incarnation: its work runs as part of ``process``, and dies with it."""

    def __init__(self, process: Process, broker: SimulatedBroker, rewrites: Rewrites, log: ContinuousLog) -> None:
        self.process = process
        self._broker, self._rewrites, self._log = broker, rewrites, log
        self._memory = ResponseMemory(_MEMORY_BYTES)

    async def fetch(self, ask: Ask) -> Answer:
        """Through the gateway, as a Kafka client."""
        version = ask.version
        key = key_of(version, ask.partition)
        body = write_single_fetch(
            version,
            key,
            ask.offset,
            max_wait_ms=_MAX_WAIT_MS,
            max_bytes=ask.max_bytes,
            read_committed=ask.read_committed,
        )
        upstream = _Upstream(self._broker, ask.partition, self._memory)
        try:
            answered = await self._exchange(upstream, ApiKey.FETCH, version, body)
        except UpstreamClosedError as error:
            return Answer(fate=Fate.TRY_AGAIN, why=str(error))
        finally:
            upstream.close()
        (row,) = read_fetch_response(answered, version).partitions
        if row.error_code == OFFSET_OUT_OF_RANGE:
            return Answer(fate=Fate.OUT_OF_RANGE, offset=ask.offset, why="by the gateway")
        if row.error_code in _CLIENT_TRIES_AGAIN:
            return Answer(fate=Fate.TRY_AGAIN, why=f"error code {row.error_code}")
        assert row.error_code == NO_ERROR, f"error code {row.error_code}"
        data = records_in(version, answered, row)
        shown = shown_by_kafka_client(data, row.aborted or (), ask.offset) if ask.read_committed else None
        return Answer(fate=Fate.READ, data=data, shown=shown)

    async def earliest(self, partition: TopicIdPartition) -> int | None:
        """The first offset, by ListOffsets through the gateway; None: try again."""
        upstream = _Upstream(self._broker, partition, self._memory)
        try:
            body = list_offsets_request(partition, OffsetSpec.EARLIEST)
            answered = await self._exchange(upstream, ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, body)
        except UpstreamClosedError:
            return None
        finally:
            upstream.close()
        return listed_offset(bytes(answered))

    async def stream(self, ask: Ask) -> Answer:
        """By the read service: what came before an error is a client's to keep."""
        read = LogRead(
            caller=Credentials(),
            partition=ask.partition,
            offset=ask.offset,
            stop_offset=ask.stop_offset,
            read_committed=ask.read_committed,
        )
        parts, fate, why, offset = list[RemoteBatches](), Fate.READ, "", -1
        try:
            async with aclosing(self._log.stream_batches(read)) as stream:
                async for part in stream:
                    parts.append(part)
        except OffsetOutOfRangeError as error:
            fate, why, offset = Fate.OUT_OF_RANGE, f"by HTTP: {error!r} {error}", error.offset
        except (RetriableError, TimeoutError) as error:
            fate, why = Fate.TRY_AGAIN, str(error)
        except PartitionHaltedError as error:
            fate, why = Fate.DAMAGED, str(error)
        return Answer(
            fate=fate,
            data=b"".join(bytes(part.batches.buffer) for part in parts),
            shown=_shown_by_read_service(parts, ask.offset) if ask.read_committed else None,
            offset=offset,
            why=why,
        )

    async def first_offset(self, partition: TopicIdPartition) -> int | None:
        """The first offset, as the read service tells it; None: try again."""
        try:
            return await self._log.start_offset(Credentials(), partition)
        except (RetriableError, PartitionHaltedError, TimeoutError):
            return None

    async def _exchange(self, upstream: _Upstream, api_key: int, version: int, body: bytes) -> memoryview:
        """As the pumps of a connection do it, for a rewrite that is alone."""
        rewrite = self._rewrites[api_key]
        exchange = Exchange(
            api_key=api_key,
            api_version=version,
            correlation_id=1,
            client_id="consumer",
            request=memoryview(body),
            upstream=upstream,
            connection=ConnectionState(),
            listener="simulated",
        )
        assert await rewrite.prepare(exchange) is None, "outside a session nothing is to be changed"
        response = await upstream.ask(api_key, version, body, 30.0)
        rewritten = rewrite.rewrite(exchange, response)
        pieces = await rewritten if isinstance(rewritten, Coroutine) else rewritten
        return response if pieces is None else memoryview(b"".join(pieces))


def open_serving(stack: AsyncExitStack, parts: Parts, process: Process) -> Serving:
    """Over what ``parts`` have; ``stack`` closes what is made here."""
    assert isinstance(parts.broker, SimulatedBroker)
    tier = open_remote_tier(stack, parts)
    log = ContinuousLog(reader=parts.reads.reader, local=parts.broker, blocking=parts.blocking, pending=tier.pending)
    return Serving(process, parts.broker, fill_rewrites(parts, tier, AdvertisedAddresses()), log)


class _Upstream:
    """``services.gateway.exchange.Upstream`` of a client's connection that asks for one partition."""

    def __init__(self, broker: SimulatedBroker, partition: TopicIdPartition, memory: ResponseMemory) -> None:
        self._broker, self._partition, self._memory = broker, partition, memory
        self._taken_bytes = 0

    def take_memory(self, size_bytes: int) -> int:
        taken_bytes = self._memory.take_some(size_bytes)
        self._taken_bytes += taken_bytes
        return taken_bytes

    def give_memory_back(self, size_bytes: int) -> None:
        self._taken_bytes -= size_bytes
        self._memory.give_back(size_bytes)

    def close(self) -> None:
        """The client has its response, or is gone."""
        self.give_memory_back(self._taken_bytes)

    async def ask(self, api_key: int, api_version: int, body: bytes, timeout_s: float) -> memoryview:
        answer = self._fetched if api_key == FETCH_API_KEY else self._listed
        return memoryview(await _answered(lambda: answer(api_version, body)))

    async def _fetched(self, version: int, body: bytes) -> bytes:
        ((key, asked),) = (request := read_fetch_request(memoryview(body), version)).partitions.items()
        try:
            fetched = await self._broker.fetch(
                Credentials(),
                self._partition,
                asked.fetch_offset,
                max_bytes=asked.max_bytes,
                read_committed=request.is_read_committed,
            )
        except OffsetOutOfRangeError:
            return fetch_response(version, key, FilledPartition(error_code=OFFSET_OUT_OF_RANGE))
        except BrokerRefusedError:
            return fetch_response(version, key, FilledPartition(error_code=NOT_LEADER_OR_FOLLOWER))
        return fetch_response(
            version,
            key,
            FilledPartition(
                high_watermark=fetched.high_watermark,
                last_stable_offset=fetched.last_stable_offset,
                aborted=fetched.aborted if request.is_read_committed else None,
                records=[fetched.records],
            ),
        )

    async def _listed(self, version: int, body: bytes) -> bytes:
        answers = await self._broker.list_offsets({self._partition: NO_EPOCH}, OffsetSpec.EARLIEST)
        answer: OffsetAnswer = answers[self._partition]
        return list_offsets_response(self._partition, answer)


async def _answered(ask: Callable[[], Awaitable[bytes]]) -> bytes:
    try:
        return await ask()
    except RetriableError as error:
        raise UpstreamClosedError(str(error)) from error


# -- what read_committed clients show


def shown_by_kafka_client(data: bytes, aborted: tuple[tuple[int, int], ...], position: int) -> list[int]:
    """As Java's ``CompletedFetch`` goes through the batches: a transaction is hidden from its first offset to its marker."""
    waiting, hidden, shown = sorted(aborted, key=lambda one: one[1]), set[int](), list[int]()
    for at, header in iter_batch_headers(data):
        while waiting and waiting[0][1] <= header.last_offset:
            hidden.add(waiting.pop(0)[0])
        if header.is_control:
            (record,) = read_records(memoryview(data)[at:])
            marker = read_control_marker(record)
            if marker is not None and marker.kind is ControlKind.ABORT:
                hidden.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in hidden):
            shown += range(max(header.base_offset, position), header.next_offset)
    return shown


def _shown_by_read_service(parts: list[RemoteBatches], position: int) -> list[int]:
    shown = list[int]()
    for part in parts:
        hidden = aborted_ranges(part.aborted_transactions or ())
        for _, header in iter_batch_headers(part.batches.buffer):
            if not header.is_control and not hidden.hides(header):
                shown += range(max(header.base_offset, position), header.next_offset)
    return shown
