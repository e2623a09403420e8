"""Events of the metadata topic as lines."""

from __future__ import annotations

from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tiersidecar.app.commands.events import EventLines, Recorded
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from tiersidecar.domain.states import RemoteLogSegmentState, RemotePartitionDeleteState

BEGIN = remote_segment(0, 99, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED, size_bytes=2048)
FINISH = RemoteLogSegmentMetadataUpdate(
    remote_log_segment_id=BEGIN.remote_log_segment_id,
    broker_id=BrokerId(1),
    event_timestamp_ms=5,
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
)
DELETE = RemotePartitionDeleteMetadata(
    topic_id_partition=TOPIC_ID_PARTITION,
    broker_id=BrokerId(2),
    event_timestamp_ms=6,
    state=RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
)


def recorded(event: MetadataEvent | None, problem: str = "") -> Recorded:
    return Recorded(partition=4, offset=17, time_ms=1_700_000_000_000, event=event, problem=problem)


def test_an_update_has_the_offsets_of_the_segment_whose_begin_was_seen() -> None:
    lines = EventLines()
    head = "2023-11-14T22:13:20Z  4@17  orders/3"
    tail = f"broker 1  offsets 0 to 99  2.0 KiB  {lines.document(recorded(BEGIN))['segment_id']}"
    assert lines.text(recorded(BEGIN)) == f"{head}  COPY_SEGMENT_STARTED  {tail}"
    assert lines.text(recorded(FINISH)) == f"{head}  COPY_SEGMENT_FINISHED  {tail}"
    document = lines.document(recorded(FINISH))
    assert (document["kind"], document["start_offset"], document["end_offset"]) == ("segment-update", 0, 99)


def test_an_update_alone_says_what_it_has() -> None:
    document = EventLines().document(recorded(FINISH))
    assert (document["state"], "start_offset" in document) == ("COPY_SEGMENT_FINISHED", False)


def test_a_partition_that_goes_and_what_cannot_be_read() -> None:
    lines = EventLines()
    assert "orders/3  DELETE_PARTITION_MARKED  broker 2" in lines.text(recorded(DELETE))
    assert lines.text(recorded(None, "no magic")).endswith("4@17  cannot be read: no magic")
    assert lines.document(recorded(None, "no magic"))["kind"] == "unreadable"


def test_what_is_asked_for() -> None:
    found = recorded(BEGIN)
    asked = [(None, None), ("orders", None), ("orders", 3), ("orders", 0), ("clicks", None)]
    assert [found.is_of(*one) for one in asked] == [True, True, True, False, False]
    assert recorded(DELETE).is_of("orders", 3)
    assert recorded(None).is_of("orders", 3)
