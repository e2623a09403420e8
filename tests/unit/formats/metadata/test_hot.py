"""The struct codec agrees with the whole reader, or declines."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.formats.metadata.events import added_segments, events, updates
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.metadata_cache_rows import added_fields, updated_fields
from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from tiersidecar.formats.metadata import hot
from tiersidecar.formats.metadata.serde import read_event, write_event

GOLDEN = Path(__file__).parents[3] / "golden"


@given(event=events)
def test_the_peeked_key_is_topic_id_and_partition(event: MetadataEvent) -> None:
    value = write_event(event, knows_txn_index_empty=True)
    owner = (
        event.topic_id_partition
        if isinstance(event, RemotePartitionDeleteMetadata | RemoteLogSegmentMetadata)
        else event.remote_log_segment_id.topic_id_partition
    )
    kinds = {RemoteLogSegmentMetadata: hot.ADDED, RemoteLogSegmentMetadataUpdate: hot.UPDATED}
    kind, _, key = hot.peek(value)
    assert kind == kinds.get(type(event), hot.PARTITION_DELETE)
    assert key == owner.topic_id + owner.partition.to_bytes(4, "big")


@given(metadata=added_segments(), knows=st.booleans())
def test_fields_of_an_added_segment_are_those_of_the_whole_reader_or_none(
    metadata: RemoteLogSegmentMetadata, knows: bool
) -> None:
    value = write_event(metadata, knows_txn_index_empty=knows)
    fields = hot.read_added(value, hot.peek(value)[1])
    is_common = len(metadata.segment_leader_epochs) == 1 and len(metadata.custom_metadata or b"") < 127
    if is_common:
        event = read_event(value, where="oracle")
        assert isinstance(event, RemoteLogSegmentMetadata)
        assert fields == added_fields(event)
    else:
        assert fields is None


@given(update=updates)
def test_fields_of_an_update_are_those_of_the_whole_reader_or_none(update: RemoteLogSegmentMetadataUpdate) -> None:
    value = write_event(update, knows_txn_index_empty=True)
    fields = hot.read_updated(value, hot.peek(value)[1])
    assert fields == (updated_fields(update) if len(update.custom_metadata or b"") < 127 else None)


@given(event=st.one_of(added_segments(), updates), position=st.integers(0, 400), mask=st.integers(1, 255))
def test_a_flipped_byte_is_read_as_the_whole_reader_does_or_declined(
    event: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate, position: int, mask: int
) -> None:
    damaged = bytearray(write_event(event, knows_txn_index_empty=True))
    damaged[position % len(damaged)] ^= mask
    value = bytes(damaged)
    try:
        kind, at, _ = hot.peek(value)
    except IndexError:
        return
    if kind not in (hot.ADDED, hot.UPDATED):
        return
    fields = hot.read_added(value, at) if kind == hot.ADDED else hot.read_updated(value, at)
    if fields is None:
        return
    try:
        oracle = read_event(value, where="oracle")
    except CorruptDataError as error:
        # Only the topic's name is not looked at: the partition key before it decided already whose record this is.
        assert "UTF-8" in str(error)  # noqa: PT017
        return
    assert isinstance(oracle, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate)
    assert fields == (added_fields(oracle) if isinstance(oracle, RemoteLogSegmentMetadata) else updated_fields(oracle))


def test_nearly_all_records_of_a_real_broker_are_hot() -> None:
    values = [
        bytes.fromhex(json.loads(line)["value"])
        for run in (GOLDEN / "remote-log-metadata").glob("*.jsonl")
        for line in run.read_text(encoding="utf-8").splitlines()
    ]
    readers = {hot.ADDED: hot.read_added, hot.UPDATED: hot.read_updated}
    declined = 0
    for value in values:
        kind = hot.peek(value)[0]
        assert kind is not None
        declined += readers[kind](value, hot.peek(value)[1]) is None
    assert declined < len(values) / 10
