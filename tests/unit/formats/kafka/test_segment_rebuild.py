"""What a broker wrote beside a segment comes out again when only its batches are left (U9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.golden import CLEAN_LOG_DIR
from tiersidecar.domain.errors import TruncatedDataError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import read_time_index
from tiersidecar.formats.kafka.producer_state import read_producer_snapshot
from tiersidecar.formats.kafka.segment_rebuild import RebuiltArtefacts, SegmentRebuilder

SEALED = [
    pytest.param(path, id=f"{path.parent.name} {path.stem}")
    for topic in ("transactions-0", "idempotent-0", "plain-0", "epochs-0", "compressed-0")
    for path in sorted((CLEAN_LOG_DIR / topic).glob("*.log"))[:-1]
]


def rebuild(path: Path, slice_bytes: int, earlier: bytes | None) -> RebuiltArtefacts:
    rebuilder = SegmentRebuilder(where=str(path), base_offset=Offset(int(path.stem)), earlier_snapshot=earlier)
    log = path.read_bytes()
    for start in range(0, len(log), slice_bytes):
        rebuilder.feed(log[start : start + slice_bytes])
    return rebuilder.finish()


def next_snapshot(path: Path) -> Path:
    return min(other for other in path.parent.glob("*.log") if other.stem > path.stem).with_suffix(".snapshot")


@pytest.mark.parametrize("slice_bytes", [1024 * 1024, 1000, 13], ids=["one slice", "many slices", "tiny slices"])
@pytest.mark.parametrize("path", SEALED)
def test_snapshot_and_transaction_index_are_the_brokers(path: Path, slice_bytes: int) -> None:
    earlier = path.with_suffix(".snapshot")
    rebuilt = rebuild(path, slice_bytes, earlier.read_bytes() if earlier.exists() else None)
    expected = read_producer_snapshot(next_snapshot(path).read_bytes())
    assert {*read_producer_snapshot(rebuilt.producer_snapshot)} == {*expected}
    index = path.with_suffix(".txnindex")
    assert rebuilt.transaction_index == (index.read_bytes() if index.exists() and index.stat().st_size else None)


@pytest.mark.parametrize("path", SEALED)
def test_the_time_index_ends_with_the_same_timestamp(path: Path) -> None:
    """It becomes the segment's max timestamp, by which it expires."""
    rebuilt = read_time_index(rebuild(path, 1000, None).time_index, base_offset=Offset(int(path.stem)))
    brokers = read_time_index(path.with_suffix(".timeindex").read_bytes(), base_offset=Offset(int(path.stem)))
    assert rebuilt.timestamps_ms[-1] == brokers.timestamps_ms[-1]


def test_slices_do_not_matter() -> None:
    path = CLEAN_LOG_DIR / "transactions-0" / f"{0:020d}.log"
    assert rebuild(path, 1, None) == rebuild(path, 10**9, None)


def test_a_file_that_ends_within_a_batch_is_told() -> None:
    path = CLEAN_LOG_DIR / "plain-0" / f"{0:020d}.log"
    rebuilder = SegmentRebuilder(where="x.log", base_offset=Offset(0), earlier_snapshot=None)
    rebuilder.feed(path.read_bytes()[:-1])
    with pytest.raises(TruncatedDataError, match=r"x\.log"):
        rebuilder.finish()
