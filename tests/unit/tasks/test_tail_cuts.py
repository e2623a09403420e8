"""The part of a merged segment that is not remote yet, as a segment of its own (issue 23)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.property.test_compaction_model import Writing
from tests.support.compacted_logs import ABORT, LogSegment, aborted_of
from tests.support.inline_blocking import InlineBlocking
from tiersidecar.adapters.log_dirs_fs.segment_file import read_segment_artefacts
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import LocalSegment
from tiersidecar.formats.compaction.whole_batches import WholeBatches
from tiersidecar.formats.kafka.indexes import read_transaction_index, write_transaction_index
from tiersidecar.formats.kafka.producer_state import write_producer_snapshot
from tiersidecar.tasks.tail_cuts import TailCuts, is_to_be_cut

LINEAGE = Lineage((EpochEntry(LeaderEpoch(0), Offset(0)),))
PREFIX = "tiersidecar-pin."


def pinned(directory: Path, log: bytes, *, base: int = 0, stop: int = 20) -> LocalSegment:
    segment = LocalSegment(
        directory=str(directory),
        base_offset=Offset(base),
        next_base_offset=Offset(stop),
        size_bytes=len(log),
        modified_ms=5,
        pinned=True,
        file_prefix=PREFIX,
    )
    Path(segment.log_path).write_bytes(log)
    Path(segment.path_of(f"{stop:020d}.snapshot")).write_bytes(write_producer_snapshot())
    return segment


def merged() -> bytes:
    """Two records, and an aborted transaction before offset 5 and one after it."""
    log = Writing()
    log.data([(b"a", b"1")], 0, 2)
    log.end(2, ABORT)
    log.data([(b"b", b"1"), (b"c", b"1"), (b"d", b"1")], 4, -1)
    log.data([(b"e", b"1")], 0, 2)
    log.end(2, ABORT)
    log.data([(b"f", b"1"), (b"g", b"1")], 0, -1)
    return b"".join(log.batches)


def offsets_of(segment: LocalSegment) -> list[int]:
    batches = WholeBatches()
    data = Path(segment.log_path).read_bytes()
    return [header.base_offset for _, header, _ in batches.feed(data, where="cut")]


async def test_it_begins_where_the_remote_log_ends_and_has_all_its_companions(tmp_path: Path) -> None:
    segment = pinned(tmp_path, merged())
    entries = aborted_of([LogSegment(base_offset=0, next_base_offset=20, log=merged())])
    assert [one.last_offset for one in entries] == [1, 6]
    Path(segment.path_of(f"{0:020d}.txnindex")).write_bytes(write_transaction_index(entries))
    cuts = TailCuts(scratch=tmp_path / "cut", blocking=InlineBlocking())
    async with cuts.cut(segment, Offset(5), LINEAGE) as cut:
        assert (cut.base_offset, cut.next_base_offset, cut.pinned) == (5, 20, True)
        assert offsets_of(cut) == [5, 6, 7]
        assert cut.size_bytes == Path(cut.log_path).stat().st_size
        artefacts = read_segment_artefacts(cut)
        assert artefacts.faults == ()
        ours = read_transaction_index(artefacts.transaction_index or b"", base_offset=Offset(5))
        assert [one.last_offset for one in ours] == [6]
    assert list((tmp_path / "cut").iterdir()) == []


@pytest.mark.parametrize("log", [b"", merged()], ids=["the whole segment is empty", "nothing is left of that part"])
async def test_where_no_batch_is_left_it_has_an_empty_one_at_its_end(tmp_path: Path, log: bytes) -> None:
    segment = pinned(tmp_path, log)
    async with TailCuts(scratch=tmp_path / "cut", blocking=InlineBlocking()).cut(segment, Offset(9), LINEAGE) as cut:
        assert offsets_of(cut) == [19]
        assert read_segment_artefacts(cut).faults == ()


async def test_a_batch_over_the_end_of_what_is_remote_is_damage(tmp_path: Path) -> None:
    segment = pinned(tmp_path, merged())
    with pytest.raises(CorruptDataError, match="offsets 2 to 4 is remote up to 3"):
        async with TailCuts(scratch=tmp_path / "cut", blocking=InlineBlocking()).cut(segment, Offset(3), LINEAGE):
            pass


@pytest.mark.parametrize(
    ("base", "stop", "size", "remote_end", "expected"),
    [
        pytest.param(0, 20, 9, 0, False, id="nothing is remote"),
        pytest.param(0, 20, 9, 5, True, id="its front is remote"),
        pytest.param(5, 20, 9, 5, False, id="it begins where the remote log ends"),
        pytest.param(0, 20, 9, 20, False, id="it is remote"),
        pytest.param(5, 20, 0, 5, True, id="it has no batch"),
    ],
)
def test_which_segments_are_cut(base: int, stop: int, size: int, remote_end: int, expected: bool) -> None:
    segment = LocalSegment(
        directory="/", base_offset=Offset(base), next_base_offset=Offset(stop), size_bytes=size, modified_ms=0
    )
    assert is_to_be_cut(segment, remote_end) is expected
