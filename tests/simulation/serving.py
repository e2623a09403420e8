"""The parts of a process that clients reach: its gateway in front of the broker, and its read service, both as they are
wired."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from enum import Enum

from kio.schema.errors import ErrorCode

from tests.simulation.broker_port import SimulatedBroker
from tests.simulation.broker_side import FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH
from tests.simulation.chances import Chances
from tests.simulation.client_connection import ClientConnection
from tests.simulation.cluster import SimulatedPartition
from tests.simulation.compacted_history import record_offsets
from tests.simulation.offset_wire import OffsetQuestion, OffsetReply, offset_request, read_offset_response
from tests.simulation.virtual_time import Process
from tests.simulation.wire import key_of, records_in
from tiersidecar.app.builders.gateway_fill import fill_rewrites, open_remote_tier
from tiersidecar.app.parts import Parts
from tiersidecar.domain.errors import MetadataNotReadyError, OffsetOutOfRangeError, PartitionHaltedError, RetriableError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.formats.kafka.record_batches import Buffer, RecordBatchHeader, iter_batch_headers
from tiersidecar.formats.kafka.records import ControlKind, aborted_ranges, read_control_marker, read_records
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.formats.wire.fetch import (
    KAFKA_STORAGE_ERROR,
    NO_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    FetchedPartition,
    read_fetch_response,
    write_single_fetch,
)
from tiersidecar.ports.broker import Credentials, OffsetSpec, ReadLocal
from tiersidecar.reading.remote_log_reader import RemoteBatches
from tiersidecar.services.gateway.advertised import AdvertisedAddresses
from tiersidecar.services.gateway.exchange import Rewrites, UpstreamClosedError
from tiersidecar.services.gateway.fetch_in_hand import FetchSessions
from tiersidecar.services.gateway.frames import ResponseMemory
from tiersidecar.services.reader.compacted_topics import CompactedTopics
from tiersidecar.services.reader.continuous_log import ContinuousLog, LogRead

_MEMORY_BYTES = 100_000
_MAX_WAIT_MS = 500
_CLIENT_TRIES_AGAIN = frozenset(
    {NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH}
)
_EARLIEST = OffsetQuestion(api_key=ApiKey.LIST_OFFSETS, version=9, subject=OffsetSpec.EARLIEST)
_OFFSETS_TRY_AGAIN = frozenset(
    {
        ErrorCode.none,
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.request_timed_out,
    }
)


class Fate(Enum):
    """End of a read.  ``DAMAGED`` is what the read service says with 500, and a Kafka client takes for retriable."""

    READ = "read"
    TRY_AGAIN = "try again"
    DAMAGED = "damaged"
    OUT_OF_RANGE = "out of range"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer that a client got: whole batches, the offsets of them that a read_committed client shows (None for the other
    level), and how it ended, after them; ``offset`` is the one that was out of range."""

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
    """The servers of one incarnation: their work runs as part of ``process``, and dies with it."""

    def __init__(
        self, process: Process, parts: Parts, rewrites: Rewrites, log: ContinuousLog, chances: Chances
    ) -> None:
        assert isinstance(parts.broker, SimulatedBroker)
        self.process = process
        self._broker, self._state, self._rewrites, self._log = parts.broker, parts.state, rewrites, log
        self._remote = parts.reads.reader
        self._chances = chances
        self._memory = ResponseMemory(_MEMORY_BYTES)

    def deleted_to(self, partition: SimulatedPartition) -> int:
        """Return the highest offset up to which a user's delete was answered as done, of what this process has read of it."""
        try:
            state = self._state.partition_state(partition.topic_id_partition)
        except MetadataNotReadyError:
            return 0
        heard = (
            delete.offset for delete in partition.users_deletes if state.start_for(delete.leader_epoch) >= delete.offset
        )
        return max(heard, default=0)

    async def fetch(self, ask: Ask) -> Answer:
        """Fetch through the gateway, as a Kafka client."""
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
        try:
            answered = await self.connect().exchange(ApiKey.FETCH, version, body)
        except UpstreamClosedError as error:
            return Answer(fate=Fate.TRY_AGAIN, why=str(error))
        (row,) = read_fetch_response(answered, version).partitions
        return fetched_answer(version, answered, row, ask.offset, read_committed=ask.read_committed)

    def connect(self, name: str = "") -> ClientConnection:
        """Return a connection of the client ``name``; without a name for one request."""
        return ClientConnection(self._broker, self._rewrites, self._memory, self._chances, name)

    async def earliest(self, partition: TopicIdPartition) -> int | None:
        """Return the first offset, by ListOffsets through the gateway; None: try again."""
        reply = await ask_offset(self.connect(), partition, _EARLIEST)
        return None if reply is None else reply.offset

    async def stream(self, ask: Ask) -> Answer:
        """Read by the read service: what came before an error is a client's to keep."""
        read = LogRead(
            caller=Credentials(),
            partition=ask.partition,
            offset=ask.offset,
            stop_offset=ask.stop_offset,
            read_committed=ask.read_committed,
        )
        return await self._gathered(ask, self._log.stream_batches(read))

    async def archive(self, ask: Ask) -> Answer:
        """Read what is remote, and nothing else, as batch jobs, mounts and exports do."""
        read = self._remote.stream_batches(
            ask.partition, ask.offset, stop_offset=ask.stop_offset, read_committed=ask.read_committed
        )
        return await self._gathered(ask, read)

    async def _gathered(self, ask: Ask, read: AsyncGenerator[RemoteBatches, None]) -> Answer:
        parts, fate, why, offset = list[RemoteBatches](), Fate.READ, "", -1
        try:
            async with aclosing(read) as stream:
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
        """Return the first offset, as the read service has it; None: try again."""
        try:
            return await self._log.start_offset(Credentials(), partition)
        except (RetriableError, PartitionHaltedError, TimeoutError):
            return None


def open_serving(
    stack: AsyncExitStack, parts: Parts, process: Process, chances: Chances, *, most_in_sessions: int
) -> Serving:
    """Open the servers over what ``parts`` have; ``stack`` closes what is made here.  ``most_in_sessions`` partitions are
    remembered in fetch sessions."""
    tier = replace(open_remote_tier(stack, parts), sessions=FetchSessions(most_in_sessions))
    local: ReadLocal = parts.broker  # type: ignore[assignment]
    log = ContinuousLog(
        reader=parts.reads.reader,
        local=local,
        blocking=parts.blocking,
        pending=tier.pending,
        compacted=CompactedTopics(parts.broker, parts.clock),
    )
    return Serving(process, parts, fill_rewrites(parts, tier, AdvertisedAddresses()), log, chances)


async def ask_offset(
    connection: ClientConnection, partition: TopicIdPartition, question: OffsetQuestion
) -> OffsetReply | None:
    """Return the answer through the gateway; None: an error, which clients try again after."""
    api_key, version = question.api_key, question.version
    try:
        body = await connection.exchange(api_key, version, offset_request(question, partition))
    except UpstreamClosedError:
        return None
    reply = read_offset_response(api_key, version, bytes(body))
    assert reply.error in _OFFSETS_TRY_AGAIN, f"{reply.error!r}"
    return reply if reply.error is ErrorCode.none else None


def fetched_answer(
    version: int, body: memoryview, row: FetchedPartition, offset: int, *, read_committed: bool
) -> Answer:
    """Return what a client makes of one partition of a Fetch response that it asked for from ``offset`` on."""
    if row.error_code == OFFSET_OUT_OF_RANGE:
        return Answer(fate=Fate.OUT_OF_RANGE, offset=offset, why="by the gateway")
    if row.error_code in _CLIENT_TRIES_AGAIN:
        return Answer(fate=Fate.TRY_AGAIN, why=f"error code {row.error_code}")
    assert row.error_code == NO_ERROR, f"error code {row.error_code}"
    data = records_in(version, body, row)
    shown = shown_by_kafka_client(data, row.aborted or (), offset) if read_committed else None
    return Answer(fate=Fate.READ, data=data, shown=shown)


# -- what read_committed clients show


def shown_by_kafka_client(data: bytes, aborted: tuple[tuple[int, int], ...], position: int) -> list[int]:
    """Return the offsets as Java's ``CompletedFetch`` goes through the batches: a transaction is hidden from its first offset
    to its marker."""
    waiting, hidden, shown = sorted(aborted, key=lambda one: one[1]), set[int](), list[int]()
    for at, header in iter_batch_headers(data):
        while waiting and waiting[0][1] <= header.last_offset:
            hidden.add(waiting.pop(0)[0])
        if header.is_control:
            records = read_records(memoryview(data)[at : at + header.size_bytes])  # none: a cleaner has emptied it
            marker = read_control_marker(records[0]) if records else None
            if marker is not None and marker.kind is ControlKind.ABORT:
                hidden.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in hidden):
            shown += _offsets_from(position, data, at, header)
    return shown


def _shown_by_read_service(parts: list[RemoteBatches], position: int) -> list[int]:
    shown = list[int]()
    for part in parts:
        hidden = aborted_ranges(part.aborted_transactions or ())
        for at, header in iter_batch_headers(part.batches.buffer):
            if not header.is_control and not hidden.hides(header):
                shown += _offsets_from(position, part.batches.buffer, at, header)
    return shown


def _offsets_from(position: int, data: Buffer, at: int, header: RecordBatchHeader) -> list[int]:
    """Return the offsets, from ``position`` on, of the batch that lies at ``at``."""
    return [offset for offset in record_offsets(memoryview(data)[at:], header) if offset >= position]
