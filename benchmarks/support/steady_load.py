"""Produce requests at even intervals over sockets of our own: what a broker's clients wait, without a client's own jitter."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.index import load_payload_module
from kio.static.constants import EntityType

from tests.support.kafka_admin import KafkaAdmin, KafkaAdminError, wait_until
from tiersidecar.formats.wire.framing import write_request

_PRODUCE, _PRODUCE_VERSION = 0, 12
_TIMEOUT_S = 30.0
_SIZE_BYTES = 4


class SteadyLoad:
    """One connection for each partition of ``topic``; the frames are made once, so that a request costs this process two
    system calls.

    A request counts from when it was due, whether earlier ones are acknowledged or not: one that waits for its turn waits,
    too.  ``requests_per_s`` are of all connections together.
    """

    def __init__(self, port: int, topic: str, *, partitions: int, value: bytes, requests_per_s: int) -> None:
        self._admin, self._topic, self._requests_per_s = KafkaAdmin(port=port), topic, requests_per_s
        self._partitions = partitions
        wait_until(self._is_led, f"{topic} is led")  # a new topic is, a moment later
        self._lanes = [_Lane(port, _frame(topic, partition, value)) for partition in range(partitions)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lane in self._lanes:
            lane.socket.close()

    def run(self, seconds: float) -> list[float]:
        """As many requests as are due in so many seconds, all acknowledged on return: their latencies in ms.

        Raises:
            RuntimeError: the broker acknowledged requests without appending them.
            TimeoutError: it was silent for 30 s.
        """
        before = self._end_offsets()
        latencies = self._send(int(seconds * self._requests_per_s))
        if self._end_offsets() != before + len(latencies):
            raise RuntimeError(f"{self._topic} did not grow by what was produced")
        return latencies

    def _send(self, count: int) -> list[float]:
        began_s, sent, latencies = time.perf_counter(), 0, list[float]()
        lanes = {lane.socket: lane for lane in self._lanes}
        while len(latencies) < count:
            now_s = time.perf_counter()
            while sent < count and (due_s := began_s + sent / self._requests_per_s) <= now_s:
                self._lanes[sent % len(self._lanes)].send(due_s)
                sent += 1
            wait_s = _TIMEOUT_S if sent == count else began_s + sent / self._requests_per_s - time.perf_counter()
            ready, _, _ = select.select(lanes, (), (), max(0.0, wait_s))
            if not ready and sent == count:
                raise TimeoutError(f"{count - len(latencies)} of {count} requests were not acknowledged in time")
            for readable in ready:
                latencies += lanes[readable].receive()
        return latencies

    def _is_led(self) -> bool:
        try:
            self._end_offsets()
        except KafkaAdminError:
            return False
        return True

    def _end_offsets(self) -> int:
        return sum(self._admin.latest_offset(self._topic, partition) for partition in range(self._partitions))


@dataclass(slots=True, eq=False)
class _Lane:
    """One connection; a broker answers its requests in their order."""

    port: int
    frame: bytes
    socket: socket.socket = field(init=False)
    due_s: deque[float] = field(default_factory=deque)
    received: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, due_s: float) -> None:
        self.socket.sendall(self.frame)
        self.due_s.append(due_s)

    def receive(self) -> Sequence[float]:
        """Latencies in ms of what one read completes.

        Raises:
            ConnectionResetError: the broker closed the connection.
        """
        data = self.socket.recv(65536)
        now_s = time.perf_counter()
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        self.received += data
        latencies = []
        while len(self.received) >= _SIZE_BYTES:
            end = _SIZE_BYTES + int(struct.unpack_from(">i", self.received)[0])
            if len(self.received) < end:
                break
            del self.received[:end]
            latencies.append((now_s - self.due_s.popleft()) * 1000)
        return latencies


def _frame(topic: str, partition: int, value: bytes) -> bytes:
    schema = load_payload_module(_PRODUCE, _PRODUCE_VERSION, EntityType.request)
    records = schema.PartitionProduceData(index=partition, records=_batch(value))
    request: Any = schema.ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout=timedelta(seconds=_TIMEOUT_S),
        topic_data=(schema.TopicProduceData(name=topic, partition_data=(records,)),),
    )
    return write_request(request, correlation_id=1, client_id="bench")


def _batch(value: bytes) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=len(value) + 1000,
    )
    builder.append(0, timestamp=int(time.time() * 1000), key=None, value=value, headers=[])
    return bytes(builder.build())
