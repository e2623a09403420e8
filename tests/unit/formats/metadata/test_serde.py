"""Records of ``__remote_log_metadata``, byte for byte (issue 3, Must show; S-032, S-087, S-107, S-108)."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.formats.metadata.events import added_segments, events, to_kafka_json
from tests.unit.formats.metadata.kio_records import read_with_kio, to_record, write_with_kio
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
)
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.metadata.serde import read_event, read_snapshot, write_event, write_snapshot

GOLDEN = Path(__file__).parents[3] / "golden"
RUNS = sorted((GOLDEN / "remote-log-metadata").glob("*.jsonl"))
VECTORS: list[dict[str, Any]] = json.loads((GOLDEN / "rlmm-serde-vectors.json").read_text(encoding="utf-8"))["cases"]
EXAMPLE = bytes.fromhex(VECTORS[0]["value_hex"])


def read(value: bytes) -> MetadataEvent:
    return read_event(value, where="__remote_log_metadata-7 offset 12")


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.stem)
def test_what_a_broker_wrote_decodes_to_its_json_and_encodes_back(run: Path) -> None:
    records = [json.loads(line) for line in run.read_text(encoding="utf-8").splitlines()]
    assert records
    for record in records:
        value = bytes.fromhex(record["value"])
        event = read(value)
        assert to_kafka_json(event) == record["json"]
        assert write_event(event, knows_txn_index_empty=True) == value


def test_there_are_five_runs_of_the_broker() -> None:
    assert {run.stem for run in RUNS} == {
        "compressed",
        "compressed-bigchunk",
        "encrypted",
        "plain",
        "prefix-custommeta",
    }


@pytest.mark.parametrize("number", range(len(VECTORS)))
def test_what_kafkas_serde_made_decodes_and_encodes_back(number: int) -> None:
    vector = VECTORS[number]
    event = read(bytes.fromhex(vector["value_hex"]))
    rendered = to_kafka_json(event)["record"]
    owner = rendered.get("remoteLogSegmentId", rendered)["topicIdPartition"]
    assert type(event).__name__ == vector["kind"]
    assert owner == {"name": vector["topic"], "id": vector["topic_id"], "partition": vector["partition"]}
    assert (event.broker_id, event.event_timestamp_ms) == (vector["broker_id"], vector["event_timestamp_ms"])
    assert (event.state.name, int(event.state)) == (vector["state"], vector["state_id"])
    if isinstance(event, RemoteLogSegmentMetadata):
        assert (event.start_offset, event.end_offset) == (vector["start_offset"], vector["end_offset"])
        assert event.max_timestamp_ms == vector["max_timestamp_ms"]
        assert event.segment_size_in_bytes == vector["segment_size_in_bytes"]
        assert event.txn_index_empty is vector["txn_index_empty"]
        assert [{"epoch": epoch, "offset": offset} for epoch, offset in event.segment_leader_epochs] == vector[
            "segment_leader_epochs"
        ]
    if isinstance(event, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate):
        assert rendered["remoteLogSegmentId"]["id"] == vector["segment_id"]
        assert (event.custom_metadata.hex() if event.custom_metadata is not None else None) == vector[
            "custom_metadata_hex"
        ]
    assert write_event(event, knows_txn_index_empty=True).hex() == vector["value_hex"]


@given(event=events)
def test_every_event_comes_back_as_it_was_written(event: MetadataEvent) -> None:
    assert read(write_event(event, knows_txn_index_empty=True)) == event


@given(event=events)
def test_bytes_are_those_of_kio_the_oracle(event: MetadataEvent) -> None:
    value = write_with_kio(event)
    assert write_event(event, knows_txn_index_empty=True) == value
    assert read_with_kio(value) == to_record(read(value))


@given(metadata=added_segments())
def test_a_target_without_txn_index_empty_gets_the_record_without_the_tag(metadata: RemoteLogSegmentMetadata) -> None:
    """Issue 4: what late versions added is written by the target version; readers take both."""
    value = write_event(metadata, knows_txn_index_empty=False)
    assert value.endswith(bytes((metadata.state, 0)))
    event = read(value)
    assert isinstance(event, RemoteLogSegmentMetadata)
    assert not event.txn_index_empty


@given(custom=st.none() | st.binary(max_size=200), is_empty=st.booleans())
def test_snapshot_records_come_back_and_are_refused_in_the_topic(custom: bytes | None, is_empty: bool) -> None:
    """S-107: the fourth kind is parsed; the topic never carries it."""
    snapshot = RemoteLogSegmentMetadataSnapshot(
        uuid=bytes(range(16)),
        start_offset=Offset(3),
        end_offset=Offset(9),
        max_timestamp_ms=1,
        broker_id=BrokerId(2),
        event_timestamp_ms=4,
        segment_size_in_bytes=5,
        segment_leader_epochs=(EpochEntry(LeaderEpoch(0), Offset(3)), EpochEntry(LeaderEpoch(2), Offset(7))),
        custom_metadata=custom,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        txn_index_empty=is_empty,
    )
    value = write_snapshot(snapshot, knows_txn_index_empty=True)
    assert value == write_with_kio(snapshot)
    assert read_snapshot(value, where="snapshot") == snapshot
    with pytest.raises(CorruptDataError, match="never carries"):
        read(value)
    with pytest.raises(CorruptDataError, match="not a snapshot"):
        read_snapshot(EXAMPLE, where="snapshot")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(b"", "frame -1", id="an empty value"),
        pytest.param(b"\x01\x00", "frame -1", id="a value shorter than its frame"),
        pytest.param(b"\x00" + EXAMPLE[1:], "frame 0", id="the frame version of 2.8's preview"),
        pytest.param(b"\x01\x09\x00" + EXAMPLE[3:], "kind 9", id="an unknown kind"),
        pytest.param(b"\x01\x00\x01" + EXAMPLE[3:], "version 1", id="a record version that does not exist yet"),
        pytest.param(EXAMPLE[:-12], "bytes expected", id="a record cut short"),
        pytest.param(EXAMPLE + b"\x00", "garbage", id="garbage after the record"),
        pytest.param(EXAMPLE[:-5] + b"\x07" + EXAMPLE[-4:], "7 is not a valid", id="a state that does not exist"),
        pytest.param(b'{"json": true}', "frame 123", id="something else altogether"),
    ],
)
def test_bad_bytes_are_named_with_partition_and_offset(value: bytes, reason: str) -> None:
    with pytest.raises(CorruptDataError, match=reason) as caught:
        read(value)
    assert str(caught.value).startswith("__remote_log_metadata-7 offset 12 is corrupt at byte ")


def test_a_segment_that_ends_before_it_starts_is_corrupt() -> None:
    """S-116, as the constructor of Kafka's RemoteLogSegmentMetadata refuses it."""
    value = bytearray(bytes.fromhex(VECTORS[0]["value_hex"]))
    end_at = 3 + 2 + 16 + 4 + 1 + 16 + 1 + 8
    value[end_at : end_at + 8] = (-1).to_bytes(8, "big", signed=True)
    with pytest.raises(CorruptDataError, match="offsets"):
        read(bytes(value))


def test_an_unknown_tag_of_a_later_kafka_is_skipped() -> None:
    tagged = EXAMPLE[:-4] + b"\x02\x00\x01\x01\x05\x02\xab\xcd"
    assert read(tagged) == read(EXAMPLE)


@given(value=st.binary(max_size=200))
def test_no_bytes_crash_the_reader(value: bytes) -> None:
    with contextlib.suppress(CorruptDataError):
        read(value)


@given(event=events, flips=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), min_size=1, max_size=4))
def test_no_flipped_bits_crash_the_reader(event: MetadataEvent, flips: list[tuple[int, int]]) -> None:
    value = bytearray(write_event(event, knows_txn_index_empty=True))
    for position, mask in flips:
        value[position % len(value)] ^= mask
    with contextlib.suppress(CorruptDataError):
        read(bytes(value))
