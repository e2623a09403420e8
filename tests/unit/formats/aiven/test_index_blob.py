"""The .indexes object: parts in order, sliced out again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.formats.aiven.index_blob import IndexArtefacts, IndexKind, build_index_blob, slice_index
from tiersidecar.formats.aiven.transforms import ENCRYPTION_OVERHEAD, ChunkCipher

CIPHER = ChunkCipher(bytes(32), bytes(32))
IVS = [bytes([number]) * 12 for number in range(5)]
artefacts = st.builds(
    IndexArtefacts,
    offset_index=st.binary(max_size=50),
    time_index=st.binary(max_size=50),
    producer_snapshot=st.binary(max_size=50),
    leader_epochs=st.binary(max_size=50),
    transaction_index=st.none() | st.binary(max_size=50),
)


@pytest.mark.parametrize("cipher", [None, CIPHER], ids=["plain", "encrypted"])
@given(parts=artefacts)
def test_any_parts_come_back(cipher: ChunkCipher | None, parts: IndexArtefacts) -> None:
    """An empty part stays empty, encrypted or not; a missing transaction index is None, not empty."""
    blob = build_index_blob(parts, cipher, IVS)
    assert blob.indexes.size_bytes == len(blob.data)
    sliced = [slice_index(blob.data, blob.indexes, kind, cipher) for kind in IndexKind]
    assert sliced == [
        parts.offset_index,
        parts.time_index,
        parts.producer_snapshot,
        parts.leader_epochs,
        parts.transaction_index,
    ]
    overhead = 0 if cipher is None else ENCRYPTION_OVERHEAD
    assert len(blob.data) == sum(len(part) + overhead for part in parts.parts() if part)


PARTS = IndexArtefacts(offset_index=b"offset", time_index=b"", producer_snapshot=b"producer", leader_epochs=b"epochs")


def test_parts_lie_in_the_plugins_order_without_gaps() -> None:
    blob = build_index_blob(PARTS)
    assert blob.data == b"offsetproducerepochs"
    assert blob.indexes.ranges() == (
        (IndexKind.OFFSET, ByteRange(0, 6)),
        (IndexKind.TIMESTAMP, ByteRange(6, 6)),
        (IndexKind.PRODUCER_SNAPSHOT, ByteRange(6, 14)),
        (IndexKind.LEADER_EPOCH, ByteRange(14, 20)),
    )
    assert blob.indexes.range_of(IndexKind.TRANSACTION) is None


def test_each_part_has_its_own_iv() -> None:
    blob = build_index_blob(PARTS, CIPHER, IVS)
    starts = [part.start for _, part in blob.indexes.ranges() if len(part)]
    assert [blob.data[start : start + 12] for start in starts] == [IVS[0], IVS[2], IVS[3]]


def test_too_few_ivs_are_refused() -> None:
    with pytest.raises(ValueError, match="3 IVs for 4 indexes"):
        build_index_blob(PARTS, CIPHER, IVS[:3])


def test_an_object_cut_short_is_told() -> None:
    blob = build_index_blob(PARTS)
    with pytest.raises(CorruptDataError, match="leaderEpoch index ends at byte 20, the object at 19"):
        slice_index(blob.data[:-1], blob.indexes, IndexKind.LEADER_EPOCH)
