"""Chunks there and back: compressed, encrypted, both, neither (S-302)."""

from __future__ import annotations

import threading

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.formats.aiven.transforms import (
    ENCRYPTION_OVERHEAD,
    IV_SIZE,
    ChunkCipher,
    FrameError,
    TransformPlan,
    compress_frame,
    decompress_frame,
)

CIPHER = ChunkCipher(bytes(range(32)), b"a" * 32)
IV = bytes(range(IV_SIZE))
PLANS = [
    pytest.param(TransformPlan(chunk_size=100), id="neither"),
    pytest.param(TransformPlan(chunk_size=100, compression=True), id="compressed"),
    pytest.param(TransformPlan(chunk_size=100, cipher=CIPHER), id="encrypted"),
    pytest.param(TransformPlan(chunk_size=100, compression=True, cipher=CIPHER), id="compressed and encrypted"),
]


@pytest.mark.parametrize("plan", PLANS)
@given(chunk=st.binary(min_size=1, max_size=500), iv=st.binary(min_size=IV_SIZE, max_size=IV_SIZE))
def test_any_chunk_comes_back(plan: TransformPlan, chunk: bytes, iv: bytes) -> None:
    stored = plan.transform(memoryview(chunk), iv)
    assert bytes(plan.detransform(memoryview(bytes(stored)), len(chunk))) == chunk
    assert bytes(plan.transform(bytearray(chunk), iv)) == bytes(stored)


@pytest.mark.parametrize("plan", PLANS)
@given(chunk=st.binary(min_size=1, max_size=100), data=st.data())
def test_a_chunk_of_another_size_is_corrupt(plan: TransformPlan, chunk: bytes, data: st.DataObject) -> None:
    expected = data.draw(st.integers(0, 200).filter(lambda size: size != len(chunk)))
    with pytest.raises(CorruptDataError):
        plan.detransform(plan.transform(chunk, IV), expected)


@pytest.mark.parametrize("plan", PLANS[2:])
@given(chunk=st.binary(min_size=1, max_size=100), data=st.data())
def test_no_flipped_bit_of_an_encrypted_chunk_passes(plan: TransformPlan, chunk: bytes, data: st.DataObject) -> None:
    stored = bytearray(plan.transform(chunk, IV))
    place = data.draw(st.integers(0, len(stored) * 8 - 1))
    stored[place // 8] ^= 1 << place % 8
    with pytest.raises(CorruptDataError, match="authentication tag"):
        plan.detransform(stored, len(chunk))


@pytest.mark.parametrize("size", range(ENCRYPTION_OVERHEAD))
def test_fewer_bytes_than_iv_and_tag_are_corrupt(size: int) -> None:
    with pytest.raises(CorruptDataError, match="fewer than IV and tag"):
        CIPHER.decrypt(bytes(size))


def test_a_compressed_chunk_opens_to_no_more_than_its_size() -> None:
    """The size in the frame's header is looked at before anything is allocated."""
    bomb = zstandard.ZstdCompressor().compress(bytes(50_000_000))
    with pytest.raises(CorruptDataError, match="opens to 50000000 bytes, more than 100"):
        TransformPlan(chunk_size=100, compression=True).detransform(bomb, 100)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        pytest.param(b"", "not a zstd frame", id="nothing"),
        pytest.param(b"no frame at all", "not a zstd frame", id="other bytes"),
        pytest.param(compress_frame(b"abc" * 50)[:-1], "not a zstd frame", id="cut short"),
        pytest.param(
            zstandard.ZstdCompressor(write_content_size=False).compress(b"abc"), "no content size", id="no content size"
        ),
        pytest.param(compress_frame(b"abc") + b"xyz", "not a zstd frame|after", id="bytes after the frame"),
    ],
)
def test_other_bytes_are_no_frame(frame: bytes, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        decompress_frame(frame, max_bytes=1000)


def test_the_encrypted_chunk_is_iv_ciphertext_tag() -> None:
    stored = CIPHER.encrypt(b"plain", IV)
    assert stored[:IV_SIZE] == IV
    assert len(stored) == 5 + ENCRYPTION_OVERHEAD
    assert CIPHER.decrypt(stored) == b"plain"


def test_another_aad_does_not_open() -> None:
    stored = CIPHER.encrypt(b"plain", IV)
    with pytest.raises(CorruptDataError):
        ChunkCipher(CIPHER.data_key, b"b" * 32).decrypt(stored)


@pytest.mark.parametrize("iv", [b"", bytes(11), bytes(13)])
def test_an_iv_of_another_size_is_refused(iv: bytes) -> None:
    with pytest.raises(ValueError, match="an IV has 12 bytes"):
        CIPHER.encrypt(b"plain", iv)


def test_encryption_without_an_iv_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an IV for each chunk"):
        TransformPlan(cipher=CIPHER).transform(b"plain")


def test_secrets_are_in_no_repr() -> None:
    assert repr(TransformPlan(cipher=CIPHER)).count("ChunkCipher()") == 1


@pytest.mark.parametrize(
    ("file_size", "cipher", "sizes"),
    [
        pytest.param(250, None, [100, 100, 50], id="a last chunk that is shorter"),
        pytest.param(200, None, [100, 100], id="a last chunk that is whole"),
        pytest.param(30, None, [30], id="one chunk"),
        pytest.param(0, None, [], id="an empty file"),
        pytest.param(250, CIPHER, [128, 128, 78], id="encrypted"),
    ],
)
def test_fixed_sizes_are_known_beforehand(file_size: int, cipher: ChunkCipher | None, sizes: list[int]) -> None:
    plan = TransformPlan(chunk_size=100, cipher=cipher)
    index = plan.fixed_chunk_index(file_size)
    assert index is not None
    assert [len(index.chunk(number).transformed) for number in range(index.chunk_count)] == sizes
    assert index.transformed_size == sum(sizes)
    assert plan.chunk_index(file_size, sizes) == index


def test_chunks_of_other_sizes_than_planned_are_refused() -> None:
    with pytest.raises(ValueError, match="chunks have"):
        TransformPlan(chunk_size=100).chunk_index(250, [100, 100, 49])


def test_compressed_sizes_are_not_known_beforehand() -> None:
    plan = TransformPlan(chunk_size=100, compression=True, cipher=CIPHER)
    assert plan.fixed_chunk_index(250) is None
    assert plan.chunk_index(250, [90, 40, 10]).transformed_sizes == (90, 40, 10)


def test_threads_do_not_share_a_compressor() -> None:
    """Issue 3 of the copy path: transforms run on all cores at once."""
    plan = TransformPlan(compression=True)
    chunks = [bytes([number]) * 200_000 + bytes(range(256)) * 100 for number in range(4)]
    expected = [plan.transform(chunk) for chunk in chunks]
    faults: list[int] = []

    def work(number: int) -> None:
        for _ in range(30):
            stored = plan.transform(chunks[number])
            if stored != expected[number] or plan.detransform(stored, len(chunks[number])) != chunks[number]:
                faults.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
