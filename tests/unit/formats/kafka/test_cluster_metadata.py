"""Topics in the file with which a controller's empty log begins: written from the definition of the records, not by our code.

``FORMATTED`` is what ``kafka-storage format`` of Kafka 4.3.1 wrote: header, six features, footer.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import replace

import pytest

from tiersidecar.domain.cluster_topics import NewPartition, NewTopic
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import Uuid
from tiersidecar.formats.kafka.cluster_metadata import (
    append_records,
    find_topics,
    write_producer_ids_record,
    write_topic_records,
)
from tiersidecar.formats.kafka.record_batches import check_batch, iter_batch_headers
from tiersidecar.formats.kafka.records import read_records

FORMATTED = base64.b64decode(
    "AAAAAAAAAAAAAABHAAAAAAKlHuG8ACAAAAAAAAABohLwT0YAAAGiEvBPRv//////////////////AAAAASoAAAAIAAAAAxYAAAAA"
    "AAAAAAAAAAAAAAAAAAAAAQAAAPEAAAAAAu2vn0EAAAAAAAUAAAGiEvBPcwAAAaIS8E9z//////////////////8AAAAGOgAAAAEu"
    "AQwAEW1ldGFkYXRhLnZlcnNpb24AHgAAWgAAAgFOAQwAIWVsaWdpYmxlLmxlYWRlci5yZXBsaWNhcy52ZXJzaW9uAAEAADQAAAQB"
    "KAEMAA5ncm91cC52ZXJzaW9uAAEAADQAAAYBKAEMAA5zaGFyZS52ZXJzaW9uAAEAADgAAAgBLAEMABBzdHJlYW1zLnZlcnNpb24A"
    "AQAAQAAACgE0AQwAFHRyYW5zYWN0aW9uLnZlcnNpb24AAgAAAAAAAAAAAAcAAAA/AAAAAALKyWVrACAAAAAAAAABohLwT3UAAAGi"
    "EvBPdf//////////////////AAAAARoAAAAIAAAABAYAAAAA"
)
TOPIC_ID = Uuid(bytes(range(16)))
TOPIC = NewTopic(
    name="orders",
    topic_id=TOPIC_ID,
    partitions=(NewPartition(partition=3, replicas=(1, 300), leader_epoch=1007, start_offset=20),),
    configs=(("retention.ms", "-1"),),
)


def test_records_are_as_the_definitions_say() -> None:
    """TopicRecord, ConfigRecord and PartitionRecord 1: frame version, apiKey, version, and flexible fields."""
    topic, config, partition = write_topic_records(TOPIC)
    assert topic == b"\x01\x02\x00" + b"\x07orders" + TOPIC_ID + b"\0"
    assert config == b"\x01\x04\x00" + b"\x02" + b"\x07orders" + b"\x0dretention.ms" + b"\x03-1" + b"\0"
    replicas = b"\x03" + struct.pack(">ii", 1, 300)
    no_replicas, no_leader, partition_epoch = b"\x01", struct.pack(">i", -1), struct.pack(">i", 0)
    unassigned = b"\x03" + bytes(32)
    assert partition == b"".join(
        (
            b"\x01\x03\x01",
            struct.pack(">i", 3),
            TOPIC_ID,
            replicas,
            replicas,
            no_replicas,
            no_replicas,
            no_leader,
            struct.pack(">i", 1007),
            partition_epoch,
            unassigned,
            b"\0",
        )
    )
    assert write_producer_ids_record(7) == b"\x01\x0f\x00" + struct.pack(">iqq", -1, -1, 7) + b"\0"


def test_topics_come_after_the_features_and_before_the_footer() -> None:
    values = [*write_topic_records(TOPIC), write_producer_ids_record(7)]
    made = append_records(FORMATTED, values, where="bootstrap.checkpoint")
    headers = list(iter_batch_headers(memoryview(made)))
    for position, header in headers:
        check_batch(memoryview(made)[position:], header)
    offsets = [(header.base_offset, header.last_offset, header.is_control) for _, header in headers]
    assert offsets == [(0, 0, True), (1, 6, False), (7, 10, False), (11, 11, True)]
    position, header = headers[2]
    batch = memoryview(made)[position : position + header.size_bytes]
    assert [record.value for record in read_records(batch)] == values
    assert made[:336] == FORMATTED[:336], "what was there is there as it was"


def test_topics_are_found_by_name_and_id_and_removed_ones_by_id() -> None:
    long, longest = (Uuid(bytes([number]) * 16) for number in (1, 2))
    names = {TOPIC_ID: "orders", long: "x" * 126, longest: "y" * 249, Uuid(bytes([3]) * 16): "absent"}
    made = [next(write_topic_records(replace(TOPIC, name=names[one], topic_id=one))) for one in (long, longest)]
    another_name = next(write_topic_records(replace(TOPIC, name="more-orders")))
    removal = b"\x01\x09\x00" + longest + b"\0"
    foreign = b"\x01\x09\x00" + Uuid(bytes([4]) * 16)
    content = b"\x01\x02\x00".join([b"a header", *made, another_name, removal, foreign, b"\x01\x02\x00"])
    assert find_topics(content, names) == ({long, longest}, {longest})
    assert find_topics(content + next(write_topic_records(TOPIC)), names)[0] == {long, longest, TOPIC_ID}


def test_many_topics_are_several_batches_that_go_on_without_a_gap() -> None:
    made = append_records(FORMATTED, [b"x"] * 2_500, where="f")
    headers = [header for _, header in iter_batch_headers(memoryview(made)) if not header.is_control]
    assert [header.record_count for header in headers] == [6, 1000, 1000, 500]
    assert [header.base_offset for header in headers] == [1, 7, 1007, 2007]


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        pytest.param(b"", "no metadata record", id="an empty file"),
        pytest.param(FORMATTED[:-1], "ends within a batch", id="one that is cut short"),
        pytest.param(FORMATTED[:83], "no metadata record", id="one with a header alone"),
        pytest.param(FORMATTED[:150] + b"\xff" + FORMATTED[151:], "checksum", id="one with a wrong byte"),
        pytest.param(b"node.id=1\n" * 20, "format|batch|magic", id="another file"),
    ],
)
def test_what_is_no_such_file_is_refused(file: bytes, reason: str) -> None:
    with pytest.raises(CorruptDataError, match=reason):
        append_records(file, [b"x"], where="bootstrap.checkpoint")
