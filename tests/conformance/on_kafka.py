"""A script on real brokers."""

from __future__ import annotations

import itertools
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_never, cast
from uuid import uuid4

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

from tests.conformance.observation import NotYetError, Observation, Stage, observe
from tests.conformance.on_model import records_of
from tests.conformance.script import (
    END,
    Configure,
    DeleteRecords,
    End,
    Kill,
    Lead,
    LeadUncleanly,
    LoseCheckpoints,
    LoseReplica,
    MoveLogDir,
    Produce,
    Script,
    Start,
    Step,
    Stop,
)
from tests.simulation.batches import batch_bytes, record_bytes
from tests.support.kafka_admin import KafkaAdmin, KafkaAdminError, wait_until
from tests.support.kafka_broker import LOG_STARTS, KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_placement import move_replica, place
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.formats.wire.messages import read_message, write_message

PROPERTIES = {
    "auto.leader.rebalance.enable": "false",
    "replica.high.watermark.checkpoint.interval.ms": "100",
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "0",
    # Written at a clean end only: a script says when one is lost.
    "log.flush.start.offset.checkpoint.interval.ms": "3600000",
    "log.flush.offset.checkpoint.interval.ms": "3600000",
}
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    LOG_STARTS,
    "replication-offset-checkpoint",
    ".kafka_cleanshutdown",
)
_TRANSACTIONAL = 0x10
_TIMEOUT = i32Timedelta.parse(timedelta(seconds=15))
_SERIAL = itertools.count()


class KafkaStage(Stage):
    """A topic of its own in ``cluster``; ``began_ms`` as on the model."""

    def __init__(self, script: Script, cluster: KafkaCluster, began_ms: int) -> None:
        self._cluster, self._began_ms = cluster, began_ms
        self._topic = f"conformance-{next(_SERIAL)}"
        self._replicas = script.replicas
        self._producers: dict[str, _Producer] = {}
        self._create(script)
        topic_id = cluster.admin.describe_topic(self._topic).topic_id
        assert topic_id is not None
        self._topic_id_partition = TopicIdPartition(topic_id=Uuid(topic_id.bytes), topic=self._topic, partition=0)

    def close(self) -> None:
        """Start the brokers that have ended.

        The topic stays: a broker that deletes a log writes its checkpoints a little later, and the next script's crash is to
        find them unwritten.
        """
        ended = [broker for broker in self._cluster.brokers if not broker.is_running]
        for broker in ended:
            broker.launch()
        for broker in ended:
            broker.wait_until_ready()
            broker.wait_for_first_checkpoints()

    @property
    def partition(self) -> TopicIdPartition:
        return self._topic_id_partition

    def act(self, step: Step) -> str:
        try:
            return self._act(step)
        except KafkaAdminError as error:
            return error.error_code.name

    def _act(self, step: Step) -> str:
        match step:
            case Produce():
                return self._produce(step)
            case End(producer, commit):
                self._producers[producer].end(commit=commit)
            case DeleteRecords(offset):
                self._leader().admin.delete_records(self._topic, 0, END if offset == END else offset)
            case Stop(broker):
                self._cluster[broker].stop()
                self._wait_without(broker)
            case Kill(broker):
                self._cluster[broker].kill9()
                self._wait_without(broker)
            case Start(broker):
                self._cluster[broker].start()
                self._cluster[broker].wait_for_first_checkpoints()
                self._wait_for_leader()
            case LoseCheckpoints(broker):
                for log_dir in self._cluster[broker].log_dirs:
                    for name in CHECKPOINTS:
                        (log_dir / name).unlink(missing_ok=True)
            case LoseReplica(broker):
                directory = self.directory(broker)
                assert directory is not None
                shutil.rmtree(directory)
            case MoveLogDir(broker):
                self._move(self._cluster[broker])
            case Lead(broker):
                others = [replica for replica in self._replicas if replica != broker]
                place(self._cluster.admin, self._topic, 0, [broker, *others])
            case LeadUncleanly(broker):
                self._elect_uncleanly(broker)
            case Configure(settings):
                self._cluster.admin.alter_topic(self._topic, settings)
            case _:
                assert_never(step)
        return "none"

    # -- what is seen

    def leadership(self) -> tuple[int | None, int, tuple[int, ...]]:
        if not self._has_quorum():
            return None, -1, ()  # nobody can be asked
        try:
            row = self._row()
        except (KafkaAdminError, OSError, LookupError) as error:
            raise NotYetError(str(error)) from error
        return (
            None if row.leader_id < 0 else int(row.leader_id),
            int(row.leader_epoch),
            tuple(sorted(int(node) for node in row.isr_nodes)),
        )

    def alive(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas() if self._cluster[replica].is_running)

    def replicas(self) -> tuple[int, ...]:
        return tuple(sorted(self._replicas))

    def ask(self, broker: int, api_key: ApiKey, version: int, body: bytes) -> bytes:
        name = {ApiKey.FETCH: "Fetch", ApiKey.LIST_OFFSETS: "ListOffsets"}.get(api_key, "OffsetForLeaderEpoch")
        schema = load_payload_module(api_key, version, EntityType.request)
        request, _ = read_message(getattr(schema, f"{name}Request"), body)
        return write_message(cast(Any, _call(self._cluster[broker].admin, request)))

    def parts(self, broker: int, offset: int, last_fetched_epoch: int) -> str:
        schema = load_payload_module(ApiKey.FETCH, 12, EntityType.request)
        wanted = schema.FetchPartition(
            partition=0, fetch_offset=offset, last_fetched_epoch=last_fetched_epoch, partition_max_bytes=1000
        )
        request = schema.FetchRequest(
            replica_id=-1,
            max_wait=timedelta(0),
            min_bytes=0,
            max_bytes=1000,
            topics=(schema.FetchTopic(topic=self._topic, partitions=(wanted,)),),
            forgotten_topics_data=(),
        )
        response = cast(Any, _call(self._cluster[broker].admin, request))
        ((row,),) = (topic.partitions for topic in response.responses)
        if row.error_code is not ErrorCode.none:
            return str(row.error_code.name)
        return "parts" if row.diverging_epoch.end_offset >= 0 else "goes on"

    def directory(self, broker: int) -> Path | None:
        found = [log_dir / f"{self._topic}-0" for log_dir in self._cluster[broker].log_dirs]
        return next((one for one in found if one.is_dir()), None)

    # -- what is done

    def _create(self, script: Script) -> None:
        """Led by the first of the replicas, in epoch 0."""
        size = "segment.bytes" if self._cluster.version.startswith("3.") else "internal.segment.bytes"
        settings = {"retention.ms": "-1", size: str(script.segment_bytes), **script.settings}
        schema = load_payload_module(19, 7, EntityType.request)
        assigned = schema.CreatableReplicaAssignment(partition_index=i32(0), broker_ids=script.replicas)
        topic = schema.CreatableTopic(
            name=self._topic,
            num_partitions=i32(-1),
            replication_factor=i16(-1),
            assignments=(assigned,),
            configs=tuple(schema.CreatableTopicConfig(name=key, value=value) for key, value in settings.items()),
        )
        response = cast(Any, _call(self._cluster.admin, schema.CreateTopicsRequest(topics=(topic,), timeout=_TIMEOUT)))
        _check("CreateTopics", response.topics[0].error_code)
        wait_until(self._is_known, f"{self._topic} has a leader")

    def _is_known(self) -> bool:
        try:
            return bool(self._row().leader_id == self._replicas[0])
        except KafkaAdminError:
            return False

    def _row(self) -> Any:
        (row,) = self._cluster.admin.describe_topic(self._topic).partitions
        return row

    def _leader(self) -> KafkaBroker:
        return self._cluster.leader_of(self._topic, 0)

    def _has_quorum(self) -> bool:
        running = [broker for broker in self._cluster.brokers if broker.is_running]
        return len(running) > len(self._cluster.brokers) // 2

    def _wait_without(self, broker: int) -> None:
        """Until the others know that it does not run."""
        if self._has_quorum():
            wait_until(
                lambda: broker not in self._row().isr_nodes or self._row().leader_id < 0, f"{broker} is out of sync", 60
            )

    def _wait_for_leader(self) -> None:
        """Only where somebody may lead."""
        if set(self.alive()) & set(self._row().isr_nodes):
            wait_until(lambda: self._row().leader_id >= 0, f"{self._topic} has a leader")

    def _produce(self, step: Produce) -> str:
        try:
            admin = self._leader().admin
        except LookupError:
            return "leader_not_available"
        if step.producer and step.producer not in self._producers:
            self._producers[step.producer] = _Producer(self._cluster, self._topic)
        producer = self._producers[step.producer] if step.producer else None
        if producer is not None:
            producer.begin()
        for _ in range(step.batches):
            records = records_of(step, self._began_ms)
            base_ms = records[0][0]
            payload = b"".join(
                record_bytes(number, None, value, timestamp_delta=timestamp_ms - base_ms)
                for number, (timestamp_ms, value) in enumerate(records)
            )
            batch = batch_bytes(
                0,
                payload,
                count=len(records),
                epoch=-1,
                attributes=_TRANSACTIONAL if producer else 0,
                base_timestamp=base_ms,
                max_timestamp=records[-1][0],
                producer_id=producer.id if producer else -1,
                producer_epoch=producer.epoch if producer else -1,
                base_sequence=producer.next_sequence(len(records)) if producer else -1,
            )
            _produce(admin, self._topic, batch, producer.transactional_id if producer else None)
        return "none"

    def _move(self, broker: KafkaBroker) -> None:
        now = self.directory(broker.node_id)
        assert now is not None
        target = next(log_dir for log_dir in broker.log_dirs if log_dir != now.parent)
        move_replica(broker.admin, self._topic, 0, target)
        wait_until(lambda: (target / now.name).is_dir() and not now.is_dir(), f"{now.name} is in {target}")

    def _elect_uncleanly(self, broker: int) -> None:
        schema = load_payload_module(43, 2, EntityType.request)
        wanted = schema.TopicPartitions(topic=self._topic, partitions=(i32(0),))

        def led() -> bool:
            _call(
                self._cluster.admin,
                schema.ElectLeadersRequest(election_type=i8(1), topic_partitions=(wanted,), timeout=_TIMEOUT),
            )
            return bool(self._row().leader_id == broker)

        wait_until(led, f"{broker} leads uncleanly")


def _call(admin: KafkaAdmin, request: Any) -> object:
    with admin.connected() as connection:
        return connection.call(request)


def _produce(admin: KafkaAdmin, topic: str, batch: bytes, transactional_id: str | None) -> None:
    schema = load_payload_module(0, 9, EntityType.request)
    data = schema.TopicProduceData(
        name=topic, partition_data=(schema.PartitionProduceData(index=i32(0), records=batch),)
    )
    request = schema.ProduceRequest(
        transactional_id=transactional_id, acks=i16(-1), timeout=_TIMEOUT, topic_data=(data,)
    )
    response = cast(Any, _call(admin, request))
    ((row,),) = (one.partition_responses for one in response.responses)
    _check("Produce", row.error_code)


class _Producer:
    """A transactional one, in Kafka's own messages."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self.transactional_id = f"conformance-{uuid4()}"
        self._is_open = False
        self._sequence = 0
        finder = load_payload_module(10, 4, EntityType.request)  # which makes the coordinator's topic as well
        _call(cluster.admin, finder.FindCoordinatorRequest(key_type=i8(1), coordinator_keys=(self.transactional_id,)))
        schema = load_payload_module(22, 4, EntityType.request)
        response = self._ask(
            schema.InitProducerIdRequest(
                transactional_id=self.transactional_id, transaction_timeout=i32Timedelta.parse(timedelta(seconds=600))
            )
        )
        self.id, self.epoch = int(response.producer_id), int(response.producer_epoch)

    def next_sequence(self, records: int) -> int:
        """Of a batch."""
        sequence, self._sequence = self._sequence, self._sequence + records
        return sequence

    def begin(self) -> None:
        """Unless a transaction is open."""
        if not self._is_open:
            schema = load_payload_module(24, 3, EntityType.request)
            self._ask(
                schema.AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=self.transactional_id,
                    v3_and_below_producer_id=i64(self.id),
                    v3_and_below_producer_epoch=i16(self.epoch),
                    v3_and_below_topics=(schema.AddPartitionsToTxnTopic(name=self._topic, partitions=(i32(0),)),),
                )
            )
            self._is_open = True

    def end(self, *, commit: bool) -> None:
        """Of the transaction; its marker is written a moment later."""
        schema = load_payload_module(26, 3, EntityType.request)
        self._ask(
            schema.EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=i64(self.id),
                producer_epoch=i16(self.epoch),
                committed=commit,
            )
        )
        self._is_open = False

    def _ask(self, request: Any) -> Any:
        """The coordinator, wherever it is, as soon as it can."""

        def answer() -> Any:
            for broker in self._cluster.brokers:
                if not broker.is_running:
                    continue
                response = cast(Any, _call(broker.admin, request))
                codes = _codes(response)
                if all(code is ErrorCode.none for code in codes):
                    return response
                retried = {
                    ErrorCode.not_coordinator,
                    ErrorCode.coordinator_not_available,
                    ErrorCode.coordinator_load_in_progress,
                    ErrorCode.concurrent_transactions,
                    ErrorCode.unknown_topic_or_partition,
                }
                if not set(codes) - {ErrorCode.none} <= retried:
                    raise KafkaAdminError(asked=type(request).__name__, error_code=codes[0])
            return None

        return wait_until(answer, f"{type(request).__name__} is answered")


def _codes(response: Any) -> list[ErrorCode]:
    if hasattr(response, "results_by_topic_v3_and_below"):
        return [
            row.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for row in topic.results_by_partition
        ]
    return [response.error_code]


def _check(asked: str, code: ErrorCode) -> None:
    if code is not ErrorCode.none:
        raise KafkaAdminError(asked=asked, error_code=code)


def observe_kafka(stage: KafkaStage, outcome: str) -> Observation:
    """As :func:`observe`.

    Raises:
        NotYetError: the brokers are about to change it.
    """
    try:
        return observe(stage, outcome)
    except (OSError, KafkaAdminError, LookupError) as error:
        raise NotYetError(repr(error)) from error
