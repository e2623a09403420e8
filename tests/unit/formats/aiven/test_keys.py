"""Object keys: the plugin's, and back.

Custom metadata, against the plugin's own serde (S-035, S-296), and with the place that is ours (S-293, S-295, S-299).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden import AIVEN_OBJECTS, read_json
from tests.support.segments import remote_segment
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import (
    MOST_PLACE_NAME_BYTES,
    PLACE_NAME,
    BrokerId,
    RemoteLogSegmentId,
    TopicIdPartition,
    Uuid,
    parse_uuid,
)
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import (
    LAYOUT_PATTERN,
    CustomMetadata,
    ObjectKeys,
    ObjectKind,
    main_path,
    parse_object_key,
    place_in,
    planned_keys,
    plugin_keys,
    read_custom_metadata,
    stored_bytes,
    write_custom_metadata,
)

TOPIC_ID = "OrpMwEoTQh6VZ_dz9HFK5g"
SEGMENT_ID = RemoteLogSegmentId(
    topic_id_partition=TopicIdPartition(topic_id=parse_uuid(TOPIC_ID), topic="plain", partition=7),
    uuid=parse_uuid("Fxb1tabrSW6JraCWc3UWEg"),
)
PATH = "plain-OrpMwEoTQh6VZ_dz9HFK5g/7/00000000000000001234-Fxb1tabrSW6JraCWc3UWEg"


def metadata(custom_metadata: bytes | None = None) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=SEGMENT_ID,
        start_offset=Offset(1234),
        end_offset=Offset(2000),
        max_timestamp_ms=1,
        broker_id=BrokerId(1),
        event_timestamp_ms=2,
        segment_size_in_bytes=3,
        segment_leader_epochs=(EpochEntry(LeaderEpoch(0), Offset(1234)),),
        custom_metadata=custom_metadata,
    )


@pytest.mark.parametrize(
    "prefix",
    [
        pytest.param("", id="no prefix"),
        pytest.param("tiered/", id="a prefix with a slash"),
        pytest.param("tiered-", id="a prefix without one is put in front as it is"),
    ],
)
def test_keys_to_write_under(prefix: str) -> None:
    keys = planned_keys(metadata(), prefix)
    assert keys.in_upload_order == (f"{prefix}{PATH}.log", f"{prefix}{PATH}.indexes", f"{prefix}{PATH}.rsm-manifest")


@pytest.mark.parametrize(
    ("recorded", "stem"),
    [
        pytest.param(CustomMetadata(), f"now/{PATH}", id="nothing recorded: as configured now"),
        pytest.param(CustomMetadata(remote_size=5), f"now/{PATH}", id="only the size recorded"),
        pytest.param(CustomMetadata(object_prefix="then/"), f"then/{PATH}", id="another prefix then"),
        pytest.param(CustomMetadata(object_prefix=""), PATH, id="no prefix then"),
        pytest.param(CustomMetadata(object_key="elsewhere/x"), "now/elsewhere/x", id="another path then"),
        pytest.param(CustomMetadata(object_prefix="then/", object_key="x"), "then/x", id="prefix and path then"),
    ],
)
def test_plugin_keys_count_for_log_and_indexes_only(recorded: CustomMetadata, stem: str) -> None:
    """S-135: where the objects are is said in bytes that nobody but the store's layout reads.

    As in the plugin: the manifest is always looked up under the configured prefix."""
    keys = plugin_keys(metadata(write_custom_metadata(recorded)), "now/")
    assert keys == ObjectKeys(log=f"{stem}.log", indexes=f"{stem}.indexes", manifest=f"now/{PATH}.rsm-manifest")


def test_unreadable_custom_metadata_names_the_segment() -> None:
    with pytest.raises(CorruptDataError, match=f"custom metadata of {PATH} is corrupt"):
        plugin_keys(metadata(b"\xff"))


def test_every_key_of_the_plugin_is_understood() -> None:
    """S-029: what reconcile needs to tell whose an object is."""
    paths = [path for path in (AIVEN_OBJECTS / "plain").rglob("*") if path.is_file()]
    assert len(paths) == 153
    for path in paths:
        key = str(path.relative_to(AIVEN_OBJECTS / "plain"))
        parsed = parse_object_key(key)
        assert parsed is not None
        assert f"{main_path(parsed.segment_id, parsed.start_offset)}.{parsed.kind}" == key


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(f"{PATH}.log.tmp", id="another suffix"),
        pytest.param(f"{PATH}.LOG", id="upper case"),
        pytest.param(PATH, id="no suffix"),
        pytest.param(f"x/{PATH}.log", id="a directory in front"),
        pytest.param(PATH.replace("/7/", "/07/") + ".log", id="a partition with a zero in front"),
        pytest.param(PATH.replace("000001234", "1234") + ".log", id="an offset that is not padded"),
        pytest.param(PATH[:-1] + "h.log", id="an id whose last character has surplus bits"),
        pytest.param(PATH.replace(TOPIC_ID, "short") + ".log", id="no topic id"),
        pytest.param("", id="nothing"),
    ],
)
def test_other_keys_are_nobodys(key: str) -> None:
    assert parse_object_key(key) is None


def test_a_key_outside_the_prefix_is_nobodys() -> None:
    assert parse_object_key(f"{PATH}.log", "tiered/") is None
    assert parse_object_key(f"tiered/{PATH}.log", "tiered/") is not None


uuids = st.binary(min_size=16, max_size=16).map(Uuid)


@given(
    st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True),
    uuids,
    st.integers(0, 2**31 - 1),
    uuids,
    st.integers(0, 2**63 - 1),
    st.sampled_from(ObjectKind),
    st.text(max_size=20),
)
def test_any_key_comes_back(
    topic: str, topic_id: Uuid, partition: int, uuid: Uuid, offset: int, kind: ObjectKind, prefix: str
) -> None:
    segment_id = RemoteLogSegmentId(
        topic_id_partition=TopicIdPartition(topic_id=topic_id, topic=topic, partition=partition), uuid=uuid
    )
    parsed = parse_object_key(f"{prefix}{main_path(segment_id, offset)}.{kind}", prefix)
    assert parsed is not None
    assert (parsed.segment_id, parsed.start_offset, parsed.kind) == (segment_id, offset, kind)


@given(st.from_regex(LAYOUT_PATTERN, fullmatch=True))
def test_what_fits_the_layout_is_written_as_it_is_read(key: str) -> None:
    parsed = parse_object_key(key)
    assert parsed is not None
    assert f"{main_path(parsed.segment_id, parsed.start_offset)}.{parsed.kind}" == key


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
    assert len(write_custom_metadata(CustomMetadata(place="a" * MOST_PLACE_NAME_BYTES))) == 37


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
