"""Raw records become the columns that the codec's own reader gives, for the common form and for the rare ones."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.support.golden import read_json_lines
from tests.support.remote_runs import RUNS
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemotePartitionDeleteMetadata
from tiersidecar.formats.aiven.keys import read_custom_metadata
from tiersidecar.formats.metadata import hot
from tiersidecar.formats.metadata.serde import read_event
from tiersidecar.reconcile.segment_rows import UNREADABLE
from tiersidecar.spark.events import _decode_batches


def decoded(values: list[bytes]) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pydict(
        {
            "partition": [3] * len(values),
            "offset": range(len(values)),
            "is_late": [False] * len(values),
            "value": values,
        }
    )
    (found,) = _decode_batches([batch])
    return found.to_pylist()  # type: ignore[no-any-return]


def test_what_brokers_wrote() -> None:
    values = [
        bytes.fromhex(line["value"]) for run in RUNS for line in read_json_lines("remote-log-metadata", f"{run}.jsonl")
    ]
    rows = decoded(values)
    assert len(rows) == len(values) > 100
    for row, value in zip(rows, values, strict=True):
        event = read_event(value, where="golden")
        assert not isinstance(event, RemotePartitionDeleteMetadata)
        custom = read_custom_metadata(event.custom_metadata)
        assert (row["uuid"], row["state"]) == (event.remote_log_segment_id.uuid, event.state)
        assert (row["broker_id"], row["event_timestamp_ms"]) == (event.broker_id, event.event_timestamp_ms)
        assert (row["object_prefix"], row["remote_size_bytes"]) == (custom.object_prefix, custom.remote_size)
        if isinstance(event, RemoteLogSegmentMetadata):
            owner = event.topic_id_partition
            told = ",".join(f"{epoch}:{start}" for epoch, start in event.segment_leader_epochs)
            assert (row["topic"], row["topic_id"], row["partition"]) == (owner.topic, owner.topic_id, owner.partition)
            assert (row["start_offset"], row["end_offset"]) == (event.start_offset, event.end_offset)
            assert (row["segment_size_bytes"], row["epochs"]) == (event.segment_size_in_bytes, told)


def test_what_is_no_event_is_a_row_that_says_so() -> None:
    added = next(
        bytes.fromhex(line["value"])
        for line in read_json_lines("remote-log-metadata", "plain.jsonl")
        if bytes.fromhex(line["value"])[1] == hot.ADDED
    )
    rows = decoded([b"", b"\x01", b"\x02\x00\x00", added[:40], added + b"x", added])
    assert [row["api_key"] for row in rows] == [UNREADABLE] * 5 + [hot.ADDED]
    assert all(row["fault"] for row in rows[:5])
    assert [row["log_offset"] for row in rows] == list(range(6))
