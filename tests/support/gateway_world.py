"""The gateway's rewrites over a remote tier in memory, and what stands on both sides of them."""

from __future__ import annotations

import typing
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.remote_runs import RemoteRun, open_run
from tests.support.scripted import MemoryStateLog, ScriptedBroker
from tests.support.scripted_local import ScriptedLocal
from tiersidecar.decide.reader_quotas import ReaderQuotaRule
from tiersidecar.domain.errors import MetadataNotReadyError, OffsetOutOfRangeError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.mounts import MountedTopic
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.formats.wire.fetch import FETCH_API_KEY, is_by_topic_id, read_fetch_request
from tiersidecar.formats.wire.messages import read_message, write_message
from tiersidecar.ports.broker import Credentials
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.pins import ANYWHERE
from tiersidecar.ports.store import Store
from tiersidecar.reading.admission import FetchQuota
from tiersidecar.reading.holes import Holes
from tiersidecar.reading.read_path import ReadPath
from tiersidecar.services.gateway.exchange import ConnectionState, Exchange
from tiersidecar.services.gateway.fetch_fill import FetchFill
from tiersidecar.services.gateway.fetch_in_hand import FetchSessions
from tiersidecar.services.gateway.fetch_rewrite import FetchRewrite, FetchSources
from tiersidecar.services.gateway.frames import MemoryPart, ResponseMemory
from tiersidecar.services.gateway.mounted_logs import MountedLogs
from tiersidecar.services.gateway.out_of_range import OutOfRangeClassifier
from tiersidecar.services.gateway.remote_fills import RemoteFills
from tiersidecar.services.gateway.tiered_partitions import (
    ANYBODY,
    Asker,
    BothTiers,
    BrokerOffsetsCache,
    DeletedRecords,
    NoMounts,
    TieredView,
)
from tiersidecar.services.gateway.unplanned_logs import UnplannedLogs


class FixedTiered:
    """``TieredPartitions``: those of ``known``; with ``is_ready`` off, nothing is known of any."""

    def __init__(self, known: Sequence[TopicIdPartition]) -> None:
        self.known, self.is_ready, self.leader_epoch = known, True, LeaderEpoch(0)
        self.on_disk: TieredView | None = None
        self.may_be = False
        self.untiered: dict[str, Uuid] = {}

    def find(self, topic: str | bytes, partition: int, asker: Asker = ANYBODY) -> TieredView | None:
        if not self.is_ready:
            raise MetadataNotReadyError(subject=str(topic))
        for one in self.known:
            if topic in (one.topic, one.topic_id) and one.partition == partition:
                view = TieredView(topic_id_partition=one, leader_epoch=self.leader_epoch)
                asker.check(view)
                return view
        return None

    def may_be_tiered(self, topic: str) -> bool:
        on_disk = self.on_disk is not None and self.on_disk.topic_id_partition.topic == topic
        return not self.is_ready or self.may_be or on_disk or self.topic_id(topic) is not None

    def find_on_disk(self, topic: str, partition: int) -> TieredView | None:
        here = self.on_disk
        is_it = here is not None and (topic, partition) == (
            here.topic_id_partition.topic,
            here.topic_id_partition.partition,
        )
        return here if is_it else None

    def now(self) -> FixedTiered:
        moment = FixedTiered(tuple(self.known))
        moment.leader_epoch = self.leader_epoch
        return moment

    def topic_id(self, topic: str) -> Uuid | None:
        return next(
            (topic_id_partition.topic_id for topic_id_partition in self.known if topic_id_partition.topic == topic),
            self.untiered.get(topic),
        )


class FixedPending:
    """``PendingCopies``: none, or all."""

    def __init__(self) -> None:
        self.are_all = False

    async def is_pending(self, partition: TopicIdPartition, *, below: int = ANYWHERE) -> bool:
        return self.are_all


@dataclass(frozen=True, slots=True)
class ScriptedSource:
    """The source of a mount: what of it is at fault, and what is not known, by partition."""

    faults: Mapping[TopicIdPartition, str]
    not_known: Mapping[TopicIdPartition, str]

    def fault(self, partition: TopicIdPartition) -> str:
        return self.faults.get(partition, "")

    def unknown(self, partition: TopicIdPartition) -> str:
        return self.not_known.get(partition, "")


@dataclass(slots=True)
class ScriptedUpstream:
    """``Upstream`` that answers a Fetch from ``local``, as a broker that lets this client read does; notes what was asked.

    ``answers`` has what it answers of other APIs, made from version and body of the request.
    """

    partition: TopicIdPartition
    local: ScriptedLocal
    asked: list[int] = field(default_factory=list)
    is_client_gone: bool = False
    answers: dict[int, Callable[[int, bytes], bytes]] = field(default_factory=dict)
    memory: MemoryPart = field(default_factory=lambda: ResponseMemory(2**28).part(lambda: "a client"))

    @property
    def taken_bytes(self) -> int:
        return self.memory.held_bytes

    def take_memory(self, size_bytes: int) -> int:
        return self.memory.take_some(size_bytes)

    def give_memory_back(self, size_bytes: int) -> None:
        self.memory.give_back(size_bytes)

    async def ask(self, api_key: int, api_version: int, body: bytes, timeout_s: float) -> memoryview:
        if api_key in self.answers:
            return memoryview(self.answers[api_key](api_version, body))
        assert api_key == FETCH_API_KEY
        ((_, row),) = read_fetch_request(memoryview(body), api_version).partitions.items()
        self.asked.append(row.fetch_offset)
        try:
            fetched = await self.local.fetch(
                Credentials(), self.partition, row.fetch_offset, max_bytes=row.max_bytes, read_committed=True
            )
        except OffsetOutOfRangeError:
            return memoryview(fetch_response(api_version, {self.partition: out_of_range()}))
        answer = {
            "high_watermark": fetched.high_watermark,
            "last_stable_offset": fetched.last_stable_offset,
            "records": fetched.records,
            "aborted_transactions": fetched.aborted,
        }
        return memoryview(fetch_response(api_version, {self.partition: answer}))


@dataclass(slots=True, kw_only=True)
class World:
    path: ReadPath
    partition: TopicIdPartition
    tiered: FixedTiered
    pending: FixedPending
    broker: ScriptedBroker
    state: MemoryStateLog
    offsets: BrokerOffsetsCache
    fetch: FetchRewrite
    clock: ManualClock
    upstream: ScriptedUpstream
    telemetry: RecordedTelemetry
    connection: ConnectionState
    mounts: MountedLogs
    source_faults: dict[TopicIdPartition, str]
    source_unknown: dict[TopicIdPartition, str]
    """The reason, for what is mounted read-only, why the source has nothing of it."""

    @property
    def tiers(self) -> BothTiers:
        return BothTiers(tiered=self.tiered, reader=self.path.reader, offsets=self.offsets, pending=self.pending)

    def exchange(self, api_key: int, version: int, body: bytes, connection: ConnectionState | None = None) -> Exchange:
        return Exchange(
            api_key=api_key,
            api_version=version,
            client_id="a-client",
            request=memoryview(body),
            upstream=self.upstream,
            connection=connection or self.connection,
            listener="main",
        )


@asynccontextmanager
async def open_world(
    run: RemoteRun,
    partition: TopicIdPartition,
    *,
    local: tuple[int, int],
    store: Store | None = None,
    quota: FetchQuota | None = None,
    budgets: Sequence[ReaderQuotaRule] = (),
    sessions: FetchSessions | None = None,
    blocking: Blocking | None = None,
    is_mounted: bool = False,
) -> AsyncIterator[World]:
    """``local``: the broker's log start, and its high watermark.  With ``is_mounted`` the partition is mounted read-only."""
    async with AsyncExitStack() as stack:
        clock, telemetry = ManualClock(), RecordedTelemetry()
        path = await stack.enter_async_context(open_run(run, clock=clock, store=store, quota=quota, budgets=budgets))
        broker, state = ScriptedBroker(), MemoryStateLog()
        broker.log_starts[partition], broker.last_stable_offsets[partition] = local
        source_faults, source_unknown = dict[TopicIdPartition, str](), dict[TopicIdPartition, str]()
        topic = MountedTopic(topic_id=partition.topic_id, partitions=partition.partition + 2)
        planned = {partition.topic: topic} if is_mounted else {}
        mounts = MountedLogs(
            planned={topic: one.topic_id for topic, one in planned.items()},
            unplanned=UnplannedLogs(planned=planned, seeded=lambda: broker.log_starts, topics=dict, clock=clock),
            topic_id=lambda topic: partition.topic_id if topic == partition.topic else None,
            led=lambda: tiered.known,
            reader=path.reader,
            clock=clock,
            telemetry=telemetry,
            source=ScriptedSource(source_faults, source_unknown),
        )
        offsets = BrokerOffsetsCache(broker=broker, clock=clock, mounts=mounts if is_mounted else None)
        stack.push_async_callback(offsets.aclose)
        fills = RemoteFills(reader=path.reader, clock=clock)
        stack.push_async_callback(fills.aclose)
        tiered, pending = FixedTiered([partition]), FixedPending()
        yield World(
            path=path,
            partition=partition,
            tiered=tiered,
            pending=pending,
            broker=broker,
            state=state,
            offsets=offsets,
            fetch=FetchRewrite(
                sources=FetchSources(
                    classifier=OutOfRangeClassifier(
                        tiered=tiered,
                        reader=path.reader,
                        state=state,
                        offsets=offsets,
                        pending=pending,
                        holes=Holes(clock, "gateway.hole"),
                        clock=clock,
                    ),
                    deleted=DeletedRecords(tiered=tiered, state=state),
                    fill=FetchFill(fills=fills, reader=path.reader, cold=path.cold, clock=clock, telemetry=telemetry),
                    sessions=sessions or FetchSessions(),
                    mounts=mounts if is_mounted else NoMounts(),
                ),
                clock=clock,
                telemetry=telemetry,
                blocking=blocking or InlineBlocking(),
                remote_max_wait_ms=500,
                find_addresses=lambda version, response: (),
            ),
            clock=clock,
            upstream=ScriptedUpstream(partition, ScriptedLocal(log_start=local[0], high_watermark=local[1])),
            telemetry=telemetry,
            connection=ConnectionState(),
            mounts=mounts,
            source_faults=source_faults,
            source_unknown=source_unknown,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Return what a client asks of one partition."""

    offset: int
    max_bytes: int = 1024 * 1024


def fetch_request(version: int, asked: Mapping[TopicIdPartition, Ask], **fields: Any) -> bytes:
    """Return a request, by kio; ``session`` is its id and epoch, ``forgotten`` the partitions to leave out from now on."""
    schema: Any = load_request_schema(FETCH_API_KEY, version)
    defaults: dict[str, Any] = {
        "min_bytes": 1,
        "max_bytes": 50 * 1024 * 1024,
        "isolation_level": 0,
        "max_wait": timedelta(milliseconds=500),
        "rack_id": "",
        "forgotten_topics_data": _forgotten(schema, version, fields.pop("forgotten", ())),
        "cluster_id": None,
    }
    session = fields.pop("session", (0, -1))
    values = {**defaults, "session_id": session[0], "session_epoch": session[1], **fields}
    topics = _topics(schema, "topics", version, asked, _asked_row)
    return write_message(_built(schema, {"replica_id": -1, **values, "topics": topics}))


def fetch_response(
    version: int, rows: Mapping[TopicIdPartition, Mapping[str, Any]], *, session_id: int = 0, throttle_ms: int = 0
) -> bytes:
    """Return a broker's answer, by kio; ``rows`` are its fields by partition."""
    schema: Any = load_response_schema(FETCH_API_KEY, version)
    aborted_type = _item_type(_item_type(_item_type(schema, "responses"), "partitions"), "aborted_transactions")

    def answered(partition: TopicIdPartition, row: Mapping[str, Any]) -> dict[str, Any]:
        aborted = row.get("aborted_transactions")
        listed = None if aborted is None else tuple(aborted_type(producer_id=p, first_offset=o) for p, o in aborted)
        return {**_answered_row(partition, row), "aborted_transactions": listed}

    responses = _topics(schema, "responses", version, rows, answered)
    values = {
        "throttle_time": timedelta(milliseconds=throttle_ms),
        "error_code": ErrorCode.none,
        "session_id": session_id,
        "responses": responses,
        "node_endpoints": (),
    }
    return write_message(_built(schema, values))


def out_of_range() -> dict[str, Any]:
    """Return the row as the broker has it: with nothing else."""
    return {"error_code": ErrorCode.offset_out_of_range}


def read_rows(version: int, pieces: Sequence[bytes | bytearray | memoryview]) -> dict[tuple[str | bytes, int], Any]:
    """Return the partitions of a response, by kio."""
    schema: Any = load_response_schema(FETCH_API_KEY, version)
    body = b"".join(pieces)
    message, end = read_message(schema, body)
    assert end == len(body)
    return {
        (topic.topic_id.bytes if is_by_topic_id(version) else topic.topic, row.partition_index): row
        for topic in message.responses
        for row in topic.partitions
    }


def key_of(version: int, partition: TopicIdPartition) -> tuple[str | bytes, int]:
    return (partition.topic_id if is_by_topic_id(version) else partition.topic), partition.partition


def _topics(schema: Any, name: str, version: int, rows: Mapping[TopicIdPartition, Any], make: Any) -> tuple[Any, ...]:
    topic_type = _item_type(schema, name)
    row_type = _item_type(topic_type, "partitions")
    topics = []
    for partition, row in rows.items():
        identity: dict[str, Any] = {"topic": partition.topic}
        if is_by_topic_id(version):
            identity = {"topic_id": uuid.UUID(bytes=partition.topic_id)}
        topics.append(topic_type(**identity, partitions=(_built(row_type, make(partition, row)),)))
    return tuple(topics)


def _forgotten(schema: Any, version: int, partitions: Sequence[TopicIdPartition]) -> tuple[Any, ...]:
    if not partitions:
        return ()
    topic_type = _item_type(schema, "forgotten_topics_data")
    named = [
        {"topic_id": uuid.UUID(bytes=one.topic_id)} if is_by_topic_id(version) else {"topic": one.topic}
        for one in partitions
    ]
    return tuple(topic_type(**name, partitions=(one.partition,)) for name, one in zip(named, partitions, strict=True))


def _item_type(schema: Any, name: str) -> Any:
    annotation = schema.__dataclass_fields__[name].type
    if typing.get_origin(annotation) is not tuple:  # or None
        annotation = next(arg for arg in typing.get_args(annotation) if typing.get_origin(arg) is tuple)
    return typing.get_args(annotation)[0]


def _built(schema: Any, values: Mapping[str, Any]) -> Any:
    return schema(**{name: value for name, value in values.items() if name in schema.__dataclass_fields__})


def _asked_row(partition: TopicIdPartition, ask: Ask) -> dict[str, Any]:
    return {
        "partition": partition.partition,
        "current_leader_epoch": -1,
        "fetch_offset": ask.offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": ask.max_bytes,
    }


def _answered_row(partition: TopicIdPartition, row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "partition_index": partition.partition,
        "error_code": ErrorCode.none,
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "preferred_read_replica": -1,
        "records": b"",
        **row,
    }
