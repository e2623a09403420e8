"""The record batches of a golden partition directory: what every read of its remote copy must give back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256

from tests.support.golden import CLEAN_LOG_DIR, read_json_lines
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader, iter_batch_headers
from tiersidecar.formats.kafka.records import Record


@dataclass(frozen=True, slots=True)
class LocalBatch:
    header: RecordBatchHeader
    data: bytes


@cache
def local_batches(partition: str) -> tuple[LocalBatch, ...]:
    """Return all batches of ``<topic>-<partition>``, in order."""
    batches = []
    for path in sorted((CLEAN_LOG_DIR / partition).glob("*.log")):
        data = path.read_bytes()
        for position, header in iter_batch_headers(data):
            batches.append(LocalBatch(header, data[position : position + header.size_bytes]))
    return tuple(batches)


def batches_between(partition: str, offset: int, stop_offset: int) -> bytes:
    """Return batches from the first whose last offset is ``offset`` or above, below ``stop_offset``."""
    return b"".join(
        batch.data
        for batch in local_batches(partition)
        if batch.header.last_offset >= offset and batch.header.base_offset < stop_offset
    )


@cache
def consumed_records(partition: str, isolation: str) -> dict[int, tuple[int, str | None, int, str, int]]:
    """Return by offset what Kafka's console consumer printed: timestamp, key, and of the value length and hash, then the number
    of headers.  For read_committed only where it differs from read_uncommitted was it run."""
    return {
        line["offset"]: (line["ts"], line["key"], line["len"], line["sha256_16"], line["headers"])
        for line in read_json_lines("log-dirs", "expected", "records.jsonl")
        if line["tp"] == partition and line["iso"] == isolation
    }


def as_consumed(record: Record) -> tuple[int, str | None, int, str, int]:
    """``record`` in the form of :func:`consumed_records`."""
    value = record.value or b""
    key = None if record.key is None else record.key.decode()
    return record.timestamp_ms, key, len(value), sha256(value).hexdigest()[:16], len(record.headers)
