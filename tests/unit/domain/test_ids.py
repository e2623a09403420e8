"""Kafka's Uuid, as text and as bytes; names of places, and what they make of keys (S-293)."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden import read_json
from tiersidecar.domain.ids import (
    PLACE_NAME,
    RemoteLogSegmentId,
    TopicIdPartition,
    Uuid,
    format_uuid,
    is_acceptable_random_uuid,
    is_place_name,
    parse_uuid,
    place_of,
    place_prefix,
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


place_names = st.from_regex(PLACE_NAME, fullmatch=True)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        pytest.param("cold", True, id="a word"),
        pytest.param("eu-central-1", True, id="hyphens and digits"),
        pytest.param("a" * 32, True, id="as long as there is room for in custom metadata"),
        pytest.param("a" * 33, False, id="longer than that"),
        pytest.param("", False, id="nothing is the default place, and no name"),
        pytest.param("-cold", False, id="a hyphen first"),
        pytest.param("Cold", False, id="a capital"),
        pytest.param("a/b", False, id="a slash"),
        pytest.param("cold\n", False, id="a line's end"),
    ],
)
def test_names_of_places(name: str, is_one: bool) -> None:
    assert is_place_name(name) is is_one


@pytest.mark.parametrize(
    ("key", "place"),
    [
        pytest.param("@cold/topic-id/0/1.log", "cold", id="a key in a place"),
        pytest.param("cluster/topic-id/0/1.log", "", id="a key under a prefix"),
        pytest.param("cluster/@cold/topic-id/0/1.log", "", id="the mark further on"),
        pytest.param("@Cold/topic-id/0/1.log", "", id="what no place can be named"),
        pytest.param("@Cold/@cold/0/1.log", "", id="a place further on"),
        pytest.param("@cold", "", id="no key below it"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_a_key_tells_its_place(key: str, place: str) -> None:
    assert place_of(key) == place


@given(place_names, st.text(max_size=50))
def test_what_is_put_into_a_place_is_found_in_it(name: str, key: str) -> None:
    assert place_of(place_prefix(name) + key) == name


def test_the_default_place_changes_no_key() -> None:
    assert place_prefix("") == ""
