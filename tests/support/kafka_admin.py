"""Requests of tests to a broker, in Kafka's own messages and blocking: topics, settings, leaders.

It is the tests' own client, so that a fault in the product's cannot hide itself.
"""

from __future__ import annotations

import io
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

from kio.index import load_response_schema
from kio.schema.create_topics.v7.request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeleteTopicsResponse
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v7.response import ListOffsetsResponse
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse, MetadataResponseTopic
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64
from kio.static.protocol import RequestPayload

from tests.support.patience import patient_s

_SET, _DELETE = i8(0), i8(1)
_TOPIC_RESOURCE, _BROKER_RESOURCE = i8(2), i8(4)
_TIMEOUT = i32Timedelta.parse(timedelta(seconds=15))
_LEADS_S = 20
_NOT_YET = (ErrorCode.not_leader_or_follower, ErrorCode.leader_not_available)
T = TypeVar("T")


class KafkaAdminError(RuntimeError):
    """A broker answered with an error."""

    def __init__(self, *, asked: str, error_code: ErrorCode, message: str | None = None) -> None:
        self.error_code = error_code
        super().__init__(f"{asked}: {error_code.name}" + (f" ({message})" if message else ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCredentials:
    """A user of SASL PLAIN."""

    username: str
    password: str


class KafkaConnection:
    """One blocking connection to one broker, one request at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._correlation_id = 0

    def call(self, request: RequestPayload) -> object:
        """Return the response to ``request``, an entity of kio.

        Raises:
            OSError: the broker went away, or did not answer in time.
        """
        self._correlation_id += 1
        header = request.__header_schema__(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=i32(self._correlation_id),
            client_id="tiersidecar-tests",
        )
        frame = io.BytesIO()
        entity_writer(type(header))(frame, header)
        entity_writer(type(request))(frame, request)
        self._socket.sendall(struct.pack(">i", frame.tell()) + frame.getvalue())
        payload = self._read_exactly(*struct.unpack(">i", self._read_exactly(4)))
        response_type = load_response_schema(request.__api_key__, request.__version__)
        _, header_size = entity_reader(response_type.__header_schema__)(payload, 0)
        response, _ = entity_reader(response_type)(payload, header_size)
        return response

    def authenticate(self, credentials: PlainCredentials) -> None:
        """Log in by SASL PLAIN (RFC 4616)."""
        shaken = cast(SaslHandshakeResponse, self.call(SaslHandshakeRequest(mechanism="PLAIN")))
        _check("SaslHandshake", shaken.error_code)
        token = f"\0{credentials.username}\0{credentials.password}".encode()
        done = cast(SaslAuthenticateResponse, self.call(SaslAuthenticateRequest(auth_bytes=token)))
        _check("SaslAuthenticate", done.error_code, done.error_message)

    def _read_exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            if not part:
                raise ConnectionResetError("the broker closed the connection")
            parts += part
        return bytes(parts)


class KafkaAdmin:
    """Requests to the broker on ``port`` of loopback, a connection each."""

    def __init__(self, *, port: int, credentials: PlainCredentials | None = None) -> None:
        self._port = port
        self._credentials = credentials

    @contextmanager
    def connected(self, timeout_s: float = 20) -> Iterator[KafkaConnection]:
        """Yield a connection, logged in."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=timeout_s) as sock:
            connection = KafkaConnection(sock)
            if self._credentials is not None:
                connection.authenticate(self._credentials)
            yield connection

    def describe_cluster(self) -> MetadataResponse:
        """Return the brokers that are alive (unfenced), as this broker knows them."""
        with self.connected(timeout_s=5) as connection:
            request = MetadataRequest(
                topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
            )
            return cast(MetadataResponse, connection.call(request))

    def describe_topic(self, topic: str) -> MetadataResponseTopic:
        """Return id, partitions, leaders, epochs, ISR of ``topic``, as this broker knows them."""
        with self.connected() as connection:
            request = MetadataRequest(
                topics=(MetadataRequestTopic(topic_id=None, name=TopicName(topic)),),
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            )
            described = cast(MetadataResponse, connection.call(request)).topics[0]
        _check(f"Metadata of {topic}", described.error_code)
        return described

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        nodes: Sequence[int] = (),
    ) -> None:
        """Create ``topic``, all its partitions on ``nodes`` if there are any; returns when this broker knows a leader of each
        partition."""
        on_nodes = tuple(BrokerId(node) for node in nodes)
        wanted = CreatableTopic(
            name=TopicName(topic),
            num_partitions=i32(-1 if nodes else partitions),
            replication_factor=i16(-1 if nodes else replication_factor),
            assignments=tuple(
                CreatableReplicaAssignment(partition_index=i32(number), broker_ids=on_nodes)
                for number in range(partitions if nodes else 0)
            ),
            configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in configs.items()),
        )
        with self.connected() as connection:
            answer = connection.call(CreateTopicsRequest(topics=(wanted,), timeout=_TIMEOUT))
        created = cast(CreateTopicsResponse, answer).topics[0]
        _check(f"CreateTopics {topic}", created.error_code, created.error_message)
        wait_until(lambda: self._has_leaders(topic, partitions), f"{topic} has leaders")

    def delete_topic(self, topic: str) -> None:
        """Delete ``topic``; returns when this broker knows it no more (a producer could still write to it before).

        Its directories go a little later (``log.segment.delete.delay.ms``).
        """
        state = DeleteTopicState(name=TopicName(topic), topic_id=None)
        with self.connected() as connection:
            answer = connection.call(DeleteTopicsRequest(topics=(state,), timeout=_TIMEOUT))
        deleted = cast(DeleteTopicsResponse, answer).responses[0]
        _check(f"DeleteTopics {topic}", deleted.error_code, deleted.error_message)
        wait_until(lambda: not self._knows(topic), f"{topic} is gone")

    def earliest_offset(self, topic: str, partition: int) -> int:
        """Return the broker's log start offset."""
        return self._offset(topic, partition, -2)

    def latest_offset(self, topic: str, partition: int) -> int:
        """Return the high watermark."""
        return self._offset(topic, partition, -1)

    def settled_end(self, topic: str, partition: int) -> int:
        """Return the high watermark of a log with records once no transaction is open in it: a producer gets the answer that
        its transaction has ended before the marker is written, which takes the next offset."""

        def settled() -> int | None:
            end = self.latest_offset(topic, partition)
            return end if self._offset(topic, partition, -1, isolation_level=1) == end else None

        return wait_until(settled, f"no transaction is open in {topic}-{partition}")

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """Move the log start to ``offset``, straight at the broker; gives the new one."""
        row = DeleteRecordsPartition(partition_index=i32(partition), offset=i64(offset))
        wanted = DeleteRecordsTopic(name=TopicName(topic), partitions=(row,))
        with self.connected() as connection:
            answer = connection.call(DeleteRecordsRequest(topics=(wanted,), timeout=_TIMEOUT))
        deleted = cast(DeleteRecordsResponse, answer).topics[0].partitions[0]
        _check(f"DeleteRecords {topic}-{partition}", deleted.error_code)
        return deleted.low_watermark

    def _offset(self, topic: str, partition: int, spec: int, isolation_level: int = 0) -> int:
        """Ask for an offset.  A broker that has just started answers before it leads: that is asked again."""
        deadline = time.monotonic() + _LEADS_S
        while True:
            try:
                return self._offset_now(topic, partition, spec, isolation_level)
            except KafkaAdminError as error:
                if error.error_code not in _NOT_YET or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _offset_now(self, topic: str, partition: int, spec: int, isolation_level: int) -> int:
        row = ListOffsetsPartition(partition_index=i32(partition), timestamp=i64(spec))
        wanted = ListOffsetsTopic(name=TopicName(topic), partitions=(row,))
        request = ListOffsetsRequest(replica_id=BrokerId(-1), isolation_level=i8(isolation_level), topics=(wanted,))
        with self.connected() as connection:
            answer = cast(ListOffsetsResponse, connection.call(request)).topics[0].partitions[0]
        _check(f"ListOffsets {topic}-{partition}", answer.error_code)
        return answer.offset

    def alter_topic(self, topic: str, configs: Mapping[str, str | None]) -> None:
        """Set settings of ``topic``; None takes an override away; the others stay."""
        self._alter(_TOPIC_RESOURCE, topic, configs)

    def alter_broker(self, node_id: int | None, configs: Mapping[str, str | None]) -> None:
        """Set dynamic settings of one broker, or of all (None)."""
        self._alter(_BROKER_RESOURCE, "" if node_id is None else str(node_id), configs)

    def _alter(self, resource_type: i8, name: str, configs: Mapping[str, str | None]) -> None:
        changes = tuple(
            AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
            for key, value in configs.items()
        )
        resource = AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=changes)
        with self.connected() as connection:
            answer = connection.call(IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False))
        altered = cast(IncrementalAlterConfigsResponse, answer).responses[0]
        _check(f"IncrementalAlterConfigs {name}", altered.error_code, altered.error_message)

    def _knows(self, topic: str) -> bool:
        try:
            self.describe_topic(topic)
        except KafkaAdminError as error:
            return error.error_code is not ErrorCode.unknown_topic_or_partition
        return True

    def _has_leaders(self, topic: str, partitions: int) -> bool:
        try:
            described = self.describe_topic(topic)
        except KafkaAdminError:
            return False
        return len(described.partitions) == partitions and all(row.leader_id >= 0 for row in described.partitions)


def wait_until(ready: Callable[[], T | None], what: str, timeout_s: float = 30) -> T:
    """Return the first truthy value of ``ready``, asked 20 times a second.

    Raises:
        TimeoutError: there was none within ``timeout_s``; the message says ``what`` was waited for.
    """
    timeout_s = patient_s(timeout_s)
    deadline = time.monotonic() + timeout_s
    while not (value := ready()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.05)
    return value


def _check(asked: str, error_code: ErrorCode, message: str | None = None) -> None:
    if error_code is not ErrorCode.none:
        raise KafkaAdminError(asked=asked, error_code=error_code, message=message)
