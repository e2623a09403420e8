"""Custom metadata, against the plugin's own serde (S-035, S-296), and with the place that is ours (S-293, S-295, S-299)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden import read_json
from tests.support.segments import remote_segment
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.places import MOST_NAME_BYTES, PLACE_NAME
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.custom_metadata import (
    CustomMetadata,
    place_in,
    read_custom_metadata,
    stored_bytes,
    write_custom_metadata,
)

VECTORS = [
    pytest.param(vector, id=f"{number} {' '.join(key for key in vector if key != 'hex') or 'no field'}")
    for number, vector in enumerate(read_json("aiven-vectors.json")["custom_metadata"])
]


@pytest.mark.parametrize("vector", VECTORS)
def test_the_bytes_are_the_plugins(vector: dict[str, Any]) -> None:
    fields = {key: value for key, value in vector.items() if key != "hex"}
    metadata = CustomMetadata(**fields)
    assert write_custom_metadata(metadata).hex() == vector["hex"]
    assert read_custom_metadata(bytes.fromhex(vector["hex"])) == metadata


def test_no_custom_metadata_is_no_field() -> None:
    """S-297."""
    assert read_custom_metadata(None) == CustomMetadata()


def test_fields_of_a_later_plugin_are_passed_over() -> None:
    assert read_custom_metadata(bytes.fromhex("02000102 0903616263")) == CustomMetadata(remote_size=1)


metadatas = st.builds(
    CustomMetadata,
    remote_size=st.none() | st.integers(0, 2**63 - 1),
    object_prefix=st.none() | st.text(max_size=300),
    object_key=st.none() | st.text(max_size=300),
    place=st.just("") | st.from_regex(PLACE_NAME, fullmatch=True),
)


@pytest.mark.parametrize(
    ("metadata", "written"),
    [
        pytest.param(CustomMetadata(place="cold"), "01 9507 05 05636f6c64", id="of a copy that has begun"),
        pytest.param(
            CustomMetadata(remote_size=1, object_prefix="a/", place="cold"),
            "03 00 01 02 01 03 03612f 9507 05 05636f6c64",
            id="of one that is finished: our tag comes after the plugin's, as Kafka's TaggedFields demands",
        ),
        pytest.param(CustomMetadata(place=""), "", id="none of the default place"),
    ],
)
def test_a_place_is_a_field_of_ours(metadata: CustomMetadata, written: str) -> None:
    """S-293, S-295."""
    assert write_custom_metadata(metadata) == bytes.fromhex(written)
    assert place_in(bytes.fromhex(written)) == metadata.place


def test_a_place_of_the_longest_name_leaves_most_of_the_limit_to_the_plugins_fields() -> None:
    """S-299: 128 bytes by default."""
    assert len(write_custom_metadata(CustomMetadata(place="a" * MOST_NAME_BYTES))) == 37


@pytest.mark.parametrize(
    ("metadata", "prefix"),
    [
        pytest.param(CustomMetadata(), None, id="nothing is recorded"),
        pytest.param(CustomMetadata(object_prefix="a/"), "a/", id="a prefix"),
        pytest.param(CustomMetadata(place="cold"), "@cold/", id="a place"),
        pytest.param(
            CustomMetadata(object_prefix="a/", place="cold"), "@cold/", id="both: the prefix is the place's own"
        ),
    ],
)
def test_what_keys_begin_with(metadata: CustomMetadata, prefix: str | None) -> None:
    assert metadata.recorded_prefix == prefix


@given(st.binary(max_size=60))
def test_any_bytes_tell_a_place_or_none(data: bytes) -> None:
    try:
        expected = read_custom_metadata(data).place
    except CorruptDataError:
        expected = ""
    assert place_in(data) == expected


@given(metadatas)
def test_any_fields_come_back(metadata: CustomMetadata) -> None:
    assert read_custom_metadata(write_custom_metadata(metadata)) == metadata


@given(metadatas, st.data())
def test_a_cut_anywhere_is_corrupt(metadata: CustomMetadata, data: st.DataObject) -> None:
    written = write_custom_metadata(metadata)
    if len(written) > 1:
        with pytest.raises(CorruptDataError):
            read_custom_metadata(written[: data.draw(st.integers(1, len(written) - 1))])


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_corrupt(data: bytes) -> None:
    try:
        assert read_custom_metadata(data) is not None
    except CorruptDataError as error:
        assert error.where == "custom metadata"  # noqa: PT017 - either way is right


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        pytest.param("01000102ff", "1 bytes after the last field", id="bytes after the last field"),
        pytest.param("ffffffffffffffffffffff", "does not end", id="a count without end"),
        pytest.param("019507050541424344", "a place whose name is none", id="a place that can have no such name"),
        pytest.param("0195070100", "a place whose name is none", id="a place of no name"),
        pytest.param("01010302ff00", "1 bytes after|UTF-8", id="a string with surplus bytes"),
        pytest.param("01010202ff", "not UTF-8", id="a string that is not UTF-8"),
        pytest.param("0200010200010a", "tag 0 after tag 0", id="a tag that comes twice"),
        pytest.param("020103026162000102", "tag 0 after tag 1", id="tags that do not ascend"),
        pytest.param("02030100030100", "tag 3 after tag 3", id="an unknown tag that comes twice"),
    ],
)
def test_damage_is_told(written: str, reason: str) -> None:
    with pytest.raises(CorruptDataError, match=reason):
        read_custom_metadata(bytes.fromhex(written))


FINISHED = State.COPY_SEGMENT_FINISHED


@pytest.mark.parametrize(
    ("state", "custom_metadata", "expected"),
    [
        pytest.param(FINISHED, "0100028001", 64, id="what the plugin recorded"),
        pytest.param(State.DELETE_SEGMENT_STARTED, "0100028001", 64, id="until the deletion is finished"),
        pytest.param(State.COPY_SEGMENT_STARTED, "0100028001", 0, id="nothing before the copy is finished"),
        pytest.param(FINISHED, "", 1000, id="the segment's size where no custom metadata were recorded"),
        pytest.param(FINISHED, "010103026162", 1000, id="the segment's size where another field was recorded"),
        pytest.param(FINISHED, "ffff", 1000, id="the segment's size where the bytes are another plugin's"),
        pytest.param(FINISHED, "01000101", 1000, id="the segment's size where the recorded one is negative"),
    ],
)
def test_what_a_segment_takes_in_the_store(state: State, custom_metadata: str, expected: int) -> None:
    """S-229, S-294."""
    segment = replace(remote_segment(0, 99, size_bytes=1000), state=state)
    one = replace(segment, custom_metadata=bytes.fromhex(custom_metadata))
    assert stored_bytes([one, one]) == 2 * expected
