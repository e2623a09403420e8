"""What the real plugin left in a store, as rows: what Kafka's console consumer printed of it."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.local_batches import consumed_records
from tests.support.remote_rows import Row, opened_rows
from tests.support.remote_runs import RUNS, load_run

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _printed(row: Row) -> tuple[int, str | None, int, str, int]:
    """As tests/golden/log-dirs/expected/records.jsonl has it."""
    key, value = row["key"], row["value"]
    return (
        (row["timestamp"] - _EPOCH) // timedelta(milliseconds=1),
        None if key is None else key.decode(),
        -1 if value is None else len(value),
        hashlib.sha256(value or b"").hexdigest()[:16],
        len(row["headers"] or ()),
    )


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("max_bytes", ["1000000", "20000"])
def test_rows_are_what_the_console_consumer_printed(name: str, isolation: str, max_bytes: str) -> None:
    run = asyncio.run(load_run(name))
    seen = 0
    with opened_rows(run) as opened:
        for partition in run.partitions:
            expected = consumed_records(str(partition), isolation) or consumed_records(
                str(partition), "read_uncommitted"
            )
            if not expected:
                continue  # of one topic the console consumer printed nothing
            options = {"isolation.level": isolation, "maxBytesPerPartition": max_bytes}
            rows = opened.rows([partition], options)
            end = max((row["offset"] for row in rows), default=-1)
            assert {row["offset"]: _printed(row) for row in rows} == {
                offset: one for offset, one in expected.items() if offset <= end
            }
            offsets = [row["offset"] for row in rows]
            assert offsets == sorted(set(offsets))
            assert {(row["topic"], row["partition"]) for row in rows} <= {(partition.topic, partition.partition)}
            seen += len(rows)
    assert seen > 0
