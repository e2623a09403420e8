"""The chunk index in JSON and its binary codec, against the plugin's own classes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden import read_json
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.formats.aiven.manifest import (
    chunk_index_document,
    parse_chunk_index,
    read_chunk_sizes,
    write_chunk_sizes,
)
from tiersidecar.formats.aiven.transforms import ChunkIndex

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
