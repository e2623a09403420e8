"""Every fixture topic, from every offset and for every timestamp, at both isolation levels: the records that Kafka's console
consumer printed of it before it was tiered.

``plain1m`` was not printed: its batches are compared byte for byte in test_remote_log_reader.py.
"""

from __future__ import annotations

from contextlib import aclosing
from functools import cache

import pytest

from tests.support.local_batches import as_consumed, consumed_records, local_batches
from tests.support.remote_runs import load_run, open_run
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import Record, aborted_ranges, read_records
from tiersidecar.reading.read_path import ReadPath

TOPICS = (
    "plain-0",
    "plain-1",
    "compressed-0",
    "idempotent-0",
    "transactions-0",
    "epochs-0",
    "deleted-prefix-0",
    "logappend-0",
    "fine-index-0",
    "retention.deleted_x-0",
)
THREE = {"compressed-0", "transactions-0", "epochs-0"}
EACH_TOPIC = pytest.mark.parametrize(
    "topic", [pytest.param(topic, marks=() if topic in THREE else pytest.mark.slow) for topic in TOPICS]
)
WINDOW = 40


@cache
def records_in(batch: bytes) -> tuple[Record, ...]:
    return tuple(read_records(batch))


async def read(
    path: ReadPath, partition: TopicIdPartition, offset: int, stop: int, *, read_committed: bool
) -> dict[int, object]:
    """What a consumer of this isolation level is shown of the offsets from ``offset`` up to, not including, ``stop``."""
    found: dict[int, object] = {}
    stream = path.reader.stream_batches(partition, offset, stop_offset=stop, read_committed=read_committed)
    async with aclosing(stream) as parts:
        async for part in parts:
            data, hidden = bytes(part.batches.buffer), aborted_ranges(part.aborted_transactions or ())
            for position, header in iter_batch_headers(data):
                if not header.is_control and not hidden.hides(header):
                    for record in records_in(data[position : position + header.size_bytes]):
                        if offset <= record.offset < stop:
                            found[record.offset] = as_consumed(record)
    return found


async def test_the_topics_are_those_of_the_fixture() -> None:
    run = await load_run("plain")
    assert {str(partition) for partition in run.partitions} == {*TOPICS, "plain1m-0"}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@EACH_TOPIC
async def test_from_every_offset_the_records_are_the_printed_ones(topic: str, isolation: str) -> None:
    run = await load_run("plain")
    partition = run.partition(topic)
    # Only where it differs was read_committed printed.
    printed = consumed_records(topic, isolation) or consumed_records(topic, "read_uncommitted")
    first = min(printed)
    is_committed = isolation == "read_committed"
    async with open_run(run) as path:
        bounds = await path.reader.bounds(partition)
        start = max(bounds.start, first)
        for offset in range(start, bounds.end):
            # Whole from the first offset, a window from each later one: what comes after it is the same read again.
            stop = bounds.end if offset == start else min(offset + WINDOW, bounds.end)
            expected = {at: record for at, record in printed.items() if offset <= at < stop}
            found = await read(path, partition, offset, stop, read_committed=is_committed)
            assert found == expected, f"{topic} from {offset}"


@EACH_TOPIC
async def test_for_every_timestamp_the_first_such_record_is_found(topic: str) -> None:
    run = await load_run("plain")
    partition = run.partition(topic)
    async with open_run(run) as path:
        bounds = await path.reader.bounds(partition)
        records = [
            record
            for batch in local_batches(topic)
            for record in records_in(batch.data)
            if bounds.start <= record.offset < bounds.end
        ]
        stamps = {record.timestamp_ms + change for record in records for change in (-1, 0, 1)}
        for wanted in stamps:
            first = next((one for one in records if one.timestamp_ms >= wanted), None)
            found = await path.timestamps.find(partition, wanted)
            expected = None if first is None else (first.offset, first.timestamp_ms)
            assert (None if found is None else (found.offset, found.timestamp_ms)) == expected, wanted
