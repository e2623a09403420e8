"""Manifests, read back and refused.  That they are written as the plugin writes them is shown in test_layout.

The chunk index in JSON and its binary codec, against the plugin's own classes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden import AIVEN_OBJECTS, read_json
from tests.support.segments import remote_segment
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.formats.aiven.index_blob import SegmentIndexes
from tiersidecar.formats.aiven.keys import parse_object_key
from tiersidecar.formats.aiven.manifest import (
    ManifestEncryption,
    chunk_index_document,
    parse_chunk_index,
    read_chunk_sizes,
    read_manifest,
    write_chunk_sizes,
    write_manifest,
)
from tiersidecar.formats.aiven.transforms import ChunkIndex

PATHS = [pytest.param(path, id=path.stem) for path in sorted(AIVEN_OBJECTS.rglob("*.rsm-manifest"))]
INDEXES = SegmentIndexes(
    offset=ByteRange(0, 16),
    timestamp=ByteRange(16, 40),
    producer_snapshot=ByteRange(40, 50),
    leader_epoch=ByteRange(50, 58),
    transaction=ByteRange(58, 92),
)
CHUNKS = ChunkIndex(
    original_chunk_size=100, original_file_size=250, transformed_chunk_size=100, final_transformed_chunk_size=50
)


@pytest.mark.parametrize("path", PATHS)
def test_the_plugins_manifest_agrees_with_its_key_and_its_objects(path: Path) -> None:
    manifest = read_manifest(path.read_bytes())
    assert manifest.segment is not None
    parsed = parse_object_key("/".join(path.parts[-3:]))
    assert parsed is not None
    assert manifest.segment.remote_log_segment_id == parsed.segment_id
    assert manifest.segment.start_offset == parsed.start_offset
    assert manifest.segment.txn_index_empty is (manifest.indexes.transaction is None)
    assert manifest.chunk_index.transformed_size == path.with_suffix(".log").stat().st_size
    assert manifest.indexes.size_bytes == path.with_suffix(".indexes").stat().st_size


@given(
    st.booleans(),
    st.none() | st.builds(ManifestEncryption, data_key=st.text(), aad=st.binary()),
    st.integers(0, 2**40),
    st.integers(0, 2**20),
)
def test_any_manifest_comes_back(
    compression: bool, encryption: ManifestEncryption | None, start: int, count: int
) -> None:
    epochs = ((2, 0), (5, start + count)) if count else ((2, 0),)
    metadata = remote_segment(start, start + count, epochs=epochs, uuid=bytes(16))
    written = write_manifest(
        metadata=metadata, chunk_index=CHUNKS, indexes=INDEXES, compression=compression, encryption=encryption
    )
    manifest = read_manifest(written)
    assert manifest.chunk_index == CHUNKS
    assert manifest.indexes == INDEXES
    assert manifest.compression is compression
    assert manifest.encryption == encryption
    assert manifest.segment is not None
    assert manifest.segment.remote_log_segment_id == metadata.remote_log_segment_id
    assert manifest.segment.end_offset == metadata.end_offset
    assert manifest.segment.segment_leader_epochs == metadata.segment_leader_epochs


def document() -> dict[str, Any]:
    written = write_manifest(
        metadata=remote_segment(0, 9),
        chunk_index=CHUNKS,
        indexes=INDEXES,
        compression=False,
        encryption=ManifestEncryption(data_key="key1:AAAA", aad=b"aad"),
    )
    loaded: dict[str, Any] = json.loads(written)
    return loaded


def test_a_manifest_of_an_older_kafka_says_nothing_of_the_transaction_index() -> None:
    older = document()
    del older["remoteLogSegmentMetadata"]["txnIdxEmpty"]
    segment = read_manifest(json.dumps(older).encode()).segment
    assert segment is not None
    assert segment.txn_index_empty is None


def test_what_we_do_not_know_is_passed_over_and_the_segment_may_be_missing() -> None:
    later = {**document(), "colour": "blue"}
    del later["remoteLogSegmentMetadata"]
    assert read_manifest(json.dumps(later).encode()).segment is None


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        pytest.param("version", "2", "version is '2', we know only '1'", id="another version"),
        pytest.param("version", None, "version is None, not text", id="no version"),
        pytest.param("chunkIndex", None, "chunkIndex is None, not an object", id="no chunk index"),
        pytest.param("compression", "no", "compression is 'no', neither", id="compression is text"),
        pytest.param("segmentIndexes", None, "segmentIndexes is not an object", id="no indexes"),
        pytest.param("segmentIndexes.offset", None, "segmentIndexes.offset is not an object", id="no offset index"),
        pytest.param("segmentIndexes.leaderEpoch.size", -1, "are no range", id="a negative size"),
        pytest.param("segmentIndexes.timestamp.position", 1.5, "timestamp.position is 1.5", id="half a byte"),
        pytest.param("encryption.aad", "*", "encryption.aad is not base64", id="aad is no base64"),
        pytest.param("encryption.dataKey", 5, "encryption.dataKey is 5, not text", id="data key is a number"),
        pytest.param("remoteLogSegmentMetadata.startOffset", "x", "startOffset is 'x'", id="an offset that is text"),
        pytest.param(
            "remoteLogSegmentMetadata.remoteLogSegmentId.id", "short", "remoteLogSegmentId or", id="an id too short"
        ),
        pytest.param(
            "remoteLogSegmentMetadata.segmentLeaderEpochs", {"x": 1}, "segmentLeaderEpochs", id="an epoch of text"
        ),
    ],
)
def test_what_is_wrong_is_named(path: str, value: object, reason: str) -> None:
    damaged = document()
    *parents, last = path.split(".")
    place = damaged
    for parent in parents:
        place = place[parent]
    place[last] = value
    with pytest.raises(CorruptDataError, match=f"a.rsm-manifest is corrupt .*{reason}"):
        read_manifest(json.dumps(damaged).encode(), where="a.rsm-manifest")


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"null", b"\xff", b"[" * 100_000, b'"text"', b"1" * 5_000])
def test_other_bytes_are_no_manifest(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        read_manifest(data)


@given(st.data())
def test_a_damaged_byte_gives_a_manifest_or_our_error(data: st.DataObject) -> None:
    written = bytearray(json.dumps(document()).encode())
    written[data.draw(st.integers(0, len(written) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert read_manifest(bytes(written)) is not None
    except CorruptDataError as error:
        assert error.where == "manifest"  # noqa: PT017 - either way is right


VECTORS = read_json("aiven-vectors.json")
SIZES = [pytest.param(v["values"], v["hex"], id=f"{len(v['values'])} sizes") for v in VECTORS["chunk_sizes_codec"]]
DOCUMENTS = [
    pytest.param(vector, id=f"{number} {json.loads(vector['json'])['type']}")
    for number, vector in enumerate(VECTORS["chunk_index_json"])
]


@pytest.mark.parametrize(("sizes", "written"), SIZES)
def test_the_codec_is_the_plugins(sizes: list[int], written: str) -> None:
    assert write_chunk_sizes(sizes).hex() == written
    assert read_chunk_sizes(bytes.fromhex(written)) == tuple(sizes)


@pytest.mark.parametrize("vector", DOCUMENTS)
def test_the_json_is_the_plugins(vector: dict[str, Any]) -> None:
    index = parse_chunk_index(json.loads(vector["json"]))
    assert json.dumps(chunk_index_document(index), separators=(",", ":")) == vector["json"]
    if "fixed" in vector:
        sizes = (index.transformed_chunk_size, index.final_transformed_chunk_size)
        assert [index.original_chunk_size, index.original_file_size, *sizes] == json.loads(vector["fixed"])
    else:
        assert index.original_chunk_size == vector["original_chunk_size"]
        assert index.original_file_size == vector["original_file_size"]
        assert index.transformed_sizes == tuple(vector["transformed_chunks"])


@given(st.lists(st.integers(0, 2**31 - 1), max_size=200))
def test_any_sizes_come_back(sizes: list[int]) -> None:
    assert read_chunk_sizes(write_chunk_sizes(sizes)) == tuple(sizes)


@given(st.integers(2**20, 2**21), st.lists(st.integers(0, 255), min_size=2))
def test_sizes_close_to_each_other_take_a_byte_each(base: int, above: list[int]) -> None:
    """The point of the codec."""
    assert len(write_chunk_sizes([base, *(base + value for value in above)])) == 4 + 4 + 1 + len(above) + 4


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        write_chunk_sizes([5, -1])


@given(st.binary(max_size=64))
def test_any_bytes_are_sizes_or_corrupt(data: bytes) -> None:
    try:
        assert read_chunk_sizes(data) is not None
    except CorruptDataError as error:
        assert error.where == "chunk sizes"  # noqa: PT017 - either way is right


@given(
    st.integers(1, 5000),
    st.lists(st.integers(1, 9000), min_size=1, max_size=50),
    st.integers(0, 4999),
)
def test_any_variable_index_comes_back(chunk_size: int, sizes: list[int], last: int) -> None:
    file_size = chunk_size * (len(sizes) - 1) + 1 + last % chunk_size
    index = ChunkIndex(original_chunk_size=chunk_size, original_file_size=file_size, transformed_sizes=tuple(sizes))
    assert parse_chunk_index(json.loads(json.dumps(chunk_index_document(index)))) == index


FIXED = {
    "type": "fixed",
    "originalChunkSize": 100,
    "originalFileSize": 250,
    "transformedChunkSize": 128,
    "finalTransformedChunkSize": 78,
}
VARIABLE = {
    "type": "variable",
    "originalChunkSize": 4096,
    "originalFileSize": 100,
    "transformedChunks": "KLUv/SAIQQAAAAAAAQAAAeU=",
}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        pytest.param([], "is \\[\\], not an object", id="not an object"),
        pytest.param({**FIXED, "type": "woven"}, "type is 'woven'", id="an unknown type"),
        pytest.param({**FIXED, "originalChunkSize": None}, "originalChunkSize is None", id="no chunk size"),
        pytest.param({**FIXED, "originalChunkSize": True}, "originalChunkSize is True", id="true for a number"),
        pytest.param({**FIXED, "originalChunkSize": 0}, "chunk size 0", id="a chunk size of zero"),
        pytest.param({**FIXED, "originalFileSize": -1}, "file size -1", id="a negative file size"),
        pytest.param({**FIXED, "transformedChunkSize": 0}, "transformed", id="chunks that take nothing"),
        pytest.param({**FIXED, "finalTransformedChunkSize": -1}, "transformed", id="a negative last chunk"),
        pytest.param({**VARIABLE, "transformedChunks": 5}, "is 5, not base64", id="no text"),
        pytest.param({**VARIABLE, "transformedChunks": "K*"}, "transformedChunks: ", id="no base64"),
        pytest.param({**VARIABLE, "transformedChunks": "AAAA"}, "not a zstd frame", id="no zstd frame"),
        pytest.param({**VARIABLE, "originalFileSize": 5000}, "1 chunk sizes for 2 chunks", id="too few sizes"),
    ],
)
def test_a_damaged_index_is_told_by_its_key(document: object, reason: str) -> None:
    with pytest.raises(CorruptDataError, match=f"a.rsm-manifest is corrupt .*{reason}"):
        parse_chunk_index(document, where="a.rsm-manifest")
