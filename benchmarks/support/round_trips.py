"""One small request at a time over a socket of our own: what a hop adds, without a client's threads and batching."""

from __future__ import annotations

import socket
import struct
import time
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.index import load_payload_module
from kio.static.constants import EntityType

from tests.support.kafka_admin import KafkaAdmin
from tiersidecar.adapters.kafka import apis
from tiersidecar.formats.wire.framing import write_request

_PRODUCE, _PRODUCE_VERSION, _FETCH_VERSION = 0, 12, 15
_RECORD_BYTES = 100


class RoundTrips:
    """Produces to partition 0 of ``topic``, and fetches its first record, again and again; ``servers`` is host:port."""

    def __init__(self, servers: str, topic: str) -> None:
        host, _, port = servers.rpartition(":")
        self._topic, self._admin = topic, KafkaAdmin(port=int(port))
        topic_id = self._admin.describe_topic(topic).topic_id
        if topic_id is None:
            raise RuntimeError(f"{topic} has no id")
        fetch = apis.fetch(_FETCH_VERSION, topic_id.bytes, 0, 0, max_bytes=1, read_committed=False)
        self._produce = write_request(_produce(topic), correlation_id=1, client_id="bench")
        self._fetch = write_request(fetch, correlation_id=1, client_id="bench")
        self._produce_s: list[float] = []
        self._fetch_s: list[float] = []
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def warm_up(self, times: int) -> None:
        """
        Raises:
            RuntimeError: nothing came back: what is measured would be errors.
        """
        end = self._end_offset()
        for _ in range(times):
            self._round_trip(self._produce)
            if self._round_trip(self._fetch)[1] < _RECORD_BYTES:
                raise RuntimeError(f"a fetch of {self._topic} brought no record")
        if self._end_offset() < end + times:
            raise RuntimeError(f"{self._topic} did not grow by what was produced")

    def produce(self) -> None:
        self._produce_s.append(self._round_trip(self._produce)[0])

    def fetch(self) -> None:
        self._fetch_s.append(self._round_trip(self._fetch)[0])

    def produce_ms(self, percentile: int) -> float:
        return _percentile(self._produce_s, percentile) * 1000

    def fetch_ms(self, percentile: int) -> float:
        return _percentile(self._fetch_s, percentile) * 1000

    def p99_ms_of_blocks(self, what: str, block: int) -> list[float]:
        """Of ``block`` round trips each, in the order in which they were made: "produce" or "fetch"."""
        times = self._produce_s if what == "produce" else self._fetch_s
        return [_percentile(times[at : at + block], 99) * 1000 for at in range(0, len(times) - block + 1, block)]

    def _end_offset(self) -> int:
        return self._admin.latest_offset(self._topic, 0)

    def _round_trip(self, frame: bytes) -> tuple[float, int]:
        """Seconds, and the response's bytes."""
        began_s = time.perf_counter()
        self._socket.sendall(frame)
        (size,) = struct.unpack(">i", self._read(4))
        self._read(size)
        return time.perf_counter() - began_s, size

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionResetError("the connection was closed")
            data += more
        return data


def _produce(topic: str) -> Any:
    schema = load_payload_module(_PRODUCE, _PRODUCE_VERSION, EntityType.request)
    records = schema.PartitionProduceData(index=0, records=_batch())
    return schema.ProduceRequest(
        transactional_id=None,
        acks=1,
        timeout=timedelta(seconds=10),
        topic_data=(schema.TopicProduceData(name=topic, partition_data=(records,)),),
    )


def _batch() -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2 * _RECORD_BYTES + 200,
    )
    builder.append(0, timestamp=int(time.time() * 1000), key=None, value=bytes(_RECORD_BYTES), headers=[])
    return bytes(builder.build())


def _percentile(values: list[float], percentile: int) -> float:
    return sorted(values)[min(len(values) * percentile // 100, len(values) - 1)]
