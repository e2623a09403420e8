"""What an erasure leaves of messages of old formats, and which times it gives a segment."""

from __future__ import annotations

import gzip

import pytest

from tests.support.batches import batch_bytes, legacy_message, record_bytes
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.compaction.erasing import KeyEraser
from tiersidecar.formats.compaction.segments import RewrittenSegment, SegmentRewriter
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import read_records

KEY = b"K"


def erased(log: bytes, base_offset: int) -> tuple[bytes, RewrittenSegment]:
    rewriter = SegmentRewriter(KeyEraser({KEY}, where="log"), base_offset=Offset(base_offset))
    data = b"".join(bytes(piece) for piece in rewriter.feed(memoryview(log), where="log"))
    return data, rewriter.finish()


def wrapper(last_offset: int, keys: list[bytes]) -> bytes:
    inner = b"".join(legacy_message(n, key, b"%d" % n, magic=1, timestamp=100 + n) for n, key in enumerate(keys))
    return legacy_message(last_offset, None, gzip.compress(inner), magic=1, attributes=1, timestamp=100 + len(keys) - 1)


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        pytest.param([KEY, b"A", b"B"], [11, 12], id="the first goes"),
        pytest.param([b"A", KEY, b"B"], [10, 12], id="one within goes"),
        pytest.param([b"A", b"B", KEY], [10, 11], id="the last goes"),
        pytest.param([KEY, b"A", KEY], [11], id="both ends go"),
        pytest.param([KEY, KEY, KEY], [], id="all go"),
    ],
)
def test_a_wrapper_of_an_old_format_keeps_its_first_and_its_last_offset(keys: list[bytes], kept: list[int]) -> None:
    data, done = erased(wrapper(12, keys), 10)
    ((_, header),) = iter_batch_headers(data)
    assert (header.base_offset, header.last_offset, done.tally.last_offset) == (10, 12, 12)
    assert [record.offset for record in read_records(data)] == kept


@pytest.mark.parametrize(
    ("batches", "latest_ms"),
    [
        pytest.param([(b"A", 1000), (KEY, 2000)], 1000, id="the latest goes: its batch is kept empty"),
        pytest.param([(KEY, 1000), (b"A", 2000)], 2000, id="the latest stays"),
        pytest.param([(KEY, 1000)], -1, id="none stays"),
    ],
)
def test_the_latest_timestamp_is_that_of_a_record_that_stays(batches: list[tuple[bytes, int]], latest_ms: int) -> None:
    log = b"".join(
        batch_bytes(offset, record_bytes(0, key, b"v"), base_timestamp=at_ms)
        for offset, (key, at_ms) in enumerate(batches)
    )
    assert erased(log, 0)[1].tally.max_timestamp_ms == latest_ms
