"""Kafka's Uuid, as text and as bytes."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden import read_json
from tiersidecar.domain.ids import (
    RemoteLogSegmentId,
    TopicIdPartition,
    Uuid,
    format_uuid,
    is_acceptable_random_uuid,
    parse_uuid,
)

uuids = st.binary(min_size=16, max_size=16).map(Uuid)


@given(uuids)
def test_any_uuid_comes_back(uuid: Uuid) -> None:
    assert parse_uuid(format_uuid(uuid)) == uuid
    assert len(format_uuid(uuid)) == 22


def test_the_text_is_kafkas() -> None:
    """FORMATS: the topic id of epochs-0 in a metadata record is these bytes, and this text in its partition.metadata."""
    text = read_json("log-dirs", "expected", "offsets.json")["epochs-0"]["topic_id"]
    assert text == "KUfitBbxQc6SmmXKEGodmw"
    assert format_uuid(parse_uuid(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("KUfitBbxQc6SmmXKEGod", id="15 bytes"),
        pytest.param("KUfitBbxQc6SmmXKEGodmwAA", id="18 bytes"),
        pytest.param("KUfitBbxQc6SmmXKEGod+/", id="the other base64 alphabet"),
        pytest.param("KUfitBbxQc6SmmXKEGodm!", id="no base64 at all"),
        pytest.param("KUfitBbxQc6SmmXKEGodmé", id="not ASCII"),
    ],
)
def test_other_text_is_no_uuid(text: str) -> None:
    with pytest.raises(ValueError, match="is not a Kafka Uuid"):
        parse_uuid(text)


@pytest.mark.parametrize(
    ("uuid", "is_acceptable"),
    [
        pytest.param(bytes(16), False, id="ZERO_UUID"),
        pytest.param(bytes(15) + b"\x01", False, id="METADATA_TOPIC_ID"),
        pytest.param(b"\xf8" + bytes(15), False, id="a text that begins with a dash"),
        pytest.param(b"\x11" * 16, True, id="any other"),
    ],
)
def test_ids_that_kafka_would_not_draw_are_not_drawn(uuid: bytes, is_acceptable: bool) -> None:
    """``Uuid.randomUuid()``."""
    assert is_acceptable_random_uuid(Uuid(uuid)) is is_acceptable


def test_names_are_those_of_logs_and_keys() -> None:
    partition = TopicIdPartition(topic_id=parse_uuid("KUfitBbxQc6SmmXKEGodmw"), topic="epochs", partition=7)
    assert str(partition) == "epochs-7"
    assert partition.qualified == "epochs-KUfitBbxQc6SmmXKEGodmw/7"
    segment = RemoteLogSegmentId(topic_id_partition=partition, uuid=parse_uuid("l8WiVov5Rva15hjUZiAj1Q"))
    assert str(segment) == "epochs-7:l8WiVov5Rva15hjUZiAj1Q"


def test_a_topic_that_came_back_is_another() -> None:
    first = TopicIdPartition(topic_id=Uuid(b"1" * 16), topic="orders", partition=0)
    assert first != TopicIdPartition(topic_id=Uuid(b"2" * 16), topic="orders", partition=0)


def test_a_copy_for_another_process_has_no_hash_of_this_one() -> None:
    """Hashes of text differ from process to process: a dictionary that is sent along would not be found in."""
    one = TopicIdPartition(topic_id=Uuid(bytes(range(16))), topic="orders", partition=3)
    assert hash(one) == hash(TopicIdPartition(topic_id=one.topic_id, topic="orders", partition=3))
    sent = pickle.loads(pickle.dumps(one))
    assert (hasattr(one, "_hash"), hasattr(sent, "_hash")) == (True, False)
    assert (sent, hash(sent)) == (one, hash(one))
