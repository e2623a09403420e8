"""A client that means harm: it logs in as a user of few rights, then sends frames in an order of its own choosing.

Its weapon is the answer to SyncGroup, whose assignment is bytes that this very client has chosen: laid over another API's
answer, they say what the client wants the broker to have said.  All of its requests carry one correlation id.
"""

from __future__ import annotations

import io
import socket
import struct
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32

from tests.support.kafka_admin import PlainCredentials, wait_until

JOIN_GROUP, SYNC_GROUP, FETCH, METADATA, SASL_HANDSHAKE, DELETE_RECORDS, SASL_AUTHENTICATE = 11, 14, 1, 3, 17, 21, 36
FIND_COORDINATOR = 10
CORRELATION_ID = 7
_OUT_OF_RANGE = 1


@dataclass(slots=True)
class Attacker:
    """One blocking connection to ``port`` of loopback."""

    port: int
    socket: socket.socket = field(init=False)

    def __enter__(self) -> Self:
        self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def address(self) -> str:
        """Return the address as others see it."""
        host, port = self.socket.getsockname()
        return f"{host}:{port}"

    def send(self, *frames: bytes) -> None:
        """Send all of it at once."""
        self.socket.sendall(b"".join(frames))

    def frame(self) -> bytes | None:
        """Return the next answer, without its size; None: the connection has ended."""
        size = self._exactly(4)
        return None if size is None else self._exactly(*struct.unpack(">i", size))

    def frames_until_the_end(self) -> list[bytes]:
        """Return all that still comes.  One that does not end within 20 s fails with TimeoutError."""
        found = []
        while (frame := self.frame()) is not None:
            found.append(frame)
        return found

    def call(self, api_key: int, version: int, **fields: Any) -> Any:
        """Send one request, and return its answer.

        Raises:
            ConnectionError: the connection has ended instead.
        """
        self.send(request_frame(api_key, version, **fields))
        frame = self.frame()
        if frame is None:
            raise ConnectionError("ended instead of an answer")
        return read_answer(api_key, version, frame)

    def login(self, credentials: PlainCredentials) -> None:
        shaken = self.call(SASL_HANDSHAKE, 1, mechanism="PLAIN")
        assert shaken.error_code == 0, shaken
        token = f"\0{credentials.username}\0{credentials.password}".encode()
        done = self.call(SASL_AUTHENTICATE, 0, auth_bytes=token)
        assert done.error_code == 0, done

    def join(self, group: str, assignment: bytes) -> bytes:
        """Become the one member of ``group``, with this ``assignment``; gives the SyncGroup that asks for it again."""
        joined = wait_until(lambda: self._joined(group), f"{group} has a coordinator")
        (assignment_type,) = _item_types(SYNC_GROUP, 1, "assignments")
        fields = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
        mine = assignment_type(member_id=joined.member_id, assignment=assignment)
        synced = self.call(SYNC_GROUP, 1, **fields, assignments=(mine,))
        assert synced.error_code == 0, synced
        assert synced.assignment == assignment
        return request_frame(SYNC_GROUP, 1, **fields, assignments=())

    def _joined(self, group: str) -> Any:
        """Join the group, and return the answer; None while it has no coordinator: to look for one is to have its topic
        made."""
        self.call(FIND_COORDINATOR, 1, key=group, key_type=0)
        self.send(join_frame(group))
        frame = self.frame()
        assert frame is not None
        joined = read_answer(JOIN_GROUP, 2, frame)
        return joined if joined.error_code == 0 else None

    def _exactly(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self.socket.recv(size - len(parts))
            except ConnectionResetError:
                part = b""
            if not part:
                return None
            parts += part
        return bytes(parts)


def request_frame(api_key: int, version: int, **fields: Any) -> bytes:
    """Return a whole frame, by kio."""
    schema = load_request_schema(api_key, version)
    header = schema.__header_schema__(
        request_api_key=schema.__api_key__,
        request_api_version=schema.__version__,
        correlation_id=i32(CORRELATION_ID),
        **({"client_id": "attacker"} if "client_id" in schema.__header_schema__.__dataclass_fields__ else {}),
    )
    frame = io.BytesIO()
    entity_writer(type(header))(frame, header)
    entity_writer(schema)(frame, schema(**fields))
    return struct.pack(">i", frame.tell()) + frame.getvalue()


def read_answer(api_key: int, version: int, frame: bytes) -> Any:
    schema = load_response_schema(api_key, version)
    _, at = entity_reader(schema.__header_schema__)(frame, 0)
    return entity_reader(schema)(frame, at)[0]


def fetch_frame(topic: str, *, offset: int = 0, max_bytes: int = 2**24) -> bytes:
    """Return a Fetch of version 11, of partition 0 from ``offset`` on."""
    topic_type, row_type = _item_types(FETCH, 11, "topics", "partitions")
    row = row_type(
        partition=0, current_leader_epoch=-1, fetch_offset=offset, log_start_offset=-1, partition_max_bytes=max_bytes
    )
    return request_frame(
        FETCH,
        11,
        replica_id=-1,
        max_wait=timedelta(milliseconds=500),
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(topic_type(topic=topic, partitions=(row,)),),
        forgotten_topics_data=(),
        rack_id="",
    )


def delete_frame(topic: str, offset: int) -> bytes:
    """Return a DeleteRecords of version 1, of partition 0."""
    return deletes_frame({topic: offset})


def deletes_frame(offsets: Mapping[str, int]) -> bytes:
    """Return a DeleteRecords of version 1, of partition 0 of each topic."""
    topic_type, row_type = _item_types(DELETE_RECORDS, 1, "topics", "partitions")
    topics = tuple(
        topic_type(name=topic, partitions=(row_type(partition_index=0, offset=offset),))
        for topic, offset in offsets.items()
    )
    return request_frame(DELETE_RECORDS, 1, topics=topics, timeout=timedelta(seconds=10))


def metadata_frame() -> bytes:
    return request_frame(METADATA, 1, topics=())


def join_frame(group: str) -> bytes:
    """Return the request of a new member: where the group has one already, the answer waits until that one has joined again."""
    (protocols_type,) = _item_types(JOIN_GROUP, 2, "protocols")
    return request_frame(
        JOIN_GROUP,
        2,
        group_id=group,
        session_timeout=timedelta(seconds=30),
        rebalance_timeout=timedelta(seconds=30),
        member_id="",
        protocol_type="consumer",
        protocols=(protocols_type(name="mine", metadata=b""),),
    )


def handshake_frame(mechanism: str, version: int = 0) -> bytes:
    return request_frame(SASL_HANDSHAKE, version, mechanism=mechanism)


def assignment_like_a_fetch_answer(topic: str) -> bytes:
    """Behind throttle time, error code and length of SyncGroup's answer: partition 0 is out of range, as Fetch v11 says it."""
    name = topic.encode()
    row = struct.pack(">ihqqqiii", 0, _OUT_OF_RANGE, -1, -1, -1, -1, -1, -1)
    return struct.pack(">ih", 1, len(name)) + name + struct.pack(">i", 1) + row


def assignment_like_a_delete_answer(topic: str, low_watermark: int) -> bytes:
    """Write it as DeleteRecords v1 does.  Its number of topics lies over the error code and the upper half of the length, the
    length of the first name over the lower half: two topics, and as many rows as make up that length."""
    name = topic.encode()
    other = b"x" * ((2 * 65_536 - 4 - 2 - 4) % 14)
    rows = (2 * 65_536 - 4 - 2 - 4 - len(other)) // 14
    row, none = struct.pack(">iqh", 0, low_watermark, 0), struct.pack(">iqh", 0, -1, 3)
    data = name + struct.pack(">i", 1) + row + struct.pack(">h", len(other)) + other + struct.pack(">i", rows - 1)
    data += none * (rows - 1)
    assert len(data) == 2 * 65_536 + len(name)
    return data


def records_bytes(answer: Any) -> int:
    """Return the bytes of records in a Fetch answer."""
    return sum(len(row.records or b"") for topic in answer.responses for row in topic.partitions)


def _item_types(api_key: int, version: int, *names: str) -> Sequence[Any]:
    schema: Any = load_request_schema(api_key, version)
    found = []
    for name in names:
        annotation = typing.get_type_hints(schema)[name]
        if typing.get_origin(annotation) is not tuple:
            annotation = next(arg for arg in typing.get_args(annotation) if typing.get_origin(arg) is tuple)
        schema = typing.get_args(annotation)[0]
        found.append(schema)
    return found
